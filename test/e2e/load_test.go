package e2e

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// memoryLimit is what the resident size may reach at memory: 256MiB.
const memoryLimit = 300_000_000

func peakBelow(t *testing.T, p *harness.Pipeline, what string, limit int64) {
	t.Helper()
	peak := p.Peak()
	t.Logf("peak resident size %s: %.0f MB", what, float64(peak)/1e6)
	if peak == 0 || peak > limit {
		t.Errorf("peak resident size %s: %d bytes, limit %d", what, peak, limit)
	}
}

// TestMemoryUnderOneLargeTransaction: five million rows in one transaction, once
// as a copy, once from the log, once updated.
func TestMemoryUnderOneLargeTransaction(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "big")
	rows := 5_000_000
	s.Exec(t, "CREATE TABLE big.a(id INT PRIMARY KEY, v BIGINT, s VARCHAR(40), d DECIMAL(12,2), t DATETIME)", "INSERT INTO big.a VALUES(0,0,'','0','2000-01-01')")
	p := harness.NewPipeline(t, s, "big", "big.*").Set("memory", "256MiB").Set("checkpoint.interval", "10s")
	p.Run()
	p.Wait(waitLimit)
	// Keys in no order, so that the key map gets no help; near enough to each other
	// that the server isn't slow.
	s.Exec(t, f("INSERT INTO big.a SELECT (seq DIV 1000)*1000+(seq*7919)%%1000+1, seq*31, CONCAT('row ',seq), seq/100, '2024-01-01'+INTERVAL seq SECOND FROM big.seq_1_to_%d", rows))
	start := time.Now()
	p.Wait(10 * time.Minute)
	t.Logf("%d inserts in one transaction: %v", rows, time.Since(start))
	peakBelow(t, p, "under 5 M inserts in one transaction", memoryLimit)

	s.Exec(t, "UPDATE big.a SET v=v+1 WHERE id%3=0")
	start = time.Now()
	p.Wait(10 * time.Minute)
	t.Logf("%d updates in one transaction: %v", rows/3, time.Since(start))
	peakBelow(t, p, "under 1.7 M updates in one transaction", memoryLimit)
	sums(t, p, s, db, "a")
	p.Stop()

	// And copied by another pipeline.
	q := harness.NewPipeline(t, s, "big2", "big.*").Set("memory", "256MiB").Set("source.mariadb.server_id", "5410-5413")
	start = time.Now()
	q.Run()
	q.Wait(10 * time.Minute)
	t.Logf("copy of %d rows: %v", rows, time.Since(start))
	peakBelow(t, q, "under a copy of 5 M rows", memoryLimit)
	sums(t, q, s, db, "a")
	q.Stop()
}

// sums compares a table too large to sort: by the digest of the java reader
// against that of the source's rows.
func sums(t *testing.T, p *harness.Pipeline, s *harness.Server, db, relation string) {
	t.Helper()
	lines, end, err := judge(t).Java.Ask("rows", p.Table(db, relation), "--digest")
	if err != nil || end != "0" {
		t.Errorf("digest of %s: %s, %v", relation, end, err)
		return
	}
	got := strings.Join(lines, " ")
	if want := s.Digest(t, db, relation); got != want {
		t.Errorf("digest of %s: %s, want %s", relation, got, want)
	}
	judge(t).Java.Audit(t, p.Table(db, relation))
}

func TestMemoryUnderLargeRows(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "huge")
	s.Exec(t, "CREATE TABLE huge.a(id INT PRIMARY KEY, b LONGBLOB)",
		"INSERT INTO huge.a VALUES(1,REPEAT(RANDOM_BYTES(1024),16*1024))")
	p := harness.NewPipeline(t, s, "huge", "huge.*").Set("memory", "256MiB")
	p.Run()
	p.Wait(waitLimit)
	s.Exec(t, "INSERT INTO huge.a VALUES(2,REPEAT(RANDOM_BYTES(1024),16*1024))")
	p.Wait(waitLimit)
	s.Exec(t, "UPDATE huge.a SET b=REPEAT(RANDOM_BYTES(1000),16*1024) WHERE id=1")
	p.Wait(waitLimit)
	peakBelow(t, p, "under rows of 16 MiB", memoryLimit)
	java(t).Equal(t, p, s, db, "a")

	// 60 MB passes; what it takes is told.
	s.Exec(t, "INSERT INTO huge.a VALUES(3,REPEAT(RANDOM_BYTES(1000),60000))")
	p.Wait(waitLimit)
	t.Logf("peak resident size under a row of 60 MB: %.0f MB", float64(p.Peak())/1e6)
	java(t).Equal(t, p, s, db, "a")
	p.Stop()
}

// TestIdleAndStartAreCheap bounds what a pipeline costs that has nothing to do.
func TestIdleAndStartAreCheap(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "idle")
	for i := range 20 {
		s.Exec(t, f("CREATE TABLE idle.t%d(id INT PRIMARY KEY, v TEXT)", i), f("INSERT INTO idle.t%d VALUES(1,'x')", i))
	}
	p := harness.NewPipeline(t, s, "idle", "idle.*")
	p.Run()
	p.Wait(waitLimit)
	p.Stop()

	// A start with nothing to do, until it streams, and the stop.
	p.Run()
	p.State(30*time.Second, "streaming")
	e := p.Stop()
	t.Logf("start and stop: %v CPU", e.CPU)
	if e.CPU > 500*time.Millisecond {
		t.Errorf("a start costs %v of CPU, want at most 0.5 s", e.CPU)
	}

	p.Run()
	p.State(30*time.Second, "streaming")
	from := cpu(t, p.Pid())
	const span = 20 * time.Second
	<-time.After(span)
	used := cpu(t, p.Pid()) - from
	t.Logf("idle: %.2f %% of a core, %.0f MB resident", 100*used.Seconds()/span.Seconds(), float64(p.Peak())/1e6)
	if used > span/50 {
		t.Errorf("idle costs %v of CPU in %v, want at most 2 %%", used, span)
	}
	peakBelow(t, p, "idle", 120_000_000)
	p.Signal(syscall.SIGTERM)
	start := time.Now()
	if e := p.Ended(20 * time.Second); e.Killed || e.Code != 0 {
		t.Errorf("stop: %+v", e)
	}
	t.Logf("stop took %v", time.Since(start))
}

// cpu is the user and system time that a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	d, err := harness.CPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestWaitTimesOut: 75 if what is asked for isn't there in time.
func TestWaitTimesOut(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "slow")
	s.Exec(t, "CREATE TABLE slow.a(id INT PRIMARY KEY)")
	p := harness.NewPipeline(t, s, "slow", "slow.*")
	p.Write()
	start := time.Now()
	out, code := p.Command("wait", "-config", p.File, "-timeout", "2s")
	if code != harness.ExitFenced || time.Since(start) > 15*time.Second {
		t.Errorf("wait without a daemon: exit %d after %v, want 75 after 2 s: %s", code, time.Since(start), out)
	}
	p.Run()
	p.Wait(waitLimit)
	s.Exec(t, "INSERT INTO slow.a VALUES(1)")
	at := s.Query(t, "SELECT @@gtid_binlog_pos")
	out, code = p.Command("wait", "-config", p.File, "-position", "gtid:"+at, "-timeout", "60s")
	if code != 0 {
		t.Errorf("wait -position gtid:%s: exit %d: %s", at, code, out)
	}
	out, code = p.Command("wait", "-config", p.File, "-position", "gtid:0-1-"+strconv.Itoa(1<<40), "-timeout", "2s")
	if code != harness.ExitFenced {
		t.Errorf("wait for a position far away: exit %d: %s", code, out)
	}
	p.Stop()
}
