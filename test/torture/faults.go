package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A fault is one thing that goes wrong. hit does it and is over when the fault
// is; begin starts one that lasts, and gives what ends it. Both take all their
// choices from rnd, so that a seed gives the same faults again.
type fault struct {
	name   string
	weight int
	lake   string // file or s3: only with that kind of warehouse
	hit    func(r *round, rnd *rand.Rand) string
	begin  func(r *round, rnd *rand.Rand) (detail string, hold time.Duration, end func())
}

func ms(rnd *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+rnd.IntN(to-from)) * time.Millisecond
}

func faults() []fault {
	return []fault{
		{name: "kill", weight: 10, hit: kill},
		{name: "kills", weight: 5, hit: kills},
		{name: "kill-at-write", weight: 12, hit: killAtWrite},
		{name: "term", weight: 4, hit: term},
		{name: "freeze", weight: 4, begin: freeze},
		{name: "freeze-lease", weight: 1, lake: "s3", begin: freezeLease},
		{name: "memory", weight: 3, hit: memory},
		{name: "twin", weight: 3, hit: twin},
		{name: "takeover", weight: 2, lake: "s3", hit: takeover},
		{name: "db-cut", weight: 4, begin: cut("db")},
		{name: "db-stall", weight: 4, begin: stall("db")},
		{name: "db-limit", weight: 5, begin: limit("db", "downstream", 400_000)},
		{name: "db-slow", weight: 2, begin: slow("db")},
		{name: "db-restart", weight: 3, hit: dbRestart},
		{name: "db-kill", weight: 4, hit: dbKill},
		{name: "dump-kill", weight: 4, hit: dumpKill},
		{name: "s3-cut", weight: 4, lake: "s3", begin: cut("s3")},
		{name: "s3-stall", weight: 6, lake: "s3", begin: stall("s3")},
		{name: "s3-limit-up", weight: 4, lake: "s3", begin: limit("s3", "upstream", 60_000)},
		{name: "s3-limit-down", weight: 4, lake: "s3", begin: limit("s3", "downstream", 30_000)},
		{name: "s3-slow", weight: 2, lake: "s3", begin: slow("s3")},
		{name: "s3-kill", weight: 4, lake: "s3", hit: s3Kill},
		{name: "disk-full", weight: 6, begin: diskFull},
		{name: "both", weight: 12, hit: both},
	}
}

func pickFault(all []fault, lake string, only func(string) bool, rnd *rand.Rand) fault {
	var can []fault
	total := 0
	for _, f := range all {
		if (f.lake == "" || f.lake == lake) && (only == nil || only(f.name)) {
			can = append(can, f)
			total += f.weight
		}
	}
	n := rnd.IntN(total)
	for _, f := range can {
		if n -= f.weight; n < 0 {
			return f
		}
	}
	panic("no fault")
}

// strike does one fault and tells what it was.
func (r *round) strike(f fault, rnd *rand.Rand) string {
	if f.hit != nil {
		return f.hit(r, rnd)
	}
	detail, hold, end := f.begin(r, rnd)
	r.pass(hold)
	end()
	return fmt.Sprintf("%s for %v", detail, hold)
}

// both lets one fault happen while another lasts.
func both(r *round, rnd *rand.Rand) string {
	lasting := pickFault(faults(), r.lake, func(n string) bool {
		return n != "freeze" && n != "freeze-lease" && strings.Contains("db-cut db-stall db-limit db-slow s3-cut s3-stall s3-limit-up s3-limit-down s3-slow disk-full", n)
	}, rnd)
	short := pickFault(faults(), r.lake, func(n string) bool {
		return strings.Contains(" kill kills kill-at-write term dump-kill db-kill s3-kill memory ", " "+n+" ")
	}, rnd)
	detail, hold, end := lasting.begin(r, rnd)
	first := ms(rnd, 0, int(hold.Milliseconds())+1)
	r.pass(first)
	second := short.hit(r, rnd)
	r.pass(hold - first)
	end()
	return fmt.Sprintf("%s: %s for %v, and in it %s: %s", lasting.name, detail, hold, short.name, second)
}

func kill(r *round, rnd *rand.Rand) string {
	pause := ms(rnd, 0, 1200)
	if rnd.IntN(2) == 0 {
		pause = 0
	}
	r.kill()
	r.absent(pause)
	r.launch()
	return fmt.Sprintf("SIGKILL, away for %v", pause)
}

func kills(r *round, rnd *rand.Rand) string {
	n := 2 + rnd.IntN(4)
	var all []string
	for range n {
		r.kill()
		r.launch()
		wait := ms(rnd, 20, 900)
		all = append(all, wait.String())
		r.pass(wait)
	}
	r.kill()
	r.launch()
	return "SIGKILL again after " + strings.Join(all, ", ")
}

// killAtWrite waits until a file appears in a folder of records or metadata, so
// that the kill falls between the steps of a checkpoint.
func killAtWrite(r *round, rnd *rand.Rand) string {
	var dir string
	where := "the records"
	if n := rnd.IntN(3 + len(r.tables)); n < 3 {
		dir = r.records
	} else {
		where = r.tables[n-3].name
		dir = filepath.Join(r.local, captured, where, "metadata")
		if rnd.IntN(3) == 0 {
			dir = filepath.Join(r.local, captured, where, "data")
		}
	}
	after := time.Duration(rnd.IntN(60_000)) * time.Microsecond
	changed := func() time.Time {
		st, err := os.Stat(dir)
		if err != nil {
			return time.Time{}
		}
		return st.ModTime()
	}
	was := changed()
	seen := "which nobody wrote to"
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Microsecond) {
		if now := changed(); !now.Equal(was) {
			seen = "after a write"
			break
		}
	}
	time.Sleep(after)
	r.kill()
	r.launch()
	return fmt.Sprintf("SIGKILL %v after a look at %s, %s", after, where, seen)
}

func term(r *round, rnd *rand.Rand) string {
	pause := ms(rnd, 0, 800)
	// One that has not come to its main function yet dies of it.
	young := time.Since(r.launched) < time.Second
	r.p.Signal(syscall.SIGTERM)
	e := r.p.Ended(45 * time.Second)
	if young && e.Code < 0 {
		e.Killed = false
	} else if e.Killed {
		r.fail("the daemon has not ended 45 s after SIGTERM")
	} else if e.Code != harness.ExitOK && !r.mayEnd(e.Code) {
		r.fail("exit %d after SIGTERM", e.Code)
	}
	r.absent(pause)
	r.launch()
	return fmt.Sprintf("SIGTERM (exit %d), away for %v", e.Code, pause)
}

func freeze(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
	r.p.Signal(syscall.SIGSTOP)
	return "SIGSTOP", ms(rnd, 500, 7000), func() { r.p.Signal(syscall.SIGCONT) }
}

func freezeLease(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
	r.p.Signal(syscall.SIGSTOP)
	return "SIGSTOP", ms(rnd, 31_000, 36_000), func() { r.p.Signal(syscall.SIGCONT) }
}

// memory has the kernel kill the daemon for its memory, where control groups
// let us; else a limit makes it fail by itself, or a signal stands for it.
func memory(r *round, rnd *rand.Rand) string {
	more := int64(rnd.IntN(6 << 20))
	how := "by its control group"
	if r.cage == nil || r.cage.squeeze(more) != nil {
		how = "by its limit"
		out, err := exec.Command("prlimit", "--pid", fmt.Sprint(r.p.Pid()), fmt.Sprintf("--data=%d", 64<<20)).CombinedOutput()
		if err != nil {
			how = strings.TrimSpace(string(out))
		}
	}
	if !harness.Poll(5*time.Second, func() bool { return !r.p.Running() }) {
		how = "which didn't come, so by SIGKILL"
	}
	r.kill()
	if r.cage != nil {
		r.cage.release()
	}
	r.launch()
	return fmt.Sprintf("out of memory %s, %d more than it had", how, more)
}

// twin starts the pipeline a second time beside the first.
func twin(r *round, rnd *rand.Rand) string {
	r.second.WriteText(strings.ReplaceAll(r.p.Text(), r.p.HTTP, r.second.HTTP))
	r.second.Launch()
	limit := ms(rnd, 8000, 20_000)
	end := time.Now().Add(limit)
	for r.second.Running() && time.Now().Before(end) {
		r.pass(50 * time.Millisecond)
	}
	over := r.second.Running()
	e := r.second.Ended(0)
	switch {
	case over:
		return fmt.Sprintf("a second instance, killed after %v", limit)
	case !r.mayEnd(e.Code):
		r.fail("the second instance ended with %d", e.Code)
	}
	return fmt.Sprintf("a second instance, ended with %d", e.Code)
}

// takeover lets the first instance sleep until a second has its lease, and then
// wakes it.
func takeover(r *round, rnd *rand.Rand) string {
	r.p.Signal(syscall.SIGSTOP)
	r.second.WriteText(strings.ReplaceAll(r.p.Text(), r.p.HTTP, r.second.HTTP))
	r.second.Launch()
	streams := harness.Poll(100*time.Second, func() bool {
		s := r.second.Status()
		return s.State == "streaming" || s.State == "copying" || !r.second.Running()
	}) && r.second.Running()
	overlap := ms(rnd, 0, 4000)
	time.Sleep(overlap)
	r.p.Signal(syscall.SIGCONT)
	e := r.p.Ended(30 * time.Second)
	switch {
	case !streams:
	case e.Killed:
		r.fail("an instance that lost its lease still runs 30 s later")
	case e.Code != harness.ExitFenced:
		r.fail("an instance that lost its lease ended with %d, not 75", e.Code)
	}
	r.second.Kill()
	r.launch()
	return fmt.Sprintf("a second instance took over (%t), the first woke %v later and ended with %d", streams, overlap, e.Code)
}

func cut(proxy string) func(*round, *rand.Rand) (string, time.Duration, func()) {
	return func(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
		r.toxi.cut(proxy)
		return "connections cut and refused", ms(rnd, 50, 5000), r.toxi.mend
	}
}

func stall(proxy string) func(*round, *rand.Rand) (string, time.Duration, func()) {
	return func(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
		stream := []string{"upstream", "downstream"}[rnd.IntN(2)]
		r.toxi.toxic(proxy, "timeout", stream, map[string]any{"timeout": 0})
		return "what goes " + stream + " is swallowed", ms(rnd, 500, 9000), r.toxi.mend
	}
}

// limit cuts every connection after some bytes, and those after it likewise.
func limit(proxy, stream string, most int) func(*round, *rand.Rand) (string, time.Duration, func()) {
	return func(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
		n := 100 + rnd.IntN(most)
		r.toxi.toxic(proxy, "limit_data", stream, map[string]any{"bytes": n})
		return fmt.Sprintf("connections end after %d bytes %s", n, stream), ms(rnd, 1500, 5000), r.toxi.mend
	}
}

func slow(proxy string) func(*round, *rand.Rand) (string, time.Duration, func()) {
	return func(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
		late, rate := 20+rnd.IntN(400), 5+rnd.IntN(200)
		r.toxi.toxic(proxy, "latency", "downstream", map[string]any{"latency": late, "jitter": late / 2})
		r.toxi.toxic(proxy, "bandwidth", "downstream", map[string]any{"rate": rate})
		return fmt.Sprintf("%d ms late, %d kB/s", late, rate), ms(rnd, 1000, 5000), r.toxi.mend
	}
}

func dbRestart(r *round, rnd *rand.Rand) string {
	away := ms(rnd, 0, 3000)
	r.s.Stop(r.t)
	r.pass(away)
	r.s.Restart(r.t)
	return fmt.Sprintf("the server was restarted, away for %v and its start", away)
}

func dbKill(r *round, rnd *rand.Rand) string {
	away := ms(rnd, 0, 1000)
	r.s.Kill(r.t)
	r.pass(away)
	r.s.Restart(r.t)
	return fmt.Sprintf("SIGKILL of the server, away for %v and its start", away)
}

func dumpKill(r *round, rnd *rand.Rand) string {
	which := "AND command LIKE 'Binlog Dump%'"
	if rnd.IntN(2) == 0 {
		which = ""
	}
	n := 0
	for _, id := range r.s.Column(r.t, "SELECT id FROM information_schema.processlist WHERE user='lakesync' "+which) {
		if _, err := r.s.DB.ExecContext(r.t.Context(), "KILL "+id); err == nil {
			n++
		}
	}
	return fmt.Sprintf("KILL of %d connections of the daemon", n)
}

func s3Kill(r *round, rnd *rand.Rand) string {
	away := ms(rnd, 0, 5000)
	r.store.Kill(r.t)
	r.pass(away)
	r.store.Start(r.t)
	return fmt.Sprintf("SIGKILL of the store, away for %v", away)
}

func diskFull(r *round, rnd *rand.Rand) (string, time.Duration, func()) {
	d := r.disks[rnd.IntN(len(r.disks))]
	free := int64(rnd.IntN(300_000))
	d.fill(free)
	return fmt.Sprintf("the disk of %s has %d bytes left", filepath.Base(d.dir), free), ms(rnd, 1500, 6000), d.empty
}
