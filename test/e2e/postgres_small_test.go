package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// eachPostgres runs f for PostgreSQL 17, in the long form for 15 and 18 too.
func eachPostgres(t *testing.T, f func(t *testing.T, s *harness.Server)) {
	t.Helper()
	needsServers(t)
	kinds := []harness.Kind{harness.Postgres17}
	if *long {
		kinds = append(kinds, harness.Postgres15, harness.Postgres18)
	}
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) { f(t, server(t, k)) })
	}
}

// pgSmallCases are to PostgreSQL what smallCases are to the others. Tables whose
// names begin with part_ are partitioned in the lake, by column p.
var pgSmallCases = []smallCase{
	{name: "a key changed twice in one checkpoint",
		before: []string{"CREATE TABLE twice(id int PRIMARY KEY, v text)", "INSERT INTO twice VALUES(1,'old'),(2,'old')"},
		phases: [3][]string{
			{"UPDATE twice SET v='a' WHERE id=1", "UPDATE twice SET v='b' WHERE id=1", "INSERT INTO twice VALUES(3,'x')", "UPDATE twice SET v='y' WHERE id=3", "UPDATE twice SET v='z' WHERE id=3"},
			{"BEGIN", "UPDATE twice SET v='c' WHERE id=1", "UPDATE twice SET v='d' WHERE id=1", "COMMIT"},
			{"UPDATE twice SET v='e'", "UPDATE twice SET v=v||'f'", "DELETE FROM twice WHERE id=2"},
		}},
	{name: "delete after insert, insert after delete",
		before: []string{"CREATE TABLE gone(id int PRIMARY KEY, v text)"},
		phases: [3][]string{
			{"INSERT INTO gone VALUES(1,'a')", "DELETE FROM gone", "INSERT INTO gone VALUES(1,'b')"},
			{"BEGIN", "DELETE FROM gone", "INSERT INTO gone VALUES(1,'c'),(2,'c')", "DELETE FROM gone", "COMMIT"},
			{"INSERT INTO gone VALUES(1,'d')", "DELETE FROM gone", "INSERT INTO gone VALUES(1,'e'),(5,'e')", "DELETE FROM gone WHERE id=1"},
		}},
	{name: "key moves",
		before: []string{"CREATE TABLE pkmove(id int PRIMARY KEY, v int)", "INSERT INTO pkmove VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"UPDATE pkmove SET id=100 WHERE id=1"},
			{"UPDATE pkmove SET id=1 WHERE id=100", "UPDATE pkmove SET id=100 WHERE id=2", "UPDATE pkmove SET v=9 WHERE id=100"},
			{"BEGIN", "UPDATE pkmove SET id=-1 WHERE id=1", "UPDATE pkmove SET id=1 WHERE id=100", "UPDATE pkmove SET id=100 WHERE id=-1", "COMMIT"},
		}},
	{name: "keys shifted in one statement",
		before: []string{"CREATE TABLE shift(id int PRIMARY KEY, v int)", "INSERT INTO shift SELECT i, i FROM generate_series(1,50) i"},
		phases: [3][]string{
			{"UPDATE shift SET id=id+50"}, {"UPDATE shift SET id=-id", "UPDATE shift SET id=-id"}, {"INSERT INTO shift VALUES(7,7)", "UPDATE shift SET id=1000-id, v=v*10"},
		}},
	{name: "composite keys that look alike when joined",
		before: []string{`CREATE TABLE joined(k1 text COLLATE "C", k2 text COLLATE "C", v int, PRIMARY KEY(k1,k2))`,
			"INSERT INTO joined VALUES('a|','b',1),('a','|b',2),('','ab',3),('ab','',4),('a',E'b\\x01',5),(E'a\\x01','b',6)"},
		phases: [3][]string{
			{"UPDATE joined SET v=10 WHERE k1='a|'"},
			{"DELETE FROM joined WHERE k1='ab'", "UPDATE joined SET v=30 WHERE k1=''"},
			{"DELETE FROM joined WHERE k1='a' AND k2='|b'", "UPDATE joined SET k2='|b', k1='a' WHERE k1='a|'"},
		}},
	{name: "key not first, in another order",
		before: []string{"CREATE TABLE ordered(v int, b text, a int, w int, PRIMARY KEY(a,b))", "INSERT INTO ordered VALUES(1,'x',1,1),(2,'y',1,1),(3,'x',2,1)"},
		phases: [3][]string{
			{"UPDATE ordered SET w=2 WHERE a=1 AND b='y'"},
			{"UPDATE ordered SET a=3 WHERE a=1 AND b='x'", "DELETE FROM ordered WHERE a=2"},
			{"INSERT INTO ordered VALUES(4,'x',1,4)", "UPDATE ordered SET b=b||'z'"},
		}},
	{name: "partition moves, old rows whole",
		before: []string{"CREATE TABLE part_full(id int PRIMARY KEY, p text, v int)", "ALTER TABLE part_full REPLICA IDENTITY FULL",
			"INSERT INTO part_full VALUES(1,'a',1),(2,'b',2),(3,NULL,3),(4,'a/b=c',4)"},
		phases: [3][]string{
			{"UPDATE part_full SET p='b' WHERE id=1", "UPDATE part_full SET p='a' WHERE id=1", "UPDATE part_full SET p='b' WHERE id=1"},
			{"UPDATE part_full SET p=NULL WHERE id=2", "UPDATE part_full SET p='x' WHERE id=3", "DELETE FROM part_full WHERE id=4", "INSERT INTO part_full VALUES(4,'b',40)"},
			{"BEGIN", "UPDATE part_full SET id=id+10, p='moved'", "UPDATE part_full SET p='again' WHERE id=12", "COMMIT", "DELETE FROM part_full WHERE id=11"},
		}},
	{name: "partition is part of the key",
		before: []string{"CREATE TABLE part_key(p int, id int, v int, PRIMARY KEY(p,id))", "INSERT INTO part_key VALUES(1,1,1),(2,1,2),(3,1,3)"},
		phases: [3][]string{
			{"UPDATE part_key SET p=4 WHERE p=1", "UPDATE part_key SET p=1 WHERE p=2"},
			{"DELETE FROM part_key WHERE p=3", "INSERT INTO part_key VALUES(3,1,30),(3,2,31)"},
			{"UPDATE part_key SET p=p+10, v=v+1", "UPDATE part_key SET v=0 WHERE id=1"},
		}},
	{name: "TRUNCATE",
		before: []string{"CREATE TABLE tr1(id int PRIMARY KEY)", "CREATE TABLE tr2(id int PRIMARY KEY, r int REFERENCES tr1)", "CREATE TABLE part_tr(id int, p int, PRIMARY KEY(id,p))",
			"INSERT INTO tr1 VALUES(1),(2)", "INSERT INTO tr2 VALUES(1,1)", "INSERT INTO part_tr VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"INSERT INTO tr1 VALUES(5)", "TRUNCATE tr1 CASCADE", "INSERT INTO tr1 VALUES(3),(1)", "TRUNCATE part_tr"},
			{"BEGIN", "INSERT INTO part_tr VALUES(1,1)", "TRUNCATE tr2, part_tr RESTART IDENTITY", "INSERT INTO part_tr VALUES(1,2)", "COMMIT"},
			{"INSERT INTO tr2 VALUES(1,1)", "UPDATE tr2 SET id=2", "TRUNCATE tr2", "INSERT INTO tr2 VALUES(2,3)", "TRUNCATE tr2", "INSERT INTO tr2 VALUES(1,1),(4,3)", "DELETE FROM tr2 WHERE id=1",
				"BEGIN", "TRUNCATE part_tr", "ROLLBACK"},
		}},
	{name: "columns added",
		before: []string{"CREATE TABLE added(id int PRIMARY KEY, v int)", "INSERT INTO added VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"UPDATE added SET v=3 WHERE id=1", "ALTER TABLE added ADD COLUMN w varchar(9)", "INSERT INTO added VALUES(3,3,'w')", "UPDATE added SET w='u' WHERE id=2"},
			{"ALTER TABLE added ADD COLUMN x numeric(12,3), ADD COLUMN y timestamptz, ADD COLUMN z int[]", "UPDATE added SET x=1.5, y='2024-02-29 12:34:56.123456+05:30', z='{1,NULL,3}' WHERE id=1"},
			{"BEGIN", "INSERT INTO added(id) VALUES(8)", "ALTER TABLE added ADD COLUMN q text", "UPDATE added SET q='q' WHERE id=8", "COMMIT", "DELETE FROM added WHERE id=2", "ALTER TABLE added ALTER COLUMN w TYPE text", "UPDATE added SET w=repeat('w',30)"},
		}},
	{name: "relations made later",
		phases: [3][]string{
			{"CREATE TABLE later(id int PRIMARY KEY, v text)", "INSERT INTO later VALUES(1,'é')"},
			{"CREATE TABLE later2(LIKE later INCLUDING ALL)", "INSERT INTO later2 SELECT * FROM later", "UPDATE later SET v='€'", "CREATE TABLE IF NOT EXISTS later(id int)"},
			{"BEGIN", "CREATE TABLE later3(id int PRIMARY KEY, v int)", "INSERT INTO later3 VALUES(1,1),(2,2)", "DELETE FROM later3 WHERE id=1", "COMMIT", "CREATE TEMPORARY TABLE tmp1(id int)", "INSERT INTO tmp1 VALUES(1)", "DROP TABLE tmp1"},
		}},
	{name: "replica identity by an index",
		before: []string{"CREATE TABLE byindex(v int, u text NOT NULL)", "CREATE UNIQUE INDEX byindex_u ON byindex(u)", "ALTER TABLE byindex REPLICA IDENTITY USING INDEX byindex_u", "INSERT INTO byindex VALUES(1,'1'),(2,'2')"},
		phases: [3][]string{
			{"UPDATE byindex SET v=5 WHERE u='1'"}, {"UPDATE byindex SET u='7' WHERE u='2'"}, {"DELETE FROM byindex WHERE u='1'", "INSERT INTO byindex VALUES(9,'2')"},
		}},
	{name: "keys of numbers, times, bytes",
		before: []string{
			"CREATE TABLE knum(a bigint, b numeric(30,10), c smallint, v int, PRIMARY KEY(a,b,c))",
			"INSERT INTO knum VALUES(9223372036854775807,12345678901234567890.1234567890,-32768,1),(-9223372036854775808,-0.5,32767,2),(0,0,0,3)",
			"CREATE TABLE ktime(d date, t timestamp, s timestamptz, c time, v int, PRIMARY KEY(d,t,s,c))",
			"INSERT INTO ktime VALUES('0001-01-01','9999-12-31 23:59:59.999999','1970-01-01 00:00:01.001Z','24:00:00',1),('9999-12-31','0044-03-15 12:00:00 BC','1883-11-18 12:03:57-07','00:00:00.000001',2)",
			"CREATE TABLE kbytes(b bytea, u uuid, o boolean, v int, PRIMARY KEY(b,u,o))",
			"INSERT INTO kbytes VALUES('\\x','00000000-0000-0000-0000-000000000000',true,1),('\\x00','123e4567-e89b-12d3-a456-426655440000',false,2),('\\x0000','ffffffff-ffff-ffff-ffff-ffffffffffff',true,3)",
			"CREATE TYPE mood AS ENUM('z','a','b,c')", "CREATE TABLE kenum(e mood, c char(5), v int, PRIMARY KEY(e,c))", "INSERT INTO kenum VALUES('z','x',1),('a','x y',2),('b,c','',3)"},
		phases: [3][]string{
			{"UPDATE knum SET v=v+10", "UPDATE ktime SET v=v+10", "UPDATE kbytes SET v=v+10", "UPDATE kenum SET v=v+10"},
			{"DELETE FROM knum WHERE a>0", "DELETE FROM ktime WHERE d='0001-01-01'", "UPDATE kbytes SET b=b||'\\x00'", "UPDATE kenum SET e='a' WHERE e='z'"},
			{"UPDATE knum SET b=b+0.0000000001", "UPDATE ktime SET t=t+interval '1 microsecond'", "DELETE FROM kbytes WHERE o", "DELETE FROM kenum WHERE v<13", "INSERT INTO knum VALUES(9223372036854775807,12345678901234567890.1234567890,-32768,7)"},
		}},
	{name: "large values that stay, old rows whole",
		before: []string{"CREATE TABLE toast(id int PRIMARY KEY, v int, big text, raw bytea)", "ALTER TABLE toast REPLICA IDENTITY FULL", "ALTER TABLE toast ALTER big SET STORAGE EXTERNAL",
			"INSERT INTO toast SELECT i, i, repeat(i||'-é',3000), decode(repeat(md5(i::text),500),'hex') FROM generate_series(1,5) i"},
		phases: [3][]string{
			{"UPDATE toast SET v=v+1"}, {"UPDATE toast SET id=id+10 WHERE id=2", "UPDATE toast SET big='short' WHERE id=3", "UPDATE toast SET v=9 WHERE id=3"}, {"UPDATE toast SET raw=NULL WHERE id=4", "UPDATE toast SET v=0"},
		}},
	{name: "NULL comes and goes",
		before: []string{"CREATE TABLE nulls(id int PRIMARY KEY, a int, s text, d numeric(9,2), t timestamp, b bytea, l text[])", "INSERT INTO nulls(id) VALUES(1)", "INSERT INTO nulls VALUES(2,0,'',0,'2000-01-01','','{}')"},
		phases: [3][]string{
			{"UPDATE nulls SET a=1,s='x',d=-1.5,t='1969-12-31 23:59:59',b='y',l='{NULL,\"\",\"NULL\"}' WHERE id=1"}, {"UPDATE nulls SET a=NULL,s=NULL,d=NULL,t=NULL,b=NULL,l=NULL"}, {"INSERT INTO nulls(id) VALUES(3)", "UPDATE nulls SET s='' WHERE id=1"},
		}},
	{name: "savepoints and rollbacks",
		before: []string{"CREATE TABLE sp(id int PRIMARY KEY)"},
		phases: [3][]string{
			{"BEGIN", "INSERT INTO sp VALUES(80)", "SAVEPOINT s", "INSERT INTO sp VALUES(81)", "ROLLBACK TO s", "INSERT INTO sp VALUES(82)", "COMMIT"},
			{"BEGIN", "INSERT INTO sp VALUES(1)", "ROLLBACK"},
			{"DO $$ BEGIN FOR i IN 100..200 LOOP BEGIN INSERT INTO sp VALUES(i); IF i%3=0 THEN RAISE 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$"},
		}},
	{name: "a relation in partitions of its own",
		before: []string{"CREATE TABLE parted(id int, k text, v int, PRIMARY KEY(id,k)) PARTITION BY LIST(k)", "CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN('a')", "CREATE TABLE parted_rest PARTITION OF parted DEFAULT",
			"INSERT INTO parted VALUES(1,'a',1),(2,'b',2)"},
		phases: [3][]string{
			{"UPDATE parted SET k='a' WHERE id=2", "INSERT INTO parted VALUES(3,'c',3)"}, {"UPDATE parted SET k='z' WHERE k='a'", "DELETE FROM parted WHERE id=3"}, {"TRUNCATE parted", "INSERT INTO parted VALUES(1,'a',9)"},
		}},
	{name: "upserts, merges, cascades",
		before: []string{"CREATE TABLE parent(id int PRIMARY KEY, u int UNIQUE, v int)", "CREATE TABLE child(id int PRIMARY KEY, p int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE)",
			"INSERT INTO parent VALUES(1,10,1),(2,20,2),(3,30,3)", "INSERT INTO child VALUES(1,1),(2,2),(3,3)"},
		phases: [3][]string{
			{"INSERT INTO parent VALUES(1,10,5),(4,40,4) ON CONFLICT(id) DO UPDATE SET v=parent.v+EXCLUDED.v", "INSERT INTO parent VALUES(9,10,5) ON CONFLICT DO NOTHING"},
			{"UPDATE parent SET id=100 WHERE id=1", "DELETE FROM parent WHERE id=2"},
			{"MERGE INTO parent p USING (VALUES(3),(7)) s(id) ON p.id=s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES(s.id,70,7)", "UPDATE child SET p=p FROM parent WHERE child.p=parent.id"},
		}},
	{name: "generated and identity columns",
		before: []string{"CREATE TABLE gen(id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a*2) STORED, z text)", "INSERT INTO gen(a,z) VALUES(1,'x')"},
		phases: [3][]string{{"INSERT INTO gen(a,z) VALUES(2,'y')"}, {"UPDATE gen SET a=7 WHERE id=1"}, {"DELETE FROM gen WHERE id=2"}}},
	{name: "one row a thousand times, many rows at once",
		before: []string{"CREATE TABLE hot(id int PRIMARY KEY, v int)", "INSERT INTO hot SELECT i, 0 FROM generate_series(1,500) i"},
		phases: [3][]string{
			{"DO $$ BEGIN FOR i IN 1..1000 LOOP UPDATE hot SET v=v+1 WHERE id=7; END LOOP; END $$"},
			{"UPDATE hot SET v=v+1", "UPDATE hot SET v=v+1", "DELETE FROM hot WHERE id%3=0"},
			{"DELETE FROM hot", "INSERT INTO hot VALUES(7,-1),(500,-2)"},
		}},
	{name: "statements that concern no row",
		before: []string{"CREATE TABLE calm(id int PRIMARY KEY, v int)", "INSERT INTO calm VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"ANALYZE calm", "CREATE VIEW vw AS SELECT * FROM calm", "CREATE MATERIALIZED VIEW mv AS SELECT * FROM calm", "CREATE INDEX ON calm(v)", "COMMENT ON TABLE calm IS 'x'"},
			{"VACUUM FULL calm", "CLUSTER calm USING calm_pkey", "REFRESH MATERIALIZED VIEW mv", "UPDATE calm SET v=5 WHERE id=1", "SELECT pg_logical_emit_message(true,'other','x')"},
			{"DROP MATERIALIZED VIEW mv", "DROP VIEW vw", "ALTER TABLE calm SET (fillfactor=50), ALTER COLUMN v SET DEFAULT 4", "INSERT INTO calm(id) VALUES(3)", "CREATE UNLOGGED TABLE \"Unlogged\"(id int)", "DROP TABLE \"Unlogged\""},
		}},
	{name: "names that differ in case, and outside of ASCII",
		before: []string{`CREATE TABLE "GA"(id int PRIMARY KEY)`, `CREATE TABLE ga(id int PRIMARY KEY)`, `INSERT INTO "GA" VALUES(1)`, "INSERT INTO ga VALUES(2)",
			`CREATE TABLE "tür"("größe" text COLLATE "C" PRIMARY KEY, "a b" text)`, `INSERT INTO "tür" VALUES('😀',E'\\\\"\n\t\u2028'),('中文','x')`},
		phases: [3][]string{{`UPDATE "GA" SET id=11`, `UPDATE "tür" SET "a b"='é€' WHERE "größe"='😀'`}, {"UPDATE ga SET id=22", `DELETE FROM "tür" WHERE "größe"='中文'`}, {`INSERT INTO "GA" VALUES(22)`, `INSERT INTO "tür" VALUES(repeat('ß',100),repeat('😀',1000))`}}},
	{name: "some tables in one transaction",
		before: []string{"CREATE TABLE m1(id int PRIMARY KEY, v int)", "CREATE TABLE m2(id int PRIMARY KEY, v int)", "INSERT INTO m1 VALUES(1,1)"},
		phases: [3][]string{
			{"BEGIN", "INSERT INTO m2 SELECT * FROM m1", "DELETE FROM m1", "INSERT INTO m1 VALUES(2,2)", "UPDATE m2 SET v=7", "COMMIT"},
			{"WITH d AS (DELETE FROM m1 RETURNING *) INSERT INTO m2 SELECT id, v FROM d"}, {"BEGIN", "DELETE FROM m2", "INSERT INTO m1 SELECT i, i FROM generate_series(1,5000) i", "UPDATE m1 SET v=-v WHERE id%2=0", "COMMIT"}},
	},
}

// pgRelations are the tables of a schema, without partitions.
func pgRelations(t *testing.T, s *harness.Server, schema string) []string {
	t.Helper()
	return s.Column(t, f(`SELECT relname::text FROM pg_class WHERE relnamespace = '%s'::regnamespace
		AND relkind IN ('r','p') AND NOT relispartition ORDER BY relname COLLATE "C"`, schema))
}

// TestPostgresSmallHistories is TestSmallHistories on PostgreSQL.
func TestPostgresSmallHistories(t *testing.T) {
	eachPostgres(t, func(t *testing.T, s *harness.Server) {
		s.Schema(t, "small")
		s.Publish(t, "small", "small")
		cases := regexp.MustCompile(*only)
		run := func(pick func(smallCase) []string) {
			t.Helper()
			for _, c := range pgSmallCases {
				if cases.MatchString(c.name) {
					s.Exec(t, append([]string{"SET search_path=small"}, pick(c)...)...)
				}
			}
		}
		run(func(c smallCase) []string { return c.before })
		p := harness.NewPipeline(t, s, "small", "small.*").
			Set("tables", tablesKey(map[string]any{"match": "small.part_*", "partition_by": []string{"p"}}))
		p.Run()
		p.Wait(waitLimit)
		compare := func(when string) {
			t.Helper()
			for _, r := range pgRelations(t, s, "small") {
				j := judge(t)
				if strings.HasPrefix(r, "part_") {
					j = java(t)
				}
				if !j.Equal(t, p, s, "small", r) {
					t.Errorf("%s differs %s", r, when)
				}
			}
		}
		compare("after the copy")
		for i := range 3 {
			run(func(c smallCase) []string { return c.phases[i] })
			if i == 1 {
				p.Kill()
				p.Run()
			}
			p.Wait(waitLimit)
			compare(f("after phase %d", i+1))
		}
		p.Stop()
	})
}
