// Command bench measures what a copy and a catch-up cost beside the leanest
// programs that read the same source: mysqldump and mysqlbinlog, both to
// nowhere. It prints one JSON line for each figure and writes
// docs/reference/benchmarks.md.
//
// Rates are rows per second of CPU, which hold on a busy machine where wall
// times do not; every figure is the median of the runs.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

var (
	runs   = flag.Int("runs", 3, "runs of which the median counts")
	scale  = flag.Float64("scale", 1, "share of the full number of rows")
	only   = flag.String("only", "", "measure only figures whose name contains this")
	output = flag.String("write", "docs/reference/benchmarks.md", "page to write; empty: none")
)

// A figure is one line of the output. Ours and Reference are in Unit; Ratio is
// ours divided by reference, and must be at least Bar, or at most Bar where less
// is better.
type figure struct {
	Name      string  `json:"name"`
	Ours      float64 `json:"ours"`
	Reference float64 `json:"reference"`
	Ratio     float64 `json:"ratio"`
	Bar       float64 `json:"bar"`
	Pass      bool    `json:"pass"`
	Unit      string  `json:"unit"`
	less      bool
	what      string
}

func main() {
	flag.Parse()
	os.Exit(harness.Program("bench", bench))
}

type benchmark struct {
	t       harness.T
	s       *harness.Server
	figures []figure
}

func (b *benchmark) add(f figure) {
	f.Ratio = f.Ours / f.Reference
	f.Pass = f.Ratio >= f.Bar
	if f.less {
		f.Pass = f.Bar == 0 || f.Ratio <= f.Bar // 0: for orientation, without a bar
	}
	line, err := json.Marshal(f)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	fmt.Println(string(line))
	b.figures = append(b.figures, f)
}

func wanted(name string) bool { return strings.Contains(name, *only) }

func bench(t harness.T) {
	s, err := harness.Shared(t.Context(), harness.MySQL, "--innodb-buffer-pool-size=1G", "--max-binlog-size=1G")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(s.Wipe)
	b := &benchmark{t: t, s: s}
	s.Exec(t, "CREATE DATABASE bench CHARACTER SET utf8mb4",
		"CREATE TABLE bench.n(i INT PRIMARY KEY)", "SET SESSION cte_max_recursion_depth=10000000",
		"INSERT INTO bench.n WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM g WHERE i<1000) SELECT i FROM g")

	if wanted("copy_narrow") {
		b.copy("narrow", narrow, rows(2_000_000), 0.3)
	}
	if wanted("copy_wide") {
		b.copy("wide", wide, rows(500_000), 0.25)
	}
	if wanted("log_insert") {
		b.log("insert", rows(300_000), insertOnly, 0.08)
	}
	if wanted("log_mixed") {
		b.log("mixed", rows(300_000), mixed, 0.2)
	}
	if wanted("start") {
		b.start()
	}
	if *output != "" && *only == "" {
		b.page()
	}
	for _, f := range b.figures {
		if !f.Pass {
			t.Errorf("%s: ratio %.3f misses its bar %.3f", f.Name, f.Ratio, f.Bar)
		}
	}
}

func rows(full int) int { return max(1000, int(float64(full)**scale)/1000*1000) }

// A shape is a relation: its columns, and an expression of i for each.
type shape [][2]string

func h(i int) string { return fmt.Sprintf("CAST(CRC32(CONCAT(i,'/%d')) AS SIGNED)", i) }

// narrow has 12 columns of about 140 bytes together.
var narrow = shape{
	{"id BIGINT PRIMARY KEY", "i"},
	{"a INT", h(1) + "-2147483648"}, {"b INT", h(2) + "%100000"}, {"c BIGINT", h(3) + "*1073741824+" + h(4)},
	{"s1 VARCHAR(32)", "SUBSTR(SHA2(i,256),1,12+i%5)"}, {"d1 DECIMAL(12,2)", "(" + h(5) + "-2147483648)/7.00"},
	{"t1 DATETIME(6)", "TIMESTAMP'2020-01-01 00:00:00.000000'+INTERVAL " + h(6) + "%157000000 SECOND+INTERVAL " + h(7) + "%1000000 MICROSECOND"},
	{"d2 DATE", "DATE'2020-01-01'+INTERVAL " + h(8) + "%2000 DAY"}, {"k TINYINT", h(9) + "%200-100"}, {"f DOUBLE", h(10) + "/1000000"},
	{"s2 VARCHAR(16)", "IF(i%10=0,NULL,ELT(1+" + h(11) + "%5,'alpha','beta','gamma','delta','epsilon'))"},
	{"note TEXT", "CONCAT(SUBSTR(SHA2(i+1,256),1,36),IF(i%2,'-','abcdefgh'))"},
}

// wide has 29 columns of about 600 bytes together.
var wide = func() shape {
	s := shape{{"id BIGINT PRIMARY KEY", "i"}}
	add := func(n int, name, typ string, expr func(k int) string) {
		for k := range n {
			s = append(s, [2]string{fmt.Sprintf("%s%d %s", name, k, typ), expr(20 + len(s) + k)})
		}
	}
	add(6, "i", "INT", func(k int) string { return h(k) + "-2147483648" })
	add(3, "b", "BIGINT", func(k int) string { return h(k) + "*1073741824" })
	add(3, "d", "DECIMAL(12,2)", func(k int) string { return h(k) + "/7.00" })
	add(4, "t", "DATETIME(6)", func(k int) string {
		return "TIMESTAMP'2020-01-01 00:00:00.000000'+INTERVAL " + h(k) + "%157000000 SECOND"
	})
	add(2, "y", "DATE", func(k int) string { return "DATE'2020-01-01'+INTERVAL " + h(k) + "%2000 DAY" })
	add(2, "f", "DOUBLE", func(k int) string { return h(k) + "/1000000" })
	add(1, "k", "TINYINT", func(k int) string { return h(k) + "%200-100" })
	add(6, "s", "VARCHAR(80)", func(k int) string { return fmt.Sprintf("SUBSTR(SHA2(i+%d,256),1,40+i%%25)", k) })
	add(1, "x", "TEXT", func(k int) string { return "CONCAT(SHA2(i+1,256),SUBSTR(SHA2(i+2,256),1,45+i%40))" })
	return s
}()

// make creates a relation of n rows.
func (b *benchmark) make(name string, s shape, n int) {
	cols, exprs := make([]string, len(s)), make([]string, len(s))
	for i, c := range s {
		cols[i], exprs[i] = c[0], c[1]
	}
	b.s.Exec(b.t, "DROP TABLE IF EXISTS bench."+name, fmt.Sprintf("CREATE TABLE bench.%s(%s)", name, strings.Join(cols, ",")))
	for k := range n / 1000 {
		b.s.Exec(b.t, fmt.Sprintf("INSERT INTO bench.%s SELECT %s FROM (SELECT i+%d AS i FROM bench.n) AS g", name, strings.Join(exprs, ","), k*1000))
	}
	b.s.Exec(b.t, "ANALYZE TABLE bench."+name)
}

// A cost is what one run took.
type cost struct {
	wall, client, server time.Duration
	peak                 int64
}

// measure runs f and adds the server's own CPU time.
func (b *benchmark) measure(f func() (time.Duration, int64)) cost {
	before, err := harness.CPU(b.s.Pid())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	start := time.Now()
	client, peak := f()
	c := cost{wall: time.Since(start), client: client, peak: peak}
	after, err := harness.CPU(b.s.Pid())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	c.server = after - before
	return c
}

// tool runs a program of the server's client package to its end; what it prints goes
// to /dev/null.
func (b *benchmark) tool(args ...string) cost {
	return b.measure(func() (time.Duration, int64) {
		cmd := b.s.ClientCmd(b.t.Context(), args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			b.t.Fatalf("%v: %v: %s", args, err, stderr.String())
		}
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), 0
	})
}

func median(costs []cost, of func(cost) float64) float64 {
	v := make([]float64, len(costs))
	for i, c := range costs {
		v[i] = of(c)
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func client(c cost) float64 { return c.client.Seconds() }
func both(c cost) float64   { return (c.client + c.server).Seconds() }
func wall(c cost) float64   { return c.wall.Seconds() }
func peak(c cost) float64   { return float64(c.peak) / 1e6 }

// report adds the figures that every load has. Rates count client and server
// together on both sides; the client's alone, the time that passed and the server's
// share stand beside them without a bar.
func (b *benchmark) report(name, what string, n int, ours, reference []cost, bar float64) {
	rate := func(costs []cost, of func(cost) float64) float64 { return float64(n) / median(costs, of) }
	b.add(figure{Name: name, Ours: rate(ours, both), Reference: rate(reference, both), Bar: bar, Unit: "rows per CPU second", what: what + "; client and server together"})
	b.add(figure{Name: name + "_client", Ours: rate(ours, client), Reference: rate(reference, client), Unit: "rows per CPU second", what: what + "; the client alone"})
	b.add(figure{Name: name + "_wall", Ours: median(ours, wall), Reference: median(reference, wall), less: true,
		Unit: "s", what: what + ", time that passed"})
	b.add(figure{Name: name + "_server", Ours: median(ours, func(c cost) float64 { return c.server.Seconds() }),
		Reference: max(0.01, median(reference, func(c cost) float64 { return c.server.Seconds() })), less: true,
		Unit: "CPU seconds of the server", what: what + ", what it costs the source"})
	b.add(figure{Name: name + "_memory", Ours: median(ours, peak), Reference: 300, Bar: 1, less: true, Unit: "MB", what: what + ", peak resident size; the reference is the limit"})
}

// copy measures the initial snapshot of a relation against mysqldump.
func (b *benchmark) copy(name string, s shape, n int, bar float64) {
	b.make(name, s, n)
	var ours, reference []cost
	for i := range *runs {
		reference = append(reference, b.tool("mysqldump", "--single-transaction", "--quick", "bench", name))
		p := harness.NewPipeline(b.t, b.s, fmt.Sprintf("%s%d", name, i), "bench."+name).Set("checkpoint.interval", "10s")
		ours = append(ours, b.daemon(p))
		if i == 0 {
			b.same(p, name)
		}
		b.forget(p)
	}
	b.report("copy_"+name, fmt.Sprintf("initial snapshot, %s: %d columns, %d rows; reference mysqldump to /dev/null", name, len(s), n), n, ours, reference, bar)
}

// daemon runs a pipeline until all that the source has is readable.
func (b *benchmark) daemon(p *harness.Pipeline) cost {
	return b.measure(func() (time.Duration, int64) {
		p.Run()
		p.Wait(20 * time.Minute)
		rss := p.Peak()
		return p.Stop().CPU, rss
	})
}

// same holds the table against the relation: a figure of wrong rows is none.
func (b *benchmark) same(p *harness.Pipeline, name string) {
	r := harness.NewReader("java", "LAKESYNC_READERS_HEAP=4g")
	defer r.Close()
	lines, end, err := r.Ask("rows", p.Table("bench", name), "--digest")
	if err != nil || end != "0" {
		b.t.Errorf("read %s: %s %v", name, end, err)
		return
	}
	if got, want := strings.Join(lines, " "), b.s.Digest(b.t, "bench", name); got != want {
		b.t.Errorf("%s: %s read, %s in the source", name, got, want)
	}
}

func (b *benchmark) forget(p *harness.Pipeline) {
	if err := os.RemoveAll(filepath.Join(p.Dir, "lake")); err != nil {
		b.t.Errorf("%v", err)
	}
}

// log measures the catch-up over a range of the log against mysqlbinlog --raw.
func (b *benchmark) log(name string, n int, load func(b *benchmark, n int), bar float64) {
	b.make("live", narrow, 20_000)
	var pipes []*harness.Pipeline
	for i := range *runs {
		p := harness.NewPipeline(b.t, b.s, fmt.Sprintf("log_%s%d", name, i), "bench.live").Set("checkpoint.interval", "1s")
		p.Run()
		p.Wait(10 * time.Minute)
		p.Stop()
		pipes = append(pipes, p)
	}
	b.s.Exec(b.t, "FLUSH BINARY LOGS")
	first := b.logs()
	load(b, n)
	b.s.Exec(b.t, "FLUSH BINARY LOGS")
	all := b.logs()
	files := all[len(first)-1 : len(all)-1]
	var ours, reference []cost
	for i, p := range pipes {
		reference = append(reference, b.tool(append([]string{"mysqlbinlog", "--read-from-remote-server", "--raw", "--result-file=/dev/shm/lakesync-bench-"}, files...)...))
		if err := exec.Command("sh", "-c", "rm -f /dev/shm/lakesync-bench-*").Run(); err != nil {
			b.t.Errorf("%v", err)
		}
		ours = append(ours, b.daemon(p))
		if i == 0 {
			b.same(p, "live")
		}
		b.forget(p)
	}
	b.report("log_"+name, fmt.Sprintf("catch-up over %d changes (%s) of the narrow relation; reference mysqlbinlog --raw to memory", n, name), n, ours, reference, bar)
}

func (b *benchmark) logs() []string { return b.s.Column(b.t, "SHOW BINARY LOGS") }

// liveInsert is a statement that inserts n rows of the narrow shape, numbered from first on.
func liveInsert(first, n int) string {
	exprs := make([]string, len(narrow))
	for i, c := range narrow {
		exprs[i] = c[1]
	}
	return fmt.Sprintf("INSERT INTO bench.live SELECT %s FROM (SELECT i+%d AS i FROM bench.n WHERE i<=%d) AS g", strings.Join(exprs, ","), first-1, n)
}

// insertOnly makes n inserts, 50 rows a statement, each a transaction.
func insertOnly(b *benchmark, n int) {
	for k := range n / 50 {
		b.s.Exec(b.t, liveInsert(1_000_000+k*50, 50))
	}
}

// mixed makes n changes in transactions of 50 one-row statements: 60 % inserts,
// 30 % updates of five columns, most of them on few rows, 10 % deletes.
func mixed(b *benchmark, n int) {
	next, x := 1_000_000, uint64(88172645463325252)
	rnd := func(n int) int {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return int(x % uint64(n))
	}
	for range n / 50 {
		q := make([]string, 0, 52)
		q = append(q, "BEGIN")
		for range 50 {
			switch roll := rnd(100); {
			case roll < 60:
				q = append(q, liveInsert(next, 1))
				next++
			case roll < 90:
				id := 1 + rnd(200)
				if rnd(5) == 0 && next > 1_000_000 {
					id = 1_000_000 + rnd(next-1_000_000)
				}
				q = append(q, fmt.Sprintf("UPDATE bench.live SET a=%d, b=%d, d1=%d.25, t1='2026-01-01'+INTERVAL %d SECOND, s2='changed' WHERE id=%d",
					rnd(1<<30), rnd(100_000), rnd(1<<30), rnd(1<<24), id))
			default:
				id := 201 + rnd(19_800)
				if rnd(2) == 0 && next > 1_000_000 {
					id = 1_000_000 + rnd(next-1_000_000)
				}
				q = append(q, fmt.Sprintf("DELETE FROM bench.live WHERE id=%d", id))
			}
		}
		b.s.Exec(b.t, strings.Join(append(q, "COMMIT"), ";"))
	}
}

// start measures a start with nothing to do until the daemon streams, and its end.
func (b *benchmark) start() {
	b.make("small", narrow, 1000)
	p := harness.NewPipeline(b.t, b.s, "start", "bench.small")
	b.daemon(p)
	var ours []cost
	for range *runs {
		ours = append(ours, b.measure(func() (time.Duration, int64) {
			p.Run()
			p.State(30*time.Second, "streaming")
			rss := p.Peak()
			return p.Stop().CPU, rss
		}))
	}
	b.add(figure{Name: "start", Ours: median(ours, client), Reference: 0.3, Bar: 1, less: true, Unit: "CPU seconds",
		what: "start with nothing to do, until it streams, and stop; the reference is the limit"})
	b.add(figure{Name: "start_wall", Ours: median(ours, wall), Reference: 3, Bar: 1, less: true, Unit: "s", what: "the same, time that passed; the reference is the limit"})
}

// page writes the figures for people.
func (b *benchmark) page() {
	var w strings.Builder
	fmt.Fprintf(&w, `# Benchmarks

What a copy and a catch-up cost beside the leanest programs that read the same source and throw it away: mysqldump to
/dev/null and mysqlbinlog --raw to memory. `+"`make bench`"+` measures all of it anew and writes this page; rows are compared with
the source in the first run of each load. Figures are medians of %d runs on %d cores (%s/%s, %s), with MySQL %s on the same machine.
Rates are rows per second of CPU, client and server together on both sides; `+"`_client`"+` is the client alone. Absolute figures are one machine's; the ratios are what to compare.

| figure | ours | reference | ratio | bar | |
|---|---|---|---|---|---|
`, *runs, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), b.s.Query(b.t, "SELECT VERSION()"))
	for _, f := range b.figures {
		sign, verdict := "≥", "holds"
		if f.less {
			sign = "≤"
		}
		if !f.Pass {
			verdict = "**missed**"
		}
		bar := fmt.Sprintf("%s %.2f", sign, f.Bar)
		if f.Bar == 0 {
			bar, verdict = "", ""
		}
		fmt.Fprintf(&w, "| %s (%s) | %s | %s | %.3f | %s | %s |\n", f.Name, f.Unit, number(f.Ours), number(f.Reference), f.Ratio, bar, verdict)
	}
	w.WriteString("\n| figure | what was run |\n|---|---|\n")
	for _, f := range b.figures {
		fmt.Fprintf(&w, "| %s | %s |\n", f.Name, f.what)
	}
	path := filepath.Join(harness.Root(), *output)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatalf("%v", err)
	}
	if err := os.WriteFile(path, []byte(w.String()), 0o644); err != nil {
		b.t.Fatalf("%v", err)
	}
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
