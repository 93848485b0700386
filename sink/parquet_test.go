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
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

var allTypes = []source.Type{
	{Kind: source.Bool}, {Kind: source.Int}, {Kind: source.Long}, {Kind: source.Float}, {Kind: source.Double},
	{Kind: source.Decimal, Precision: 9, Scale: 2}, {Kind: source.Decimal, Precision: 18}, {Kind: source.Decimal, Precision: 19, Scale: 19},
	{Kind: source.Decimal, Precision: 38, Scale: 6}, {Kind: source.String}, {Kind: source.Binary}, {Kind: source.Date}, {Kind: source.Time},
	{Kind: source.Timestamp}, {Kind: source.TimestampTZ}, {Kind: source.UUID}, {Kind: source.FloatList},
}

func allColumns() []fileColumn {
	var cols []fileColumn
	for _, required := range []bool{false, true} {
		for _, t := range allTypes {
			c := fileColumn{ID: len(cols) + 1, Name: fmt.Sprintf("c%d %s", len(cols), t), Type: t, Required: required, NoBounds: t.Kind == source.UUID}
			if t.Kind == source.FloatList {
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

// compareValue orders a value and a bound as Iceberg does. single: the bound is
// in Iceberg's form, else in Parquet's.
func compareValue(v *source.Vector, i int, bound []byte, single bool) int {
	switch v.Type.Kind {
	case source.Bool:
		return int(v.Bools[i]) - int(bound[0])
	case source.Int, source.Date:
		return compare(int64(v.Ints[i]), int64(int32(binary.LittleEndian.Uint32(bound))))
	case source.Float:
		return compareFloat(float64(v.Floats[i]), float64(math.Float32frombits(binary.LittleEndian.Uint32(bound))))
	case source.Double:
		return compareFloat(v.Doubles[i], math.Float64frombits(binary.LittleEndian.Uint64(bound)))
	case source.Decimal:
		w := source.Int128{}
		if v.Type.Store() == source.StoreWides {
			w = v.Wides[i]
		} else {
			w = wide(v.Longs[i])
		}
		b := source.Int128{}
		switch {
		case single, v.Type.Precision > 18:
			b = parseDecimalBytes(bound)
		case v.Type.Precision > 9:
			b = wide(int64(binary.LittleEndian.Uint64(bound)))
		default:
			b = wide(int64(int32(binary.LittleEndian.Uint32(bound))))
		}
		return compareWide(w, b)
	case source.Long, source.Time, source.Timestamp, source.TimestampTZ:
		return compare(v.Longs[i], int64(binary.LittleEndian.Uint64(bound)))
	}
	return bytes.Compare(v.At(i), bound)
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// compareFloat has -0 below +0.
func compareFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	case a == 0 && math.Signbit(a) != math.Signbit(b):
		if math.Signbit(a) {
			return -1
		}
		return 1
	}
	return 0
}

func isNaN(v *source.Vector, i int) bool {
	switch v.Type.Kind {
	case source.Float:
		return v.Floats[i] != v.Floats[i]
	case source.Double:
		return v.Doubles[i] != v.Doubles[i]
	}
	return false
}

// checkStats holds manifest values, footer and page index against every value.
func checkStats(t *testing.T, data []byte, stats fileStats, cols []fileColumn, batches [][]*source.Vector) {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	meta := f.Metadata()
	for i, c := range cols {
		v := &source.Vector{}
		v.Reset(c.Type)
		for _, b := range batches {
			for r := range b[i].Len() {
				v.AppendRow(b[i], r)
			}
		}
		var size int64
		row := 0
		for g := range meta.RowGroups {
			col := &meta.RowGroups[g].Columns[i]
			m := &col.MetaData
			size += m.TotalCompressedSize
			n := int(meta.RowGroups[g].NumRows)
			checkRange(t, "footer", &c, v, row, row+n, m.Statistics.MinValue, m.Statistics.MaxValue, m.Statistics.NullCount, false)
			if (m.Statistics.MinValue == nil) != (m.Statistics.MaxValue == nil) {
				t.Errorf("column %s: the footer has one bound without the other", c.Name)
			}
			oi := f.OffsetIndexes()[g*len(cols)+i]
			for p, loc := range oi.PageLocations {
				if col.ColumnIndexOffset == 0 {
					break
				}
				ci := f.ColumnIndexes()[g*len(cols)+i]
				from, to := row+int(loc.FirstRowIndex), row+n
				if p+1 < len(oi.PageLocations) {
					to = row + int(oi.PageLocations[p+1].FirstRowIndex)
				}
				lo, hi := ci.MinValues[p], ci.MaxValues[p]
				if ci.NullPages[p] {
					for r := from; r < to; r++ {
						if !v.Null(r) && c.Type.Kind != source.FloatList {
							t.Errorf("column %s: page %d is not all null", c.Name, p)
						}
					}
					lo, hi = nil, nil
				}
				checkRange(t, "page index", &c, v, from, to, lo, hi, ci.NullCounts[p], false)
			}
			row += n
		}
		id := c.ID
		if c.ElementID != 0 {
			id = c.ElementID
		}
		s, ok := stats.Columns[id]
		if !ok {
			t.Fatalf("column %s: no stats", c.Name)
		}
		if s.Size != size {
			t.Errorf("column %s: size %d, footer says %d", c.Name, s.Size, size)
		}
		if c.Type.Kind == source.FloatList {
			continue
		}
		nans := int64(0)
		for r := range v.Len() {
			if !v.Null(r) && isNaN(v, r) {
				nans++
			}
		}
		if s.Values != int64(v.Len()) || s.NaNs != nans {
			t.Errorf("column %s: %d values, %d NaNs; are %d, %d", c.Name, s.Values, s.NaNs, v.Len(), nans)
		}
		checkRange(t, "manifest", &c, v, 0, v.Len(), s.Lower, s.Upper, s.Nulls, true)
		if c.Type.Kind == source.String {
			for _, b := range [][]byte{s.Lower, s.Upper} {
				if !utf8.Valid(b) || utf8.RuneCount(b) > 16 {
					t.Errorf("column %s: bound %q is no text of at most 16 code points", c.Name, b)
				}
			}
		}
	}
	var offsets []int64
	for _, g := range meta.RowGroups {
		offsets = append(offsets, g.FileOffset)
	}
	if !slices.Equal(offsets, stats.SplitOffsets) {
		t.Errorf("split offsets %v, row groups at %v", stats.SplitOffsets, offsets)
	}
}

func checkRange(t *testing.T, what string, c *fileColumn, v *source.Vector, from, to int, lo, hi []byte, nulls int64, single bool) {
	t.Helper()
	n, ordered := int64(0), 0
	for r := from; r < to; r++ {
		if v.Null(r) {
			n++
			continue
		}
		if c.Type.Kind == source.FloatList {
			if len(v.At(r)) == 0 {
				n++
			}
			continue
		}
		if isNaN(v, r) {
			continue
		}
		ordered++
		if lo != nil && compareValue(v, r, lo, single) < 0 {
			t.Fatalf("%s: column %s: row %d is below the lower bound %x", what, c.Name, r, lo)
		}
		if hi != nil && compareValue(v, r, hi, single) > 0 {
			t.Fatalf("%s: column %s: row %d is above the upper bound %x", what, c.Name, r, hi)
		}
	}
	if nulls != n {
		t.Errorf("%s: column %s: %d nulls, are %d", what, c.Name, nulls, n)
	}
	if c.NoBounds && (lo != nil || hi != nil) {
		t.Errorf("%s: column %s has bounds", what, c.Name)
	}
	if ordered == 0 && (lo != nil || hi != nil) {
		t.Errorf("%s: column %s has bounds but no values", what, c.Name)
	}
	if !c.NoBounds && ordered > 0 && lo == nil && c.Type.Kind != source.String && c.Type.Kind != source.Binary {
		t.Errorf("%s: column %s has no bounds", what, c.Name)
	}
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

func TestManifestBoundsOfTextAreCutByCodePoint(t *testing.T) {
	long := strings.Repeat("€", 20)
	for _, tc := range []struct {
		lo, hi           string
		mode             string
		wantLo, wantHi   string
		noUpper, nothing bool
	}{
		{lo: "a", hi: "b", wantLo: "a", wantHi: "b"},
		{lo: "", hi: long, wantLo: "", wantHi: strings.Repeat("€", 15) + "₭"},
		{lo: long, hi: strings.Repeat("\U0010ffff", 17), wantLo: strings.Repeat("€", 16), noUpper: true},
		{lo: "a", hi: strings.Repeat("z", 15) + "\U0010ffff!", wantLo: "a", wantHi: strings.Repeat("z", 14) + "{"},
		{lo: "a", hi: strings.Repeat("z", 15) + "\ud7ff!", wantLo: "a", wantHi: strings.Repeat("z", 15) + "\ue000"},
		{lo: "abc", hi: "abcd", mode: "truncate(2)", wantLo: "ab", wantHi: "ac"},
		{lo: strings.Repeat("a", 3000), hi: strings.Repeat("b", 3000), mode: "full", wantLo: strings.Repeat("a", 3000), wantHi: strings.Repeat("b", 3000)},
		{lo: "a", hi: "b", mode: "counts", nothing: true},
	} {
		cols, vs := stringColumn(tc.lo, tc.hi)
		if tc.mode != "" {
			var err error
			if cols[0].Metrics, err = parseMetricsMode(tc.mode); err != nil {
				t.Fatal(err)
			}
		}
		_, stats := writeAll(t, cols, writerOptions{}, func(f *fileWriter) { appendAll(t, f, vs, nil) })
		s := stats.Columns[1]
		if tc.nothing {
			if s.Lower != nil || s.Upper != nil || s.Values != 2 {
				t.Errorf("%s: %+v", tc.mode, s)
			}
			continue
		}
		if string(s.Lower) != tc.wantLo || string(s.Upper) != tc.wantHi || (s.Upper == nil) != tc.noUpper || s.Lower == nil {
			t.Errorf("%.40q..%.40q: bounds %q, %q", tc.lo, tc.hi, s.Lower, s.Upper)
		}
	}
}

func TestZeroAndNaNBounds(t *testing.T) {
	v := &source.Vector{}
	v.Reset(source.Type{Kind: source.Double})
	cols := []fileColumn{{ID: 1, Name: "d", Type: v.Type}}
	write := func(values ...float64) table.ColumnStat {
		v.Reset(v.Type)
		for _, x := range values {
			v.AppendDouble(x)
		}
		_, stats := writeAll(t, cols, writerOptions{}, func(f *fileWriter) { appendAll(t, f, []*source.Vector{v}, nil) })
		return stats.Columns[1]
	}
	s := write(0, 0)
	if !bytes.Equal(s.Lower, le64(1<<63)) || !bytes.Equal(s.Upper, le64(0)) {
		t.Errorf("of +0: %x %x", s.Lower, s.Upper)
	}
	if s = write(math.Copysign(0, -1)); !bytes.Equal(s.Lower, le64(1<<63)) || !bytes.Equal(s.Upper, le64(0)) {
		t.Errorf("of -0: %x %x", s.Lower, s.Upper)
	}
	if s = write(math.NaN(), math.NaN()); s.Lower != nil || s.Upper != nil || s.NaNs != 2 || !s.CountsNaN {
		t.Errorf("of NaN: %+v", s)
	}
	if s = write(math.NaN(), 2, math.NaN(), 1); !bytes.Equal(s.Lower, le64(math.Float64bits(1))) || !bytes.Equal(s.Upper, le64(math.Float64bits(2))) || s.NaNs != 2 {
		t.Errorf("of numbers and NaN: %+v", s)
	}
}

func TestPositionDeletesHaveWholePathBounds(t *testing.T) {
	path, pos := &source.Vector{}, &source.Vector{}
	path.Reset(source.Type{Kind: source.String})
	pos.Reset(source.Type{Kind: source.Long})
	name := "file:///srv/lake/shop/orders/data/" + strings.Repeat("ü", 200) + ".parquet"
	for i := range 3 {
		path.AppendBytes([]byte(name))
		pos.AppendLong(int64(i))
	}
	data, stats := writeAll(t, positionDeleteColumns(), writerOptions{}, func(f *fileWriter) { appendAll(t, f, []*source.Vector{path, pos}, nil) })
	s := stats.Columns[2147483546]
	if string(s.Lower) != name || string(s.Upper) != name {
		t.Errorf("bounds %q, %q", s.Lower, s.Upper)
	}
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	st := f.Metadata().RowGroups[0].Columns[0].MetaData.Statistics
	if string(st.MinValue) != name || string(st.MaxValue) != name {
		t.Errorf("footer: %q, %q", st.MinValue, st.MaxValue)
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
