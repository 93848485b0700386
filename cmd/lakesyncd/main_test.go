package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

func execTest(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), &cli{stdout: &out, stderr: &errs}, args)
	return code, out.String(), errs.String()
}

func TestWrongUse(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "a command is missing"},
		{[]string{"fly"}, `no such command "fly"`},
		{[]string{"run"}, "-config FILE is missing"},
		{[]string{"run", "-confg", "x"}, "flag provided but not defined: -confg"},
		{[]string{"run", "-config", "x", "now"}, `unexpected argument "now"`},
		{[]string{"checkpoint"}, "checkpoint needs one of: show set abandon"},
		{[]string{"checkpoint", "move"}, "checkpoint needs one of: show set abandon"},
		{[]string{"checkpoint", "set", "-config", "x"}, "give one of -position and -from-tables"},
		{[]string{"checkpoint", "set", "-config", "x", "-from-tables", "-position", "gtid:"}, "give one of -position and -from-tables"},
		{[]string{"wait", "-config", "x", "-timeout", "0s"}, "-timeout must be positive"},
		{[]string{"read"}, "name one table"},
		{[]string{"read", "a.b"}, "-config FILE is missing"},
		{[]string{"read", "/a"}, "is not the folder of a table"},
		{[]string{"read", "a.b", "-as-of", "noon", "-config", "x"}, "write it like 2026-01-01T00:00:00Z"},
		{[]string{"read", "a.b", "-snapshot", "1", "-ref", "main", "-config", "x"}, "give one of -as-of, -snapshot and -ref"},
		{[]string{"read", "a.b", "-follow"}, "-follow is not in this version"},
		{[]string{"help", "fly"}, `no such command "fly"`},
	} {
		code, out, errs := execTest(t, tt.args...)
		if code != exitUsage || !strings.Contains(errs, tt.want) || out != "" {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want %q", tt.args, code, out, errs, tt.want)
		}
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}, {"help", "wait"}, {"wait", "-h"}, {"checkpoint", "set", "-help"}, {"help", "checkpoint", "set"}} {
		code, out, errs := execTest(t, args...)
		if code != exitOK || !strings.Contains(out, "Usage: lakesyncd") || errs != "" {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
	if _, out, _ := execTest(t, "help", "wait"); !strings.Contains(out, "-timeout LONG") || !strings.Contains(out, "(default 1m0s)") {
		t.Errorf("help wait: %s", out)
	}
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "-version", "--version"} {
		if code, out, _ := execTest(t, arg); code != exitOK || !strings.HasPrefix(out, "lakesyncd ") || len(out) < 12 {
			t.Errorf("%s: %d %q", arg, code, out)
		}
	}
}

func TestBadFileEndsEachCommandWith78(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(file, []byte("pipelin: shop\nsource: {mysql: {host: db, user: u, password: hunter2, x: y}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"run"}, {"check"}, {"plan"}, {"status"}, {"wait"}, {"checkpoint", "show"}, {"checkpoint", "set", "-from-tables"}, {"checkpoint", "abandon"}, {"read", "a.b"}} {
		code, _, errs := execTest(t, append(args, "-config", file)...)
		if code != exitConfig || !strings.Contains(errs, file+":1: pipelin: unknown key: did you mean pipeline?") ||
			!strings.Contains(errs, file+":2: source.mysql.x: unknown key") || strings.Contains(errs, "hunter2") {
			t.Errorf("%q: exit %d: %s", args, code, errs)
		}
	}
}

func TestEveryCommandAndFlagIsDocumented(t *testing.T) {
	for _, page := range []string{"../../docs/reference/cli.md", "../../docs/man/lakesyncd.1"} {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), `\-`, "-")
		for _, cmd := range commands() {
			if !strings.Contains(text, cmd.name) {
				t.Errorf("%s lacks the command %s", page, cmd.name)
			}
			fs := newFlagSet(cmd)
			cmd.flags(fs)
			fs.VisitAll(func(f *flag.Flag) {
				if !strings.Contains(text, "-"+f.Name) {
					t.Errorf("%s lacks the flag -%s of %s", page, f.Name, cmd.name)
				}
			})
		}
	}
}

// daemonConfig is a configuration whose servers are not there.
func daemonConfig(t *testing.T, http string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "shop.yaml")
	text := fmt.Sprintf("pipeline: shop\nsource: {mysql: {host: 127.0.0.1, port: 1, user: u}}\nrelations: [\"shop.*\"]\ncatalog: {filesystem: {warehouse: \"file://%s/lake\"}}\nhttp: %s\nlog: {format: json}\n", dir, http)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestDaemonStopsAsAskedBySignal(t *testing.T) {
	var log bytes.Buffer
	err := runDaemon(t.Context(), &cli{stdout: io.Discard, stderr: &log}, daemonConfig(t, "127.0.0.1:0"),
		func(ctx context.Context, _ *config.Config, env pipelineEnv) error {
			env.Board.Set(checkpoint.Streaming, "")
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
	if exitCode(err) != exitOK {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{`"msg":"starting"`, `"pipeline":"shop"`, `"signal":"terminated"`, `"msg":"stopped as asked"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
}

func TestDaemonEndsWithTheClassOfItsError(t *testing.T) {
	for want, fault := range map[int]error{78: source.ErrCannotServe, 69: source.ErrUnavailable, 75: checkpoint.ErrFenced, 1: errors.New("anything")} {
		var log bytes.Buffer
		err := runDaemon(t.Context(), &cli{stdout: io.Discard, stderr: &log}, daemonConfig(t, "off"),
			func(context.Context, *config.Config, pipelineEnv) error { return fmt.Errorf("open: %w", fault) })
		if got := exitCode(err); got != want {
			t.Errorf("%v: exit code %d, want %d", fault, got, want)
		}
		if !strings.Contains(log.String(), fmt.Sprintf(`"exit_code":%d`, want)) {
			t.Errorf("the log does not tell the exit code %d:\n%s", want, log.String())
		}
	}
}

func TestDaemonWithTakenAddressEndsWith69(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = runDaemon(t.Context(), &cli{stdout: io.Discard, stderr: io.Discard}, daemonConfig(t, l.Addr().String()),
		func(context.Context, *config.Config, pipelineEnv) error { t.Error("the pipeline ran"); return nil })
	if got := exitCode(err); got != exitUnavailable {
		t.Errorf("exit code %d: %v", got, err)
	}
}

// The second instance of one file finds its address taken, by the first.
func TestSecondInstanceOfOneFileEndsWith75(t *testing.T) {
	b, _, reg := testBoard(t)
	srv := httptest.NewServer(endpoints(b, reg))
	defer srv.Close()
	err := runDaemon(t.Context(), &cli{stdout: io.Discard, stderr: io.Discard}, daemonConfig(t, srv.Listener.Addr().String()),
		func(context.Context, *config.Config, pipelineEnv) error { t.Error("the pipeline ran"); return nil })
	if got := exitCode(err); got != exitTempFail {
		t.Errorf("exit code %d: %v", got, err)
	}
}

// A start that is tried again opens the lake again.
func TestLakeIsMeasuredAlsoWhenOpenedTwice(t *testing.T) {
	cfg := daemonConfig(t, "off")
	reg := prometheus.NewRegistry()
	labelled := prometheus.WrapRegistererWith(prometheus.Labels{"pipeline": "shop"}, reg)
	for range 2 {
		if _, err := openLake(t.Context(), cfg, writing, (&cli{stderr: io.Discard}).quietLog(cfg), labelled); err != nil {
			t.Fatal(err)
		}
	}
	b, _, _ := testBoard(t)
	srv := httptest.NewServer(endpoints(b, reg))
	defer srv.Close()
	if body := get(t, srv.URL+"/metrics", 200); !strings.Contains(body, `lakesyncd_store_requests_total{op="put",pipeline="shop",result="ok",store="file"} 4`) {
		t.Errorf("/metrics:\n%s", body)
	}
}

func TestStatusOfADaemonThatNeverRan(t *testing.T) {
	cfg := daemonConfig(t, "127.0.0.1:1")
	code, out, errs := execTest(t, "status", "-json", "-config", cfg.File)
	if code != exitOK || !strings.Contains(out, `"state": "stopped"`) || !strings.Contains(out, `"reason": "never ran"`) {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

// A daemon that was killed cannot say so itself.
func TestStatusOfADeadDaemon(t *testing.T) {
	cfg := daemonConfig(t, "127.0.0.1:1")
	l, err := openLake(t.Context(), cfg, writing, (&cli{stderr: io.Discard}).quietLog(cfg), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, c, _ := testBoard(t)
	finish := b.Persist(l.store.SaveStatus)
	feed(b, c)
	finish(fmt.Errorf("binlog_format is STATEMENT: %w", source.ErrCannotServe))
	code, out, errs := execTest(t, "status", "-config", cfg.File)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for _, want := range []string{"stopped since 2026-03-01T12:00:00Z", "binlog_format is STATEMENT", "exit code 78", "gtid:a:1-9", "shop.orders  96    5"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	// Killed: the last thing it saved is that it was streaming.
	b2, c2, _ := testBoard(t)
	feed(b2, c2)
	data, err := json.Marshal(b2.Report())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.store.SaveStatus(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if _, out, _ = execTest(t, "status", "-config", cfg.File); !strings.Contains(out, "does not answer at 127.0.0.1:1; its last state was streaming") {
		t.Errorf("status:\n%s", out)
	}
}

func TestReachableAddress(t *testing.T) {
	for in, want := range map[string]string{":9187": "127.0.0.1:9187", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", "10.0.0.1:2": "10.0.0.1:2", "host:3": "host:3"} {
		if got := reachable(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
