package sink

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// appendColumns are the columns that mode append adds to those of the relation.
var appendColumns = [...]source.Column{
	{Name: "_op", Type: source.Type{Kind: source.String}},
	{Name: "_source_time", Type: source.Type{Kind: source.TimestampTZ}, Nullable: true},
	{Name: "_position", Type: source.Type{Kind: source.String}},
	{Name: "_ordinal", Type: source.Type{Kind: source.Long}},
}

// keyOf resolves the key of a relation's table: indexes into its columns, in
// their order. Append tables have none.
func keyOf(rel *source.Relation, over overrides) ([]int, error) {
	if over.Append {
		return nil, nil
	}
	key := slices.Clone(rel.Key)
	if over.Key != nil {
		key = key[:0]
		for _, name := range over.Key {
			i := slices.IndexFunc(rel.Columns, func(c source.Column) bool { return c.Name == name })
			if i < 0 {
				return nil, fmt.Errorf("key column %s: %s has no such column", name, rel.FullName())
			}
			key = append(key, i)
		}
	}
	slices.Sort(key)
	if len(key) == 0 {
		return nil, fmt.Errorf("%s has no primary key and no unique key of columns that are not null; give it one, name the columns in `key`, or write it with `mode: append`", rel.FullName())
	}
	var errs []error
	for n, i := range key {
		c := rel.Columns[i]
		if n > 0 && key[n-1] == i {
			errs = append(errs, fmt.Errorf("key column %s is named twice", c.Name))
		}
		if c.Nullable {
			errs = append(errs, fmt.Errorf("key column %s can be NULL; readers lose rows with such keys", c.Name))
		}
		t, _, err := over.columnType(c)
		if err != nil {
			continue // told where all columns are looked at
		}
		switch t.Kind {
		case source.Float, source.Double, source.FloatList, source.List:
			errs = append(errs, fmt.Errorf("key column %s: %s cannot be a key", c.Name, t))
		}
	}
	return key, errors.Join(errs...)
}

// icebergSchema is the schema of a new table for rel: its columns in their order
// and with their names, key columns required and identifier fields, all others
// optional. Field ids are assigned from 1. Errors are all problems at once.
func icebergSchema(rel *source.Relation, over overrides) (*iceberg.Schema, error) {
	var errs []error
	key, err := keyOf(rel, over)
	if err != nil {
		errs = append(errs, err)
	}
	for name := range over.As {
		if !slices.ContainsFunc(rel.Columns, func(c source.Column) bool { return c.Name == name }) {
			errs = append(errs, fmt.Errorf("column %s: %s has no such column", name, rel.FullName()))
		}
	}
	columns := slices.Clone(rel.Columns)
	if over.Append {
		for _, a := range appendColumns {
			if slices.ContainsFunc(columns, func(c source.Column) bool { return c.Name == a.Name }) {
				errs = append(errs, fmt.Errorf("column %s: mode append adds a column of that name", a.Name))
			}
		}
		columns = append(columns, appendColumns[:]...)
	}
	// Ids of list elements come after those of all columns, as Iceberg assigns them.
	element := len(columns)
	var (
		fields []iceberg.NestedField
		ids    = []int{}
	)
	for i, c := range columns {
		t, timeOfDay, err := over.columnType(c)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if t.IsList() {
			element++
		}
		typ := icebergType(t, timeOfDay, element)
		if typ == nil {
			errs = append(errs, fmt.Errorf("column %s: no type in Iceberg for %s", c.Name, t))
			continue
		}
		f := iceberg.NestedField{ID: i + 1, Name: c.Name, Type: typ}
		switch {
		case i >= len(rel.Columns):
			f.Required = !c.Nullable
		case slices.Contains(key, i):
			f.Required = true
			ids = append(ids, f.ID)
		}
		fields = append(fields, f)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return iceberg.NewSchemaWithIdentifiers(0, ids, fields...), nil
}

// fit says why a table with schema have cannot take what want describes: columns
// by name, types, key. Field ids, order and documentation do not matter. Errors
// are all problems at once.
func fit(have, want *iceberg.Schema) error {
	var errs []error
	for _, w := range want.Fields() {
		h, ok := topLevel(have, w.Name)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("column %s is missing", w.Name))
		case typeText(h.Type) != typeText(w.Type):
			errs = append(errs, fmt.Errorf("column %s is %s, expected %s", w.Name, typeText(h.Type), typeText(w.Type)))
		case h.Required && !w.Required:
			errs = append(errs, fmt.Errorf("column %s is required, expected optional", w.Name))
		case !h.Required && w.Required:
			errs = append(errs, fmt.Errorf("column %s is optional, expected required", w.Name))
		}
	}
	for _, h := range have.Fields() {
		if _, ok := topLevel(want, h.Name); !ok {
			errs = append(errs, fmt.Errorf("column %s is not in the relation", h.Name))
		}
	}
	if a, b := identifierNames(have), identifierNames(want); !slices.Equal(a, b) {
		errs = append(errs, fmt.Errorf("its identifier fields are (%s), expected (%s)", strings.Join(a, ", "), strings.Join(b, ", ")))
	}
	return errors.Join(errs...)
}

func topLevel(s *iceberg.Schema, name string) (iceberg.NestedField, bool) {
	for _, f := range s.Fields() {
		if f.Name == name {
			return f, true
		}
	}
	return iceberg.NestedField{}, false
}

// typeText is a type without field ids.
func typeText(t iceberg.Type) string {
	if l, ok := t.(*iceberg.ListType); ok {
		if l.ElementRequired {
			return "list<required " + typeText(l.Element) + ">"
		}
		return "list<" + typeText(l.Element) + ">"
	}
	return t.String()
}

func identifierNames(s *iceberg.Schema) []string {
	var names []string
	for _, id := range s.IdentifierFieldIDs {
		if name, ok := s.FindColumnName(id); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

const (
	metricsDefault = "write.metadata.metrics.default"
	metricsColumn  = "write.metadata.metrics.column."
	metricsMax     = "write.metadata.metrics.max-inferred-column-defaults"
)

// fileColumns are the columns of a data file of a table, in schema order, each
// with the type of the vectors that fill it. Columns of type uuid have no bounds:
// Java compares them as signed and would skip deletes and files. props are the
// table's properties; write.metadata.metrics.* among them is obeyed, including
// Iceberg's rule that without a default only the first 100 columns have metrics;
// identifier columns always have them.
func fileColumns(s *iceberg.Schema, props map[string]string) ([]fileColumn, error) {
	var errs []error
	mode, explicit := metricsMode{}, false
	if v, ok := props[metricsDefault]; ok {
		var err error
		if mode, err = parseMetricsMode(v); err != nil {
			errs = append(errs, fmt.Errorf("property %s: %w", metricsDefault, err))
		}
		explicit = true
	}
	limit := 100
	if v, ok := props[metricsMax]; ok {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("property %s: %q is not a number", metricsMax, v))
		}
		limit = n
	}
	for name := range props {
		if c, ok := strings.CutPrefix(name, metricsColumn); ok {
			if _, ok := topLevel(s, c); !ok {
				errs = append(errs, fmt.Errorf("property %s: the table has no such column", name))
			}
		}
	}
	var cols []fileColumn
	for i, f := range s.Fields() {
		t, timeOfDay, element, err := vectorType(f.Type)
		if err != nil {
			errs = append(errs, fmt.Errorf("column %s: %w", f.Name, err))
			continue
		}
		c := fileColumn{ID: f.ID, Name: f.Name, Type: t, Required: f.Required, TimeOfDay: timeOfDay, ElementID: element, Metrics: mode}
		key := slices.Contains(s.IdentifierFieldIDs, f.ID)
		c.NoBounds = t.Kind == source.UUID
		if i >= limit && !explicit {
			c.Metrics = metricsMode{kind: metricsNone}
		}
		if v, ok := props[metricsColumn+f.Name]; ok {
			if c.Metrics, err = parseMetricsMode(v); err != nil {
				errs = append(errs, fmt.Errorf("property %s%s: %w", metricsColumn, f.Name, err))
			}
		}
		if key && (c.Metrics.kind == metricsNone || c.Metrics.kind == metricsCounts) {
			// Without them every delete would be checked against every file.
			c.Metrics = metricsMode{}
		}
		cols = append(cols, c)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return cols, nil
}

// equalityDeleteColumns picks the key columns, given as indexes into cols, in
// schema order.
func equalityDeleteColumns(cols []fileColumn, key []int) []fileColumn {
	key = slices.Clone(key)
	slices.Sort(key)
	var out []fileColumn
	for _, k := range key {
		out = append(out, cols[k])
	}
	return out
}

// parseWriterOptions reads the write.parquet.* properties of a table. Errors are
// all problems at once.
func parseWriterOptions(props map[string]string) (writerOptions, error) {
	const prefix = "write.parquet."
	var (
		o    writerOptions
		errs []error
	)
	number := func(name string, lo, hi int64) int64 {
		v, ok := props[prefix+name]
		if !ok {
			return 0
		}
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if err != nil || n < lo || n > hi {
			errs = append(errs, fmt.Errorf("property %s%s: %q is not a number from %d to %d", prefix, name, v, lo, hi))
			return 0
		}
		return n
	}
	o.Codec = strings.ToLower(strings.TrimSpace(props[prefix+"compression-codec"]))
	o.Level = int(number("compression-level", 0, 22))
	o.RowGroupBytes = number("row-group-size-bytes", 1<<16, 1<<31-1)
	o.PageBytes = number("page-size-bytes", 1<<10, 64<<20)
	o.PageRows = int(number("page-row-limit", 1, 1<<24))
	if _, err := newCodec(o.Codec, o.Level); err != nil {
		errs = append(errs, fmt.Errorf("property %scompression-codec or compression-level: %w", prefix, err))
	}
	return o, errors.Join(errs...)
}
