package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// pgSource sets keys of the pipeline's source.
func pgSource(p *harness.Pipeline, pairs ...any) *harness.Pipeline {
	for i := 0; i < len(pairs); i += 2 {
		p.Set("source.postgres."+pairs[i].(string), pairs[i+1])
	}
	return p
}

func TestPostgresRelationWithoutAKey(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		s.Schema(t, "nokey")
		s.Exec(t, "CREATE TABLE nokey.a(id int PRIMARY KEY)", "CREATE TABLE nokey.log(v text)", "CREATE TABLE nokey.late(id int PRIMARY KEY DEFERRABLE)",
			"INSERT INTO nokey.log VALUES('x'),('x')")
		s.Publish(t, "nokey", "nokey")
		refuses(t, harness.NewPipeline(t, s, "nokey", "nokey.*"), harness.ExitConfig, "nokey.log", "nokey.late", "PRIMARY KEY|REPLICA IDENTITY", "ALTER TABLE")
		// Append mode is a way out; so is to leave the relation out.
		s.Exec(t, "ALTER TABLE nokey.log REPLICA IDENTITY FULL")
		p := harness.NewPipeline(t, s, "nokey", "nokey.*", "!nokey.late").Set("tables", tablesKey(map[string]any{"match": "nokey.log", "mode": "append"}))
		p.Run()
		p.Wait(waitLimit)
		s.Exec(t, "INSERT INTO nokey.log VALUES('y')", "INSERT INTO nokey.a VALUES(1)")
		p.Wait(waitLimit)
		appended(t, java(t), p.Table("nokey", "log"), s.Rows(t, "nokey", "log"))
		judge(t).Equal(t, p, s, "nokey", "a")
		s.Exec(t, "UPDATE nokey.log SET v='z' WHERE v='y'", "DELETE FROM nokey.log")
		p.Wait(waitLimit)
		ops := map[string]int{}
		for _, l := range java(t).Java.Rows(t, p.Table("nokey", "log")) {
			_, meta, _ := strings.Cut(l, `"_op":"`)
			ops[meta[:1]]++
		}
		if ops["r"] != 2 || ops["c"] != 1 || ops["u"] != 1 || ops["d"] != 3 {
			t.Errorf("the append table has %v, want 2 r, 1 c, 1 u, 3 d", ops)
		}
		p.Stop()
	})
}

func TestPostgresMissingRights(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		s.Schema(t, "rights")
		s.Exec(t, "CREATE TABLE rights.a(id int PRIMARY KEY)", "INSERT INTO rights.a VALUES(1)", "CREATE ROLE poor LOGIN PASSWORD 'poor'")
		t.Cleanup(func() { s.Exec(t, "DROP OWNED BY poor", "DROP ROLE poor") })
		s.Publish(t, "rights", "rights")
		pipeline := func() *harness.Pipeline {
			return pgSource(harness.NewPipeline(t, s, "rights", "rights.*"), "user", "poor", "password", "poor")
		}
		// All that is missing is told at once.
		refuses(t, pipeline(), harness.ExitConfig, "ALTER ROLE", "REPLICATION", "GRANT USAGE ON SCHEMA", "GRANT SELECT ON", "poor", "rights.a|\"rights\".\"a\"")
		s.Exec(t, "ALTER ROLE poor REPLICATION")
		refuses(t, pipeline(), harness.ExitConfig, "GRANT SELECT ON", "poor")
		s.Exec(t, "GRANT USAGE ON SCHEMA rights TO poor", "GRANT SELECT ON rights.a TO poor", "DROP PUBLICATION lakesync_rights")
		refuses(t, pipeline(), harness.ExitConfig, "publication", "CREATE PUBLICATION", "lakesync_rights", "owner")
		s.Exec(t, "CREATE PUBLICATION lakesync_rights FOR TABLE rights.a WITH (publish='insert')")
		refuses(t, pipeline(), harness.ExitConfig, "publication", "ALTER PUBLICATION", "insert, update, delete, truncate")
		s.Exec(t, "ALTER PUBLICATION lakesync_rights SET (publish='insert,update,delete,truncate')", "ALTER TABLE rights.a ENABLE ROW LEVEL SECURITY")
		refuses(t, pipeline(), harness.ExitConfig, "row level security", "BYPASSRLS", "rights.a")
		s.Exec(t, "ALTER TABLE rights.a DISABLE ROW LEVEL SECURITY")
		// This is the least that serves.
		p := pipeline()
		p.Run()
		p.Wait(waitLimit)
		s.Exec(t, "INSERT INTO rights.a VALUES(2)", "UPDATE rights.a SET id=3 WHERE id=1")
		p.Wait(waitLimit)
		judge(t).Equal(t, p, s, "rights", "a")
		p.Stop()
	})
}

// TestPostgresLogin: at the start a wrong password or database ends the daemon,
// while it runs it waits.
func TestPostgresLogin(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		s.Schema(t, "login")
		s.Exec(t, "CREATE TABLE login.a(id int PRIMARY KEY)", "INSERT INTO login.a VALUES(1)")
		s.Publish(t, "login", "login")
		refuses(t, pgSource(harness.NewPipeline(t, s, "login", "login.*"), "password", "wrong-secret"), harness.ExitConfig, "password", "lakesync")
		refuses(t, pgSource(harness.NewPipeline(t, s, "login", "login.*"), "database", "nowhere"), harness.ExitConfig, "nowhere")
		p := harness.NewPipeline(t, s, "login", "login.*")
		p.Run()
		p.Wait(waitLimit)
		t.Cleanup(func() { s.Exec(t, "ALTER ROLE lakesync PASSWORD 'lakesync'") })
		s.Exec(t, "ALTER ROLE lakesync PASSWORD 'rotated-secret'", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='lakesync'")
		var st harness.Status
		if !harness.Poll(60*time.Second, func() bool {
			st = p.Status()
			return st.State == "waiting_source" && strings.Contains(st.Reason, "password")
		}) {
			t.Fatalf("state %q since %q, want waiting_source and the password named", st.State, st.Reason)
		}
		s.Exec(t, "INSERT INTO login.a VALUES(2)", "ALTER ROLE lakesync PASSWORD 'lakesync'")
		p.State(90*time.Second, "streaming")
		p.Wait(waitLimit)
		judge(t).Equal(t, p, s, "login", "a")
		p.Stop()
		if log := p.Log(); strings.Contains(log, "wrong-secret") || strings.Contains(log, "rotated-secret") {
			t.Error("a password is in the log")
		}
	})
}

// TestPostgresSlotDroppedBehindOurBack: a new slot would leave a hole, so the
// pipeline must not make one.
func TestPostgresSlotDroppedBehindOurBack(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name    string
			running bool
			again   bool // somebody made it again
		}{{"while down", false, false}, {"while running", true, false}, {"and made again", false, true}} {
			t.Run(c.name, func(t *testing.T) {
				s.Schema(t, "slot")
				s.Exec(t, "CREATE TABLE slot.a(id int PRIMARY KEY)", "INSERT INTO slot.a VALUES(1)")
				s.Publish(t, "slot", "slot")
				p := harness.NewPipeline(t, s, "slot", "slot.*")
				p.Run()
				p.Wait(waitLimit)
				s.Exec(t, "INSERT INTO slot.a VALUES(2)")
				p.Wait(waitLimit)
				if !c.running {
					p.Stop()
				}
				want := s.Rows(t, "slot", "a")
				s.DropSlot(t, "lakesync_slot")
				s.Exec(t, "INSERT INTO slot.a VALUES(3)")
				if c.again {
					s.Exec(t, "SELECT pg_create_logical_replication_slot('lakesync_slot','pgoutput')", "INSERT INTO slot.a VALUES(4)")
				}
				if !c.running {
					p.Run()
				}
				stops(t, p, harness.ExitConfig, 60*time.Second, "slot", "lakesync_slot", "gone", "copy the tables anew", "lsn:")
				out, _ := p.Command("status", "-config", p.File)
				says(t, "status", out, "stopped", "lakesync_slot")
				judge(t).EqualLines(t, p.Table("slot", "a"), want)
				if n := s.Query(t, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name='lakesync_slot'"); (n != "0") != c.again {
					t.Errorf("%s slots, made again by somebody: %t", n, c.again)
				}
				// The way out that the message names.
				s.Publish(t, "slot2", "slot")
				p2 := harness.NewPipeline(t, s, "slot2", "slot.*")
				p2.Run()
				p2.Wait(waitLimit)
				judge(t).Equal(t, p2, s, "slot", "a")
				p2.Stop()
			})
		}
	})
}

// TestPostgresChangesThatCannotBeFollowed: the pipeline stops before it writes
// anything wrong, and its tables stay as they were.
func TestPostgresChangesThatCannotBeFollowed(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name string
			do   []string
			says []string
			down bool // while the daemon is down; the log tells nothing of it
		}{
			{"column dropped", []string{"ALTER TABLE bad.a DROP COLUMN v", "INSERT INTO bad.a VALUES(9)"}, []string{"bad.a", "v", "lsn:"}, false},
			{"another type", []string{"ALTER TABLE bad.a ALTER v TYPE bigint", "INSERT INTO bad.a VALUES(9,9)"}, []string{"bad.a", "v", "lsn:"}, false},
			{"column with a default", []string{"ALTER TABLE bad.a ADD w int DEFAULT 5", "INSERT INTO bad.a VALUES(9,9,9)"}, []string{"bad.a", "w", "lsn:"}, false},
			{"relation dropped", []string{"DROP TABLE bad.a"}, []string{"bad.a", "dropped", "!bad.a"}, true},
			{"publication dropped", []string{"DROP PUBLICATION lakesync_bad", "INSERT INTO bad.d VALUES('2024-01-01')"}, []string{"publication", "lakesync_bad"}, false},
			{"large value that is not sent", []string{"UPDATE bad.big SET v=7"}, []string{"bad.big", "big", "REPLICA IDENTITY FULL", "lsn:"}, false},
			{"infinity in a key", []string{"INSERT INTO bad.d VALUES('infinity')"}, []string{"bad.d", "d", "lsn:"}, false},
			{"array of two dimensions", []string{"INSERT INTO bad.arr VALUES(1,'{{1,2},{3,4}}')"}, []string{"bad.arr", "l", "lsn:"}, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				s.Schema(t, "bad")
				s.Exec(t, "CREATE TABLE bad.a(id int PRIMARY KEY, v int)", "INSERT INTO bad.a VALUES(1,1),(2,2)",
					"CREATE TABLE bad.d(d date PRIMARY KEY)", "CREATE TABLE bad.arr(id int PRIMARY KEY, l int[])",
					"CREATE TABLE bad.big(id int PRIMARY KEY, v int, big text)", "ALTER TABLE bad.big ALTER big SET STORAGE EXTERNAL", "INSERT INTO bad.big VALUES(1,1,repeat('x',10000))")
				s.Publish(t, "bad", "bad")
				p := harness.NewPipeline(t, s, "bad", "bad.*")
				p.Run()
				p.Wait(waitLimit)
				s.Exec(t, "UPDATE bad.a SET v=20 WHERE id=2")
				p.Wait(waitLimit)
				tables := []string{"a", "d", "arr", "big"}
				want := map[string][]string{}
				for _, r := range tables {
					want[r] = s.Rows(t, "bad", r)
				}
				if c.down {
					p.Kill()
				}
				s.Exec(t, c.do...)
				if c.down {
					p.Run()
				}
				stops(t, p, harness.ExitConfig, 60*time.Second, c.says...)
				for _, r := range tables {
					java(t).EqualLines(t, p.Table("bad", r), want[r])
				}
			})
		}
	})
}

// TestPostgresServerOfOurOwn covers what concerns a whole server: its settings,
// crashes, and another one at its address.
func TestPostgresServerOfOurOwn(t *testing.T) {
	needsServers(t)
	kinds := []harness.Kind{harness.Postgres17}
	if *long {
		kinds = append(kinds, harness.Postgres15, harness.Postgres18)
	}
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) {
			s := harness.Start(t, k, harness.PostgresPort, "-c", "wal_level=replica")
			s.Exec(t, "CREATE SCHEMA own", "CREATE TABLE own.a(id int PRIMARY KEY, v int)", "INSERT INTO own.a VALUES(1,1)",
				"CREATE PUBLICATION lakesync_own FOR TABLES IN SCHEMA own")
			p := harness.NewPipeline(t, s, "own", "own.*")
			refuses(t, p, harness.ExitConfig, "wal_level", "replica", "logical", "ALTER SYSTEM", "restart")

			s.Stop(t)
			s.Restart(t, "-c", "wal_level=logical", "-c", "fsync=on")
			p.Run()
			p.Wait(waitLimit)
			s.Exec(t, "INSERT INTO own.a VALUES(2,2)")
			s.Kill(t)
			if st := p.State(60*time.Second, "waiting_source"); st.Reason == "" {
				t.Error("waiting_source without a reason")
			}
			s.Restart(t)
			s.Exec(t, "UPDATE own.a SET v=v+1")
			p.State(60*time.Second, "streaming")
			p.Wait(waitLimit)
			judge(t).Equal(t, p, s, "own", "a")

			// Without logical decoding the server does not even start with our slot;
			// another server at the address does.
			want := s.Rows(t, "own", "a")
			s.Stop(t)
			twin := s.Twin(t)
			twin.Exec(t, "CREATE SCHEMA own", "CREATE TABLE own.a(id int PRIMARY KEY, v int)", "INSERT INTO own.a VALUES(99,99)",
				"CREATE PUBLICATION lakesync_own FOR TABLES IN SCHEMA own")
			stops(t, p, harness.ExitConfig, 60*time.Second, "another", "system identifier", "own|lsn:|position")
			java(t).EqualLines(t, p.Table("own", "a"), want)
			twin.Stop(t)
			s.Restart(t)
			s.Exec(t, "INSERT INTO own.a VALUES(5,5)")
			p.Run()
			p.Wait(waitLimit)
			judge(t).Equal(t, p, s, "own", "a")
			p.Stop()
		})
	}
}
