package mysql

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// ddlScript is statements after which the history must know each table as the
// server shows it.
type ddlScript struct {
	id     string
	flavor Flavor // 0: all
	sql    []string
}

var ddlScripts = []ddlScript{
	{sql: []string{`CREATE TABLE t1 (a INTEGER, b INT1, c INT2, d INT3, e INT4, f INT8, g MIDDLEINT, h DEC, i NUMERIC(5), j FIXED(5,2), k REAL, l DOUBLE PRECISION,
		m FLOAT(10), n FLOAT(30), o FLOAT4, p FLOAT8, q BOOL, r BOOLEAN, s CHARACTER(3), t CHARACTER VARYING(5), u NATIONAL CHAR(4), v NCHAR(4), w NATIONAL VARCHAR(4),
		x NVARCHAR(4), y LONG VARCHAR, z LONG, aa LONG VARBINARY, ab CHAR VARYING(9), ac NCHAR VARCHAR(3), ad DECIMAL, ae DECIMAL(0), af DECIMAL(7,7), ag BIT, ah YEAR, ai CHAR, aj BINARY)`}},
	{sql: []string{`CREATE TABLE t1 (a TEXT(10), b TEXT(300), c TEXT(70000), d TEXT(17000000), e BLOB(10), f BLOB(300), g BLOB(70000), h TEXT(60), i TEXT(64), j TEXT(64) CHARACTER SET latin1, k BLOB(0), l TEXT(0))`}},
	{sql: []string{`CREATE TABLE t1 (a CHAR(3) BYTE, b VARCHAR(3) CHARACTER SET binary, c TEXT CHARACTER SET binary, d VARCHAR(3) ASCII, e VARCHAR(3) UNICODE, f VARCHAR(3) BINARY,
		g VARCHAR(3) COLLATE latin1_bin, h ENUM('a','b') CHARSET latin1, i SET('x ','y') COLLATE utf8mb4_bin, j CHAR(3) CHARACTER SET utf8 COLLATE utf8_bin, k MEDIUMTEXT CHARACTER SET binary, l ENUM('a ') CHARACTER SET binary,
		m VARCHAR(5) CHARACTER SET ascii BINARY, n TINYTEXT COLLATE binary)`}},
	{sql: []string{"CREATE TABLE t1 (id SERIAL, a INT UNIQUE, b INT UNIQUE KEY, c VARCHAR(5) NOT NULL DEFAULT 'x''y', d INT DEFAULT -1, e DECIMAL(3,1) DEFAULT 1.5, f DOUBLE DEFAULT 1.5e3, g INT KEY)",
		"CREATE TABLE t2 (id INT SERIAL DEFAULT VALUE, a INT)", "CREATE TABLE t3 (a INT, b INT, PRIMARY KEY (b, a))", "CREATE TABLE t4 (a INT PRIMARY KEY COMMENT 'it''s, (a) ) comment', b INT NULL)",
		"CREATE TABLE t5 (a INT NOT NULL, b INT NOT NULL, UNIQUE (a), UNIQUE KEY zz USING BTREE (b DESC) COMMENT 'x', INDEX (a,b), KEY `q,uote` (b))",
		"CREATE TABLE t6 (a INT NOT NULL, b INT, UNIQUE u1 (b), UNIQUE u2 (a))"}},
	{sql: []string{"CREATE TABLE t1 (a TIMESTAMP, b TIMESTAMP NULL, c TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), d DATETIME(6) DEFAULT NOW(6) ON UPDATE NOW(6), e TIME(2), f DATETIME DEFAULT CURRENT_TIMESTAMP)",
		"SET explicit_defaults_for_timestamp=OFF", "CREATE TABLE t2 (id INT, a TIMESTAMP, b TIMESTAMP NULL, c TIMESTAMP(2) DEFAULT '2020-01-01')"}},
	{sql: []string{"ALTER DATABASE CHARACTER SET latin1", "CREATE TABLE t1 (a VARCHAR(3), b VARCHAR(3) CHARACTER SET utf8mb4)", "CREATE TABLE t2 (a VARCHAR(3), b TEXT) DEFAULT CHARSET=utf16",
		"CREATE TABLE t3 (a VARCHAR(3)) COLLATE utf8mb4_bin", "ALTER DATABASE ddl DEFAULT COLLATE = cp1251_bin", "CREATE TABLE t4 (a TEXT, b CHAR(3) COLLATE utf8mb4_bin)",
		"ALTER TABLE t1 ADD c TEXT, DEFAULT CHARSET latin2", "ALTER TABLE t1 ADD d TEXT", "ALTER TABLE t2 CHARACTER SET = greek COLLATE = greek_bin", "ALTER TABLE t2 ADD c VARCHAR(2)"}},
	{id: "MY-097", sql: []string{"CREATE TABLE t1 (id INT PRIMARY KEY)", "/* lead */ ALTER /*!40000 TABLE t1 ADD COLUMN c_new INT */ ; -- tail", "ALTER TABLE /* x */ `t1` # y\n ADD -- z\n d INT /*!99999999 FIRST */",
		"alter table t1 add column `e``q` int, add (f int, g text), add column h int first, add i int after id, add column j int after h"}},
	{sql: []string{"CREATE TABLE t1 (id INT PRIMARY KEY, a INT, b INT, c VARCHAR(9))", "ALTER TABLE t1 DROP a, DROP COLUMN b, ADD a VARCHAR(3) AFTER id", "ALTER TABLE t1 MODIFY c TEXT FIRST, CHANGE a b2 BIGINT UNSIGNED NOT NULL AFTER c",
		"ALTER TABLE t1 DROP PRIMARY KEY, ADD PRIMARY KEY (b2, id)", "ALTER TABLE t1 ADD UNIQUE KEY (id), ALTER COLUMN c DROP DEFAULT", "ALTER TABLE t1 ENGINE=InnoDB, COMMENT 'x', AUTO_INCREMENT = 5, ROW_FORMAT=DYNAMIC, ALGORITHM=COPY, LOCK=SHARED",
		"ALTER TABLE t1 RENAME TO t2", "ALTER TABLE t2 RENAME AS ddl.t3", "RENAME TABLE t3 TO t4, t4 TO t5", "CREATE INDEX i ON t5 (id)", "CREATE UNIQUE INDEX i2 USING BTREE ON ddl.t5 (id DESC, b2)", "DROP INDEX i ON t5",
		"ALTER TABLE t5 RENAME INDEX i2 TO i3", "ALTER TABLE t5 DROP INDEX i3, FORCE"}},
	{id: "MY-089", sql: []string{"CREATE TABLE d7(id INT PRIMARY KEY)", "CREATE TABLE _d7_gho LIKE d7", "ALTER TABLE _d7_gho ADD COLUMN n INT", "RENAME TABLE d7 TO _d7_del, _d7_gho TO d7", "DROP TABLE IF EXISTS _d7_del, nope"}},
	{id: "MY-093", sql: []string{"CREATE TABLE d12(id INT PRIMARY KEY,a INT)", "CREATE TABLE IF NOT EXISTS d12(id INT)", "CREATE TABLE x (LIKE d12)"}},
	{id: "MY-092", sql: []string{"CREATE TABLE d10(id INT PRIMARY KEY, e ENUM('a','b'), v VARCHAR(3) CHARACTER SET latin1)", "INSERT INTO d10 VALUES(1,'a','é')", "CREATE TABLE d11 AS SELECT * FROM d10", "CREATE TABLE d12 (z INT PRIMARY KEY) SELECT id AS z, v, 1.5 AS n, NOW(6) AS t FROM d10"}},
	{id: "MY-096", sql: []string{"CREATE TABLE d14(id INT PRIMARY KEY)", "FLUSH TABLES", "ANALYZE TABLE d14", "OPTIMIZE TABLE d14", "GRANT SELECT ON *.* TO CURRENT_USER()", "CREATE OR REPLACE VIEW vw AS SELECT 1",
		"CREATE PROCEDURE p1() INSERT INTO d14(id) VALUES(55)", "CREATE TRIGGER tr BEFORE INSERT ON d14 FOR EACH ROW SET @x = 1", "CREATE EVENT ev ON SCHEDULE EVERY 1 DAY DISABLE DO DELETE FROM d14", "CREATE USER IF NOT EXISTS nobody@'%' IDENTIFIED BY 'Drop table d14; x'", "ALTER USER nobody@'%' ACCOUNT LOCK",
		"DROP USER nobody@'%'", "ALTER TABLE d14 ADD COLUMN h INT INVISIBLE"}},
	{id: "MY-130", sql: []string{"CREATE DATABASE IF NOT EXISTS `ddl.1`", "CREATE TABLE `ddl.1`.`t.x`(id INT PRIMARY KEY)", "CREATE TABLE ddl.`1.t.x`(id BIGINT PRIMARY KEY)", "DROP DATABASE `ddl.1`"}},
	{id: "MY-132", sql: []string{"CREATE TABLE GA(id INT PRIMARY KEY)", "CREATE TABLE ga(id BIGINT PRIMARY KEY)"}},
	{sql: []string{"SET sql_mode='ANSI_QUOTES'", `CREATE TABLE "t 1" ("a" INT PRIMARY KEY, "b c" VARCHAR(3) DEFAULT 'x')`, `ALTER TABLE "t 1" ADD "d" INT`, "SET sql_mode='NO_BACKSLASH_ESCAPES'", `CREATE TABLE t2 (e ENUM('a\','b') COMMENT 'x\')`,
		"SET sql_mode='REAL_AS_FLOAT'", "CREATE TABLE t3 (r REAL, d DOUBLE)", "SET sql_mode=''", `CREATE TABLE t4 (e ENUM("a",'b\'c',"d""e"), v VARCHAR(70000) CHARACTER SET latin1, w VARCHAR(20000) CHARACTER SET utf8mb4)`}},
	{sql: []string{"CREATE TABLE p (id INT PRIMARY KEY)", "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE, CONSTRAINT x FOREIGN KEY y (p) REFERENCES ddl.p (id) ON DELETE SET NULL ON UPDATE NO ACTION, CHECK (id > 0), CONSTRAINT chk CHECK ((id) < 100))",
		"CREATE TABLE d (id INT PRIMARY KEY CHECK (id <> 3), a INT AS (id + 1), b INT GENERATED ALWAYS AS (id * 2) STORED, g POINT NOT NULL, FULLTEXT KEY (t), t TEXT, SPATIAL INDEX (g))"}},
	{sql: []string{"CREATE TABLE d6(id INT PRIMARY KEY, a DATE NOT NULL DEFAULT '2020-01-01') ENGINE InnoDB COMMENT='PARTITION BY' PARTITION BY RANGE(id)(PARTITION p0 VALUES LESS THAN(10),PARTITION p1 VALUES LESS THAN(20))",
		"ALTER TABLE d6 ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))", "ALTER TABLE d6 DROP PARTITION p0", "ALTER TABLE d6 TRUNCATE PARTITION p1", "ALTER TABLE d6 ADD COLUMN x INT", "CREATE TABLE k (id INT PRIMARY KEY) PARTITION BY KEY() PARTITIONS 4", "ALTER TABLE k REMOVE PARTITIONING"}},
	{sql: []string{"CREATE TABLE `1a` (`2b` INT, `select` INT, `add` INT, `key` INT, `vector` INT, `first` INT)", "ALTER TABLE `1a` ADD COLUMN `after` INT AFTER `first`, ADD `index` INT, ADD COLUMN `primary` INT", "CREATE TABLE 9z (period INT, role INT)", "ALTER TABLE 9z ADD vector2 INT"}},

	{flavor: FlavorMySQL, id: "MY-078", sql: []string{"SET sql_generate_invisible_primary_key=ON", "CREATE TABLE c26(a INT,b INT INVISIBLE DEFAULT 7)", "CREATE TABLE c27 SELECT * FROM c26"}},
	{flavor: FlavorMySQL, sql: []string{"CREATE TABLE t1 (a JSON, b GEOMETRY NOT NULL SRID 4326, c VECTOR(3), d VECTOR, e INT INVISIBLE, f INT DEFAULT (1 + 2), g VARCHAR(9) DEFAULT (CONCAT('a', ')')), h VARCHAR(9) COLUMN_FORMAT FIXED STORAGE DISK, KEY ((e + 1)), UNIQUE KEY fu ((e * 2), e))",
		"ALTER TABLE t1 ADD z INT AS (f + 1) STORED NOT NULL, ALTER INDEX fu INVISIBLE", "ALTER TABLE t1 ALTER COLUMN e SET VISIBLE", "ALTER TABLE t1 RENAME COLUMN g TO g2"}},
	{flavor: FlavorMySQL, sql: []string{"CREATE TABLE t1 (id INT PRIMARY KEY, x INT CHECK (x > 0) NOT ENFORCED, CONSTRAINT c1 CHECK (x < 9) ENFORCED) AUTOEXTEND_SIZE=4M", "ALTER TABLE t1 DROP CHECK c1, ADD CONSTRAINT c2 CHECK (x <> 5)", "ALTER TABLE t1 ALTER CHECK c2 NOT ENFORCED", "ALTER TABLE t1 ADD y INT, ALGORITHM=INSTANT"}},

	{flavor: FlavorMariaDB, id: "MY-094", sql: []string{"CREATE TABLE d13(id INT PRIMARY KEY)", "CREATE OR REPLACE TABLE d13(id INT PRIMARY KEY, b INT)", "CREATE OR REPLACE TABLE d13 AS SELECT 1 AS x, 'é' AS y", "CREATE TABLE d14 LIKE d13", "DROP TABLE d13 WAIT 5"}},
	{flavor: FlavorMariaDB, id: "MY-044", sql: []string{"CREATE SEQUENCE s1", "CREATE OR REPLACE SEQUENCE s1 START WITH 5", "ALTER SEQUENCE s1 RESTART 9", "CREATE TABLE t (id INT PRIMARY KEY DEFAULT NEXT VALUE FOR s1, x INT DEFAULT NEXTVAL(s1))", "CREATE SEQUENCE s2", "DROP SEQUENCE IF EXISTS s2"}},
	{flavor: FlavorMariaDB, sql: []string{"CREATE TABLE t1 (id INT PRIMARY KEY, u UUID, i INET6, j JSON, v VARCHAR(10) COMPRESSED, w TEXT COMPRESSED=zlib DEFAULT 'x', x INT INVISIBLE DEFAULT 5, y VARCHAR(9) DEFAULT CONCAT('a', ')'), z INT DEFAULT (id + 1), g POINT REF_SYSTEM_ID=4326)",
		"ALTER TABLE IF EXISTS t1 ADD COLUMN IF NOT EXISTS u INT, ADD COLUMN IF NOT EXISTS n INT, DROP COLUMN IF EXISTS nope, MODIFY COLUMN IF EXISTS nope INT, DROP INDEX IF EXISTS nope", "ALTER ONLINE TABLE t1 WAIT 5 ADD m INT", "ALTER TABLE t1 NOWAIT ADD IF NOT EXISTS (k INT, l INT)",
		"CREATE INDEX IF NOT EXISTS ix ON t1 (n)", "DROP INDEX IF EXISTS ix ON t1", "ALTER TABLE t1 ADD CONSTRAINT IF NOT EXISTS cc CHECK (n > 0), ADD INDEX IF NOT EXISTS ii (n), ADD UNIQUE IF NOT EXISTS uu (n)", "RENAME TABLE IF EXISTS nope TO nope2, t1 TO t2"}},
	{flavor: FlavorMariaDB, sql: []string{"CREATE TABLE per(id INT, s DATE, e DATE, PERIOD FOR app(s,e), PRIMARY KEY(id, app WITHOUT OVERLAPS))", "CREATE TABLE sv(id INT PRIMARY KEY, a INT WITHOUT SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
		"CREATE TABLE sv2 (id INT PRIMARY KEY, a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, b TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING"}},
	{flavor: FlavorMariaDB, sql: []string{"SET sql_mode=ORACLE", "CREATE TABLE ora(id NUMBER(10) PRIMARY KEY, v VARCHAR2(10), d DATE, b BLOB, n NUMBER, r RAW(10), c CLOB, n2 NUMBER(5,2))"}},
}

// statements returns the statements that the log has next, up to one that holds
// the mark.
func (l *valueLog) statements(mark string) (all []ddlEvent) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		e, err := l.stream.GetEvent(ctx)
		if err != nil {
			l.t.Fatal(err)
		}
		if e.Header.EventType != replication.QUERY_EVENT {
			continue
		}
		raw := stripChecksum(e.RawData)
		d, err := parseQuery(event{typ: replication.QUERY_EVENT, body: raw[replication.EventHeaderSize:]}, l.h.flavor == FlavorMariaDB, 1<<30)
		if err != nil {
			l.t.Fatal(err)
		}
		if strings.Contains(d.SQL, mark) {
			return all
		}
		all = append(all, d)
	}
}

func TestHistoryFollowsStatementsAsTheServerDoes(t *testing.T) {
	for _, s := range testServers {
		t.Run(s.name, func(t *testing.T) {
			admin := s.start(t)
			for i, script := range ddlScripts {
				if script.flavor != 0 && script.flavor != s.flavor {
					continue
				}
				t.Run(fmt.Sprintf("%02d %s", i, script.id), func(t *testing.T) {
					mustExec(t, admin, "DROP DATABASE IF EXISTS ddl", "CREATE DATABASE ddl CHARACTER SET utf8mb4", "DROP DATABASE IF EXISTS `ddl.1`", "DROP DATABASE IF EXISTS ddl_mark")
					c := s.connect(t)
					mustExec(t, c, "SET NAMES utf8mb4", "SET sql_mode=''", "USE ddl")
					facts := serverFacts{Version: serverVersion(t, c), Collation: "utf8mb4_general_ci", ExplicitTimestamps: true}
					h := newHistory(s.flavor, func(string, string) bool { return false })
					h.setServer(facts)
					h.setSchemaDefault("ddl", "utf8mb4_general_ci")
					l := s.log(t, admin, h)
					mustExec(t, c, script.sql...)
					mustExec(t, admin, "CREATE DATABASE ddl_mark")
					for _, d := range l.statements("ddl_mark") {
						if _, err := h.apply(d); err != nil {
							t.Errorf("%s: %v", d.SQL, err)
						}
					}
					compareWithServer(t, s, h, facts)
				})
			}
		})
	}
}

// compareWithServer compares a history with what the server shows of its tables,
// also after a way through its saved form.
func compareWithServer(t *testing.T, s testServer, h *history, facts serverFacts) {
	t.Helper()
	saved, err := h.encode()
	if err != nil {
		t.Fatal(err)
	}
	if h, err = decodeHistory(saved, h.match); err != nil {
		t.Fatal(err)
	}
	look := s.connect(t)
	mustExec(t, look, "SET NAMES utf8mb4", "SET sql_mode=''")
	shown := newHistory(s.flavor, h.match)
	shown.setServer(facts)
	r, err := look.Execute("SELECT table_name FROM information_schema.tables WHERE table_schema='ddl' AND table_type NOT LIKE '%VIEW'")
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.RowNumber() {
		name, _ := r.GetString(i, 0)
		if err := shown.define("ddl", showTable(t, look, "ddl", name)); err != nil {
			t.Error(err)
		}
	}
	var names []string
	for n := range h.tables {
		if n.Schema == "ddl" && shown.tables[n] == nil {
			names = append(names, n.String())
		}
	}
	if names != nil {
		t.Errorf("the history has tables that the server does not have: %v", names)
	}
	for n, want := range shown.tables {
		got := h.tables[n]
		switch {
		case got == nil:
			t.Errorf("the history does not know %s", n)
		case want.Sequence:
			if !got.Sequence {
				t.Errorf("%s is no sequence", n)
			}
		case want.Unknown != "":
			t.Errorf("%s: %s\n%s", n, want.Unknown, showTable(t, look, "ddl", n.Name))
		case got.Unknown != "" && !strings.Contains(got.Unknown, "renamed"):
			t.Errorf("%s: %s", n, got.Unknown)
		case want.Versioned && got.Versioned: // refused anyway; the server adds to its key
		default:
			diff := cmp.Diff(want, got, cmpopts.IgnoreFields(tableDef{}, "Indexes", "Foreign", "Rel", "Unknown", "KeyName", "Engine"), cmpopts.EquateEmpty())
			if diff != "" {
				t.Errorf("%s, server (-) and history (+):\n%s", n, diff)
			}
		}
	}
}
