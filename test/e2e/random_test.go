package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A keyType is a column type of a key and the literal of its i-th value; two
// numbers never give the same value.
type keyType struct {
	typ     string
	literal func(i int) string
}

var keyTypes = []keyType{
	{"TINYINT UNSIGNED", func(i int) string { return f("%d", i%256) }},
	{"INT", func(i int) string { return f("%d", i-500) }},
	{"BIGINT", func(i int) string { return f("%d", -9223372036854775807+int64(i)) }},
	{"BIGINT UNSIGNED", func(i int) string { return f("%d", 18446744073709551615-uint64(i)) }},
	{"MEDIUMINT UNSIGNED", func(i int) string { return f("%d", 16777215-i) }},
	{"DECIMAL(12,3)", func(i int) string { return f("%d.%03d", i/1000-20, i%1000) }},
	{"DECIMAL(30,5)", func(i int) string { return f("1234567890123456789%d.00001", i) }},
	{"VARCHAR(40) COLLATE utf8mb4_bin", func(i int) string { return "'" + word(i, "a", "|", "b", "") + "'" }},
	{"VARCHAR(60) COLLATE utf8mb4_bin", func(i int) string { return "'" + word(i, "é", "😀", "\\\\", "\\'") + "'" }},
	{"CHAR(12) CHARACTER SET latin1 COLLATE latin1_bin", func(i int) string { return f("'é%d'", i) }},
	{"BINARY(4)", func(i int) string { return f("x'%02x%02x%02x00'", i&255, i>>8&255, i>>16) }},
	{"VARBINARY(8)", func(i int) string { return f("x'%02x%06x%s'", i%3, i, strings.Repeat("00", i%4)) }},
	{"DATE", func(i int) string { return day(i) }},
	{"DATETIME", func(i int) string { return f("%s + INTERVAL %d SECOND", "TIMESTAMP'1969-12-31 00:00:00'", i) }},
	{"DATETIME(6)", func(i int) string { return f("TIMESTAMP'2024-02-28 23:59:59.999000' + INTERVAL %d MICROSECOND", i) }},
	{"TIME(3)", func(i int) string { return f("'%03d:%02d:%02d.001'", i/3600-100, i/60%60, i%60) }},
}

// word writes i in base 3 with three digits of text; end closes it.
func word(i int, a, b, c, end string) string {
	var out strings.Builder
	for ; i > 0; i = (i - 1) / 3 {
		out.WriteString([]string{a, b, c}[(i-1)%3])
	}
	return out.String() + end
}

func day(i int) string {
	return "'" + time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, i).Format(time.DateOnly) + "'"
}

// A randomTable is one relation of the random run, with what its rows are known
// to be by number.
type randomTable struct {
	name   string
	keys   []keyType
	config map[string]any // entry of `tables`, nil for none
	append bool
	duckdb bool

	live  []int       // numbers of the rows that are there
	at    map[int]int // number to its place in live
	next  int
	freed []int
}

// key spreads number n over the key's columns.
func (r *randomTable) key(n int) []string {
	out := make([]string, len(r.keys))
	for i, k := range r.keys {
		if i == len(r.keys)-1 {
			out[i] = k.literal(n)
			break
		}
		out[i] = k.literal(n % 7)
		n /= 7
	}
	return out
}

func (r *randomTable) where(n int) string {
	parts := r.key(n)
	for i := range parts {
		parts[i] = f("k%d=%s", i, parts[i])
	}
	return strings.Join(parts, " AND ")
}

func (r *randomTable) add(n int) {
	r.at[n] = len(r.live)
	r.live = append(r.live, n)
}

func (r *randomTable) remove(n int) {
	i := r.at[n]
	last := r.live[len(r.live)-1]
	r.live[i], r.at[last] = last, i
	r.live = r.live[:len(r.live)-1]
	delete(r.at, n)
	r.freed = append(r.freed, n)
}

// fresh is the number of a row that isn't there: often one that was.
func (r *randomTable) fresh(rnd *rand.Rand) int {
	if len(r.freed) > 0 && rnd.IntN(3) == 0 {
		i := rnd.IntN(len(r.freed))
		n := r.freed[i]
		r.freed[i] = r.freed[len(r.freed)-1]
		r.freed = r.freed[:len(r.freed)-1]
		return n
	}
	r.next++
	return r.next - 1
}

func (r *randomTable) create() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE rnd.%s(u INT NOT NULL", r.name)
	names := make([]string, len(r.keys))
	for i, k := range r.keys {
		names[i] = f("k%d", i)
		fmt.Fprintf(&b, ", k%d %s NOT NULL", i, k.typ)
	}
	fmt.Fprintf(&b, ", a BIGINT, d DECIMAL(20,4), s VARCHAR(80), b VARBINARY(40), t DATETIME(6), day DATE, x DOUBLE, note TEXT, PRIMARY KEY(%s)) CHARACTER SET utf8mb4",
		strings.Join(names, ","))
	return b.String()
}

func values(rnd *rand.Rand) string {
	opt := func(s string) string {
		if rnd.IntN(8) == 0 {
			return "NULL"
		}
		return s
	}
	return strings.Join([]string{
		opt(f("%d", rnd.Int64()-rnd.Int64())),
		opt(f("%d.%04d", rnd.IntN(2_000_000)-1_000_000, rnd.IntN(10000))),
		opt(f("'%s'", word(rnd.IntN(100000), "x", "ü", " ", "")+f("%d", rnd.IntN(100)))),
		opt(f("x'%0*x'", 2*(1+rnd.IntN(8)), rnd.IntN(256))),
		opt(f("TIMESTAMP'1960-01-01 00:00:00' + INTERVAL %d SECOND + INTERVAL %d MICROSECOND", rnd.IntN(4_000_000_000), rnd.IntN(1_000_000))),
		opt(day(rnd.IntN(60000))),
		opt(f("%.6f", rnd.Float64()*1e6)),
		opt(f("REPEAT('%c',%d)", 'a'+rune(rnd.IntN(26)), rnd.IntN(120))),
	}, ",")
}

func (r *randomTable) insert(rnd *rand.Rand, n int) string {
	return f("INSERT INTO rnd.%s VALUES(%d,%s,%s)", r.name, rnd.IntN(50), strings.Join(r.key(n), ","), values(rnd))
}

// change makes one random change: 60 % inserts, 30 % updates, 10 % deletes.
func (r *randomTable) change(rnd *rand.Rand) string {
	roll := rnd.IntN(100)
	if r.append || len(r.live) == 0 {
		roll = 0
	}
	switch {
	case roll < 60:
		n := r.fresh(rnd)
		r.add(n)
		return r.insert(rnd, n)
	case roll < 90:
		n := r.live[rnd.IntN(len(r.live))]
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
			return f("UPDATE rnd.%s SET a=COALESCE(a,0) DIV 2 WHERE u=%d LIMIT 20", r.name, rnd.IntN(50))
		default:
			return f("UPDATE rnd.%s SET u=%d, a=%d, s='%d', day=%s WHERE %s", r.name, rnd.IntN(50), rnd.IntN(1000), rnd.IntN(1000), day(rnd.IntN(60000)), r.where(n))
		}
	default:
		n := r.live[rnd.IntN(len(r.live))]
		r.remove(n)
		return f("DELETE FROM rnd.%s WHERE %s", r.name, r.where(n))
	}
}

// randomTables makes 20 relations: keys of one to three columns, a few of the
// tables partitioned, one an append table.
func randomTables(rnd *rand.Rand) []*randomTable {
	var out []*randomTable
	for i := range 20 {
		r := &randomTable{name: f("t%02d", i), at: map[int]int{}, duckdb: true}
		// Every key type is the last column of some key; the last column tells
		// rows apart.
		last := keyTypes[1+i%(len(keyTypes)-1)]
		for range rnd.IntN(3) {
			r.keys = append(r.keys, keyTypes[rnd.IntN(len(keyTypes))])
		}
		r.keys = append(r.keys, last)
		entry := map[string]any{"match": "rnd." + r.name}
		switch i {
		case 3:
			entry["partition_by"] = []string{"bucket(4, k0)"}
		case 7:
			entry["partition_by"] = []string{"u"}
		case 11:
			entry["partition_by"] = []string{"year(day)", "bucket(2, u)"}
		case 15:
			entry["target_file_size"] = "1MiB"
			entry["inserts"] = "upsert"
		case 19:
			entry["mode"] = "append"
			r.append = true
		}
		if len(entry) > 1 {
			r.config = entry
		}
		r.duckdb = entry["partition_by"] == nil
		out = append(out, r)
	}
	return out
}

// TestRandomChangesWithCrashes writes random changes into 20 tables while the
// daemon is killed again and again, and then wants every row once and no other.
func TestRandomChangesWithCrashes(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		n := *seed
		if n == 0 {
			n = time.Now().UnixNano()
		}
		t.Logf("seed %d (-seed %d -changes %d -kills %d)", n, n, *changes, *kills)
		rnd := rand.New(rand.NewPCG(uint64(n), 1))
		db := database(t, s, "rnd")
		tables := randomTables(rnd)
		var entries []map[string]any
		for _, r := range tables {
			var load []string
			for range 500 {
				k := r.fresh(rnd)
				r.add(k)
				load = append(load, r.insert(rnd, k))
			}
			s.Exec(t, r.create(), "BEGIN;"+strings.Join(load, ";")+";COMMIT")
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
		go func() { failed <- write(ctx, s, wrnd, tables, &done) }()

		krnd := rand.New(rand.NewPCG(uint64(n), 3))
		killed := 0
		for killed < *kills {
			// The kills fall evenly over the changes, at any moment of a checkpoint;
			// the first ones into the copy.
			want := int64(killed) * int64(*changes) / int64(*kills)
			pause := time.After(time.Duration(20+krnd.IntN(1500)) * time.Millisecond)
			harness.Poll(waitLimit, func() bool { return done.Load() >= want || ctx.Err() != nil || !p.Running() })
			<-pause
			if !p.Running() {
				e := p.Ended(0)
				t.Fatalf("seed %d: the daemon ended by itself with %d after %d kills\n%s", n, e.Code, killed, p.LogTail(20))
			}
			p.Kill()
			killed++
			p.Launch()
		}
		if err := <-failed; err != nil {
			t.Fatalf("seed %d: the writer: %v", n, err)
		}
		p.Kill()
		p.Launch()
		p.Wait(2 * waitLimit)
		// Spark takes long to start: it reads once here, everywhere in the long form.
		var spark []*harness.Reader
		if *long || s.Source == "mariadb" {
			spark = append(spark, harness.NewReader("spark"))
			defer spark[0].Close()
		}
		for _, r := range tables {
			want := s.Rows(t, db, r.name)
			j := judge(t)
			if !r.duckdb {
				j = java(t)
			}
			j = &harness.Judge{Java: j.Java, Others: append(slices.Clone(j.Others), spark...)}
			ok := false
			if r.append {
				ok = appended(t, j, p.Table(db, r.name), want)
			} else {
				ok = j.EqualLines(t, p.Table(db, r.name), want)
			}
			if !ok {
				t.Errorf("seed %d: %s (%v) differs", n, r.name, r.config)
			}
		}
		p.Stop()
	})
}

// write makes the changes, in transactions of 1 to 50.
func write(ctx context.Context, s *harness.Server, rnd *rand.Rand, tables []*randomTable, done *atomic.Int64) error {
	c, err := s.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // back to the pool
	for int(done.Load()) < *changes {
		size := 1 + rnd.IntN(50)
		if rnd.IntN(20) == 0 {
			size = 500
		}
		q := make([]string, 0, size+2)
		q = append(q, "BEGIN")
		r := tables[rnd.IntN(len(tables))]
		for range size {
			if rnd.IntN(4) == 0 {
				r = tables[rnd.IntN(len(tables))]
			}
			q = append(q, r.change(rnd))
		}
		q = append(q, "COMMIT")
		if _, err := c.ExecContext(ctx, strings.Join(q, ";")); err != nil {
			if ctx.Err() != nil {
				return errors.New("stopped")
			}
			return fmt.Errorf("%w in %.2000s", err, strings.Join(q, ";"))
		}
		done.Add(int64(size))
	}
	return nil
}

// appended holds an append table, to which only inserts were made, against the
// relation: each row once, with a position of its own.
func appended(t *testing.T, j *harness.Judge, table string, want []string) bool {
	t.Helper()
	ok := true
	seen := map[string]bool{}
	var rows []string
	for _, l := range j.Java.Rows(t, table) {
		row, meta, found := strings.Cut(l, `,"_op":`)
		if !found {
			t.Errorf("%s: a row without _op: %s", table, l)
			return false
		}
		_, place, _ := strings.Cut(meta, `"_position":`)
		// Rows of the copy share the cut's position; only the log's are told apart.
		if strings.HasPrefix(meta, `"c"`) {
			if seen[place] {
				t.Errorf("%s: two rows at %s", table, place)
				ok = false
			}
			seen[place] = true
		}
		rows = append(rows, row+"}")
	}
	slices.Sort(rows)
	if d := harness.Diff(want, rows); d != "" {
		t.Errorf("%s: %s", table, d)
		ok = false
	}
	j.Java.Audit(t, table)
	return ok
}
