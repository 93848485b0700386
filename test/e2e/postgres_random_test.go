package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

var pgKeyTypes = []keyType{
	{"integer", func(i int) string { return f("%d", i-500) }},
	{"bigint", func(i int) string { return f("%d", -9223372036854775807+int64(i)) }},
	{"smallint", func(i int) string { return f("%d", i-30000) }},
	{"numeric(12,3)", func(i int) string { return f("%d.%03d", i/1000-20, i%1000) }},
	{"numeric(30,5)", func(i int) string { return f("1234567890123456789%d.00001", i) }},
	{`text COLLATE "C"`, func(i int) string { return "'" + word(i, "a", "|", "b", "") + "'" }},
	{`varchar(60) COLLATE "C"`, func(i int) string { return "'" + word(i, "é", "😀", "''", "\\") + "'" }},
	{"char(12)", func(i int) string { return f("'é%d'", i) }},
	{"bytea", func(i int) string { return f(`'\x%02x%06x%s'`, i%3, i, strings.Repeat("00", i%4)) }},
	{"date", day},
	{"timestamp", func(i int) string { return f("TIMESTAMP '1969-12-31 23:59:59.999' + %d * interval '1 microsecond'", i) }},
	{"timestamptz", func(i int) string { return f("TIMESTAMPTZ '2024-10-27 00:00:00Z' + %d * interval '1 minute'", i) }},
	{"uuid", func(i int) string { return f("'00000000-0000-4000-8000-%012x'", i) }},
	{"time", func(i int) string { return f("TIME '00:00:00.000001' + %d * interval '1 second'", i) }},
}

// pgTable makes the statements of a randomTable for PostgreSQL.
type pgTable struct {
	randomTable
	full bool // old rows come whole
}

func (r *pgTable) create() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE rnd.%s(u int NOT NULL", r.name)
	names := make([]string, len(r.keys))
	for i, k := range r.keys {
		names[i] = f("k%d", i)
		fmt.Fprintf(&b, ", k%d %s NOT NULL", i, k.typ)
	}
	fmt.Fprintf(&b, ", a bigint, d numeric(20,4), s text, b bytea, t timestamp, day date, x float8, l int[], PRIMARY KEY(%s))", strings.Join(names, ","))
	if r.full {
		fmt.Fprintf(&b, "; ALTER TABLE rnd.%s REPLICA IDENTITY FULL", r.name)
	}
	return b.String()
}

func (r *pgTable) insert(rnd *rand.Rand, n int) string {
	opt := func(s string) string {
		if rnd.IntN(8) == 0 {
			return "NULL"
		}
		return s
	}
	return f("INSERT INTO rnd.%s VALUES(%d,%s,%s)", r.name, rnd.IntN(50), strings.Join(r.key(n), ","), strings.Join([]string{
		opt(f("%d", rnd.Int64()-rnd.Int64())),
		opt(f("%d.%04d", rnd.IntN(2_000_000)-1_000_000, rnd.IntN(10000))),
		opt(f("'%s'", word(rnd.IntN(100000), "x", "ü", " ", f("%d", rnd.IntN(100))))),
		opt(f(`'\x%0*x'`, 2*(1+rnd.IntN(8)), rnd.IntN(256))),
		opt(f("TIMESTAMP '1960-01-01' + %d * interval '1 second'", rnd.IntN(4_000_000_000))),
		opt(day(rnd.IntN(60000))),
		opt(f("%.6f", rnd.Float64()*1e6)),
		opt(f("'{%d,NULL,%d}'", rnd.IntN(100), rnd.IntN(100))),
	}, ","))
}

// change makes one random change: 60 % inserts, 30 % updates, 10 % deletes.
func (r *pgTable) change(rnd *rand.Rand) string {
	roll := rnd.IntN(100)
	if r.append || len(r.live) == 0 {
		roll = 0
	}
	if roll < 60 {
		n := r.fresh(rnd)
		r.add(n)
		return r.insert(rnd, n)
	}
	n := r.live[rnd.IntN(len(r.live))]
	if roll >= 90 {
		r.remove(n)
		return f("DELETE FROM rnd.%s WHERE %s", r.name, r.where(n))
	}
	if rnd.IntN(3) > 0 { // most updates meet few rows again and again
		n = r.live[rnd.IntN(min(len(r.live), 20))]
	}
	switch rnd.IntN(10) {
	case 0: // the key moves
		m := r.fresh(rnd)
		var set []string
		for i, v := range r.key(m) {
			set = append(set, f("k%d=%s", i, v))
		}
		q := f("UPDATE rnd.%s SET %s, u=%d WHERE %s", r.name, strings.Join(set, ","), rnd.IntN(50), r.where(n))
		r.remove(n)
		r.add(m)
		return q
	case 1: // some rows at once
		return f("UPDATE rnd.%s SET a=COALESCE(a,0)/2 WHERE u=%d", r.name, rnd.IntN(50))
	}
	return f("UPDATE rnd.%s SET u=%d, a=%d, s='%d', day=%s WHERE %s", r.name, rnd.IntN(50), rnd.IntN(1000), rnd.IntN(1000), day(rnd.IntN(60000)), r.where(n))
}

func pgRandomTables(rnd *rand.Rand) []*pgTable {
	var out []*pgTable
	for i := range len(pgKeyTypes) {
		r := &pgTable{randomTable: randomTable{name: f("t%02d", i), at: map[int]int{}, duckdb: true}}
		for range rnd.IntN(3) {
			r.keys = append(r.keys, pgKeyTypes[rnd.IntN(len(pgKeyTypes))])
		}
		r.keys = append(r.keys, pgKeyTypes[i]) // it tells rows apart
		entry := map[string]any{"match": "rnd." + r.name}
		switch i {
		case 1:
			entry["partition_by"] = []string{"bucket(4, k0)"}
		case 4:
			entry["partition_by"], r.full = []string{"u"}, true
		case 7:
			entry["partition_by"], r.full = []string{"year(day)", "bucket(2, u)"}, true
		case 9:
			entry["inserts"] = "upsert"
		case 11:
			r.full = true
		case 12:
			entry["mode"], r.append = "append", true
		}
		if len(entry) > 1 {
			r.config = entry
		}
		r.duckdb = entry["partition_by"] == nil
		out = append(out, r)
	}
	return out
}

// TestPostgresRandomChangesWithCrashes is TestRandomChangesWithCrashes on
// PostgreSQL, with a quarter of the changes and half of the crashes.
func TestPostgresRandomChangesWithCrashes(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		n := *seed
		if n == 0 {
			n = time.Now().UnixNano()
		}
		changes, kills := *changes/4, (*kills+1)/2
		t.Logf("seed %d (-seed %d -changes %d -kills %d)", n, n, 4*changes, 2*kills)
		rnd := rand.New(rand.NewPCG(uint64(n), 1))
		s.Schema(t, "rnd")
		s.Publish(t, "rnd", "rnd")
		tables := pgRandomTables(rnd)
		var entries []map[string]any
		for _, r := range tables {
			load := []string{r.create(), "BEGIN"}
			for range 200 {
				k := r.fresh(rnd)
				r.add(k)
				load = append(load, r.insert(rnd, k))
			}
			s.Exec(t, strings.Join(append(load, "COMMIT"), ";"))
			if r.config != nil {
				entries = append(entries, r.config)
			}
		}
		p := harness.NewPipeline(t, s, "rnd", "rnd.*").Set("tables", tablesKey(entries...))
		p.Run()

		var done atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		wrnd := rand.New(rand.NewPCG(uint64(n), 2))
		// It ends with the last change, or with the test.
		go func() { failed <- pgWrite(ctx, s, wrnd, tables, changes, &done) }()

		krnd := rand.New(rand.NewPCG(uint64(n), 3))
		for killed := range kills {
			// The kills fall evenly over the changes, at any moment of a checkpoint;
			// the first one into the copy.
			want := int64(killed) * int64(changes) / int64(kills)
			pause := time.After(time.Duration(20+krnd.IntN(1500)) * time.Millisecond)
			harness.Poll(waitLimit, func() bool { return done.Load() >= want || len(failed) > 0 || !p.Running() })
			<-pause
			if !p.Running() {
				e := p.Ended(0)
				t.Fatalf("seed %d: the daemon ended by itself with %d after %d kills\n%s", n, e.Code, killed, p.LogTail(20))
			}
			p.Kill()
			p.Launch()
		}
		if err := <-failed; err != nil {
			t.Fatalf("seed %d: the writer: %v", n, err)
		}
		p.Kill()
		p.Launch()
		p.Wait(2 * waitLimit)
		for _, r := range tables {
			want := s.Rows(t, "rnd", r.name)
			j := judge(t)
			if !r.duckdb {
				j = java(t)
			}
			ok := false
			if r.append {
				ok = appended(t, j, p.Table("rnd", r.name), want)
			} else {
				ok = j.EqualLines(t, p.Table("rnd", r.name), want)
			}
			if !ok {
				t.Errorf("seed %d: %s (%v) differs", n, r.name, r.config)
			}
		}
		p.Stop()
	})
}

// pgWrite makes the changes, in transactions of 1 to 50, a few of 300; one in
// ten is rolled back to a savepoint and made again.
func pgWrite(ctx context.Context, s *harness.Server, rnd *rand.Rand, tables []*pgTable, changes int, done *atomic.Int64) error {
	c, err := s.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // back to the pool
	for int(done.Load()) < changes {
		size := 1 + rnd.IntN(50)
		if rnd.IntN(20) == 0 {
			size = 300
		}
		var q []string
		r := tables[rnd.IntN(len(tables))]
		for range size {
			if rnd.IntN(4) == 0 {
				r = tables[rnd.IntN(len(tables))]
			}
			q = append(q, r.change(rnd))
		}
		all := strings.Join(q, ";")
		if rnd.IntN(10) == 0 {
			all = "SAVEPOINT a;" + all + ";ROLLBACK TO a;" + all
		}
		if _, err := c.ExecContext(ctx, "BEGIN;"+all+";COMMIT"); err != nil {
			return fmt.Errorf("%w in %.2000s", err, all)
		}
		done.Add(int64(size))
	}
	return nil
}
