package table_test

import (
	"context"
	"math"
	"math/big"
	"sort"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/parquet-go/parquet-go"

	"github.com/lakesyncd/lakesyncd/table"
)

// fixed is a number as the 16 bytes of a decimal.
func fixed(text string) parquet.Value {
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		panic(text)
	}
	if n.Sign() < 0 {
		n.Add(n, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	return parquet.FixedLenByteArrayValue(n.FillBytes(make([]byte, 16)))
}

func TestRowsAreCanonical(t *testing.T) {
	null := parquet.NullValue()
	type cell struct {
		value parquet.Value
		want  string
	}
	v := func(x any, want string) cell { return cell{parquet.ValueOf(x), want} }
	instants := []cell{
		v(int64(0), `"1970-01-01T00:00:00.000000`), v(int64(-1), `"1969-12-31T23:59:59.999999`), v(int64(1709210096000001), `"2024-02-29T12:34:56.000001`),
		v(int64(-62135596800000000), `"0001-01-01T00:00:00.000000`), v(int64(253402300799999999), `"9999-12-31T23:59:59.999999`), v(int64(253402300800000000), `"+10000-01-01T00:00:00.000000`),
	}
	ends := func(end string) (out []cell) {
		for _, c := range instants {
			out = append(out, cell{c.value, c.want + end})
		}
		return out
	}
	columns := []struct {
		name  string
		typ   iceberg.Type
		node  parquet.Node
		cells []cell
	}{
		{"b", iceberg.PrimitiveTypes.Bool, parquet.Leaf(parquet.BooleanType), []cell{v(true, "true"), v(false, "false")}},
		{"i", iceberg.PrimitiveTypes.Int32, parquet.Int(32), []cell{v(int32(math.MinInt32), "-2147483648"), v(int32(7), "7")}},
		{"l", iceberg.PrimitiveTypes.Int64, parquet.Int(64), []cell{v(int64(math.MinInt64), "-9223372036854775808"), v(int64(math.MaxInt64), "9223372036854775807")}},
		{"f", iceberg.PrimitiveTypes.Float32, parquet.Leaf(parquet.FloatType), []cell{v(float32(0.1), "0.1"), v(float32(1e16), "1e+16"), v(float32(1e-5), "1e-05"), v(float32(math.Copysign(0, -1)), "-0.0"), v(float32(math.MaxFloat32), "3.4028235e+38")}},
		{"d", iceberg.PrimitiveTypes.Float64, parquet.Leaf(parquet.DoubleType), []cell{v(100000.0, "100000.0"), v(1.5e-5, "1.5e-05"), v(1e-4, "0.0001"), v(math.NaN(), `"NaN"`), v(math.Inf(1), `"Infinity"`), v(math.Inf(-1), `"-Infinity"`), v(9007199254740993.0, "9007199254740992.0"), v(5e-324, "5e-324")}},
		{"m9", iceberg.DecimalTypeOf(9, 2), parquet.Decimal(2, 9, parquet.Int32Type), []cell{v(int32(-5), `"-0.05"`), v(int32(999999999), `"9999999.99"`), v(int32(0), `"0.00"`)}},
		{"m18", iceberg.DecimalTypeOf(18, 0), parquet.Decimal(0, 18, parquet.Int64Type), []cell{v(int64(-999999999999999999), `"-999999999999999999"`), v(int64(1), `"1"`)}},
		{"m38", iceberg.DecimalTypeOf(38, 10), parquet.Decimal(10, 38, parquet.FixedLenByteArrayType(16)), []cell{{fixed("-99999999999999999999999999999999999999"), `"-9999999999999999999999999999.9999999999"`}, {fixed("1"), `"0.0000000001"`}}},
		{"s", iceberg.PrimitiveTypes.String, parquet.String(), []cell{v("", `""`), v("a\"b\\c/\n\x00\x1f\x7f<&>\u2028ü😀", "\"a\\\"b\\\\c/\\n\\u0000\\u001f\x7f<&>\u2028ü😀\"")}},
		{"x", iceberg.PrimitiveTypes.Binary, parquet.Leaf(parquet.ByteArrayType), []cell{v([]byte{0, 0xff, 0x10}, `"00ff10"`), v([]byte{}, `""`)}},
		{"day", iceberg.PrimitiveTypes.Date, parquet.Date(), []cell{v(int32(0), `"1970-01-01"`), v(int32(-719162), `"0001-01-01"`), v(int32(-719528), `"0000-01-01"`), v(int32(2932896), `"9999-12-31"`), v(int32(19782), `"2024-02-29"`)}},
		{"ts", iceberg.PrimitiveTypes.Timestamp, parquet.TimestampAdjusted(parquet.Microsecond, false), ends(`"`)},
		{"tz", iceberg.PrimitiveTypes.TimestampTz, parquet.TimestampAdjusted(parquet.Microsecond, true), ends(`Z"`)},
		{"u", iceberg.PrimitiveTypes.UUID, parquet.UUID(), []cell{{parquet.FixedLenByteArrayValue([]byte{0xf7, 0x9c, 0x3e, 0x09, 0x67, 0x7c, 0x4b, 0xbd, 0xa4, 0x79, 0x3f, 0x34, 0x9c, 0xb7, 0x85, 0xe7}), `"f79c3e09-677c-4bbd-a479-3f349cb785e7"`}}},
	}
	fields := []iceberg.NestedField{{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true}}
	count := 0
	for i, c := range columns {
		fields = append(fields, iceberg.NestedField{ID: i + 2, Name: c.name, Type: c.typ})
		count = max(count, len(c.cells)+1)
	}
	last := len(fields) + 1
	fields = append(fields, iceberg.NestedField{ID: last, Name: "vec", Type: &iceberg.ListType{ElementID: last + 1, Element: iceberg.PrimitiveTypes.Float32, ElementRequired: true}})

	l := newLake(t)
	tb, err := l.catalog().Create(context.Background(), "shop.all types", table.Definition{Schema: iceberg.NewSchemaWithIdentifiers(0, []int{1}, fields...)})
	if err != nil {
		t.Fatal(err)
	}
	var keys []row
	for i := range count {
		keys = append(keys, row{id: int64(i)})
	}
	file := []column{ids(keys)}
	for i, c := range columns {
		out := column{id: i + 2, name: c.name, node: c.node}
		for n := range count {
			if n < len(c.cells) {
				out.values = append(out.values, c.cells[n].value)
			} else {
				out.values = append(out.values, null)
			}
		}
		file = append(file, out)
	}
	vectors := make([][]float32, count)
	vectors[0], vectors[1] = []float32{1.5, -0.25}, []float32{}
	file = append(file, column{id: last, name: "vec", lists: vectors,
		node: parquet.List(parquet.FieldID(parquet.Required(parquet.Leaf(parquet.FloatType)), tb.Schema().Field(len(fields)-1).Type.(*iceberg.ListType).ElementID))})
	f := l.write(tb, table.Data, file)
	delete(f.Columns, 6) // the doubles hold a NaN, which this file does not count
	delete(f.Columns, 5)
	commit(t, tb, delta(tb, []table.File{f}), mark(1))

	var expected []string
	for n := range count {
		var b strings.Builder
		b.WriteString(`{"id":` + string('0'+rune(n)))
		for _, c := range columns {
			text := "null"
			if n < len(c.cells) {
				text = c.cells[n].want
			}
			b.WriteString(`,"` + c.name + `":` + text)
		}
		b.WriteString(`,"vec":` + []string{"[1.5,-0.25]", "[]", "null"}[min(n, 2)] + "}")
		expected = append(expected, b.String())
	}
	sort.Strings(expected)
	want(t, rows(t, l.load("shop.all types"), table.RowsOptions{}), expected)
	if testing.Short() {
		return
	}
	got, status := ask(t, "rows", path(tb.Location()))
	sort.Strings(got)
	if status != ".0" {
		t.Fatal(status)
	}
	want(t, got, expected)
}

func TestRowsOfAnEmptyTable(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	want(t, rows(t, tb, table.RowsOptions{}), nil)
	audit(t, tb, nil)
}

func TestRowsStopWhenTheReaderHasEnough(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"}, row{2, "b"}), l.data(tb, row{3, "c"})}), mark(1))
	for line, err := range tb.Rows(context.Background(), table.RowsOptions{}) {
		if err != nil || len(line) == 0 {
			t.Fatal(err)
		}
		break
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	failed := false
	for _, err := range tb.Rows(ctx, table.RowsOptions{}) {
		failed = err != nil
	}
	if !failed {
		t.Error("rows in spite of an ended context")
	}
}
