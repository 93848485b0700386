package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/source/postgres"
)

// cut ends the connections that a slot's changes are sent over.
func (d *database) cut(t *testing.T) {
	t.Helper()
	d.exec(t, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
}

// PG-052, PG-018: the connection ends inside of a transaction of which a part was
// handed out.
func TestGoesOnInsideOfATransaction(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)", "CREATE TABLE b(id int PRIMARY KEY)")
	d.drop(t)
	o := d.options(t)
	o.Memory = 1 << 20
	m := open(t, o)
	m.copied()
	d.exec(t, "INSERT INTO b VALUES (1)", "BEGIN; INSERT INTO a SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g; TRUNCATE b; INSERT INTO b VALUES (2); UPDATE a SET t = 'y' WHERE id % 3 = 0; DELETE FROM a WHERE id % 5 = 0; COMMIT")
	for range 3 {
		before := m.rows
		m.until("half of it", func(ev *source.Event) bool { return m.rows > before+5000 })
		d.cut(t)
	}
	d.exec(t, "INSERT INTO a VALUES (-1, 'last')")
	m.now(o)
	m.same(d, "a", "id")
	m.same(d, "b", "id")
	inserts, truncations := 0, 0
	for _, r := range m.read {
		if strings.HasPrefix(r, "c a ") {
			inserts++
		}
		if r == "t b" {
			truncations++
		}
	}
	if inserts != 20001 || truncations != 1 {
		t.Errorf("%d inserts and %d truncations came, want 20001 and 1", inserts, truncations)
	}
}

// PG-001, PG-002: nothing that was only received is confirmed.
func TestConfirmsOnlyWhatWasAcknowledged(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a1(id int PRIMARY KEY)")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	first := m.at
	saved := *m
	if err := m.s.Ack(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	d.exec(t, "INSERT INTO a1 SELECT generate_series(1, 8)")
	m.now(o)
	confirmed := "SELECT 'lsn:' || confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'lakesync_test'"
	m.until("some heartbeats", func(ev *source.Event) bool { return ev.Kind == source.Heartbeat && !ev.Time.IsZero() })
	if have := d.query(t, confirmed); have != string(first) {
		t.Errorf("the slot is confirmed at %s, only %s was acknowledged", have, first)
	}
	if err := m.s.Ack(t.Context(), "lsn:FF/0"); err == nil {
		t.Error("a position that was never handed out was confirmed")
	}
	m.s.Close()
	again := open(t, resume(&saved, o))
	again.now(o)
	again.same(d, "a1", "id")
	if err := again.s.Ack(t.Context(), again.at); err != nil {
		t.Fatal(err)
	}
	again.s.Close()
	if have := d.query(t, confirmed); have != string(again.at) {
		t.Errorf("the slot is confirmed at %s, want %s", have, again.at)
	}
}

// PG-020: the captured relations are idle, another database of the cluster is busy.
func TestFreesTheLogOfAnIdleDatabase(t *testing.T) {
	d := start(t, "15").create(t, "CREATE TABLE quiet(id int PRIMARY KEY)", "CREATE TABLE public2(id int)")
	d.drop(t)
	o := d.options(t)
	o.Match = func(_, name string) bool { return name == "quiet" }
	m := open(t, o)
	m.copied()
	busy := connect(t, d.dsn)
	exec1(t, busy, "CREATE TABLE busy AS SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g")
	m.now(o)
	if err := m.s.Ack(t.Context(), m.at); err != nil {
		t.Fatal(err)
	}
	m.until("a heartbeat with a time", func(ev *source.Event) bool { return ev.Kind == source.Heartbeat && !ev.Time.IsZero() })
	exec1(t, busy, "CHECKPOINT")
	m.s.Close()
	if have := d.query(t, "SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 1000000 FROM pg_replication_slots"); have != "t" {
		t.Error("the slot still holds the log of the other database")
	}
	if age := time.Since(m.time); age > 30*time.Second {
		t.Errorf("complete up to %v ago", age)
	}
}

// PG-017: the sink stands still for much longer than wal_sender_timeout.
func TestAnswersWhileTheSinkIsBusy(t *testing.T) {
	d := start(t, "17", "-c", "wal_sender_timeout=1s").create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)")
	d.drop(t)
	o := d.options(t)
	o.Memory = 1 << 20
	m := open(t, o)
	m.copied()
	d.exec(t, "INSERT INTO a SELECT g, repeat('x', 500) FROM generate_series(1, 30000) g")
	m.until("a row", func(ev *source.Event) bool { return ev.Kind == source.Rows })
	pid := d.query(t, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'lakesync_test'")
	d.exec(t, "SELECT pg_sleep(4)")
	m.now(o)
	m.same(d, "a", "id")
	if have := d.query(t, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'lakesync_test'"); have != pid || pid == "" {
		t.Errorf("the connection was opened again: pid %s, before %s", have, pid)
	}
}

// PG-004, PG-005, PG-022, PG-068: what a position needs is no longer there.
func TestRefusesAPositionThatCannotBeContinued(t *testing.T) {
	d := start(t, "18").create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	d.exec(t, "INSERT INTO a VALUES (1)")
	m.now(o)
	if err := m.s.Ack(t.Context(), m.at); err != nil {
		t.Fatal(err)
	}
	m.s.Close()
	refused := func(what, says string, change func(*postgres.Options)) {
		t.Helper()
		x := resume(m, o)
		if change != nil {
			change(&x)
		}
		s, err := postgres.Open(t.Context(), x)
		if err == nil {
			s.Close()
			t.Errorf("%s: opened", what)
			return
		}
		cannotServe(t, err, says)
	}
	refused("ahead", "ahead of the server", func(x *postgres.Options) { x.Resume.Position = "lsn:7F/0" })
	refused("another cluster", "another database cluster", func(x *postgres.Options) {
		x.Resume.State = []byte(strings.Replace(string(m.state), `"system":"`, `"system":"9`, 1))
	})
	refused("another slot", `continues "lakesync_test"`, func(x *postgres.Options) { x.Config.Slot = "lakesync_x" })
	refused("no state", "no position", func(x *postgres.Options) { x.Resume.State = nil })
	d.exec(t, "CREATE TABLE late(id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
	s, err := postgres.Open(t.Context(), resume(m, o))
	if err != nil {
		t.Errorf("a relation that was created meanwhile, and that the publication lacks: %v", err)
	} else {
		s.Close()
	}
	d.exec(t, "DROP PUBLICATION lakesync_test")
	refused("no publication", "publication", nil)
	d.exec(t, "CREATE PUBLICATION lakesync_test WITH (publish_via_partition_root=true)")
	refused("a relation that was taken out", "taken out of the publication", nil)
	d.exec(t, "ALTER PUBLICATION lakesync_test ADD TABLE a", "SELECT pg_drop_replication_slot('lakesync_test')")
	refused("no slot", "is gone", nil)
	d.exec(t, "INSERT INTO a VALUES (2)", "SELECT pg_create_logical_replication_slot('lakesync_test', 'pgoutput')")
	refused("a slot that was made again", "somebody else read it, or it was dropped and made again", nil)
	d.exec(t, "SELECT pg_drop_replication_slot('lakesync_test')", "SELECT pg_create_logical_replication_slot('lakesync_test', 'pgoutput', false, true)")
	refused("two phases", "two_phase", nil)
	d.exec(t, "SELECT pg_drop_replication_slot('lakesync_test')", "SELECT pg_create_logical_replication_slot('lakesync_test', 'test_decoding')")
	refused("another plugin", "test_decoding", nil)
}

// PG-068: the publication is dropped while the pipeline runs. 18 goes on without
// the changes.
func TestStopsWhenThePublicationIsDropped(t *testing.T) {
	for _, v := range []string{"17", "18"} {
		t.Run(v, func(t *testing.T) {
			d := start(t, v).create(t, "CREATE TABLE a(id int PRIMARY KEY)")
			d.drop(t)
			o := d.options(t)
			m := open(t, o)
			m.copied()
			d.exec(t, "INSERT INTO a VALUES (1)")
			m.now(o)
			d.exec(t, "DROP PUBLICATION lakesync_test", "INSERT INTO a VALUES (2)")
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for {
				ev, err := m.s.Next(ctx)
				if err != nil {
					cannotServe(t, err, "publication")
					return
				}
				m.apply(ev)
			}
		})
	}
}

// PG-012, PG-032: a copy broke off; its slot is made again, and only one is left.
func TestCopiesAgainAfterACopyThatBrokeOff(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)", "INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g")
	d.drop(t)
	o := d.options(t)
	o.Memory = 1 << 20
	for range 3 {
		m := open(t, o)
		m.until("some rows", func(ev *source.Event) bool { return m.rows > 1000 })
		m.s.Close()
		d.exec(t, "INSERT INTO a VALUES ((SELECT max(id) + 1 FROM a), 'meanwhile')")
	}
	m := open(t, o)
	m.copied()
	m.now(o)
	m.same(d, "a", "id")
	if have := d.query(t, "SELECT count(*) FROM pg_replication_slots"); have != "1" {
		t.Errorf("%s slots are left", have)
	}
	m.s.Close()
	o.Config.Slot = "mine"
	d.exec(t, "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
	_, err := postgres.Open(t.Context(), o)
	cannotServe(t, err, "pg_drop_replication_slot('mine')")
}

// PG-046, PG-058, PG-064: truncation, a key that changes, and keys that change
// places, each inside of one transaction.
func TestKeepsTheOrderInsideOfATransaction(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE t(id int PRIMARY KEY)", "CREATE TABLE d12(id int PRIMARY KEY, v text)", "INSERT INTO d12 VALUES (1,'a'),(2,'b')", "CREATE TABLE child(id int PRIMARY KEY, t int REFERENCES t)")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	n := len(m.read)
	d.exec(t, "BEGIN; INSERT INTO t VALUES(1); INSERT INTO child VALUES (1, 1); TRUNCATE t CASCADE; INSERT INTO t VALUES(2); COMMIT")
	d.exec(t, "BEGIN; UPDATE d12 SET id=-id; UPDATE d12 SET id=CASE id WHEN -1 THEN 2 ELSE 1 END; COMMIT")
	d.exec(t, "BEGIN; INSERT INTO t VALUES (3); SAVEPOINT s; INSERT INTO t VALUES (4); ROLLBACK TO s; INSERT INTO t VALUES (5); COMMIT", "BEGIN; INSERT INTO t VALUES (6); ROLLBACK")
	m.now(o)
	for _, table := range []string{"t", "child", "d12"} {
		m.same(d, table, "id")
	}
	want := []string{"c t [] [1]", "c child [] [1 1]", "t t", "t child", "c t [] [2]", "commit"}
	have := m.read[n : n+6]
	slices.Sort(have[2:4])
	slices.Sort(want[2:4])
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("events (-want +have):\n%s", diff)
	}
}

// PG-083..PG-089: a column is added in ways in which the server tells of it late.
func TestAddsAColumnBeforeTheTransactionThatHasIt(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)", "CREATE TABLE b(id int PRIMARY KEY)", "INSERT INTO a VALUES (1, 'one')")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	d.exec(t, "INSERT INTO a VALUES (2, 'two')", "INSERT INTO b VALUES (1)")
	m.now(o)
	n := len(m.read)
	// Known only in the middle of a transaction that begins with another relation.
	d.exec(t, "ALTER TABLE a ADD z int", "BEGIN; INSERT INTO b VALUES (2); INSERT INTO a VALUES (3, 'three', 3); COMMIT")
	m.now(o)
	if diff := cmp.Diff([]string{"s a", "commit", "c b [] [2]", "c a [] [3 three 3]", "commit"}, m.read[n:]); diff != "" {
		t.Errorf("events (-want +have):\n%s", diff)
	}
	// Rows before and after it in one transaction, and a crash at each event.
	d.exec(t, "BEGIN; INSERT INTO a VALUES (4, 'four', 4); UPDATE a SET t = 'ONE' WHERE id = 1; ALTER TABLE a ADD y text; INSERT INTO a VALUES (5, 'five', 5, 'y'); DELETE FROM a WHERE id = 2; COMMIT", "INSERT INTO a VALUES (6, 'six', 6, NULL)")
	schemas := 0
	for crashes := 0; ; crashes++ {
		if crashes > 20 {
			t.Fatal("no progress")
		}
		saved := *m
		saved.tables = map[string]map[string][]string{}
		m.until("a commit", func(ev *source.Event) bool {
			if ev.Kind == source.Schema {
				schemas++
			}
			return ev.Kind == source.Commit
		})
		m.s.Close()
		s, err := postgres.Open(t.Context(), resume(m, o))
		if err != nil {
			t.Fatalf("after crash %d: %v", crashes, err)
		}
		m.s = s
		if m.tables["a"]["6"] != nil {
			break
		}
	}
	defer m.s.Close()
	m.same(d, "a", "id")
	m.same(d, "b", "id")
	if schemas != 1 {
		t.Errorf("the column was added %d times", schemas)
	}
}

// A random history with cuts of the connection, and restarts at places that were
// saved; the state of then is what the source had.
func TestRandomHistoryWithCrashes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	d := start(t, "17", "-c", "logical_decoding_work_mem=64kB").create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)", "CREATE TABLE b(x int, y text, n int, PRIMARY KEY(x, y))", "INSERT INTO a SELECT g, 'g' FROM generate_series(1, 500) g")
	d.drop(t)
	o := d.options(t)
	o.Memory = 256 << 10
	m := open(t, o)
	m.copied()
	for i := range 120 {
		var sql []string
		for range 1 + r.IntN(8) {
			id := r.IntN(600)
			switch r.IntN(7) {
			case 0:
				sql = append(sql, fmt.Sprintf("INSERT INTO a VALUES (%d, 'i%d') ON CONFLICT (id) DO UPDATE SET t = 'u%d'", id, i, i))
			case 1:
				sql = append(sql, fmt.Sprintf("DELETE FROM a WHERE id = %d", id))
			case 2:
				sql = append(sql, fmt.Sprintf("UPDATE a SET id = %d WHERE id = %d AND NOT EXISTS (SELECT FROM a WHERE id = %d)", r.IntN(600), id, id))
				sql[len(sql)-1] = fmt.Sprintf("UPDATE a SET id = -id WHERE id = %d AND NOT EXISTS (SELECT FROM a WHERE id = -%d)", id, id)
			case 3:
				sql = append(sql, fmt.Sprintf("INSERT INTO b SELECT g, 'k%d', %d FROM generate_series(1, %d) g ON CONFLICT DO NOTHING", r.IntN(4), i, 1+r.IntN(300)))
			case 4:
				sql = append(sql, fmt.Sprintf("UPDATE b SET n = n + 1, y = y || '%d' WHERE x %% 17 = %d AND length(y) < 5", r.IntN(3), r.IntN(17)))
			case 5:
				sql = append(sql, fmt.Sprintf("DELETE FROM b WHERE x %% 7 = %d", r.IntN(7)))
			case 6:
				if r.IntN(10) == 0 {
					sql = append(sql, "TRUNCATE b")
				} else {
					sql = append(sql, "SAVEPOINT s; UPDATE a SET t = 'gone'; ROLLBACK TO s")
				}
			}
		}
		exec1Loose(d, "BEGIN; "+strings.Join(sql, "; ")+"; COMMIT")
		switch r.IntN(6) {
		case 0:
			d.cut(t)
		case 1:
			m.until("a commit", func(ev *source.Event) bool { return ev.Kind == source.Commit || ev.Kind == source.Heartbeat })
			m.s.Close()
			s, err := postgres.Open(t.Context(), resume(m, o))
			if err != nil {
				t.Fatal(err)
			}
			m.s = s
			t.Cleanup(func() { s.Close() })
		case 2:
			m.now(o)
		}
	}
	m.now(o)
	m.same(d, "a", "id")
	m.same(d, "b", "x || '|' || y")
}

// exec1Loose runs a transaction that may fail as a whole.
func exec1Loose(d *database, sql string) {
	if _, err := d.root.Exec(context.Background(), sql).ReadAll(); err != nil {
		_, _ = d.root.Exec(context.Background(), "ROLLBACK").ReadAll()
	}
}

// PG-024: a second pipeline on the same slot waits and then gives up.
func TestWaitsForASlotThatIsInUse(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	d.exec(t, "INSERT INTO a VALUES (1)")
	m.now(o)
	second := resume(m, o)
	second.RetryBudget = time.Second
	second.Registerer = nil
	var reason string
	second.OnState = func(waiting bool, why string) { reason = why }
	_, err := postgres.Open(t.Context(), second)
	if err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "by pid") || !strings.Contains(reason, "in use") {
		t.Errorf("the error is %v, the state %q", err, reason)
	}
	second.RetryBudget = time.Millisecond
	second.Config.Port = 1
	if _, err := postgres.Open(t.Context(), second); err == nil {
		t.Error("opened at a port where nobody is")
	}
	second = resume(m, o)
	second.Config.Password = config.Secret("wrong")
	_, err = postgres.Open(t.Context(), second)
	cannotServe(t, err, "password authentication failed")
	if strings.Contains(err.Error(), "wrong") {
		t.Errorf("the error shows the password: %v", err)
	}
	second.Config.Password, second.Config.Database = "postgres", "nowhere"
	_, err = postgres.Open(t.Context(), second)
	cannotServe(t, err, "nowhere")
}

func (s *server) script(t *testing.T, verb string) {
	t.Helper()
	args := append([]string{verb}, s.args[1:]...)
	if out, err := exec.Command("../../test/servers/postgres.sh", args...).CombinedOutput(); err != nil {
		t.Fatalf("%s the server: %v: %s", verb, err, out)
	}
}

// PG-010: after a crash of the server its slot is back at an earlier place.
func TestReadsNothingTwiceAfterACrashOfTheServer(t *testing.T) {
	s := start(t, "17")
	d := s.create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	o := d.options(t)
	m := open(t, o)
	m.copied()
	for i := range 5 {
		d.exec(t, fmt.Sprintf("INSERT INTO a VALUES (%d)", 50+i))
		m.now(o)
		if err := m.s.Ack(t.Context(), m.at); err != nil {
			t.Fatal(err)
		}
	}
	s.script(t, "kill")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	for {
		ev, err := m.s.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				t.Fatal(err)
			}
			break
		}
		m.apply(ev)
	}
	cancel()
	s.script(t, "start")
	d.root = connect(t, strings.TrimSuffix(s.dsn, "postgres")+d.name)
	d.exec(t, "INSERT INTO a VALUES (100)")
	m.now(o)
	m.same(d, "a", "id") // apply says if a row comes twice
}

// PG-018: a connection over which nothing comes or goes does not keep Close.
func TestClosesWhenTheNetworkSwallowsEverything(t *testing.T) {
	s := start(t, "17")
	d := s.create(t, "CREATE TABLE a(id int PRIMARY KEY, t text)", "INSERT INTO a SELECT g, repeat('x', 200) FROM generate_series(1, 50000) g")
	hole := newHole(t, fmt.Sprintf("127.0.0.1:%d", s.port))
	o := d.options(t)
	o.Config.Port = hole.port
	o.Memory = 1 << 20
	closes := func(m *mirror) {
		t.Helper()
		hole.swallow(true)
		began := time.Now()
		m.s.Close()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Close took %v", took)
		}
		hole.swallow(false)
	}
	m := open(t, o)
	m.until("a row of the copy", func(ev *source.Event) bool { return ev.Kind == source.Rows })
	closes(m)
	m = open(t, o)
	m.copied()
	d.exec(t, "UPDATE a SET t = 'y'")
	m.until("a row of the log", func(ev *source.Event) bool { return ev.Kind == source.Rows })
	closes(m)
}

// hole is a proxy that can stop passing on what it gets.
type hole struct {
	port int
	mu   sync.Mutex
	stop chan struct{} // open: swallow
}

func newHole(t *testing.T, target string) *hole {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h := &hole{port: l.Addr().(*net.TCPAddr).Port}
	pass := func(dst, src net.Conn) {
		defer dst.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := src.Read(b)
			h.mu.Lock()
			stop := h.stop
			h.mu.Unlock()
			if stop != nil {
				<-stop
			}
			if n > 0 {
				if _, err := dst.Write(b[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	// Ends when the listener is closed; its connections when either end is.
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				c.Close()
				continue
			}
			go pass(s, c)
			go pass(c, s)
		}
	}()
	return h
}

func (h *hole) swallow(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if on {
		h.stop = make(chan struct{})
	} else if h.stop != nil {
		close(h.stop)
		h.stop = nil
	}
}
