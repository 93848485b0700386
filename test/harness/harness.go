// Package harness drives the built program from outside, as a user would: it
// starts real database servers and stores by the scripts in test/servers, writes
// configuration files, runs, kills and stops the daemon, and holds what readers
// that are not ours see in the lake against what the source itself says. It
// imports nothing of the product: what it knows is the command line, the
// configuration file and the tables.
//
// Its one invariant: nothing that it started outlives the test or program that
// asked for it.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// T is what the harness needs of a *testing.T; Program provides one for
// programs that are no tests.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
	TempDir() string
	Name() string
	Context() context.Context
}

// Root is the folder of the checkout.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if ok {
		if _, err := os.Stat(filepath.Join(filepath.Dir(file), "../../go.mod")); err == nil {
			return filepath.Clean(filepath.Join(filepath.Dir(file), "../.."))
		}
	}
	// Built with -trimpath: from the folder of the test or the program upwards.
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
	}
	return dir
}

// EnvBinary names a built lakesyncd to test instead of building one.
const EnvBinary = "LAKESYNCD"

var build = sync.OnceValues(func() (string, error) {
	if b := os.Getenv(EnvBinary); b != "" {
		return filepath.Abs(b)
	}
	bin := filepath.Join(Root(), "bin", "lakesyncd")
	cmd := exec.Command("make", "-s", "build")
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return bin, nil
})

// Binary is the path of the release build, built once for each process.
func Binary(t T) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return bin
}

// Poll calls f until it returns true, at most for limit, and says whether it
// did. Between calls it waits 50 ms.
func Poll(limit time.Duration, f func() bool) bool {
	end := time.Now().Add(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		<-tick.C
	}
}

// script runs one of test/servers or test/readers and gives its standard output.
func script(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "test", name), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// Program runs f as a test runs: cleanups happen whatever ends it, Ctrl-C
// included. It returns the exit status: 0, or 1 if f failed.
func Program(name string, f func(T)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := &program{name: name, ctx: ctx}
	done := make(chan struct{})
	// It ends when f does, or at f's first Fatalf.
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				p.Errorf("panic: %v", r)
			}
		}()
		f(p)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		p.Errorf("interrupted")
	}
	p.mu.Lock()
	cleanups := p.cleanups
	p.mu.Unlock()
	for i := len(cleanups) - 1; i >= 0; i-- {
		cleanups[i]()
	}
	if p.Failed() {
		return 1
	}
	return 0
}

type program struct {
	name string
	ctx  context.Context

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

func (p *program) Helper()                  {}
func (p *program) Name() string             { return p.name }
func (p *program) Context() context.Context { return p.ctx }

func (p *program) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (p *program) Errorf(format string, args ...any) {
	p.mu.Lock()
	p.failed = true
	p.mu.Unlock()
	fmt.Fprintf(os.Stderr, p.name+": "+format+"\n", args...)
}

func (p *program) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

func (p *program) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "lakesync-"+p.name+"-")
	if err != nil {
		p.Fatalf("%v", err)
	}
	p.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			p.Errorf("%v", err)
		}
	})
	return dir
}
