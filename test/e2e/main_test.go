// Package e2e tests the built program from outside: real servers, the command
// line, SIGKILL, and readers that are not ours. It is written from the contract
// of the command line, the configuration and the tables, and imports nothing of
// the product.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

var (
	seed    = flag.Int64("seed", 0, "seed of the random runs; 0 takes one from the clock")
	changes = flag.Int("changes", 40_000, "changes of the random run")
	kills   = flag.Int("kills", 10, "SIGKILLs of the random run")
	only    = flag.String("cases", "", "run only the small histories whose name matches this expression")
	long    = flag.Bool("long", false, "the long form: more servers, full sizes")
)

// waitLimit is how long anything here may take to become readable.
const waitLimit = 2 * time.Minute

var shared struct {
	mu      sync.Mutex
	servers map[harness.Kind]*harness.Server
	judge   *harness.Judge
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for _, s := range shared.servers {
		s.Wipe()
	}
	if shared.judge != nil {
		shared.judge.Close()
	}
	os.Exit(code)
}

// needsServers skips a test in the short run, which starts no servers.
func needsServers(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real servers")
	}
}

// server is the shared server of a kind, started at its first use and stopped
// after the last test. Whoever changes its global settings changes them back.
func server(t *testing.T, k harness.Kind) *harness.Server {
	t.Helper()
	needsServers(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if s := shared.servers[k]; s != nil {
		return s
	}
	s, err := harness.Shared(context.Background(), k)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if shared.servers == nil {
		shared.servers = map[harness.Kind]*harness.Server{}
	}
	shared.servers[k] = s
	return s
}

// judge is the shared set of readers: Iceberg's own library and DuckDB.
func judge(t *testing.T) *harness.Judge {
	t.Helper()
	needsServers(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.judge == nil {
		shared.judge = harness.NewJudge([]string{"LAKESYNC_READERS_HEAP=4g"}, "duckdb")
	}
	return shared.judge
}

// java is a judge with Iceberg's own library alone, for tables that DuckDB is
// known to misread or refuse.
func java(t *testing.T) *harness.Judge {
	t.Helper()
	return &harness.Judge{Java: judge(t).Java}
}

// eachServer runs f for MySQL and MariaDB, in the long form for the older MariaDB too.
func eachServer(t *testing.T, f func(t *testing.T, s *harness.Server)) {
	t.Helper()
	needsServers(t)
	kinds := []harness.Kind{harness.MySQL, harness.MariaDB}
	if *long {
		kinds = append(kinds, harness.MariaDB10_11)
	}
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) { f(t, server(t, k)) })
	}
}

// database makes an empty database named after the test.
func database(t *testing.T, s *harness.Server, name string) string {
	t.Helper()
	s.Database(t, name)
	return name
}

// relations are the base tables of a database.
func relations(t *testing.T, s *harness.Server, schema string) []string {
	t.Helper()
	return s.Column(t, f(`SELECT table_name FROM information_schema.tables
		WHERE table_schema = '%s' AND table_type = 'BASE TABLE' ORDER BY table_name`, schema))
}

// says checks that a message names each of the things; one of several words for
// a thing are parted by "|".
func says(t *testing.T, what, text string, things ...string) {
	t.Helper()
	low := strings.ToLower(text)
	for _, thing := range things {
		found := false
		for _, word := range strings.Split(thing, "|") {
			found = found || strings.Contains(low, strings.ToLower(word))
		}
		if !found {
			t.Errorf("%s does not say %q:\n%.3000s", what, thing, text)
		}
	}
}

// stops waits until the daemon has ended by itself and checks its code and that
// its log names each of the things.
func stops(t *testing.T, p *harness.Pipeline, code int, limit time.Duration, things ...string) {
	t.Helper()
	e := p.Ended(limit)
	if e.Killed {
		t.Errorf("still running after %v, want exit %d\n%s", limit, code, p.LogTail(15))
		return
	}
	if e.Code != code {
		t.Errorf("exit %d, want %d\n%s", e.Code, code, p.LogTail(15))
		return
	}
	says(t, "the log", p.LogTail(30), things...)
}

// refuses checks that both `check` and `run` end with code and name the things.
func refuses(t *testing.T, p *harness.Pipeline, code int, things ...string) {
	t.Helper()
	out, got := p.Check()
	if got != code {
		t.Errorf("check: exit %d, want %d\n%s", got, code, out)
	}
	says(t, "check", out, things...)
	p.Launch()
	stops(t, p, code, 40*time.Second, things...)
}

func tablesKey(entries ...map[string]any) []any {
	out := make([]any, len(entries))
	for i, e := range entries {
		out[i] = e
	}
	return out
}

func f(format string, args ...any) string { return fmt.Sprintf(format, args...) }
