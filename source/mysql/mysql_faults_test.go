package mysql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// The second servers, with settings of their own or to be broken.
var (
	secondMySQL   = streamServer{"MySQL 9.7", []string{"mysql.sh"}, 24116, FlavorMySQL}
	secondMariaDB = streamServer{"MariaDB 11.8", []string{"mariadb.sh", "-v", "11.8"}, 24117, FlavorMariaDB}
)

// fresh starts a server without any data of an earlier test.
func (s streamServer) fresh(t *testing.T, flags ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server")
	}
	s.own(t)
	s.run(t, "wipe")
	s.run(t, "start", flags...)
	t.Cleanup(func() { s.run(t, "wipe") })
}

// begun opens a stream of one table t(id, v) and reads to the present.
func begun(t *testing.T, srv streamServer, schema string) (*client.Conn, Options, *Stream, *mirror) {
	t.Helper()
	c := srv.schema(t, schema)
	do(t, c, "CREATE TABLE t(id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES(1,1)")
	o := srv.options(t, schema)
	s := open(t, o)
	m := newMirror(t)
	m.catchUp(within(t, 60*time.Second), s)
	return c, o, s, m
}

func refused2(t *testing.T, o Options, words ...string) {
	t.Helper()
	s, err := Open(within(t, 60*time.Second), o)
	if err == nil {
		defer s.Close()
		err = newMirror(t).follow(within(t, 30*time.Second), s, "", func(*source.Event) bool { return true })
	}
	says(t, err, words...)
}

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, source.ErrCannotServe) {
		t.Errorf("error %v, want %v", err, source.ErrCannotServe)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestPositionsByFile(t *testing.T) {
	secondMySQL.fresh(t, "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
	c, o, s, m := begun(t, secondMySQL, "m2_file")
	ctx := within(t, 120*time.Second)
	do(t, c, "INSERT INTO t VALUES(2,2)", "FLUSH LOGS", "BEGIN", "UPDATE t SET v=9", "DELETE FROM t WHERE id=1", "COMMIT")
	m.catchUp(ctx, s)
	if !strings.HasPrefix(string(m.pos), "file:binlog.00000") {
		t.Errorf("position %s", m.pos)
	}
	s.Close()
	do(t, c, "INSERT INTO t VALUES(3,3)")
	o.Resume = m.resume()
	s = open(t, o)
	m.catchUp(ctx, s)
	do(t, c, "INSERT INTO t VALUES(4,4)")
	s.dump.conn.socket.Close()
	m.catchUp(ctx, s)
	m.equalsCopy(o)
	s.Close()

	// MY-024
	p, err := parsePlace(FlavorMySQL, m.pos)
	if err != nil {
		t.Fatal(err)
	}
	bad := o
	p.offset -= 11
	bad.Resume = &Resume{Position: p.position(), State: m.state}
	refused2(t, bad, "not an event boundary")
	p.offset += 1 << 20
	bad.Resume = &Resume{Position: p.position(), State: m.state}
	refused2(t, bad, "behind the end")
	p.file = "binlog.000099"
	bad.Resume = &Resume{Position: p.position(), State: m.state}
	refused2(t, bad, "no longer has")

	// Another server at the address.
	secondMySQL.run(t, "wipe")
	secondMySQL.run(t, "start", "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
	o.Resume = m.resume()
	refused2(t, o, "another server")
}

// MY-017, MY-016, MY-014
func TestOtherHistoriesAreRefused(t *testing.T) {
	t.Run("MySQL", func(t *testing.T) {
		secondMySQL.fresh(t)
		_, o, s, m := begun(t, secondMySQL, "m2_reset")
		c := secondMySQL.root(t)
		s.Close()
		o.Resume = m.resume()
		do(t, c, "RESET BINARY LOGS AND GTIDS")
		refused2(t, o, "ahead of the server", "reset")
		// The same numbers again, and more of them, with other content.
		for i := range 60 {
			do(t, c, fmt.Sprintf("INSERT INTO m2_reset.t VALUES(%d,7)", 100+i))
		}
		refused2(t, o, "not the one that the position is of", "RESET BINARY LOGS AND GTIDS")
		c, o, s, m = begun(t, secondMySQL, "m2_reset")
		do(t, c, "INSERT INTO t VALUES(2,2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES(3,3)")
		m.catchUp(within(t, 30*time.Second), s)
		s.Close()
		o.Resume = m.resume()
		for i := range 3 { // its own log
			do(t, c, fmt.Sprintf("INSERT INTO t VALUES(%d,4)", 10+i), fmt.Sprintf("INSERT INTO t VALUES(%d,4)", 20+i))
			s = open(t, o)
			m.catchUp(within(t, 30*time.Second), s)
			if p := s.as.state.knownAt; i > 0 && p.offset == 0 {
				t.Error("no transaction has a known place")
			}
			if i == 1 {
				do(t, c, "FLUSH BINARY LOGS", "INSERT INTO t VALUES(30,4)")
				s.dump.conn.socket.Close()
				m.catchUp(within(t, 30*time.Second), s)
			}
			s.Close()
			o.Resume = m.resume()
		}
		do(t, c, "RESET BINARY LOGS AND GTIDS")
		for i := range 200 {
			do(t, c, fmt.Sprintf("INSERT INTO t VALUES(%d,7)", 100+i))
		}
		refused2(t, o, "not the one that the position is of")
		do(t, c, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
		refused2(t, o, "not the one that the position is of")
		for i := range 40 {
			do(t, c, fmt.Sprintf("SET gtid_next='00000000-0000-0000-0000-0000000000%02d:%d'", i+10, i+1), "BEGIN", "COMMIT", "SET gtid_next=AUTOMATIC")
		}
		c, o, s, m = begun(t, secondMySQL, "m2_reset")
		if n := strings.Count(string(m.pos), ","); n != 40 || len(m.pos) < 1024 {
			t.Errorf("%d bytes of position with %d UUIDs", len(m.pos), n+1)
		}
		s.Close()
		o.Resume = m.resume()
		do(t, c, "INSERT INTO t VALUES(5,5)")
		s = open(t, o)
		m.catchUp(within(t, 30*time.Second), s)
		m.equalsCopy(o)
		s.Close()
		secondMySQL.run(t, "wipe")
		secondMySQL.run(t, "start")
		refused2(t, o, "another server", "lacks")
	})
	t.Run("MariaDB", func(t *testing.T) {
		secondMariaDB.fresh(t)
		c, o, s, m := begun(t, secondMariaDB, "m2_reset")
		do(t, c, "INSERT INTO t VALUES(2,2)", "INSERT INTO t VALUES(3,3)")
		m.catchUp(within(t, 30*time.Second), s)
		s.Close()
		o.Resume = m.resume()
		do(t, c, "RESET MASTER")
		refused2(t, o, "reset")
		// The same numbers again, with other content.
		do(t, c, "DROP TABLE t", "CREATE TABLE t(id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES(1,1)", "INSERT INTO t VALUES(8,8)",
			"INSERT INTO t VALUES(9,9)", "INSERT INTO t VALUES(10,10)", "INSERT INTO t VALUES(11,11)", "INSERT INTO t VALUES(12,12)")
		refused2(t, o, "reset")
	})
}

// MY-008: a failover inside of a domain.
func TestServerIDChangesInADomain(t *testing.T) {
	srv := streamServers[1]
	srv.start(t)
	c, o, s, m := begun(t, srv, "m2_domain")
	ctx := within(t, 60*time.Second)
	do(t, c, "SET SESSION server_id=2022", "INSERT INTO t VALUES(2,2)", "SET SESSION gtid_domain_id=7", "INSERT INTO t VALUES(3,3)")
	m.catchUp(ctx, s)
	s.Close()
	do(t, c, "INSERT INTO t VALUES(4,4)")
	o.Resume = m.resume()
	s = open(t, o)
	m.catchUp(ctx, s)
	m.equalsCopy(o)
}

// MY-021
func TestServerIDs(t *testing.T) {
	for _, srv := range streamServers[:2] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c, o, s1, m1 := begun(t, srv, "m2_ids")
			ctx := within(t, 60*time.Second)
			o.Pipeline = "other"
			s2 := open(t, o)
			m2 := newMirror(t)
			m2.catchUp(ctx, s2)
			for i := range 3 {
				do(t, c, fmt.Sprintf("INSERT INTO t VALUES(%d,0)", 10+i))
				m1.catchUp(ctx, s1)
				m2.catchUp(ctx, s2)
			}
			if n := s1.fails + s2.fails; n != 0 {
				t.Errorf("%d failures", n)
			}
			m1.equalsCopy(o)
		})
	}
}

// noProxy starts toxiproxy with one proxy to a server.
type proxy struct {
	t    *testing.T
	api  string
	port int
}

func startProxy(t *testing.T, srv streamServer) proxy {
	t.Helper()
	p := proxy{t, "http://127.0.0.1:24114", 24115}
	cmd := exec.Command("../../test/servers/tool.sh", "toxiproxy-server", "-port", "24114")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	ctx := within(t, 5*time.Minute)
	for {
		r, err := http.Get(p.api + "/version")
		if err == nil {
			r.Body.Close()
			break
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
	p.post("/proxies", fmt.Sprintf(`{"name":"p","listen":"127.0.0.1:%d","upstream":"127.0.0.1:%d"}`, p.port, srv.port))
	return p
}

func (p proxy) post(path, body string) {
	p.t.Helper()
	r, err := http.Post(p.api+path, "application/json", bytes.NewBufferString(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode >= 300 {
		b, _ := io.ReadAll(r.Body)
		p.t.Fatalf("%s: %s %s", path, r.Status, b)
	}
}

// MY-018, MY-034: nothing comes any more and nobody says so.
func TestBlackHole(t *testing.T) {
	srv := streamServers[1]
	srv.start(t)
	p := startProxy(t, srv)
	c := srv.schema(t, "m2_hole")
	do(t, c, "CREATE TABLE t(id INT PRIMARY KEY, v INT)")
	o := srv.options(t, "m2_hole")
	o.Config.Port = p.port
	var mu sync.Mutex
	var states []bool
	o.OnState = func(waiting bool, _ string) {
		mu.Lock()
		defer mu.Unlock()
		states = append(states, waiting)
	}
	s := open(t, o)
	m := newMirror(t)
	ctx := within(t, 120*time.Second)
	m.catchUp(ctx, s)
	do(t, c, "INSERT INTO t VALUES(0,0)")
	m.catchUp(ctx, s)
	p.post("/proxies/p/toxics", `{"name":"down","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
	do(t, c, "INSERT INTO t VALUES(1,1)")
	began := time.Now()
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := m.follow(short, s, "", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if s.fails == 0 {
		t.Errorf("no sign of the lost connection after %s with a heartbeat of 1 s", time.Since(began))
	}
	p.post("/reset", "")
	m.equalsAfter(ctx, s, srv, o)
	mu.Lock()
	if len(states) < 2 || !states[0] || states[len(states)-1] {
		t.Errorf("states %v", states)
	}
	mu.Unlock()
	p.post("/proxies/p/toxics", `{"name":"down","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`)
	began = time.Now()
	s.Close()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("Close took %s", d)
	}
}

// equalsAfter catches up past a proxy and compares with the server itself.
func (m *mirror) equalsAfter(ctx context.Context, s *Stream, srv streamServer, o Options) {
	m.t.Helper()
	o.Config.Port = srv.port
	until, err := Current(ctx, o)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := m.follow(ctx, s, until, nil); err != nil {
		m.t.Fatal(err)
	}
	m.equalsCopy(o)
}

// The server restarts, and the account's password changes, while we stream.
func TestWaitsForTheServer(t *testing.T) {
	secondMySQL.fresh(t)
	c, o, s, m := begun(t, secondMySQL, "m2_wait")
	ctx := within(t, 120*time.Second)
	do(t, c, "INSERT INTO t VALUES(2,2)")
	secondMySQL.run(t, "stop")
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := m.follow(short, s, "", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	secondMySQL.run(t, "start")
	m.catchUp(ctx, s)
	c = secondMySQL.root(t)
	do(t, c, "SET sql_log_bin=0", "ALTER USER lakesync@'%' IDENTIFIED BY 'other'", "SET sql_log_bin=1", "INSERT INTO m2_wait.t VALUES(3,3)")
	killDump(t, secondMySQL)
	short, cancel = context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := m.follow(short, s, "", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	do(t, c, "SET sql_log_bin=0", "ALTER USER lakesync@'%' IDENTIFIED BY 'lakesync'", "SET sql_log_bin=1")
	m.catchUp(ctx, s)
	m.equalsCopy(o)
}

// MY-033: a user that the server has no password in memory of.
func TestColdPasswords(t *testing.T) {
	srv := streamServers[0]
	srv.start(t)
	c := srv.schema(t, "m2_cold")
	for _, mode := range []string{config.TLSDisabled, config.TLSPreferred, config.TLSRequired} {
		do(t, c, "DROP USER IF EXISTS m2_lake@'%'", "CREATE USER m2_lake@'%' IDENTIFIED BY 'pw'", "GRANT REPLICATION SLAVE, REPLICATION CLIENT, RELOAD, SELECT ON *.* TO m2_lake@'%'")
		o := srv.options(t, "m2_cold")
		o.Config.User, o.Config.Password, o.Config.TLS.Mode = "m2_lake", "pw", mode
		do(t, c, "FLUSH PRIVILEGES")
		s := open(t, o)
		m := newMirror(t)
		m.catchUp(within(t, 30*time.Second), s)
		s.Close()
	}
	o := srv.options(t, "m2_cold")
	o.Config.TLS.Mode = config.TLSVerifyFull
	if _, err := Open(within(t, 30*time.Second), o); !errors.Is(err, source.ErrCannotServe) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody's: %v", err)
	}
}

// MY-118: without the right to lock, inserts are upserts until the log is past
// the overlap.
func TestCopyWithoutALock(t *testing.T) {
	srv := streamServers[0]
	srv.start(t)
	c := srv.schema(t, "m2_nolock")
	do(t, c, "CREATE TABLE t(id INT AUTO_INCREMENT PRIMARY KEY, v INT)", "DROP USER IF EXISTS m2_lake@'%'", "CREATE USER m2_lake@'%' IDENTIFIED BY 'pw'",
		"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO m2_lake@'%'")
	o := srv.options(t, "m2_nolock")
	o.Config.User, o.Config.Password = "m2_lake", "pw"
	stop, stopped := make(chan struct{}), make(chan struct{})
	w := srv.root(t)
	do(t, w, "USE m2_nolock")
	// It ends when stop is closed.
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, q := range []string{"INSERT INTO t(v) VALUES(1),(2)", "UPDATE t SET v=v+1 ORDER BY id DESC LIMIT 3", "DELETE FROM t ORDER BY id LIMIT 1"} {
				w.Execute(q)
			}
		}
	}()
	ctx := within(t, 60*time.Second)
	for range 5 {
		s := open(t, o)
		m := newMirror(t)
		if rels := s.Relations(); len(rels) != 1 || rels[0].KeyProven || !strings.Contains(rels[0].Note, "without a lock") {
			t.Errorf("relations %+v", rels)
		}
		if err := m.follow(ctx, s, "", func(ev *source.Event) bool { return ev.Kind != source.Commit }); err != nil {
			t.Fatal(err)
		}
		s.Close()
		o.Resume = m.resume() // the overlap outlives a restart
		s = open(t, o)
		m.catchUp(ctx, s)
		if rels := s.Relations(); !rels[0].KeyProven {
			t.Errorf("still %q", rels[0].Note)
		}
		s.Close()
		o.Resume = nil
	}
	close(stop)
	<-stopped
	o.Append = func(string, string) bool { return true }
	refused2(t, o, "GRANT RELOAD", "m2_nolock.t")
}

// What a session can do in spite of the server's settings.
func TestSessionsThatLogOtherwise(t *testing.T) {
	for _, srv := range streamServers[:2] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			for name, c := range map[string]struct {
				flavor Flavor
				sql    []string
				words  []string
			}{
				"row image (MY-036)": {0, []string{"SET binlog_row_image='MINIMAL'", "UPDATE t SET v=5"}, []string{"m2_session.t"}},
				"statement (MY-038)": {0, []string{"SET binlog_format='STATEMENT'", "INSERT INTO t VALUES(9,9)"}, []string{"m2_session.t"}},
				"partial JSON (MY-037)": {FlavorMySQL, []string{"CREATE TABLE j(id INT PRIMARY KEY, j JSON)", `INSERT INTO j VALUES(1,'{"zz":1,"a":2}')`,
					"SET binlog_row_value_options='PARTIAL_JSON'", `UPDATE j SET j=JSON_SET(j,'$.zz',99)`}, []string{"binlog_row_value_options"}},
			} {
				if c.flavor != 0 && c.flavor != srv.flavor {
					continue
				}
				t.Run(name, func(t *testing.T) {
					_, _, s, m := begun(t, srv, "m2_session")
					w := srv.root(t)
					do(t, w, "USE m2_session")
					do(t, w, c.sql...)
					before := m.pos
					err := m.follow(within(t, 30*time.Second), s, "", nil)
					says(t, err, c.words...)
					if m.rows["m2_session.t"]["1"] != "1,1" || len(m.rows["m2_session.t"]) != 1 {
						t.Errorf("rows %v", m.rows["m2_session.t"])
					}
					if name != "partial JSON (MY-037)" && m.pos != before {
						t.Errorf("the position went on from %s to %s", before, m.pos)
					}
				})
			}
		})
	}
}

func TestTablesThatAreRefused(t *testing.T) {
	for _, srv := range streamServers {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c := srv.schema(t, "m2_fit")
			o := srv.options(t, "m2_fit")
			// MY-040
			do(t, c, "CREATE TABLE b5(id INT PRIMARY KEY)", "CREATE TABLE b6(id INT PRIMARY KEY, p INT, FOREIGN KEY(p) REFERENCES b5(id) ON DELETE CASCADE)",
				"CREATE TABLE b7(id INT PRIMARY KEY, p INT, FOREIGN KEY(p) REFERENCES b5(id) ON DELETE SET NULL)")
			if srv.flavor == FlavorMySQL {
				s := open(t, o)
				m := newMirror(t)
				do(t, c, "INSERT INTO b5 VALUES(1)", "INSERT INTO b6 VALUES(10,1)", "INSERT INTO b7 VALUES(20,1)", "DELETE FROM b5")
				m.catchUp(within(t, 30*time.Second), s)
				m.equalsCopy(o)
				s.Close()
				return
			}
			refused2(t, o, "m2_fit.b6", "m2_fit.b7", "ON DELETE CASCADE")
			r, err := Check(within(t, 30*time.Second), o)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(r.Problems); n < 2 || r.Server == "" {
				t.Errorf("report %+v", r)
			}
			// MY-041, MY-044, MY-045
			do(t, c, "DROP TABLE b6, b7, b5", "CREATE TABLE b8(id INT PRIMARY KEY, a INT) WITH SYSTEM VERSIONING")
			refused2(t, o, "m2_fit.b8", "SYSTEM VERSIONING")
			do(t, c, "DROP TABLE b8", "CREATE SEQUENCE b11", "CREATE TABLE b12(id INT PRIMARY KEY) ENGINE=MyISAM", "INSERT INTO b12 VALUES(1)")
			s := open(t, o)
			if rels := s.Relations(); len(rels) != 1 || rels[0].KeyProven {
				t.Errorf("relations %+v", rels)
			}
			m := newMirror(t)
			do(t, c, "SELECT NEXTVAL(b11)")
			c.Execute("INSERT INTO b12 VALUES(2),(2)") // one of two rows stays
			m.catchUp(within(t, 30*time.Second), s)
			if len(m.rows["m2_fit.b12"]) != 2 {
				t.Errorf("rows %v", m.rows)
			}
			s.Close()
			o.Append = func(string, string) bool { return true }
			refused2(t, o, "m2_fit.b12", "append")
		})
	}
}

func TestRelationsThatAreNewlyMatched(t *testing.T) {
	srv := streamServers[1]
	srv.start(t)
	c := srv.schema(t, "m2_match")
	do(t, c, "CREATE TABLE a(id INT PRIMARY KEY)", "CREATE TABLE b(id INT PRIMARY KEY)")
	o := srv.options(t, "m2_match")
	all := o.Match
	o.Match = func(ns, name string) bool { return ns == "m2_match" && name != "b" }
	s := open(t, o)
	m := newMirror(t)
	do(t, c, "CREATE TABLE c(id INT PRIMARY KEY)", "INSERT INTO b VALUES(1)", "INSERT INTO c VALUES(1)")
	m.catchUp(within(t, 30*time.Second), s)
	if len(m.rows["m2_match.c"]) != 1 || m.rows["m2_match.b"] != nil {
		t.Errorf("rows %v", m.rows)
	}
	s.Close()
	o.Resume, o.Match = m.resume(), all
	refused2(t, o, "m2_match.b")
}

// MY-030: memory stays bounded whatever comes.
func TestLargeRowsAndTransactions(t *testing.T) {
	srv := streamServers[0]
	srv.start(t)
	c := srv.schema(t, "m2_large")
	do(t, c, "SET GLOBAL max_allowed_packet=1073741824", "CREATE TABLE t(id INT PRIMARY KEY, b LONGBLOB)")
	c = srv.root(t)
	do(t, c, "USE m2_large")
	o := srv.options(t, "m2_large")
	o.Memory = 8 << 20
	s := open(t, o)
	m := newMirror(t)
	ctx := within(t, 180*time.Second)
	m.catchUp(ctx, s)
	do(t, c, "INSERT INTO t VALUES(1, REPEAT('x', 60000000))")
	m.catchUp(ctx, s)
	do(t, c, "DELETE FROM t")
	m.catchUp(ctx, s)
	// A compressed transaction of 40 MB of noise, larger than memory.
	do(t, c, "SET binlog_transaction_compression=ON", "BEGIN")
	for i := range 40 {
		do(t, c, fmt.Sprintf("INSERT INTO t SELECT %d, x FROM (SELECT CONCAT(%s) AS x) y", i, strings.Repeat("RANDOM_BYTES(1000),", 999)+"RANDOM_BYTES(1000)"))
	}
	do(t, c, "COMMIT")
	var peak uint64
	until, err := Current(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.follow(ctx, s, until, func(*source.Event) bool {
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		peak = max(peak, ms.HeapAlloc)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("peak of the heap %d MiB", peak>>20)
	m.equalsCopy(o)
}
