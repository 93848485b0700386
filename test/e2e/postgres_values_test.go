package e2e

import (
	"slices"
	"testing"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// pgTypeCases are to PostgreSQL what typeCases are to the others.
var pgTypeCases = []typeCase{
	{name: "bool", typ: "boolean", values: []string{"true", "false"}, want: []string{"true", "false"}},
	{name: "int2", typ: "smallint", values: []string{"-32768", "32767"}, want: []string{"-32768", "32767"}},
	{name: "int4", typ: "integer", values: []string{"-2147483648", "2147483647"}},
	{name: "int8", typ: "bigint", values: []string{"-9223372036854775808", "9223372036854775807"}},
	{name: "oid", typ: "oid", values: []string{"4294967295", "0"}, want: []string{"4294967295", "0"}},
	{name: "xid8", typ: "xid8", values: []string{"'18446744073709551615'"}, want: []string{`"18446744073709551615"`}},
	{name: "float4", typ: "real", values: []string{"16777217", "0.1", "3.4028235e38", "1e-45", "'-0'", "'NaN'", "'-Infinity'"},
		want: []string{"16777216.0", "0.1", "3.4028235e+38", "1e-45", "-0.0", `"NaN"`, `"-Infinity"`}},
	{name: "float8", typ: "double precision", values: []string{"1e100", "0.1", "5e-324", "1.7976931348623157e308", "123456789.123456789", "1e15", "1e16", "'-0'", "'NaN'", "'Infinity'"},
		want: []string{"1e+100", "0.1", "5e-324", "1.7976931348623157e+308", "123456789.12345679", "1000000000000000.0", "1e+16", "-0.0", `"NaN"`, `"Infinity"`}},
	{name: "num52", typ: "numeric(5,2)", values: []string{"999.99", "-0.005", "0", "'NaN'"}, want: []string{`"999.99"`, `"-0.01"`, `"0.00"`, "null"}},
	{name: "num380", typ: "numeric(38,0)", values: []string{"99999999999999999999999999999999999999", "-1"}, want: []string{`"99999999999999999999999999999999999999"`, `"-1"`}},
	{name: "num3838", typ: "numeric(38,38)", values: []string{"0.12345678901234567890123456789012345678", "-1e-38"}},
	{name: "num3010", typ: "numeric(30,10)", values: []string{"12345678901234567890.1234567890", "-12345678901234567890.1234567890"}},
	{name: "num4", typ: "numeric(2,4)", values: []string{"0.0099", "-0.0099"}, want: []string{`"0.0099"`, `"-0.0099"`}},
	{name: "numneg", typ: "numeric(3,-2)", values: []string{"12345", "-99949"}, want: []string{`"12300"`, `"-99900"`}},
	{name: "num60", typ: "numeric(60,5)", values: []string{"1234567890123456789012345678901234567890.12345", "-1"}},
	{name: "num", typ: "numeric", values: []string{"1e50", "-0.00000000000000000000000000000000000000000001", "1.500", "'NaN'", "'Infinity'", "'-Infinity'"}},
	{name: "money", typ: "money", values: []string{"'1234567.89'", "(-0.01)::numeric::money"}, want: []string{`"1234567.89"`, `"-0.01"`}},
	{name: "bytea", typ: "bytea", values: []string{`'\x00ff80c3'`, `'\x'`, `'\\\000'`, "decode(repeat('00ff',20000),'hex')"}, want: []string{`"00ff80c3"`, `""`, `"5c00"`}},
	{name: "date", typ: "date", values: []string{"'0001-01-01'", "'9999-12-31'", "'1969-12-31'", "'2024-02-29'", "'0044-03-15 BC'", "'0001-12-31 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'"},
		want: []string{`"0001-01-01"`, `"9999-12-31"`, `"1969-12-31"`, `"2024-02-29"`, `"-0043-03-15"`, `"0000-12-31"`, `"+5874897-12-31"`, "null", "null"}},
	{name: "time", typ: "time", values: []string{"'00:00:00'", "'24:00:00'", "'23:59:59.999999'"}, want: []string{"0", "86400000000", "86399999999"}},
	{name: "time0", typ: "time(0)", values: []string{"'23:59:59.6'"}, want: []string{"86400000000"}},
	{name: "ts", typ: "timestamp", values: []string{"'2024-03-10 02:30:00.5'", "'1969-12-31 23:59:59.999999'", "'0001-01-01'", "'0044-03-15 12:00 BC'", "'9999-12-31 23:59:59.999999'", "'10000-01-01'", "'infinity'", "'-infinity'"},
		want: []string{`"2024-03-10T02:30:00.500000"`, `"1969-12-31T23:59:59.999999"`, `"0001-01-01T00:00:00.000000"`, `"-0043-03-15T12:00:00.000000"`, `"9999-12-31T23:59:59.999999"`, `"+10000-01-01T00:00:00.000000"`, "null", "null"}},
	{name: "ts3", typ: "timestamp(3)", values: []string{"'2024-01-01 00:00:00.9996'"}, want: []string{`"2024-01-01T00:00:01.000000"`}},
	{name: "tstz", typ: "timestamptz", values: []string{"'2024-07-01 12:00:00.123456+05:30'", "'1883-11-18 12:03:57-07:52:58'", "'2024-10-27 01:30:00+02'", "'1700-01-01 00:00:00+00'", "'infinity'"},
		want: []string{`"2024-07-01T06:30:00.123456Z"`, `"1883-11-18T19:56:55.000000Z"`, `"2024-10-26T23:30:00.000000Z"`, `"1700-01-01T00:00:00.000000Z"`, "null"}},
	{name: "timetz", typ: "timetz", values: []string{"'12:00:00+05:30'", "'24:00:00-15:59:59'"}, want: []string{`"12:00:00+05:30"`}},
	{name: "interval", typ: "interval", values: []string{"'1 year 2 months -3 days 04:05:06.789'", "'-1 second'", "'0'"}, want: []string{`"1 year 2 mons -3 days +04:05:06.789"`, `"-00:00:01"`, `"00:00:00"`}},
	{name: "text", typ: "text", values: []string{"''", "'NULL'", "'\\N'", "E'a\\tb\\nc\\\\d\\x01\\u2028'", "'😀é'", "repeat('0123456789é',20000)"}, want: []string{`""`, `"NULL"`, `"\\N"`}},
	{name: "varchar", typ: "varchar(9)", values: []string{"'x  '", "'中文'"}, want: []string{`"x  "`, `"中文"`}},
	{name: "char5", typ: "char(5)", values: []string{"'x'", "''", "'ééééé'"}, want: []string{`"x    "`, `"     "`, `"ééééé"`}},
	{name: "name", typ: "name", values: []string{"'a name'"}, want: []string{`"a name"`}},
	{name: "uuid", typ: "uuid", values: []string{"'123E4567-e89b-12d3-a456-426655440000'"}, want: []string{`"123e4567-e89b-12d3-a456-426655440000"`}},
	{name: "json", typ: "json", values: []string{`'{"b": 1,  "a":[1.0,1e100], "b":2}'`, "'null'", `'"\u00e9"'`}, want: []string{`"{\"b\": 1,  \"a\":[1.0,1e100], \"b\":2}"`, `"null"`}},
	{name: "jsonb", typ: "jsonb", values: []string{`'{"bb": 1,  "a":[1.0,1e20,-0.5,true,null,"<&>"], "bb":2}'`, "'[]'"}, want: []string{`"{\"a\": [1.0, 100000000000000000000, -0.5, true, null, \"<&>\"], \"bb\": 2}"`, `"[]"`}},
	{name: "enum", typ: "vals.color", values: []string{"'red'", "'b,c'", "'it''s'"}, want: []string{`"red"`, `"b,c"`, `"it's"`}},
	{name: "domain", typ: "vals.cents", values: []string{"1.5", "99999.99"}, want: []string{`"1.50"`, `"99999.99"`}},
	{name: "composite", typ: "vals.pair", values: []string{`ROW(1,'a b"c')`, "ROW(NULL,'')"}},
	{name: "inet", typ: "inet", values: []string{"'192.0.2.1/24'", "'2001:db8::1'"}, want: []string{`"192.0.2.1/24"`, `"2001:db8::1"`}},
	{name: "cidr", typ: "cidr", values: []string{"'10.0.0.0/8'"}},
	{name: "macaddr", typ: "macaddr", values: []string{"'08:00:2B:01:02:03'"}, want: []string{`"08:00:2b:01:02:03"`}},
	{name: "bit", typ: "bit(5)", values: []string{"B'10101'"}, want: []string{`"10101"`}},
	{name: "varbit", typ: "bit varying", values: []string{"B''", "B'000111'"}, want: []string{`""`, `"000111"`}},
	{name: "point", typ: "point", values: []string{"'(1.5,-0)'", "'(1e300,NaN)'"}},
	{name: "polygon", typ: "polygon", values: []string{"'((0,0),(1,1),(1,0))'"}},
	{name: "range", typ: "int4range", values: []string{"'[1,5]'", "'empty'", "'(,5)'"}, want: []string{`"[1,6)"`, `"empty"`, `"(,5)"`}},
	{name: "tstzrange", typ: "tstzrange", values: []string{"'[2024-01-01 00:00+05:30,)'"}, want: []string{`"[\"2023-12-31 18:30:00+00\",)"`}},
	{name: "multirange", typ: "nummultirange", values: []string{"'{[1,2),(3.5,)}'"}},
	{name: "tsvector", typ: "tsvector", values: []string{"'a:1 fat:2A cat''s'"}},
	{name: "xml", typ: "xml", values: []string{"'<a b=\"1\">é</a>'"}},
	{name: "lsn", typ: "pg_lsn", values: []string{"'16/B374D848'"}, want: []string{`"16/B374D848"`}},
	{name: "aint", typ: "integer[]", values: []string{"'{1,NULL,-3}'", "'{}'", "'[5:6]={7,8}'"}, want: []string{"[1,null,-3]", "[]", "[7,8]"}},
	{name: "atext", typ: "text[]", values: []string{`ARRAY['a,b','"q"','','NULL',NULL,E'\\','{}',' x ']`}, want: []string{`["a,b","\"q\"","","NULL",null,"\\","{}"," x "]`}},
	{name: "anum", typ: "numeric(12,3)[]", values: []string{"'{1.5,NaN,-0.001}'"}, want: []string{`["1.500",null,"-0.001"]`}},
	{name: "afloat", typ: "float8[]", values: []string{"'{1.5,NaN,-0,Infinity}'"}, want: []string{`[1.5,"NaN",-0.0,"Infinity"]`}},
	{name: "abytea", typ: "bytea[]", values: []string{`ARRAY['\x00ff'::bytea,'\x'::bytea]`}, want: []string{`["00ff",""]`}},
	{name: "atstz", typ: "timestamptz[]", values: []string{"ARRAY['2024-07-01 12:00+05:30'::timestamptz,'infinity']"}, want: []string{`["2024-07-01T06:30:00.000000Z",null]`}},
	{name: "adate", typ: "date[]", values: []string{"'{2024-02-29,infinity,\"0044-03-15 BC\"}'"}, want: []string{`["2024-02-29",null,"-0043-03-15"]`}},
	{name: "abool", typ: "boolean[]", values: []string{"'{t,f,NULL}'"}, want: []string{"[true,false,null]"}},
	{name: "aenum", typ: "vals.color[]", values: []string{`ARRAY['b,c','red']::vals.color[]`}, want: []string{`["b,c","red"]`}},
}

// TestPostgresValuesAreEqualFromCopyAndLog is TestValuesAreEqualFromCopyAndLog on
// PostgreSQL. The role of the daemon has settings that change how values print.
func TestPostgresValuesAreEqualFromCopyAndLog(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		s.Schema(t, "vals")
		s.Publish(t, "vals", "vals")
		s.Exec(t, "CREATE TYPE vals.color AS ENUM('red','b,c','it''s')", "CREATE DOMAIN vals.cents AS numeric(7,2) CHECK(VALUE>0)", "CREATE TYPE vals.pair AS (a int, b text)",
			"ALTER ROLE lakesync SET TimeZone='Asia/Kolkata'", "ALTER ROLE lakesync SET DateStyle='German, DMY'", "ALTER ROLE lakesync SET IntervalStyle='iso_8601'",
			"ALTER ROLE lakesync SET bytea_output='escape'", "ALTER ROLE lakesync SET extra_float_digits=-5")
		t.Cleanup(func() { s.Exec(t, "ALTER ROLE lakesync RESET ALL") })
		fill := func(prefix string) {
			for _, c := range pgTypeCases {
				q := "BEGIN"
				for i, v := range c.values {
					q += f(";INSERT INTO vals.%s_%s VALUES(%d,%s)", prefix, c.name, i, v)
				}
				s.Exec(t, q+f(";INSERT INTO vals.%s_%s VALUES(100,NULL);COMMIT", prefix, c.name))
			}
		}
		for _, c := range pgTypeCases {
			for _, prefix := range []string{"copied", "logged"} {
				s.Exec(t, f("CREATE TABLE vals.%s_%s(id int PRIMARY KEY, v %s)", prefix, c.name, c.typ),
					f("ALTER TABLE vals.%s_%s REPLICA IDENTITY FULL", prefix, c.name))
			}
		}
		fill("copied")
		p := harness.NewPipeline(t, s, "vals", "vals.*")
		p.Env = []string{"TZ=America/New_York", "PGTZ=America/New_York", "PGDATESTYLE=German"}
		p.Run()
		p.Wait(waitLimit)
		fill("logged")
		// An update of every row, so that before images are decoded too.
		for _, c := range pgTypeCases {
			s.Exec(t, f("UPDATE vals.logged_%s SET id=id+1000", c.name), f("UPDATE vals.logged_%s SET id=id-1000", c.name))
		}
		p.Wait(waitLimit)
		for _, c := range pgTypeCases {
			t.Run(c.name, func(t *testing.T) {
				copied := s.Rows(t, "vals", "copied_"+c.name)
				if logged := s.Rows(t, "vals", "logged_"+c.name); !slices.Equal(copied, logged) {
					t.Fatalf("the source itself has other rows: %s", harness.Diff(copied, logged))
				}
				java(t).EqualLines(t, p.Table("vals", "copied_"+c.name), copied)
				java(t).EqualLines(t, p.Table("vals", "logged_"+c.name), copied)
				for i, w := range c.want {
					if line := f(`{"id":%d,"v":%s}`, i, w); !slices.Contains(copied, line) {
						t.Errorf("the source's row %d is not %s: %.600s", i, line, copied)
					}
				}
			})
		}
		p.Stop()
	})
}
