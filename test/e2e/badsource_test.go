package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

func TestMissingRights(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		database(t, s, "rights")
		s.Exec(t, "CREATE TABLE rights.a(id INT PRIMARY KEY)", "CREATE TABLE rights.b(id INT PRIMARY KEY)", "INSERT INTO rights.a VALUES(1)")
		s.Exec(t, "DROP USER IF EXISTS poor@'%'", "CREATE USER poor@'%' IDENTIFIED BY 'poor'")
		t.Cleanup(func() { s.Exec(t, "DROP USER IF EXISTS poor@'%'") })
		pipeline := func() *harness.Pipeline {
			return harness.NewPipeline(t, s, "rights", "rights.*").
				Set("source."+s.Source+".user", "poor").Set("source."+s.Source+".password", "poor")
		}
		s.Exec(t, "GRANT SELECT ON rights.* TO poor@'%'")
		refuses(t, pipeline(), harness.ExitConfig, "REPLICATION SLAVE", "GRANT", "poor")
		s.Exec(t, "REVOKE SELECT ON rights.* FROM poor@'%'")
		s.Exec(t, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO poor@'%'", "GRANT SELECT ON rights.a TO poor@'%'")
		// It sees only what it may read: relation b must be noticed or at least
		// nothing be wrong about a. With no right on any relation it must be told.
		s.Exec(t, "REVOKE SELECT ON rights.a FROM poor@'%'")
		refuses(t, pipeline(), harness.ExitConfig, "SELECT", "GRANT|relations")

		// Without RELOAD it must work, or say so.
		s.Exec(t, "GRANT SELECT ON rights.* TO poor@'%'")
		p := pipeline()
		p.Run()
		p.Wait(waitLimit)
		s.Exec(t, "INSERT INTO rights.a VALUES(2)", "UPDATE rights.a SET id=3 WHERE id=1")
		p.Wait(waitLimit)
		judge(t).Equal(t, p, s, "rights", "a")
		p.Stop()
	})
}

// TestServerSettingsThatLoseData has each setting refused by name at the start.
func TestServerSettingsThatLoseData(t *testing.T) {
	needsServers(t)
	type setting struct {
		name, on, off string
		only          string
		says          []string
	}
	for _, k := range []harness.Kind{harness.MySQL, harness.MariaDB} {
		t.Run(k.String(), func(t *testing.T) {
			s := harness.Start(t, k, harness.PrivatePort)
			database(t, s, "sets")
			s.Exec(t, "CREATE TABLE sets.a(id INT PRIMARY KEY, v INT, j JSON)", "INSERT INTO sets.a VALUES(1,1,'{}')")
			for _, c := range []setting{
				{"binlog_format STATEMENT", "binlog_format='STATEMENT'", "binlog_format='ROW'", "", []string{"binlog_format", "ROW", "SET "}},
				{"binlog_format MIXED", "binlog_format='MIXED'", "binlog_format='ROW'", "", []string{"binlog_format", "ROW"}},
				{"binlog_row_image MINIMAL", "binlog_row_image='MINIMAL'", "binlog_row_image='FULL'", "", []string{"binlog_row_image", "FULL", "SET "}},
				{"binlog_row_image NOBLOB", "binlog_row_image='NOBLOB'", "binlog_row_image='FULL'", "", []string{"binlog_row_image", "FULL"}},
				{"binlog_row_metadata MINIMAL", "binlog_row_metadata='MINIMAL'", "binlog_row_metadata='FULL'", "", []string{"binlog_row_metadata", "FULL", "SET "}}, // MY-048
				{"PARTIAL_JSON", "binlog_row_value_options='PARTIAL_JSON'", "binlog_row_value_options=''", "mysql", []string{"binlog_row_value_options"}},           // MY-037
			} {
				if c.only != "" && c.only != k.Source {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					if _, err := s.DB.ExecContext(t.Context(), "SET GLOBAL "+c.on); err != nil {
						t.Logf("this server doesn't take it: %v", err)
						return
					}
					defer s.Exec(t, "SET GLOBAL "+c.off)
					refuses(t, harness.NewPipeline(t, s, "sets", "sets.*"), harness.ExitConfig, c.says...)
				})
			}
			t.Run("log_bin off", func(t *testing.T) {
				s.Stop(t)
				s.Restart(t, "--skip-log-bin", "--log-slave-updates=OFF")
				refuses(t, harness.NewPipeline(t, s, "sets", "sets.*"), harness.ExitConfig, "log_bin|log-bin")
			})
		})
	}
}

// TestSessionThatLosesDataStopsThePipeline covers sessions that changed the
// settings after the start: the pipeline stops before it writes anything wrong.
func TestSessionThatLosesDataStopsThePipeline(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name, only string
			do         []string
			says       []string
		}{
			{"MY-036 MINIMAL image", "", []string{"SET SESSION binlog_row_image='MINIMAL'", "UPDATE sess.a SET v=6 WHERE id=1", "SET SESSION binlog_row_image='FULL'"},
				[]string{"sess.a", "binlog_row_image|row image", "FULL|full"}},
			{"MY-038 STATEMENT", "", []string{"SET SESSION binlog_format='STATEMENT'", "USE sess", "INSERT INTO a VALUES(5,5,'{}')", "SET SESSION binlog_format='ROW'"},
				[]string{"sess.a|`a`", "binlog_format|statement"}},
			{"MY-037 PARTIAL_JSON", "mysql", []string{"SET SESSION binlog_row_value_options='PARTIAL_JSON'", "UPDATE sess.a SET j=JSON_SET(j,'$.a',77) WHERE id=1", "SET SESSION binlog_row_value_options=''"},
				[]string{"binlog_row_value_options|partial"}},
		} {
			if c.only != "" && c.only != s.Source {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				db := database(t, s, "sess")
				s.Exec(t, "CREATE TABLE sess.a(id INT PRIMARY KEY, v INT, j JSON)",
					`INSERT INTO sess.a VALUES(1,5,'{"zz":1,"a":2,"long":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}')`)
				p := harness.NewPipeline(t, s, "sess", "sess.*")
				p.Run()
				p.Wait(waitLimit)
				want := s.Rows(t, db, "a")
				s.Exec(t, c.do...)
				stops(t, p, harness.ExitConfig, 60*time.Second, append(c.says, "gtid:|file:")...)
				judge(t).EqualLines(t, p.Table(db, "a"), want)
				// It stops again, and says so to whoever asks.
				p.Run()
				stops(t, p, harness.ExitConfig, 60*time.Second, c.says...)
				out, _ := p.Command("status", "-config", p.File)
				says(t, "status", out, "stopped")
				judge(t).EqualLines(t, p.Table(db, "a"), want)
			})
		}
	})
}

// TestDDLThatIsNotUnderstoodStops: what may change rows or shape is never skipped.
func TestDDLThatIsNotUnderstoodStops(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct{ name, ddl string }{
			{"type that cannot be kept", "ALTER TABLE ddl.a MODIFY v VARCHAR(9)"},
			{"MY-098 key dropped", "ALTER TABLE ddl.a DROP PRIMARY KEY"},
			{"MY-088 partition dropped", "ALTER TABLE ddl.p DROP PARTITION p0"},
		} {
			t.Run(c.name, func(t *testing.T) {
				db := database(t, s, "ddl")
				s.Exec(t, "CREATE TABLE ddl.a(id INT PRIMARY KEY, v INT)", "INSERT INTO ddl.a VALUES(1,1),(2,2)",
					"CREATE TABLE ddl.p(id INT PRIMARY KEY) PARTITION BY RANGE(id)(PARTITION p0 VALUES LESS THAN(10),PARTITION p1 VALUES LESS THAN(20))",
					"INSERT INTO ddl.p VALUES(1),(11)")
				p := harness.NewPipeline(t, s, "ddl", "ddl.*")
				p.Run()
				p.Wait(waitLimit)
				s.Exec(t, "UPDATE ddl.a SET v=20 WHERE id=2")
				p.Wait(waitLimit)
				a, part := s.Rows(t, db, "a"), s.Rows(t, db, "p")
				s.Exec(t, c.ddl)
				table := "ddl.a"
				if strings.Contains(c.ddl, "ddl.p") {
					table = "ddl.p"
				}
				stops(t, p, harness.ExitConfig, 60*time.Second, table, "gtid:|file:")
				judge(t).EqualLines(t, p.Table(db, "a"), a)
				judge(t).EqualLines(t, p.Table(db, "p"), part)
			})
		}
	})
}

// TestPositionThatIsGone is MY-012: purged while the daemon was down.
func TestPositionThatIsGone(t *testing.T) {
	needsServers(t)
	for _, k := range []harness.Kind{harness.MySQL, harness.MariaDB} {
		t.Run(k.String(), func(t *testing.T) {
			s := harness.Start(t, k, harness.PrivatePort)
			db := database(t, s, "purged")
			s.Exec(t, "CREATE TABLE purged.a(id INT PRIMARY KEY)", "INSERT INTO purged.a VALUES(1)")
			p := harness.NewPipeline(t, s, "purged", "purged.*")
			p.Run()
			p.Wait(waitLimit)
			p.Stop()
			if k.Source == "mariadb" {
				s.Exec(t, "SET GLOBAL slave_connections_needed_for_purge=0")
			}
			s.Exec(t, "FLUSH BINARY LOGS", "INSERT INTO purged.a VALUES(2)", "FLUSH BINARY LOGS")
			logs := s.Column(t, "SHOW BINARY LOGS")
			newest := logs[len(logs)-1]
			// MariaDB keeps a file until InnoDB has told that it needs it no more.
			if !harness.Poll(30*time.Second, func() bool {
				s.Exec(t, f("PURGE BINARY LOGS TO '%s'", newest))
				return s.Query(t, "SHOW BINARY LOGS") == newest
			}) {
				t.Fatalf("the server keeps its logs: %v", s.Column(t, "SHOW BINARY LOGS"))
			}
			p.Run()
			stops(t, p, harness.ExitConfig, 40*time.Second, "purged|no longer", "startup|records|checkpoint|again")
			judge(t).EqualLines(t, p.Table(db, "a"), []string{`{"id":1}`})
		})
	}
}

// TestAnotherServerAtTheAddress: while the daemon is down, and while it runs.
func TestAnotherServerAtTheAddress(t *testing.T) {
	needsServers(t)
	for _, k := range []harness.Kind{harness.MySQL, harness.MariaDB} {
		t.Run(k.String(), func(t *testing.T) {
			s := harness.Start(t, k, harness.PrivatePort)
			db := database(t, s, "other")
			s.Exec(t, "CREATE TABLE other.a(id INT PRIMARY KEY)", "INSERT INTO other.a VALUES(1)", "INSERT INTO other.a VALUES(2)", "INSERT INTO other.a VALUES(3)")
			p := harness.NewPipeline(t, s, "other", "other.*")
			p.Run()
			p.Wait(waitLimit)
			s.Exec(t, "INSERT INTO other.a VALUES(4)")
			p.Wait(waitLimit)
			p.Stop()
			want := s.Rows(t, db, "a")

			s.Stop(t)
			twin := s.Twin(t)
			twin.Exec(t, "CREATE DATABASE other", "CREATE TABLE other.a(id INT PRIMARY KEY)", "INSERT INTO other.a VALUES(99)")
			p.Run()
			stops(t, p, harness.ExitConfig, 40*time.Second, "server|source", "another|other|replaced|not the|identity|uuid|gtid")
			judge(t).EqualLines(t, p.Table(db, "a"), want)

			twin.Stop(t)
			s.Restart(t)
			s.Exec(t, "INSERT INTO other.a VALUES(5)")
			p.Run()
			p.Wait(waitLimit)
			judge(t).Equal(t, p, s, db, "a")

			// And now under the running daemon.
			want = s.Rows(t, db, "a")
			s.Kill(t)
			twin.Restart(t)
			twin.Exec(t, "INSERT INTO other.a VALUES(100)")
			stops(t, p, harness.ExitConfig, 60*time.Second, "server|source")
			judge(t).EqualLines(t, p.Table(db, "a"), want)
			twin.Stop(t)
			s.Restart(t)
			s.Exec(t, "INSERT INTO other.a VALUES(6)")
			p.Run()
			p.Wait(waitLimit)
			judge(t).Equal(t, p, s, db, "a")
			p.Stop()
		})
	}
}

// TestServerCrashesAndPasswordsRotate: a running daemon waits, for ever, and
// goes on where it was.
func TestServerCrashesAndPasswordsRotate(t *testing.T) {
	needsServers(t)
	for _, k := range []harness.Kind{harness.MySQL, harness.MariaDB} {
		t.Run(k.String(), func(t *testing.T) {
			s := harness.Start(t, k, harness.PrivatePort, "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1")
			db := database(t, s, "wait")
			s.Exec(t, "CREATE TABLE wait.a(id INT PRIMARY KEY, v INT)", "INSERT INTO wait.a VALUES(1,1)")
			p := harness.NewPipeline(t, s, "wait", "wait.*")
			p.Run()
			p.Wait(waitLimit)

			s.Exec(t, "INSERT INTO wait.a VALUES(2,2)")
			s.Kill(t)
			st := p.State(60*time.Second, "waiting_source")
			if st.Reason == "" {
				t.Error("waiting_source without a reason")
			}
			s.Restart(t)
			s.Exec(t, "UPDATE wait.a SET v=v+1")
			p.State(60*time.Second, "streaming")
			p.Wait(waitLimit)
			judge(t).Equal(t, p, s, db, "a")

			s.Exec(t, "ALTER USER lakesync@'%' IDENTIFIED BY 'changed'", "FLUSH PRIVILEGES")
			killUser(t, s)
			p.State(60*time.Second, "waiting_source")
			s.Exec(t, "INSERT INTO wait.a VALUES(3,3)")
			s.Exec(t, "ALTER USER lakesync@'%' IDENTIFIED BY 'lakesync'")
			p.State(90*time.Second, "streaming")
			p.Wait(waitLimit)
			judge(t).Equal(t, p, s, db, "a")
			p.Stop()
		})
	}
}

func killUser(t *testing.T, s *harness.Server) {
	t.Helper()
	for _, id := range s.Column(t, "SELECT id FROM information_schema.processlist WHERE user='lakesync'") {
		s.DB.ExecContext(t.Context(), "KILL "+id) //nolint:errcheck // it may have ended
	}
}

// TestNetworkFaults: connections cut in the middle of a transaction (MY-005), a
// network that died without a word (MY-018), and SIGTERM meanwhile (MY-034).
func TestNetworkFaults(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "net")
		s.Exec(t, "CREATE TABLE net.a(id INT PRIMARY KEY, b LONGBLOB)", "INSERT INTO net.a VALUES(0,'x')",
			"CREATE TABLE net.log(id INT PRIMARY KEY, b LONGBLOB)")
		proxy := harness.NewProxy(t, f("127.0.0.1:%d", harness.ProxyPort), s.Addr())
		p := harness.NewPipeline(t, s, "net", "net.*").Set("source."+s.Source+".port", harness.ProxyPort).
			Set("tables", tablesKey(map[string]any{"match": "net.log", "mode": "append"}))
		p.Run()
		p.Wait(waitLimit)

		// 60 rows of 1 MB in one transaction, cut again and again as it passes.
		fill := func(table string, first int) []string {
			q := []string{"BEGIN"}
			for i := range 60 {
				q = append(q, f("INSERT INTO net.%s VALUES(%d,REPEAT(UNHEX(SHA2('%d',256)),31250))", table, first+i, i))
			}
			return append(q, "COMMIT")
		}
		cutting := make(chan struct{})
		stopped := make(chan struct{})
		// It ends when cutting is closed.
		go func() {
			defer close(stopped)
			tick := time.NewTicker(300 * time.Millisecond)
			defer tick.Stop()
			for range 8 {
				select {
				case <-cutting:
					return
				case <-tick.C:
					proxy.Cut()
				}
			}
		}()
		s.Exec(t, fill("a", 1)...)
		s.Exec(t, fill("log", 1)...)
		<-stopped
		close(cutting)
		p.Wait(waitLimit)
		java(t).Equal(t, p, s, db, "a")
		appended(t, java(t), p.Table(db, "log"), s.Rows(t, db, "log"))

		proxy.Stall()
		s.Exec(t, "DELETE FROM net.a WHERE id>5")
		p.State(90*time.Second, "waiting_source")
		proxy.Resume()
		proxy.Cut()
		p.Wait(waitLimit)
		java(t).Equal(t, p, s, db, "a")

		proxy.Stall()
		p.Signal(syscall.SIGTERM)
		if e := p.Ended(15 * time.Second); e.Killed || e.Code != harness.ExitOK {
			t.Errorf("SIGTERM over a dead network: %+v, want exit 0 within 15 s", e)
		}
		proxy.Resume()
	})
}

// TestMisfitInAKeyStops: a zero date cannot be a key (contract, values).
func TestMisfitInAKeyStops(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "misfit")
		s.Exec(t, "CREATE TABLE misfit.a(d DATE, id INT, z DATE, PRIMARY KEY(d,id))", "INSERT INTO misfit.a VALUES('2024-01-01',1,'0000-00-00')")
		p := harness.NewPipeline(t, s, "misfit", "misfit.*")
		p.Run()
		p.Wait(waitLimit)
		judge(t).EqualLines(t, p.Table(db, "a"), []string{`{"d":"2024-01-01","id":1,"z":null}`})
		metrics, _ := p.Get("/metrics")
		says(t, "/metrics", metrics, "misfits_total")
		s.Exec(t, "INSERT INTO misfit.a VALUES('0000-00-00',2,NULL)")
		stops(t, p, harness.ExitConfig, 60*time.Second, "misfit.a", "d")
		judge(t).EqualLines(t, p.Table(db, "a"), []string{`{"d":"2024-01-01","id":1,"z":null}`})
	})
}

// TestChildOfACascade is MY-040 on a server that doesn't log cascades.
func TestChildOfACascade(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "fk")
	s.Exec(t, "CREATE TABLE fk.parent(id INT PRIMARY KEY)",
		"CREATE TABLE fk.child(id INT PRIMARY KEY, p INT, FOREIGN KEY(p) REFERENCES fk.parent(id) ON DELETE CASCADE)")
	refuses(t, harness.NewPipeline(t, s, "fk", "fk.*"), harness.ExitConfig, "fk.child", "CASCADE")
	// Leaving the child out is a way out.
	p := harness.NewPipeline(t, s, "fk2", "fk.*", "!fk.child")
	p.Run()
	p.Wait(waitLimit)
	p.Stop()
}

// TestSystemVersioned is MY-041: mirrored right or refused by name.
func TestSystemVersioned(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "ver")
	s.Exec(t, "CREATE TABLE ver.b8(id INT PRIMARY KEY, a INT) WITH SYSTEM VERSIONING", "INSERT INTO ver.b8 VALUES(1,1)")
	refuses(t, harness.NewPipeline(t, s, "ver", "ver.*"), harness.ExitConfig, "ver.b8", "versioning|versioned")
}

// TestGeneratedColumnsOfMariaDB: what the server leaves out of the log's images
// is refused by name.
func TestGeneratedColumnsOfMariaDB(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "gen")
	s.Exec(t, "CREATE TABLE gen.a(id INT PRIMARY KEY, a INT, s INT AS (a*2) STORED)")
	refuses(t, harness.NewPipeline(t, s, "gen", "gen.*"), harness.ExitConfig, "gen.a", "generated")
}
