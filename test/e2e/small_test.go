package e2e

import (
	"regexp"
	"testing"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A smallCase is a history of a few rows that some program got wrong in public.
// The statements of before run before the daemon starts; those of each later
// phase run in one session, are waited for, and then every table must equal its
// relation. The ids are those of the catalogue of public faults.
type smallCase struct {
	name   string
	only   string // mysql or mariadb; empty: both
	before []string
	phases [3][]string
}

var smallCases = []smallCase{
	{name: "insert, update, update in one go",
		before: []string{"CREATE TABLE seq1(id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO seq1 VALUES(1,'old'),(2,'old')"},
		phases: [3][]string{
			{"INSERT INTO seq1 VALUES(20,'v1')", "UPDATE seq1 SET v='v2' WHERE id=20", "UPDATE seq1 SET v='v3' WHERE id=20"},
			{"INSERT INTO seq1 VALUES(21,'v1')", "DELETE FROM seq1 WHERE id=21", "UPDATE seq1 SET v='new' WHERE id=1", "UPDATE seq1 SET v='newer' WHERE id=1"},
			{"DELETE FROM seq1 WHERE id=20", "INSERT INTO seq1 VALUES(20,'back')", "DELETE FROM seq1 WHERE id=2"},
		}},
	{name: "MY-108 insert, delete, insert of one key",
		before: []string{"CREATE TABLE e5(id INT PRIMARY KEY, t VARCHAR(9))"},
		phases: [3][]string{
			{"INSERT INTO e5 VALUES(1,'hello')", "DELETE FROM e5", "INSERT INTO e5 VALUES(1,'hallo')"},
			{"BEGIN", "DELETE FROM e5", "INSERT INTO e5 VALUES(1,'again')", "DELETE FROM e5", "COMMIT"},
			{"INSERT INTO e5 VALUES(1,'a')", "DELETE FROM e5", "INSERT INTO e5 VALUES(1,'b')", "DELETE FROM e5"},
		}},
	{name: "MY-105 key moves",
		before: []string{"CREATE TABLE pkmove(id INT PRIMARY KEY, v INT)", "INSERT INTO pkmove VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"UPDATE pkmove SET id=100 WHERE id=1"},
			{"UPDATE pkmove SET id=1 WHERE id=100", "UPDATE pkmove SET id=100 WHERE id=2", "UPDATE pkmove SET v=9 WHERE id=100"},
			{"BEGIN", "UPDATE pkmove SET id=-1 WHERE id=1", "UPDATE pkmove SET id=1 WHERE id=100", "UPDATE pkmove SET id=100 WHERE id=-1", "COMMIT"},
		}},
	{name: "MY-106 keys shifted in one statement",
		before: []string{"CREATE TABLE e3(id INT PRIMARY KEY, v INT)", "INSERT INTO e3 VALUES(1,1),(2,2),(3,3)"},
		phases: [3][]string{
			{"UPDATE e3 SET id=id+1 ORDER BY id DESC"},
			{"UPDATE e3 SET id=id-1 ORDER BY id"},
			{"INSERT INTO e3 VALUES(7,7)", "UPDATE e3 SET id=id+1 ORDER BY id DESC", "UPDATE e3 SET v=v*10"},
		}},
	{name: "composite keys that look alike when joined",
		before: []string{
			"CREATE TABLE joined(k1 VARCHAR(9) COLLATE utf8mb4_bin, k2 VARCHAR(9) COLLATE utf8mb4_bin, v INT, PRIMARY KEY(k1,k2))",
			"INSERT INTO joined VALUES('a|','b',1),('a','|b',2),('','ab',3),('ab','',4),('a',CONCAT('b',CHAR(0)),5),(CONCAT('a',CHAR(0)),'b',6)"},
		phases: [3][]string{
			{"UPDATE joined SET v=10 WHERE k1='a|'"},
			{"DELETE FROM joined WHERE k1='ab'", "UPDATE joined SET v=30 WHERE k1=''"},
			{"DELETE FROM joined WHERE k1='a' AND k2='|b'", "UPDATE joined SET v=60 WHERE k1=CONCAT('a',CHAR(0))"},
		}},
	{name: "key not first, in another order",
		before: []string{"CREATE TABLE ordered(v INT, b VARCHAR(5), a INT, w INT, PRIMARY KEY(a,b))",
			"INSERT INTO ordered VALUES(1,'x',1,1),(2,'y',1,1),(3,'x',2,1)"},
		phases: [3][]string{
			{"UPDATE ordered SET w=2 WHERE a=1 AND b='y'"},
			{"UPDATE ordered SET a=3 WHERE a=1 AND b='x'", "DELETE FROM ordered WHERE a=2"},
			{"INSERT INTO ordered VALUES(4,'x',1,4)", "UPDATE ordered SET b=CONCAT(b,'z')"},
		}},
	{name: "key is compared by bytes",
		before: []string{"CREATE TABLE bytekey(k VARCHAR(9) PRIMARY KEY, v INT)", "INSERT INTO bytekey VALUES('a',1),('é',2),('',3)"},
		phases: [3][]string{
			{"UPDATE bytekey SET k='A' WHERE k='a'"},
			{"UPDATE bytekey SET k='É' WHERE k='é'", "UPDATE bytekey SET v=9 WHERE k=''"},
			{"UPDATE bytekey SET k='a' WHERE k='A'", "DELETE FROM bytekey WHERE k='é'"},
		}},
	{name: "MY-073 binary key with zeros at its end",
		before: []string{"CREATE TABLE c21(k BINARY(4) PRIMARY KEY, v VARBINARY(4))", "INSERT INTO c21 VALUES(x'01020000',x'01020000'),(x'00000000',x'00')"},
		phases: [3][]string{
			{"UPDATE c21 SET v=x'00' WHERE k=x'01020000'", "INSERT INTO c21 VALUES(x'05000000',x'')"},
			{"DELETE FROM c21 WHERE k=x'00000000'", "UPDATE c21 SET k=x'05050000' WHERE k=x'05000000'"},
			{"DELETE FROM c21 WHERE k=x'01020000'"},
		}},
	{name: "varbinary and char keys",
		before: []string{"CREATE TABLE f3(k VARBINARY(8) PRIMARY KEY, c CHAR(5))", "INSERT INTO f3 VALUES(x'00','x '),(x'7f',''),(x'80','a'),(x'ff','b'),(x'ff00','c'),(x'','d')"},
		phases: [3][]string{
			{"UPDATE f3 SET c='y' WHERE k=x'ff'", "DELETE FROM f3 WHERE k=x''"},
			{"UPDATE f3 SET k=x'ff0000' WHERE k=x'ff00'"},
			{"DELETE FROM f3 WHERE k=x'00'", "INSERT INTO f3 VALUES(x'0000','z')"},
		}},
	{name: "keys of numbers and times",
		before: []string{
			"CREATE TABLE knum(a BIGINT UNSIGNED, b DECIMAL(30,10), c TINYINT, v INT, PRIMARY KEY(a,b,c))",
			"INSERT INTO knum VALUES(18446744073709551615,12345678901234567890.1234567890,-128,1),(9223372036854775808,-0.5,127,2),(0,0,0,3)",
			"CREATE TABLE ktime(d DATE, t DATETIME(6), s TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3), c TIME(2), v INT, PRIMARY KEY(d,t,s,c))",
			"INSERT INTO ktime VALUES('1000-01-01','9999-12-31 23:59:59.999999','1970-01-01 00:00:01.001','-838:59:59',1),('9999-12-31','1000-01-01','2038-01-19 03:14:07.999','838:59:59',2)",
			"CREATE TABLE kenum(e ENUM('z','a','b,c') , y YEAR, b BIT(9), v INT, PRIMARY KEY(e,y,b))",
			"INSERT INTO kenum VALUES('z',2000,b'1',1),('a',1901,b'111111111',2),('b,c',2155,b'0',3)"},
		phases: [3][]string{
			{"UPDATE knum SET v=v+10", "UPDATE ktime SET v=v+10", "UPDATE kenum SET v=v+10"},
			{"DELETE FROM knum WHERE a=18446744073709551615", "DELETE FROM ktime WHERE d='1000-01-01'", "UPDATE kenum SET e='a' WHERE e='z'"},
			{"UPDATE knum SET b=b+0.0000000001", "UPDATE ktime SET t=t+INTERVAL 1 MICROSECOND", "DELETE FROM kenum WHERE v<13", "INSERT INTO knum VALUES(18446744073709551615,12345678901234567890.1234567890,-128,7)"},
		}},
	{name: "unique not null index instead of a primary key",
		before: []string{"CREATE TABLE uniq(v INT, u INT NOT NULL, UNIQUE KEY u(u))", "INSERT INTO uniq VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"UPDATE uniq SET v=5 WHERE u=1"}, {"UPDATE uniq SET u=7 WHERE u=2"}, {"DELETE FROM uniq WHERE u=1", "INSERT INTO uniq VALUES(9,2)"},
		}},
	{name: "MY-104 REPLACE hits a secondary index",
		before: []string{"CREATE TABLE e1(id INT AUTO_INCREMENT PRIMARY KEY, u INT UNIQUE, v INT)", "INSERT INTO e1(u,v) VALUES(10,1),(20,2),(30,3)"},
		phases: [3][]string{
			{"REPLACE INTO e1(u,v) VALUES(10,100)", "REPLACE INTO e1(id,u,v) VALUES(2,30,200)"},
			{"INSERT INTO e1(u,v) VALUES(30,1) ON DUPLICATE KEY UPDATE v=v+1", "INSERT IGNORE INTO e1(u,v) VALUES(30,5)"},
			{"REPLACE INTO e1(id,u,v) VALUES(2,30,201)", "UPDATE e1 SET v=v"},
		}},
	{name: "one row a thousand times, many rows at once",
		before: []string{"CREATE TABLE hot(id INT PRIMARY KEY, v INT)", "INSERT INTO hot WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<500) SELECT i, 0 FROM n"},
		phases: [3][]string{
			append(append([]string{"BEGIN"}, repeat("UPDATE hot SET v=v+1 WHERE id=7", 500)...), "COMMIT"),
			{"UPDATE hot SET v=v+1", "UPDATE hot SET v=v+1", "DELETE FROM hot WHERE id%3=0"},
			{"DELETE FROM hot", "INSERT INTO hot VALUES(7,-1),(500,-2)"},
		}},
	{name: "NULL comes and goes",
		before: []string{"CREATE TABLE nulls(id INT PRIMARY KEY, a INT, s VARCHAR(9), d DECIMAL(9,2), t DATETIME, b BLOB)", "INSERT INTO nulls VALUES(1,NULL,NULL,NULL,NULL,NULL),(2,0,'',0,'2000-01-01','')"},
		phases: [3][]string{
			{"UPDATE nulls SET a=1,s='x',d=-1.5,t='1969-12-31 23:59:59',b='y' WHERE id=1"},
			{"UPDATE nulls SET a=NULL,s=NULL,d=NULL,t=NULL,b=NULL"},
			{"INSERT INTO nulls(id) VALUES(3)", "UPDATE nulls SET s='' WHERE id=1"},
		}},
	{name: "MY-046 savepoints and rollbacks",
		before: []string{"CREATE TABLE b13(id INT PRIMARY KEY)"},
		phases: [3][]string{
			{"BEGIN", "INSERT INTO b13 VALUES(80)", "SAVEPOINT s", "INSERT INTO b13 VALUES(81)", "ROLLBACK TO s", "INSERT INTO b13 VALUES(82)", "COMMIT"},
			{"BEGIN", "INSERT INTO b13 VALUES(1)", "ROLLBACK"},
			{"BEGIN", "DELETE FROM b13", "ROLLBACK", "INSERT INTO b13 VALUES(2)"},
		}},
	{name: "MY-045 a table without transactions",
		before: []string{"CREATE TABLE b12(id INT PRIMARY KEY, v INT) ENGINE=MyISAM", "INSERT INTO b12 VALUES(1,1)"},
		phases: [3][]string{
			{"INSERT INTO b12 VALUES(2,2)", "UPDATE b12 SET v=3"}, {"BEGIN", "INSERT INTO b12 VALUES(3,3)", "ROLLBACK"}, {"DELETE FROM b12 WHERE id=1"},
		}},
	{name: "MY-004 XA commit, rollback and one phase",
		before: []string{"CREATE TABLE a4(id INT PRIMARY KEY)"},
		phases: [3][]string{
			{"XA START 'x1'", "INSERT INTO a4 VALUES(1)", "XA END 'x1'", "XA PREPARE 'x1'", "XA ROLLBACK 'x1'",
				"XA START 'x2'", "INSERT INTO a4 VALUES(2)", "XA END 'x2'", "XA PREPARE 'x2'", "XA COMMIT 'x2'"},
			{"XA START 'x3'", "INSERT INTO a4 VALUES(3)", "XA END 'x3'", "XA COMMIT 'x3' ONE PHASE", "INSERT INTO a4 VALUES(4)"},
			{"XA START 'x4'", "DELETE FROM a4", "XA END 'x4'", "XA PREPARE 'x4'", "XA COMMIT 'x4'"},
		}},
	{name: "MY-002 compressed transactions", only: "mysql",
		before: []string{"CREATE TABLE a2(id INT PRIMARY KEY, t TEXT)"},
		phases: [3][]string{
			{"SET SESSION binlog_transaction_compression=ON", "INSERT INTO a2 VALUES(1,REPEAT('x',1000)),(2,REPEAT('y',1000))", "UPDATE a2 SET t='z' WHERE id=1", "SET SESSION binlog_transaction_compression=OFF"},
			{"INSERT INTO a2 VALUES(3,'plain')"},
			{"SET SESSION binlog_transaction_compression=ON", "BEGIN", "DELETE FROM a2 WHERE id<3", "INSERT INTO a2 VALUES(4,'w')", "COMMIT", "SET SESSION binlog_transaction_compression=OFF"},
		}},
	{name: "MY-042 compressed events", only: "mariadb",
		before: []string{"CREATE TABLE b9(id INT PRIMARY KEY, a INT, t TEXT)"},
		phases: [3][]string{
			{"SET GLOBAL log_bin_compress=ON", "INSERT INTO b9 SELECT seq,seq,REPEAT('x',500) FROM seq_1_to_100", "UPDATE b9 SET a=a+1", "SET GLOBAL log_bin_compress=OFF"},
			{"UPDATE b9 SET a=a+1 WHERE id<50"},
			{"SET GLOBAL log_bin_compress=ON", "DELETE FROM b9 WHERE id>90", "INSERT INTO b9 VALUES(1000,1,REPEAT('z',5000))", "SET GLOBAL log_bin_compress=OFF"},
		}},
	{name: "MY-044 a sequence beside the tables", only: "mariadb",
		before: []string{"CREATE SEQUENCE b11"},
		phases: [3][]string{{"DO NEXTVAL(b11)"}, {"DO NEXTVAL(b11)"}, {"DROP SEQUENCE b11"}}},
	{name: "MY-078 invisible columns, generated invisible key", only: "mysql",
		before: []string{"SET SESSION sql_generate_invisible_primary_key=ON", "CREATE TABLE c26(a INT, b INT INVISIBLE DEFAULT 7)", "SET SESSION sql_generate_invisible_primary_key=OFF", "INSERT INTO c26(a) VALUES(1)"},
		phases: [3][]string{{"INSERT INTO c26(a) VALUES(2)"}, {"UPDATE c26 SET a=5 WHERE a=1"}, {"DELETE FROM c26 WHERE a=2"}}},
	{name: "invisible columns", only: "mariadb",
		before: []string{"CREATE TABLE c26(id INT PRIMARY KEY, h INT INVISIBLE DEFAULT 7, a INT)", "INSERT INTO c26(id,a) VALUES(1,1)"},
		phases: [3][]string{{"INSERT INTO c26(id,a,h) VALUES(2,2,9)"}, {"UPDATE c26 SET h=5 WHERE id=1"}, {"DELETE FROM c26 WHERE id=2"}}},
	{name: "generated columns", only: "mysql",
		before: []string{"CREATE TABLE gen(id INT PRIMARY KEY, a INT, s INT AS (a*2) STORED, w INT AS (a+1) VIRTUAL)", "INSERT INTO gen(id,a) VALUES(1,1)"},
		phases: [3][]string{{"INSERT INTO gen(id,a) VALUES(2,2)"}, {"UPDATE gen SET a=7 WHERE id=1"}, {"DELETE FROM gen WHERE id=2"}}},
	{name: "MY-040 cascades that the server logs", only: "mysql",
		before: []string{"CREATE TABLE b5(id INT PRIMARY KEY)",
			"CREATE TABLE b6(id INT PRIMARY KEY, p INT, FOREIGN KEY(p) REFERENCES b5(id) ON DELETE CASCADE)",
			"CREATE TABLE b7(id INT PRIMARY KEY, p INT, FOREIGN KEY(p) REFERENCES b5(id) ON DELETE SET NULL)",
			"INSERT INTO b5 VALUES(1),(2)", "INSERT INTO b6 VALUES(10,1),(11,2)", "INSERT INTO b7 VALUES(20,1)"},
		phases: [3][]string{{"DELETE FROM b5 WHERE id=1"}, {"INSERT INTO b7 VALUES(21,2)"}, {"DELETE FROM b5"}}},
	{name: "MY-086 TRUNCATE",
		before: []string{"CREATE TABLE d4(id INT PRIMARY KEY)", "INSERT INTO d4 VALUES(1),(2)"},
		phases: [3][]string{
			{"INSERT INTO d4 VALUES(5)", "TRUNCATE d4", "INSERT INTO d4 VALUES(3),(1)"},
			{"TRUNCATE TABLE d4"},
			{"INSERT INTO d4 VALUES(1)", "UPDATE d4 SET id=2", "TRUNCATE d4", "INSERT INTO d4 VALUES(2)", "TRUNCATE d4", "INSERT INTO d4 VALUES(1),(4)", "DELETE FROM d4 WHERE id=1"},
		}},
	{name: "columns added",
		before: []string{"CREATE TABLE added(id INT PRIMARY KEY, v INT)", "INSERT INTO added VALUES(1,1),(2,2)"},
		phases: [3][]string{
			{"UPDATE added SET v=3 WHERE id=1", "ALTER TABLE added ADD COLUMN w VARCHAR(9)", "INSERT INTO added VALUES(3,3,'w')", "UPDATE added SET w='u' WHERE id=2"},
			{"ALTER TABLE added ADD COLUMN x DECIMAL(12,3) NULL DEFAULT NULL, ADD COLUMN (y DATETIME(6), z BIGINT UNSIGNED)", "UPDATE added SET x=1.5, y='2024-02-29 12:34:56.123456', z=18446744073709551615 WHERE id=1"},
			{"/* lead */ ALTER /*!50000 TABLE added ADD COLUMN c_new INT */ ; -- tail", "DELETE FROM added WHERE id=2", "INSERT INTO added(id,c_new) VALUES(2,5)"},
		}},
	{name: "relations made later",
		phases: [3][]string{
			{"CREATE TABLE later(id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET latin1)", "INSERT INTO later VALUES(1,'é')"},
			{"CREATE TABLE later2 LIKE later", "INSERT INTO later2 SELECT * FROM later", "UPDATE later SET v='€'", "CREATE TABLE IF NOT EXISTS later(id INT)"},
			{"CREATE TABLE later3(id INT PRIMARY KEY) AS SELECT id, v FROM later", "CREATE TABLE later4(id INT PRIMARY KEY)"},
		}},
	{name: "MY-096 statements that concern no table",
		before: []string{"CREATE TABLE d14(id INT PRIMARY KEY)"},
		phases: [3][]string{
			{"FLUSH TABLES", "ANALYZE TABLE d14", "GRANT SELECT ON *.* TO lakesync@'%'", "CREATE OR REPLACE VIEW vw AS SELECT 1 AS one"},
			{"CREATE PROCEDURE p1() INSERT INTO d14(id) VALUES(55)", "INSERT INTO d14 VALUES(1)", "CALL p1()", "DROP VIEW vw", "CREATE TRIGGER tr1 BEFORE INSERT ON d14 FOR EACH ROW SET NEW.id = NEW.id + 100", "INSERT INTO d14 VALUES(2)"},
			{"DROP TRIGGER tr1", "DROP PROCEDURE p1", "ALTER TABLE d14 COMMENT='x', ENGINE=InnoDB", "CREATE TEMPORARY TABLE tmp1(id INT)", "INSERT INTO tmp1 VALUES(1)", "INSERT INTO d14 SELECT id+7 FROM tmp1", "DROP TEMPORARY TABLE tmp1"},
		}},
	{name: "MY-132 names that differ in case",
		before: []string{"CREATE TABLE GA(id INT PRIMARY KEY)", "CREATE TABLE ga(id INT PRIMARY KEY)", "INSERT INTO GA VALUES(1)", "INSERT INTO ga VALUES(2)"},
		phases: [3][]string{{"UPDATE GA SET id=11"}, {"UPDATE ga SET id=22"}, {"INSERT INTO GA VALUES(22)"}}},
	{name: "names and text outside ASCII",
		before: []string{"CREATE TABLE `tür`(`größe` VARCHAR(100) COLLATE utf8mb4_bin PRIMARY KEY, `a b` TEXT)", "INSERT INTO `tür` VALUES('😀','\\\\\"\n\t\u2028'),('中文','x')"},
		phases: [3][]string{{"UPDATE `tür` SET `a b`='é€' WHERE `größe`='😀'"}, {"DELETE FROM `tür` WHERE `größe`='中文'"}, {"INSERT INTO `tür` VALUES(REPEAT('ß',100),REPEAT('😀',1000))"}}},
	{name: "some tables in one transaction",
		before: []string{"CREATE TABLE m1(id INT PRIMARY KEY, v INT)", "CREATE TABLE m2(id INT PRIMARY KEY, v INT)", "INSERT INTO m1 VALUES(1,1)"},
		phases: [3][]string{
			{"BEGIN", "INSERT INTO m2 SELECT * FROM m1", "DELETE FROM m1", "INSERT INTO m1 VALUES(2,2)", "UPDATE m2 SET v=7", "COMMIT"},
			{"UPDATE m1, m2 SET m1.v=9, m2.v=9"}, {"DELETE m1, m2 FROM m1 JOIN m2"}},
	},
}

func repeat(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

// TestSmallHistories runs all of smallCases in one database beside each other.
// In the second phase the daemon is killed right after the statements.
func TestSmallHistories(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "small")
		cases := regexp.MustCompile(*only)
		run := func(pick func(smallCase) []string) {
			t.Helper()
			for _, c := range smallCases {
				if (c.only == "" || c.only == s.Source) && cases.MatchString(c.name) {
					s.Exec(t, append([]string{"USE small"}, pick(c)...)...)
				}
			}
		}
		run(func(c smallCase) []string { return c.before })
		p := harness.NewPipeline(t, s, "small", "small.*")
		p.Run()
		p.Wait(waitLimit)
		compare := func(when string) {
			t.Helper()
			for _, r := range relations(t, s, db) {
				if !judge(t).Equal(t, p, s, db, r) {
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
