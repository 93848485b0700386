package mysql

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// Whatever the server gives new sessions, ours see all tables and all rows.
func TestGlobalSettingsDoNotReachOurSessions(t *testing.T) {
	for _, srv := range streamServers {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c := srv.schema(t, "m2_global")
			for _, name := range []string{"a", "b", "c"} {
				do(t, c, "CREATE TABLE "+name+"(id INT PRIMARY KEY, v VARCHAR(9), k CHAR(5))", "INSERT INTO "+name+" VALUES(1,'é','x'),(2,'€','y'),(3,'ü','')")
			}
			set := []string{"sql_select_limit=1", "max_join_size=1", "sql_big_selects=0", "autocommit=0", "completion_type=1", "sql_auto_is_null=1",
				"transaction_isolation='READ-COMMITTED'", "sql_mode='ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH'", "sql_quote_show_create=0", "time_zone='+05:30'",
				"init_connect='SET NAMES latin1; SET sql_select_limit=2'"}
			for _, s := range set {
				name, _, _ := strings.Cut(s, "=")
				t.Cleanup(func() {
					if name == "init_connect" {
						do(t, c, "SET GLOBAL init_connect=''")
						return
					}
					do(t, c, "SET GLOBAL "+name+"=DEFAULT")
				})
				if srv.name == "MariaDB 10.11" {
					s = strings.Replace(s, "transaction_isolation", "tx_isolation", 1)
					name = strings.Replace(name, "transaction_isolation", "tx_isolation", 1)
				}
				do(t, c, "SET GLOBAL "+s)
			}
			o := srv.options(t, "m2_global")
			s := open(t, o)
			defer s.Close()
			m := newMirror(t)
			m.catchUp(within(t, 60*time.Second), s)
			do(t, c, "UPDATE b SET v=CONCAT(v,'ß')")
			m.catchUp(within(t, 60*time.Second), s)
			for _, name := range []string{"a", "b", "c"} {
				if n := len(m.rows["m2_global."+name]); n != 3 {
					t.Errorf("table %s has %d rows", name, n)
				}
			}
			if got := m.rows["m2_global.b"]["2"]; got != `2,"€ß","y"` {
				t.Errorf("row %q", got)
			}
		})
	}
}

// An ALTER TABLE that is logged when it begins and when it ends (MariaDB's
// binlog_alter_two_phase) happens when it ends, or not at all.
func TestAlterInTwoPhases(t *testing.T) {
	for _, srv := range streamServers[1:] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c, o, s, m := begun(t, srv, "m2_phases")
			defer s.Close()
			do(t, c, "SET SESSION binlog_alter_two_phase=ON", "INSERT INTO t VALUES(2,1)", "ALTER TABLE t ADD COLUMN w INT", "INSERT INTO t VALUES(3,3,3)")
			m.catchUp(within(t, 30*time.Second), s)
			if _, err := c.Execute("ALTER TABLE t ADD UNIQUE(v), ADD COLUMN x INT, ALGORITHM=COPY"); err == nil {
				t.Error("the index could be made")
			}
			do(t, c, "INSERT INTO t VALUES(4,4,4)", "ALTER TABLE t ADD COLUMN y INT, ALGORITHM=COPY", "UPDATE t SET y=id")
			m.catchUp(within(t, 30*time.Second), s)
			m.equalsCopy(o)
		})
	}
}

// Statements on tables of other schemas pass (MY-038), those on views of theirs
// are refused.
func TestStatementsInOtherSchemas(t *testing.T) {
	for _, srv := range streamServers[:2] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c := srv.schema(t, "m2_far")
			do(t, c, "CREATE TABLE old(id INT PRIMARY KEY)", "CREATE TABLE gone(id INT PRIMARY KEY)")
			_, o, s, m := begun(t, srv, "m2_near")
			do(t, c, "CREATE OR REPLACE VIEW m2_far.v AS SELECT * FROM m2_near.t")
			w := srv.root(t)
			do(t, w, "USE m2_far", "SET binlog_format='STATEMENT'", "INSERT INTO old VALUES(1)", "DELETE FROM old", "CREATE TABLE new LIKE old", "REPLACE INTO new VALUES(1)",
				"RENAME TABLE new TO newer", "UPDATE newer SET id=2", "DROP TABLE gone")
			m.catchUp(within(t, 30*time.Second), s)
			s.Close()
			o.Resume = m.resume()
			s = open(t, o)
			defer s.Close()
			do(t, w, "INSERT INTO old VALUES(1)")
			m.catchUp(within(t, 30*time.Second), s)
			m.equalsCopy(o)
			do(t, w, "INSERT INTO v VALUES(7,7)")
			says(t, m.follow(within(t, 30*time.Second), s, "", nil), "m2_far.v", "view")
		})
	}
}

// The server's own tables are never captured, whatever relations says.
func TestTablesOfTheServerAreNotCaptured(t *testing.T) {
	for _, srv := range streamServers[:2] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c, o, s, _ := begun(t, srv, "m2_own")
			s.Close()
			o.Match = func(ns, _ string) bool { return !strings.HasPrefix(ns, "m") || ns == "m2_own" || ns == "mysql" }
			s = open(t, o)
			defer s.Close()
			m := newMirror(t)
			m.catchUp(within(t, 60*time.Second), s)
			do(t, c, "TRUNCATE TABLE mysql.time_zone", "INSERT INTO mysql.time_zone VALUES(1,'N')", "DELETE FROM mysql.time_zone", "INSERT INTO t VALUES(2,2)")
			m.catchUp(within(t, 30*time.Second), s)
			if len(m.rows["m2_own.t"]) != 2 {
				t.Errorf("rows %v", m.rows)
			}
		})
	}
}

// Keys whose index is not in the order of their values, or whose characters merge
// in UTF-8, are not read in chunks.
func TestKeysThatChunksCannotFollow(t *testing.T) {
	for _, tt := range []struct {
		columns string
		chunks  bool
	}{
		{"a VARCHAR(9) NOT NULL, PRIMARY KEY(a)", true},
		{"a VARCHAR(9) CHARACTER SET latin1 NOT NULL, PRIMARY KEY(a)", true},
		{"a VARCHAR(9) CHARACTER SET gbk NOT NULL, PRIMARY KEY(a)", true},
		{"a VARCHAR(9) CHARACTER SET cp932 NOT NULL, PRIMARY KEY(a)", false},
		{"a VARCHAR(9) CHARACTER SET armscii8 NOT NULL, PRIMARY KEY(a)", false},
		{"a VARCHAR(999) NOT NULL, PRIMARY KEY(a(10))", false},
		{"a INT NOT NULL, b INT NOT NULL, PRIMARY KEY(a, b DESC)", false},
		{"a INT NOT NULL, b INT NOT NULL, PRIMARY KEY(a ASC), KEY (b DESC)", true},
		{"a INT NOT NULL, b INT NOT NULL, UNIQUE u (b DESC), PRIMARY KEY(a)", true},
	} {
		_, d := defined(t, FlavorMySQL, tt.columns)
		if got := chunkKey(d) != nil; got != tt.chunks {
			t.Errorf("%s: in chunks: %t", tt.columns, got)
		}
	}
}

// Two keys of the source never become one in the lake.
func TestKeysThatWouldBecomeOneAreRefused(t *testing.T) {
	h, d := defined(t, FlavorMySQL, "k VARCHAR(9) CHARACTER SET cp932 NOT NULL PRIMARY KEY, v VARCHAR(9) CHARACTER SET cp932")
	dec := decoderOf(t, h, d)
	decode := func(key, value string) error {
		row := append([]byte{0, byte(len(key))}, key...)
		row = append(append(row, byte(len(value))), value...)
		var b source.Batch
		dec.reset(&b, source.Insert)
		_, _, err := dec.decode(source.Insert, fullBitmap(2), nil, row, &b, 1<<20)
		return err
	}
	// Both are U+FFE2.
	if err := decode("\x81\xca", "\xfa\x54"); err != nil {
		t.Error(err)
	}
	says(t, decode("\xfa\x54", "\x81\xca"), "column k", "twice")

	for _, sql := range []string{"k ENUM('','a') NOT NULL PRIMARY KEY", "k ENUM('b','a','b') NOT NULL PRIMARY KEY", "k SET('a','a') NOT NULL PRIMARY KEY"} {
		h := newHistory(FlavorMySQL, func(string, string) bool { return true })
		says(t, h.define("d", "CREATE TABLE t ("+sql+")"), "d.t", "column k")
		if err := h.define("d", "CREATE TABLE t ("+strings.Replace(sql, "PRIMARY KEY", "", 1)+", id INT PRIMARY KEY)"); err != nil {
			t.Errorf("not in the key: %v", err)
		}
	}
}

// Rows of these engines come and go without a word in the log.
func TestEnginesWithoutRowsOfTheirOwnAreRefused(t *testing.T) {
	for _, e := range []string{"MRG_MyISAM", "BLACKHOLE", "FEDERATED", "CONNECT", "SPIDER"} {
		h := newHistory(FlavorMariaDB, func(string, string) bool { return true })
		says(t, h.define("d", "CREATE TABLE t (id INT PRIMARY KEY) ENGINE="+e), "d.t", e)
	}
}

// A MyISAM table's unique index is the primary key in MySQL's log.
func TestUniqueIndexOfMyISAM(t *testing.T) {
	for _, srv := range streamServers {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c := srv.schema(t, "m2_unique")
			do(t, c, "CREATE TABLE u(v INT, id INT NOT NULL, UNIQUE(id)) ENGINE=MyISAM", "INSERT INTO u VALUES(1,1)")
			o := srv.options(t, "m2_unique")
			s := open(t, o)
			defer s.Close()
			m := newMirror(t)
			do(t, c, "UPDATE u SET id=2", "INSERT INTO u VALUES(1,1)")
			m.catchUp(within(t, 60*time.Second), s)
			m.equalsCopy(o)
		})
	}
}

// Tables that are known by name alone come back from a record, and are noticed
// when they become captured.
func TestFarTablesAreSavedByName(t *testing.T) {
	match := func(ns, _ string) bool { return ns == "shop" }
	h := newHistory(FlavorMySQL, match)
	for i := range 3 {
		h.defineUnknown("far", fmt.Sprintf("t%d", 2-i), farOff)
	}
	b, err := h.encode()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `"far":{"far":["t0","t1","t2"]}`) {
		t.Errorf("saved as %s", b)
	}
	back, err := decodeHistory(b, match)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := back.encode(); err != nil || string(again) != string(b) {
		t.Errorf("saved forms differ: %s, %v", again, err)
	}
	more, err := decodeHistory(b, func(_, name string) bool { return name == "t1" })
	if err != nil {
		t.Fatal(err)
	}
	if n := more.newlyMatched(); !slices.Equal(n, []string{"far.t1"}) {
		t.Errorf("newly matched: %v", n)
	}
}
