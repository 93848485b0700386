package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A bench is what all rounds of a run share.
type bench struct {
	options
	s          *harness.Server
	toxi       *toxiproxy
	dbPort     int
	http       int
	store      *harness.S3 // nil for a local lake
	s3Endpoint string
	disks      []*disk
	cage       *cage // nil if there is none
	java       *harness.Reader
	duckdb     *harness.Reader
	count      *count
	peak       int64
}

// A round is a pipeline from its first copy on, some faults long.
type round struct {
	*bench
	t      harness.T
	name   string
	lake   string // file or s3
	p      *harness.Pipeline
	second *harness.Pipeline
	w      *workload
	tables []*relation // those of the round's beginning

	local   string // where the lake's files lie
	records string // where the records lie

	seen    map[string]map[string]int64 // table → epoch and checkpoint → snapshot
	logFrom int64                       // length of the log at the audit before
	recent  []string                    // faults since the audit before
	looked  time.Time

	launched time.Time // when the daemon was started last
}

func (b *bench) round(t harness.T, n int, rnd *rand.Rand) {
	r := &round{bench: b, t: t, name: fmt.Sprintf("r%d", n), lake: b.warehouse, seen: map[string]map[string]int64{}}
	r.tables = relations(rnd)
	prepare(t, b.s, r.tables, rnd)
	r.pipeline(rnd)
	r.w = &workload{s: b.s, rels: r.tables, pace: time.Duration(5+rnd.IntN(60)) * time.Millisecond}
	r.w.history.live = map[int]state{}
	r.w.begin(rnd.Uint64())
	t.Cleanup(r.w.end)
	r.p.Write()
	r.launch()
	// Some rounds have all their first faults in the copy.
	if rnd.IntN(2) == 0 {
		r.pass(ms(rnd, 500, 4000))
	}
	for i := 0; i < b.options.round && b.count.faults < b.options.faults; i++ {
		frnd := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		f := pickFault(faults(), r.lake, b.selected, frnd)
		began := time.Now()
		detail := r.strike(f, frnd)
		b.count.faults++
		line := fmt.Sprintf("%4d  %-13s %s [%.1f s, %d transactions]", b.count.faults, f.name, detail, time.Since(began).Seconds(), r.w.done.Load())
		t.Logf("%s", line)
		r.recent = append(r.recent, began.UTC().Format("15:04:05.000")+" "+line)
		r.pass(ms(frnd, 100, 2500))
		last := i == b.options.round-1 || b.count.faults == b.options.faults
		if last || (i+1)%b.options.audit == 0 {
			r.audit(last)
		}
		if err := r.w.failed(); err != nil {
			t.Fatalf("%v", err)
		}
		if b.count.bad() || t.Failed() {
			r.leave()
			break
		}
	}
	r.w.end()
	b.count.transactions += r.w.done.Load()
	r.p.Kill()
}

// pipeline writes the round's configuration. Sizes are the seed's choice.
func (r *round) pipeline(rnd *rand.Rand) {
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", r.http+i) }
	p := harness.NewPipeline(r.t, r.s, "torture", captured+".*").
		Set("http", addr(0)).
		Set("source."+r.s.Source+".port", r.dbPort).
		Set("retry_budget", "15s").
		Set("checkpoint.interval", fmt.Sprintf("%dms", 500+rnd.IntN(501))).
		Set("memory", []string{"64MiB", "128MiB", "256MiB"}[rnd.IntN(3)]).
		Set("tables", entries(r.tables))
	p.HTTP = addr(0)
	if rnd.IntN(2) == 0 { // expiry of snapshots all the time
		p.Set("snapshots", map[string]any{"keep": "5s", "min": 2, "max": 10})
	}
	if r.store != nil {
		p.UseS3(r.store, r.name, true).Set("storage.s3.endpoint", r.s3Endpoint)
		r.local = filepath.Join(r.store.Dir, r.name)
		r.records = filepath.Join(r.local, ".lakesyncd", "torture")
	} else {
		r.local, r.records = filepath.Join(r.disks[0].dir, r.name), filepath.Join(r.disks[1].dir, r.name)
		for _, dir := range []string{r.local, r.records} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				r.t.Fatalf("%v", err)
			}
		}
		p.Set("catalog.filesystem.warehouse", "file://"+r.local).Set("checkpoint.store", "file://"+r.records)
	}
	r.p = p
	r.second = harness.NewPipeline(r.t, r.s, "torture", captured+".*")
	r.second.HTTP = addr(1)
}

func (r *round) launch() {
	r.launched = time.Now()
	r.p.Launch()
	if r.cage != nil {
		if err := r.cage.add(r.p.Pid()); err != nil && r.p.Running() {
			r.t.Logf("no control group: %v", err)
			r.cage = nil
		}
	}
}

// kill is SIGKILL. A daemon that ended by itself before it is looked at.
func (r *round) kill() {
	running := r.p.Running()
	e := r.p.Kill()
	if !running && e.Code >= 0 && !r.mayEnd(e.Code) {
		r.fail("the daemon ended by itself with %d", e.Code)
	}
}

// mayEnd says whether a supervisor just starts the daemon again after this code:
// the budget of its start was spent, or another instance had the lease.
func (r *round) mayEnd(code int) bool {
	return code == harness.ExitUnavailable || code == harness.ExitFenced
}

// pass lets time go by, and does what a supervisor does.
func (r *round) pass(d time.Duration) {
	for end := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
		r.tend()
		left := time.Until(end)
		if left <= 0 {
			return
		}
		if left < 20*time.Millisecond {
			time.Sleep(left)
		}
	}
}

// absent lets time go by without a daemon.
func (r *round) absent(d time.Duration) { time.Sleep(d) }

// tend starts the daemon again if it ended by itself.
func (r *round) tend() {
	if r.p.Running() {
		if time.Since(r.looked) > time.Second {
			r.looked = time.Now()
			r.peak = max(r.peak, r.p.Peak())
			if !r.w.copied.Load() {
				s := r.p.Status()
				r.w.copied.Store(s.State == "streaming" && s.Checkpoint > 0)
			}
		}
		return
	}
	e := r.p.Ended(0)
	if e.Code >= 0 && !r.mayEnd(e.Code) {
		r.fail("the daemon ended by itself with %d", e.Code)
	}
	r.launch()
}

// fail notes what must not happen and is no difference of rows.
func (r *round) fail(format string, args ...any) {
	r.count.failures++
	if r.count.failures <= 3 {
		r.t.Errorf("seed %d: %s\n%s", r.seed, fmt.Sprintf(format, args...), r.p.LogTail(12))
	}
}

// window is the daemon's log since the audit before: all that isn't of every
// checkpoint, cut to the last lines.
func (r *round) window() string {
	f, err := os.Open(filepath.Join(r.p.Dir, "log"))
	if err != nil {
		return err.Error()
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := f.Seek(r.logFrom, io.SeekStart); err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// leave copies what is left of the round for whoever looks for the cause.
func (r *round) leave() {
	r.p.Kill()
	dir := filepath.Join(r.keep, fmt.Sprintf("seed-%d-%s-%s", r.seed, r.source, r.warehouse))
	if err := os.RemoveAll(dir); err != nil {
		r.t.Errorf("%v", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		r.t.Errorf("%v", err)
		return
	}
	what := []string{r.p.Dir, r.local}
	if r.store == nil {
		what = append(what, r.records)
	}
	logs, err := filepath.Glob(filepath.Join(r.s.Dir(), "data", "binlog.*"))
	if err == nil {
		what = append(what, logs...)
	}
	names := []string{"pipeline", "lake", "records"}
	for i, from := range what {
		to := filepath.Join(dir, filepath.Base(from))
		if i < len(what)-len(logs) {
			to = filepath.Join(dir, names[i])
		}
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			r.t.Logf("keep %s: %s", from, out)
		}
	}
	text := strings.Join(r.recent, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "faults"), []byte(text), 0o600); err != nil {
		r.t.Errorf("%v", err)
	}
	r.t.Logf("configuration, log, lake, records and the server's log are in %s", dir)
}
