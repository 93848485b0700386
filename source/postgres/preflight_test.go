package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/source/postgres"
)

// problems are what Check says, one a line.
func problems(t *testing.T, o postgres.Options) []string {
	t.Helper()
	o.Registerer = nil
	r, err := postgres.Check(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range r.Problems {
		if p.Key != "fsync" {
			out = append(out, fmt.Sprintf("%s %s", p.Severity, p))
		}
	}
	slices.Sort(out)
	return out
}

// says holds what Check says against what each line must contain.
func says(t *testing.T, what string, have []string, want ...string) {
	t.Helper()
	if len(have) != len(want) {
		t.Errorf("%s: %d problems, want %d:\n%s", what, len(have), len(want), strings.Join(have, "\n"))
		return
	}
	for i := range want {
		for part := range strings.SplitSeq(want[i], " … ") {
			if !strings.Contains(have[i], part) {
				t.Errorf("%s: %q does not say %q", what, have[i], part)
			}
		}
	}
}

// The statements of docs/how-to/postgres.md are enough, and each of them is needed.
func TestLeastRightsServe(t *testing.T) {
	for _, v := range []string{"15", "18"} {
		t.Run(v, func(t *testing.T) {
			d := start(t, v).create(t, "CREATE SCHEMA shop", "CREATE TABLE shop.orders(id int PRIMARY KEY)", "INSERT INTO shop.orders VALUES (1)", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
			d.drop(t)
			o := d.options(t)
			o.Match = func(ns, _ string) bool { return ns == "shop" }
			o.Config.User, o.Config.Password = "least", "least"
			d.exec(t, "CREATE ROLE least LOGIN PASSWORD 'least'")
			publish := "run as their owner, or as a superuser: CREATE PUBLICATION \"lakesync_test\" FOR TABLE \"shop\".\"orders\" WITH (publish_via_partition_root = true)"
			says(t, "nothing", problems(t, o), "error publication: … "+publish, "error shop.orders: cannot be read … GRANT USAGE", "error user: least may not replicate … ALTER ROLE \"least\" REPLICATION")
			d.exec(t, "ALTER ROLE least REPLICATION")
			says(t, "replication", problems(t, o), "error publication", "error shop.orders: cannot be read")
			d.exec(t, "GRANT USAGE ON SCHEMA shop TO least", "GRANT SELECT ON ALL TABLES IN SCHEMA shop TO least")
			says(t, "select", problems(t, o), "error publication: lakesync_test does not exist … tables of another owner (shop.orders) … "+publish)
			if _, err := postgres.Open(t.Context(), o); err == nil {
				t.Error("opened without a publication")
			}
			d.exec(t, `CREATE PUBLICATION lakesync_test FOR TABLE shop.orders WITH (publish_via_partition_root = true)`)
			says(t, "all", problems(t, o))
			m := open(t, o)
			m.copied()
			d.exec(t, "INSERT INTO shop.orders VALUES (2)")
			m.now(o)
			if n := len(m.tables["orders"]); n != 2 {
				t.Errorf("%d rows came, want 2", n)
			}
		})
	}
}

// PG-061, PG-062, PG-072, PG-073, PG-101, PG-065: relations and publications that
// would lose something, or break the application.
func TestCheckNamesWhatWouldBeLost(t *testing.T) {
	d := start(t, "18").create(t,
		"CREATE TABLE nokey(id int)", "CREATE TABLE late(id int PRIMARY KEY DEFERRABLE)", "CREATE TABLE mute(id int PRIMARY KEY)", "ALTER TABLE mute REPLICA IDENTITY NOTHING",
		"CREATE UNLOGGED TABLE fast(id int PRIMARY KEY)", "CREATE TABLE good(id int PRIMARY KEY, r text)", "CREATE TABLE g(id int PRIMARY KEY, x int GENERATED ALWAYS AS (id * 2) STORED)", "ALTER TABLE g REPLICA IDENTITY FULL",
		"CREATE TABLE part(id int PRIMARY KEY, region text)")
	o := d.options(t)
	o.Partitioned = func(_, name string) []string {
		if name == "part" {
			return []string{"id", "region"}
		}
		return nil
	}
	says(t, "tables", problems(t, o),
		"error public.fast: is UNLOGGED",
		"error public.g: has REPLICA IDENTITY FULL and a generated column",
		"error public.late: has no replica identity … ADD PRIMARY KEY",
		"error public.mute: has no replica identity … REPLICA IDENTITY DEFAULT",
		"error public.nokey: has no replica identity … ADD PRIMARY KEY",
		`error public.part: is partitioned by region … run: ALTER TABLE "public"."part" REPLICA IDENTITY FULL`)
	if n := d.query(t, "SELECT count(*) FROM pg_publication"); n != "0" {
		t.Error("a check has made a publication")
	}
	o.Append = func(_, name string) bool { return name == "nokey" }
	o.Match = func(_, name string) bool { return name == "nokey" }
	says(t, "append", problems(t, o), `error public.nokey: … run: ALTER TABLE "public"."nokey" REPLICA IDENTITY FULL`)
	d.exec(t, "ALTER TABLE nokey REPLICA IDENTITY FULL")
	says(t, "append, full", problems(t, o))
	o.Append, o.Match = nil, func(_, name string) bool { return name == "good" }
	d.exec(t, "CREATE PUBLICATION lakesync_test FOR TABLE good (id) WITH (publish = 'insert', publish_via_partition_root = true)")
	says(t, "publication", problems(t, o), "error public.good: has a list of columns", "error public.good: is mirrored, but the publication lakesync_test leaves kinds of changes out … SET (publish = 'insert, update, delete, truncate')")
	d.exec(t, "ALTER PUBLICATION lakesync_test SET (publish = 'insert, update, delete, truncate')", "ALTER PUBLICATION lakesync_test SET TABLE good WHERE (id > 5)")
	says(t, "filter", problems(t, o), "error public.good: has a filter of rows")
	o.Config.Slot = "Bad Name"
	o.Config.Publication = strings.Repeat("x", 64)
	says(t, "names", problems(t, o), "error publication: the name has 64 bytes", `error slot: "Bad Name" is not a slot's name`)
	none := d.options(t)
	none.Match = func(string, string) bool { return false }
	says(t, "nothing matches", problems(t, none), "warning relations: no table of the database matches")
}

// PG-101: with row level security a copy would have visible rows only.
func TestRefusesRowsThatAreHidden(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE g6(id int PRIMARY KEY, tenant int)", "ALTER TABLE g6 ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON g6 USING (tenant=1)", "GRANT SELECT ON g6 TO lakesync", "CREATE PUBLICATION lakesync_test FOR TABLE g6")
	o := d.options(t)
	o.Config.User, o.Config.Password = "lakesync", "lakesync"
	says(t, "row level security", problems(t, o), `error public.g6: has row level security … ALTER ROLE "lakesync" BYPASSRLS`)
	d.exec(t, "ALTER ROLE lakesync BYPASSRLS")
	says(t, "bypassed", problems(t, o))
}

func TestCheckNamesSettingsOfTheServer(t *testing.T) {
	d := start(t, "17", "-c", "wal_level=replica", "-c", "max_slot_wal_keep_size=64MB", "-c", "max_replication_slots=0").create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	says(t, "settings", problems(t, d.options(t)), "error max_replication_slots: is 0", "error wal_level: is \"replica\" … ALTER SYSTEM SET wal_level", "warning max_slot_wal_keep_size: is 64 MB")
}

// PG-140: TLS is what was asked for, on both kinds of session.
func TestHonoursTheTLSMode(t *testing.T) {
	s := start(t, "17")
	d := s.create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	o := d.options(t)
	for mode, ok := range map[string]bool{config.TLSDisabled: true, config.TLSPreferred: true, config.TLSRequired: true, config.TLSVerifyCA: false, config.TLSVerifyFull: false} {
		o.Config.TLS = config.TLS{Mode: mode}
		_, err := postgres.Check(t.Context(), o)
		if (err == nil) != ok {
			t.Errorf("%s: %v", mode, err)
		}
		if err != nil {
			cannotServe(t, err, "certificate")
		}
	}
	d.exec(t, "ALTER SYSTEM SET ssl = off")
	plain := start(t, "15", "-c", "ssl=off").create(t, "CREATE TABLE a(id int PRIMARY KEY)").options(t)
	if _, err := postgres.Check(t.Context(), plain); err != nil {
		t.Errorf("preferred, at a server without TLS: %v", err)
	}
	plain.Config.TLS.Mode = config.TLSRequired
	_, err := postgres.Check(t.Context(), plain)
	cannotServe(t, err, "refused TLS")
}

// PG-105: settings of the role and the database change nothing.
func TestPinsTheSettingsOfSessions(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE g10(d date PRIMARY KEY, b bytea, f float8, i interval, z timestamptz)", "INSERT INTO g10 VALUES('2024-03-04','\\x00ff5c41',0.1::float8+0.2,'1 mon','2024-01-01 12:00+00')",
		"ALTER ROLE postgres SET datestyle='SQL, DMY'", "ALTER ROLE postgres SET bytea_output='escape'", "ALTER ROLE postgres SET extra_float_digits=-3", "ALTER ROLE postgres SET intervalstyle='iso_8601'", "ALTER ROLE postgres SET timezone='Asia/Ho_Chi_Minh'", "ALTER ROLE postgres SET search_path='public'", "ALTER ROLE postgres SET idle_in_transaction_session_timeout='1s'", "ALTER ROLE postgres SET client_min_messages='error'", "ALTER ROLE postgres SET statement_timeout='2s'")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	read := m.read[0]
	d.exec(t, "UPDATE g10 SET d = d + 1", "UPDATE g10 SET d = d - 1")
	m.now(o)
	last := m.read[len(m.read)-2]
	if a, b := strings.SplitN(read, " [", 3), strings.SplitN(last, " [", 3); a[2] != b[2] {
		t.Errorf("the copy has %s, the log %s", read, last)
	}
	if !strings.Contains(read, "0.30000000000000004 1 mon ") || !strings.Contains(read, "\x00\xff\\A") || !strings.HasSuffix(read, " 1704110400000000]") {
		t.Errorf("the copy has %q", read)
	}
}

// PG-104: names with quotes, dots, spaces, letters outside of ASCII.
func TestQuotesNames(t *testing.T) {
	d := start(t, "17").create(t, `CREATE SCHEMA "S.1"`, `CREATE TABLE "S.1"."Wé ird"".T"("Id" int PRIMARY KEY, "a.b" text, "ключ" text)`, `INSERT INTO "S.1"."Wé ird"".T" VALUES(1,'y','z')`, `CREATE TABLE "S.1".select(id int PRIMARY KEY)`)
	d.drop(t)
	o := d.options(t)
	o.Match = func(ns, _ string) bool { return ns == "S.1" }
	o.Config.Publication = `My "pub's" \ name, x`
	m := open(t, o)
	m.copied()
	d.exec(t, `UPDATE "S.1"."Wé ird"".T" SET "ключ" = 'neu'`, `INSERT INTO "S.1".select VALUES (7)`)
	m.now(o)
	if r := m.tables[`Wé ird".T`]["1"]; len(r) != 3 || r[2] != "neu" {
		t.Errorf("the row is %v", r)
	}
	if m.tables["select"]["7"] == nil {
		t.Error("the row of select is missing")
	}
}

// PG-075..PG-078: partitioned relations, via the root and by partitions, with a
// partition of another layout, and one that is created later.
func TestFollowsPartitionedRelations(t *testing.T) {
	for _, root := range []bool{true, false} {
		t.Run(fmt.Sprintf("root %v", root), func(t *testing.T) {
			d := start(t, "17").create(t,
				"CREATE TABLE pt(id int NOT NULL, r int NOT NULL, PRIMARY KEY(id, r)) PARTITION BY LIST (r)", "CREATE TABLE pt_1 PARTITION OF pt FOR VALUES IN (1)",
				"CREATE TABLE pt_2 PARTITION OF pt FOR VALUES IN (2) PARTITION BY RANGE (id)", "CREATE TABLE pt_2a PARTITION OF pt_2 DEFAULT",
				"CREATE TABLE pt_4(x int, r int NOT NULL, id int NOT NULL)", "ALTER TABLE pt_4 DROP x", "ALTER TABLE pt_4 ADD PRIMARY KEY(id,r)", "ALTER TABLE pt ATTACH PARTITION pt_4 FOR VALUES IN (4)",
				"INSERT INTO pt VALUES (1,1),(2,2),(3,4)", "CREATE TABLE parent(id int PRIMARY KEY)", "CREATE TABLE heir(PRIMARY KEY (id)) INHERITS (parent)", "INSERT INTO parent VALUES (1)", "INSERT INTO heir VALUES (2)",
				fmt.Sprintf("CREATE PUBLICATION lakesync_test FOR ALL TABLES WITH (publish_via_partition_root = %v)", root))
			d.drop(t)
			o := d.options(t)
			m := open(t, o)
			m.copied()
			d.exec(t, "INSERT INTO pt VALUES (40,4),(20,2)", "UPDATE pt SET r = 1 WHERE id = 20", "CREATE TABLE pt_3 PARTITION OF pt FOR VALUES IN (3)", "INSERT INTO pt VALUES (3,3)", "CREATE TABLE later2(id int PRIMARY KEY)", "INSERT INTO later2 VALUES (9)", "INSERT INTO heir VALUES (3)")
			m.now(o)
			names := []string{"parent", "heir", "later2"}
			if root {
				names = append(names, "pt")
			} else {
				names = append(names, "pt_1", "pt_2a", "pt_3", "pt_4")
			}
			for _, n := range names {
				only := "ONLY " + n
				if n == "pt" {
					only = n
				}
				have := len(m.tables[n])
				if want := d.query(t, "SELECT count(*) FROM "+only); want != fmt.Sprint(have) {
					t.Errorf("%s has %d rows, want %s", n, have, want)
				}
			}
			if r := m.tables[names[len(names)-1]]["40|4"]; !root && !slices.Equal(r, []string{"4", "40"}) && !slices.Equal(r, []string{"40", "4"}) {
				t.Errorf("the row of the partition with another layout is %v", r)
			}
			_, whole := m.tables["pt"]
			if whole != root {
				t.Errorf("rows of the root came: %v", whole)
			}
		})
	}
}

// PG-081, PG-083, PG-090: a relation goes away while the pipeline runs.
func TestStopsWhenARelationGoes(t *testing.T) {
	for what, sql := range map[string]string{"dropped": "DROP TABLE a", "renamed": "ALTER TABLE a RENAME TO b", "taken out": "ALTER PUBLICATION lakesync_test DROP TABLE a", "made again": "DROP TABLE a; CREATE TABLE a(id int PRIMARY KEY)"} {
		t.Run(what, func(t *testing.T) {
			d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY)", "CREATE TABLE z(id int PRIMARY KEY)")
			d.drop(t)
			o := d.options(t)
			m := open(t, o)
			m.copied()
			d.exec(t, sql, "INSERT INTO z VALUES (1)")
			m.s.Close()
			_, err := postgres.Open(t.Context(), resume(m, o))
			cannotServe(t, err, "public.a")
			o.Match = func(_, name string) bool { return name == "z" }
			again := open(t, resume(m, o))
			again.now(o)
			again.same(d, "z", "id")
			again.s.Close()
			o.Match = func(ns, _ string) bool { return ns == "public" }
			if what == "taken out" {
				d.exec(t, "ALTER PUBLICATION lakesync_test ADD TABLE a")
				_, err = postgres.Open(t.Context(), resume(again, o))
				cannotServe(t, err, "public.a was not captured")
			}
		})
	}
}

// PG-030: a transaction that is open holds the slot up; the log names it.
func TestClosesWhileItWaitsForASlot(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	d.drop(t)
	o := d.options(t)
	d.exec(t, "BEGIN; INSERT INTO a VALUES (1)")
	began := time.Now()
	o.RetryBudget = 0
	ctx, cancel := contextWithin(t, 3*time.Second)
	defer cancel()
	if _, err := postgres.Open(ctx, o); err == nil {
		t.Error("opened while a transaction was open")
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to give up", took)
	}
	d.exec(t, "COMMIT")
	m := open(t, o)
	m.copied()
	m.same(d, "a", "id")
	var _ source.Source = m.s
}

// PG-069, PG-070: a relation that comes into the publication later has rows that
// nobody copied, unless the publication took it in from its beginning.
func TestRefusesARelationThatIsPublishedLate(t *testing.T) {
	d := start(t, "17").create(t, "CREATE TABLE a(id int PRIMARY KEY)")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	d.exec(t, "CREATE TABLE e3(id int PRIMARY KEY)", "INSERT INTO e3 SELECT generate_series(1, 1000)", "INSERT INTO a VALUES (1)")
	m.now(o)
	says(t, "not published", problems(t, o), "warning public.e3: is not in the publication")
	d.exec(t, "ALTER PUBLICATION lakesync_test ADD TABLE e3", "INSERT INTO e3 VALUES (1001)")
	ctx, cancel := contextWithin(t, 30*time.Second)
	defer cancel()
	for {
		ev, err := m.s.Next(ctx)
		if err != nil {
			cannotServe(t, err, "public.e3 came into the publication after the pipeline began")
			break
		}
		m.apply(ev)
	}
	o.Match = func(_, name string) bool { return name == "a" }
	d.exec(t, "INSERT INTO a VALUES (2)")
	again := open(t, resume(m, o))
	again.now(o)
	if again.tables["e3"] != nil || again.tables["a"]["2"] == nil {
		t.Errorf("after the relation was left out, the rows are %v", again.tables)
	}
}

// A publication of a schema takes in what is created in it.
func TestTakesInRelationsOfAPublishedSchema(t *testing.T) {
	d := start(t, "18").create(t, "CREATE TABLE a(id int PRIMARY KEY)", "CREATE PUBLICATION lakesync_test FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)")
	d.drop(t)
	o := d.options(t)
	m := open(t, o)
	m.copied()
	d.exec(t, "CREATE TABLE b(id int PRIMARY KEY)", "BEGIN; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); COMMIT", "INSERT INTO b VALUES (2)")
	m.now(o)
	m.same(d, "b", "id")
	m.s.Close()
	d.exec(t, "CREATE TABLE c(id int PRIMARY KEY)", "INSERT INTO c VALUES (3)")
	again := open(t, resume(m, o))
	again.now(o)
	again.same(d, "c", "id")
}
