package sink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lakesyncd/lakesyncd/source"
)

var allTypes = []source.Type{
	{Kind: source.Bool}, {Kind: source.Int}, {Kind: source.Long}, {Kind: source.Float}, {Kind: source.Double},
	{Kind: source.Decimal, Precision: 9, Scale: 2}, {Kind: source.Decimal, Precision: 18}, {Kind: source.Decimal, Precision: 19, Scale: 19},
	{Kind: source.Decimal, Precision: 38, Scale: 6}, {Kind: source.String}, {Kind: source.Binary}, {Kind: source.Date}, {Kind: source.Time},
	{Kind: source.Timestamp}, {Kind: source.TimestampTZ}, {Kind: source.UUID}, {Kind: source.FloatList},
	listOf(source.Bool), listOf(source.Int), listOf(source.String), listOf(source.Double), listOf(source.Date), listOf(source.TimestampTZ), listOf(source.Binary), listOf(source.UUID),
	source.ListOf(source.Type{Kind: source.Decimal, Precision: 8, Scale: 3}), source.ListOf(source.Type{Kind: source.Decimal, Precision: 18}), source.ListOf(source.Type{Kind: source.Decimal, Precision: 38, Scale: 6}),
}

func allColumns() []fileColumn {
	var cols []fileColumn
	for _, required := range []bool{false, true} {
		for _, t := range allTypes {
			c := fileColumn{ID: len(cols) + 1, Name: fmt.Sprintf("c%d %s", len(cols), t), Type: t, Required: required, NoBounds: t.Kind == source.UUID}
			if t.IsList() {
				c.ElementID = 1000 + len(cols)
			}
			cols = append(cols, c)
		}
	}
	return cols
}

// appendRandom adds a value; of few distinct ones if few is set.
func appendRandom(r *rand.Rand, v *source.Vector, few bool) {
	pick := func(n int) int {
		if few {
			return r.IntN(3)
		}
		return r.IntN(n)
	}
	long := func() int64 {
		switch pick(8) {
		case 0:
			return 0
		case 1:
			return -1
		case 2:
			return 7
		case 3:
			return math.MaxInt64
		case 4:
			return math.MinInt64
		}
		return int64(r.Uint64()) >> r.IntN(64)
	}
	switch v.Type.Kind {
	case source.Bool:
		v.AppendBool(r.IntN(2) == 0)
	case source.Int, source.Date:
		v.AppendInt(int32(long()))
	case source.Long, source.Time, source.Timestamp, source.TimestampTZ:
		v.AppendLong(long())
	case source.Float:
		x := []float32{0, float32(math.Copysign(0, -1)), 1.5, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.SmallestNonzeroFloat32, math.MaxFloat32, r.Float32()}
		v.AppendFloat(x[pick(len(x))])
	case source.Double:
		x := []float64{0, math.Copysign(0, -1), 1.5, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64, math.MaxFloat64, r.Float64()}
		v.AppendDouble(x[pick(len(x))])
	case source.Decimal:
		if v.Type.Store() == source.StoreLongs {
			limit := int64(math.Pow10(v.Type.Precision))
			v.AppendLong(long() % limit)
			return
		}
		w := wide(long() % 1e18)
		for k := r.IntN(v.Type.Precision - 18); k > 0; k-- {
			n := wideNumber(w, 0)
			n.times10plus(uint64(pick(10)))
			w, _ = n.int128()
		}
		v.AppendWide(w)
	case source.String:
		x := []string{"", "a", "z\x00", "grün", "\U0010ffff", "\ud7ff" + strings.Repeat("\U0010ffff", 30), strings.Repeat("€", 40), strings.Repeat("x", 5000), fmt.Sprint(r.Uint64()), fmt.Sprint("user", r.IntN(50), "@example.org")}
		v.AppendBytes([]byte(x[pick(len(x))]))
	case source.Binary:
		x := [][]byte{nil, {0}, {0xff}, bytes.Repeat([]byte{0xff}, 100), binary.LittleEndian.AppendUint64(nil, r.Uint64()), bytes.Repeat([]byte{0xfe, 0}, 200)}
		v.AppendBytes(x[pick(len(x))])
	case source.UUID:
		b := make([]byte, 16)
		if !few {
			binary.LittleEndian.PutUint64(b, r.Uint64())
		}
		b[15] = byte(pick(256))
		v.AppendBytes(b)
	case source.FloatList:
		b := make([]byte, 4*pick(6))
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		v.AppendBytes(b)
	case source.List:
		e := source.Vector{Type: v.Type.Element()}
		for range pick(6) {
			if r.IntN(4) == 0 {
				e.AppendNull()
			} else {
				appendRandom(r, &e, few)
			}
		}
		v.AppendList(&e)
	}
}

type nullPattern func(r *rand.Rand, row int) bool

var nullPatterns = map[string]nullPattern{
	"none":        func(*rand.Rand, int) bool { return false },
	"all":         func(*rand.Rand, int) bool { return true },
	"alternating": func(_ *rand.Rand, i int) bool { return i%2 == 0 },
	"random":      func(r *rand.Rand, _ int) bool { return r.IntN(5) == 0 },
	"runs":        func(_ *rand.Rand, i int) bool { return i/9%2 == 0 },
}

func randomVectors(r *rand.Rand, cols []fileColumn, n int, null nullPattern, few bool) []*source.Vector {
	var vs []*source.Vector
	for _, c := range cols {
		v := &source.Vector{}
		v.Reset(c.Type)
		for i := range n {
			if !c.Required && null(r, i) {
				v.AppendNull()
			} else {
				appendRandom(r, v, few)
			}
		}
		vs = append(vs, v)
	}
	return vs
}

func texts(cols []fileColumn, vs []*source.Vector, rows []uint32) [][]string {
	out := make([][]string, len(cols))
	for i := range cols {
		if rows == nil {
			for r := range vs[i].Len() {
				out[i] = append(out[i], physical(&cols[i], vs[i], r))
			}
		}
		for _, r := range rows {
			out[i] = append(out[i], physical(&cols[i], vs[i], int(r)))
		}
	}
	return out
}

// writeAll writes batches into one file and checks what the writer says of it.
func writeAll(t *testing.T, cols []fileColumn, opts writerOptions, write func(f *fileWriter)) ([]byte, fileStats) {
	t.Helper()
	var buf bytes.Buffer
	f, err := newFileWriter(&buf, cols, opts)
	if err != nil {
		t.Fatal(err)
	}
	write(f)
	rows := f.Rows()
	stats, err := f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if stats.Rows != rows || stats.Bytes != int64(buf.Len()) {
		t.Errorf("stats say %d rows, %d bytes; are %d, %d", stats.Rows, stats.Bytes, rows, buf.Len())
	}
	return buf.Bytes(), stats
}

func appendAll(t *testing.T, f *fileWriter, vs []*source.Vector, rows []uint32) {
	t.Helper()
	if err := f.Append(vs, rows); err != nil {
		t.Fatal(err)
	}
}

// diff compares columns; cmp alone takes long where nothing differs.
func diff(want, got [][]string) string {
	if slices.EqualFunc(want, got, slices.Equal[[]string]) {
		return ""
	}
	return cmp.Diff(want, got)
}

func testSeed(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestBothReadersGiveBackEveryTypeNullPatternAndLength(t *testing.T) {
	r := testSeed(t)
	cols := allColumns()
	opts := writerOptions{Encoders: newEncoders(2)}
	for name, null := range nullPatterns {
		for n := 0; n <= 70; n++ {
			if testing.Short() && n%7 > 1 {
				continue
			}
			few := n%2 == 0
			vs := randomVectors(r, cols, n, null, few)
			data, stats := writeAll(t, cols, opts, func(f *fileWriter) { appendAll(t, f, vs, nil) })
			want := texts(cols, vs, nil)
			if d := diff(want, readParquetGo(t, data, cols)); d != "" {
				t.Fatalf("%s, %d rows: parquet-go: %s", name, n, d)
			}
			if d := diff(want, readArrow(t, data, cols)); d != "" {
				t.Fatalf("%s, %d rows: arrow: %s", name, n, d)
			}
			checkStats(t, data, stats, cols, []([]*source.Vector){vs})
		}
	}
}

func TestPagesRowGroupsCodecsAndSelectionsGiveBackTheRows(t *testing.T) {
	r := testSeed(t)
	cols := allColumns()
	for _, opts := range []writerOptions{
		{PageRows: 100},
		{PageBytes: 1 << 10},
		{PageRows: 333, RowGroupBytes: 64 << 10, Codec: "snappy"},
		{PageRows: 50, RowGroupBytes: 1, Codec: "gzip", Workers: 1},
		{Codec: "uncompressed", NoDictionary: true},
		{Level: 3, Workers: 4, PageRows: 1000},
		{Level: 9, PageRows: 1000},
	} {
		for name, null := range nullPatterns {
			if testing.Short() && name != "random" {
				continue
			}
			var want [][]string
			var all [][]*source.Vector
			data, stats := writeAll(t, cols, opts, func(f *fileWriter) {
				want = make([][]string, len(cols))
				for range 4 {
					vs := randomVectors(r, cols, r.IntN(1500), null, r.IntN(2) == 0)
					var rows []uint32
					if r.IntN(2) == 0 {
						rows = []uint32{}
						for i := range vs[0].Len() {
							if r.IntN(3) > 0 {
								rows = append(rows, uint32(i))
							}
						}
						r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
					}
					appendAll(t, f, vs, rows)
					for i, x := range texts(cols, vs, rows) {
						want[i] = append(want[i], x...)
					}
					all = append(all, selected(cols, vs, rows))
					if r.IntN(4) == 0 {
						if err := f.FlushRowGroup(); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
			what := fmt.Sprintf("%+v, nulls %s", opts, name)
			if d := diff(want, readParquetGo(t, data, cols)); d != "" {
				t.Fatalf("%s: parquet-go: %s", what, d)
			}
			if d := diff(want, readArrow(t, data, cols)); d != "" {
				t.Fatalf("%s: arrow: %s", what, d)
			}
			checkStats(t, data, stats, cols, all)
		}
	}
}

// selected copies the rows that were written.
func selected(cols []fileColumn, vs []*source.Vector, rows []uint32) []*source.Vector {
	if rows == nil {
		return vs
	}
	var out []*source.Vector
	for i, v := range vs {
		o := &source.Vector{}
		o.Reset(cols[i].Type)
		for _, r := range rows {
			o.AppendRow(v, int(r))
		}
		out = append(out, o)
	}
	return out
}

func stringColumn(values ...string) ([]fileColumn, []*source.Vector) {
	v := &source.Vector{}
	v.Reset(source.Type{Kind: source.String})
	for _, s := range values {
		v.AppendBytes([]byte(s))
	}
	return []fileColumn{{ID: 1, Name: "s", Type: v.Type, Required: true}}, []*source.Vector{v}
}

func TestDictionaryIsUsedOnlyWhereValuesRepeat(t *testing.T) {
	for name, tc := range map[string]struct {
		value func(i int) string
		want  []format.Encoding // of data pages
	}{
		"few":      {func(i int) string { return fmt.Sprint("status", i%6) }, []format.Encoding{format.RLEDictionary}},
		"distinct": {func(i int) string { return fmt.Sprint("user", i) }, []format.Encoding{format.Plain}},
		"one":      {func(i int) string { return "always the same" }, []format.Encoding{format.RLEDictionary}},
		"given up": {func(i int) string {
			if i < 20000 {
				return fmt.Sprint("status", i%6)
			}
			return fmt.Sprint(strings.Repeat("x", 100), i)
		}, []format.Encoding{format.RLEDictionary, format.Plain}},
	} {
		var values []string
		for i := range 50000 {
			values = append(values, tc.value(i))
		}
		cols, vs := stringColumn(values...)
		data, stats := writeAll(t, cols, writerOptions{}, func(f *fileWriter) { appendAll(t, f, vs, nil) })
		want := texts(cols, vs, nil)
		if !slices.Equal(want[0], readParquetGo(t, data, cols)[0]) || !slices.Equal(want[0], readArrow(t, data, cols)[0]) {
			t.Errorf("%s: other values come back", name)
		}
		checkStats(t, data, stats, cols, [][]*source.Vector{vs})
		f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		var got []format.Encoding
		for _, s := range f.Metadata().RowGroups[0].Columns[0].MetaData.EncodingStats {
			if s.PageType == format.DataPage {
				got = append(got, s.Encoding)
			}
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestNullInRequiredColumnIsRefused(t *testing.T) {
	for _, typ := range allTypes {
		v := &source.Vector{}
		v.Reset(typ)
		v.AppendNull()
		var buf bytes.Buffer
		f, err := newFileWriter(&buf, []fileColumn{{ID: 1, Name: "key", Type: typ, Required: true, ElementID: 2}}, writerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Append([]*source.Vector{v}, nil); err == nil || !strings.Contains(err.Error(), "column key: NULL in a required column") {
			t.Errorf("%s: %v", typ, err)
		}
		if _, err := f.Close(); err == nil {
			t.Errorf("%s: closed after an error", typ)
		}
	}
}

func TestVectorsThatAreNotTheFilesAreRefused(t *testing.T) {
	cols, vs := stringColumn("a", "b")
	other := &source.Vector{}
	other.Reset(source.Type{Kind: source.Int})
	other.AppendInt(1)
	for name, call := range map[string]func(f *fileWriter) error{
		"columns": func(f *fileWriter) error { return f.Append(append(vs, vs...), nil) },
		"type":    func(f *fileWriter) error { return f.Append([]*source.Vector{other}, nil) },
		"row":     func(f *fileWriter) error { return f.Append(vs, []uint32{0, 2}) },
	} {
		f, err := newFileWriter(&bytes.Buffer{}, cols, writerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := call(f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOneHugeValue(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<20)
	cols, vs := stringColumn("a", big, "b")
	var buf bytes.Buffer
	f, err := newFileWriter(&buf, cols, writerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, f, vs, nil)
	if b := f.Buffered(); b > 4<<20 {
		t.Errorf("%d bytes are held for a compressible value of 16 MiB", b)
	}
	if _, err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got := readParquetGo(t, buf.Bytes(), cols)
	if !slices.Equal(got[0], texts(cols, vs, nil)[0]) {
		t.Error("other values come back")
	}
}
