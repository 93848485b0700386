package sink

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

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
						if !v.Null(r) && !c.Type.IsList() {
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
		if c.Type.IsList() {
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
		if c.Type.IsList() {
			if len(v.At(r)) == 0 {
				n++
			} else if c.Type.Kind == source.List {
				e := elementsOf(v, r)
				n += int64(bytes.Count(e.Valid, []byte{0}))
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
