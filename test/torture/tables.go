package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// The databases of a run: the one that is captured, one that is not, and one
// with the numbers that large statements are made of.
const (
	captured = "tort"
	foreign  = "tortx"
)

// A keyColumn is a column of a key, and the literal of its n-th value; two
// numbers give two values.
type keyColumn struct {
	name, typ string
	literal   func(n int) string
}

// A relation is one table of the source.
type relation struct {
	name  string
	key   []keyColumn
	space int // numbers of keys in use
	// entry is the relation's entry below `tables`, without match; nil for none.
	entry map[string]any
	// duckdb says that DuckDB is known to read such tables right.
	duckdb bool

	mu    sync.Mutex
	extra []string // columns added since, all INT
	adds  int
}

// values are the columns of every relation that are not of the key. tx is the
// transaction that wrote the row last, so that a row that differs tells when.
const values = `tx BIGINT, u INT NOT NULL, region VARCHAR(8) NOT NULL, a BIGINT, d DECIMAL(20,4), s VARCHAR(80),
	b VARBINARY(40), t DATETIME(6), day DATE, x DOUBLE, note TEXT`

func (r *relation) full() string { return captured + "." + r.name }

func (r *relation) create() string {
	var cols, names []string
	for _, k := range r.key {
		cols = append(cols, k.name+" "+k.typ+" NOT NULL")
		names = append(names, k.name)
	}
	return fmt.Sprintf("CREATE TABLE %s(%s, %s, PRIMARY KEY(%s)) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
		r.full(), strings.Join(cols, ","), values, strings.Join(names, ","))
}

func (r *relation) literals(n int) []string {
	out := make([]string, len(r.key))
	for i, k := range r.key {
		if i == len(r.key)-1 {
			out[i] = k.literal(n)
			break
		}
		out[i] = k.literal(n % 5)
		n /= 5
	}
	return out
}

func (r *relation) where(n int) string {
	parts := r.literals(n)
	for i := range parts {
		parts[i] = r.key[i].name + "=" + parts[i]
	}
	return strings.Join(parts, " AND ")
}

func (r *relation) setKey(n int) string {
	parts := r.literals(n)
	for i := range parts {
		parts[i] = r.key[i].name + "=" + parts[i]
	}
	return strings.Join(parts, ", ")
}

// columns are the added ones, of which the writers know.
func (r *relation) columns() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.extra[:len(r.extra):len(r.extra)]
}

func intKey(name, typ string, from int) keyColumn {
	return keyColumn{name, typ, func(n int) string { return fmt.Sprint(from + n) }}
}

var start = time.Date(1969, 12, 20, 0, 0, 0, 0, time.UTC)

// relations makes the tables of a round. Sizes and places are the seed's choice.
func relations(rnd *rand.Rand) []*relation {
	pick := func(choices ...any) any { return choices[rnd.IntN(len(choices))] }
	text := func(a, b, c string) func(int) string {
		return func(n int) string {
			var w strings.Builder
			for n++; n > 0; n = (n - 1) / 3 {
				w.WriteString([]string{a, b, c}[(n-1)%3])
			}
			return "'" + w.String() + "'"
		}
	}
	out := []*relation{
		{name: "ledger", key: []keyColumn{intKey("id", "BIGINT", 0)}, duckdb: true},
		{name: "changes", key: []keyColumn{intKey("id", "BIGINT", 0)}, space: 200, duckdb: true,
			entry: map[string]any{"mode": "append", "on_truncate": "apply"}},
		{name: "one", key: []keyColumn{intKey("id", "INT", -50)}, space: 120, duckdb: true},
		{name: "big", key: []keyColumn{{"id", "BIGINT UNSIGNED", func(n int) string { return fmt.Sprint(18446744073709551615 - uint64(n)) }}},
			space: 3000, duckdb: true, entry: map[string]any{"target_file_size": "1MiB"}},
		{name: "two", key: []keyColumn{{"k1", "VARCHAR(30)", text("a", "|", "é")}, {"k2", "VARBINARY(12)",
			func(n int) string { return fmt.Sprintf("x'%02x%04x%s'", n%3, n, strings.Repeat("00", n%4)) }}}, space: 300, duckdb: true},
		{name: "three", key: []keyColumn{
			{"k1", "DATE", func(n int) string { return start.AddDate(0, 0, 7*n).Format("'2006-01-02'") }},
			{"k2", "DECIMAL(12,3)", func(n int) string { return fmt.Sprintf("%d.%03d", n/7-20, n%7*100) }},
			{"k3", "DATETIME(6)", func(n int) string {
				return start.Add(time.Duration(n) * 3571 * time.Second).Format("'2006-01-02 15:04:05.000001'")
			}}}, space: 300, duckdb: true},
		{name: "moves", key: []keyColumn{intKey("id", "INT UNSIGNED", 0)}, space: 150,
			entry: map[string]any{"partition_by": pick([]string{"region"}, []string{"u"})}},
		{name: "days", key: []keyColumn{intKey("k1", "SMALLINT", -3), {"k2", "VARCHAR(20)", text("x", " y", "\\'")}}, space: 150,
			entry: map[string]any{"partition_by": pick([]string{"year(day)", "bucket(2, k1)"}, []string{"bucket(3, u)"}, []string{"truncate(1, region)"})}},
		{name: "upserts", key: []keyColumn{intKey("id", "BIGINT", -1)}, space: 150, duckdb: true, entry: map[string]any{"inserts": "upsert"}},
		{name: "cleared", key: []keyColumn{{"id", "CHAR(12) CHARACTER SET latin1 COLLATE latin1_bin", func(n int) string { return fmt.Sprintf("'é%d'", n) }}},
			space: 100, duckdb: true},
	}
	return out
}

// hugeRows is how many rows the largest transactions write at once.
const hugeRows = 15_000

// entries is the value of `tables`.
func entries(rels []*relation) []any {
	var out []any
	for _, r := range rels {
		if r.entry == nil {
			continue
		}
		m := map[string]any{"match": r.full()}
		for k, v := range r.entry {
			m[k] = v
		}
		out = append(out, m)
	}
	return out
}

// late is a relation that is created while the daemon runs.
func late(n int) *relation {
	return &relation{name: fmt.Sprintf("late%d", n), key: []keyColumn{intKey("id", "INT", 0)}, space: 60, duckdb: true}
}

// prepare makes databases and tables anew, with some rows to copy.
func prepare(t harness.T, s *harness.Server, rels []*relation, rnd *rand.Rand) {
	s.Exec(t, "DROP DATABASE IF EXISTS "+captured, "DROP DATABASE IF EXISTS "+foreign,
		"CREATE DATABASE "+captured+" CHARACTER SET utf8mb4", "CREATE DATABASE "+foreign+" CHARACTER SET utf8mb4",
		"CREATE TABLE "+foreign+".numbers(n INT PRIMARY KEY)", "CREATE TABLE "+foreign+".other(id INT PRIMARY KEY, v TEXT)")
	var all strings.Builder
	for n := range hugeRows {
		if n > 0 {
			all.WriteByte(',')
		}
		fmt.Fprintf(&all, "(%d)", n)
	}
	s.Exec(t, "INSERT INTO "+foreign+".numbers VALUES"+all.String())
	for _, r := range rels {
		s.Exec(t, r.create())
		if r.name == "ledger" || r.name == "changes" {
			continue
		}
		var q strings.Builder
		q.WriteString("BEGIN")
		for n := range min(r.space, 200) {
			if rnd.IntN(3) > 0 {
				q.WriteString(";" + r.insert(rnd, n, 0))
			}
		}
		q.WriteString(";COMMIT")
		s.Exec(t, q.String())
	}
}
