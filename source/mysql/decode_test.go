package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

func packLength(b []byte, n int) []byte {
	switch {
	case n < 251:
		return append(b, byte(n))
	case n < 1<<16:
		return append(b, 0xfc, byte(n), byte(n>>8))
	}
	return append(b, 0xfd, byte(n), byte(n>>8), byte(n>>16))
}

// logType is the type and metadata that the log has for a column.
func logType(c *columnDef, f Flavor) (typ byte, meta []byte) {
	maxLen := 1
	if c.isText() {
		maxLen = lookupCharset(c.Charset).MaxLen
	}
	char := func(n int) []byte { return []byte{typeString ^ byte(n&0x300>>4), byte(n)} }
	varchar := func(n int) (byte, []byte) { return typeVarchar, []byte{byte(n), byte(n >> 8)} }
	switch c.Base {
	case "tinyint":
		return typeTiny, nil
	case "smallint":
		return typeShort, nil
	case "mediumint":
		return typeInt24, nil
	case "int":
		return typeLong, nil
	case "bigint":
		return typeLongLong, nil
	case "float":
		return typeFloat, []byte{4}
	case "double":
		return typeDouble, []byte{8}
	case "year":
		return typeYear, nil
	case "decimal":
		return typeNewDecimal, []byte{byte(c.Len), byte(c.Scale)}
	case "bit":
		return typeBit, []byte{byte(c.Len % 8), byte(c.Len / 8)}
	case "date":
		return typeDate, nil
	case "time":
		return typeTime, []byte{byte(c.Len)}
	case "datetime":
		return typeDatetime, []byte{byte(c.Len)}
	case "timestamp":
		return typeTimestamp, []byte{byte(c.Len)}
	case "enum":
		return typeString, []byte{typeEnum, byte(1 + len(c.Labels)/256)}
	case "set":
		return typeString, []byte{typeSet, byte(len(c.Labels)+7) / 8}
	case "char", "binary":
		return typeString, char(c.Len * maxLen)
	case "uuid", "inet6":
		return typeString, char(16)
	case "inet4":
		return typeString, char(4)
	case "varchar", "varbinary":
		return varchar(c.Len * maxLen)
	case "tinytext", "tinyblob":
		return typeBlob, []byte{1}
	case "text", "blob":
		return typeBlob, []byte{2}
	case "mediumtext", "mediumblob":
		return typeBlob, []byte{3}
	case "longtext", "longblob":
		return typeBlob, []byte{4}
	case "json":
		return typeJSON, []byte{4}
	case "geometry":
		return typeGeometry, []byte{4}
	case "vector":
		if f == FlavorMariaDB {
			return varchar(4 * c.Len)
		}
		return typeVector, []byte{4}
	}
	panic(c.Base)
}

// tableMapOf makes the TABLE_MAP event that a server writes for a definition.
func tableMapOf(d *tableDef, f Flavor) []byte {
	b := []byte{7, 0, 0, 0, 0, 0, 1, 0}
	b = append(append(append(b, byte(len(d.Schema))), d.Schema...), 0)
	b = append(append(append(b, byte(len(d.Name))), d.Name...), 0)
	b = packLength(b, len(d.Columns))
	var meta, signs, names, texts, labels, enums, sets, keys []byte
	nulls := make([]byte, (len(d.Columns)+7)/8)
	numeric := 0
	collation := func(set string) int {
		for _, r := range collationRanges {
			if r.set == set {
				return int(r.first)
			}
		}
		return 0
	}
	list := func(c *columnDef) (out []byte) {
		out = packLength(out, len(c.Labels))
		for _, l := range c.Labels {
			out = append(packLength(out, len(l)), l...)
		}
		return out
	}
	for i := range d.Columns {
		c := &d.Columns[i]
		typ, m := logType(c, f)
		b, meta = append(b, typ), append(meta, m...)
		if !c.NotNull {
			nulls[i/8] |= 1 << (i % 8)
		}
		names = append(packLength(names, len(c.Name)), c.Name...)
		switch c.Base {
		case "tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "year":
			if numeric%8 == 0 {
				signs = append(signs, 0)
			}
			if c.Unsigned {
				signs[numeric/8] |= 0x80 >> (numeric % 8)
			}
			numeric++
		case "enum":
			labels, enums = packLength(labels, collation(c.Charset)), append(enums, list(c)...)
		case "set":
			labels, sets = packLength(labels, collation(c.Charset)), append(sets, list(c)...)
		case "char", "varchar", "tinytext", "text", "mediumtext", "longtext":
			texts = packLength(texts, collation(c.Charset))
		case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "uuid", "inet4", "inet6":
			texts = packLength(texts, 63)
		case "vector":
			texts = packLength(texts, 63)
		case "geometry":
			if f == FlavorMariaDB {
				texts = packLength(texts, 63)
			}
		}
	}
	for _, ix := range d.Indexes {
		if ix.Primary {
			for _, n := range ix.Columns {
				keys = packLength(keys, d.column(n))
			}
		}
	}
	b = append(packLength(b, len(meta)), meta...)
	b = append(b, nulls...)
	for _, o := range []struct {
		kind byte
		b    []byte
	}{{metaSignedness, signs}, {metaColumnCharset, texts}, {metaNames, names}, {metaEnumCharsets, labels}, {metaEnumLabels, enums}, {metaSetLabels, sets}, {metaKey, keys}} {
		if o.b != nil {
			b = append(packLength(append(b, o.kind), len(o.b)), o.b...)
		}
	}
	return b
}

// fullBitmap is a bitmap of n columns that are all there.
func fullBitmap(n int) []byte {
	b := make([]byte, (n+7)/8)
	for i := range n {
		b[i/8] |= 1 << (i % 8)
	}
	return b
}

func defined(t testing.TB, f Flavor, create string) (*history, *tableDef) {
	t.Helper()
	h := newHistory(f, matchAll)
	if err := h.define("s", "CREATE TABLE t ("+create+")"); err != nil {
		t.Fatal(err)
	}
	return h, h.table("s", "t")
}

func decoderOf(t testing.TB, h *history, d *tableDef) *rowDecoder {
	t.Helper()
	tm, err := parseTableMap(tableMapOf(d, h.flavor))
	if err != nil {
		t.Fatal(err)
	}
	dec, err := h.decoderFor(tm)
	if err != nil {
		t.Fatal(err)
	}
	return dec
}

const allTypes = "a TINYINT UNSIGNED NOT NULL PRIMARY KEY, b SMALLINT, c MEDIUMINT UNSIGNED, d INT UNSIGNED, e BIGINT UNSIGNED, f FLOAT, g DOUBLE, h YEAR, i DECIMAL(10,2), " +
	"j DECIMAL(30,10), k DECIMAL(65,30), l BIT(1), m BIT(20), n BIT(64), o DATE, p TIME(3), q DATETIME(6), r TIMESTAMP(1), s ENUM('x','y'), u SET('x','y','z'), " +
	"v CHAR(5), w CHAR(255), x BINARY(8), y VARCHAR(5), z VARCHAR(500), aa VARBINARY(5), ab TINYTEXT, ac LONGTEXT CHARACTER SET gbk, ad BLOB, ae JSON, af GEOMETRY, ag VECTOR(3), ah VARCHAR(9) CHARACTER SET utf16, " +
	"ai VARCHAR(9) CHARACTER SET gb18030, aj VARCHAR(9) CHARACTER SET ujis"

func TestTableMapOfAnotherShapeIsRefused(t *testing.T) {
	const mine = "id INT NOT NULL PRIMARY KEY, v VARCHAR(9), e ENUM('a','b'), n INT UNSIGNED"
	h, _ := defined(t, FlavorMySQL, mine)
	tests := []struct{ id, other, want string }{
		{"", mine, ""},
		{"MY-081", "id INT NOT NULL PRIMARY KEY, v VARCHAR(9), e ENUM('a','b')", "3 columns there and 4 here"},
		{"MY-081", "id INT NOT NULL PRIMARY KEY, w VARCHAR(9), e ENUM('a','b'), n INT UNSIGNED", "column 2 is w there and v here"},
		{"", "id INT NOT NULL PRIMARY KEY, v VARCHAR(10), e ENUM('a','b'), n INT UNSIGNED", "column v"},
		{"", "id INT NOT NULL PRIMARY KEY, v BLOB, e ENUM('a','b'), n INT UNSIGNED", "column v"},
		{"MY-100", "id INT NOT NULL PRIMARY KEY, v VARCHAR(36) CHARACTER SET latin1, e ENUM('a','b'), n INT UNSIGNED", "character set"},
		{"MY-070", "id INT NOT NULL PRIMARY KEY, v VARCHAR(9), e ENUM('b','a'), n INT UNSIGNED", "value 1 of column e"},
		{"", "id INT NOT NULL PRIMARY KEY, v VARCHAR(9), e ENUM('a','b','c'), n INT UNSIGNED", "3 values there"},
		{"MY-050", "id INT NOT NULL PRIMARY KEY, v VARCHAR(9), e ENUM('a','b'), n INT", "unsigned in one"},
		{"", "id INT NOT NULL PRIMARY KEY, v VARCHAR(9) NOT NULL, e ENUM('a','b'), n INT UNSIGNED", "may be NULL"},
		{"MY-098", "id INT NOT NULL, v VARCHAR(9), e ENUM('a','b'), n INT UNSIGNED", "primary key is ()"},
		{"", "id INT NOT NULL PRIMARY KEY, v VARCHAR(9), e SET('a','b'), n INT UNSIGNED", "column e"},
	}
	for _, tt := range tests {
		_, other := defined(t, FlavorMySQL, tt.other)
		tm, err := parseTableMap(tableMapOf(other, FlavorMySQL))
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.decoderFor(tm)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s %s: error %v, want %q", tt.id, tt.other, err, tt.want)
		}
	}
}

func TestTableMapWithoutNamesIsRefused(t *testing.T) { // MY-048
	h, d := defined(t, FlavorMySQL, "id INT NOT NULL PRIMARY KEY")
	whole := tableMapOf(d, FlavorMySQL)
	tm, err := parseTableMap(whole[:8+2+1+2+1+1+1+1+1])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.decoderFor(tm); !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), "binlog_row_metadata") {
		t.Errorf("error %v", err)
	}
}

func TestTableMapIsTheSameApartFromItsNumber(t *testing.T) {
	_, d := defined(t, FlavorMySQL, allTypes)
	body := tableMapOf(d, FlavorMySQL)
	tm, err := parseTableMap(body)
	if err != nil {
		t.Fatal(err)
	}
	body[0] = 99
	if !tm.same(body) {
		t.Error("another number makes another table map")
	}
	body[len(body)-1]++
	if tm.same(body) {
		t.Error("another key is the same table map")
	}
}

func TestRowsOfTablesThatAreNotKnown(t *testing.T) {
	_, d := defined(t, FlavorMySQL, "id INT NOT NULL PRIMARY KEY")
	tm, err := parseTableMap(tableMapOf(d, FlavorMySQL))
	if err != nil {
		t.Fatal(err)
	}
	h := newHistory(FlavorMySQL, matchAll)
	if _, err := h.decoderFor(tm); !errors.Is(err, source.ErrCannotServe) { // MY-090
		t.Errorf("captured: error %v", err)
	}
	h = newHistory(FlavorMySQL, func(string, string) bool { return false })
	if dec, err := h.decoderFor(tm); dec != nil || err != nil {
		t.Errorf("not captured: %v, %v", dec, err)
	}
}

func TestPartialImageStops(t *testing.T) { // MY-036
	h, d := defined(t, FlavorMySQL, "id INT NOT NULL PRIMARY KEY, a INT, t TEXT")
	dec := decoderOf(t, h, d)
	var b source.Batch
	for _, tt := range []struct {
		op   source.Op
		a, b []byte
	}{{source.Insert, []byte{3}, nil}, {source.Update, []byte{7}, []byte{2}}, {source.Update, []byte{1}, []byte{7}}, {source.Delete, []byte{1}, nil}, {source.Insert, []byte{7, 0}, nil}, {source.Insert, nil, nil}} {
		dec.reset(&b, tt.op)
		if _, _, err := dec.decode(tt.op, tt.a, tt.b, []byte{0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0}, &b, 1<<20); !errors.Is(err, source.ErrCannotServe) {
			t.Errorf("op %d, images %v %v: error %v", tt.op, tt.a, tt.b, err)
		}
	}
}

func TestBatchIsCutAtMaxBytes(t *testing.T) {
	h, d := defined(t, FlavorMySQL, "id INT NOT NULL PRIMARY KEY, v LONGBLOB")
	dec := decoderOf(t, h, d)
	var rows []byte
	const size, count = 1000, 1000
	for i := range count {
		rows = binary.LittleEndian.AppendUint32(append(rows, 0), uint32(i))
		rows = append(binary.LittleEndian.AppendUint32(rows, size), make([]byte, size)...)
	}
	var b source.Batch
	next, batches := 0, 0
	for len(rows) > 0 {
		dec.reset(&b, source.Insert)
		took, n, err := dec.decode(source.Insert, fullBitmap(2), nil, rows, &b, 64<<10)
		if err != nil || n == 0 || n != b.Rows {
			t.Fatalf("%d rows, batch of %d: %v", n, b.Rows, err)
		}
		if s := batchSize(&b); s > 128<<10 {
			t.Errorf("a batch of %d bytes", s)
		}
		for i := range b.Rows {
			if int(b.After[0].Ints[i]) != next {
				t.Fatalf("row %d, want %d", b.After[0].Ints[i], next)
			}
			next++
		}
		rows = rows[took:]
		batches++
	}
	if next != count || batches < 8 {
		t.Errorf("%d rows in %d batches", next, batches)
	}
}

func TestMisfitInKeyStops(t *testing.T) {
	h, d := defined(t, FlavorMySQL, "k DATE NOT NULL PRIMARY KEY, v DATE")
	dec := decoderOf(t, h, d)
	var b source.Batch
	day := []byte{0x21, 0xd0, 0x0f} // 2024-01-01
	zero := []byte{0, 0, 0}
	dec.reset(&b, source.Insert)
	if _, _, err := dec.decode(source.Insert, fullBitmap(2), nil, append(append([]byte{0}, day...), zero...), &b, 1<<20); err != nil || b.After[1].Misfits != 1 || !b.After[1].Null(0) {
		t.Errorf("misfit in a column: %v, %d", err, b.After[1].Misfits)
	}
	dec.reset(&b, source.Insert)
	if _, _, err := dec.decode(source.Insert, fullBitmap(2), nil, append(append([]byte{0}, zero...), day...), &b, 1<<20); !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), "column k") {
		t.Errorf("misfit in the key: %v", err)
	}
	dec.reset(&b, source.Insert)
	if _, _, err := dec.decode(source.Insert, fullBitmap(2), nil, append([]byte{1}, zero...), &b, 1<<20); !errors.Is(err, source.ErrCannotServe) {
		t.Errorf("NULL in the key: %v", err)
	}
}

func TestInvalidTextStopsByName(t *testing.T) {
	for _, tt := range []struct{ column, value string }{
		{"v VARCHAR(9)", "\xff"}, {"v VARCHAR(9)", "a\xc3"}, {"v VARCHAR(9) CHARACTER SET ascii", "\x80"}, {"v VARCHAR(9) CHARACTER SET gbk", "\x81"},
		{"v VARCHAR(9) CHARACTER SET utf16", "a"}, {"v VARCHAR(9) CHARACTER SET utf16", "\xd8\x00"}, {"v VARCHAR(9) CHARACTER SET utf32", "\x00\x11\x00\x00"}, {"v VARCHAR(9) CHARACTER SET cp1251", "\x98"}, {"v JSON", "\x0c\x02\xff\xff"},
	} {
		h, d := defined(t, FlavorMySQL, "id INT NOT NULL PRIMARY KEY, "+tt.column)
		dec := decoderOf(t, h, d)
		rows := []byte{0, 1, 0, 0, 0, byte(len(tt.value))}
		if strings.Contains(tt.column, "JSON") {
			rows = append(rows, 0, 0, 0)
		}
		var b source.Batch
		dec.reset(&b, source.Insert)
		_, _, err := dec.decode(source.Insert, fullBitmap(2), nil, append(rows, tt.value...), &b, 1<<20)
		if !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), "s.t, column v") {
			t.Errorf("%s %q: error %v", tt.column, tt.value, err)
		}
	}
}

// Every place where an event may be cut gives an error, never a row too many.
func TestCutEventsStop(t *testing.T) {
	h, d := defined(t, FlavorMySQL, "id INT NOT NULL PRIMARY KEY, a DECIMAL(20,5), b TIME(3), c VARCHAR(300), d BIT(9), e DATETIME(2), f LONGTEXT")
	dec := decoderOf(t, h, d)
	row := []byte{0, 1, 0, 0, 0}
	row = append(row, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0)[:5+decimalSize(20, 5)]
	row = append(row, 0x80, 0, 0, 0, 0)
	row = append(row, 2, 0, 'x', 'y')
	row = append(row, 1, 0)
	row = append(row, 0x99, 0xb2, 0x42, 0, 0, 0)
	row = append(row, 1, 0, 0, 0, 'z')
	var b source.Batch
	for n := 1; n <= len(row); n++ {
		dec.reset(&b, source.Insert)
		took, _, err := dec.decode(source.Insert, fullBitmap(7), nil, row[:n:n], &b, 1<<20)
		if n < len(row) && err == nil || n == len(row) && (err != nil || took != n) {
			t.Errorf("%d of %d bytes: took %d, %v", n, len(row), took, err)
		}
	}
}

func TestDatesOfTheWholeCalendar(t *testing.T) {
	day := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
	first, ok := daysOf(0, 1, 1)
	if !ok || first != -719528 {
		t.Fatalf("year 0 begins at %d", first)
	}
	for want := first; day.Year() < 10000; want++ {
		got, ok := daysOf(day.Year(), int(day.Month()), day.Day())
		if !ok || got != want {
			t.Fatalf("%s is day %d, want %d", day.Format(time.DateOnly), got, want)
		}
		day = day.AddDate(0, 0, 1)
	}
	for _, bad := range [][3]int{{2023, 2, 29}, {1900, 2, 29}, {2024, 4, 31}, {2024, 0, 1}, {2024, 1, 0}, {2024, 13, 1}, {0, 0, 0}} {
		if _, ok := daysOf(bad[0], bad[1], bad[2]); ok {
			t.Errorf("%v is a date", bad)
		}
	}
}

// Decimals from the log and from text agree, for random ones of all sizes.
func TestDecimalsAgree(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		precision := 1 + rnd.IntN(65)
		scale := rnd.IntN(min(precision, 38) + 1)
		digits := make([]byte, precision)
		for i := range digits {
			digits[i] = byte('0' + rnd.IntN(10))
		}
		if n := rnd.IntN(precision + 1); rnd.IntN(3) == 0 {
			for i := range n {
				digits[i] = '0'
			}
		}
		negative := rnd.IntN(2) == 0
		whole, frac := string(digits[:precision-scale]), string(digits[precision-scale:])
		text := strings.TrimLeft(whole, "0")
		if text == "" {
			text = "0"
		}
		if scale > 0 {
			text += "." + frac
		}
		if negative && strings.Trim(string(digits), "0") != "" {
			text = "-" + text
		}
		packed := packDecimal(whole, frac, strings.HasPrefix(text, "-"))
		got, err := appendDecimalText(nil, precision, scale, packed)
		if err != nil || string(got) != text {
			t.Fatalf("decimal(%d,%d) %s: %s, %v", precision, scale, text, got, err)
		}
		if got, err := appendCanonicalDecimal(nil, []byte(strings.Replace(text, "-", "-000", 1)), scale); err != nil || string(got) != text {
			t.Fatalf("decimal(%d,%d) %s from text: %s, %v", precision, scale, text, got, err)
		}
		if precision > 38 {
			continue
		}
		var log, copied source.Vector
		ty := source.Type{Kind: source.Decimal, Precision: precision, Scale: scale}
		log.Reset(ty)
		copied.Reset(ty)
		c := columnDecoder{digits: precision, scale: scale, size: decimalSize(precision, scale), layout: decimalLayout(precision, scale)}
		if precision <= 18 {
			_, err = decodeDecimalLong(&c, packed, &log)
			err = errors.Join(err, copyDecimalLong(&c, []byte(text), &copied))
		} else {
			_, err = decodeDecimalWide(&c, packed, &log)
			err = errors.Join(err, copyDecimalWide(&c, []byte(text), &copied))
		}
		if err != nil || showValue(&log, 0) != text || showValue(&copied, 0) != text {
			t.Fatalf("decimal(%d,%d) %s: log %s, copy %s, %v", precision, scale, text, showValue(&log, 0), showValue(&copied, 0), err)
		}
	}
}

func packDecimal(whole, frac string, negative bool) []byte {
	var b []byte
	group := func(digits string) {
		if digits == "" {
			return
		}
		var x uint64
		fmt.Sscan(strings.TrimLeft(digits[:len(digits)-1], "0")+digits[len(digits)-1:], &x)
		for i := digitBytes[len(digits)] - 1; i >= 0; i-- {
			b = append(b, byte(x>>(8*i)))
		}
	}
	n := len(whole) % 9
	group(whole[:n])
	for ; n < len(whole); n += 9 {
		group(whole[n : n+9])
	}
	for len(frac) >= 9 {
		group(frac[:9])
		frac = frac[9:]
	}
	group(frac)
	b[0] ^= 0x80
	if negative {
		for i := range b {
			b[i] = ^b[i]
		}
	}
	return b
}

func TestJSONOfDamagedBytesIsAnError(t *testing.T) {
	for _, b := range [][]byte{{0}, {0, 1, 0, 4, 0}, {2, 255, 255, 4, 0}, {12}, {12, 5, 'a'}, {15, 246, 1, 5}, {4, 9}, {11, 0, 0, 0, 0, 0, 0, 0xf0, 0x7f}, {99}, {5, 1}, {15, 10, 2, 0, 0}, {0, 1, 0, 11, 0, 200, 0, 1, 0, 4, 0, 0}, {12, 0xff, 0xff, 0xff, 0xff, 0xff, 1}} {
		if out, err := appendJSON(nil, b); err == nil { // MY-065
			t.Errorf("%v is %s", b, out)
		}
	}
	deep := []byte{2, 1, 0, 7, 0, 2, 4, 0}
	for range 200 { // an array that holds itself at offset 0 cannot be, but a long chain can
		deep = append([]byte{2, 1, 0, byte(len(deep) + 6), byte((len(deep) + 6) >> 8), 2, 7, 0}, deep[1:]...)
	}
	if _, err := appendJSON(nil, deep); err == nil {
		t.Error("JSON of any depth is accepted")
	}
}

// benchRows is a table like those that are usual, and the rows of an event.
func benchRows(t testing.TB, n int) (*history, *tableDef, []byte) {
	h, d := defined(t, FlavorMySQL, "id BIGINT NOT NULL PRIMARY KEY, n INT, a VARCHAR(40), b VARCHAR(20) CHARACTER SET latin1, m DECIMAL(12,2), dt DATETIME(3), ts TIMESTAMP(3), c VARCHAR(200), f TINYINT, d DOUBLE")
	var rows []byte
	for i := range n {
		rows = append(rows, 0, 0)
		rows = binary.LittleEndian.AppendUint64(rows, uint64(i))
		rows = binary.LittleEndian.AppendUint32(rows, uint32(i*7))
		rows = append(append(rows, 20), "a name of some chars"...)
		rows = append(append(rows, 10), "some latin"...)
		rows = append(rows, packDecimal("0000012345", "67", false)...)
		rows = append(rows, 0x99, 0xb2, 0x42, 0xa3, 0x12, 0x04, 0xd2)
		rows = append(rows, 0x66, 0x82, 0x9a, 0x50, 0x04, 0xd2)
		rows = append(append(rows, 60, 0), strings.Repeat("comment ", 8)[:60]...)
		rows = append(rows, byte(i), 0, 0, 0, 0, 0, 0, 0xf0, 0x3f)
	}
	return h, d, rows
}

func TestDecodingAllocatesNothingPerRow(t *testing.T) {
	h, d, rows := benchRows(t, 1000)
	dec := decoderOf(t, h, d)
	var b source.Batch
	per := testing.AllocsPerRun(5, func() {
		dec.reset(&b, source.Insert)
		if _, n, err := dec.decode(source.Insert, fullBitmap(10), nil, rows, &b, 1<<30); err != nil || n != 1000 {
			t.Fatal(n, err)
		}
	})
	if per > 2 {
		t.Errorf("%v allocations for 1000 rows", per)
	}
}

func BenchmarkDecode(b *testing.B) {
	h, d, rows := benchRows(b, 50)
	dec := decoderOf(b, h, d)
	var batch source.Batch
	b.SetBytes(int64(len(rows)))
	b.ReportAllocs()
	for b.Loop() {
		dec.reset(&batch, source.Insert)
		if _, _, err := dec.decode(source.Insert, fullBitmap(10), nil, rows, &batch, 1<<20); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*50/b.Elapsed().Seconds(), "rows/s")
}

func FuzzRowImage(f *testing.F) {
	h, d := defined(f, FlavorMySQL, allTypes)
	dec := decoderOf(f, h, d)
	hm, dm := defined(f, FlavorMariaDB, "a UUID NOT NULL PRIMARY KEY, b INET4, c INET6, d VECTOR(2)")
	maria := decoderOf(f, hm, dm)
	f.Add([]byte{})
	f.Add([]byte("\x00\x00\x00\x00\x00\x01\x00\x02"))
	f.Fuzz(func(t *testing.T, rows []byte) {
		for _, dec := range []*rowDecoder{dec, maria} {
			for _, op := range []source.Op{source.Insert, source.Update} {
				var b source.Batch
				dec.reset(&b, op)
				n := len(dec.columns)
				took, count, err := dec.decode(op, fullBitmap(n), fullBitmap(n), rows, &b, 1<<16)
				if took > len(rows) || err == nil && count == 0 && len(rows) > 0 {
					t.Fatalf("took %d of %d bytes, %d rows, %v", took, len(rows), count, err)
				}
				if err != nil {
					continue
				}
				for i := range b.After {
					if v := &b.After[i]; v.Len() != b.Rows {
						t.Fatalf("column %d has %d values for %d rows", i, v.Len(), b.Rows)
					}
				}
			}
		}
	})
}

func FuzzTableMap(f *testing.F) {
	_, d := defined(f, FlavorMySQL, allTypes)
	h, _ := defined(f, FlavorMySQL, allTypes)
	f.Add(tableMapOf(d, FlavorMySQL))
	f.Fuzz(func(t *testing.T, body []byte) {
		if tm, err := parseTableMap(body); err == nil {
			h.decoderFor(tm) // must not panic
		}
	})
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte{0, 1, 0, 12, 0, 11, 0, 1, 0, 5, 7, 0, 'a'})
	f.Add([]byte{12, 3, 'a', '"', 1})
	f.Add([]byte{11, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f})
	f.Add([]byte{15, 246, 4, 3, 1, 0x81, 5})
	f.Fuzz(func(t *testing.T, doc []byte) {
		out, err := appendJSON(nil, doc)
		if err == nil && len(out) == 0 {
			t.Fatal("nothing printed")
		}
	})
}

func FuzzCopyRow(f *testing.F) {
	_, d := defined(f, FlavorMySQL, allTypes)
	dec, err := newCopyDecoder(d)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(make([]byte, 60))
	f.Fuzz(func(t *testing.T, row []byte) {
		var b source.Batch
		dec.reset(&b)
		if err := dec.decode(row, &b); err == nil && b.Rows != 1 {
			t.Fatal("no row")
		}
	})
}

func FuzzStatement(f *testing.F) {
	for _, s := range ddlScripts {
		for _, q := range s.sql {
			f.Add(q, uint64(0))
		}
	}
	f.Add("ALTER TABLE \"t\" ADD \"b\" INT", uint64(modeANSIQuotes))
	f.Add("ALTER TABLE t ADD b INT, DROP c /*!50000 , ADD d INT */", uint64(0))
	f.Fuzz(func(t *testing.T, sql string, mode uint64) {
		for _, flavor := range []Flavor{FlavorMySQL, FlavorMariaDB} {
			h := shopHistory(t, flavor)
			before, _ := h.encode()
			effects, err := h.apply(ddlEvent{Schema: "shop", SQL: sql, SQLMode: mode})
			after, encodeErr := h.encode()
			if encodeErr != nil {
				t.Fatal(encodeErr)
			}
			if err != nil && (!errors.Is(err, source.ErrCannotServe) || string(before) != string(after) || effects != nil) {
				t.Fatalf("%q: %v", sql, err)
			}
			if _, err := decodeHistory(after, h.match); err != nil {
				t.Fatalf("%q: %v", sql, err)
			}
		}
	})
}
