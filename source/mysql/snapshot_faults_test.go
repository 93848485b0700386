package mysql

import (
	"errors"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/client"

	"github.com/lakesyncd/lakesyncd/source"
)

// MY-101, MY-128: DDL while the copy runs is not held up by a sink that waits,
// and the copy begins again.
func TestDDLDuringTheCopy(t *testing.T) {
	for _, srv := range streamServers[:2] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c := srv.schema(t, "m2_ddl")
			do(t, c, "CREATE TABLE d18(id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(2000))", "INSERT INTO d18(v) VALUES(REPEAT('x', 2000))")
			for range 14 {
				do(t, c, "INSERT INTO d18(v) SELECT v FROM d18")
			}
			o := srv.lake(t, c, "m2_ddl")
			o.Memory = 4 << 20
			for _, alter := range []string{"ALTER TABLE d18 ADD COLUMN z INT, ALGORITHM=COPY", "ALTER TABLE d18 ADD COLUMN y INT, ALGORITHM=INSTANT", "ALTER TABLE d18 RENAME COLUMN v TO w"} {
				s := open(t, o)
				m := newMirror(t)
				ctx := within(t, 60*time.Second)
				reads := 0
				if err := m.follow(ctx, s, "", func(*source.Event) bool { reads++; return reads < 3 }); err != nil {
					t.Fatal(err)
				}
				do(t, c, "SET lock_wait_timeout=5", alter)
				if err := m.follow(ctx, s, "", func(ev *source.Event) bool { return ev.Kind != source.Commit }); !errors.Is(err, source.ErrRestart) {
					t.Errorf("%s: %v after %d rows", alter, err, len(m.rows["m2_ddl.d18"]))
				}
				s.Close()
			}
			if n := len(copied(t, o)["m2_ddl.d18"]); n != 1<<14 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

// lake is options for a user with every right that is of use.
func (s streamServer) lake(t *testing.T, c *client.Conn, schema string) Options {
	t.Helper()
	do(t, c, "DROP USER IF EXISTS m2_lake@'%'", "CREATE USER m2_lake@'%' IDENTIFIED BY 'pw'", "GRANT ALL ON *.* TO m2_lake@'%'")
	o := s.options(t, schema)
	o.Config.User, o.Config.Password = "m2_lake", "pw"
	return o
}

// Rows of a transaction that is prepared at the cut are in the log before it and
// not in the view.
func TestPreparedTransactionsAtTheCutAreRefused(t *testing.T) {
	for _, srv := range streamServers[:2] {
		t.Run(srv.name, func(t *testing.T) {
			srv.start(t)
			c := srv.schema(t, "m2_prepared")
			do(t, c, "CREATE TABLE t(id INT PRIMARY KEY)", "XA START 'p'", "INSERT INTO t VALUES(1)", "XA END 'p'", "XA PREPARE 'p'")
			o := srv.lake(t, srv.root(t), "m2_prepared")
			refused2(t, o, "XA RECOVER")
			do(t, c, "XA COMMIT 'p'")
			open(t, o)
		})
	}
}
