package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Reader is a program of somebody else that reads Iceberg tables: java
// (Iceberg's own library), duckdb, chdb, spark.
type Reader struct {
	Name string

	env []string

	mu    sync.Mutex
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
}

// NewReader prepares a reader; its process starts with the first question and
// ends with Close. env are further settings, such as those of an S3 store.
func NewReader(name string, env ...string) *Reader { return &Reader{Name: name, env: env} }

func (r *Reader) start() error {
	r.cmd = exec.Command(filepath.Join(Root(), "test/readers/read.sh"), r.Name, "serve")
	r.cmd.Env = append(os.Environ(), r.env...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	r.lines = bufio.NewReaderSize(out, 1<<20)
	return r.cmd.Start()
}

// answerLimit is the longest that a reader may take for one answer, its own
// setting up included.
const answerLimit = 8 * time.Minute

// Ask sends one request (test/readers/README.md, "serve") and gives the lines of
// the answer and its end: "0" fine, "1" check found something, "2 MESSAGE".
func (r *Reader) Ask(request ...string) (lines []string, end string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		if err := r.start(); err != nil {
			return nil, "", fmt.Errorf("start %s: %w", r.Name, err)
		}
	}
	q, err := json.Marshal(request)
	if err != nil {
		return nil, "", err
	}
	timer := time.AfterFunc(answerLimit, r.kill)
	defer timer.Stop()
	if _, err := r.in.Write(append(q, '\n')); err != nil {
		return nil, "", r.died(err)
	}
	for {
		line, err := r.lines.ReadString('\n')
		if err != nil {
			return nil, "", r.died(err)
		}
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, ".") {
			return lines, line[1:], nil
		}
		lines = append(lines, line)
	}
}

func (r *Reader) kill() {
	if r.cmd != nil && r.cmd.Process != nil {
		syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
	}
}

func (r *Reader) died(err error) error {
	r.kill()
	wait := r.cmd.Wait()
	r.cmd = nil
	return fmt.Errorf("%s died: %w (%v)", r.Name, err, wait)
}

// Close ends the reader's process.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return
	}
	r.kill()
	r.cmd.Wait() //nolint:errcheck // killed above
	r.cmd = nil
}

// Rows of a table as sorted canonical lines. options as --snapshot ID.
func (r *Reader) Rows(t T, table string, options ...string) []string {
	t.Helper()
	lines, end, err := r.Ask(append([]string{"rows", table}, options...)...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if end != "0" {
		t.Fatalf("%s cannot read %s: %s", r.Name, table, strings.TrimPrefix(end, "2 "))
	}
	return lines
}

// Audit holds the metadata of a table against its files with the java reader and
// reports what it finds as errors of the test.
func (r *Reader) Audit(t T, table string, options ...string) {
	t.Helper()
	lines, end, err := r.Ask(append([]string{"check", table}, options...)...)
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	if end != "0" {
		var bad []string
		for _, l := range lines {
			if strings.HasPrefix(l, "bad ") && len(bad) < 10 {
				bad = append(bad, l)
			}
		}
		t.Errorf("audit of %s: %s\n%s", table, end, strings.Join(bad, "\n"))
	}
}
