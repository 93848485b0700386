package mysql

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// appendText appends src, text in some character set, to dst as UTF-8. ok is
// false when src is not valid in the character set; dst is then returned with
// nothing of use behind its old length.
type appendText func(dst, src []byte) (_ []byte, ok bool)

// charset is a character set of the server.
type charset struct {
	Name   string
	MaxLen int // bytes of its longest character
	MinLen int
	// UTF8: the bytes are UTF-8 (or ASCII) already and need only be checked.
	UTF8   bool
	Append appendText
	// AppendKey is not nil if some characters of the set are one in UTF-8, so that
	// two keys could become one: it takes only the first code of each.
	AppendKey appendText
}

// injective reports whether text that is converted to UTF-8 and back is the text
// that it was.
func (c *charset) injective() bool { return c != nil && c.AppendKey == nil }

// appendTo is how a column's text is converted.
func (c *charset) appendTo(key bool) appendText {
	if key && c.AppendKey != nil {
		return c.AppendKey
	}
	return c.Append
}

// lookupCharset returns nil for a name that the server may know but we do not.
// The tables of a character set are unpacked when it is asked for first.
func lookupCharset(name string) *charset {
	switch name {
	case "utf8mb4":
		return &charsetUTF8MB4
	case "utf8mb3", "utf8":
		return &charsetUTF8MB3
	case "ascii":
		return &charsetASCII
	case "ucs2":
		return &charsetUCS2
	case "utf16":
		return &charsetUTF16
	case "utf16le":
		return &charsetUTF16LE
	case "utf32":
		return &charsetUTF32
	case "binary":
		return &charsetBinary
	}
	i, ok := charsetTableIndex[name]
	if !ok {
		return nil
	}
	return charsetTables()[i]
}

var (
	charsetUTF8MB4 = charset{Name: "utf8mb4", MaxLen: 4, MinLen: 1, UTF8: true, Append: appendUTF8}
	charsetUTF8MB3 = charset{Name: "utf8mb3", MaxLen: 3, MinLen: 1, UTF8: true, Append: appendUTF8}
	charsetASCII   = charset{Name: "ascii", MaxLen: 1, MinLen: 1, UTF8: true, Append: appendASCII}
	charsetUCS2    = charset{Name: "ucs2", MaxLen: 2, MinLen: 2, Append: appendUCS2}
	charsetUTF16   = charset{Name: "utf16", MaxLen: 4, MinLen: 2, Append: appendUTF16}
	charsetUTF16LE = charset{Name: "utf16le", MaxLen: 4, MinLen: 2, Append: appendUTF16LE}
	charsetUTF32   = charset{Name: "utf32", MaxLen: 4, MinLen: 4, Append: appendUTF32}
	charsetBinary  = charset{Name: "binary", MaxLen: 1, MinLen: 1}
)

func appendUTF8(dst, src []byte) ([]byte, bool) {
	return append(dst, src...), utf8.Valid(src)
}

func appendASCII(dst, src []byte) ([]byte, bool) {
	for _, b := range src {
		if b >= 0x80 {
			return dst, false
		}
	}
	return append(dst, src...), true
}

func appendUCS2(dst, src []byte) ([]byte, bool) {
	if len(src)%2 != 0 {
		return dst, false
	}
	for i := 0; i < len(src); i += 2 {
		r := rune(src[i])<<8 | rune(src[i+1])
		if utf16.IsSurrogate(r) {
			return dst, false
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

func appendUTF16(dst, src []byte) ([]byte, bool)   { return appendSurrogates(dst, src, 0, 1) }
func appendUTF16LE(dst, src []byte) ([]byte, bool) { return appendSurrogates(dst, src, 1, 0) }

func appendSurrogates(dst, src []byte, hi, lo int) ([]byte, bool) {
	if len(src)%2 != 0 {
		return dst, false
	}
	for i := 0; i < len(src); i += 2 {
		r := rune(src[i+hi])<<8 | rune(src[i+lo])
		if utf16.IsSurrogate(r) {
			if i += 2; i >= len(src) {
				return dst, false
			}
			if r = utf16.DecodeRune(r, rune(src[i+hi])<<8|rune(src[i+lo])); r == utf8.RuneError {
				return dst, false
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

func appendUTF32(dst, src []byte) ([]byte, bool) {
	if len(src)%4 != 0 {
		return dst, false
	}
	for i := 0; i < len(src); i += 4 {
		r := rune(src[i])<<24 | rune(src[i+1])<<16 | rune(src[i+2])<<8 | rune(src[i+3])
		if !utf8.ValidRune(r) {
			return dst, false
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

// The tables of the other character sets are the servers' own: what MySQL
// converts each code to, which MariaDB does alike. Those of the Unicode
// Consortium or of browsers, which libraries carry, differ from them in
// thousands of codes (the yen sign and the tilde in Japanese ones, user-defined
// areas, Big5), and a key that is converted differently by the server and by us
// is another key. TestCharsetTables compares them with a server and writes them.
var (
	charsetSingle = []string{"armscii8", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866",
		"dec8", "geostd8", "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin1", "latin2", "latin5",
		"latin7", "macce", "macroman", "swe7", "tis620"}
	charsetDouble = []string{"big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis"}

	charsetTableIndex = func() map[string]int {
		m := map[string]int{}
		for _, n := range append(append([]string{}, charsetSingle...), charsetDouble...) {
			m[n] = len(m)
		}
		return m
	}()
)

const (
	doubleCodes  = 0x8000 // 8000 to FFFF
	gbQuadCodes  = 39420  // 81308130 to 8431A439
	tripleLead   = 0x8F   // in ujis and eucjpms, before two bytes
	gbSupplement = 189000 // the linear number of 90308130, U+10000
)

// charsetData is the tables one after the other as 16-bit differences between
// neighbours, deflated: for each single-byte set 256 code units; for each
// multi-byte set 256 of single bytes, 32768 of two bytes, for ujis and eucjpms
// 32768 of two bytes after 8F, for gb18030 39420 of four bytes. 0: no character.
//
//go:embed charset_tables.bin
var charsetData []byte

// charsetTable is the mapping of one character set to UTF-16 code units, all of
// them in the basic plane; 0 means that there is no such character.
type charsetTable struct {
	single               []uint16
	double, triple, quad []uint16
}

var charsetTables = sync.OnceValue(func() []*charset {
	tables, err := unpackCharsets(charsetData)
	if err != nil {
		panic("mysql: the embedded character set tables are damaged: " + err.Error())
	}
	var all []*charset
	for i, name := range charsetSingle {
		c := &charset{Name: name, MaxLen: 1, MinLen: 1, Append: tables[i].appendSingle}
		if first, merges := tables[i].firstCodes(); merges {
			c.AppendKey = first.appendSingle
		}
		all = append(all, c)
	}
	for i, name := range charsetDouble {
		t := &tables[len(charsetSingle)+i]
		c := &charset{Name: name, MaxLen: 2, MinLen: 1, Append: t.appendDouble}
		if first, merges := t.firstCodes(); merges {
			c.AppendKey = first.appendDouble
		}
		switch name {
		case "ujis", "eucjpms":
			c.MaxLen = 3
		case "gb18030":
			c.MaxLen = 4
		}
		all = append(all, c)
	}
	return all
})

// charsetShape is the lengths of the tables of a character set.
func charsetShape(name string) (single, double, triple, quad int) {
	for _, s := range charsetSingle {
		if s == name {
			return 256, 0, 0, 0
		}
	}
	single, double = 256, doubleCodes
	switch name {
	case "ujis", "eucjpms":
		triple = doubleCodes
	case "gb18030":
		quad = gbQuadCodes
	}
	return
}

func unpackCharsets(packed []byte) ([]charsetTable, error) {
	raw, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		return nil, err
	}
	take := func(n int) []uint16 {
		if n == 0 || len(raw) < 2*n {
			return nil
		}
		t, last := make([]uint16, n), uint16(0)
		for i := range t {
			last += uint16(raw[2*i])<<8 | uint16(raw[2*i+1])
			t[i] = last
		}
		raw = raw[2*n:]
		return t
	}
	var all []charsetTable
	for _, name := range append(append([]string{}, charsetSingle...), charsetDouble...) {
		s, d, t, q := charsetShape(name)
		all = append(all, charsetTable{take(s), take(d), take(t), take(q)})
	}
	if last := all[len(all)-1]; len(raw) != 0 || len(last.triple) == 0 {
		return nil, fmt.Errorf("%d bytes too many", len(raw))
	}
	return all, nil
}

// firstCodes is the table without the second and later codes of a character, and
// whether there are any.
func (t *charsetTable) firstCodes() (*charsetTable, bool) {
	seen, merges := make([]bool, 1<<16), false
	first := func(codes []uint16) []uint16 {
		out := slices.Clone(codes)
		for i, r := range out {
			if r != 0 && seen[r] {
				out[i], merges = 0, true
			}
			seen[r] = true
		}
		return out
	}
	return &charsetTable{first(t.single), first(t.double), first(t.triple), first(t.quad)}, merges
}

func (t *charsetTable) appendSingle(dst, src []byte) ([]byte, bool) {
	for _, b := range src {
		r := t.single[b]
		if r < 0x80 && r != 0 {
			dst = append(dst, byte(r))
			continue
		}
		if r == 0 && b != 0 {
			return dst, false
		}
		dst = utf8.AppendRune(dst, rune(r))
	}
	return dst, true
}

func (t *charsetTable) appendDouble(dst, src []byte) ([]byte, bool) {
	for i := 0; i < len(src); i++ {
		b := src[i]
		if r := t.single[b]; r != 0 || b == 0 {
			dst = utf8.AppendRune(dst, rune(r))
			continue
		}
		rest := src[i+1:]
		if len(rest) == 0 || b < 0x80 {
			return dst, false
		}
		var r rune
		switch {
		case t.triple != nil && b == tripleLead:
			if len(rest) < 2 || rest[0] < 0x80 {
				return dst, false
			}
			r = rune(t.triple[(int(rest[0])<<8|int(rest[1]))-doubleCodes])
			i += 2
		case t.quad != nil && rest[0] >= '0' && rest[0] <= '9':
			if len(rest) < 3 {
				return dst, false
			}
			r = t.quadRune(b, rest[0], rest[1], rest[2])
			i += 3
		default:
			r = rune(t.double[(int(b)<<8|int(rest[0]))-doubleCodes])
			i++
		}
		if r == 0 {
			return dst, false
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

// quadRune is the character of four bytes of gb18030, 0 if there is none.
func (t *charsetTable) quadRune(a, b, c, d byte) rune {
	if a < 0x81 || a > 0xFE || b < '0' || b > '9' || c < 0x81 || c > 0xFE || d < '0' || d > '9' {
		return 0
	}
	n := ((int(a)-0x81)*10+int(b)-'0')*1260 + (int(c)-0x81)*10 + int(d) - '0'
	if n < len(t.quad) {
		return rune(t.quad[n])
	}
	if n -= gbSupplement; n < 0 || n > 0xFFFFF {
		return 0
	}
	return rune(0x10000 + n)
}

// charsetOfCollation is the character set that a collation's name says, "" if it
// says none (as MariaDB's uca1400_ai_ci, which several sets have).
func charsetOfCollation(name string) string {
	name = strings.ToLower(name)
	if name == "binary" {
		return name
	}
	set, _, ok := strings.Cut(name, "_")
	if !ok || set == "uca1400" {
		return ""
	}
	if set == "utf8" {
		return "utf8mb3"
	}
	return set
}

// charsetOfID is the character set of a collation's number as the log has it;
// "" if the number is not known.
func charsetOfID(id uint64) string {
	switch {
	case id >= 2048 && id < 2304:
		return "utf8mb3" // MariaDB's uca1400 collations
	case id < 2560 && id >= 2304:
		return "utf8mb4"
	case id < 2816 && id >= 2560:
		return "ucs2"
	case id < 3072 && id >= 2816:
		return "utf16"
	case id < 3328 && id >= 3072:
		return "utf32"
	case id >= 1024 && id < 2048:
		id -= 1024 // MariaDB's collations without padding
	}
	for _, r := range collationRanges {
		if id >= uint64(r.first) && id <= uint64(r.last) {
			return r.set
		}
	}
	return ""
}

// canonicalCharset is the name of a character set as definitions have it.
func canonicalCharset(name string) string {
	if name = strings.ToLower(name); name == "utf8" {
		return "utf8mb3"
	}
	return name
}

type collationRange struct {
	first, last uint16
	set         string
}

// collationRanges lists the numbers of MySQL 9.7 and MariaDB 11.8, which share
// them as far as both have a collation.
var collationRanges = []collationRange{
	{1, 1, "big5"}, {2, 2, "latin2"}, {3, 3, "dec8"}, {4, 4, "cp850"}, {5, 5, "latin1"}, {6, 6, "hp8"},
	{7, 7, "koi8r"}, {8, 8, "latin1"}, {9, 9, "latin2"}, {10, 10, "swe7"}, {11, 11, "ascii"}, {12, 12, "ujis"},
	{13, 13, "sjis"}, {14, 14, "cp1251"}, {15, 15, "latin1"}, {16, 16, "hebrew"}, {18, 18, "tis620"},
	{19, 19, "euckr"}, {20, 20, "latin7"}, {21, 21, "latin2"}, {22, 22, "koi8u"}, {23, 23, "cp1251"},
	{24, 24, "gb2312"}, {25, 25, "greek"}, {26, 26, "cp1250"}, {27, 27, "latin2"}, {28, 28, "gbk"},
	{29, 29, "cp1257"}, {30, 30, "latin5"}, {31, 31, "latin1"}, {32, 32, "armscii8"}, {33, 33, "utf8mb3"},
	{34, 34, "cp1250"}, {35, 35, "ucs2"}, {36, 36, "cp866"}, {37, 37, "keybcs2"}, {38, 38, "macce"},
	{39, 39, "macroman"}, {40, 40, "cp852"}, {41, 42, "latin7"}, {43, 43, "macce"}, {44, 44, "cp1250"},
	{45, 46, "utf8mb4"}, {47, 49, "latin1"}, {50, 52, "cp1251"}, {53, 53, "macroman"}, {54, 55, "utf16"},
	{56, 56, "utf16le"}, {57, 57, "cp1256"}, {58, 59, "cp1257"}, {60, 61, "utf32"}, {62, 62, "utf16le"},
	{63, 63, "binary"}, {64, 64, "armscii8"}, {65, 65, "ascii"}, {66, 66, "cp1250"}, {67, 67, "cp1256"},
	{68, 68, "cp866"}, {69, 69, "dec8"}, {70, 70, "greek"}, {71, 71, "hebrew"}, {72, 72, "hp8"},
	{73, 73, "keybcs2"}, {74, 74, "koi8r"}, {75, 75, "koi8u"}, {76, 76, "utf8mb3"}, {77, 77, "latin2"},
	{78, 78, "latin5"}, {79, 79, "latin7"}, {80, 80, "cp850"}, {81, 81, "cp852"}, {82, 82, "swe7"},
	{83, 83, "utf8mb3"}, {84, 84, "big5"}, {85, 85, "euckr"}, {86, 86, "gb2312"}, {87, 87, "gbk"},
	{88, 88, "sjis"}, {89, 89, "tis620"}, {90, 90, "ucs2"}, {91, 91, "ujis"}, {92, 93, "geostd8"},
	{94, 94, "latin1"}, {95, 96, "cp932"}, {97, 98, "eucjpms"}, {99, 99, "cp1250"}, {101, 124, "utf16"},
	{128, 151, "ucs2"}, {159, 159, "ucs2"}, {160, 183, "utf32"}, {192, 215, "utf8mb3"}, {223, 223, "utf8mb3"},
	{224, 247, "utf8mb4"}, {248, 250, "gb18030"}, {255, 323, "utf8mb4"}, {576, 579, "utf8mb3"},
	{608, 611, "utf8mb4"}, {640, 642, "ucs2"}, {672, 674, "utf16"}, {736, 738, "utf32"},
}
