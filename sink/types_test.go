package sink

import (
	"bytes"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

func relation(key []int, columns ...source.Column) *source.Relation {
	return &source.Relation{Namespace: "shop", Name: "orders", Columns: columns, Key: key}
}

func column1(name string, t source.Type) source.Column {
	return source.Column{Name: name, Type: t, Native: "x", Nullable: true}
}

func keyColumn(name string, t source.Type) source.Column {
	return source.Column{Name: name, Type: t, Native: "x"}
}

func TestSchemaHasKeyRequiredAndTheRestOptionalInSourceOrder(t *testing.T) {
	rel := relation([]int{2, 0},
		keyColumn("b", typ(source.Long)), column1("list", typ(source.FloatList)), keyColumn("a", typ(source.String)),
		keyColumn("t", typ(source.Time)), column1("v", typ(source.FloatList)), column1("d", decimal(20, 0)))
	s, err := icebergSchema(rel, overrides{})
	if err != nil {
		t.Fatal(err)
	}
	want := `table {
	1: b: required long
	2: list: optional list<float>
	3: a: required string
	4: t: optional long
	5: v: optional list<float>
	6: d: optional decimal(20, 0)
}`
	if got := s.String(); got != want {
		t.Errorf("%s", got)
	}
	if !slices.Equal(s.IdentifierFieldIDs, []int{1, 3}) {
		t.Errorf("identifier fields %v", s.IdentifierFieldIDs)
	}
	cols, err := fileColumns(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cols[1].ElementID != 7 || cols[4].ElementID != 8 {
		t.Errorf("element ids %d, %d", cols[1].ElementID, cols[4].ElementID)
	}
	if key := equalityDeleteColumns(cols, []int{2, 0}); len(key) != 2 || key[0].Name != "b" || key[1].Name != "a" {
		t.Errorf("key columns %v", key)
	}
	if err := fit(s, s); err != nil {
		t.Error(err)
	}
}

func TestAppendSchemaHasNoKeyAndOurColumns(t *testing.T) {
	rel := relation(nil, column1("a", typ(source.Int)))
	s, err := icebergSchema(rel, overrides{Append: true})
	if err != nil {
		t.Fatal(err)
	}
	want := `table {
	1: a: optional int
	2: _op: required string
	3: _source_time: optional timestamptz
	4: _position: required string
	5: _ordinal: required long
}`
	if got := s.String(); got != want || len(s.IdentifierFieldIDs) != 0 {
		t.Errorf("%s %v", got, s.IdentifierFieldIDs)
	}
	if _, err := icebergSchema(relation(nil, column1("_op", typ(source.Int))), overrides{Append: true}); err == nil {
		t.Error("a relation with a column _op is accepted")
	}
}

func TestEveryProblemOfASchemaIsToldAtOnce(t *testing.T) {
	rel := relation([]int{0}, column1("id", typ(source.Double)), column1("x", typ(source.Date)))
	_, err := icebergSchema(rel, overrides{As: map[string]string{"x": "uuid", "y": "int"}})
	for _, want := range []string{"id can be NULL", "double cannot be a key", "x: x (date) cannot be written as uuid", "column y: shop.orders has no such column"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if _, err := icebergSchema(relation(nil, column1("x", typ(source.Int))), overrides{}); err == nil || !strings.Contains(err.Error(), "mode: append") {
		t.Errorf("no key: %v", err)
	}
	if _, err := icebergSchema(rel, overrides{Key: []string{"z"}}); err == nil || !strings.Contains(err.Error(), "key column z") {
		t.Errorf("unknown key: %v", err)
	}
}

func TestFitNamesEveryDifference(t *testing.T) {
	field := func(id int, name string, typ iceberg.Type, required bool) iceberg.NestedField {
		return iceberg.NestedField{ID: id, Name: name, Type: typ, Required: required}
	}
	p := iceberg.PrimitiveTypes
	want := iceberg.NewSchemaWithIdentifiers(0, []int{1}, field(1, "id", p.Int64, true), field(2, "a", p.String, false), field(3, "b", p.Date, false))
	other := iceberg.NewSchemaWithIdentifiers(3, []int{9}, field(8, "b", p.Date, false), field(9, "id", p.Int64, true), field(4, "a", p.String, false))
	if err := fit(other, want); err != nil {
		t.Errorf("ids and order matter: %v", err)
	}
	bad := iceberg.NewSchemaWithIdentifiers(0, nil, field(1, "id", p.Int32, false), field(2, "a", p.String, true), field(3, "c", p.Date, false))
	err := fit(bad, want)
	for _, text := range []string{"column id is int, expected long", "column a is required, expected optional", "column b is missing", "column c is not in the relation", "identifier fields are (), expected (id)"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v; want %q", err, text)
		}
	}
}

func TestOverridesConvertValues(t *testing.T) {
	uuid, _ := parseUUID([]byte("f79c3e09-677c-4bbd-a479-3f349cb785e7"))
	for _, tc := range []struct {
		as   string
		from *source.Vector
		want *source.Vector // nil: every value fails
	}{
		{"boolean", vectorOf(typ(source.Int), 0, 1, nil), vectorOf(typ(source.Bool), false, true, nil)},
		{"boolean", vectorOf(typ(source.Int), 2, -1, math.MaxInt32), nil},
		{"boolean", vectorOf(decimal(20, 0), 2), nil},
		{"int", vectorOf(typ(source.Long), math.MaxInt32, math.MinInt32), vectorOf(typ(source.Int), math.MaxInt32, math.MinInt32)},
		{"int", vectorOf(typ(source.Long), math.MaxInt32+1, math.MinInt32-1), nil},
		{"int", vectorOf(typ(source.String), "12", "-7", "+0"), vectorOf(typ(source.Int), 12, -7, 0)},
		{"int", vectorOf(typ(source.String), "", "-", "1e3", " 1", "1.5", "0x1"), nil},
		{"int", vectorOf(decimal(10, 2), 1200), vectorOf(typ(source.Int), 12)},
		{"int", vectorOf(decimal(10, 2), 1201), nil},
		{"long", vectorOf(decimal(20, 0), math.MaxInt64), vectorOf(typ(source.Long), math.MaxInt64)},
		{"long", vectorOf(decimal(20, 0), source.Int128{Lo: 1 << 63}), nil},
		{"long", vectorOf(decimal(20, 0), source.Int128{Hi: -1, Lo: 1<<63 - 1}), nil},
		{"decimal(20,0)", vectorOf(typ(source.Long), math.MinInt64), vectorOf(decimal(20, 0), wide(math.MinInt64))},
		{"decimal(4,2)", vectorOf(typ(source.Int), 99, -99), vectorOf(decimal(4, 2), 9900, -9900)},
		{"decimal(4,2)", vectorOf(typ(source.Int), 100), nil},
		{"decimal(38,2)", vectorOf(typ(source.String), "-999999999999999999999999999999999999.99"), vectorOf(decimal(38, 2), mustWide("-99999999999999999999999999999999999999"))},
		{"decimal(38,2)", vectorOf(typ(source.String), "9999999999999999999999999999999999999.99", strings.Repeat("9", 200), "1.001"), nil},
		{"string", vectorOf(typ(source.Long), math.MinInt64, nil, 0), vectorOf(typ(source.String), "-9223372036854775808", nil, "0")},
		{"string", vectorOf(decimal(9, 3), -5, 0, 123456), vectorOf(typ(source.String), "-0.005", "0.000", "123.456")},
		{"string", vectorOf(decimal(38, 0), mustWide("99999999999999999999999999999999999999")), vectorOf(typ(source.String), "99999999999999999999999999999999999999")},
		{"string", vectorOf(typ(source.Date), -719162, 19723), vectorOf(typ(source.String), "0001-01-01", "2024-01-01")},
		{"string", vectorOf(typ(source.Time), -3020399000000, int64(1)), vectorOf(typ(source.String), "-838:59:59", "00:00:00.000001")},
		{"string", vectorOf(typ(source.Timestamp), int64(-1)), vectorOf(typ(source.String), "1969-12-31 23:59:59.999999")},
		{"string", vectorOf(typ(source.TimestampTZ), int64(0)), vectorOf(typ(source.String), "1970-01-01 00:00:00+00:00")},
		{"string", vectorOf(typ(source.Double), 0.1, 1e100), vectorOf(typ(source.String), "0.1", "1e+100")},
		{"string", vectorOf(typ(source.Float), float32(0.1)), vectorOf(typ(source.String), "0.1")},
		{"string", vectorOf(typ(source.Binary), "grün"), vectorOf(typ(source.String), "grün")},
		{"string", vectorOf(typ(source.Binary), "\xff"), nil},
		{"string", vectorOf(typ(source.Bool), true), vectorOf(typ(source.String), "true")},
		{"string", vectorOf(typ(source.UUID), uuid[:]), vectorOf(typ(source.String), "f79c3e09-677c-4bbd-a479-3f349cb785e7")},
		{"string", vectorOf(typ(source.FloatList), "", append(le32(math.Float32bits(1.5)), le32(math.Float32bits(-2))...)), vectorOf(typ(source.String), "[]", "[1.5,-2]")},
		{"time", vectorOf(typ(source.Time), 0, 86399999999), vectorOf(typ(source.Time), 0, 86399999999)},
		{"time", vectorOf(typ(source.Time), -1, 86400000000), nil},
		{"uuid", vectorOf(typ(source.String), "F79C3E09-677c-4bbd-a479-3f349cb785e7", "f79c3e09677c4bbda4793f349cb785e7"), vectorOf(typ(source.UUID), uuid[:], uuid[:])},
		{"uuid", vectorOf(typ(source.String), "", "f79c3e09-677c-4bbd-a479-3f349cb785eg", "f79c3e09-677c-4bbd-a4793-f349cb785e7"), nil},
		{"uuid", vectorOf(typ(source.Binary), uuid[:]), vectorOf(typ(source.UUID), uuid[:])},
		{"uuid", vectorOf(typ(source.Binary), uuid[:15]), nil},
		{"binary", vectorOf(typ(source.String), "ü"), vectorOf(typ(source.Binary), "ü")},
		{"int", vectorOf(typ(source.Int), 1), vectorOf(typ(source.Int), 1)},
	} {
		name := tc.from.Type.String() + " as " + tc.as
		to, timeOfDay, err := overrides{As: map[string]string{"c": tc.as}}.columnType(source.Column{Name: "c", Type: tc.from.Type})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c, err := newConverter(tc.from.Type, to, timeOfDay)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c == nil {
			if tc.from.Type != to {
				t.Errorf("%s: is not converted", name)
			}
			continue
		}
		got := &source.Vector{}
		got.Reset(to)
		if tc.want == nil {
			for i := range tc.from.Len() {
				if err := c.Convert(got, tc.from, i, i+1); err == nil {
					t.Errorf("%s: value %d is accepted", name, i)
				}
			}
			continue
		}
		if err := c.Convert(got, tc.from, 0, tc.from.Len()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range tc.want.Len() {
			if g, w := physical(&fileColumn{}, got, i), physical(&fileColumn{}, tc.want, i); g != w {
				t.Errorf("%s: value %d is %s, want %s", name, i, g, w)
			}
		}
		if got.Len() != tc.want.Len() {
			t.Errorf("%s: %d values", name, got.Len())
		}
	}
	for _, bad := range []string{"", "float", "decimal", "decimal(0)", "decimal(39,0)", "decimal(3,4)", "decimal(3", "timestamp"} {
		if _, _, err := parseAs(bad); err == nil {
			t.Errorf("as: %q is accepted", bad)
		}
	}
}

func mustWide(s string) source.Int128 {
	n, ok := parseNumber([]byte(s))
	w, fits := n.int128()
	if !ok || !fits {
		panic(s)
	}
	return w
}

func TestNumbersAgreeWithBig(t *testing.T) {
	r := testSeed(t)
	toBig := func(x source.Int128) *big.Int {
		b := new(big.Int).Lsh(big.NewInt(x.Hi), 64)
		return b.Add(b, new(big.Int).SetUint64(x.Lo))
	}
	for range 5000 {
		x := source.Int128{Hi: int64(r.Uint64()) >> r.IntN(64), Lo: r.Uint64() >> r.IntN(64)}
		b := toBig(x)
		n := wideNumber(x, 0)
		if got := string(n.append(nil)); got != b.String() {
			t.Fatalf("text %s, want %s", got, b)
		}
		if x.Hi != math.MinInt64 {
			if back, ok := n.int128(); !ok || back != x {
				t.Fatalf("%s comes back as %v", b, back)
			}
		}
		if parsed, ok := parseNumber([]byte(b.String())); !ok || parsed != n {
			t.Fatalf("%s parsed as %v", b, parsed)
		}
		enc := appendDecimal(nil, x)
		if parseDecimalBytes(enc) != x {
			t.Fatalf("%s encodes to %x", b, enc)
		}
		if len(enc) > 1 && (enc[0] == 0 && enc[1] < 0x80 || enc[0] == 0xff && enc[1] >= 0x80) {
			t.Fatalf("%s is not encoded in the fewest bytes: %x", b, enc)
		}
		if w := r.Uint64N(math.MaxInt32) + 1; x.Hi > math.MinInt64+1 {
			m := new(big.Int).Mod(b, new(big.Int).SetUint64(w)) // Euclidean
			if got := toBig(truncateWide(x, w)); got.Cmp(new(big.Int).Sub(b, m)) != 0 {
				t.Fatalf("%s truncated by %d: %s", b, w, got)
			}
		}
	}
	for p := 1; p <= 38; p++ {
		limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(p)), nil)
		n := 1
		for limit.Cmp(new(big.Int).Lsh(big.NewInt(1), uint(8*n-1))) > 0 {
			n++
		}
		if got := decimalLength(p); got != n {
			t.Errorf("precision %d needs %d bytes, not %d", p, n, got)
		}
	}
}

func TestWriterOptionsComeFromTableProperties(t *testing.T) {
	o, err := parseWriterOptions(map[string]string{
		"write.parquet.compression-codec": "GZIP", "write.parquet.compression-level": "9", "write.parquet.page-size-bytes": "65536",
		"write.parquet.row-group-size-bytes": "8388608", "write.parquet.page-row-limit": "100", "other": "x",
	})
	if err != nil || o != (writerOptions{Codec: "gzip", Level: 9, PageBytes: 65536, RowGroupBytes: 8388608, PageRows: 100}) {
		t.Errorf("%+v, %v", o, err)
	}
	_, err = parseWriterOptions(map[string]string{"write.parquet.compression-codec": "lz4", "write.parquet.page-size-bytes": "much"})
	for _, want := range []string{`"lz4"`, "page-size-bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestMetricsModesComeFromTableProperties(t *testing.T) {
	var fields []iceberg.NestedField
	for i := range 103 {
		fields = append(fields, iceberg.NestedField{ID: i + 1, Name: string(rune('A'+i%26)) + strings.Repeat("x", i/26), Type: iceberg.PrimitiveTypes.String, Required: i == 102})
	}
	s := iceberg.NewSchemaWithIdentifiers(0, []int{103}, fields...)
	cols, err := fileColumns(s, map[string]string{"write.metadata.metrics.column.B": "full", "write.metadata.metrics.column.C": "none"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]metricsMode{0: {}, 1: {kind: metricsFull}, 2: {kind: metricsNone}, 99: {}, 100: {kind: metricsNone}, 102: {}} {
		if cols[i].Metrics != want {
			t.Errorf("column %d: %+v, want %+v", i, cols[i].Metrics, want)
		}
	}
	if cols, err = fileColumns(s, map[string]string{"write.metadata.metrics.default": "truncate(3)"}); err != nil || cols[101].Metrics != (metricsMode{width: 3}) {
		t.Errorf("%+v, %v", cols[101].Metrics, err)
	}
	if _, err = fileColumns(s, map[string]string{"write.metadata.metrics.default": "some", "write.metadata.metrics.column.nope": "full"}); err == nil || !strings.Contains(err.Error(), `"some"`) || !strings.Contains(err.Error(), "nope") {
		t.Errorf("%v", err)
	}
}

func FuzzParseNumber(f *testing.F) {
	for _, s := range []string{"", "0", "-1.50", "+7", ".", "1.", ".5", "170141183460469231731687303715884105728", "99999999999999999999999999999999999999999", "0." + strings.Repeat("0", 80)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		n, ok := parseNumber(s)
		if !ok {
			return
		}
		again, ok := parseNumber(n.append(nil))
		if again.negative = n.negative; !ok || again != n {
			t.Errorf("%q → %s → %v, %v", s, n.append(nil), again, ok)
		}
	})
}

func FuzzRaisedBoundIsAbove(f *testing.F) {
	f.Add([]byte("abc\xff"), 2, true)
	f.Add([]byte("\U0010ffff\U0010ffff!"), 4, true)
	f.Add([]byte{0xff, 0xff, 0}, 2, false)
	f.Fuzz(func(t *testing.T, b []byte, limit int, text bool) {
		if limit < 1 || limit > 1000 {
			return
		}
		up, ok := raise(b, limit, text)
		if ok && bytes.Compare(up, b) < 0 {
			t.Errorf("%q raised to %q", b, up)
		}
		if lo := cutBytes(b, limit, text); bytes.Compare(lo, b) > 0 || len(lo) > limit {
			t.Errorf("%q cut to %q", b, lo)
		}
	})
}
