package sink

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/source"
)

// vectorOf makes a vector of Go values; nil is NULL.
func vectorOf(t source.Type, values ...any) *source.Vector {
	v := &source.Vector{}
	v.Reset(t)
	for _, x := range values {
		switch x := x.(type) {
		case nil:
			v.AppendNull()
		case bool:
			v.AppendBool(x)
		case int32:
			v.AppendInt(x)
		case int:
			if t.Store() == source.StoreInts {
				v.AppendInt(int32(x))
			} else if t.Store() == source.StoreWides {
				v.AppendWide(wide(int64(x)))
			} else {
				v.AppendLong(int64(x))
			}
		case int64:
			v.AppendLong(x)
		case source.Int128:
			v.AppendWide(x)
		case float32:
			v.AppendFloat(x)
		case float64:
			v.AppendDouble(x)
		case string:
			v.AppendBytes([]byte(x))
		case []byte:
			v.AppendBytes(x)
		default:
			panic(fmt.Sprintf("%T", x))
		}
	}
	return v
}

func typ(kind source.Kind) source.Type { return source.Type{Kind: kind} }

func decimal(p, s int) source.Type {
	return source.Type{Kind: source.Decimal, Precision: p, Scale: s}
}

func micros(s string) int64 {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t.UnixMicro()
}

func TestHashesAreThoseOfTheSpecification(t *testing.T) {
	day := int32(micros("2017-11-16T00:00:00Z") / dayMicros)
	uuid, _ := parseUUID([]byte("f79c3e09-677c-4bbd-a479-3f349cb785e7"))
	for _, tc := range []struct {
		v    *source.Vector
		want int32
	}{
		{vectorOf(typ(source.Int), 34), 2017239379},
		{vectorOf(typ(source.Long), 34), 2017239379},
		{vectorOf(decimal(9, 2), 1420), -500754589},
		{vectorOf(decimal(38, 2), 1420), -500754589},
		{vectorOf(typ(source.Date), day), -653330422},
		{vectorOf(typ(source.Time), int64((22*3600+31*60+8)*1_000_000)), -662762989},
		{vectorOf(typ(source.Timestamp), micros("2017-11-16T22:31:08Z")), -2047944441},
		{vectorOf(typ(source.Timestamp), micros("2017-11-16T22:31:08.000001Z")), -1207196810},
		{vectorOf(typ(source.TimestampTZ), micros("2017-11-16T14:31:08-08:00")), -2047944441},
		{vectorOf(typ(source.String), "iceberg"), 1210000089},
		{vectorOf(typ(source.UUID), uuid[:]), 1488055340},
		{vectorOf(typ(source.Binary), []byte{0, 1, 2, 3}), -188683207},
	} {
		if got := int32(hashOf(tc.v.Type)(tc.v, 0)); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.v.Type, got, tc.want)
		}
	}
	for _, no := range []source.Type{typ(source.Bool), typ(source.Float), typ(source.Double), typ(source.FloatList)} {
		if hashOf(no) != nil {
			t.Errorf("%s has a hash", no)
		}
	}
}

// partitionOf computes one field.
func partitionOf(t *testing.T, transform string, v *source.Vector, row int) (value []byte, path string) {
	t.Helper()
	tr, err := iceberg.ParseTransform(transform)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPartitioner(iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{7}, FieldID: 1000, Name: "p", Transform: tr}),
		[]fileColumn{{ID: 7, Name: "c", Type: v.Type}})
	if err != nil {
		t.Fatalf("%s of %s: %v", transform, v.Type, err)
	}
	tuple := p.Of([]*source.Vector{v}, row, nil)
	return p.Values(tuple)[0], p.Path(tuple)
}

func TestTransformsFollowTheSpecification(t *testing.T) {
	max128 := source.Int128{Hi: math.MinInt64 / 2, Lo: 1}
	for _, tc := range []struct {
		transform string
		v         *source.Vector
		want      []byte
		path      string
	}{
		{"identity", vectorOf(typ(source.Int), -1), le32(math.MaxUint32), "p=-1"},
		{"identity", vectorOf(typ(source.String), "a/b=c ü"), []byte("a/b=c ü"), "p=a%2Fb%3Dc+%C3%BC"},
		{"identity", vectorOf(typ(source.String), ""), []byte{}, "p="},
		{"identity", vectorOf(typ(source.String), nil), nil, "p=null"},
		{"identity", vectorOf(decimal(9, 2), -1), []byte{0xff}, "p=-0.01"},
		{"identity", vectorOf(decimal(38, 0), max128), appendDecimal(nil, max128), "p=-85070591730234615865843651857942052863"},
		{"identity", vectorOf(typ(source.Timestamp), micros("1969-12-31T23:59:59.000001Z")), le64(^uint64(999999 - 1)), "p=1969-12-31T23%3A59%3A59.000001"},
		{"identity", vectorOf(typ(source.Bool), true), []byte{1}, "p=true"},
		{"void", vectorOf(typ(source.Int), 1), nil, "p=null"},
		{"truncate[10]", vectorOf(typ(source.Int), 1), le32(0), "p=0"},
		{"truncate[10]", vectorOf(typ(source.Int), -1), le32(uint32(0xfffffff6)), "p=-10"},
		{"truncate[10]", vectorOf(typ(source.Long), int64(math.MinInt64)), le64(uint64(math.MaxInt64 - 1)), "p=9223372036854775806"},
		{"truncate[50]", vectorOf(decimal(9, 2), 1065), appendDecimal(nil, wide(1050)), "p=10.50"},
		{"truncate[50]", vectorOf(decimal(9, 2), -1), appendDecimal(nil, wide(-50)), "p=-0.50"},
		{"truncate[3]", vectorOf(typ(source.String), "€€€€"), []byte("€€€"), "p=%E2%82%AC%E2%82%AC%E2%82%AC"},
		{"truncate[3]", vectorOf(typ(source.Binary), []byte{1, 2, 3, 4}), []byte{1, 2, 3}, "p=AQID"},
		{"year", vectorOf(typ(source.Date), -1), le32(math.MaxUint32), "p=1969"},
		{"month", vectorOf(typ(source.Date), -1), le32(math.MaxUint32), "p=1969-12"},
		{"day", vectorOf(typ(source.Date), -1), le32(math.MaxUint32), "p=1969-12-31"},
		{"year", vectorOf(typ(source.Timestamp), micros("2017-11-16T22:31:08Z")), le32(47), "p=2017"},
		{"month", vectorOf(typ(source.Timestamp), micros("2017-12-01T10:12:55.038194-08:00")), le32(575), "p=2017-12"},
		{"day", vectorOf(typ(source.TimestampTZ), micros("2017-12-01T10:12:55.038194Z")), le32(17501), "p=2017-12-01"},
		{"hour", vectorOf(typ(source.Timestamp), micros("2017-12-01T10:12:55.038194Z")), le32(420034), "p=2017-12-01-10"},
		{"hour", vectorOf(typ(source.Timestamp), int64(-1)), le32(math.MaxUint32), "p=1969-12-31-23"},
		{"month", vectorOf(typ(source.Timestamp), micros("0001-01-01T00:00:00Z")), le32(uint32(0xffffffff - 1969*12 + 1)), "p=0001-01"},
	} {
		got, path := partitionOf(t, tc.transform, tc.v, 0)
		if !bytes.Equal(got, tc.want) || (got == nil) != (tc.want == nil) || path != tc.path {
			t.Errorf("%s of %s: %x %s, want %x %s", tc.transform, tc.v.Type, got, path, tc.want, tc.path)
		}
	}
}

// iceberg-go is another implementation; where both have a transform they agree.
func TestTransformsAgreeWithAnotherImplementation(t *testing.T) {
	r := testSeed(t)
	literal := func(v *source.Vector, i int) iceberg.Literal {
		switch v.Type.Kind {
		case source.Int:
			return iceberg.NewLiteral(v.Ints[i])
		case source.Date:
			return iceberg.NewLiteral(iceberg.Date(v.Ints[i]))
		case source.Long:
			return iceberg.NewLiteral(v.Longs[i])
		case source.Timestamp:
			return iceberg.NewLiteral(iceberg.Timestamp(v.Longs[i]))
		case source.String:
			return iceberg.NewLiteral(string(v.At(i)))
		}
		return iceberg.NewLiteral(v.At(i))
	}
	for _, tc := range []struct {
		kind       source.Kind
		transforms []string
	}{
		{source.Int, []string{"bucket[7]", "truncate[13]"}},
		{source.Long, []string{"bucket[1000]", "truncate[100]"}},
		{source.Date, []string{"bucket[7]", "year", "month", "day"}},
		{source.Timestamp, []string{"bucket[7]", "year", "month", "day", "hour"}},
		{source.String, []string{"bucket[7]", "truncate[2]"}},
		{source.Binary, []string{"bucket[7]", "truncate[2]"}},
	} {
		v := vectorOf(typ(tc.kind))
		for range 300 {
			switch tc.kind {
			case source.Date:
				v.AppendInt(int32(r.IntN(800000) - 400000))
			case source.Timestamp:
				v.AppendLong(r.Int64N(1e17) - 5e16)
			default:
				appendRandom(r, v, false)
			}
		}
		for _, transform := range tc.transforms {
			tr, err := iceberg.ParseTransform(transform)
			if err != nil {
				t.Fatal(err)
			}
			for i := range v.Len() {
				got, _ := partitionOf(t, transform, v, i)
				want, err := tr.Apply(iceberg.Optional[iceberg.Literal]{Valid: true, Val: literal(v, i)}).Val.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("%s of %s %s: %x, want %x", transform, v.Type, physical(&fileColumn{}, v, i), got, want)
				}
			}
		}
	}
}

func TestPartitionTuplesAndKeysAreInjective(t *testing.T) {
	a := vectorOf(typ(source.String), "a|", "a", "", "", nil, strings.Repeat("x", 300), "\x00", "\x01")
	b := vectorOf(typ(source.String), "b", "|b", "", nil, "", "y", "", strings.Repeat("z", 127))
	cols := []*source.Vector{a, b}
	id := iceberg.IdentityTransform{}
	p, err := newPartitioner(iceberg.NewPartitionSpec(
		iceberg.PartitionField{SourceIDs: []int{1}, FieldID: 1000, Name: "a", Transform: id},
		iceberg.PartitionField{SourceIDs: []int{2}, FieldID: 1001, Name: "b", Transform: id},
	), []fileColumn{{ID: 1, Name: "a", Type: a.Type}, {ID: 2, Name: "b", Type: b.Type}})
	if err != nil {
		t.Fatal(err)
	}
	if p.Unpartitioned() || !cmp.Equal(p.Sources(), []int{0, 1}) {
		t.Errorf("sources %v", p.Sources())
	}
	keys, tuples := map[string]int{}, map[string]int{}
	for i := range a.Len() {
		k := string(appendKey([]byte("prefix"), cols, []int{0, 1}, i))
		tuple := p.Of(cols, i, []byte("prefix"))
		if !strings.HasPrefix(k, "prefix") || !bytes.HasPrefix(tuple, []byte("prefix")) {
			t.Fatal("the buffer is not appended to")
		}
		tuple = tuple[len("prefix"):]
		if j, ok := keys[k]; ok {
			t.Errorf("keys of rows %d and %d are the same", i, j)
		}
		if j, ok := tuples[string(tuple)]; ok {
			t.Errorf("tuples of rows %d and %d are the same", i, j)
		}
		keys[k], tuples[string(tuple)] = i, i
		for f, v := range p.Values(tuple) {
			if (v == nil) != cols[f].Null(i) || v != nil && !bytes.Equal(v, cols[f].At(i)) {
				t.Errorf("row %d field %d: %q", i, f, v)
			}
		}
		for part := range strings.SplitSeq(p.Path(tuple), "/") {
			if len(part) > 255 {
				t.Errorf("row %d: a folder of %d bytes", i, len(part))
			}
		}
	}
	one := vectorOf(typ(source.Int), 1, 2)
	if bytes.Equal(appendKey(nil, []*source.Vector{one}, []int{0}, 0), appendKey(nil, []*source.Vector{one}, []int{0}, 1)) {
		t.Error("1 = 2")
	}
}

func TestTransformsThatDoNotApplyAreRefused(t *testing.T) {
	for _, tc := range []struct {
		transform string
		typ       source.Type
	}{
		{"bucket[4]", typ(source.Bool)}, {"bucket[4]", typ(source.Double)}, {"truncate[4]", typ(source.Date)}, {"truncate[4]", typ(source.UUID)},
		{"day", typ(source.Long)}, {"hour", typ(source.Date)}, {"year", typ(source.String)}, {"identity", typ(source.FloatList)},
	} {
		tr, err := iceberg.ParseTransform(tc.transform)
		if err != nil {
			t.Fatal(err)
		}
		spec := iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{1}, FieldID: 1000, Name: "p", Transform: tr})
		if _, err := newPartitioner(spec, []fileColumn{{ID: 1, Name: "c", Type: tc.typ}}); err == nil {
			t.Errorf("%s of %s is accepted", tc.transform, tc.typ)
		}
		if _, err := newPartitioner(spec, nil); err == nil {
			t.Errorf("%s of no column is accepted", tc.transform)
		}
	}
}
