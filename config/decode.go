package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// decoder fills the structs from the parsed file. It is our own instead of
// yaml.v3's, because that one stops at the first wrong value of a struct, knows
// no key paths and prints what it could not read, which may be a secret.
type decoder struct {
	file     string
	sub      substituter
	problems Problems
	origins  map[string]origin
	failed   map[string]bool // keys that have a problem already
}

func reflectOf(c *Config) reflect.Value { return reflect.ValueOf(c).Elem() }

func (d *decoder) bad(n *yaml.Node, key, what, fix string) {
	if d.failed == nil {
		d.failed = map[string]bool{}
	}
	d.failed[key] = true
	d.problems = append(d.problems, Problem{File: d.file, Line: n.Line, Key: key, What: what, Fix: fix})
}

// value reads n into v. A null leaves the default.
func (d *decoder) value(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if v.Kind() == reflect.Pointer { // a section whose presence counts
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if s, ok := v.Addr().Interface().(defaulter); ok {
		s.setDefaults()
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return
	}
	switch v.Addr().Interface().(type) {
	case *time.Time, *Secret, *Duration, *Size, *IDRange:
		d.scalar(n, v, key)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.section(n, v, key)
	case reflect.Slice:
		d.list(n, v, key)
	case reflect.Map:
		d.table(n, v, key)
	default:
		d.scalar(n, v, key)
	}
}

// pairs calls fn for each key of a mapping, once.
func (d *decoder) pairs(n *yaml.Node, key string, fn func(name string, k, val *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.bad(n, key, "must be a section with keys, not "+kindOf(n), "put its keys on the lines below, indented")
		return
	}
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, val := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			d.bad(k, key, "a key must be plain text", "write NAME: VALUE")
			continue
		}
		name := k.Value
		if line, ok := first[name]; ok {
			d.bad(k, join(key, name), fmt.Sprintf("repeated key, first on line %d", line), "keep one of them")
			continue
		}
		first[name] = k.Line
		fn(name, k, val)
	}
}

func (d *decoder) section(n *yaml.Node, v reflect.Value, key string) {
	fields := fieldsOf(v.Type())
	d.pairs(n, key, func(name string, k, val *yaml.Node) {
		path := join(key, name)
		i, known := fields[name]
		if !known {
			d.unknown(k, val, path, name, fields)
			return
		}
		d.origins[path] = origin{line: k.Line, raw: val.Value}
		d.value(val, v.Field(i), path)
	})
}

// later are keys of the documented configuration that this version does not
// have, by path without list indexes.
var later = map[string]string{
	"source.kafka":            "use mysql, mariadb or postgres",
	"catalog.rest":            "use filesystem",
	"catalog.hive":            "use filesystem",
	"catalog.glue":            "use filesystem",
	"catalog.sql":             "use filesystem",
	"storage.hdfs":            "use file:// or s3:// and remove the section",
	"storage.gcs":             "use file:// or s3://",
	"storage.azure":           "use file:// or s3://",
	"metadata_columns":        "remove it; append tables carry _op, _source_time, _position and _ordinal",
	"tables.metadata_columns": "remove it; append tables carry _op, _source_time, _position and _ordinal",
	"dead_letters":            "remove it; what can't be converted stops the pipeline by name",
	"maintenance":             "remove it; old snapshots expire by snapshots.keep",
}

func (d *decoder) unknown(k, val *yaml.Node, path, name string, fields map[string]int) {
	if fix, ok := later[withoutIndexes(path)]; ok {
		// An empty section asks for nothing.
		if len(val.Content) == 0 && val.Value == "" && path == "storage.hdfs" {
			return
		}
		d.bad(k, path, "not in this version", fix)
		return
	}
	names := make([]string, 0, len(fields))
	for f := range fields {
		names = append(names, f)
	}
	slices.Sort(names)
	fix := "remove it; keys here are " + strings.Join(names, ", ")
	if near := nearest(name, names); near != "" {
		fix = "did you mean " + near + "?"
	}
	d.bad(k, path, "unknown key", fix)
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, key string) {
	if n.Kind != yaml.SequenceNode {
		d.bad(n, key, "must be a list, not "+kindOf(n), "write [a, b], or one entry a line after a dash")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		path := index(key, i)
		d.origins[path] = origin{line: item.Line, raw: item.Value}
		if item.Kind == yaml.ScalarNode && item.Tag == "!!null" {
			d.bad(item, path, "an empty entry", "give it a value or remove it")
			continue
		}
		d.value(item, out.Index(i), path)
	}
	v.Set(out)
}

func (d *decoder) table(n *yaml.Node, v reflect.Value, key string) {
	out := reflect.MakeMap(v.Type())
	d.pairs(n, key, func(name string, k, val *yaml.Node) {
		path := join(key, name)
		d.origins[path] = origin{line: k.Line, raw: val.Value}
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(val, item, path)
		out.SetMapIndex(reflect.ValueOf(name), item)
	})
	v.Set(out)
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, key string) {
	_, secret := v.Interface().(Secret)
	if n.Kind != yaml.ScalarNode {
		d.bad(n, key, "must be a single value, not "+kindOf(n), "write "+last(key)+": VALUE, in quotes if it has special characters")
		return
	}
	text, err := d.sub.expand(n.Value)
	if err != nil {
		d.bad(n, key, err.Error(), "references are ${env:NAME}, ${env:NAME:-default} and ${file:PATH}; a plain ${ is written $${")
		return
	}
	// A value is shown as it stands in the file: what a reference brought in
	// may be a secret in the wrong place.
	shown := strconv.Quote(n.Value)
	if secret {
		shown = masked
	}
	wrong := func(what, fix string) { d.bad(n, key, shown+" is not "+what, fix) }
	switch p := v.Addr().Interface().(type) {
	case *Secret:
		*p = Secret(text)
	case *Duration:
		t, err := time.ParseDuration(text)
		if err != nil || t < 0 {
			wrong("a duration", "write a number with a unit, such as 500ms, 30s, 5m or 24h")
			return
		}
		*p = Duration(t)
	case *Size:
		b, ok := parseSize(text)
		if !ok {
			wrong("a size", "write a number with a unit, such as 64KiB, 128MiB or 1GiB")
			return
		}
		*p = b
	case *IDRange:
		r, ok := parseIDRange(text)
		if !ok {
			wrong("a range of server ids", "write FIRST-LAST, such as 5400-5403, from 1 to 4294967295")
			return
		}
		*p = r
	case *time.Time:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			wrong("a time", "write it like 2026-01-01T00:00:00Z")
			return
		}
		*p = t
	case *int:
		i, err := strconv.Atoi(text)
		if err != nil {
			wrong("a whole number", "write digits only")
			return
		}
		*p = i
	case *bool:
		if text != "true" && text != "false" {
			wrong("true or false", "write one of the two")
			return
		}
		*p = text == "true"
	case *string:
		*p = text
	default:
		panic("config: no decoder for " + v.Type().String())
	}
}

var sizeUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

func parseSize(s string) (Size, bool) {
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		if strings.Trim(number, "0123456789.") != "" {
			return 0, false
		}
		f, err := strconv.ParseFloat(number, 64)
		f *= u.bytes
		if err != nil || f > math.MaxInt64/2 || f != math.Trunc(f) {
			return 0, false
		}
		return Size(f), true
	}
	return 0, false
}

func parseIDRange(s string) (IDRange, bool) {
	a, b, isRange := strings.Cut(s, "-")
	if !isRange {
		b = a
	}
	first, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 32)
	last, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 32)
	if err1 != nil || err2 != nil || first == 0 || last < first {
		return IDRange{}, false
	}
	return IDRange{First: uint32(first), Last: uint32(last)}, true
}

func (d Duration) String() string {
	s := time.Duration(d).String()
	// 1h0m0s reads 1h.
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
	}
	if t, ok := strings.CutSuffix(s, "h0m"); ok {
		s = t + "h"
	}
	return s
}

// MarshalText writes what Load reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (s Size) String() string {
	for i := 3; i >= 0; i-- {
		u := sizeUnits[i]
		if b := Size(u.bytes); s >= b && s%b == 0 {
			return strconv.FormatInt(int64(s/b), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// MarshalText writes what Load reads.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (r IDRange) String() string {
	if r.First == r.Last {
		return strconv.FormatUint(uint64(r.First), 10)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalText writes what Load reads.
func (r IDRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// fieldsOf maps the YAML names of a struct to field indexes.
func fieldsOf(t reflect.Type) map[string]int {
	fields := map[string]int{}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			fields[name] = i
		}
	}
	return fields
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func last(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

func withoutIndexes(path string) string {
	var b strings.Builder
	in := false
	for _, r := range path {
		switch {
		case r == '[':
			in = true
		case r == ']':
			in = false
		case !in:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// nearest is the name that differs from s by at most two letters, if any.
func nearest(s string, names []string) string {
	best, distance := "", 3
	if len(s) < 4 {
		distance = 2
	}
	for _, n := range names {
		if d := edits(s, n); d < distance {
			best, distance = n, d
		}
	}
	return best
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
