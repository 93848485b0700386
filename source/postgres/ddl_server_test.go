package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/source"
)

// history is what a test sees of the log: changes, and rows as text.
type history struct {
	lines []string
	err   error
}

// rowText prints the columns of a row; "-" is a column that is not there and "?"
// one that was not sent.
func rowText(v []source.Vector) string {
	var out []string
	for i := range v {
		switch {
		case v[i].Len() == 0:
			out = append(out, "-")
		case len(v[i].Unchanged) > 0:
			out = append(out, "?")
		default:
			text := show(&v[i], 0)
			if len(text) > 20 {
				text = fmt.Sprintf("%s…%d", text[:1], len(text))
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

// readNow among the statements reads the log before the next one.
const readNow = "read"

// follow runs statements on a fresh log and tells what comes of them. The shapes
// are those after the statements in setup.
func follow(t *testing.T, c *conn, setup string, statements ...string) history {
	t.Helper()
	return followFrom(t, c, func() *shapes {
		known := newShapes()
		for _, r := range must(t, c, "SELECT oid::regclass FROM pg_class WHERE relkind IN ('r','p') AND relnamespace = 'public'::regnamespace AND NOT relispartition") {
			known.set(testShape(t, c, string(r[0])))
		}
		return known
	}, setup, statements...)
}

func followFrom(t *testing.T, c *conn, load func() *shapes, setup string, statements ...string) history {
	t.Helper()
	must(t, c, "DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public; DROP SCHEMA IF EXISTS s2 CASCADE; CREATE SCHEMA s2")
	must(t, c, "SET search_path = public")
	must(t, c, setup)
	must(t, c, "SET search_path = ''")
	logged(t, c)
	known := load()
	must(t, c, "SET search_path = public")
	var h history
	r := replay{shapes: known, catalog: func(oid uint32) (*shape, error) { return loadShape(context.Background(), c, oid) },
		change: func(s *shape, ch *source.Change) {
			h.lines = append(h.lines, ch.Statement)
			for _, st := range ch.Steps {
				h.lines = append(h.lines, fmt.Sprintf("add %s %s after %s", st.Column.Name, st.Column.Type, st.After))
			}
		},
		row: func(s *shape, b *source.Batch) error {
			line := s.Name + ":"
			if b.Op != source.Insert {
				line += " [" + rowText(b.Before) + "]"
			}
			if b.Op != source.Delete {
				line += " " + rowText(b.After)
			}
			if b.KeyOnly {
				line += " key"
			}
			h.lines = append(h.lines, line)
			return nil
		}}
	for _, s := range append(statements, readNow) {
		if s != readNow {
			must(t, c, s)
			continue
		}
		must(t, c, "SET search_path = ''")
		if h.err = r.run(logged(t, c)); h.err != nil {
			return h
		}
		must(t, c, "SET search_path = public")
	}
	must(t, c, "SET search_path = ''")
	return h
}

func (h history) want(t *testing.T, lines ...string) {
	t.Helper()
	if h.err != nil {
		t.Fatal(h.err)
	}
	if diff := cmp.Diff(lines, h.lines); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func (h history) refused(t *testing.T, words ...string) {
	t.Helper()
	if !errors.Is(h.err, source.ErrCannotServe) {
		t.Fatalf("the error is %v after %q", h.err, h.lines)
	}
	for _, w := range words {
		if !strings.Contains(h.err.Error(), w) {
			t.Errorf("the error does not name %q: %v", w, h.err)
		}
	}
}

func TestShapesAndOldRowsOfTheLog(t *testing.T) {
	for _, version := range []string{"13", "15", "18"} {
		t.Run(version, func(t *testing.T) {
			c := testConn(t, testServer(t, version))
			must(t, c, "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)")
			must(t, c, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
			run := func(name string, f func(t *testing.T)) { t.Run(name, f) }

			run("unchanged values are told from NULL, PG-053, PG-057", func(t *testing.T) {
				follow(t, c, "CREATE TABLE d1(id int PRIMARY KEY, v int, big text); ALTER TABLE d1 ALTER big SET STORAGE EXTERNAL; INSERT INTO d1 VALUES(1,1,repeat('x',9000)),(2,1,NULL)",
					"UPDATE d1 SET v=2").want(t, "d1: [1 - -] 1 2 ? key", "d1: [2 - -] 2 2 NULL key")
			})
			run("under FULL unchanged values are in the old row, PG-054, PG-060", func(t *testing.T) {
				h := follow(t, c, "CREATE TABLE d1(id int PRIMARY KEY, v int, big text); ALTER TABLE d1 ALTER big SET STORAGE EXTERNAL; ALTER TABLE d1 REPLICA IDENTITY FULL; INSERT INTO d1 VALUES(1,1,repeat('x',9000))",
					"UPDATE d1 SET v=2", "DELETE FROM d1")
				h.want(t, "d1: [1 1 x…9000] 1 2 x…9000", "d1: [1 2 x…9000]")
				if s := testShape(t, c, "public.d1"); !cmp.Equal(s.Key, []int{0}) || !s.Rel.KeyProven {
					t.Errorf("key %v, proven %v", s.Key, s.Rel.KeyProven)
				}
			})
			run("a key that is stored out of line, PG-056", func(t *testing.T) {
				follow(t, c, "CREATE TABLE d4(k text PRIMARY KEY, v int); ALTER TABLE d4 ALTER k SET STORAGE EXTERNAL; INSERT INTO d4 VALUES(repeat('k',2500),1)",
					"UPDATE d4 SET v=2").want(t, "d4: [k…2500 -] k…2500 2 key")
			})
			run("key changes have the old key, PG-058, PG-064", func(t *testing.T) {
				follow(t, c, "CREATE TABLE a1(v text, id int PRIMARY KEY); INSERT INTO a1 VALUES('a',1001)",
					"UPDATE a1 SET id=1002", "UPDATE a1 SET v='b'", "DELETE FROM a1").want(t, "a1: [- 1001] a 1002 key", "a1: [- 1002] b 1002 key", "a1: [- 1002] key")
			})
			run("a replica identity by index is the key", func(t *testing.T) {
				follow(t, c, "CREATE TABLE ri(id int PRIMARY KEY, b int NOT NULL, a int NOT NULL, c text); CREATE UNIQUE INDEX ri_i ON ri(a, b); ALTER TABLE ri REPLICA IDENTITY USING INDEX ri_i; INSERT INTO ri VALUES(1,2,3,'x')",
					"UPDATE ri SET a=4", "UPDATE ri SET id=5").want(t, "ri: [- 2 3 -] 1 2 4 x key", "ri: [- 2 4 -] 5 2 4 x key")
				if s := testShape(t, c, "public.ri"); !cmp.Equal(s.Key, []int{2, 1}) {
					t.Errorf("key %v", s.Key)
				}
			})
			run("keys that do not serve, PG-061, PG-062", func(t *testing.T) {
				must(t, c, "SET search_path = public; CREATE TABLE k1(a int, b text); CREATE TABLE k2(id int PRIMARY KEY DEFERRABLE, v int); CREATE TABLE k3(id int NOT NULL UNIQUE); CREATE TABLE k4(id int UNIQUE); ALTER TABLE k4 REPLICA IDENTITY FULL; CREATE TABLE k5(id int NOT NULL UNIQUE); ALTER TABLE k5 REPLICA IDENTITY FULL; CREATE TABLE k6(id int NOT NULL); CREATE UNIQUE INDEX ON k6((id+1)); CREATE UNIQUE INDEX ON k6(id) WHERE id>0; ALTER TABLE k6 REPLICA IDENTITY FULL; SET search_path = ''")
				for table, key := range map[string]int{"k1": 0, "k2": 0, "k3": 0, "k4": 0, "k5": 1, "k6": 0} {
					if s := testShape(t, c, "public."+table); len(s.Key) != key || (key == 0) == (s.Rel.Note == "") || s.Rel.KeyProven != (key > 0) {
						t.Errorf("%s: key %v, proven %v, note %q", table, s.Key, s.Rel.KeyProven, s.Rel.Note)
					}
				}
			})
			run("generated columns are left out, identity columns are not, PG-092, PG-093, PG-066", func(t *testing.T) {
				h := follow(t, c, "CREATE TABLE g(id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, g int GENERATED ALWAYS AS (v*2) STORED, v int)",
					"INSERT INTO g(v) VALUES(5)", "UPDATE g SET v=6")
				h.want(t, "g: 1 5", "g: [1 -] 1 6 key")
				if b := copied(t, c, testShape(t, c, "public.g")); rowText(b.After) != "1 6" {
					t.Errorf("the copy has %s", rowText(b.After))
				}
			})
			run("odd names, PG-104", func(t *testing.T) {
				h := follow(t, c, `CREATE TABLE "We ""ird.T"("Id" int PRIMARY KEY, "a.b" text, "ключ" text)`, `INSERT INTO "We ""ird.T" VALUES(1,'y','z')`)
				h.want(t, `We "ird.T: 1 y z`)
				if b := copied(t, c, testShape(t, c, `public."We ""ird.T"`)); rowText(b.After) != "1 y z" {
					t.Errorf("the copy has %s", rowText(b.After))
				}
			})
			run("an added column without a default", func(t *testing.T) {
				follow(t, c, "CREATE TABLE f(id int PRIMARY KEY, v text); INSERT INTO f VALUES(1,'a')",
					"INSERT INTO f VALUES(2,'b')", "ALTER TABLE f ADD n numeric(5,1), ADD t timestamptz", "INSERT INTO f VALUES(3,'c',1.5,'1970-01-01')", "ALTER TABLE f ALTER n SET DEFAULT 7", "INSERT INTO f VALUES(4,'d')").
					want(t, "f: 2 b", `ALTER TABLE "public"."f" ADD COLUMN "n" numeric(5,1), ADD COLUMN "t" timestamp with time zone`, "add n decimal(5,1) after v", "add t timestamptz after n", "f: 3 c 15e-1 0", "f: 4 d 70e-1 NULL")
			})
			run("an added column with a default, PG-086", func(t *testing.T) {
				const f4 = "CREATE TABLE f4(a int PRIMARY KEY); INSERT INTO f4 VALUES(1)"
				follow(t, c, f4, "ALTER TABLE f4 ADD d int DEFAULT 42", "INSERT INTO f4 VALUES(2)").refused(t, "public.f4", "column d", "default")
				follow(t, c, f4, "ALTER TABLE f4 ADD e timestamptz DEFAULT clock_timestamp()", "INSERT INTO f4 VALUES(2)").refused(t, "public.f4", "column e", "default")
				follow(t, c, f4, "ALTER TABLE f4 ADD e serial", "INSERT INTO f4 VALUES(2)").refused(t, "public.f4", "column e", "default")
				follow(t, c, f4, "ALTER TABLE f4 ADD e int GENERATED ALWAYS AS IDENTITY", "INSERT INTO f4 VALUES(2)").refused(t, "public.f4", "column e", "default")
				follow(t, c, f4, "ALTER TABLE f4 ADD d int DEFAULT 42", "VACUUM FULL f4", "INSERT INTO f4 VALUES(2)").refused(t, "public.f4", "column d", "default")
				follow(t, c, f4+"; CREATE DOMAIN dd AS int DEFAULT 3", "ALTER TABLE f4 ADD d dd", "INSERT INTO f4 VALUES(2)").refused(t, "public.f4", "column d", "default")
			})
			run("a rewrite before does not forbid an added column", func(t *testing.T) {
				follow(t, c, "CREATE TABLE f5(a int PRIMARY KEY); INSERT INTO f5 VALUES(1)", "VACUUM FULL f5", "INSERT INTO f5 VALUES(3)", readNow, "ALTER TABLE f5 ADD d int", "ALTER TABLE f5 ADD e int", "INSERT INTO f5 VALUES(2, 7)").
					want(t, "f5: 3", `ALTER TABLE "public"."f5" ADD COLUMN "d" integer, ADD COLUMN "e" integer`, "add d int after a", "add e int after d", "f5: 2 7 NULL")
			})
			run("a rewrite together with an added column does", func(t *testing.T) {
				const f5 = "CREATE TABLE f5(a int PRIMARY KEY); INSERT INTO f5 VALUES(1)"
				follow(t, c, f5, "ALTER TABLE f5 ADD d int DEFAULT 42", "ALTER TABLE f5 ALTER d DROP DEFAULT", "VACUUM FULL f5", "INSERT INTO f5 VALUES(2)").refused(t, "public.f5", "column d", "rewritten")
			})
			run("a column that was generated", func(t *testing.T) {
				follow(t, c, "CREATE TABLE g2(a int PRIMARY KEY, g int GENERATED ALWAYS AS (a*2) STORED); INSERT INTO g2 VALUES(1)",
					"ALTER TABLE g2 ALTER g DROP EXPRESSION", "INSERT INTO g2 VALUES(2, 3)").refused(t, "public.g2", "column g", "generated")
			})
			run("columns added to a partitioned table", func(t *testing.T) {
				const pt = "CREATE TABLE pt(id int PRIMARY KEY) PARTITION BY LIST(id); CREATE TABLE pt_1 PARTITION OF pt DEFAULT; INSERT INTO pt VALUES(1)"
				follow(t, c, pt, "ALTER TABLE pt ADD v int", "INSERT INTO pt VALUES(2,3)").want(t, `ALTER TABLE "public"."pt" ADD COLUMN "v" integer`, "add v int after id", "pt: 2 3")
				follow(t, c, pt, "ALTER TABLE pt ADD v int DEFAULT 1", "INSERT INTO pt VALUES(2,3)").refused(t, "public.pt", "column v", "default")
				follow(t, c, pt, "ALTER TABLE pt ADD v float DEFAULT random()", "INSERT INTO pt VALUES(2,3)").refused(t, "public.pt", "column v", "default")
			})
			if version == "18" {
				run("generated columns that are published are left out all the same, PG-092", func(t *testing.T) {
					must(t, c, "ALTER PUBLICATION pub SET (publish_generated_columns = stored)")
					defer must(t, c, "ALTER PUBLICATION pub SET (publish_generated_columns = none)")
					follow(t, c, "CREATE TABLE g(id int PRIMARY KEY, g int GENERATED ALWAYS AS (v*2) STORED, v int, w int GENERATED ALWAYS AS (v*3) VIRTUAL)",
						"INSERT INTO g(id, v) VALUES(1,5)", "UPDATE g SET v=6").want(t, "g: 1 5", "g: [1 -] 1 6 key")
				})
			}
			run("dropped and added again, PG-084", func(t *testing.T) {
				const f2 = "CREATE TABLE f2(a int PRIMARY KEY, b text); INSERT INTO f2 VALUES(1,'o')"
				follow(t, c, f2, "ALTER TABLE f2 DROP b", "ALTER TABLE f2 ADD b text", "INSERT INTO f2 VALUES(2,'n')").refused(t, "public.f2", "column b", "dropped")
				follow(t, c, f2, "ALTER TABLE f2 DROP b", "INSERT INTO f2 VALUES(2)").refused(t, "public.f2", "column b", "dropped")
			})
			run("renamed columns and tables, PG-085, PG-090", func(t *testing.T) {
				const f3 = "CREATE TABLE f3(a int PRIMARY KEY, c int); INSERT INTO f3 VALUES(1,1)"
				follow(t, c, f3, "ALTER TABLE f3 RENAME c TO cc", "INSERT INTO f3 VALUES(2,2)").refused(t, "public.f3", "column c", "renamed to cc")
				follow(t, c, f3, "ALTER TABLE f3 RENAME TO f8n", "ALTER TABLE f8n SET SCHEMA s2", "INSERT INTO s2.f8n VALUES(2,2)").refused(t, "public.f3", "s2.f8n")
			})
			run("changed types, PG-088", func(t *testing.T) {
				const f6 = "CREATE TABLE f6(id int PRIMARY KEY, n int, s varchar(5)); INSERT INTO f6 VALUES(1,1,'x')"
				follow(t, c, f6, "ALTER TABLE f6 ALTER n TYPE bigint", "INSERT INTO f6 VALUES(2,5000000000)").refused(t, "public.f6", "column n", "integer", "bigint")
				follow(t, c, f6, "ALTER TABLE f6 ALTER s TYPE varchar(9)", "INSERT INTO f6 VALUES(2,2,'123456789')", "ALTER TABLE f6 ALTER s TYPE text", "INSERT INTO f6 VALUES(3,3,'1234567890')").
					want(t, "f6: 2 2 123456789", "f6: 3 3 1234567890")
				follow(t, c, f6, "ALTER TABLE f6 ALTER s TYPE varchar(3)", "INSERT INTO f6 VALUES(2,2,'12')").refused(t, "public.f6", "column s")
				follow(t, c, f6, "ALTER TABLE f6 ALTER s TYPE text USING s||'!'", "INSERT INTO f6 VALUES(2,2,'12')").refused(t, "public.f6", "column s")
			})
			run("shape changes inside of a transaction, PG-089", func(t *testing.T) {
				follow(t, c, "CREATE TABLE f7(a int PRIMARY KEY)", "BEGIN", "INSERT INTO f7 VALUES(5)", "ALTER TABLE f7 ADD z int", "INSERT INTO f7(a,z) VALUES(6,6)", "COMMIT").
					want(t, "f7: 5", `ALTER TABLE "public"."f7" ADD COLUMN "z" integer`, "add z int after a", "f7: 6 6")
				follow(t, c, "CREATE TABLE f7(a int PRIMARY KEY)", "BEGIN", "ALTER TABLE f7 ADD z int", "INSERT INTO f7(a,z) VALUES(6,6)", "ALTER TABLE f7 DROP z", "INSERT INTO f7(a) VALUES(7)", "COMMIT").
					refused(t, "public.f7", "column z")
			})
			run("changed keys", func(t *testing.T) {
				const k = "CREATE TABLE k(a int NOT NULL, b int NOT NULL, CONSTRAINT pk PRIMARY KEY(a)); INSERT INTO k VALUES(1,1)"
				follow(t, c, k, "ALTER TABLE k DROP CONSTRAINT pk, ADD PRIMARY KEY(b)", "INSERT INTO k VALUES(2,2)").refused(t, "public.k", "key was changed", "column b")
				follow(t, c, k, "ALTER TABLE k DROP CONSTRAINT pk", "INSERT INTO k VALUES(2,2)").refused(t, "public.k", "key was changed")
				follow(t, c, k, "ALTER TABLE k REPLICA IDENTITY FULL", "UPDATE k SET b=2", "ALTER TABLE k REPLICA IDENTITY DEFAULT", "UPDATE k SET b=3").
					want(t, "k: [1 1] 1 2", "k: [1 -] 1 3 key")
				follow(t, c, k+"; ALTER TABLE k REPLICA IDENTITY FULL", "ALTER TABLE k DROP CONSTRAINT pk", "INSERT INTO k VALUES(1,2)").refused(t, "public.k", "key was changed")
			})
			run("labels of an enum, PG-094", func(t *testing.T) {
				follow(t, c, "CREATE TYPE m AS ENUM('a','b'); CREATE TABLE f12(id int PRIMARY KEY, s m); INSERT INTO f12 VALUES(1,'a')",
					"ALTER TYPE m ADD VALUE 'c'", "INSERT INTO f12 VALUES(2,'c')", "ALTER TYPE m RENAME VALUE 'a' TO 'A'", "INSERT INTO f12 VALUES(3,'A')").want(t, "f12: 2 c", "f12: 3 A")
			})
			run("tables made, and made again", func(t *testing.T) {
				follow(t, c, "", "CREATE TABLE n(id int, v text, PRIMARY KEY(v, id))", "INSERT INTO n VALUES(1,'a')", "ALTER TABLE n ADD w int", "INSERT INTO n VALUES(2,'b',3)").
					want(t, `CREATE TABLE "public"."n"`, "n: 1 a", `ALTER TABLE "public"."n" ADD COLUMN "w" integer`, "add w int after v", "n: 2 b 3")
				follow(t, c, "CREATE TABLE n(id int PRIMARY KEY)", "DROP TABLE n", "CREATE TABLE n(id int PRIMARY KEY)", "INSERT INTO n VALUES(1)").refused(t, "public.n", "made again")
				follow(t, c, "", "CREATE TABLE n(id int PRIMARY KEY)", "INSERT INTO n VALUES(1)", "DROP TABLE n").refused(t, "public.n", "gone")
			})
			run("partitions in another order, PG-078", func(t *testing.T) {
				h := follow(t, c, `CREATE TABLE pt(id int NOT NULL, r int NOT NULL, PRIMARY KEY(id,r)) PARTITION BY LIST(r); CREATE TABLE pt_4(x int, r int NOT NULL, id int NOT NULL);
					ALTER TABLE pt_4 DROP x; ALTER TABLE pt_4 ADD PRIMARY KEY(id,r); ALTER TABLE pt ATTACH PARTITION pt_4 FOR VALUES IN (4)`, "INSERT INTO pt VALUES(40,4)", "UPDATE pt SET id=41", "DELETE FROM pt")
				h.want(t, "pt: 40 4", "pt: [40 4] 41 4 key", "pt: [41 4] key")
				if s := testShape(t, c, "public.pt"); s.Rel.KeyProven || !strings.Contains(s.Rel.Note, "partition") {
					t.Errorf("proven %v, note %q", s.Rel.KeyProven, s.Rel.Note)
				}
				must(t, c, "ALTER TABLE public.pt REPLICA IDENTITY FULL")
				if err := testShape(t, c, "public.pt").problem(); err == nil || !strings.Contains(err.Error(), "pt_4") {
					t.Errorf("a partition of another identity passes: %v", err)
				}
			})
		})
	}
}
