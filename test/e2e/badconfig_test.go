package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// TestBadFilesAreRefusedAtOnce needs no server: nothing of it gets that far.
func TestBadFilesAreRefusedAtOnce(t *testing.T) {
	needsServers(t)
	nowhere := &harness.Server{Kind: harness.MariaDB, Port: 1}
	for _, c := range []struct {
		name string
		edit func(p *harness.Pipeline) string
		says []string
	}{
		{"unknown key", func(p *harness.Pipeline) string { p.Set("checkpoint.intervall", "1s"); return p.Text() },
			[]string{"lakesyncd.yaml:", "intervall"}},
		{"unknown key at the top", func(p *harness.Pipeline) string { p.Set("memoy", "1GiB"); return p.Text() }, []string{"memoy"}},
		{"repeated key", func(p *harness.Pipeline) string { return p.Text() + "\npipeline: again\n" }, []string{"pipeline", "twice|repeated|already|duplicate"}},
		{"half a file", func(p *harness.Pipeline) string { return "pipeline: half\nsource:\n  mariadb:\n    host: 127.0.0.1\n" },
			[]string{"user|catalog", "catalog|warehouse"}},
		{"cut in the middle", func(p *harness.Pipeline) string { return "pipeline: half\nsource: {mariadb: {host: 127.0.0.1" }, []string{"lakesyncd.yaml"}},
		{"empty", func(p *harness.Pipeline) string { return "" }, []string{"lakesyncd.yaml"}},
		{"not YAML", func(p *harness.Pipeline) string { return "\x00\x01\x02" }, []string{"lakesyncd.yaml"}},
		{"two sources", func(p *harness.Pipeline) string {
			p.Set("source.mysql", map[string]any{"host": "x", "user": "y"})
			return p.Text()
		},
			[]string{"source", "one"}},
		{"no source", func(p *harness.Pipeline) string { p.Set("source", nil); return p.Text() }, []string{"source"}},
		{"no relations", func(p *harness.Pipeline) string { p.Set("relations", nil); return p.Text() }, []string{"relations"}},
		{"bad duration", func(p *harness.Pipeline) string { p.Set("checkpoint.interval", "soon"); return p.Text() }, []string{"checkpoint.interval", "soon"}},
		{"negative duration", func(p *harness.Pipeline) string { p.Set("checkpoint.interval", "-5s"); return p.Text() }, []string{"checkpoint.interval"}},
		{"bad size", func(p *harness.Pipeline) string { p.Set("memory", "much"); return p.Text() }, []string{"memory", "much"}},
		{"bad name", func(p *harness.Pipeline) string { p.Set("pipeline", "Shop 1!"); return p.Text() }, []string{"pipeline", "a-z"}},
		{"bad mode", func(p *harness.Pipeline) string {
			p.Set("tables", tablesKey(map[string]any{"match": "a.b", "mode": "upsrt"}))
			return p.Text()
		}, []string{"mode", "upsrt", "upsert"}},
		{"bad transform", func(p *harness.Pipeline) string {
			p.Set("tables", tablesKey(map[string]any{"match": "a.b", "partition_by": []string{"buckets(16, id)"}}))
			return p.Text()
		}, []string{"partition_by", "buckets"}},
		{"variable that is not set", func(p *harness.Pipeline) string {
			p.Set("source.mariadb.password", "${env:LAKESYNC_NOT_SET}")
			return p.Text()
		}, []string{"LAKESYNC_NOT_SET", "password"}},
		{"file that is not there", func(p *harness.Pipeline) string {
			p.Set("source.mariadb.password", "${file:/nonexistent/secret}")
			return p.Text()
		}, []string{"/nonexistent/secret"}},
		{"start mode of a later version", func(p *harness.Pipeline) string { p.Set("startup.mode", "whenever"); return p.Text() }, []string{"startup.mode", "whenever"}},
		{"position without its mode", func(p *harness.Pipeline) string { p.Set("startup.position", "gtid:x"); return p.Text() }, []string{"startup"}},
		{"warehouse of no known kind", func(p *harness.Pipeline) string {
			p.Set("catalog.filesystem.warehouse", "ftp://host/x")
			return p.Text()
		}, []string{"warehouse", "ftp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := harness.NewPipeline(t, nowhere, "bad", "bad.*")
			p.WriteText(c.edit(p))
			for _, verb := range []string{"check", "run", "plan"} {
				out, code := p.Command(verb, "-config", p.File)
				if code != harness.ExitConfig {
					t.Errorf("%s: exit %d, want %d\n%s", verb, code, harness.ExitConfig, out)
				}
				says(t, verb, out, c.says...)
				if strings.Contains(out, "goroutine ") {
					t.Errorf("%s shows a stack:\n%s", verb, out)
				}
			}
		})
	}
}

func TestAllProblemsOfAFileAreToldAtOnceAndSecretsNever(t *testing.T) {
	needsServers(t)
	p := harness.NewPipeline(t, &harness.Server{Kind: harness.MariaDB, Port: 1}, "bad", "bad.*").
		Set("memory", "much").Set("checkpoint.interval", "soon").Set("colour", "blue").
		Set("source.mariadb.password", "s3cr3t-word").Set("source.mariadb.server_id", "9-1")
	out, code := p.Check()
	if code != harness.ExitConfig {
		t.Errorf("exit %d", code)
	}
	says(t, "check", out, "much", "soon", "colour", "server_id")
	if strings.Contains(out, "s3cr3t") {
		t.Errorf("the password is shown:\n%s", out)
	}
}

func TestWrongUseAndMissingFile(t *testing.T) {
	needsServers(t)
	p := harness.NewPipeline(t, &harness.Server{Kind: harness.MariaDB, Port: 1}, "use", "use.*")
	p.Write()
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{}, harness.ExitUsage},
		{[]string{"dance"}, harness.ExitUsage},
		{[]string{"run", "-colour", "blue"}, harness.ExitUsage},
		{[]string{"wait", "-config", p.File, "-timeout", "soon"}, harness.ExitUsage},
		{[]string{"run", "-config", filepath.Join(p.Dir, "nosuch.yaml")}, harness.ExitConfig},
		{[]string{"check", "-config", p.Dir}, harness.ExitConfig},
		{[]string{"help"}, harness.ExitOK},
		{[]string{"version"}, harness.ExitOK},
		{[]string{"-version"}, harness.ExitOK},
	} {
		out, code := p.Command(c.args...)
		if code != c.code {
			t.Errorf("%v: exit %d, want %d\n%.500s", c.args, code, c.code, out)
		}
		if strings.TrimSpace(out) == "" {
			t.Errorf("%v says nothing", c.args)
		}
	}
}

func TestSourceThatCannotBeReachedAtStart(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "reach")
	s.Exec(t, "CREATE TABLE reach.a(id INT PRIMARY KEY)")
	for _, c := range []struct {
		name  string
		key   string
		value any
		code  int
		says  []string
	}{
		{"wrong password", "password", "wrong", harness.ExitConfig, []string{"lakesync", "denied|password"}},
		{"unknown user", "user", "nobody", harness.ExitConfig, []string{"nobody"}},
		{"unknown host", "host", "no-such-host.invalid", harness.ExitUnavailable, []string{"no-such-host.invalid"}},
		{"nobody listens", "port", 24, harness.ExitUnavailable, []string{"127.0.0.1:24", "refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := harness.NewPipeline(t, s, "reach", "reach.*").Set("source.mariadb."+c.key, c.value)
			out, code := p.Check()
			if code != c.code {
				t.Errorf("check: exit %d, want %d", code, c.code)
			}
			says(t, "check", out, c.says...)
			p.Launch()
			stops(t, p, c.code, 30*time.Second, c.says...)
			// The state and its reason stay for whoever asks later.
			out, _ = p.Command("status", "-config", p.File)
			says(t, "status", out, "stopped")
			if strings.Contains(p.Log(), "s3cr3t") {
				t.Error("password in the log")
			}
		})
	}
}

func TestAddressOfHTTPTaken(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "taken")
	s.Exec(t, "CREATE TABLE taken.a(id INT PRIMARY KEY)")
	p := harness.NewPipeline(t, s, "taken", "taken.*").Set("http", s.Addr())
	p.Run()
	stops(t, p, harness.ExitUnavailable, 20*time.Second, s.Addr())
}

// TestRelationsThatCannotBeMirrored wants every problem named by check at once,
// each with a way out.
func TestRelationsThatCannotBeMirrored(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		database(t, s, "odd")
		s.Exec(t,
			"CREATE TABLE odd.nokey(a INT)",
			"CREATE TABLE odd.nullkey(u INT NULL UNIQUE, v INT)", // MY-113
			"CREATE TABLE odd.floatkey(f DOUBLE PRIMARY KEY)",
			"CREATE TABLE odd.fine(id INT PRIMARY KEY, _op INT)",
		)
		p := harness.NewPipeline(t, s, "odd", "odd.*").
			Set("tables", tablesKey(map[string]any{"match": "odd.fine", "mode": "append"}))
		refuses(t, p, harness.ExitConfig, "odd.nokey", "odd.nullkey", "odd.floatkey", "append", "_op")

		t.Run("append and leaving out are ways out", func(t *testing.T) {
			s.Exec(t, "INSERT INTO odd.nokey VALUES(1),(1)")
			p := harness.NewPipeline(t, s, "odd2", "odd.*", "!odd.nullkey", "!odd.floatkey", "!odd.fine").
				Set("tables", tablesKey(map[string]any{"match": "odd.nokey", "mode": "append"}))
			p.Run()
			p.Wait(waitLimit)
			s.Exec(t, "INSERT INTO odd.nokey VALUES(1)", "DELETE FROM odd.nokey LIMIT 1") // MY-112
			p.Wait(waitLimit)
			rows := judge(t).Java.Rows(t, p.Table("odd", "nokey"))
			if len(rows) != 4 {
				t.Errorf("%d rows, want 2 copied, 1 inserted, 1 deleted: %v", len(rows), rows)
			}
			p.Stop()
		})
	})
}

// TestTableInTheLakeThatDoesNotFit covers a table of somebody else and a table
// of ours whose relation has changed its type meanwhile.
func TestTableInTheLakeThatDoesNotFit(t *testing.T) {
	s := server(t, harness.MariaDB)
	database(t, s, "fit")
	s.Exec(t, "CREATE TABLE fit.a(id INT PRIMARY KEY, v INT)", "INSERT INTO fit.a VALUES(1,1)")

	t.Run("foreign", func(t *testing.T) {
		p := harness.NewPipeline(t, s, "fit1", "fit.*").
			Set("tables", tablesKey(map[string]any{"match": "fit.a", "table": "f.eq-basic"}))
		j := judge(t)
		if _, end, err := j.Java.Ask("fixtures", filepath.Join(p.Dir, "lake", "f"), "eq-basic"); err != nil || end != "0" {
			t.Fatalf("fixtures: %s, %v", end, err)
		}
		before := j.Java.Rows(t, p.Table("f", "eq-basic"))
		refuses(t, p, harness.ExitConfig, "f.eq-basic")
		if d := harness.Diff(before, j.Java.Rows(t, p.Table("f", "eq-basic"))); d != "" {
			t.Errorf("the foreign table was touched: %s", d)
		}
	})
	t.Run("other type", func(t *testing.T) {
		p := harness.NewPipeline(t, s, "fit2", "fit.*")
		p.Run()
		p.Wait(waitLimit)
		p.Stop()
		if err := os.RemoveAll(filepath.Join(p.Dir, "records")); err != nil {
			t.Fatal(err)
		}
		s.Exec(t, "DROP TABLE fit.a", "CREATE TABLE fit.a(id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO fit.a VALUES(1,'x')")
		refuses(t, p, harness.ExitConfig, "fit.a", "v")
		judge(t).EqualLines(t, p.Table("fit", "a"), []string{`{"id":1,"v":1}`})
	})
	t.Run("two relations into one table", func(t *testing.T) { // MY-116
		database(t, s, "shards")
		s.Exec(t, "CREATE TABLE shards.s0(id INT PRIMARY KEY, v INT)", "CREATE TABLE shards.s1 LIKE shards.s0")
		p := harness.NewPipeline(t, s, "fit3", "shards.*").
			Set("tables", tablesKey(map[string]any{"match": "shards.*", "table": "shards.all"}))
		refuses(t, p, harness.ExitConfig, "shards.all")
	})
}

func TestSecondDaemonOfAPipeline(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "second")
	s.Exec(t, "CREATE TABLE second.a(id INT PRIMARY KEY)", "INSERT INTO second.a VALUES(1)")
	p := harness.NewPipeline(t, s, "second", "second.*")
	p.Run()
	p.Wait(waitLimit)
	other := harness.HTTPAddr(t)
	text := strings.Replace(p.Text(), p.HTTP, other, 1)
	file := filepath.Join(p.Dir, "other.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	out, code := p.Command("run", "-config", file)
	if code != harness.ExitFenced {
		t.Errorf("the second daemon: exit %d, want %d\n%s", code, harness.ExitFenced, out)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the second daemon took %v to see it", took)
	}
	s.Exec(t, "INSERT INTO second.a VALUES(2)")
	p.Wait(waitLimit)
	judge(t).Equal(t, p, s, db, "a")
	p.Stop()
}
