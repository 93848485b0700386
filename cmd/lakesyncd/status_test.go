package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// clock is a time that only a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }
func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func testBoard(t *testing.T) (*statusBoard, *clock, *prometheus.Registry) {
	t.Helper()
	c := &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	reg := prometheus.NewRegistry()
	return newStatusBoard("shop", reg, slog.New(slog.DiscardHandler), c.now), c, reg
}

func TestStateWithOverlappingWaits(t *testing.T) {
	b, _, _ := testBoard(t)
	expect := func(step string, state checkpoint.State, reason string) {
		t.Helper()
		if r := b.Report(); r.State != state || r.Reason != reason {
			t.Errorf("%s: %s %q, want %s %q", step, r.State, r.Reason, state, reason)
		}
	}
	expect("new", checkpoint.Starting, "")
	b.SourceWaits(true, "connection refused")
	expect("source down at start", checkpoint.WaitingSource, "connection refused")
	b.Set(checkpoint.Copying, "")
	expect("a phase below a wait", checkpoint.WaitingSource, "connection refused")
	b.SourceWaits(false, "")
	expect("source back", checkpoint.Copying, "")
	b.Set(checkpoint.Streaming, "")
	b.SourceWaits(true, "gone")
	b.Set(checkpoint.WaitingLake, "disk full")
	expect("both down", checkpoint.WaitingLake, "disk full")
	b.Set(checkpoint.Streaming, "")
	expect("lake back", checkpoint.WaitingSource, "gone")
	b.SourceWaits(false, "")
	expect("source back", checkpoint.Streaming, "")
	b.SourceWaits(true, "gone")
	b.Stop(source.ErrCannotServe)
	expect("stopped while waiting", checkpoint.Stopped, "the source cannot serve this pipeline (exit code 78)")
	b.Stop(nil)
	expect("stopped twice", checkpoint.Stopped, "the source cannot serve this pipeline (exit code 78)")
}

func TestSinceIsWhenTheStateBegan(t *testing.T) {
	b, c, _ := testBoard(t)
	c.add(time.Minute)
	b.Set(checkpoint.WaitingLake, "first")
	want := c.now()
	c.add(time.Minute)
	b.Set(checkpoint.WaitingLake, "second")
	if r := b.Report(); !r.Since.Equal(want) || r.Reason != "second" {
		t.Errorf("since %s reason %q, want %s second", r.Since, r.Reason, want)
	}
}

func feed(b *statusBoard, c *clock) {
	o := b.Observer()
	o.State(checkpoint.Streaming, "")
	r := &checkpoint.Record{
		ID: 7, Epoch: 2, Position: "gtid:a:1-9", SavedAt: c.now(),
		Tables: map[string]sink.TableState{
			"shop.orders": {Relation: "shop.orders", Complete: true, Checkpoint: 7},
			"shop.idle":   {Relation: "shop.idle", Complete: true, Checkpoint: 3},
		},
		Deltas: []table.Delta{{Table: "shop.orders", Layers: []table.Layer{{Files: []table.File{
			{Content: table.Data, Rows: 10, Bytes: 100}, {Content: table.EqualityDeletes, Rows: 2, Bytes: 20},
		}}}}},
	}
	o.Saved(r)
	b.TablesOf(func() []sink.TableStatus {
		return []sink.TableStatus{
			{Table: "shop.idle", Relation: "shop.idle", Rule: "upsert", Why: "inserts: upsert is configured", Complete: true, Checkpoint: 3},
			{Table: "shop.orders", Relation: "shop.orders", Rule: "proven", Complete: true, Checkpoint: 7, SnapshotID: 42, Rows: 100, Files: 5, DeleteFiles: 2, EqualityDeletes: 3, PositionDeletes: 1},
		}
	})
	o.Committed(r, nil)
	o.Complete(c.now().Add(-1500 * time.Millisecond))
	o.Phase("commit", 30*time.Millisecond)
	o.Retry("lake", errors.New("x"), 1, time.Second)
}

func TestStatusJSON(t *testing.T) {
	b, c, reg := testBoard(t)
	feed(b, c)
	srv := httptest.NewServer(endpoints(b, reg))
	defer srv.Close()
	var got map[string]any
	if err := json.Unmarshal([]byte(get(t, srv.URL+"/status", 200)), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "pid")
	delete(got, "version")
	want := map[string]any{
		"pipeline": "shop", "state": "streaming", "since": "2026-03-01T12:00:00Z", "reason": "",
		"checkpoint": 7.0, "epoch": 2.0, "position": "gtid:a:1-9",
		"source_time": "2026-03-01T11:59:58.5Z", "lag_seconds": 1.5, "running": true,
		"tables": map[string]any{
			"shop.orders": map[string]any{"relation": "shop.orders", "rows": 96.0, "files": 5.0, "delete_files": 2.0, "snapshot_id": 42.0, "complete": true, "checkpoint": 7.0, "inserts": "proven"},
			"shop.idle":   map[string]any{"relation": "shop.idle", "rows": 0.0, "files": 0.0, "delete_files": 0.0, "snapshot_id": 0.0, "complete": true, "checkpoint": 3.0, "inserts": "upsert", "note": "inserts: upsert is configured"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func get(t *testing.T, url string, code int) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != code {
		t.Errorf("%s: status %d, want %d: %s", url, resp.StatusCode, code, body)
	}
	return string(body)
}

func TestProbes(t *testing.T) {
	b, c, reg := testBoard(t)
	srv := httptest.NewServer(endpoints(b, reg))
	defer srv.Close()
	get(t, srv.URL+"/healthz", 200)
	get(t, srv.URL+"/readyz", 503)
	get(t, srv.URL+"/nothing", 404)
	b.Set(checkpoint.Copying, "")
	get(t, srv.URL+"/readyz", 503)
	b.Set(checkpoint.Streaming, "")
	get(t, srv.URL+"/readyz", 200)
	c.add(stillness + time.Second)
	if body := get(t, srv.URL+"/healthz", 503); !strings.Contains(body, "has not turned for 10m") {
		t.Errorf("healthz: %s", body)
	}
	b.Tick()
	get(t, srv.URL+"/healthz", 200)
	b.Set(checkpoint.WaitingLake, "disk full")
	c.add(24 * time.Hour)
	get(t, srv.URL+"/healthz", 200)
	if body := get(t, srv.URL+"/readyz", 503); !strings.Contains(body, "waiting_lake: disk full") {
		t.Errorf("readyz: %s", body)
	}
	resp, err := http.Post(srv.URL+"/status", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /status: %d", resp.StatusCode)
	}
}

func TestMetricsFollowTheBoard(t *testing.T) {
	b, c, reg := testBoard(t)
	feed(b, c)
	b.SetCopy("shop.orders", 5, 10, false)
	srv := httptest.NewServer(endpoints(b, reg))
	defer srv.Close()
	body := get(t, srv.URL+"/metrics", 200)
	for _, line := range []string{
		`lakesyncd_state{state="streaming"} 1`,
		`lakesyncd_state{state="starting"} 0`,
		`lakesyncd_state{state="waiting_lake"} 0`,
		`lakesyncd_checkpoint 7`,
		`lakesyncd_complete_timestamp_seconds 1.7723663985e+09`,
		`lakesyncd_checkpoint_duration_seconds_count{phase="commit"} 1`,
		`lakesyncd_retries_total{target="lake"} 1`,
		`lakesyncd_committed_rows_total{content="data",table="shop.orders"} 10`,
		`lakesyncd_committed_bytes_total{content="equality_deletes",table="shop.orders"} 20`,
		`lakesyncd_table_complete{table="shop.idle"} 1`,
		`lakesyncd_copy_rows{relation="shop.orders"} 5`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}

func TestHTTPAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, _, reg := testBoard(t)
	_, err = serveHTTP(t.Context(), l.Addr().String(), endpoints(b, reg), slog.New(slog.DiscardHandler))
	if exitCode(err) != exitUnavailable {
		t.Errorf("got %v", err)
	}
}

func TestStatusOfAnIdleStartIsThatOfItsRecord(t *testing.T) {
	b, c, _ := testBoard(t)
	b.Resumed(&checkpoint.Record{ID: 9})
	if r := b.Report(); r.Checkpoint != 0 || r.SourceTime != nil {
		t.Errorf("a record before the initial snapshot: %+v", r)
	}
	b.Resumed(&checkpoint.Record{ID: 9, Epoch: 3, Position: "gtid:a:1-9", SourceTime: c.now().Add(-time.Minute)})
	if r := b.Report(); r.Checkpoint != 9 || r.Epoch != 3 || r.Position != "gtid:a:1-9" || *r.LagSeconds != 60 {
		t.Errorf("%+v", r)
	}
}

// saved collects what Persist saves.
type saved struct {
	mu  sync.Mutex
	all []statusReport
}

func (s *saved) save(_ context.Context, data json.RawMessage) error {
	var r statusReport
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, r)
	return nil
}

func TestPersistSavesChangesAndTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStatusBoard("shop", prometheus.NewRegistry(), slog.New(slog.DiscardHandler), time.Now)
		var s saved
		finish := b.Persist(s.save)
		synctest.Wait()
		b.Set(checkpoint.Streaming, "")
		synctest.Wait()
		time.Sleep(2*saveEvery + time.Second) // the bubble's clock
		synctest.Wait()
		finish(fmt.Errorf("binlog.000007: %w", source.ErrCannotServe))
		var got []checkpoint.State
		for _, r := range s.all {
			got = append(got, r.State)
		}
		want := []checkpoint.State{checkpoint.Starting, checkpoint.Streaming, checkpoint.Streaming, checkpoint.Streaming, checkpoint.Stopped}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if last := s.all[len(s.all)-1]; !strings.Contains(last.Reason, "binlog.000007") || !strings.Contains(last.Reason, "exit code 78") {
			t.Errorf("reason %q", last.Reason)
		}
	})
}

// The loser of two instances must not write over the winner's status.
func TestPersistLeavesTheStatusToTheWinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newStatusBoard("shop", prometheus.NewRegistry(), slog.New(slog.DiscardHandler), time.Now)
		var s saved
		finish := b.Persist(s.save)
		synctest.Wait()
		finish(checkpoint.ErrFenced)
		if len(s.all) != 1 || s.all[0].State != checkpoint.Starting {
			t.Errorf("saved %v", s.all)
		}
	})
}

func listenNotify(t *testing.T) (path string, receive func() string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return path, func() string {
		t.Helper()
		buf := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

func TestNotifyTellsSystemd(t *testing.T) {
	path, receive := listenNotify(t)
	env := map[string]string{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "600000000"}
	n := newNotifier(func(k string) string { return env[k] }, slog.New(slog.DiscardHandler))
	b, c, _ := testBoard(t)
	ctx, cancel := context.WithCancel(t.Context())
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); n.run(ctx, b, stopping) }() // cancel ends it
	expect := func(want ...string) {
		t.Helper()
		got := receive()
		for _, w := range want {
			no, is := strings.CutPrefix(w, "!")
			if strings.Contains(got, no) == is {
				t.Errorf("got %q, want %s", got, w)
			}
		}
	}
	expect("STATUS=starting", "EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1", "!READY=1")
	b.Set(checkpoint.Streaming, "")
	expect("STATUS=streaming", "READY=1", "WATCHDOG=1", "!EXTEND")
	c.add(time.Hour) // the loop hangs
	b.mu.Lock()
	close(b.changed)
	b.changed = make(chan struct{})
	b.mu.Unlock()
	expect("STATUS=streaming", "!WATCHDOG=1", "!READY=1")
	close(stopping)
	expect("STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000")
	cancel()
	<-done
}

func TestWatchdogOfAnotherProcessIsIgnored(t *testing.T) {
	env := map[string]string{"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
	if n := newNotifier(func(k string) string { return env[k] }, slog.New(slog.DiscardHandler)); n.watchdog != 0 {
		t.Errorf("watchdog %s", n.watchdog)
	}
}

func TestLogFormat(t *testing.T) {
	for _, tt := range []struct {
		format   string
		terminal bool
		json     bool
	}{{"auto", true, false}, {"auto", false, true}, {"json", true, true}, {"text", false, false}} {
		var out bytes.Buffer
		newLogger(config.Log{Level: "info", Format: tt.format}, &out, tt.terminal).With("pipeline", "shop").Info("starting", "password", config.Secret("hunter2"))
		if got := json.Valid(out.Bytes()); got != tt.json {
			t.Errorf("%+v: %s", tt, out.String())
		}
		if strings.Contains(out.String(), "hunter2") || !strings.Contains(out.String(), "shop") {
			t.Errorf("%+v: %s", tt, out.String())
		}
	}
}

func TestLogWritesDurationsInSeconds(t *testing.T) {
	var out bytes.Buffer
	newLogger(config.Log{Level: "info", Format: "json"}, &out, false).Info("done", "elapsed", 1500*time.Millisecond)
	if !strings.Contains(out.String(), `"elapsed":1.5}`) {
		t.Error(out.String())
	}
}

func TestLogHoldsRepeatedWarningsBack(t *testing.T) {
	var out bytes.Buffer
	h := newLogger(config.Log{Level: "info", Format: "text"}, &out, false).With("pipeline", "shop").Handler()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	emit := func(after time.Duration, level slog.Level, err string) int {
		out.Reset()
		r := slog.NewRecord(at.Add(after), level, "waiting", 0)
		r.Add("err", err, "attempt", after.String())
		if err := h.Handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return strings.Count(out.String(), "\n")
	}
	steps := []struct {
		after time.Duration
		level slog.Level
		err   string
		lines int
	}{
		{0, slog.LevelWarn, "refused", 1},
		{time.Second, slog.LevelWarn, "refused", 0},
		{time.Second, slog.LevelWarn, "no route", 1},
		{2 * time.Second, slog.LevelInfo, "refused", 1},
		{3 * time.Second, slog.LevelWarn, "refused", 0},
		{31 * time.Second, slog.LevelWarn, "refused", 1},
	}
	for i, s := range steps {
		if got := emit(s.after, s.level, s.err); got != s.lines {
			t.Errorf("step %d: %d lines, want %d", i, got, s.lines)
		}
	}
	if !strings.Contains(out.String(), "repeated=2") {
		t.Errorf("the last line does not count what was held back: %s", out.String())
	}
}

func TestProgressLinesWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	c := &clock{t: time.Unix(0, 0)}
	p := newProgress(slog.New(slog.NewJSONHandler(&out, nil)), nil, c.now)
	p.Copy("shop.orders", 0, 1000, false)
	c.add(time.Second)
	p.Copy("shop.orders", 50, 1000, false)
	if out.Len() != 0 {
		t.Errorf("too early: %s", out.String())
	}
	c.add(9 * time.Second)
	p.Copy("shop.orders", 500, 1000, false)
	for _, want := range []string{`"rows":500`, `"estimated_rows":1000`, `"rows_per_second":50`, `"left":"10s"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %s", out.String(), want)
		}
	}
}

func TestProgressBarGoesWhenARelationIsDone(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out}
	c := &clock{t: time.Unix(0, 0)}
	p := newProgress(slog.New(slog.DiscardHandler), s, c.now)
	p.Copy("shop.orders", 0, 10, false)
	c.add(time.Second)
	p.Copy("shop.orders", 5, 10, false)
	p.Copy("shop.orders", 12, 10, true)
	if !strings.HasSuffix(out.String(), clearLine) {
		t.Errorf("%q", out.String())
	}
}

func TestProgressBarStaysBelowLogLines(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out}
	c := &clock{t: time.Unix(0, 0)}
	p := newProgress(slog.New(slog.DiscardHandler), s, c.now)
	p.Copy("shop.orders", 0, 4000, false)
	c.add(time.Second)
	p.Copy("shop.orders", 2000, 4000, false)
	if want := "[============            ]  50% 2,000 rows, 2,000/s, about 1s left"; !strings.Contains(out.String(), want) {
		t.Errorf("%q lacks %q", out.String(), want)
	}
	out.Reset()
	fmt.Fprintln(s, "a line")
	if got := out.String(); !strings.HasPrefix(got, clearLine+"a line\n"+"copying [") {
		t.Errorf("%q", got)
	}
	p.End()
	out.Reset()
	fmt.Fprintln(s, "a line")
	if got := out.String(); got != "a line\n" {
		t.Errorf("%q", got)
	}
}

func TestProgressSumsRelations(t *testing.T) {
	c := &clock{t: time.Unix(0, 0)}
	p := newProgress(slog.New(slog.DiscardHandler), nil, c.now)
	p.Copy("a", 100, 50, true)
	p.Copy("b", 10, 30, false)
	c.add(11 * time.Second)
	if got := p.total(c.now()); got.rows != 110 || got.estimated != 130 || got.done != 1 || got.rate != 10 || got.left != 2*time.Second {
		t.Errorf("%+v", got)
	}
	p.Copy("c", 1, -1, false)
	if got := p.total(c.now()); got.estimated != -1 || got.left != 0 {
		t.Errorf("%+v", got)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
