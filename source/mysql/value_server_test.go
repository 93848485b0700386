package mysql

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/lakesyncd/lakesyncd/source"
)

// valueCase is a column type with values, as SQL, and what they must become.
type valueCase struct {
	id        string // of the public fault
	column    string // type and attributes
	flavor    Flavor // 0: all
	min       string // lowest version of MariaDB
	values    []string
	want      []string
	table     string // set by the test
	generated bool
}

func pairsOf(pairs ...string) (values, want []string) {
	for i := 0; i < len(pairs); i += 2 {
		values, want = append(values, pairs[i]), append(want, pairs[i+1])
	}
	return
}

func valueCases() []valueCase {
	var all []valueCase
	add := func(id, column string, f Flavor, pairs ...string) {
		c := valueCase{id: id, column: column, flavor: f}
		c.values, c.want = pairsOf(pairs...)
		all = append(all, c)
	}
	const my, ma = FlavorMySQL, FlavorMariaDB
	add("", "TINYINT", 0, "-128", "-128", "127", "127", "0", "0", "NULL", "NULL")
	add("MY-050", "TINYINT UNSIGNED", 0, "255", "255", "128", "128")
	add("MY-052", "TINYINT(1)", 0, "2", "2", "-1", "-1", "0", "0")
	add("", "BOOL", 0, "TRUE", "1")
	add("", "SMALLINT", 0, "-32768", "-32768", "32767", "32767")
	add("MY-050", "SMALLINT UNSIGNED", 0, "65535", "65535")
	add("", "MEDIUMINT", 0, "-8388608", "-8388608", "8388607", "8388607", "-1", "-1")
	add("MY-050", "MEDIUMINT UNSIGNED", 0, "16777215", "16777215", "8388608", "8388608")
	add("", "INT", 0, "-2147483648", "-2147483648", "2147483647", "2147483647")
	add("MY-050", "INT UNSIGNED", 0, "4294967295", "4294967295")
	add("MY-050", "INT(5) ZEROFILL", 0, "42", "42")
	add("", "BIGINT", 0, "-9223372036854775808", "-9223372036854775808", "9223372036854775807", "9223372036854775807")
	add("MY-050", "BIGINT UNSIGNED", 0, "18446744073709551615", "18446744073709551615", "0", "0")
	add("", "BIT(1)", 0, "b'0'", "false", "b'1'", "true")
	add("", "BIT(9)", 0, "b'100000001'", "257", "0", "0")
	add("", "BIT(63)", 0, "9223372036854775807", "9223372036854775807")
	add("", "BIT(64)", 0, "18446744073709551615", "18446744073709551615", "0", "0")
	add("MY-057", "YEAR", 0, "0", "0", "1901", "1901", "2155", "2155", "'0'", "2000")
	add("MY-053", "DECIMAL(65,30)", 0, "-12345678901234567890123456789012345.000000000000000000000000000001",
		`"-12345678901234567890123456789012345.000000000000000000000000000001"`, "0", `"0.000000000000000000000000000000"`, "-0.5", `"-0.500000000000000000000000000000"`)
	add("MY-053", "DECIMAL(5,5)", 0, "-0.00001", "-0.00001", "0.99999", "0.99999", "0", "0.00000")
	add("MY-053", "DECIMAL(8,0)", 0, "0", "0", "-99999999", "-99999999")
	add("MY-053", "DECIMAL(38,0)", 0, "99999999999999999999999999999999999999", "99999999999999999999999999999999999999",
		"-99999999999999999999999999999999999999", "-99999999999999999999999999999999999999", "-1", "-1")
	add("MY-053", "DECIMAL(38,30)", 0, "-12345678.000000000000000000000000000001", "-12345678.000000000000000000000000000001")
	add("", "DECIMAL(38,38)", ma, "0.00000000000000000000000000000000000001", "0.00000000000000000000000000000000000001")
	add("", "DECIMAL(18,9)", 0, "-999999999.999999999", "-999999999.999999999", "0.000000001", "0.000000001")
	add("", "DECIMAL(19,9)", 0, "-1234567890.000000001", "-1234567890.000000001")
	add("", "DECIMAL(10,2)", 0, "12345678.90", "12345678.90", "-0.01", "-0.01")
	add("", "DECIMAL(20,3) UNSIGNED ZEROFILL", 0, "1.5", "1.500")
	add("", "DECIMAL(40,2) ZEROFILL", 0, "1.5", `"1.50"`, "0", `"0.00"`)
	add("MY-062", "FLOAT", 0, "16777217", "1.6777216e+07", "0.1", "0.1", "3.402823e38", "3.402823e+38", "-1.5", "-1.5")
	add("", "FLOAT(7,2)", 0, "1.239", "1.24")
	add("", "FLOAT(30)", 0, "0.1", "0.1")
	add("", "DOUBLE", 0, "0.1", "0.1", "-1.7976931348623157e308", "-1.7976931348623157e+308", "5e-324", "5e-324", "0", "0")
	add("", "DOUBLE(10,3)", 0, "1.2504", "1.25")
	add("MY-054", "DATE NOT NULL", 0, "'0000-00-00'", "MISFIT a zero date", "'1000-01-01'", "1000-01-01", "'9999-12-31'", "9999-12-31",
		"'1969-12-31'", "1969-12-31", "'2024-02-29'", "2024-02-29", "'2024-00-00'", "MISFIT a partial date", "'2024-05-00'", "MISFIT a partial date", "'0001-01-01'", "0001-01-01")
	add("MY-060", "DATETIME(3)", 0, "'2024-03-10 02:30:00.5'", "2024-03-10 02:30:00.500000", "'1000-01-01 00:00:00'", "1000-01-01 00:00:00.000000",
		"'9999-12-31 23:59:59.999'", "9999-12-31 23:59:59.999000", "'1969-12-31 23:59:59.5'", "1969-12-31 23:59:59.500000")
	add("MY-054", "DATETIME(6) NOT NULL", 0, "'0000-00-00'", "MISFIT a zero date", "'2024-01-02 03:04:05.000001'", "2024-01-02 03:04:05.000001",
		"'2024-01-00 10:00:00'", "MISFIT a partial date")
	add("", "DATETIME", 0, "'2024-03-10 02:30:00'", "2024-03-10 02:30:00.000000", "'2024-03-10'", "2024-03-10 00:00:00.000000")
	add("", "DATETIME(1)", 0, "'2024-03-10 02:30:00.9'", "2024-03-10 02:30:00.900000")
	add("MY-058", "TIMESTAMP(6) NULL", 0, "'2024-07-01 12:00:00.123456'", "2024-07-01 06:30:00.123456Z", "'0000-00-00'", "MISFIT a zero date",
		"'1970-01-01 05:30:01'", "1970-01-01 00:00:01.000000Z", "'2038-01-19 08:44:07.999999'", "2038-01-19 03:14:07.999999Z")
	add("", "TIMESTAMP NULL", 0, "'2024-07-01 12:00:00'", "2024-07-01 06:30:00.000000Z")
	add("", "TIMESTAMP(3) NULL", 0, "'2024-07-01 12:00:00.001'", "2024-07-01 06:30:00.001000Z")
	add("MY-056", "TIME", 0, "'-838:59:59'", "-3020399000000", "'838:59:59'", "3020399000000", "'00:00:00'", "0", "'-00:00:01'", "-1000000")
	add("MY-056", "TIME(6)", 0, "'-00:00:00.000001'", "-1", "'10:00:00'", "36000000000", "'-838:59:59'", "-3020399000000", "'-1:00:00.5'", "-3600500000")
	add("MY-056", "TIME(2)", 0, "'-00:00:00.01'", "-10000", "'00:00:00'", "0", "'-00:00:01.01'", "-1010000", "'23:59:59.99'", "86399990000")
	add("MY-056", "TIME(3)", 0, "'-00:00:00.001'", "-1000", "'-10:11:12.013'", "-36672013000")
	add("MY-056", "TIME(1)", 0, "'-00:00:00.1'", "-100000")
	add("MY-056", "TIME(4)", 0, "'-00:00:00.0001'", "-100")
	add("MY-056", "TIME(5)", 0, "'-00:00:02.00001'", "-2000010")
	add("MY-074", "CHAR(5)", 0, "'x  '", `"x"`, "''", `""`, "'  y'", `"  y"`, "'中文字é€'", `"中文字é€"`)
	add("", "CHAR(255)", 0, "REPEAT('中',255)", strconv.Quote(strings.Repeat("中", 255)), "'a'", `"a"`)
	add("", "CHAR(0)", 0, "''", `""`)
	add("", "VARCHAR(9)", 0, "'x  '", `"x  "`, "'é中😀'", `"é中😀"`, "''", `""`, "CONCAT('a',CHAR(0),'b')", `"a\x00b"`)
	add("", "VARCHAR(300)", 0, "REPEAT('😀',300)", strconv.Quote(strings.Repeat("😀", 300)))
	add("MY-068", "VARCHAR(9) CHARACTER SET latin1", 0, "'é€'", `"é€"`, "_latin1 x'818D8F909D'", `"\u0081\u008d\u008f\u0090\u009d"`)
	add("MY-068", "VARCHAR(9) CHARACTER SET gbk", 0, "'中文'", `"中文"`, "'a'", `"a"`)
	add("MY-068", "VARCHAR(9) CHARACTER SET utf16", 0, "'é中'", `"é中"`, "'😀x'", `"😀x"`)
	add("MY-068", "TEXT CHARACTER SET latin1", 0, "'é'", `"é"`, "'what?'", `"what?"`)
	add("", "CHAR(4) CHARACTER SET utf16", 0, "'a '", `"a"`, "'😀'", `"😀"`)
	add("", "CHAR(4) CHARACTER SET utf32", 0, "'a😀'", `"a😀"`)
	add("", "CHAR(4) CHARACTER SET ucs2", 0, "'aé'", `"aé"`)
	add("", "CHAR(4) CHARACTER SET utf16le", 0, "'aé😀'", `"aé😀"`)
	add("", "VARCHAR(9) CHARACTER SET utf8", 0, "'é中'", `"é中"`)
	add("", "VARCHAR(9) CHARACTER SET ascii", 0, "'abc'", `"abc"`)
	add("", "VARCHAR(9) CHARACTER SET sjis", 0, "'日本ｱ'", `"日本ｱ"`)
	add("", "VARCHAR(9) CHARACTER SET cp932", 0, "'日本①'", `"日本①"`)
	add("", "VARCHAR(9) CHARACTER SET ujis", 0, "'日本'", `"日本"`)
	add("", "VARCHAR(9) CHARACTER SET eucjpms", 0, "'日本①'", `"日本①"`)
	add("", "VARCHAR(9) CHARACTER SET euckr", 0, "'한국'", `"한국"`)
	add("", "VARCHAR(9) CHARACTER SET big5", 0, "'中文'", `"中文"`)
	add("", "VARCHAR(9) CHARACTER SET gb2312", 0, "'中文'", `"中文"`)
	add("", "VARCHAR(9) CHARACTER SET gb18030", my, "'中文😀é'", `"中文😀é"`)
	add("", "VARCHAR(9) CHARACTER SET cp1251", 0, "'Привет'", `"Привет"`)
	add("", "VARCHAR(9) CHARACTER SET koi8r", 0, "'Привет'", `"Привет"`)
	add("", "VARCHAR(9) CHARACTER SET latin2", 0, "'Żółw'", `"Żółw"`)
	add("", "VARCHAR(9) CHARACTER SET binary", 0, "x'00ff'", "00ff")
	add("", "CHAR(3) CHARACTER SET binary", 0, "x'ff'", "ff0000")
	add("", "TINYTEXT", 0, "REPEAT('a',255)", strconv.Quote(strings.Repeat("a", 255)))
	add("", "TEXT", 0, "'é'", `"é"`, "NULL", "NULL", "'true'", `"true"`)
	add("", "TEXT(100)", 0, "'é'", `"é"`)
	add("", "MEDIUMTEXT", 0, "REPEAT('é',40000)", strconv.Quote(strings.Repeat("é", 40000)))
	add("", "LONGTEXT", 0, "''", `""`)
	add("MY-073", "BINARY(4)", 0, "x'01020000'", "01020000", "x''", "00000000", "x'01'", "01000000", "x'20202020'", "20202020")
	add("MY-073", "BINARY(255)", 0, "x'01'", "01"+strings.Repeat("00", 254))
	add("MY-073", "VARBINARY(4)", 0, "x'01020000'", "01020000", "x''", "")
	add("", "TINYBLOB", 0, "x'00'", "00")
	add("", "BLOB", 0, "x'00ff20'", "00ff20", "''", "")
	add("", "MEDIUMBLOB", 0, "x'ff'", "ff")
	add("", "LONGBLOB", 0, "x'ff00'", "ff00")
	add("MY-072", "ENUM('a','b,c','it''s','')", 0, "'b,c'", `"b,c"`, "'it''s'", `"it's"`, "'nope'", `""`, "4", `""`, "NULL", "NULL")
	add("MY-069", "ENUM('é','ü') CHARACTER SET latin1", 0, "'ü'", `"ü"`, "'é'", `"é"`)
	add("", `ENUM('b\\s','q"t','x ')`, 0, `'b\\s'`, `"b\\s"`, `'q"t'`, `"q\"t"`, "'x'", `"x"`)
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("'l%d'", i))
	}
	add("", "ENUM("+strings.Join(many, ",")+")", 0, "'l299'", `"l299"`, "'l0'", `"l0"`)
	add("MY-072", "SET('a','b','it''s')", 0, "'a,it''s'", `"a,it's"`, "''", `""`, "7", `"a,b,it's"`)
	add("MY-069", "SET('é','ü') CHARACTER SET latin1", 0, "'ü,é'", `"é,ü"`)
	add("", "SET("+strings.Join(many[:64], ",")+")", 0, "'l63,l0'", `"l0,l63"`, "'l8'", `"l8"`)
	add("", "SET("+strings.Join(many[:17], ",")+")", 0, "'l16'", `"l16"`)
	add("MY-076", "GEOMETRY", 0, "ST_GeomFromText('POINT(10 20)')", "00000000010100000000000000000024400000000000003440", "NULL", "NULL")
	add("MY-076", "POINT NOT NULL SRID 4326", my, "ST_GeomFromText('POINT(10 20)',4326)", "E610000001010000000000000000003440"+"0000000000002440")
	add("MY-077", "VECTOR(3)", my, "TO_VECTOR('[1,2.5,-3]')", "[1 2.5 -3]", "TO_VECTOR('[1,2]')", "[1 2]")
	add("MY-077", "VECTOR(3)", ma, "VEC_FromText('[1,2.5,-3]')", "[1 2.5 -3]")
	all[len(all)-1].min = "11.8"
	add("", "UUID", ma, "'123e4567-e89b-12d3-a456-426655440000'", `"123e4567-e89b-12d3-a456-426655440000"`,
		"'00000000-0000-0000-0000-000000000000'", `"00000000-0000-0000-0000-000000000000"`,
		"'ffffffff-ffff-ffff-ffff-ffffffffffff'", `"ffffffff-ffff-ffff-ffff-ffffffffffff"`,
		"'01890a5d-ac96-774b-bcce-b302099a8057'", `"01890a5d-ac96-774b-bcce-b302099a8057"`,
		"'6ccd780c-baba-1026-9564-5b8c656024db'", `"6ccd780c-baba-1026-9564-5b8c656024db"`,
		"'6ccd780c-baba-4026-0064-5b8c656024db'", `"6ccd780c-baba-4026-0064-5b8c656024db"`,
		"'6ccd780c-baba-6026-9564-5b8c65602400'", `"6ccd780c-baba-6026-9564-5b8c65602400"`,
		"'11111111-2222-0333-8000-000000000000'", `"11111111-2222-0333-8000-000000000000"`)
	add("", "INET4", ma, "'192.168.0.1'", `"192.168.0.1"`, "'0.0.0.0'", `"0.0.0.0"`, "'10.0.0.0'", `"10.0.0.0"`)
	all[len(all)-1].min = "10.11"
	add("", "INET6", ma, "'::'", `"::"`, "'::1'", `"::1"`, "'1::'", `"1::"`, "'1:0:0:2::3'", `"1:0:0:2::3"`, "'::ffff:1.2.3.4'", `"::ffff:1.2.3.4"`,
		"'::1.2.3.4'", `"::1.2.3.4"`, "'1:0:2:0:3:0:4:0'", `"1::2:0:3:0:4:0"`, "'1:0:0:2:0:0:3:4'", `"1::2:0:0:3:4"`, "'::1:2:3'", `"::1:2:3"`,
		"'1:2:3:4:5:6:7:0'", `"1:2:3:4:5:6:7::"`, "'0:2:3:4:5:6:7:0'", `"::2:3:4:5:6:7:0"`, "'::ffff:0:0:1'", `"::ffff:0:0:1"`, "'abcd:ef01:2:3:4:5:6:7'", `"abcd:ef01:2:3:4:5:6:7"`)
	add("", "VARCHAR(100) COMPRESSED", ma, "REPEAT('é',50)", strconv.Quote(strings.Repeat("é", 50)), "'x'", `"x"`, "''", `""`)
	add("", "VARBINARY(1000) COMPRESSED", ma, "REPEAT('ab',500)", strings.Repeat("6162", 500), "x'00'", "00")
	add("", "TEXT COMPRESSED", ma, "REPEAT('é',5000)", strconv.Quote(strings.Repeat("é", 5000)), "'x'", `"x"`, "''", `""`)
	add("", "LONGBLOB COMPRESSED", ma, "REPEAT('a',300000)", strings.Repeat("61", 300000), "''", "")
	add("MY-064", "JSON", 0, "'null'", `"null"`, "NULL", "NULL", `'"x"'`, `"\"x\""`, "'9007199254740993'", `"9007199254740993"`)
	add("", "JSON", ma, `'{"b": 1.50,  "a":[]}'`, `"{\"b\": 1.50,  \"a\":[]}"`)
	for _, j := range jsonCases() {
		add("", "JSON", my, j, "=")
	}
	add("MY-078", "INT INVISIBLE", 0, "7", "7")
	gen := func(column string, pairs ...string) {
		add("", column, 0, pairs...)
		all[len(all)-1].generated = true
	}
	gen("INT GENERATED ALWAYS AS (id+10) STORED", "DEFAULT", "11", "DEFAULT", "12")
	gen("INT GENERATED ALWAYS AS (id+10) VIRTUAL", "DEFAULT", "11", "DEFAULT", "12")
	gen("VARCHAR(9) CHARACTER SET latin1 GENERATED ALWAYS AS (CONCAT('é',id)) VIRTUAL", "DEFAULT", `"é1"`)
	add("", "INT, KEY k(v), UNIQUE KEY u(v)", 0, "3", "3")
	add("", "BLOB, UNIQUE KEY u(v)", ma, "'abc'", "616263")
	add("", "INT, KEY k((v+1)), UNIQUE KEY u ((v*2))", my, "3", "3")
	for i := range all {
		all[i].table = fmt.Sprintf("v%03d", i)
	}
	return all
}

// jsonCases are documents whose text is the server's own.
func jsonCases() []string {
	deep := "1"
	for range 50 {
		deep = "[" + deep + "]"
	}
	var big []string
	for i := range 3000 {
		big = append(big, fmt.Sprintf(`"key%d": "a value that takes some room %d"`, i, i))
	}
	return []string{
		`JSON_ARRAY(1e0,1e14,1e15,1e16,1e17,1e100,1e-5,1e-14,1e-15,1e-16,-0e0,1.5e300,123456789012345678e0,0.1e0,1e22,100e0)`,
		`JSON_ARRAY(1234567890123456e0, 123456789012345.6e0, -1e-14, 5e-324, 1.7976931348623157e308, 0.00012345e0, -12.5e0, 9007199254740993e0)`,
		`JSON_ARRAY(3.00, 0.10, -0.00, 12345678901234567890123456789.5, -0.000001, 99999999999999999999999999999999999999999999999999999999999999999)`,
		`JSON_ARRAY(CAST('2024-01-02' AS DATE), CAST('2024-01-02 03:04:05.5' AS DATETIME(1)), CAST('-123:04:05.25' AS TIME(2)), TIMESTAMP'0001-01-01 00:00:00')`,
		`JSON_ARRAY(CAST('00:00:00' AS TIME), CAST('-00:00:00.000001' AS TIME(6)), CAST('838:59:59' AS TIME), CAST('09:08:07' AS TIME))`,
		`JSON_ARRAY(x'00ff', b'101', true, false, null, CAST(18446744073709551615 AS UNSIGNED), -1, 2147483648, -2147483649, 32768, -32769, 65535, 65536, 4294967295)`,
		`'{"b": 1, "a": 2, "aa": {}, "": [], "é": null, "c": "é<>&\\u2028😀"}'`,
		`'["\\u0000\\u0001\\u001f\\u007f\\b\\t\\n\\f\\r\\"\\\\\\/"]'`,
		`'{"k\\n\\"": 1}'`,
		`'true'`, `'[]'`, `'{}'`, `'"a string"'`, `'1.0'`, `'1e2'`, `'-0.0'`, `'123456789012345678901234567890'`,
		"'" + deep + "'",
		"'{" + strings.Join(big, ",") + "}'",
		`CAST(ST_AsGeoJSON(ST_GeomFromText('POINT(1 2)')) AS JSON)`,
		`JSON_ARRAY(CAST(1.5 AS FLOAT), CAST(0.1 AS FLOAT))`,
		`JSON_OBJECT('x', JSON_ARRAY(1, JSON_OBJECT('y', REPEAT('z', 70000))), 'w', REPEAT('q', 200))`,
	}
}

// showValue is a value for comparison and for people.
func showValue(col *source.Vector, i int) string {
	if col.Null(i) {
		return "NULL"
	}
	switch t := col.Type; t.Kind {
	case source.Bool:
		return strconv.FormatBool(col.Bools[i] != 0)
	case source.Int:
		return strconv.Itoa(int(col.Ints[i]))
	case source.Long, source.Time:
		return strconv.FormatInt(col.Longs[i], 10)
	case source.Float:
		return strconv.FormatFloat(float64(col.Floats[i]), 'g', -1, 32)
	case source.Double:
		return strconv.FormatFloat(col.Doubles[i], 'g', -1, 64)
	case source.Decimal:
		x := new(big.Int)
		if t.Precision > 18 {
			w := col.Wides[i]
			x.Lsh(big.NewInt(w.Hi), 64)
			x.Add(x, new(big.Int).SetUint64(w.Lo))
		} else {
			x.SetInt64(col.Longs[i])
		}
		s := new(big.Int).Abs(x).String()
		for len(s) <= t.Scale {
			s = "0" + s
		}
		if t.Scale > 0 {
			s = s[:len(s)-t.Scale] + "." + s[len(s)-t.Scale:]
		}
		if x.Sign() < 0 {
			s = "-" + s
		}
		return s
	case source.String:
		return strconv.Quote(string(col.At(i)))
	case source.Binary:
		return hex.EncodeToString(col.At(i))
	case source.Date:
		return time.Unix(int64(col.Ints[i])*86400, 0).UTC().Format("2006-01-02")
	case source.Timestamp:
		return time.UnixMicro(col.Longs[i]).UTC().Format("2006-01-02 15:04:05.000000")
	case source.TimestampTZ:
		return time.UnixMicro(col.Longs[i]).UTC().Format("2006-01-02 15:04:05.000000Z")
	case source.FloatList:
		var f []float32
		for b := col.At(i); len(b) > 0; b = b[4:] {
			f = append(f, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
		return fmt.Sprint(f)
	}
	return "?"
}

// valueLog reads the binary log of a test server from where it stands.
type valueLog struct {
	t      *testing.T
	syncer *replication.BinlogSyncer
	stream *replication.BinlogStreamer
	h      *history
	maps   map[uint64]*tableMap
}

func (s testServer) log(t *testing.T, c *client.Conn, h *history) *valueLog {
	t.Helper()
	q := "SHOW BINARY LOG STATUS"
	cfg := replication.BinlogSyncerConfig{ServerID: uint32(90000 + s.port), Flavor: gomysql.MySQLFlavor, Host: "127.0.0.1", Port: uint16(s.port),
		User: "lakesync", Password: "lakesync", RawModeEnabled: true, HeartbeatPeriod: time.Second, Logger: slog.New(slog.DiscardHandler)}
	if s.flavor == FlavorMariaDB {
		q, cfg.Flavor = "SHOW BINLOG STATUS", gomysql.MariaDBFlavor
	}
	r, err := c.Execute(q)
	if err != nil {
		t.Fatal(err)
	}
	file, _ := r.GetString(0, 0)
	pos, _ := r.GetUint(0, 1)
	l := &valueLog{t: t, syncer: replication.NewBinlogSyncer(cfg), h: h, maps: map[uint64]*tableMap{}}
	t.Cleanup(l.syncer.Close)
	if l.stream, err = l.syncer.StartSync(gomysql.Position{Name: file, Pos: uint32(pos)}); err != nil {
		t.Fatal(err)
	}
	return l
}

func stripChecksum(raw []byte) []byte {
	if n := len(raw) - 4; crc32.ChecksumIEEE(raw[:n]) == binary.LittleEndian.Uint32(raw[n:]) {
		raw = raw[:n]
	}
	return raw
}

// valueRows is one rows event.
type valueRows struct {
	table              string
	op                 source.Op
	present1, present2 []byte
	rows               []byte
	tm                 *tableMap
}

// next returns the next rows event.
func (l *valueLog) next() valueRows {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		e, err := l.stream.GetEvent(ctx)
		if err != nil {
			l.t.Fatal(err)
		}
		body := stripChecksum(e.RawData)[replication.EventHeaderSize:]
		switch typ := e.Header.EventType; typ {
		case replication.TABLE_MAP_EVENT:
			tm, err := parseTableMap(body)
			if err != nil {
				l.t.Fatal(err)
			}
			l.maps[tm.ID] = tm
		case replication.WRITE_ROWS_EVENTv1, replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2,
			replication.DELETE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv2:
			id := littleEndian(body, 6)
			body = body[8:]
			if typ >= replication.WRITE_ROWS_EVENTv2 {
				body = body[littleEndian(body, 2):]
			}
			n, size, _ := packedLength(body)
			body = body[size:]
			r := valueRows{op: source.Insert, tm: l.maps[id]}
			bitmap := int(n+7) / 8
			r.present1, body = body[:bitmap], body[bitmap:]
			switch typ {
			case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2:
				r.op = source.Update
				r.present2, body = body[:bitmap], body[bitmap:]
			case replication.DELETE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv2:
				r.op = source.Delete
			}
			r.rows, r.table = body, r.tm.Name
			return r
		}
	}
}

// decodeAll decodes a rows event whole.
func (r valueRows) decodeAll(t *testing.T, h *history) (*source.Batch, error) {
	t.Helper()
	d, err := h.decoderFor(r.tm)
	if err != nil || d == nil {
		return nil, err
	}
	var b source.Batch
	d.reset(&b, r.op)
	n, _, err := d.decode(r.op, r.present1, r.present2, r.rows, &b, 1<<30)
	if err == nil && n != len(r.rows) {
		t.Errorf("%s: decode took %d of %d bytes", r.table, n, len(r.rows))
	}
	return &b, err
}

// copyValues reads a table as the initial snapshot does.
func copyValues(t *testing.T, c *client.Conn, def *tableDef) *source.Batch {
	t.Helper()
	d, err := newCopyDecoder(def)
	if err != nil {
		t.Fatal(err)
	}
	st, err := c.Prepare("SELECT " + d.selectList() + " FROM " + quoteName(def.Schema) + "." + quoteName(def.Name) + " ORDER BY 1")
	if err != nil {
		t.Fatalf("%s: %v", def.fullName(), err)
	}
	defer st.Close()
	r, err := st.Execute()
	if err != nil {
		t.Fatalf("%s: %v", def.fullName(), err)
	}
	var types []byte
	for _, f := range r.Fields {
		types = append(types, f.Type)
	}
	if err := d.check(types); err != nil {
		t.Fatal(err)
	}
	var b source.Batch
	d.reset(&b)
	for _, row := range r.RowDatas {
		if err := d.decode(row, &b); err != nil {
			t.Fatal(err)
		}
	}
	return &b
}

func showTable(t *testing.T, c *client.Conn, schema, table string) string {
	t.Helper()
	r, err := c.Execute("SHOW CREATE TABLE " + quoteName(schema) + "." + quoteName(table))
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.GetString(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func serverVersion(t *testing.T, c *client.Conn) string {
	t.Helper()
	r, err := c.Execute("SELECT VERSION()")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := r.GetString(0, 0)
	return text
}

func matchAll(string, string) bool { return true }

// TestValuesAreEqualFromCopyAndLog compares each value from the copy and from the
// log's images of an insert, an update and a delete, byte for byte, and with what
// it must be.
func TestValuesAreEqualFromCopyAndLog(t *testing.T) {
	for _, s := range testServers {
		t.Run(s.name, func(t *testing.T) {
			c := s.start(t)
			setup := s.connect(t)
			mustExec(t, setup, "SET NAMES utf8mb4", "SET sql_mode=''", "SET time_zone='+05:30'", "DROP DATABASE IF EXISTS vals",
				"CREATE DATABASE vals CHARACTER SET utf8mb4", "USE vals")
			mustExec(t, c, "SET NAMES utf8mb4", "SET sql_mode='PAD_CHAR_TO_FULL_LENGTH'", "SET time_zone='+00:00'", "USE vals")
			h := newHistory(s.flavor, func(ns, _ string) bool { return ns == "vals" })
			h.setServer(serverFacts{Version: serverVersion(t, c), Collation: "utf8mb4_general_ci", ExplicitTimestamps: true})
			var cases []valueCase
			for _, vc := range valueCases() {
				if vc.flavor != 0 && vc.flavor != s.flavor || vc.min != "" && strings.TrimPrefix(s.name, "MariaDB ") < vc.min ||
					vc.generated && s.name == "MariaDB 11.8" {
					continue
				}
				cases = append(cases, vc)
				mustExec(t, setup, fmt.Sprintf("CREATE TABLE %s (id INT PRIMARY KEY, v %s)", vc.table, vc.column))
				mustExec(t, c, "SET sql_mode=''")
				if err := h.define("vals", showTable(t, c, "vals", vc.table)); err != nil {
					t.Fatal(err)
				}
				mustExec(t, c, "SET sql_mode='PAD_CHAR_TO_FULL_LENGTH'")
			}
			l := s.log(t, setup, h)
			for _, vc := range cases {
				for i, x := range vc.values {
					mustExec(t, setup, fmt.Sprintf("INSERT INTO %s (id, v) VALUES (%d, %s)", vc.table, i+1, x))
				}
			}
			for _, vc := range cases {
				def := h.table("vals", vc.table)
				copied := copyValues(t, c, def)
				checkCopied(t, vc, copied)
				for i := range vc.values {
					r := l.next()
					if r.table != vc.table {
						t.Fatalf("rows of %s, want %s", r.table, vc.table)
					}
					b, err := r.decodeAll(t, h)
					if err != nil {
						t.Errorf("%s %s: %v", vc.id, vc.column, err)
						continue
					}
					sameValue(t, vc, &copied.After[1], i, &b.After[1], 0)
				}
			}
			// Images of updates and deletes. A partition of the key changes, so that
			// both images are there.
			for _, vc := range cases {
				mustExec(t, setup, fmt.Sprintf("UPDATE %s SET id = id + 1000 ORDER BY id", vc.table), "DELETE FROM "+vc.table+" ORDER BY id")
			}
			for _, vc := range cases {
				var before, after, deleted int
				r := valueRows{}
				for deleted < len(vc.values) {
					r = l.next()
					b, err := r.decodeAll(t, h)
					if err != nil {
						t.Errorf("%s %s: %v", vc.id, vc.column, err)
						break
					}
					for i := range b.Rows {
						if r.op == source.Update {
							if got := b.Before[0].Ints[i]; int(got) != before+1 || int(b.After[0].Ints[i]) != before+1001 {
								t.Errorf("%s: key %d", vc.column, got)
							}
							before++
							after++
						} else {
							deleted++
						}
					}
				}
				if before != len(vc.values) || after != before {
					t.Errorf("%s: %d before images", vc.column, before)
				}
			}
		})
	}
}

func checkCopied(t *testing.T, vc valueCase, b *source.Batch) {
	t.Helper()
	if b.Rows != len(vc.values) {
		t.Fatalf("%s: %d rows in the copy, want %d", vc.column, b.Rows, len(vc.values))
	}
	misfits := 0
	for i, want := range vc.want {
		got := showValue(&b.After[1], i)
		if strings.HasPrefix(want, "MISFIT ") {
			misfits++
			want = "NULL"
		}
		if want != "=" && got != want && !strings.EqualFold(got, want) {
			t.Errorf("%s %s: %s is %s, want %s", vc.id, vc.column, vc.values[i], shorten(got, 300), shorten(want, 300))
		}
	}
	if b.After[1].Misfits != misfits {
		t.Errorf("%s %s: %d misfits, want %d", vc.id, vc.column, b.After[1].Misfits, misfits)
	}
}

func sameValue(t *testing.T, vc valueCase, a *source.Vector, i int, b *source.Vector, j int) {
	t.Helper()
	if x, y := showValue(a, i), showValue(b, j); x != y {
		k := 0
		for k < len(x) && k < len(y) && x[k] == y[k] {
			k++
		}
		k = max(k-20, 0)
		t.Errorf("%s %s: %s is %s in the copy, %s in the log", vc.id, shorten(vc.column, 60), shorten(vc.values[i], 100), shorten(x[min(k, len(x)):], 200), shorten(y[min(k, len(y)):], 200))
	}
}

// TestFullMetadataOfManyColumns has all types beside each other: the lists of the
// full metadata have entries for some types only, and one too many or too few
// shifts what is said of the columns behind (MY-050).
func TestFullMetadataOfManyColumns(t *testing.T) {
	for _, s := range testServers {
		t.Run(s.name, func(t *testing.T) {
			c := s.start(t)
			mustExec(t, c, "SET NAMES utf8mb4", "SET sql_mode=''", "SET time_zone='+00:00'", "DROP DATABASE IF EXISTS vals", "CREATE DATABASE vals CHARACTER SET utf8mb4", "USE vals")
			h := newHistory(s.flavor, matchAll)
			h.setServer(serverFacts{Version: serverVersion(t, c), Collation: "utf8mb4_general_ci", ExplicitTimestamps: true})
			var columns, names, values []string
			for i, vc := range valueCases() {
				if vc.flavor != 0 && vc.flavor != s.flavor || vc.min != "" && strings.TrimPrefix(s.name, "MariaDB ") < vc.min ||
					vc.generated || strings.Contains(vc.column, "KEY") {
					continue
				}
				name := fmt.Sprintf("c%d", i)
				columns, names, values = append(columns, name+" "+vc.column), append(names, name), append(values, vc.values[0])
			}
			// The order changes, so that each type stands before and behind others.
			for _, step := range []int{1, 7, 11, 23} {
				table := fmt.Sprintf("wide%d", step)
				var shuffled, n, x []string
				for i := range columns {
					j := i * step % len(columns)
					if len(columns)%step == 0 && step > 1 {
						j = len(columns) - 1 - i
					}
					shuffled, n, x = append(shuffled, columns[j]), append(n, names[j]), append(x, values[j])
				}
				mustExec(t, c, "CREATE TABLE "+table+" (id INT PRIMARY KEY, "+strings.Join(shuffled, ", ")+") ROW_FORMAT=DYNAMIC")
				if err := h.define("vals", showTable(t, c, "vals", table)); err != nil {
					t.Fatal(err)
				}
				l := s.log(t, c, h)
				mustExec(t, c, "INSERT INTO "+table+" (id, "+strings.Join(n, ", ")+") VALUES (1, "+strings.Join(x, ", ")+")")
				b, err := l.next().decodeAll(t, h)
				if err != nil {
					t.Fatal(err)
				}
				copied := copyValues(t, c, h.table("vals", table))
				for i := range b.After {
					if got, want := showValue(&b.After[i], 0), showValue(&copied.After[i], 0); got != want {
						t.Errorf("%s: %s in the log, %s in the copy", b.Relation.Columns[i].Native, shorten(got, 100), shorten(want, 100))
					}
				}
			}
		})
	}
}
