package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lakesyncd/lakesyncd/source"
)

// These are text in the lake.
const (
	oidUUID  = 2950
	oidJSONB = 3802
)

// madeShape is a table without a server: columns v0, v1, … of the given types; the
// first is the key.
func madeShape(columns ...shapeColumn) *shape {
	s := &shape{OID: 1, Namespace: "public", Name: "t", Identity: "d", Key: []int{0}}
	for i, c := range columns {
		c.Name, c.Number, c.Native = fmt.Sprintf("v%d", i), i+1, "x"
		c.Type, c.Typmod, c.NotNull = c.Base, c.BaseMod, i == 0
		s.Columns = append(s.Columns, c)
	}
	s.finish(-1)
	return s
}

// made is the description of s by the log.
func (s *shape) made() *relationMessage {
	m := &relationMessage{OID: s.OID, Namespace: s.Namespace, Name: s.Name, Identity: s.Identity[0]}
	for i, c := range s.Columns {
		m.Columns = append(m.Columns, relationColumn{Key: slices.Contains(s.Key, i), Name: c.Name, Type: c.Type, Typmod: c.Typmod})
	}
	return m
}

// tuple is TupleData; a column "\x00" is NULL, "\x01" is unchanged.
func tuple(columns ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(columns)))
	for _, c := range columns {
		switch c {
		case "\x00":
			b = append(b, 'n')
		case "\x01":
			b = append(b, 'u')
		default:
			b = append(b, 't')
			b = binary.BigEndian.AppendUint32(b, uint32(len(c)))
			b = append(b, c...)
		}
	}
	return b
}

func numericMod(p, s int) int32 { return int32(p<<16|s&0x7ff) + 4 }

// decodeOne reads one text as a value of c, which is not in a key.
func decodeOne(c shapeColumn, text string) (*source.Vector, error) {
	v := &source.Vector{}
	v.Reset(c.sourceType())
	d := c.decoder()
	return v, d.append(&d, []byte(text), v)
}

func TestTextsThatAreNoValuesAreRefused(t *testing.T) {
	for _, tc := range []struct {
		c    shapeColumn
		text []string
	}{
		{shapeColumn{Base: oidBool}, []string{"", "true", "x", "T"}},
		{shapeColumn{Base: oidInt4}, []string{"", "-", "2147483648", "-2147483649", "1.0", " 1", "+1", "1e3", "99999999999999999999"}},
		{shapeColumn{Base: oidInt8}, []string{"", "9223372036854775808", "-9223372036854775809", "0x1", "10000000000000000000"}},
		{shapeColumn{Base: oidFloat4}, []string{"", "1e39", "a", "-"}},
		{shapeColumn{Base: oidFloat8}, []string{"", "1e309", "1,5"}},
		{shapeColumn{Base: oidNumeric, BaseMod: numericMod(5, 2)}, []string{"", "-", ".", ".5", "1.234", "1234.5", "1e2", "--1", "1.2.3"}},
		{shapeColumn{Base: oidNumeric, BaseMod: numericMod(38, 2)}, []string{"", "1234567890123456789012345678901234567.1", "1.234"}},
		{shapeColumn{Base: oidMoney}, []string{"", "$", "5", "1.2", "1.234", "92233720368547758.08", "1e5"}},
		{shapeColumn{Base: oidBytea}, []string{"", `\x0`, `\xgg`, "abc", `\000`}},
		{shapeColumn{Base: oidDate}, []string{"", "04/03/2024", "2024-3-4", "2024-13-01", "2024-00-01", "2024-01-32", "0000-01-01", "2024-01-01 AD", "2024-01-01BC", "infinity "}}, // PG-105
		{shapeColumn{Base: oidTime}, []string{"", "24:00:01", "1:00:00", "12:60:00", "12:00:60", "12:00", "12:00:00.", "12:00:00.1234567", "-01:00:00"}},
		{shapeColumn{Base: oidTimestamp}, []string{"", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00 AD"}},
		{shapeColumn{Base: oidTimestamptz}, []string{"", "2024-01-01 00:00:00", "2024-01-01 00:00:00+", "2024-01-01 00:00:00+1", "2024-01-01 00:00:00 UTC"}},
		{shapeColumn{Base: oidText}, []string{"\xff", "a\xc3", "\xed\xa0\x80"}},
		{shapeColumn{Base: oidInt4, Arrays: 1}, []string{"", "{", "}", "1", "{1", "{1,}", "{,1}", "{1}{2}", "{{1,2},{3,NULL}}", "[1:2]", "[0:1][0:1]={{1,2},{3,4}}", `{"1}`, `{"1\`, "{null}", "{1;2}"}}, // PG-125
	} {
		for _, text := range tc.text {
			if v, err := decodeOne(tc.c, text); err == nil {
				t.Errorf("%s: %q is taken for %s", tc.c.sourceType(), text, show(v, 0))
			}
		}
	}
	if _, err := decodeOne(shapeColumn{Base: oidInt4, Arrays: 1}, "{{1,2},{3,NULL}}"); !errors.Is(err, errDepth) {
		t.Errorf("an array of two dimensions: %v", err)
	}
}

func TestNullAndTheWordNullInArraysDiffer(t *testing.T) { // PG-124
	v, err := decodeOne(shapeColumn{Base: oidText, Arrays: 1}, `{"NULL",NULL,"a,b","q\"t","back\\slash","",null,"{}"}`)
	if err != nil {
		t.Fatal(err)
	}
	e := elements(v, 0)
	want := []string{"NULL", "", "a,b", `q"t`, `back\slash`, "", "null", "{}"}
	for i, w := range want {
		if e.Null(i) != (i == 1) || string(e.At(i)) != w {
			t.Errorf("element %d is %q, NULL %v", i, e.At(i), e.Null(i))
		}
	}
	if e.Len() != len(want) {
		t.Errorf("%d elements", e.Len())
	}
}

func TestMoneyOfOtherPlaces(t *testing.T) { // PG-121
	for text, want := range map[string]string{
		"$0.00": "0e-2", "-$1,234.56": "-123456e-2", "1.234,56 €": "123456e-2", "($1.05)": "-105e-2", "Fr. 1'000.00": "100000e-2", "kr 1 000,50": "100050e-2", "-0,05": "-5e-2",
		"-$92,233,720,368,547,758.08": "-9223372036854775808e-2", "$92,233,720,368,547,758.07": "9223372036854775807e-2",
	} {
		v, err := decodeOne(shapeColumn{Base: oidMoney}, text)
		if err != nil || show(v, 0) != want {
			t.Errorf("%s: %v, %v", text, err, v.Wides)
		}
	}
}

// TestDatesAgainstTheCalendar compares random dates with the standard library's.
func TestDatesAgainstTheCalendar(t *testing.T) { // PG-114, PG-116
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		at := time.UnixMicro(r.Int64N(4e17) - 2e17).UTC()
		year, era := at.Year(), ""
		if year <= 0 {
			year, era = 1-year, " BC"
		}
		text := fmt.Sprintf("%04d", year) + at.Format("-01-02 15:04:05.000000")
		v, err := decodeOne(shapeColumn{Base: oidTimestamp}, text+era)
		if err != nil || v.Longs[0] != at.UnixMicro() {
			t.Fatalf("%s%s is %v, want %d (%v)", text, era, v.Longs, at.UnixMicro(), err)
		}
		v, err = decodeOne(shapeColumn{Base: oidDate}, text[:strings.IndexByte(text, ' ')]+era)
		if days := floorDiv(at.UnixMicro(), dayMicros); err != nil || int64(v.Ints[0]) != days {
			t.Fatalf("%s%s is %v, want %d (%v)", text, era, v.Ints, days, err)
		}
	}
}

func TestTheLastTimestampThatFits(t *testing.T) { // PG-113
	for text, want := range map[string]string{
		"294247-01-10 04:00:54.775807": "9223372036854775807", "294247-01-10 04:00:54.775808": "misfit", "294247-01-11 00:00:00": "misfit", "294276-12-31 23:59:59.999999": "misfit",
		"4714-11-24 00:00:00 BC": "-210866803200000000",
	} {
		v, err := decodeOne(shapeColumn{Base: oidTimestamp}, text)
		if err != nil || show(v, 0) != want {
			t.Errorf("%s is %v, %d misfits, want %s (%v)", text, v.Longs, v.Misfits, want, err)
		}
	}
}

func floorDiv(x, y int64) int64 {
	q := x / y
	if x%y < 0 {
		q--
	}
	return q
}

func TestMisfitsInKeysAreRefused(t *testing.T) {
	for oid, text := range map[uint32]string{oidDate: "infinity", oidTimestamptz: "-infinity"} {
		s := madeShape(shapeColumn{Base: oid}, shapeColumn{Base: oid})
		d, err := s.decoder(s.made())
		if err != nil {
			t.Fatal(err)
		}
		b := &source.Batch{}
		d.reset(source.Insert, 0, b)
		err = d.decode(0, nil, tuple(text, text), b)
		if !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), "v0") {
			t.Errorf("%s: %v", text, err)
		}
		d.reset(source.Insert, 0, b)
		other := "2024-01-01"
		if oid == oidTimestamptz {
			other += " 00:00:00+00"
		}
		if err := d.decode(0, nil, tuple(other, text), b); err != nil || b.After[1].Misfits != 1 || !b.After[1].Null(0) {
			t.Errorf("%s: %v, %+v", text, err, b.After[1])
		}
	}
}

func TestTuplesThatDoNotFitAreRefused(t *testing.T) { // PG-049, PG-137
	s := madeShape(shapeColumn{Base: oidInt4}, shapeColumn{Base: oidText})
	d, err := s.decoder(s.made())
	if err != nil {
		t.Fatal(err)
	}
	whole := tuple("1", "abc")
	for what, row := range map[string][]byte{
		"a column too few": tuple("1"), "a column too many": tuple("1", "a", "b"), "a tail": append(slices.Clone(whole), 0), "nothing": {},
		"a length of 4 GB": append(slices.Clone(whole[:len(whole)-7]), 0xff, 0xff, 0xff, 0xff, 'a', 'b', 'c'), "binary": append(slices.Clone(whole[:len(whole)-8]), 'b', 0, 0, 0, 3, 'a', 'b', 'c'),
		"NULL in the key": tuple("\x00", "a"), "the key unchanged and not sent": tuple("\x01", "a"),
	} {
		b := &source.Batch{}
		d.reset(source.Insert, 0, b)
		if err := d.decode(0, nil, row, b); !errors.Is(err, source.ErrCannotServe) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range len(whole) {
		b := &source.Batch{}
		d.reset(source.Insert, 0, b)
		if err := d.decode(0, nil, whole[:n:n], b); !errors.Is(err, source.ErrCannotServe) {
			t.Errorf("%d bytes of %d: %v", n, len(whole), err)
		}
	}
}

// TestAnOldRowWithoutAValueDoesNotFillIt: under FULL of the table a partition of
// another identity would send NULL for what it did not log.
func TestAnOldRowWithoutAValueDoesNotFillIt(t *testing.T) { // PG-054, PG-078
	s := madeShape(shapeColumn{Base: oidInt4}, shapeColumn{Base: oidText})
	s.Identity = "f"
	d, err := s.decoder(s.made())
	if err != nil {
		t.Fatal(err)
	}
	b := &source.Batch{}
	d.reset(source.Update, 'O', b)
	if err := d.decode('O', tuple("1", "\x00"), tuple("1", "\x01"), b); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b.After[1].Unchanged, []uint32{0}) {
		t.Errorf("%+v", b.After[1])
	}
}

func TestLinesOfCopy(t *testing.T) {
	s := madeShape(shapeColumn{Base: oidText}, shapeColumn{Base: oidBytea}, shapeColumn{Base: oidText})
	d, err := s.copyDecoder()
	if err != nil {
		t.Fatal(err)
	}
	b := &source.Batch{}
	d.reset(b)
	for _, line := range []string{`a\tb\nc\\d\re\ff\bg\vh` + "\t" + `\\x00ff` + "\t" + `\N`, "\t" + `\N` + "\t" + `\\N`} {
		if err := d.decode([]byte(line), b); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(b.After[0].At(0)); got != "a\tb\nc\\d\re\ff\bg\vh" {
		t.Errorf("%q", got)
	}
	if b.After[0].Null(1) || !b.After[2].Null(0) || string(b.After[2].At(1)) != `\N` || !b.After[1].Null(1) || string(b.After[1].At(0)) != "\x00\xff" || b.Rows != 2 {
		t.Errorf("%+v", b)
	}
	for _, line := range []string{"", "a", "a\tb", "a\t\\N\tc\td", "a\t\\N\t\\x41", "a\t\\N\t\\", "\\N\t\\N\t"} {
		d.reset(b)
		if err := d.decode([]byte(line), b); !errors.Is(err, source.ErrCannotServe) {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestSavedShapesComeBackAsTheyWere(t *testing.T) {
	s := newShapes()
	a := madeShape(shapeColumn{Base: oidInt4}, shapeColumn{Base: oidNumeric, BaseMod: numericMod(5, -2)}, shapeColumn{Base: oidText, Arrays: 1})
	a.Files, a.Last = "7", 4
	b := madeShape(shapeColumn{Base: oidUUID})
	b.OID, b.Name, b.Key, b.KeyNote, b.Refuse = 4294967295, "a", nil, "it has none", "no"
	b.finish(-1)
	s.set(a)
	s.set(b)
	text, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := decodeShapes(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.all(), back.all(), cmp.AllowUnexported(shape{}, shapeColumn{}), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "{}", `{"format":2}`, `{"format":1,"tables":[null]}`, `{"format":1,"tables":[{"oid":1,"key":[3]}]}`} {
		if _, err := decodeShapes([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// benchShape is a table of common types.
func benchShape() (*shape, []string) {
	return madeShape(shapeColumn{Base: oidInt8}, shapeColumn{Base: oidInt4}, shapeColumn{Base: oidVarchar, BaseMod: 24}, shapeColumn{Base: oidNumeric, BaseMod: numericMod(12, 2)},
			shapeColumn{Base: oidTimestamptz}, shapeColumn{Base: oidDate}, shapeColumn{Base: oidBool}, shapeColumn{Base: oidFloat8}, shapeColumn{Base: oidUUID}, shapeColumn{Base: oidJSONB},
			shapeColumn{Base: oidBytea}, shapeColumn{Base: oidInt4, Arrays: 1}, shapeColumn{Base: oidText, Arrays: 1}),
		[]string{"9007199254740993", "-42", "some text", "12345.67", "2024-03-10 02:30:00.123456+00", "2024-03-10", "t", "0.30000000000000004",
			"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", `{"a": 1, "b": [1, 2]}`, `\x00ff5c41`, "{1,2,NULL}", `{a,"b c"}`}
}

func TestDecodingAllocatesNothing(t *testing.T) {
	s, values := benchShape()
	d, err := s.decoder(s.made())
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.copyDecoder()
	if err != nil {
		t.Fatal(err)
	}
	row, key, b := tuple(values...), tuple(append([]string{"8"}, slices.Repeat([]string{"\x00"}, len(values)-1)...)...), &source.Batch{}
	line := []byte(strings.ReplaceAll(strings.Join(values, "\t"), `\`, `\\`))
	for what, f := range map[string]func() error{
		"log": func() error {
			d.reset(source.Update, 'K', b)
			return d.decode('K', key, row, b)
		},
		"copy": func() error {
			c.reset(b)
			return c.decode(line, b)
		},
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	s, values := benchShape()
	values = values[:11]
	s.Columns = s.Columns[:11]
	s.finish(-1)
	row := tuple(values...)
	line := []byte(strings.ReplaceAll(strings.Join(values, "\t"), `\`, `\\`))
	batch := &source.Batch{}
	b.Run("log", func(b *testing.B) {
		d, err := s.decoder(s.made())
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(row)))
		b.ReportAllocs()
		for i := range b.N {
			if i%1000 == 0 {
				d.reset(source.Insert, 0, batch)
			}
			if err := d.decode(0, nil, row, batch); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		d, err := s.copyDecoder()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(line)))
		b.ReportAllocs()
		for i := range b.N {
			if i%1000 == 0 {
				d.reset(batch)
			}
			if err := d.decode(line, batch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// fuzzColumns are all decoders.
func fuzzColumns() []shapeColumn {
	var out []shapeColumn
	for _, arrays := range []int{0, 1} {
		for _, oid := range []uint32{oidBool, oidBytea, oidInt8, oidInt2, oidInt4, oidText, oidOID, oidBox, oidFloat4, oidFloat8, oidMoney, oidDate, oidTime, oidTimestamp, oidTimestamptz, oidXID8} {
			out = append(out, shapeColumn{Base: oid, BaseMod: -1, Arrays: arrays})
		}
		for _, m := range []int32{-1, numericMod(5, 2), numericMod(38, 10), numericMod(3, -2), numericMod(3, 5), numericMod(18, 0)} {
			out = append(out, shapeColumn{Base: oidNumeric, BaseMod: m, Arrays: arrays})
		}
	}
	return out
}

// FuzzText reads any text as a value of each type: one row comes of it, or an
// error and none.
func FuzzText(f *testing.F) {
	for _, tc := range typeCases {
		for _, v := range tc.values {
			f.Add(strings.Trim(v[0], "'"))
		}
	}
	f.Add(`{"a\\",NULL}`)
	f.Add("[1:2]={1,2}")
	columns := fuzzColumns()
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range columns {
			v, err := decodeOne(c, text)
			if err != nil {
				if v.Len() != 0 || len(v.Bytes) != 0 || len(v.Longs)+len(v.Ints)+len(v.Wides)+len(v.Ends) != 0 {
					t.Fatalf("%s: a row in spite of %v", v.Type, err)
				}
				continue
			}
			if v.Len() != 1 {
				t.Fatalf("%s: %d rows", v.Type, v.Len())
			}
			_ = show(v, 0)
		}
	})
}

// FuzzRow reads any bytes as TupleData and as a line of COPY.
func FuzzRow(f *testing.F) {
	s, values := benchShape()
	f.Add(tuple(values...), tuple(values...))
	f.Add([]byte(strings.Join(values, "\t")), tuple("1"))
	d, err := s.decoder(s.made())
	if err != nil {
		f.Fatal(err)
	}
	c, err := s.copyDecoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, old, row []byte) {
		for _, kind := range []byte{'K', 'O'} {
			for _, op := range []source.Op{source.Insert, source.Update, source.Delete} {
				b := &source.Batch{}
				d.reset(op, kind, b)
				if err := d.decode(kind, old, row, b); err != nil {
					continue
				}
				if op != source.Delete {
					for i := range b.After {
						if b.After[i].Len() != 1 {
							t.Fatalf("column %d has %d rows", i, b.After[i].Len())
						}
					}
				}
			}
		}
		b := &source.Batch{}
		c.reset(b)
		if err := c.decode(old, b); err == nil {
			for i := range b.After {
				if b.After[i].Len() != 1 {
					t.Fatalf("column %d has %d rows", i, b.After[i].Len())
				}
			}
		}
	})
}
