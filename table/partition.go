package table

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
)

// ParseTransform reads one entry of partition_by: a column, or identity(c),
// bucket(N, c), truncate(W, c), year(c), month(c), day(c), hour(c), void(c). A
// column whose name has parentheses or commas is written in double quotes or
// backquotes.
func ParseTransform(text string) (t iceberg.Transform, column string, err error) {
	text = strings.TrimSpace(text)
	open := strings.IndexByte(text, '(')
	if open < 0 || quoted(text) {
		column, err = columnName(text)
		return iceberg.IdentityTransform{}, column, err
	}
	if !strings.HasSuffix(text, ")") {
		return nil, "", fmt.Errorf("%q: the closing parenthesis is missing", text)
	}
	name, args := strings.ToLower(strings.TrimSpace(text[:open])), text[open+1:len(text)-1]
	width := 0
	switch name {
	case "bucket", "truncate":
		number, rest, ok := strings.Cut(args, ",")
		if !ok {
			return nil, "", fmt.Errorf("%q: write %s(NUMBER, column)", text, name)
		}
		if width, err = strconv.Atoi(strings.TrimSpace(number)); err != nil || width <= 0 || width > 1<<31-1 {
			return nil, "", fmt.Errorf("%q: %q is not a positive number", text, strings.TrimSpace(number))
		}
		args = rest
	}
	if column, err = columnName(args); err != nil {
		return nil, "", fmt.Errorf("%q: %w", text, err)
	}
	switch name {
	case "bucket":
		return iceberg.BucketTransform{NumBuckets: width}, column, nil
	case "truncate":
		return iceberg.TruncateTransform{Width: width}, column, nil
	case "identity":
		return iceberg.IdentityTransform{}, column, nil
	case "year":
		return iceberg.YearTransform{}, column, nil
	case "month":
		return iceberg.MonthTransform{}, column, nil
	case "day":
		return iceberg.DayTransform{}, column, nil
	case "hour":
		return iceberg.HourTransform{}, column, nil
	case "void":
		return iceberg.VoidTransform{}, column, nil
	}
	return nil, "", fmt.Errorf("%q: unknown transform %q: use identity, bucket, truncate, year, month, day, hour or void", text, name)
}

func quoted(s string) bool {
	return len(s) >= 2 && (s[0] == '"' || s[0] == '`') && s[len(s)-1] == s[0]
}

func columnName(s string) (string, error) {
	s = strings.TrimSpace(s)
	if quoted(s) {
		q := s[:1]
		return strings.ReplaceAll(s[1:len(s)-1], q+q, q), nil
	}
	if s == "" || strings.ContainsAny(s, `(),"`+"`") {
		return "", fmt.Errorf("%q is not a column's name: write it in double quotes", s)
	}
	return s, nil
}

// ParsePartition makes the partition spec that partition_by describes, for the
// columns of s. No entries: unpartitioned.
func ParsePartition(fields []string, s *iceberg.Schema) (iceberg.PartitionSpec, error) {
	if len(fields) == 0 {
		return *iceberg.UnpartitionedSpec, nil
	}
	names := map[string]bool{}
	for _, f := range s.Fields() {
		names[f.Name] = true
	}
	out := make([]iceberg.PartitionField, 0, len(fields))
	seen := map[string]bool{}
	for i, text := range fields {
		t, column, err := ParseTransform(text)
		if err != nil {
			return iceberg.PartitionSpec{}, fmt.Errorf("partition_by: %w", err)
		}
		field, ok := topLevel(s, column)
		if !ok {
			return iceberg.PartitionSpec{}, fmt.Errorf("partition_by: %q: there is no column %q", text, column)
		}
		if why := unusable(t, field.Type); why != "" {
			return iceberg.PartitionSpec{}, fmt.Errorf("partition_by: %q: column %s is %s, %s", text, column, field.Type, why)
		}
		if key := column + "\x00" + kind(t); seen[key] {
			return iceberg.PartitionSpec{}, fmt.Errorf("partition_by: %q: the column is there already with this transform", text)
		} else {
			seen[key] = true
		}
		// Identity is named like its column, as everywhere in Iceberg; any
		// other name must be free.
		name := column
		if _, plain := t.(iceberg.IdentityTransform); !plain {
			name = column + "_" + kind(t)
			for n := 2; names[name]; n++ {
				name = column + "_" + kind(t) + "_" + strconv.Itoa(n)
			}
			names[name] = true
		}
		out = append(out, iceberg.PartitionField{SourceIDs: []int{field.ID}, FieldID: iceberg.PartitionDataIDStart + i, Name: name, Transform: t})
	}
	return iceberg.NewPartitionSpec(out...), nil
}

func topLevel(s *iceberg.Schema, name string) (iceberg.NestedField, bool) {
	for _, f := range s.Fields() {
		if f.Name == name {
			return f, true
		}
	}
	return iceberg.NestedField{}, false
}

func kind(t iceberg.Transform) string {
	name, _, _ := strings.Cut(t.String(), "[")
	switch t.(type) {
	case iceberg.TruncateTransform:
		return "trunc"
	case iceberg.VoidTransform:
		return "null"
	}
	return name
}

// unusable says why a column of this type can't be the source of t, "" if it can.
func unusable(t iceberg.Transform, typ iceberg.Type) string {
	if _, ok := typ.(iceberg.PrimitiveType); !ok {
		return "which is not a single value"
	}
	switch typ.(type) {
	case iceberg.Float32Type, iceberg.Float64Type:
		return "and NaN and -0 have no partition of their own"
	case iceberg.DecimalType:
		if _, ok := t.(iceberg.TruncateTransform); ok {
			return "and truncating the lowest values gives one digit more than the type holds: use bucket or identity"
		}
	}
	if !t.CanTransform(typ) {
		return "which " + kind(t) + " does not take"
	}
	return ""
}

// ParseSort makes the sort order that sort_by describes: "column [asc|desc]
// [nulls first|nulls last]". Ascending puts nulls first, descending last.
func ParseSort(fields []string, s *iceberg.Schema) (icetable.SortOrder, error) {
	if len(fields) == 0 {
		return icetable.UnsortedSortOrder, nil
	}
	out := make([]icetable.SortField, 0, len(fields))
	for _, text := range fields {
		rest := strings.TrimSpace(text)
		nulls := icetable.NullOrder("")
		for suffix, order := range map[string]icetable.NullOrder{" nulls first": icetable.NullsFirst, " nulls last": icetable.NullsLast} {
			if cut, ok := cutSuffixFold(rest, suffix); ok {
				rest, nulls = cut, order
				break
			}
		}
		direction := icetable.SortASC
		if cut, ok := cutSuffixFold(rest, " desc"); ok {
			rest, direction = cut, icetable.SortDESC
		} else if cut, ok := cutSuffixFold(rest, " asc"); ok {
			rest = cut
		}
		if nulls == "" {
			nulls = icetable.NullsFirst
			if direction == icetable.SortDESC {
				nulls = icetable.NullsLast
			}
		}
		column, err := columnName(rest)
		if err != nil {
			return icetable.SortOrder{}, fmt.Errorf("sort_by: %q: %w", text, err)
		}
		field, ok := topLevel(s, column)
		if !ok {
			return icetable.SortOrder{}, fmt.Errorf("sort_by: %q: there is no column %q", text, column)
		}
		if _, ok := field.Type.(iceberg.PrimitiveType); !ok {
			return icetable.SortOrder{}, fmt.Errorf("sort_by: %q: column %s is %s, which has no order", text, column, field.Type)
		}
		out = append(out, icetable.SortField{SourceIDs: []int{field.ID}, Transform: iceberg.IdentityTransform{}, Direction: direction, NullOrder: nulls})
	}
	order, err := icetable.NewSortOrder(1, out)
	if err != nil {
		return icetable.SortOrder{}, fmt.Errorf("sort_by: %w", err)
	}
	return order, nil
}

func cutSuffixFold(s, suffix string) (string, bool) {
	if len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix) {
		return strings.TrimSpace(s[:len(s)-len(suffix)]), true
	}
	return s, false
}

// CheckSchema refuses a schema that the table must not get: two columns whose
// names differ in case only, which other engines can't open, or a column named
// like a partition field that is made of another column.
func (t *Table) CheckSchema(s *iceberg.Schema) error {
	if err := checkNames(s, t.meta().PartitionSpecs()); err != nil {
		return fmt.Errorf("table %s: %w", t.name, err)
	}
	return nil
}

func checkNames(s *iceberg.Schema, specs []iceberg.PartitionSpec) error {
	byName := map[string]iceberg.NestedField{}
	folded := map[string]string{}
	for _, f := range s.Fields() {
		byName[f.Name] = f
		if other, taken := folded[strings.ToLower(f.Name)]; taken {
			return fmt.Errorf("%w: columns %s and %s differ in case only, which other engines cannot open", ErrUnfit, other, f.Name)
		}
		folded[strings.ToLower(f.Name)] = f.Name
	}
	for _, spec := range specs {
		for _, field := range spec.Fields() {
			column, taken := byName[field.Name]
			if !taken {
				continue
			}
			if _, plain := field.Transform.(iceberg.IdentityTransform); !plain || field.SourceID() != column.ID {
				return fmt.Errorf("%w: column %s has the name of a partition field (%s)", ErrUnfit, column.Name, field.Transform)
			}
		}
	}
	return nil
}
