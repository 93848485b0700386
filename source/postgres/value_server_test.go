package postgres

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// typeCase is a column type with values and what they must be in the lake.
type typeCase struct {
	decl string
	want string // the type in the lake
	// Pairs of an SQL expression and the value, as show prints it.
	values [][2]string
	min    int // server version
}

const (
	forty = "1234567890123456789012345678901234567890"
	// badSettings would show in values if they were not overruled.
	badSettings = `ALTER ROLE postgres SET datestyle='SQL, DMY'; ALTER ROLE postgres SET intervalstyle='sql_standard';
		ALTER ROLE postgres SET bytea_output='escape'; ALTER ROLE postgres SET extra_float_digits=-3; ALTER ROLE postgres SET timezone='Asia/Kolkata'`
)

var typeCases = []typeCase{
	{decl: "bool", want: "boolean", values: [][2]string{{"true", "true"}, {"false", "false"}, {"NULL", "NULL"}}},
	{decl: "int2", want: "int", values: [][2]string{{"-32768", "-32768"}, {"32767", "32767"}}},
	{decl: "int4", want: "int", values: [][2]string{{"-2147483648", "-2147483648"}, {"2147483647", "2147483647"}, {"0", "0"}, {"NULL", "NULL"}}},
	{decl: "int8", want: "long", values: [][2]string{{"-9223372036854775808", "-9223372036854775808"}, {"9223372036854775807", "9223372036854775807"}}},
	{decl: "oid", want: "long", values: [][2]string{{"4294967295", "4294967295"}}}, // PG-132
	{decl: "xid8", want: "decimal(20,0)", values: [][2]string{{"'18446744073709551615'", "18446744073709551615"}, {"'1'", "1"}}},
	// PG-134
	{decl: "float8", want: "double", values: [][2]string{{"'NaN'", "NaN"}, {"'-Infinity'", "-Inf"}, {"'Infinity'", "+Inf"}, {"'-0.0'", "-0"},
		{"0.1::float8+0.2", "0.30000000000000004"}, {"5e-324", "5e-324"}, {"1.7976931348623157e308", "1.7976931348623157e+308"}}},
	{decl: "float4", want: "float", values: [][2]string{{"16777217", "1.6777216e+07"}, {"0.1", "0.1"}, {"'NaN'", "NaN"}, {"1e-45", "1e-45"}, {"3.4028235e38", "3.4028235e+38"}}},
	{decl: "numeric(10,2)", want: "decimal(10,2)", values: [][2]string{{"9.999", "1000e-2"}, {"-0.01", "-1e-2"}, {"99999999.99", "9999999999e-2"}, {"0", "0e-2"}, {"'NaN'", "misfit"}}}, // PG-110
	{decl: "numeric(18,18)", want: "decimal(18,18)", values: [][2]string{{"-0.999999999999999999", "-999999999999999999e-18"}, {"0.000000000000000001", "1e-18"}}},
	{decl: "numeric(19,0)", want: "decimal(19,0)", values: [][2]string{{"9999999999999999999", "9999999999999999999"}, {"-9999999999999999999", "-9999999999999999999"}}},
	{decl: "numeric(38,10)", want: "decimal(38,10)", values: [][2]string{{"9999999999999999999999999999.9999999999", "99999999999999999999999999999999999999e-10"},
		{"-9999999999999999999999999999.9999999999", "-99999999999999999999999999999999999999e-10"}, {"-1", "-10000000000e-10"}, {"18446744073709551616", "184467440737095516160000000000e-10"}, {"'NaN'", "misfit"}}},
	{decl: "numeric(3,-2)", min: 15, want: "decimal(5,0)", values: [][2]string{{"12345", "12300"}, {"-99900", "-99900"}}},                                                        // PG-109
	{decl: "numeric(3,5)", min: 15, want: "decimal(5,5)", values: [][2]string{{"0.00123", "123e-5"}, {"-0.00999", "-999e-5"}}},                                                   // PG-109
	{decl: "numeric(50,2)", want: "string", values: [][2]string{{"123456789012345678901234567890123456789012345678.99", "123456789012345678901234567890123456789012345678.99"}}}, // PG-108
	{decl: "numeric", want: "string", values: [][2]string{{"12345678901234567890.123456789012345678901234567890", "12345678901234567890.123456789012345678901234567890"},
		{"'NaN'", "NaN"}, {"1.00", "1.00"}, {forty, forty}}},
	{decl: "numeric", min: 14, want: "string", values: [][2]string{{"'-Infinity'", "-Infinity"}, {"'Infinity'", "Infinity"}}}, // PG-110
	{decl: "money", want: "decimal(19,2)", values: [][2]string{{"'-92233720368547758.08'", "-9223372036854775808e-2"}, {"'92233720368547758.07'", "9223372036854775807e-2"},
		{"'0.05'", "5e-2"}, {"'-0.50'", "-50e-2"}, {"'1234.56'", "123456e-2"}}}, // PG-121
	{decl: "text", want: "string", values: [][2]string{{"''", ""}, {`E'a\tb\nc\\d\re\ff\bg'||chr(11)||'h'`, "a\tb\nc\\d\re\ff\bg\vh"}, {`'\N'`, `\N`}, {"'ключ 😀'", "ключ 😀"}, {"NULL", "NULL"}, {"'\\.'", "\\."}}},
	{decl: "varchar(20)", want: "string", values: [][2]string{{"'x '", "x "}}},
	{decl: "char(5)", want: "string", values: [][2]string{{"'ab'", "ab   "}}}, // PG-133
	{decl: `"char"`, want: "string", values: [][2]string{{"'a'", "a"}, {"''", ""}}},
	{decl: `"char"`, min: 15, want: "string", values: [][2]string{{"'é'", `\303`}}},                                  // PG-133
	{decl: "name", want: "string", values: [][2]string{{"'some name'", "some name"}}},                                // PG-133
	{decl: "bytea", want: "binary", values: [][2]string{{`'\x00ff5c41'`, "00ff5c41"}, {`''`, ""}, {"NULL", "NULL"}}}, // PG-122, PG-105
	{decl: "date", want: "date", values: [][2]string{{"'2024-03-04'", "19786"}, {"'0044-03-15 BC'", "-735160"}, {"'0001-01-01'", "-719162"}, {"'0001-12-31 BC'", "-719163"},
		{"'10000-01-01'", "2932897"}, {"'5874897-12-31'", "2145042905"}, {"'4714-11-24 BC'", "-2440588"}, {"'infinity'", "misfit"}, {"'-infinity'", "misfit"}, {"'1970-01-01'", "0"}, {"'2000-02-29'", "11016"}}}, // PG-105, PG-113, PG-114
	{decl: "time", want: "time", values: [][2]string{{"'00:00'", "0"}, {"'24:00:00'", "86400000000"}, {"'23:59:59.999999'", "86399999999"}, {"'12:34:56.7'", "45296700000"}}},
	{decl: "time(0)", want: "time", values: [][2]string{{"'12:00:00.6'", "43201000000"}}},
	{decl: "timetz", want: "string", values: [][2]string{{"'12:00:00.5+05:30'", "12:00:00.5+05:30"}, {"'24:00:00-12'", "24:00:00-12"}}},
	{decl: "timestamp", want: "timestamp", values: [][2]string{{"'2024-03-10 02:30:00.123456'", "1710037800123456"}, {"'0044-03-15 12:00 BC'", "-63517780800000000"},
		{"'0001-01-01'", "-62135596800000000"}, {"'1969-12-31 23:59:59.999999'", "-1"}, {"'infinity'", "misfit"}, {"'12000-01-01 00:00:00.1'", "316516204800100000"},
		{"'294276-12-31 23:59:59.999999'", "misfit"}, {"'4714-11-24 00:00 BC'", "-210866803200000000"}}}, // PG-106, PG-113, PG-114, PG-116
	{decl: "timestamptz", want: "timestamptz", values: [][2]string{{"'2024-03-10 02:30:00.5+05:30'", "1710018000500000"}, {"'2023-05-18 03:52:45.573605+00'", "1684381965573605"},
		{"'1800-01-01 00:00:00+05:53:28'", "-5364683608000000"}, {"'-infinity'", "misfit"}, {"'0044-03-15 12:00:00+00 BC'", "-63517780800000000"}}}, // PG-117, PG-118
	{decl: "interval", want: "string", values: [][2]string{{"'1 year 2 mons 3 days 04:05:06.789'", "1 year 2 mons 3 days 04:05:06.789"}, {"'-1 mons +5 days -00:00:01'", "-1 mons +5 days -00:00:01"}}}, // PG-120
	{decl: "uuid", want: "string", values: [][2]string{{"'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}}},
	{decl: "json", want: "string", values: [][2]string{{`'{"b": 1,  "a":"\u0000"}'`, `{"b": 1,  "a":"\u0000"}`}}}, // PG-136
	{decl: "jsonb", want: "string", values: [][2]string{{`'{"b": 1,  "a":[1.10,null]}'`, `{"a": [1.10, null], "b": 1}`}}},
	{decl: "xml", want: "string", values: [][2]string{{"'<a>1</a>'", "<a>1</a>"}}},
	{decl: "inet", want: "string", values: [][2]string{{"'10.0.0.1'", "10.0.0.1"}, {"'::1/64'", "::1/64"}}},
	{decl: "cidr", want: "string", values: [][2]string{{"'10.0.0.0/8'", "10.0.0.0/8"}, {"'10.1.2.3'", "10.1.2.3/32"}}},
	{decl: "macaddr", want: "string", values: [][2]string{{"'08:00:2b:01:02:03'", "08:00:2b:01:02:03"}}},
	{decl: "macaddr8", want: "string", values: [][2]string{{"'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05"}}},
	{decl: "bit(4)", want: "string", values: [][2]string{{"B'0101'", "0101"}}},
	{decl: "varbit", want: "string", values: [][2]string{{"B''", ""}, {"B'1'", "1"}}},
	{decl: "pg_lsn", want: "string", values: [][2]string{{"'16/B374D848'", "16/B374D848"}}},
	{decl: "point", want: "string", values: [][2]string{{"'(1,0.1)'", "(1,0.1)"}}},
	{decl: "box", want: "string", values: [][2]string{{"'(1,1),(0,0)'", "(1,1),(0,0)"}}},
	{decl: "tsvector", want: "string", values: [][2]string{{"'a:1 b'", "'a':1 'b'"}}},
	{decl: "int2vector", want: "string", values: [][2]string{{"'1 2'", "1 2"}}},
	{decl: "regclass", want: "string", values: [][2]string{{"'pg_class'::regclass", "pg_class"}}},
	{decl: "int4range", want: "string", values: [][2]string{{"'[1,4]'", "[1,5)"}, {"'empty'", "empty"}}}, // PG-130
	{decl: "int4multirange", min: 14, want: "string", values: [][2]string{{"'{[1,3),[7,9)}'", "{[1,3),[7,9)}"}, {"'{}'", "{}"}}},
	{decl: "tstzrange", want: "string", values: [][2]string{{"'[2024-01-01 00:00+00,infinity)'", `["2024-01-01 00:00:00+00",infinity)`}}},
	{decl: "public.mood", want: "string", values: [][2]string{{"'a'", "a"}, {`'with '' and "'`, `with ' and "`}}},                       // PG-094
	{decl: "public.mc", want: "string", values: [][2]string{{"row('USD',10.5)", "(USD,10.50)"}, {`row('a"b,\',NULL)`, `("a""b,\\",)`}}}, // PG-128
	{decl: "public.amt", want: "decimal(12,2)", values: [][2]string{{"9.999", "1000e-2"}}},                                              // PG-112
	{decl: "public.dda", want: "decimal(8,3)", values: [][2]string{{"2.5", "2500e-3"}, {"NULL", "NULL"}}},                               // PG-112
	{decl: "public.email", want: "string", values: [][2]string{{"'x@y'", "x@y"}}},
	// PG-124, PG-125, PG-126
	{decl: "int[]", want: "list<int>", values: [][2]string{{"'{1,NULL,3}'", "[1,NULL,3]"}, {"'{}'", "[]"}, {"NULL", "NULL"}, {"'[3:5]={7,8,9}'", "[7,8,9]"}, {"'{-2147483648}'", "[-2147483648]"}}},
	{decl: "text[]", want: "list<string>", values: [][2]string{{`array['NULL',null,'a,b','q"t','back\slash','', ' x ', '{}', E'tab\t\n']`, "[NULL,NULL,a,b,q\"t,back\\slash,, x ,{},tab\t\n]"}, {"'{}'", "[]"}, {"NULL", "NULL"}}},
	{decl: "bool[]", want: "list<boolean>", values: [][2]string{{"'{t,f,NULL}'", "[true,false,NULL]"}}},
	{decl: "numeric(8,3)[]", want: "list<decimal(8,3)>", values: [][2]string{{"'{1.5,NULL,-2}'", "[1500e-3,NULL,-2000e-3]"}, {"'{NaN,1}'", "[NULL,1000e-3]"}}},
	{decl: "numeric(30,1)[]", want: "list<decimal(30,1)>", values: [][2]string{{"'{-12345678901234567890123456789.1}'", "[-123456789012345678901234567891e-1]"}}},
	{decl: "numeric[]", want: "list<string>", values: [][2]string{{"'{1.50,NaN}'", "[1.50,NaN]"}}},
	{decl: "public.da[]", want: "list<decimal(8,3)>", values: [][2]string{{"'{1.5,NULL}'", "[1500e-3,NULL]"}}}, // PG-112
	{decl: "public.ints", want: "list<int>", values: [][2]string{{"'{1,2}'", "[1,2]"}}},
	{decl: "timestamptz[]", want: "list<timestamptz>", values: [][2]string{{`'{"2023-05-18 03:52:45.573605+00",infinity}'`, "[1684381965573605,NULL]"}}},
	{decl: "date[]", want: "list<date>", values: [][2]string{{`'{2024-03-04,"0044-03-15 BC"}'`, "[19786,-735160]"}}},
	{decl: "time[]", want: "list<time>", values: [][2]string{{"'{24:00}'", "[86400000000]"}}},
	{decl: "bytea[]", want: "list<binary>", values: [][2]string{{`array['\x00ff'::bytea,'']`, "[00ff,]"}}},
	{decl: "float8[]", want: "list<double>", values: [][2]string{{"'{NaN,-0,0.1}'", "[NaN,-0,0.1]"}}},
	{decl: "float4[]", want: "list<float>", values: [][2]string{{"'{0.1,NULL}'", "[0.1,NULL]"}}},
	{decl: "int8[]", want: "list<long>", values: [][2]string{{"'{9223372036854775807}'", "[9223372036854775807]"}}},
	{decl: "uuid[]", want: "list<string>", values: [][2]string{{"'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", "[a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11]"}}},
	{decl: "jsonb[]", want: "list<string>", values: [][2]string{{`array['{"a": "b,c"}'::jsonb]`, `[{"a": "b,c"}]`}}},
	{decl: "public.mc[]", want: "list<string>", values: [][2]string{{`array[row('U,D',10.5)::public.mc]`, `[("U,D",10.50)]`}}}, // PG-128
	{decl: "box[]", want: "list<string>", values: [][2]string{{"'{(1,1),(0,0);(2,2),(0,0)}'", "[(1,1),(0,0),(2,2),(0,0)]"}}},
	{decl: "money[]", want: "list<decimal(19,2)>", values: [][2]string{{`array['-1234.56'::money]`, "[-123456e-2]"}}},
	{decl: "public.mood[]", want: "list<string>", values: [][2]string{{`array['a','with '' and "']::public.mood[]`, `[a,with ' and "]`}}},
	{decl: "public.hstore", want: "string", values: [][2]string{{"'a=>1,b=>NULL'", `"a"=>"1", "b"=>NULL`}, {"NULL", "NULL"}}}, // PG-129
	{decl: "public.ltree", want: "string", values: [][2]string{{"'top.a_b'", "top.a_b"}}},
	{decl: "public.citext", want: "string", values: [][2]string{{"'CaSe'", "CaSe"}}},
}

const typeSetup = `CREATE EXTENSION hstore SCHEMA public; CREATE EXTENSION ltree SCHEMA public; CREATE EXTENSION citext SCHEMA public;
	CREATE TYPE public.mood AS ENUM('a', 'with '' and "'); CREATE TYPE public.mc AS (cur text, amt numeric(10,2));
	CREATE DOMAIN public.amt AS numeric(12,2); CREATE DOMAIN public.da AS numeric(8,3); CREATE DOMAIN public.dda AS public.da;
	CREATE DOMAIN public.email AS public.citext CHECK (value LIKE '%@%'); CREATE TYPE public.none AS ENUM();
	CREATE DOMAIN public.ints AS int[]; CREATE PUBLICATION pub FOR ALL TABLES`

// show prints a value so that different ones differ.
func show(v *source.Vector, i int) string {
	if v.Null(i) {
		if v.Misfits > 0 {
			return "misfit"
		}
		return "NULL"
	}
	scale := ""
	if v.Type.Scale > 0 {
		scale = fmt.Sprintf("e-%d", v.Type.Scale)
	}
	switch v.Type.Store() {
	case source.StoreBools:
		return strconv.FormatBool(v.Bools[i] != 0)
	case source.StoreInts:
		return strconv.Itoa(int(v.Ints[i]))
	case source.StoreLongs:
		return strconv.FormatInt(v.Longs[i], 10) + scale
	case source.StoreWides:
		return wideText(v.Wides[i]) + scale
	case source.StoreFloats:
		return strconv.FormatFloat(float64(v.Floats[i]), 'g', -1, 32)
	case source.StoreDoubles:
		return strconv.FormatFloat(v.Doubles[i], 'g', -1, 64)
	}
	switch v.Type.Kind {
	case source.Binary:
		return hex.EncodeToString(v.At(i))
	case source.List:
		e := elements(v, i)
		var out []string
		for k := range e.Len() {
			out = append(out, show(e, k))
		}
		return "[" + strings.Join(out, ",") + "]"
	}
	return string(v.At(i))
}

// elements is a list as a vector.
func elements(v *source.Vector, i int) *source.Vector {
	e := &source.Vector{Type: v.Type.Element()}
	for list := v.At(i); len(list) > 0; {
		b, valid, rest, ok := e.Type.NextElement(list)
		if !ok {
			panic("a broken list")
		}
		list = rest
		if !valid {
			e.AppendNull()
			continue
		}
		switch e.Type.Store() {
		case source.StoreBools:
			e.AppendBool(b[0] != 0)
		case source.StoreInts:
			e.AppendInt(int32(binary.LittleEndian.Uint32(b)))
		case source.StoreLongs:
			e.AppendLong(int64(binary.LittleEndian.Uint64(b)))
		case source.StoreWides:
			e.AppendWide(source.Int128{Lo: binary.LittleEndian.Uint64(b), Hi: int64(binary.LittleEndian.Uint64(b[8:]))})
		case source.StoreFloats:
			e.AppendFloat(math.Float32frombits(binary.LittleEndian.Uint32(b)))
		case source.StoreDoubles:
			e.AppendDouble(math.Float64frombits(binary.LittleEndian.Uint64(b)))
		default:
			e.AppendBytes(b)
		}
	}
	return e
}

var testPorts = map[string]int{"13": 25524, "15": 25521, "17": 25522, "18": 25523}

// testServer starts a server for the test.
func testServer(t testing.TB, version string) *Options {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
	args := []string{"start", "-v", version, "-p", strconv.Itoa(testPorts[version]), "-d", t.TempDir()}
	t.Cleanup(func() {
		args[0] = "wipe"
		_ = exec.Command("../../test/servers/postgres.sh", args...).Run()
	})
	if out, err := exec.Command("../../test/servers/postgres.sh", args...).CombinedOutput(); err != nil {
		t.Fatalf("start the server: %v: %s", err, out)
	}
	o := &Options{Config: config.Postgres{Host: "127.0.0.1", Port: testPorts[version], User: "postgres", Password: "postgres", Database: "postgres"}, Pipeline: "test"}
	o.defaults()
	return o
}

func testConn(t testing.TB, o *Options) *conn {
	t.Helper()
	c, err := connect(context.Background(), o, sideSession)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func must(t testing.TB, c *conn, sql string) rows {
	t.Helper()
	r, err := c.simple(context.Background(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return r
}

// oidOf is a table's OID.
func oidOf(t testing.TB, c *conn, table string) uint32 {
	t.Helper()
	var oid uint32
	if _, err := fmt.Sscan(must(t, c, "SELECT "+literal(table)+"::regclass::oid").text(0, 0), &oid); err != nil {
		t.Fatal(err)
	}
	return oid
}

func testShape(t testing.TB, c *conn, table string) *shape {
	t.Helper()
	s, err := loadShape(context.Background(), c, oidOf(t, c, table))
	if err != nil || s == nil {
		t.Fatalf("load the shape of %s: %v %v", table, s, err)
	}
	return s
}

// copied reads a table by COPY.
func copied(t testing.TB, c *conn, s *shape) *source.Batch {
	t.Helper()
	d, err := s.copyDecoder()
	if err != nil {
		t.Fatal(err)
	}
	b := &source.Batch{}
	d.reset(b)
	var text strings.Builder
	if _, err := c.CopyTo(context.Background(), &text, "COPY (SELECT "+d.selectList()+" FROM "+qualified(s.Namespace, s.Name)+") TO STDOUT"); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if err := d.decode([]byte(strings.TrimSuffix(line, "\n")), b); err != nil {
			t.Fatalf("%s: %v", s.fullName(), err)
		}
	}
	return b
}

// logged are the messages of the log since the slot was made or last read.
func logged(t testing.TB, c *conn) [][]byte {
	t.Helper()
	var out [][]byte
	for _, r := range must(t, c, "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', '1', 'publication_names', 'pub')") {
		b, err := hex.DecodeString(string(r[0][2:]))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// replay decodes messages of the log. Its hooks are called in the order of the
// log; the batch of a row has that row alone.
type replay struct {
	shapes  *shapes
	catalog func(oid uint32) (*shape, error)
	row     func(s *shape, b *source.Batch) error
	change  func(s *shape, ch *source.Change)
}

func (r *replay) run(messages [][]byte) error {
	decoders := map[uint32]*tupleDecoder{}
	for _, m := range messages {
		switch m[0] {
		case 'R':
			msg, err := parseRelation(m[1:])
			if err != nil {
				return err
			}
			if strings.HasPrefix(msg.Name, "pt_") {
				continue // a partition, whose rows come as those of its table
			}
			sh, changes, err := r.shapes.relation(msg, func() (*shape, error) { return r.catalog(msg.OID) })
			if err != nil {
				return err
			}
			for _, ch := range changes {
				r.change(sh, ch)
			}
			if decoders[msg.OID], err = sh.decoder(msg); err != nil {
				return err
			}
		case 'I', 'U', 'D':
			msg, err := parseRow(m[0], m[1:])
			if err != nil {
				return err
			}
			d := decoders[msg.oid]
			b := &source.Batch{}
			d.reset(map[byte]source.Op{'I': source.Insert, 'U': source.Update, 'D': source.Delete}[m[0]], msg.oldKind, b)
			if err := d.decode(msg.oldKind, msg.old, msg.new, b); err != nil {
				return err
			}
			if err := r.row(d.shape, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestValuesAreEqualFromCopyAndLog compares each type's values from both ways with
// each other, byte for byte, and with what is right (PG-102, PG-105 and those named
// in the list).
func TestValuesAreEqualFromCopyAndLog(t *testing.T) {
	for _, version := range []string{"13", "15", "17", "18"} {
		t.Run(version, func(t *testing.T) {
			o := testServer(t, version)
			c := testConn(t, o)
			must(t, c, typeSetup)
			must(t, c, badSettings)
			c = testConn(t, o)
			must(t, c, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
			byOID := map[uint32]int{}
			known := newShapes()
			for i, tc := range typeCases {
				if c.version < tc.min*10000 {
					continue
				}
				table := fmt.Sprintf("public.v%d", i)
				must(t, c, "CREATE TABLE "+table+"(id int PRIMARY KEY, v "+tc.decl+")")
				for k, v := range tc.values {
					must(t, c, fmt.Sprintf("INSERT INTO %s VALUES(%d, %s)", table, k, v[0]))
				}
				s := testShape(t, c, table)
				byOID[s.OID] = i
				known.set(s)
			}
			// As a restart would have them.
			text, err := known.encode()
			if err != nil {
				t.Fatal(err)
			}
			if known, err = decodeShapes(text); err != nil {
				t.Fatal(err)
			}
			fromLog := map[uint32]*source.Batch{}
			r := replay{shapes: known, catalog: func(oid uint32) (*shape, error) { return loadShape(context.Background(), c, oid) },
				row: func(s *shape, b *source.Batch) error {
					all := fromLog[s.OID]
					if all == nil {
						all = &source.Batch{}
						resetBatch(all, s.Rel, source.Read, false)
						fromLog[s.OID] = all
					}
					for i := range all.After {
						all.After[i].AppendRow(&b.After[i], 0)
						if m := &b.After[i]; m.Misfits > 0 {
							if all.After[i].Misfits++; all.After[i].Misfits == 1 {
								all.After[i].Misfit = m.Misfit
							}
						}
					}
					all.Rows++
					return nil
				},
				change: func(s *shape, ch *source.Change) { t.Errorf("%s: a change %v", s.fullName(), ch) },
			}
			if err := r.run(logged(t, c)); err != nil {
				t.Fatal(err)
			}
			for _, s := range known.all() {
				tc := typeCases[byOID[s.OID]]
				if got := s.Rel.Columns[1].Type.String(); got != tc.want {
					t.Errorf("%s is %s, want %s", tc.decl, got, tc.want)
					continue
				}
				b := copied(t, c, s)
				l := fromLog[s.OID]
				if l == nil {
					t.Errorf("%s: no rows in the log", tc.decl)
					continue
				}
				if diff := cmp.Diff(b.After, l.After, cmpopts.EquateNaNs()); diff != "" {
					t.Errorf("%s: copy and log differ (-copy +log):\n%s", tc.decl, diff)
				}
				for i, v := range tc.values {
					if got := show(&b.After[1], i); got != v[1] {
						t.Errorf("%s %s is %q, want %q", tc.decl, v[0], got, v[1])
					}
				}
			}
		})
	}
}

func wideText(w source.Int128) string {
	negative := w.Hi < 0
	hi, lo := uint64(w.Hi), w.Lo
	if negative {
		lo = -lo
		hi = ^hi
		if lo == 0 {
			hi++
		}
	}
	var digits []byte
	for hi != 0 || lo != 0 || len(digits) == 0 {
		r := uint64(0)
		var q [4]uint64
		for i, part := range [4]uint64{hi >> 32, hi & 0xffffffff, lo >> 32, lo & 0xffffffff} {
			r = r<<32 | part
			q[i], r = r/10, r%10
		}
		hi, lo = q[0]<<32|q[1], q[2]<<32|q[3]
		digits = append([]byte{byte('0' + r)}, digits...)
	}
	if negative {
		return "-" + string(digits)
	}
	return string(digits)
}
