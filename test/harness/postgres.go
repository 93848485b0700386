package harness

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// The servers of PostgreSQL that are to be had.
var (
	Postgres15 = Kind{Source: "postgres", Version: "15"}
	Postgres17 = Kind{Source: "postgres", Version: "17"}
	Postgres18 = Kind{Source: "postgres", Version: "18"}
)

// PostgresPort is for a server of PostgreSQL that a test has for itself. All
// ports of such servers lie in 25541-25549.
const PostgresPort = 25544

func (k Kind) isPostgres() bool { return k.Source == "postgres" }

// postgresPort of the shared server of a version.
func (k Kind) postgresPort() int {
	switch k {
	case Postgres15:
		return 25541
	case Postgres18:
		return 25543
	default:
		return 25542
	}
}

// resetSession takes back what a test set in its session.
func (k Kind) resetSession() string {
	if k.isPostgres() {
		return "RESET ALL"
	}
	return "SET SESSION sql_mode='', time_zone='+00:00'"
}

// openPostgres is a pool of the superuser in the database postgres. Statements go
// by the simple protocol, so that several may be parted by semicolons.
func (s *Server) openPostgres() error {
	cfg, err := pgx.ParseConfig(fmt.Sprintf("postgres://postgres:postgres@%s/postgres?sslmode=disable", s.Addr()))
	if err != nil {
		return err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	cfg.RuntimeParams["TimeZone"], cfg.RuntimeParams["extra_float_digits"] = "UTC", "3"
	s.DB = stdlib.OpenDB(*cfg)
	return nil
}

// Publish makes the publication of a pipeline for all tables of schemas, also
// those that are created later (for some tables, if a name has a dot). At the
// test's end it and the pipeline's slot are dropped, so call it before
// NewPipeline, whose daemon must be gone by then.
func (s *Server) Publish(t T, pipeline string, schemas ...string) {
	t.Helper()
	name := "lakesync_" + pipeline
	what := "TABLES IN SCHEMA "
	list := make([]string, len(schemas))
	for i, schema := range schemas {
		list[i] = QuoteDouble(schema)
		if ns, table, ok := strings.Cut(schema, "."); ok {
			what, list[i] = "TABLE ", QuoteDouble(ns)+"."+QuoteDouble(table)
		}
	}
	s.Unpublish(t, pipeline)
	s.Exec(t, "CREATE PUBLICATION "+name+" FOR "+what+strings.Join(list, ", ")+" WITH (publish_via_partition_root = true)")
	t.Cleanup(func() { s.Unpublish(t, pipeline) })
}

// Unpublish drops publication and slot of a pipeline, whoever reads it.
func (s *Server) Unpublish(t T, pipeline string) {
	t.Helper()
	if s.Pid() == 0 {
		return // the test stopped the server, which is wiped
	}
	s.DropSlot(t, "lakesync_"+pipeline)
	s.Exec(t, "DROP PUBLICATION IF EXISTS lakesync_"+pipeline)
}

// DropSlot ends the reader of a replication slot, if there is one, and drops it.
func (s *Server) DropSlot(t T, slot string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if !Poll(20*time.Second, func() bool {
		var n int
		err := s.DB.QueryRowContext(ctx, `SELECT count(*) FILTER (WHERE active_pid IS NULL OR pg_terminate_backend(active_pid))
			FROM pg_replication_slots WHERE slot_name = '`+slot+`'`).Scan(&n)
		if err == nil && n == 0 {
			return true
		}
		_, err = s.DB.ExecContext(ctx, "SELECT pg_drop_replication_slot('"+slot+"')")
		return err == nil
	}) {
		t.Errorf("%s: the slot %s cannot be dropped", s.Kind, slot)
	}
}

// Schema makes an empty schema for the test, dropped at its end.
func (s *Server) Schema(t T, name string) {
	t.Helper()
	drop := "DROP SCHEMA IF EXISTS " + QuoteDouble(name) + " CASCADE"
	s.Exec(t, drop, "CREATE SCHEMA "+QuoteDouble(name))
	t.Cleanup(func() {
		if s.Pid() != 0 {
			s.Exec(t, drop)
		}
	})
}

// QuoteDouble is an identifier in double quotes.
func QuoteDouble(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// A pgColumn is a column as PostgreSQL's catalogue describes it, domains taken
// away.
type pgColumn struct {
	name, typ string // typ is pg_type.typname
	mod       int    // atttypmod, -1 for none
	element   string // typname of an array's element
}

func (s *Server) pgColumns(t T, schema, relation string) []pgColumn {
	t.Helper()
	rows, err := s.DB.QueryContext(t.Context(), `
		WITH RECURSIVE base(attnum, attname, typ, mod) AS (
			SELECT attnum, attname, atttypid, atttypmod FROM pg_attribute
				WHERE attrelid = '`+strings.ReplaceAll(QuoteDouble(schema)+"."+QuoteDouble(relation), "'", "''")+`'::regclass
					AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
			UNION ALL
			SELECT b.attnum, b.attname, t.typbasetype, t.typtypmod FROM base b JOIN pg_type t ON t.oid = b.typ WHERE t.typtype = 'd')
		SELECT b.attname::text, t.typname::text, b.mod::int, coalesce(e.typname::text, '')
			FROM base b JOIN pg_type t ON t.oid = b.typ LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
			WHERE t.typtype <> 'd' ORDER BY b.attnum`)
	if err != nil {
		t.Fatalf("columns of %s.%s: %v", schema, relation, err)
	}
	defer rows.Close() //nolint:errcheck // read to its end below
	var out []pgColumn
	for rows.Next() {
		var c pgColumn
		if err := rows.Scan(&c.name, &c.typ, &c.mod, &c.element); err != nil {
			t.Fatalf("columns of %s.%s: %v", schema, relation, err)
		}
		out = append(out, c)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("columns of %s.%s: %v", schema, relation, err)
	}
	if len(out) == 0 {
		t.Fatalf("no relation %s.%s", schema, relation)
	}
	return out
}

// pgEach is each for PostgreSQL. The server itself computes numbers from its
// times, and hexadecimal digits from its bytes: nothing here reads the text forms
// that the product reads.
func (s *Server) pgEach(t T, schema, relation string, f func(line []byte)) {
	t.Helper()
	cols := s.pgColumns(t, schema, relation)
	exprs := make([]string, len(cols))
	for i, c := range cols {
		x := QuoteDouble(c.name)
		if c.element == "" {
			exprs[i] = pgExpression(c.typ, x)
			continue
		}
		exprs[i] = fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN (SELECT coalesce(json_agg(%[2]s ORDER BY o), '[]')::text FROM unnest(%[1]s) WITH ORDINALITY u(e, o)) END",
			x, pgExpression(c.element, "e"))
	}
	q := fmt.Sprintf("SELECT %s FROM %s.%s", strings.Join(exprs, ", "), QuoteDouble(schema), QuoteDouble(relation))
	rows, err := s.DB.QueryContext(t.Context(), q)
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	defer rows.Close() //nolint:errcheck // read to its end below
	vals, ptrs := make([]sql.NullString, len(cols)), make([]any, len(cols))
	for i := range vals {
		ptrs[i] = &vals[i]
	}
	var line []byte
	for rows.Next() {
		if err := rows.Scan(ptrs...); err != nil {
			t.Fatalf("%s.%s: %v", schema, relation, err)
		}
		line = append(line[:0], '{')
		for i, c := range cols {
			if i > 0 {
				line = append(line, ',')
			}
			line = append(appendString(line, c.name), ':')
			if line, err = appendPG(line, c, vals[i]); err != nil {
				t.Fatalf("%s.%s.%s: %v", schema, relation, c.name, err)
			}
		}
		f(append(line, '}'))
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s.%s: %v", schema, relation, err)
	}
}

// pgExpression is what the server is asked for in place of x, a column or an
// element of the type; text in any case.
func pgExpression(typ, x string) string {
	switch typ {
	case "bytea":
		return "encode(" + x + ", 'hex')"
	case "date":
		return "CASE WHEN isfinite(" + x + ") THEN (" + x + " - DATE '1970-01-01')::text END"
	case "timestamp", "timestamptz":
		return "CASE WHEN isfinite(" + x + ") THEN trunc(extract(epoch FROM " + x + ") * 1000000)::text END"
	case "time":
		return "trunc(extract(epoch FROM " + x + ") * 1000000)::text"
	case "money":
		return x + "::numeric(19,2)::text"
	case "bool", "int2", "int4", "int8", "oid", "xid8", "float4", "float8", "numeric":
		return x + "::text"
	default: // format, unlike a cast, leaves the spaces of char(n)
		return "CASE WHEN " + x + " IS DISTINCT FROM NULL THEN format('%s', " + x + ") END"
	}
}

func appendPG(b []byte, c pgColumn, v sql.NullString) ([]byte, error) {
	if !v.Valid {
		return append(b, "null"...), nil
	}
	if c.element == "" {
		return appendPGValue(b, c.typ, c.mod, v.String)
	}
	var elements []*string
	if err := json.Unmarshal([]byte(v.String), &elements); err != nil {
		return nil, err
	}
	b = append(b, '[')
	for i, e := range elements {
		if i > 0 {
			b = append(b, ',')
		}
		if e == nil {
			b = append(b, "null"...)
			continue
		}
		var err error
		if b, err = appendPGValue(b, c.element, c.mod, *e); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendPGValue(b []byte, typ string, mod int, text string) ([]byte, error) {
	switch typ {
	case "bool":
		return append(b, text...), nil
	case "int2", "int4", "int8", "oid", "time":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		return strconv.AppendInt(b, n, 10), nil
	case "float4", "float8":
		bits := 64
		if typ == "float4" {
			bits = 32
		}
		f, err := strconv.ParseFloat(text, bits)
		if err != nil {
			return nil, err
		}
		return appendFloat(b, f, bits), nil
	case "numeric":
		// numeric(p,s) up to 38 digits is a decimal, which has no NaN.
		if text == "NaN" && mod >= 4 && pgPrecision(mod) <= 38 {
			return append(b, "null"...), nil
		}
		return appendString(b, text), nil
	case "date", "timestamp", "timestamptz":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		if typ == "date" {
			if n > math.MaxInt32 || n < math.MinInt32 {
				return append(b, "null"...), nil
			}
			return appendString(b, pgDate(time.Unix(n*86400, 0).UTC())), nil
		}
		at := time.UnixMicro(n).UTC()
		out := pgDate(at) + at.Format("T15:04:05.000000")
		if typ == "timestamptz" {
			out += "Z"
		}
		return appendString(b, out), nil
	default:
		return appendString(b, text), nil
	}
}

// pgPrecision of numeric(p,s), by its type modifier. A scale may be below zero,
// and digits before the point count then.
func pgPrecision(mod int) int {
	p, scale := (mod-4)>>16&0xffff, (mod-4)&0x7ff
	if scale >= 1024 {
		scale -= 2048
	}
	return max(p, p-scale, scale)
}

// pgDate writes a day as the canonical rows have it.
func pgDate(at time.Time) string {
	y := at.Year()
	day := at.Format("-01-02")
	switch {
	case y > 9999:
		return fmt.Sprintf("+%d%s", y, day)
	case y < 0:
		return fmt.Sprintf("-%04d%s", -y, day)
	}
	return fmt.Sprintf("%04d%s", y, day)
}
