package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A typeCase is one column type and values of it, as SQL literals, at the edges
// of what the server takes. want, where given, are the canonical values by
// reasoning, so that a mistake that harness and product share is seen too.
type typeCase struct {
	name, typ string
	only      string
	values    []string
	want      []string
}

var typeCases = []typeCase{
	{name: "tinyint1", typ: "TINYINT(1)", values: []string{"2", "-1", "0", "127", "-128"}, want: []string{"2", "-1", "0", "127", "-128"}}, // MY-052
	{name: "utiny", typ: "TINYINT UNSIGNED", values: []string{"0", "255", "128"}, want: []string{"0", "255", "128"}},
	{name: "small", typ: "SMALLINT", values: []string{"-32768", "32767"}},
	{name: "usmall", typ: "SMALLINT UNSIGNED", values: []string{"65535", "32768"}, want: []string{"65535", "32768"}},
	{name: "medium", typ: "MEDIUMINT", values: []string{"-8388608", "8388607", "-1"}, want: []string{"-8388608", "8388607", "-1"}},
	{name: "umedium", typ: "MEDIUMINT UNSIGNED", values: []string{"16777215", "8388608"}, want: []string{"16777215", "8388608"}},
	{name: "int", typ: "INT", values: []string{"-2147483648", "2147483647", "0"}},
	{name: "uint", typ: "INT UNSIGNED", values: []string{"4294967295", "2147483648"}, want: []string{"4294967295", "2147483648"}},
	{name: "zerofill", typ: "INT(5) ZEROFILL", values: []string{"7", "123456"}, want: []string{"7", "123456"}},
	{name: "bigint", typ: "BIGINT", values: []string{"-9223372036854775808", "9223372036854775807"}},
	{name: "ubigint", typ: "BIGINT UNSIGNED", values: []string{"18446744073709551615", "9223372036854775808", "0"}, // MY-050
		want: []string{`"18446744073709551615"`, `"9223372036854775808"`, `"0"`}},
	{name: "year", typ: "YEAR", values: []string{"0", "1901", "2155", "'0000'"}, want: []string{"0", "1901", "2155", "0"}}, // MY-057
	{name: "bit1", typ: "BIT(1)", values: []string{"b'0'", "b'1'"}, want: []string{"false", "true"}},
	{name: "bit9", typ: "BIT(9)", values: []string{"b'101010101'", "b'111111111'", "0"}, want: []string{"341", "511", "0"}},
	{name: "bit63", typ: "BIT(63)", values: []string{"9223372036854775807"}, want: []string{"9223372036854775807"}},
	{name: "bit64", typ: "BIT(64)", values: []string{"18446744073709551615", "1"}, want: []string{`"18446744073709551615"`, `"1"`}},
	{name: "dec92", typ: "DECIMAL(9,2)", values: []string{"-9999999.99", "0", "0.01", "-0.01"}, want: []string{`"-9999999.99"`, `"0.00"`, `"0.01"`, `"-0.01"`}},
	{name: "dec184", typ: "DECIMAL(18,4)", values: []string{"99999999999999.9999", "-99999999999999.9999", "1"}},
	{name: "dec190", typ: "DECIMAL(19,0)", values: []string{"-9999999999999999999", "9999999999999999999"}},
	{name: "dec55", typ: "DECIMAL(5,5)", values: []string{"-0.00001", "0.99999"}, want: []string{`"-0.00001"`, `"0.99999"`}}, // MY-053
	{name: "dec380", typ: "DECIMAL(38,0)", values: []string{"99999999999999999999999999999999999999", "-1", "0"}},
	{name: "dec3010", typ: "DECIMAL(30,10)", values: []string{"12345678901234567890.1234567890", "-12345678901234567890.1234567890"},
		want: []string{`"12345678901234567890.1234567890"`, `"-12345678901234567890.1234567890"`}},
	{name: "dec6530", typ: "DECIMAL(65,30)", values: []string{"-12345678901234567890123456789012345.000000000000000000000000000001", "0"},
		want: []string{`"-12345678901234567890123456789012345.000000000000000000000000000001"`, `"0.000000000000000000000000000000"`}},
	{name: "float", typ: "FLOAT", values: []string{"16777217", "0.1", "3.402823e38", "-1.5", "1e-40", "0", "123456789"}, // MY-062
		want: []string{"16777216.0", "0.1", "3.402823e+38", "-1.5", "1e-40", "0.0", "123456790.0"}},
	{name: "double", typ: "DOUBLE", values: []string{"1e100", "0.1", "-2.2250738585072014e-308", "1.7976931348623157e308", "123456789.123456789", "1e15", "1e16"},
		want: []string{"1e+100", "0.1", "-2.2250738585072014e-308", "1.7976931348623157e+308", "123456789.12345679", "1000000000000000.0", "1e+16"}},
	{name: "date", typ: "DATE", values: []string{"'1000-01-01'", "'9999-12-31'", "'1969-12-31'", "'2024-02-29'", "'0000-00-00'", "'2024-00-00'", "'2024-05-00'"}, // MY-054
		want: []string{`"1000-01-01"`, `"9999-12-31"`, `"1969-12-31"`, `"2024-02-29"`, "null", "null", "null"}},
	{name: "datetime", typ: "DATETIME", values: []string{"'1815-06-18 11:30:00'", "'9999-12-31 23:59:59'", "'0000-00-00 00:00:00'"},
		want: []string{`"1815-06-18T11:30:00.000000"`, `"9999-12-31T23:59:59.000000"`, "null"}},
	{name: "datetime3", typ: "DATETIME(3)", values: []string{"'2024-03-10 02:30:00.5'", "'1000-01-01'", "'1969-12-31 23:59:59.5'"}, // MY-060, MY-061
		want: []string{`"2024-03-10T02:30:00.500000"`, `"1000-01-01T00:00:00.000000"`, `"1969-12-31T23:59:59.500000"`}},
	{name: "datetime6", typ: "DATETIME(6)", values: []string{"'2024-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'", "'2024-00-01 01:02:03.4'"}},
	{name: "ts", typ: "TIMESTAMP NULL", values: []string{"'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00 00:00:00'"},
		want: []string{`"1970-01-01T00:00:01.000000Z"`, `"2038-01-19T03:14:07.000000Z"`, "null"}},
	{name: "ts6", typ: "TIMESTAMP(6) NULL", values: []string{"'2024-07-01 12:00:00.123456'", "'2024-10-27 01:30:00.000001'"}, // MY-058
		want: []string{`"2024-07-01T12:00:00.123456Z"`, `"2024-10-27T01:30:00.000001Z"`}},
	{name: "time0", typ: "TIME", values: []string{"'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"}, // MY-056
		want: []string{"-3020399000000", "3020399000000", "0", "-1000000"}},
	{name: "time2", typ: "TIME(2)", values: []string{"'-00:00:00.01'", "'10:00:00'"}, want: []string{"-10000", "36000000000"}},
	{name: "time6", typ: "TIME(6)", values: []string{"'-00:00:00.000001'", "'12:34:56.789'", "'-838:59:59'"}, want: []string{"-1", "45296789000", "-3020399000000"}},
	{name: "char5", typ: "CHAR(5)", values: []string{"'x  '", "''", "'ééééé'", "' y'"}, want: []string{`"x"`, `""`, `"ééééé"`, `" y"`}}, // MY-074
	{name: "varchar", typ: "VARCHAR(300)", values: []string{"'x  '", "REPEAT('é',300)", "'😀'", "'\\0\\'\"\\\\\\n'"}},
	{name: "latin1", typ: "VARCHAR(300) CHARACTER SET latin1", values: []string{"'é€'", "CONVERT(x'80818D8F909DFF' USING latin1)", "REPEAT('ü',300)"}}, // MY-068
	{name: "cp1250", typ: "VARCHAR(20) CHARACTER SET cp1250", values: []string{"'čšž'"}},
	{name: "latin2", typ: "VARCHAR(20) CHARACTER SET latin2", values: []string{"'čšž'"}},
	{name: "gbk", typ: "VARCHAR(9) CHARACTER SET gbk", values: []string{"'中文'"}, want: []string{`"中文"`}},
	{name: "sjis", typ: "VARCHAR(9) CHARACTER SET sjis", values: []string{"'日本'"}, want: []string{`"日本"`}},
	{name: "utf16", typ: "VARCHAR(9) CHARACTER SET utf16", values: []string{"'é中😀'"}, want: []string{`"é中😀"`}},
	{name: "ucs2", typ: "VARCHAR(9) CHARACTER SET ucs2", values: []string{"'é中'"}},
	{name: "utf8mb3", typ: "VARCHAR(9) CHARACTER SET utf8mb3", values: []string{"'é中'"}},
	{name: "ascii", typ: "CHAR(9) CHARACTER SET ascii", values: []string{"'abc'"}},
	{name: "textlatin", typ: "TEXT CHARACTER SET latin1", values: []string{"'é'", "''"}},
	{name: "tinytext", typ: "TINYTEXT", values: []string{"'true'", "'null'", "'0'"}, want: []string{`"true"`, `"null"`, `"0"`}}, // MY-066
	{name: "longtext", typ: "LONGTEXT", values: []string{"REPEAT('0123456789é',20000)"}},
	{name: "binary4", typ: "BINARY(4)", values: []string{"x'0102'", "x'00000000'", "x'ff'", "''"}, want: []string{`"01020000"`, `"00000000"`, `"ff000000"`, `"00000000"`}}, // MY-073
	{name: "varbinary", typ: "VARBINARY(300)", values: []string{"x'01020000'", "x'DEADBEEF'", "''", "REPEAT(x'00',300)"}},
	{name: "blob", typ: "BLOB", values: []string{"x'00FF80C3'", "''"}, want: []string{`"00ff80c3"`, `""`}},
	{name: "mediumblob", typ: "MEDIUMBLOB", values: []string{"REPEAT(x'0001ff',30000)"}},
	{name: "enum", typ: "ENUM('a','b,c','it''s','é')", values: []string{"'b,c'", "'it''s'", "'é'", "1"}, want: []string{`"b,c"`, `"it's"`, `"é"`, `"a"`}}, // MY-072
	{name: "enumlatin", typ: "ENUM('é','ü') CHARACTER SET latin1", values: []string{"'ü'"}, want: []string{`"ü"`}},                                        // MY-069
	{name: "set", typ: "SET('a','b','c''d')", values: []string{"'a,b'", "''", "'c''d,a'"}, want: []string{`"a,b"`, `""`, `"a,c'd"`}},
	{name: "json", typ: "JSON", values: []string{"'null'", `'"x"'`, "'9007199254740993'", `'{"bb":1,"a":[1.0,1e100,-0.5,true,null,"<&>\\\\"],"é":{"x":{}}}'`, "'[]'", `'{"zz": 99, "a": 77}'`}}, // MY-064
	{name: "jsonodd", typ: "JSON", only: "mysql", values: []string{
		"JSON_ARRAY(CAST('2024-01-02' AS DATE), CAST('2024-01-02 03:04:05.6' AS DATETIME(6)), CAST('-10:11:12' AS TIME))",
		"JSON_ARRAY(CAST(1.50 AS DECIMAL(10,4)), CAST(18446744073709551615 AS UNSIGNED), -1, 1e-10, 1.7976931348623157e308)",
		"JSON_OBJECT('b', x'00ff10', 's', b'101', 'q', '\\u2028\\u0001\"')",
		"CONCAT('[', REPEAT('12345,', 20000), '\"end\"]')"}},
	{name: "point", typ: "POINT", values: []string{"ST_GeomFromText('POINT(10 20)')"}},
	{name: "geom4326", typ: "GEOMETRY SRID 4326", only: "mysql", values: []string{"ST_GeomFromText('POINT(10 20)',4326)"}, // MY-076
		want: []string{`"e6100000010100000000000000000034400000000000002440"`}},
	{name: "vector", typ: "VECTOR(3)", only: "mysql", values: []string{"TO_VECTOR('[1,2.5,-3]')"}, want: []string{"[1.0,2.5,-3.0]"}}, // MY-077
	{name: "uuid", typ: "UUID", only: "mariadb", values: []string{"'123E4567-e89b-12d3-a456-426655440000'"}, want: []string{`"123e4567-e89b-12d3-a456-426655440000"`}},
	{name: "inet6", typ: "INET6", only: "mariadb", values: []string{"'2001:db8::ff00:42:8329'", "'::ffff:1.2.3.4'"}},
	{name: "inet4", typ: "INET4", only: "mariadb", values: []string{"'192.0.2.1'"}, want: []string{`"192.0.2.1"`}},
}

// TestValuesAreEqualFromCopyAndLog writes each case's values once before the copy
// and once after it, into relations of one shape, with server, session and
// daemon in different time zones.
func TestValuesAreEqualFromCopyAndLog(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "vals")
		s.Exec(t, "SET GLOBAL time_zone='+05:30'")
		t.Cleanup(func() { s.Exec(t, "SET GLOBAL time_zone='SYSTEM'") })
		var cases []typeCase
		for _, c := range typeCases {
			if c.only == "" || c.only == s.Source {
				cases = append(cases, c)
			}
		}
		fill := func(prefix string) {
			for _, c := range cases {
				for i, v := range c.values {
					s.Exec(t, f("INSERT INTO vals.%s_%s VALUES(%d,%s)", prefix, c.name, i, v))
				}
				s.Exec(t, f("INSERT INTO vals.%s_%s VALUES(100,NULL)", prefix, c.name))
			}
		}
		for _, c := range cases {
			for _, prefix := range []string{"copied", "logged"} {
				s.Exec(t, f("CREATE TABLE vals.%s_%s(id INT PRIMARY KEY, v %s) CHARACTER SET utf8mb4", prefix, c.name, c.typ))
			}
		}
		fill("copied")
		p := harness.NewPipeline(t, s, "vals", "vals.*")
		p.Env = []string{"TZ=America/New_York"}
		p.Run()
		p.Wait(waitLimit)
		fill("logged")
		// An update of every row, so that before images are decoded too.
		for _, c := range cases {
			s.Exec(t, f("UPDATE vals.logged_%s SET id=id+1000", c.name), f("UPDATE vals.logged_%s SET id=id-1000", c.name))
		}
		p.Wait(waitLimit)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				copied := s.Rows(t, db, "copied_"+c.name)
				logged := s.Rows(t, db, "logged_"+c.name)
				if !slices.Equal(copied, logged) {
					t.Fatalf("the source itself has other rows: %s", harness.Diff(copied, logged))
				}
				j := judge(t)
				if c.name == "vector" || strings.HasPrefix(c.name, "dec650") {
					j = java(t)
				}
				j.EqualLines(t, p.Table(db, "copied_"+c.name), copied)
				j.EqualLines(t, p.Table(db, "logged_"+c.name), copied)
				if c.want == nil {
					return
				}
				for i, w := range c.want {
					line := f(`{"id":%d,"v":%s}`, i, w)
					if !slices.Contains(copied, line) {
						t.Errorf("the source's row %d is not %s", i, line)
					}
				}
			})
		}
		p.Stop()
	})
}
