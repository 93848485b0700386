package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/source/postgres"
)

// server is a real PostgreSQL, shared by the tests of a version.
type server struct {
	version string
	port    int
	dsn     string
	args    []string // of the script
}

// database is a database of its own with a role of least rights.
type database struct {
	*server
	name string
	root *pgconn.PgConn
}

var versions = map[string]int{"15": 25502, "17": 25501, "18": 25503}

// start starts a server with the scripts of the repository. It is stopped when
// the test ends.
func start(t *testing.T, version string, flags ...string) *server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
	port := versions[version]
	args := []string{"start", "-v", version, "-p", fmt.Sprint(port), "-d", t.TempDir()}
	if len(flags) > 0 {
		args = append(append(args, "--"), flags...)
	}
	out, err := exec.Command("../../test/servers/postgres.sh", args...).Output()
	if err != nil {
		t.Fatalf("start the server: %v", err)
	}
	t.Cleanup(func() {
		_ = exec.Command("../../test/servers/postgres.sh", append([]string{"wipe"}, args[1:7]...)...).Run()
	})
	m := regexp.MustCompile(`POSTGRES_ROOT_DSN='([^']*)'`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("the script says %q", out)
	}
	return &server{version: version, port: port, dsn: string(m[1]), args: args}
}

// create makes a database for one test.
func (s *server) create(t *testing.T, sql ...string) *database {
	t.Helper()
	name := strings.ToLower(regexp.MustCompile(`[^A-Za-z]+`).ReplaceAllString(t.Name(), "_"))
	name = name[max(0, len(name)-40):]
	boot := connect(t, s.dsn)
	exec1(t, boot, fmt.Sprintf(`DROP DATABASE IF EXISTS %q`, name))
	exec1(t, boot, fmt.Sprintf(`CREATE DATABASE %q`, name))
	exec1(t, boot, fmt.Sprintf(`GRANT CREATE ON DATABASE %q TO lakesync`, name))
	d := &database{server: s, name: name, root: connect(t, strings.TrimSuffix(s.dsn, "postgres")+name)}
	d.exec(t, sql...)
	return d
}

func connect(t *testing.T, dsn string) *pgconn.PgConn {
	t.Helper()
	c, err := pgconn.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func (d *database) exec(t *testing.T, sql ...string) {
	t.Helper()
	for _, s := range sql {
		exec1(t, d.root, s)
	}
}

func exec1(t *testing.T, c *pgconn.PgConn, sql string) [][]string {
	t.Helper()
	rs, err := c.Exec(context.Background(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var out [][]string
	for _, r := range rs {
		for _, row := range r.Rows {
			var line []string
			for _, v := range row {
				line = append(line, string(v))
			}
			out = append(out, line)
		}
	}
	return out
}

// query is the first column of the first row.
func (d *database) query(t *testing.T, sql string) string {
	t.Helper()
	r := exec1(t, d.root, sql)
	if len(r) == 0 {
		return ""
	}
	return r[0][0]
}

func (d *database) options(t *testing.T) postgres.Options {
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelDebug
	}
	return postgres.Options{
		Config: config.Postgres{
			Host: "127.0.0.1", Port: d.port, User: "postgres", Password: "postgres", Database: d.name,
			Heartbeat: config.Duration(300 * time.Millisecond),
		},
		Pipeline:    "test",
		Match:       func(ns, _ string) bool { return ns == "public" },
		RetryBudget: 20 * time.Second,
		Log:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
		Registerer:  prometheus.NewRegistry(),
	}
}

// drop removes what a pipeline leaves at the server.
func (d *database) drop(t *testing.T) {
	t.Cleanup(func() {
		rs := d.root.Exec(context.Background(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active")
		_ = rs.Close()
	})
}

// mirror is what a sink makes of the events.
type mirror struct {
	t      *testing.T
	s      *postgres.Stream
	tables map[string]map[string][]string // by relation and key: the row as text
	read   []string                       // every event as text, in order
	rows   int                            // since the last commit
	// The newest place to resume at.
	at    source.Position
	state []byte
	time  time.Time
}

func open(t *testing.T, o postgres.Options) *mirror {
	t.Helper()
	s, err := postgres.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	m := &mirror{t: t, s: s, tables: map[string]map[string][]string{}}
	if o.Resume != nil {
		m.at, m.state = o.Resume.Position, o.Resume.State
	}
	return m
}

func text(v *source.Vector, i int) string {
	if i >= v.Len() {
		return "-"
	}
	if v.Null(i) {
		return "NULL"
	}
	switch v.Type.Store() {
	case source.StoreInts:
		return fmt.Sprint(v.Ints[i])
	case source.StoreLongs:
		return fmt.Sprint(v.Longs[i])
	case source.StoreBools:
		return fmt.Sprint(v.Bools[i])
	case source.StoreDoubles:
		return fmt.Sprint(v.Doubles[i])
	}
	return string(v.At(i))
}

func row(vs []source.Vector, i int) []string {
	var out []string
	for j := range vs {
		out = append(out, text(&vs[j], i))
	}
	return out
}

func key(rel *source.Relation, vs []source.Vector, i int) string {
	var out []string
	for _, k := range rel.Key {
		out = append(out, text(&vs[k], i))
	}
	return strings.Join(out, "|")
}

// apply takes one event in.
func (m *mirror) apply(ev *source.Event) {
	m.t.Helper()
	table := func(r *source.Relation) map[string][]string {
		if m.tables[r.Name] == nil {
			m.tables[r.Name] = map[string][]string{}
		}
		return m.tables[r.Name]
	}
	switch ev.Kind {
	case source.Rows:
		b := ev.Batch
		m.rows += b.Rows
		for i := range b.Rows {
			op := map[source.Op]string{source.Read: "r", source.Insert: "c", source.Update: "u", source.Delete: "d"}[b.Op]
			before, after := row(b.Before, i), row(b.After, i)
			if op == "r" || op == "c" {
				before = nil
			} else if op == "d" {
				after = nil
			}
			m.read = append(m.read, fmt.Sprintf("%s %s %v %v", op, b.Relation.Name, before, after))
			if b.Op == source.Update || b.Op == source.Delete {
				delete(table(b.Relation), key(b.Relation, b.Before, i))
			}
			if b.Op != source.Delete {
				k := key(b.Relation, b.After, i)
				if b.Op == source.Insert || b.Op == source.Read {
					if have := table(b.Relation)[k]; have != nil {
						m.t.Errorf("row %s of %s comes twice: %v", k, b.Relation.Name, have)
					}
				}
				table(b.Relation)[k] = row(b.After, i)
			}
		}
	case source.Truncate:
		m.read = append(m.read, "t "+ev.Relation.Name)
		clear(table(ev.Relation))
	case source.Schema:
		m.read = append(m.read, "s "+ev.Relation.Name)
		for _, st := range ev.Change.Steps {
			at := slices.IndexFunc(ev.Relation.Columns, func(c source.Column) bool { return c.Name == st.Column.Name })
			for k, r := range table(ev.Relation) {
				table(ev.Relation)[k] = slices.Insert(slices.Clone(r), at, "NULL")
			}
		}
	case source.Commit, source.Heartbeat:
		if ev.Kind == source.Commit {
			m.read = append(m.read, "commit")
		}
		m.rows = 0
		m.at = ev.Position
		if ev.State != nil {
			m.state = slices.Clone(ev.State)
		}
		if ev.Time.After(m.time) {
			m.time = ev.Time
		}
	}
}

// until takes events in until ok says so.
func (m *mirror) until(what string, ok func(ev *source.Event) bool) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 60*time.Second)
	defer cancel()
	for {
		ev, err := m.s.Next(ctx)
		if err != nil {
			m.t.Fatalf("until %s: %v", what, err)
		}
		m.apply(ev)
		if ok(ev) {
			return
		}
	}
}

// copied takes the initial snapshot in.
func (m *mirror) copied() {
	m.t.Helper()
	m.until("the copy is complete", func(ev *source.Event) bool { return ev.Kind == source.Commit && ev.Barrier })
}

// to takes events in up to a position of the server.
func (m *mirror) to(p source.Position) {
	m.t.Helper()
	if m.at != "" {
		if ok, _ := postgres.Reached(m.at, p); ok && m.rows == 0 {
			return
		}
	}
	m.until(string(p), func(ev *source.Event) bool {
		if ev.Kind != source.Commit && ev.Kind != source.Heartbeat {
			return false
		}
		ok, err := postgres.Reached(ev.Position, p)
		if err != nil {
			m.t.Fatal(err)
		}
		return ok
	})
}

func (m *mirror) now(o postgres.Options) {
	m.t.Helper()
	p, err := postgres.Current(m.t.Context(), o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.to(p)
}

// same compares a table with the source's.
func (m *mirror) same(d *database, table string, key string) {
	m.t.Helper()
	want := map[string][]string{}
	for _, r := range exec1(m.t, d.root, fmt.Sprintf("SELECT %s::text, to_jsonb(x)::text FROM %s x", key, table)) {
		want[r[0]] = []string{r[1]}
	}
	names := exec1(m.t, d.root, fmt.Sprintf("SELECT attname FROM pg_attribute WHERE attrelid = '%s'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum", table))
	wantRows := map[string][]string{}
	for k := range want {
		var cols []string
		for _, n := range names {
			cols = append(cols, fmt.Sprintf("coalesce(%q::text, 'NULL')", n[0]))
		}
		_ = k
		for _, r := range exec1(m.t, d.root, fmt.Sprintf("SELECT %s::text, %s FROM %s", key, strings.Join(cols, ", "), table)) {
			wantRows[r[0]] = r[1:]
		}
		break
	}
	have := m.tables[table]
	if have == nil {
		have = map[string][]string{}
	}
	if d := cmp.Diff(wantRows, have); d != "" {
		m.t.Errorf("table %s (-source +events):\n%s", table, d)
	}
}

func resume(m *mirror, o postgres.Options) postgres.Options {
	o.Resume = &postgres.Resume{Position: m.at, State: m.state}
	return o
}

func TestCopiesThenFollows(t *testing.T) {
	for v := range versions {
		t.Run(v, func(t *testing.T) {
			d := start(t, v).create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)", "INSERT INTO a SELECT g, 'row ' || g FROM generate_series(1, 3000) g", "CREATE TABLE b(k text PRIMARY KEY, n bigint)", "CREATE SCHEMA other", "CREATE TABLE other.c(id int)")
			d.drop(t)
			o := d.options(t)
			m := open(t, o)
			d.exec(t, "INSERT INTO a VALUES (5000, 'after the cut')", "DELETE FROM a WHERE id < 10", "UPDATE a SET t = 'x' WHERE id < 100")
			m.copied()
			if n := len(m.tables["a"]); n != 3000 {
				t.Errorf("%d rows were copied, want 3000", n)
			}
			d.exec(t, "INSERT INTO b VALUES ('ü', 1), ('', NULL)", "BEGIN; UPDATE a SET id = -id WHERE id BETWEEN 200 AND 300; INSERT INTO a VALUES (200, 'again'); COMMIT", "INSERT INTO other.c VALUES (1)")
			m.now(o)
			m.same(d, "a", "id")
			m.same(d, "b", "k")
			at := m.at
			if err := m.s.Ack(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			// PG-008, PG-009: after a clean stop nothing comes again.
			if err := m.s.Close(); err != nil {
				t.Fatal(err)
			}
			if have := d.query(t, "SELECT 'lsn:' || confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'lakesync_test'"); have != string(at) {
				t.Errorf("the slot is confirmed at %s, want %s", have, at)
			}
			d.exec(t, "INSERT INTO a VALUES (6000, 'while it was down')")
			n := len(m.read)
			s, err := postgres.Open(t.Context(), resume(m, o))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			m.s = s
			m.now(o)
			m.same(d, "a", "id")
			if diff := cmp.Diff([]string{"c a [] [6000 while it was down]", "commit"}, m.read[n:]); diff != "" {
				t.Errorf("events after the restart (-want +have):\n%s", diff)
			}
		})
	}
}

// cannotServe fails the test unless err is of that class and says something.
func cannotServe(t *testing.T, err error, says string) {
	t.Helper()
	if !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), says) {
		t.Errorf("the error is %v, want one that says %q", err, says)
	}
}

func contextWithin(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
