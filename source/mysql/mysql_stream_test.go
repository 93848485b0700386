package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// streamServer is a real server of the tests of streaming; each has its own port,
// apart from those of the tests of values.
type streamServer struct {
	name   string
	script []string
	port   int
	flavor Flavor
}

var streamServers = []streamServer{
	{"MySQL 9.7", []string{"mysql.sh"}, 24111, FlavorMySQL},
	{"MariaDB 11.8", []string{"mariadb.sh", "-v", "11.8"}, 24112, FlavorMariaDB},
	{"MariaDB 10.11", []string{"mariadb.sh", "-v", "10.11"}, 24113, FlavorMariaDB},
}

func (s streamServer) run(t testing.TB, verb string, flags ...string) {
	t.Helper()
	args := append([]string{verb}, s.script[1:]...)
	args = append(args, "-p", fmt.Sprint(s.port))
	if len(flags) > 0 {
		args = append(append(args, "--"), flags...)
	}
	if out, err := exec.Command("../../test/servers/"+s.script[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", s.script[0], verb, err, out)
	}
}

// start runs the server until the test ends. Every test uses schemas of its own
// and the servers' settings as they start.
func (s streamServer) start(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
	s.own(t)
	s.run(t, "start")
	if os.Getenv("LAKESYNC_KEEP_SERVERS") == "" {
		t.Cleanup(func() { s.run(t, "stop") })
	}
}

// own waits for another process that runs these tests on the same port, so that
// neither stops the other's server.
func (s streamServer) own(t testing.TB) {
	t.Helper()
	f, err := os.Create(filepath.Join(os.TempDir(), fmt.Sprintf("lakesyncd-test-%d.lock", s.port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// root is a session of root's.
func (s streamServer) root(t testing.TB) *client.Conn {
	t.Helper()
	open := func(password string) (*client.Conn, error) {
		return client.Connect(fmt.Sprintf("127.0.0.1:%d", s.port), "root", password, "", func(c *client.Conn) error {
			c.ReadTimeout, c.WriteTimeout = time.Minute, time.Minute
			return nil
		})
	}
	c, err := open("root")
	if err != nil {
		c, err = open("") // MariaDB takes us for root@localhost where 127.0.0.1 has a name
	}
	if err != nil {
		t.Fatalf("connect to %s: %v", s.name, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// schema makes an empty schema for one test.
func (s streamServer) schema(t *testing.T, name string) *client.Conn {
	t.Helper()
	c := s.root(t)
	do(t, c, "DROP DATABASE IF EXISTS "+name, "CREATE DATABASE "+name, "USE "+name)
	return c
}

func do(t *testing.T, c *client.Conn, sql ...string) {
	t.Helper()
	for _, q := range sql {
		if _, err := c.Execute(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func (s streamServer) options(t testing.TB, schema string) Options {
	t.Helper()
	return Options{
		Config: config.MySQL{
			Host: "127.0.0.1", Port: s.port, User: "lakesync", Password: "lakesync", ServerID: config.IDRange{First: 5400, Last: 5403},
			TLS: config.TLS{Mode: config.TLSPreferred}, Heartbeat: config.Duration(time.Second),
		},
		Flavor: s.flavor, Pipeline: "test", Match: func(ns, _ string) bool { return ns == schema },
		SpillDir: t.TempDir(), RetryBudget: 5 * time.Second, Log: testLog(t),
	}
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func (m *mirror) catchUp(ctx context.Context, s *Stream) {
	m.t.Helper()
	until, err := Current(ctx, s.o)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := m.follow(ctx, s, until, nil); err != nil {
		m.t.Fatalf("after %d commits: %v", m.commits, err)
	}
}

func open(t *testing.T, o Options) *Stream {
	t.Helper()
	s, err := Open(within(t, 60*time.Second), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// copied is the tables as a fresh initial snapshot reads them.
func copied(t *testing.T, o Options) map[string]map[string]string {
	t.Helper()
	o.Resume, o.SpillDir, o.Registerer = nil, t.TempDir(), nil
	s := open(t, o)
	defer s.Close()
	m := newMirror(t)
	if err := m.follow(within(t, 60*time.Second), s, "", func(ev *source.Event) bool { return ev.Kind != source.Commit }); err != nil {
		t.Fatal(err)
	}
	return m.rows
}

// equalsCopy compares a mirror of the log with the server as it is now.
func (m *mirror) equalsCopy(o Options) {
	m.t.Helper()
	want := copied(m.t, o)
	for name, rows := range m.rows {
		if len(rows) == 0 {
			delete(m.rows, name)
		}
	}
	if d := cmp.Diff(want, m.rows); d != "" {
		m.t.Errorf("the log and a copy differ (-copy +log):\n%.4000s", d)
	}
}

func TestCopyThenStreamThenResume(t *testing.T) {
	for _, srv := range streamServers {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			t.Run("small", func(t *testing.T) { testSmall(t, srv) })
			t.Run("resume at every commit", func(t *testing.T) { testResume(t, srv) })
			t.Run("xa", func(t *testing.T) { testXA(t, srv) })
			t.Run("compressed", func(t *testing.T) { testCompressed(t, srv) })
			t.Run("copy under writes", func(t *testing.T) { testCopyUnderWrites(t, srv) })
			t.Run("copy in chunks", func(t *testing.T) { testChunks(t, srv) })
			t.Run("cut connection", func(t *testing.T) { testCutConnection(t, srv) })
			t.Run("heartbeat", func(t *testing.T) { testHeartbeat(t, srv) })
			t.Run("refuses", func(t *testing.T) { testRefuses(t, srv) })
		})
	}
}

func testSmall(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_small")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY, t VARCHAR(20))", "INSERT INTO a VALUES(1,'one'),(2,'two')",
		"CREATE TABLE blank(id INT PRIMARY KEY)")
	o := srv.options(t, "m2_small")
	s := open(t, o)
	if n := len(s.Relations()); n != 2 {
		t.Fatalf("%d relations", n)
	}
	m := newMirror(t)
	do(t, c, "INSERT INTO a VALUES(3,'three')") // after the cut, before the copy
	ctx := within(t, 60*time.Second)
	if err := m.follow(ctx, s, "", func(ev *source.Event) bool { return ev.Kind != source.Commit }); err != nil {
		t.Fatal(err)
	}
	if m.barriers != 1 || len(m.rows["m2_small.a"]) != 2 || m.state == nil {
		t.Errorf("the copy ends with %d barriers, rows %v", m.barriers, m.rows)
	}
	do(t, c, "UPDATE a SET t='deux' WHERE id=2", "DELETE FROM a WHERE id=1", "UPDATE a SET id=9 WHERE id=3",
		"CREATE TABLE later(id INT PRIMARY KEY)", "INSERT INTO later VALUES(7)", "TRUNCATE TABLE blank",
		// MY-046: the row between the savepoint and the way back is not there.
		"BEGIN", "INSERT INTO a VALUES(80,'x')", "SAVEPOINT s", "INSERT INTO a VALUES(81,'x')", "ROLLBACK TO s", "INSERT INTO a VALUES(82,'x')", "COMMIT",
		"ALTER TABLE a ADD COLUMN n INT", "INSERT INTO a VALUES(83,'x',5)",
		"FLUSH LOGS", "INSERT INTO a VALUES(84,'x',6)",
		"CREATE TABLE made(PRIMARY KEY(id)) AS SELECT id FROM a WHERE id > 80") // MY-092
	if srv.flavor == FlavorMySQL {
		do(t, c, "SET gtid_next='AUTOMATIC:tagged'", "INSERT INTO later VALUES(8)", "SET gtid_next='AUTOMATIC'")
	}
	m.catchUp(ctx, s)
	if srv.flavor == FlavorMySQL && !strings.Contains(string(m.pos), ":tagged:") {
		t.Errorf("position %s has no tag", m.pos)
	}
	if got := slices.Sorted(maps.Keys(m.rows["m2_small.a"])); !slices.Equal(got, []string{"2", "80", "82", "83", "84", "9"}) {
		t.Errorf("rows %v", got)
	}
	// The column that came later is not in rows that were there before.
	for k, v := range m.rows["m2_small.a"] {
		if strings.Count(v, ",") == 1 {
			m.rows["m2_small.a"][k] = v + ",NULL"
		}
	}
	m.equalsCopy(o)
}

// MY-001, MY-006, MY-028: a restart at any commit gets exactly what follows.
func testResume(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_resume")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY, v INT)", "CREATE TABLE b(id INT PRIMARY KEY)")
	o := srv.options(t, "m2_resume")
	s := open(t, o)
	ctx := within(t, 120*time.Second)
	m := newMirror(t)
	m.catchUp(ctx, s)
	do(t, c, "BEGIN", "INSERT INTO a VALUES(1,1)", "INSERT INTO b VALUES(1)", "INSERT INTO a VALUES(2,1)", "COMMIT",
		"UPDATE a SET v=v+1", "CREATE TABLE d AS SELECT * FROM b WHERE FALSE", "DROP TABLE IF EXISTS nothing", "FLUSH LOGS",
		"DELETE FROM b", "INSERT INTO b VALUES(1),(2),(3)")
	var saved []*mirror
	until, err := Current(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	saved = append(saved, m.clone())
	if err := m.follow(ctx, s, until, func(ev *source.Event) bool {
		if ev.Kind == source.Commit {
			saved = append(saved, m.clone())
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	for i, at := range saved {
		o.Resume = at.resume()
		again := open(t, o)
		m := at.clone()
		m.catchUp(ctx, again)
		again.Close()
		if d := cmp.Diff(map[string]int{"m2_resume.a": 2, "m2_resume.b": 3}, map[string]int{"m2_resume.a": len(m.rows["m2_resume.a"]), "m2_resume.b": len(m.rows["m2_resume.b"])}); d != "" {
			t.Errorf("after a restart at commit %d: %s", i, d)
		}
	}
}

// MY-004
func testXA(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_xa")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY, b LONGBLOB)")
	o := srv.options(t, "m2_xa")
	s := open(t, o)
	ctx := within(t, 60*time.Second)
	m := newMirror(t)
	m.catchUp(ctx, s)
	xa := func(x, insert string, end ...string) {
		do(t, c, "XA START '"+x+"'", insert, "XA END '"+x+"'")
		do(t, c, end...)
	}
	xa("x1", "INSERT INTO a VALUES(1,NULL)", "XA PREPARE 'x1'", "XA ROLLBACK 'x1'")
	xa("x2", "INSERT INTO a VALUES(2,NULL)", "XA PREPARE 'x2'", "XA COMMIT 'x2'")
	xa("x3", "INSERT INTO a VALUES(3,NULL)", "XA COMMIT 'x3' ONE PHASE")
	xa("x4", "INSERT INTO a VALUES(4,REPEAT('z',100000))", "XA PREPARE 'x4'")
	m.catchUp(ctx, s)
	if got := slices.Sorted(maps.Keys(m.rows["m2_xa.a"])); !slices.Equal(got, []string{"2", "3"}) {
		t.Errorf("rows %v", got)
	}
	// A restart between the prepare and the decision.
	s.Close()
	o.Resume = m.resume()
	s = open(t, o)
	do(t, c, "XA COMMIT 'x4'")
	m.catchUp(ctx, s)
	if got := slices.Sorted(maps.Keys(m.rows["m2_xa.a"])); !slices.Equal(got, []string{"2", "3", "4"}) {
		t.Errorf("rows after a restart %v", got)
	}
	files := func() int {
		d, err := os.ReadDir(o.SpillDir)
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	if n := files(); n != 1 {
		t.Errorf("%d files before the decision is saved", n)
	}
	if err := s.Ack(ctx, m.pos); err != nil || files() != 0 {
		t.Errorf("%d files after, %v", files(), err)
	}
	m.equalsCopy(o)
}

// MY-002, MY-042
func testCompressed(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_zip")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY, v INT, t LONGTEXT)", "CREATE TABLE n(i INT PRIMARY KEY)",
		"INSERT INTO n WITH RECURSIVE x AS (SELECT 1 AS i UNION ALL SELECT i+1 FROM x WHERE i < 500) SELECT i FROM x")
	o := srv.options(t, "m2_zip")
	s := open(t, o)
	ctx := within(t, 60*time.Second)
	m := newMirror(t)
	m.catchUp(ctx, s)
	if srv.flavor == FlavorMySQL {
		do(t, c, "SET binlog_transaction_compression=ON")
	} else {
		do(t, c, "SET GLOBAL log_bin_compress=ON")
		defer do(t, c, "SET GLOBAL log_bin_compress=OFF")
	}
	do(t, c, "INSERT INTO a SELECT i, 0, REPEAT('abc', 3000) FROM n", "UPDATE a SET v=id+1", "DELETE FROM a WHERE id%3=0",
		"BEGIN", "UPDATE a SET id=id+1000", "INSERT INTO a VALUES(3,1,'x')", "COMMIT")
	m.catchUp(ctx, s)
	m.equalsCopy(o)
}

// MY-117
func testCopyUnderWrites(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_writes")
	do(t, c, "CREATE TABLE f1(id INT AUTO_INCREMENT PRIMARY KEY, v INT)", "INSERT INTO f1(v) VALUES(1)")
	o := srv.options(t, "m2_writes")
	stop := make(chan struct{})
	stopped := make(chan error, 2)
	for range 2 {
		w := srv.root(t)
		do(t, w, "USE m2_writes")
		// It ends when stop is closed.
		go func() {
			for {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				for _, q := range []string{"INSERT INTO f1(v) VALUES(1),(2)", "UPDATE f1 SET v=v+1 ORDER BY id DESC LIMIT 3", "DELETE FROM f1 ORDER BY id LIMIT 1"} {
					if _, err := w.Execute(q); err != nil && !strings.Contains(err.Error(), "Deadlock") {
						stopped <- err
						return
					}
				}
			}
		}()
	}
	ctx := within(t, 120*time.Second)
	var last *mirror
	for range 15 {
		s := open(t, o)
		m := newMirror(t)
		m.catchUp(ctx, s)
		s.Close()
		last = m
	}
	close(stop)
	for range 2 {
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
	}
	o.Resume = last.resume()
	s := open(t, o)
	last.catchUp(ctx, s)
	last.equalsCopy(o)
}

// MY-120, MY-121, MY-122: chunks by keys of every kind.
func testChunks(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_chunks")
	do(t, c, "CREATE TABLE n(i INT PRIMARY KEY, pad VARCHAR(2000))",
		"INSERT INTO n WITH RECURSIVE x AS (SELECT 1 AS i UNION ALL SELECT i+1 FROM x WHERE i < 900) SELECT i, REPEAT('p', 1500) FROM x")
	for i := range 2 {
		do(t, c, fmt.Sprintf("INSERT INTO n SELECT i+%d, pad FROM n", 900<<i))
	}
	for name, key := range map[string]string{
		"big": "BIGINT UNSIGNED", "neg": "INT", "txt": "VARCHAR(30)", "ci": "VARCHAR(30) CHARACTER SET latin1", "bin": "VARBINARY(16)", "fix": "BINARY(8)",
		"dec": "DECIMAL(20,3)", "dt": "DATETIME(3)", "d": "DATE", "ts": "TIMESTAMP(6)", "yes": "ENUM('a','b')",
	} {
		expr := map[string]string{
			"big": "18446744073709551615 - i", "neg": "i - 7000", "txt": "CONCAT(CHAR(97 + i % 26), 'É', i)", "ci": "CONCAT(CHAR(97 + i % 26), 'é', i)",
			"bin": "UNHEX(CONCAT(HEX(i % 251 + 5), 'ff00', LPAD(HEX(i), 6, '0')))", "fix": "UNHEX(CONCAT(LPAD(HEX(i), 6, '0'), '00'))",
			"dec": "i * 1.5 - 1000", "dt": "TIMESTAMPADD(MINUTE, i * 7, '1999-12-31 23:00:00.5')", "d": "DATE_ADD('1000-01-01', INTERVAL i DAY)",
			"ts": "TIMESTAMPADD(SECOND, i * 11, '2001-01-01 00:00:01.25')", "yes": "IF(i % 2, 'a', 'b')",
		}[name]
		do(t, c, fmt.Sprintf("CREATE TABLE k_%s(k %s NOT NULL, j SMALLINT, pad VARCHAR(2000), PRIMARY KEY(k, j))", name, key),
			fmt.Sprintf("INSERT INTO k_%s SELECT %s, i - 7000, pad FROM n WHERE i < 3000", name, expr))
	}
	o := srv.options(t, "m2_chunks")
	o.Memory = 1 << 20
	rows := copied(t, o)
	for name, table := range rows {
		want := 2999
		if name == "m2_chunks.n" {
			want = 3600
		}
		if len(table) != want {
			t.Errorf("%s: %d rows", name, len(table))
		}
	}
	if len(rows) != 12 {
		t.Errorf("%d tables", len(rows))
	}
}

// MY-005: the connection is lost inside of a transaction whose first rows were
// handed out.
func testCutConnection(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_cut")
	do(t, c, "CREATE TABLE a5(id INT AUTO_INCREMENT PRIMARY KEY, b LONGBLOB)", "CREATE TABLE other(id INT PRIMARY KEY)")
	o := srv.options(t, "m2_cut")
	o.Memory = 2 << 20
	s := open(t, o)
	ctx := within(t, 120*time.Second)
	m := newMirror(t)
	m.catchUp(ctx, s)
	do(t, c, "BEGIN", "INSERT INTO other VALUES(1)")
	for range 20 {
		do(t, c, "INSERT INTO a5(b) SELECT REPEAT(HEX(RAND()), 30000) FROM (SELECT 1 UNION ALL SELECT 2) x")
	}
	do(t, c, "COMMIT", "INSERT INTO other VALUES(2)")
	until, err := Current(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	cuts := 0
	if err := m.follow(ctx, s, until, func(ev *source.Event) bool {
		if ev.Kind == source.Rows && ev.Batch.Relation.Name == "a5" && cuts < 3 {
			cuts++
			if cuts == 2 {
				killDump(t, srv)
			} else {
				s.dump.conn.socket.Close()
			}
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if cuts != 3 || len(m.rows["m2_cut.a5"]) != 40 || len(m.rows["m2_cut.other"]) != 2 {
		t.Errorf("%d cuts, %d and %d rows", cuts, len(m.rows["m2_cut.a5"]), len(m.rows["m2_cut.other"]))
	}
	m.equalsCopy(o)
}

func killDump(t *testing.T, srv streamServer) {
	t.Helper()
	c := srv.root(t)
	r, err := c.Execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Values {
		id, _ := r.GetString(i, 0)
		c.Execute("KILL " + id) // it may be gone already
	}
}

func testHeartbeat(t *testing.T, srv streamServer) {
	c := srv.schema(t, "m2_beat")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY)")
	s := open(t, srv.options(t, "m2_beat"))
	ctx := within(t, 30*time.Second)
	m := newMirror(t)
	m.catchUp(ctx, s)
	do(t, c, "INSERT INTO a VALUES(1)")
	m.catchUp(ctx, s)
	before, pos := m.beats, m.pos
	var last time.Time
	if err := m.follow(ctx, s, "", func(ev *source.Event) bool {
		if ev.Kind == source.Heartbeat {
			last = ev.Time
		}
		return m.beats < before+2
	}); err != nil {
		t.Fatal(err)
	}
	if m.pos != pos {
		t.Errorf("an idle server's position went from %s to %s", pos, m.pos)
	}
	if d := time.Since(last); d < -time.Second || d > 2*time.Second {
		t.Errorf("the heartbeat is of %s ago", d)
	}
}

func testRefuses(t *testing.T, srv streamServer) {
	refuse := func(what string, o Options, words ...string) {
		t.Helper()
		s, err := Open(within(t, 30*time.Second), o)
		if err == nil {
			_, err = s.Next(within(t, 10*time.Second))
			s.Close()
		}
		if !errors.Is(err, source.ErrCannotServe) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not say %q", what, err, w)
			}
		}
	}
	c := srv.schema(t, "m2_refuse")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY)")
	o := srv.options(t, "m2_refuse")
	bad := o
	bad.Config.Password = "wrong-secret"
	refuse("wrong password", bad, "lakesync")
	bad = o
	bad.Startup.Mode = "earliest"
	refuse("startup mode", bad, "earliest")
	bad = o
	bad.Flavor = FlavorMySQL + FlavorMariaDB - srv.flavor
	refuse("flavor", bad, "write source.")
	down := o
	down.Config.Port, down.RetryBudget = 1, 100*time.Millisecond
	if _, err := Open(within(t, 30*time.Second), down); !errors.Is(err, source.ErrUnavailable) {
		t.Errorf("a server that is down: %v", err)
	}
	do(t, c, "SET GLOBAL binlog_row_image='MINIMAL'")
	refuse("row image", o, "binlog_row_image", "FULL")
	do(t, c, "SET GLOBAL binlog_row_image='FULL'", "SET GLOBAL binlog_row_metadata='MINIMAL'")
	refuse("row metadata", o, "binlog_row_metadata")
	do(t, c, "SET GLOBAL binlog_row_metadata='FULL'")
	do(t, c, "DROP USER IF EXISTS m2_poor", "CREATE USER m2_poor IDENTIFIED BY 'poor'")
	bad = o
	bad.Config.User, bad.Config.Password = "m2_poor", "poor"
	refuse("rights", bad, "GRANT REPLICATION SLAVE")

	// MY-012: the position was purged.
	s := open(t, o)
	m := newMirror(t)
	m.catchUp(within(t, 30*time.Second), s)
	s.Close()
	do(t, c, "INSERT INTO a VALUES(1)", "FLUSH LOGS", "INSERT INTO a VALUES(2)", "FLUSH LOGS")
	purge(t, c)
	o.Resume = m.resume()
	refuse("purged", o, "copy the tables anew")
}

// purge removes all but the newest file of the log. The server keeps files that
// a dump, even of a connection that has just been closed, still reads.
func purge(t *testing.T, c *client.Conn) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	for {
		r, err := c.Execute("SHOW BINARY LOGS")
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Values) == 1 {
			return
		}
		newest, _ := r.GetString(len(r.Values)-1, 0)
		do(t, c, "PURGE BINARY LOGS TO '"+newest+"'")
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			t.Fatal("the server does not purge its log")
		}
	}
}
