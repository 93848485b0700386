package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A changeRow is the part of an append table's row that tells its change.
type changeRow struct {
	ID       int    `json:"id"`
	V        any    `json:"v"`
	Op       string `json:"_op"`
	Time     string `json:"_source_time"`
	Position string `json:"_position"`
	Ordinal  int64  `json:"_ordinal"`
}

func TestAppendModeKeepsEveryChangeInOrder(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		database(t, s, "app")
		s.Exec(t, "CREATE TABLE app.a(id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO app.a VALUES(1,'copied')")
		p := harness.NewPipeline(t, s, "app", "app.*").
			Set("tables", tablesKey(map[string]any{"match": "app.a", "mode": "append", "table": "log.changes"}))
		p.Run()
		p.Wait(waitLimit)
		s.Exec(t, "BEGIN", "INSERT INTO app.a VALUES(2,'x')", "UPDATE app.a SET v='y' WHERE id=2", "COMMIT",
			"DELETE FROM app.a WHERE id=1", "UPDATE app.a SET id=3 WHERE id=2")
		p.Wait(waitLimit)
		p.Kill()
		p.Run()
		s.Exec(t, "INSERT INTO app.a VALUES(4,NULL)")
		p.Wait(waitLimit)
		var got []changeRow
		for _, l := range judge(t).Java.Rows(t, p.Table("log", "changes")) {
			var r changeRow
			if err := json.Unmarshal([]byte(l), &r); err != nil {
				t.Fatal(err)
			}
			got = append(got, r)
		}
		find := func(op string, id int, v any) *changeRow {
			t.Helper()
			for i := range got {
				if got[i].Op == op && got[i].ID == id && got[i].V == v {
					return &got[i]
				}
			}
			t.Errorf("no change %s id=%d v=%v in %+v", op, id, v, got)
			return &changeRow{}
		}
		find("r", 1, "copied")
		ins, upd := find("c", 2, "x"), find("u", 2, "y")
		find("d", 1, "copied") // the before image
		find("u", 3, "y")
		find("c", 4, nil)
		if len(got) != 6 {
			t.Errorf("%d changes, want 6: %+v", len(got), got)
		}
		if ins.Position != upd.Position || ins.Ordinal >= upd.Ordinal {
			t.Errorf("of one transaction: %+v then %+v", ins, upd)
		}
		for _, r := range got {
			if _, err := time.Parse("2006-01-02T15:04:05.000000Z", r.Time); err != nil {
				t.Errorf("_source_time of %+v: %v", r, err)
			}
		}
		judge(t).Java.Audit(t, p.Table("log", "changes"))

		// TRUNCATE stops an append table unless configured.
		s.Exec(t, "TRUNCATE app.a")
		stops(t, p, harness.ExitConfig, 60*time.Second, "app.a", "truncate", "on_truncate")
		p.Set("tables", tablesKey(map[string]any{"match": "app.a", "mode": "append", "table": "log.changes", "on_truncate": "keep"}))
		p.Run()
		p.Wait(waitLimit)
		if n := len(judge(t).Java.Rows(t, p.Table("log", "changes"))); n < 6 {
			t.Errorf("%d rows after on_truncate: keep", n)
		}
		p.Stop()
	})
}

func TestPartitionTransforms(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "part")
		var entries []map[string]any
		specs := map[string][]string{
			"ident": {"region"}, "bucketid": {"bucket(8, id)"}, "buckettext": {"bucket(3, region)"}, "trunctext": {"truncate(1, region)"},
			"truncnum": {"truncate(10, n)"}, "day": {"day(t)"}, "hour": {"hour(t)"}, "month": {"month(day)"},
			"year": {"year(t)"}, "bucketts": {"bucket(4, ts)"}, "bucketbin": {"bucket(4, bin)"}, "two": {"region", "bucket(2, id)"}, "bucketdec": {"bucket(5, d)"},
			"bucketday": {"bucket(5, day)"}, "identbool": {"f"}, "truncbin": {"truncate(1, bin)"},
		}
		var names []string
		for name := range specs {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			s.Exec(t, f(`CREATE TABLE part.%s(id BIGINT PRIMARY KEY, region VARCHAR(9), n INT, d DECIMAL(12,2), t DATETIME(6), day DATE,
				ts TIMESTAMP(6) NULL, bin VARBINARY(9), f BIT(1))`, name),
				f(`INSERT INTO part.%s VALUES
				(1,'eu',-11,-1.05,'1969-12-31 23:59:59.999999','1969-12-31','2024-02-29 12:00:00.000001',x'00ff',b'1'),
				(2,'us',-1,10.65,'2024-02-29 00:00:00','2024-02-29','1970-01-01 00:00:01','',b'0'),
				(3,'éa/=%% &',0,0,'2017-11-16 22:31:08','2017-11-16',NULL,x'8000',NULL),
				(4,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL),(5,'',10,999.99,'9999-12-31 23:59:59','0001-01-01',NULL,x'00',b'1')`, name))
			entries = append(entries, map[string]any{"match": "part." + name, "partition_by": specs[name]})
		}
		p := harness.NewPipeline(t, s, "part", "part.*").Set("tables", tablesKey(entries...))
		p.Run()
		p.Wait(waitLimit)
		compare := func(when string) {
			t.Helper()
			for _, name := range names {
				if !java(t).Equal(t, p, s, db, name) {
					t.Errorf("%s (%v) differs %s", name, specs[name], when)
				}
			}
		}
		compare("after the copy")
		// Rows move between partitions, come and go.
		for _, name := range names {
			s.Exec(t,
				f("UPDATE part.%s SET region='us', n=25, d=77.77, t='2024-02-29 05:00:00', day='2024-03-01', ts='2024-01-01', bin=x'ffff', f=b'0' WHERE id=1", name),
				f("DELETE FROM part.%s WHERE id=3", name), f("INSERT INTO part.%s(id,region) VALUES(3,'eu')", name),
				f("UPDATE part.%s SET region='eu', t='1960-01-01', n=3 WHERE id=4", name),
				f("UPDATE part.%s SET id=50 WHERE id=5", name))
		}
		p.Kill()
		p.Run()
		p.Wait(waitLimit)
		compare("after moves")
		for _, name := range names {
			s.Exec(t, f("UPDATE part.%s SET region='eu', n=-11, d=-1.05, t='1969-12-31 23:59:59.999999', bin=x'00ff' WHERE id=1", name),
				f("UPDATE part.%s SET region=NULL, t=NULL, n=NULL, day=NULL WHERE id=2", name), f("DELETE FROM part.%s WHERE id=4", name),
				f("UPDATE part.%s SET n=n+1", name), f("UPDATE part.%s SET region='x' WHERE id=50", name), f("UPDATE part.%s SET region='y' WHERE id=50", name))
		}
		p.Wait(waitLimit)
		compare("after moves back")
		// Readers that prune by partitions and bounds see the same rows.
		for _, name := range names {
			for _, where := range []string{"region = 'eu'", "id = 1", "n >= -20"} {
				var want []string
				for _, id := range s.Column(t, f("SELECT id FROM part.%s WHERE %s", name, where)) {
					want = append(want, f(`{"id":%s,`, id))
				}
				slices.Sort(want)
				got := judge(t).Java.Rows(t, p.Table(db, name), "--where", where)
				for i := range got {
					got[i] = got[i][:strings.Index(got[i], ",")+1]
				}
				if d := harness.Diff(want, got); d != "" {
					t.Errorf("%s (%v) where %s: %s", name, specs[name], where, d)
				}
			}
		}
		p.Stop()
	})
}

// TestMarksAndSnapshots holds what other programs rely on in the tables: one
// snapshot for each changed table and checkpoint, its summary, its mark.
func TestMarksAndSnapshots(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		database(t, s, "mark")
		s.Exec(t, "CREATE TABLE mark.a(v INT, id INT, w TEXT, PRIMARY KEY(id))", "CREATE TABLE mark.idle(id INT PRIMARY KEY)",
			"INSERT INTO mark.a VALUES(1,1,'x')", "INSERT INTO mark.idle VALUES(1)")
		p := harness.NewPipeline(t, s, "mark", "mark.*").Set("checkpoint.idle_mark", "2s")
		p.Run()
		p.Wait(waitLimit)
		idle := harness.LoadMetadata(t, p.Table("mark", "idle"))
		if idle == nil {
			t.Fatal("no table mark.idle")
		}
		start := time.Now()
		for i := range 5 {
			s.Exec(t, f("INSERT INTO mark.a VALUES(%d,%d,'y')", i+2, i+2))
			p.Wait(waitLimit)
		}
		m := harness.LoadMetadata(t, p.Table("mark", "a"))
		seen := map[string]bool{}
		for _, sn := range m.Snapshots {
			for _, k := range []string{"lakesync.pipeline", "lakesync.epoch", "lakesync.checkpoint", "lakesync.position", "lakesync.source-time", "lakesync.complete"} {
				if sn.Summary[k] == "" {
					t.Errorf("snapshot %d has no %s: %v", sn.ID, k, sn.Summary)
				}
			}
			if c := sn.Summary["lakesync.checkpoint"]; seen[c] && sn.Summary["lakesync.partial"] != "true" {
				t.Errorf("two snapshots of checkpoint %s", c)
			} else {
				seen[c] = true
			}
			if sn.Summary["lakesync.complete"] != "true" || sn.Summary["lakesync.pipeline"] != "mark" {
				t.Errorf("summary %v", sn.Summary)
			}
			if _, err := time.Parse(time.RFC3339, sn.Summary["lakesync.source-time"]); err != nil {
				t.Errorf("source-time: %v", err)
			}
			if sn.Summary["total-records"] == "" {
				t.Errorf("no total-records: %v", sn.Summary)
			}
		}
		if len(m.Snapshots) != 6 {
			t.Errorf("%d snapshots of mark.a, want 6: one each for the copy and 5 changes", len(m.Snapshots))
		}
		head := m.Head()
		var mark struct {
			Pipeline   string `json:"pipeline"`
			Epoch      any    `json:"epoch"`
			Checkpoint any    `json:"checkpoint"`
			Position   string `json:"position"`
			SourceTime string `json:"source_time"`
			SnapshotID int64  `json:"snapshot_id"`
			Sequence   int64  `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(m.Properties["lakesync.mark.mark"]), &mark); err != nil {
			t.Fatalf("mark of mark.a %q: %v", m.Properties["lakesync.mark.mark"], err)
		}
		if head == nil || mark.SnapshotID != head.ID || mark.Sequence != head.Sequence || mark.Pipeline != "mark" || mark.Position == "" || mark.SourceTime == "" {
			t.Errorf("mark %+v, head %+v", mark, head)
		}
		// The idle table gets no snapshot, but its mark follows.
		if !harness.Poll(30*time.Second, func() bool {
			now := harness.LoadMetadata(t, p.Table("mark", "idle"))
			return now.Properties["lakesync.mark.mark"] != idle.Properties["lakesync.mark.mark"]
		}) {
			t.Errorf("the mark of an idle table is not brought up to date in %v", time.Since(start))
		}
		if now := harness.LoadMetadata(t, p.Table("mark", "idle")); len(now.Snapshots) != len(idle.Snapshots) {
			t.Errorf("an idle table got %d snapshots", len(now.Snapshots)-len(idle.Snapshots))
		}
		// Columns in the source's order; the key required and identifier.
		for _, sc := range m.Schemas {
			if sc.ID != m.CurrentSchema {
				continue
			}
			var got []string
			for _, c := range sc.Fields {
				got = append(got, f("%s:%v", c.Name, c.Required))
			}
			if want := "v:false id:true w:false"; strings.Join(got, " ") != want {
				t.Errorf("columns %v, want %s", got, want)
			}
			if len(sc.Identifier) != 1 {
				t.Errorf("identifier fields %v", sc.Identifier)
			}
		}
		st := p.Status()
		if st.Pipeline != "mark" || st.State != "streaming" || st.Position == "" || st.SourceTime == "" || len(st.Tables) != 2 {
			t.Errorf("/status %+v", st)
		}
		if ts := st.Tables["mark.a"]; ts.Rows != 6 || ts.SnapshotID != head.ID {
			t.Errorf("/status of mark.a %+v, want 6 rows and snapshot %d", ts, head.ID)
		}
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if body, code := p.Get(path); code != 200 {
				t.Errorf("%s answers %d: %.200s", path, code, body)
			}
		}
		out, code := p.Command("status", "-config", p.File, "-json")
		if code != 0 || !json.Valid([]byte(out)) {
			t.Errorf("status -json: %d, %.300s", code, out)
		}
		out, code = p.Command("checkpoint", "show", "-config", p.File)
		if code != 0 || !strings.Contains(out, "gtid:") && !strings.Contains(out, "file:") {
			t.Errorf("checkpoint show: %d, %.300s", code, out)
		}
		out, code = p.Command("plan", "-config", p.File)
		if code != 0 {
			t.Errorf("plan: %d", code)
		}
		says(t, "plan", out, "mark.a", "mark.idle", "int")
		p.Stop()
		if files, err := filepath.Glob(filepath.Join(p.Table("mark", "a"), "metadata", "*.gz*")); err != nil || len(files) > 0 {
			t.Errorf("compressed metadata %v, %v", files, err)
		}
	})
}

func TestReadShowsRowsOfNowAndThen(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "readback")
	s.Exec(t, "CREATE TABLE readback.a(id INT PRIMARY KEY, v DECIMAL(9,2), t TIMESTAMP(6) NULL, b VARBINARY(4), x FLOAT)",
		"INSERT INTO readback.a VALUES(1,1.5,'2024-01-01',x'00ff',1e20),(2,NULL,NULL,NULL,NULL)")
	p := harness.NewPipeline(t, s, "readback", "readback.*")
	p.Run()
	p.Wait(waitLimit)
	first := harness.LoadMetadata(t, p.Table(db, "a")).Current
	old := s.Rows(t, db, "a")
	s.Exec(t, "UPDATE readback.a SET v=7 WHERE id=2", "DELETE FROM readback.a WHERE id=1", "INSERT INTO readback.a(id) VALUES(3)")
	p.Wait(waitLimit)
	read := func(args ...string) []string {
		out, code := p.Command(append([]string{"read", "-config", p.File}, args...)...)
		if code != 0 {
			t.Errorf("read %v: exit %d: %s", args, code, out)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		slices.Sort(lines)
		return lines
	}
	if d := harness.Diff(s.Rows(t, db, "a"), read("readback.a")); d != "" {
		t.Errorf("read: %s", d)
	}
	if d := harness.Diff(old, read("-snapshot", f("%d", first), "readback.a")); d != "" {
		t.Errorf("read -snapshot: %s", d)
	}
	p.Stop()
}

// TestInsertsLeaveTablesAppendOnly: the log proves that inserted keys are new,
// so nothing but data files is written; and what begins and ends within one
// checkpoint leaves no file.
func TestInsertsLeaveTablesAppendOnly(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "ins")
	s.Exec(t, "CREATE TABLE ins.a(id INT PRIMARY KEY)", "INSERT INTO ins.a VALUES(1)")
	p := harness.NewPipeline(t, s, "ins", "ins.*")
	p.Run()
	p.Wait(waitLimit)
	for i := range 5 {
		s.Exec(t, f("INSERT INTO ins.a VALUES(%d),(%d)", 10+i, 20+i))
		p.Wait(waitLimit)
	}
	s.Exec(t, "BEGIN", "INSERT INTO ins.a VALUES(99)", "DELETE FROM ins.a WHERE id=99", "COMMIT")
	p.Wait(waitLimit)
	m := harness.LoadMetadata(t, p.Table(db, "a"))
	for _, sn := range m.Snapshots {
		if n := sn.Summary["total-delete-files"]; n != "" && n != "0" {
			t.Errorf("an insert-only table has delete files: %v", sn.Summary)
		}
	}
	judge(t).Equal(t, p, s, db, "a")
	p.Stop()
}

// TestRestartWithoutChangesCopiesNothing is MY-028.
func TestRestartWithoutChangesCopiesNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "again")
		s.Exec(t, "CREATE TABLE again.a(id INT PRIMARY KEY)", "INSERT INTO again.a VALUES(1)")
		p := harness.NewPipeline(t, s, "again", "again.*")
		p.Run()
		p.Wait(waitLimit)
		p.Kill()
		before := harness.LoadMetadata(t, p.Table(db, "a"))
		for range 3 {
			p.Run()
			p.Wait(waitLimit)
			p.Kill()
		}
		after := harness.LoadMetadata(t, p.Table(db, "a"))
		if after.Current != before.Current {
			t.Errorf("restarts made new snapshots: %d, then %d", len(before.Snapshots), len(after.Snapshots))
		}
		judge(t).Equal(t, p, s, db, "a")
	})
}

// TestSnapshotsExpire: time travel reaches as far as configured, no further, and
// the files of expired snapshots go.
func TestSnapshotsExpire(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "exp")
	s.Exec(t, "CREATE TABLE exp.a(id INT PRIMARY KEY, v INT)", "INSERT INTO exp.a VALUES(1,0)")
	p := harness.NewPipeline(t, s, "exp", "exp.*").Set("snapshots", map[string]any{"keep": "1s", "min": 3, "max": 5})
	p.Run()
	p.Wait(waitLimit)
	for range 15 {
		s.Exec(t, "UPDATE exp.a SET v=v+1")
		p.Wait(waitLimit)
	}
	m := harness.LoadMetadata(t, p.Table(db, "a"))
	if len(m.Snapshots) > 6 || len(m.Snapshots) < 3 {
		t.Errorf("%d snapshots kept, want 3 to 5", len(m.Snapshots))
	}
	j := java(t)
	j.Equal(t, p, s, db, "a")
	j.Java.Audit(t, p.Table(db, "a"), "--all")
	lists, err := os.ReadDir(filepath.Join(p.Table(db, "a"), "metadata"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range lists {
		if strings.HasPrefix(e.Name(), "snap-") {
			n++
		}
	}
	if n > 8 {
		t.Errorf("%d manifest lists for %d snapshots", n, len(m.Snapshots))
	}
	p.Stop()
}

// TestManyCommitsStayFlat: the cost of a commit must not grow with their number.
func TestManyCommitsStayFlat(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "flat")
	s.Exec(t, "CREATE TABLE flat.a(id INT AUTO_INCREMENT PRIMARY KEY, v INT)", "INSERT INTO flat.a(v) VALUES(0)")
	p := harness.NewPipeline(t, s, "flat", "flat.*").Set("checkpoint.interval", "100ms").Set("snapshots", map[string]any{"keep": "1s", "min": 5, "max": 10})
	p.Run()
	p.Wait(waitLimit)
	commits := 100
	if *long {
		commits = 500
	}
	for i := range commits {
		s.Exec(t, "INSERT INTO flat.a(v) VALUES(1)", f("UPDATE flat.a SET v=v+1 WHERE id=%d", 1+i%7))
		p.Wait(waitLimit)
	}
	table := p.Table(db, "a")
	m := harness.LoadMetadata(t, table)
	info, err := os.Stat(filepath.Join(table, "metadata", f("v%d.metadata.json", m.Version)))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 64<<10 {
		t.Errorf("metadata of %d bytes after %d commits", info.Size(), commits)
	}
	judge(t).Equal(t, p, s, db, "a")
	p.Stop()
}
