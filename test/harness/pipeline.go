package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"
)

// Exit codes of lakesyncd.
const (
	ExitOK          = 0
	ExitUsage       = 64
	ExitUnavailable = 69
	ExitFenced      = 75
	ExitConfig      = 78
)

// A Pipeline is one configuration file and the daemon that runs on it.
type Pipeline struct {
	Name string
	// Dir holds the configuration, the log and, unless set otherwise, the lake
	// and the records.
	Dir string
	// File is the configuration file, written anew at each Run.
	File string
	// Warehouse is the URI of the lake.
	Warehouse string
	HTTP      string

	t   T
	doc map[string]any
	// Env is added to the daemon's environment.
	Env []string

	mu  sync.Mutex
	cmd *exec.Cmd
	end chan struct{} // closed when the process has ended
	log *os.File
}

// NewPipeline describes a pipeline from a server to a local lake with
// checkpoints each second. Its daemon is killed when the test ends.
func NewPipeline(t T, s *Server, name string, relations ...string) *Pipeline {
	t.Helper()
	p := &Pipeline{Name: name, Dir: t.TempDir(), HTTP: HTTPAddr(t), t: t}
	p.File = filepath.Join(p.Dir, "lakesyncd.yaml")
	p.Warehouse = "file://" + filepath.Join(p.Dir, "lake")
	p.doc = map[string]any{
		"pipeline":     name,
		"relations":    relations,
		"catalog":      map[string]any{"filesystem": map[string]any{"warehouse": p.Warehouse}},
		"checkpoint":   map[string]any{"interval": "1s", "store": "file://" + filepath.Join(p.Dir, "records")},
		"spill_dir":    filepath.Join(p.Dir, "spill"),
		"http":         p.HTTP,
		"retry_budget": "3s",
		"log":          map[string]any{"format": "json", "level": "info"},
		"source": map[string]any{s.Source: map[string]any{
			"host": "127.0.0.1", "port": s.Port, "user": "lakesync", "password": "lakesync",
			"server_id": "5400-5403", "heartbeat": "1s",
		}},
	}
	if s.isPostgres() {
		p.Set("source.postgres.server_id", nil).Set("source.postgres.database", "postgres")
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("end of the log of pipeline %s:\n%s", name, p.LogTail(40))
		}
		if p.log != nil {
			p.log.Close() //nolint:errcheck // only written by the daemon
		}
	})
	return p
}

// Set puts value at a dotted path of the configuration; nil removes the key.
func (p *Pipeline) Set(path string, value any) *Pipeline {
	keys := strings.Split(path, ".")
	m := p.doc
	for _, k := range keys[:len(keys)-1] {
		next, ok := m[k].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[k] = next
		}
		m = next
	}
	if last := keys[len(keys)-1]; value == nil {
		delete(m, last)
	} else {
		m[last] = value
	}
	if path == "catalog.filesystem.warehouse" {
		p.Warehouse = fmt.Sprint(value)
	}
	return p
}

// UseS3 puts the lake, and if records is set the records too, into a store.
func (p *Pipeline) UseS3(s *S3, prefix string, records bool) *Pipeline {
	p.Set("catalog.filesystem.warehouse", "s3://"+s.Bucket+"/"+prefix)
	p.Set("storage.s3", map[string]any{"endpoint": s.Endpoint, "region": s.Region, "path_style": true,
		"access_key": s.AccessKey, "secret_key": s.SecretKey})
	if records {
		p.Set("checkpoint.store", nil)
	}
	return p
}

// Write writes the configuration file.
func (p *Pipeline) Write() {
	p.t.Helper()
	b, err := yaml.Marshal(p.doc)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	p.WriteText(string(b))
}

// WriteText writes text as the configuration file.
func (p *Pipeline) WriteText(text string) {
	p.t.Helper()
	if err := os.WriteFile(p.File, []byte(text), 0o600); err != nil {
		p.t.Fatalf("%v", err)
	}
}

// Text is the configuration as it would be written.
func (p *Pipeline) Text() string {
	b, err := yaml.Marshal(p.doc)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	return string(b)
}

// Table is the location of a table, as readers take it.
func (p *Pipeline) Table(namespace, name string) string {
	return strings.TrimPrefix(p.Warehouse, "file://") + "/" + namespace + "/" + name
}

func (p *Pipeline) logFile() string { return filepath.Join(p.Dir, "log") }

// Log is all that the pipeline's daemons printed.
func (p *Pipeline) Log() string {
	b, err := os.ReadFile(p.logFile())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	return string(b)
}

// LogTail is the last n lines of Log.
func (p *Pipeline) LogTail(n int) string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Run writes the configuration and starts the daemon on it.
func (p *Pipeline) Run() {
	p.t.Helper()
	p.Write()
	p.Launch()
}

// Launch starts the daemon on the file as it stands.
func (p *Pipeline) Launch() {
	p.t.Helper()
	bin := Binary(p.t)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		p.t.Fatalf("pipeline %s runs already", p.Name)
	}
	if p.log == nil {
		var err error
		if p.log, err = os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			p.t.Fatalf("%v", err)
		}
	}
	cmd := exec.Command(bin, "run", "-config", p.File)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("%v", err)
	}
	end := make(chan struct{})
	p.cmd, p.end = cmd, end
	// It ends with the process, which Kill ends at the latest.
	go func() {
		cmd.Wait() //nolint:errcheck // its state is asked for
		close(end)
	}()
}

// An Exit is how a daemon ended.
type Exit struct {
	Code int // -1 if a signal ended it
	// CPU is user and system time together.
	CPU time.Duration
	// Killed says that it had to be killed since it didn't end by itself.
	Killed bool
}

// Running says whether the daemon's process is there.
func (p *Pipeline) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.end:
		return false
	default:
		return true
	}
}

// Pid of the daemon.
func (p *Pipeline) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Ended waits until the daemon has ended by itself and says how.
func (p *Pipeline) Ended(limit time.Duration) Exit {
	p.mu.Lock()
	cmd, end := p.cmd, p.end
	p.mu.Unlock()
	if cmd == nil {
		return Exit{Code: -1}
	}
	e := Exit{}
	select {
	case <-end:
	case <-time.After(limit):
		e.Killed = true
		cmd.Process.Kill() //nolint:errcheck // it may have ended just now
		<-end
	}
	p.mu.Lock()
	p.cmd = nil
	p.mu.Unlock()
	e.Code = cmd.ProcessState.ExitCode()
	e.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return e
}

// Kill is SIGKILL.
func (p *Pipeline) Kill() Exit { return p.Ended(0) }

// Stop is SIGTERM, and an error of the test unless the daemon then ends with 0
// within 30 s.
func (p *Pipeline) Stop() Exit {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	e := p.Ended(30 * time.Second)
	if e.Killed {
		p.t.Errorf("pipeline %s: not ended 30 s after SIGTERM", p.Name)
	} else if e.Code != ExitOK {
		p.t.Errorf("pipeline %s: exit %d after SIGTERM, want 0\n%s", p.Name, e.Code, p.LogTail(15))
	}
	return e
}

// Signal sends a signal to the daemon.
func (p *Pipeline) Signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		p.cmd.Process.Signal(s) //nolint:errcheck // it may have ended
	}
}

// Peak is the largest resident size of the daemon's process so far, in bytes.
func (p *Pipeline) Peak() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0
	}
	var kb int64
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			if _, err := fmt.Sscanf(strings.TrimSpace(rest), "%d kB", &kb); err != nil {
				return 0
			}
		}
	}
	return kb << 10
}

// Command runs a subcommand with the pipeline's file and gives all that it
// printed and its exit code.
func (p *Pipeline) Command(args ...string) (string, int) {
	p.t.Helper()
	return p.command(p.t.Context(), args...)
}

func (p *Pipeline) command(ctx context.Context, args ...string) (string, int) {
	p.t.Helper()
	cmd := exec.CommandContext(ctx, Binary(p.t), args...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), p.Env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			p.t.Fatalf("%v", err)
		}
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// Check runs `lakesyncd check`.
func (p *Pipeline) Check() (string, int) {
	p.t.Helper()
	p.Write()
	return p.Command("check", "-config", p.File)
}

// Wait returns once all that the source has now is committed and readable. It
// is a fatal error of the test if that takes longer, or if the daemon ends.
func (p *Pipeline) Wait(limit time.Duration) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	defer cancel()
	p.mu.Lock()
	end := p.end
	p.mu.Unlock()
	// It ends with this function, or with the daemon.
	go func() {
		select {
		case <-end:
			cancel()
		case <-ctx.Done():
		}
	}()
	out, code := p.command(ctx, "wait", "-config", p.File, "-timeout", limit.String())
	if code != ExitOK {
		p.t.Fatalf("pipeline %s: wait ended with %d: %s\nlog:\n%s", p.Name, code, strings.TrimSpace(out), p.LogTail(15))
	}
}

// A Status is what /status answers.
type Status struct {
	Pipeline    string                 `json:"pipeline"`
	State       string                 `json:"state"`
	Since       string                 `json:"since"`
	Reason      string                 `json:"reason"`
	Checkpoint  int64                  `json:"checkpoint"`
	Position    string                 `json:"position"`
	SourceTime  string                 `json:"source_time"`
	LagSeconds  float64                `json:"lag_seconds"`
	Tables      map[string]TableStatus `json:"tables"`
	Unavailable bool                   `json:"-"` // nobody answered
}

// A TableStatus is one table's part of a Status.
type TableStatus struct {
	Rows       int64 `json:"rows"`
	SnapshotID int64 `json:"snapshot_id"`
	Complete   any   `json:"complete"`
}

// Get asks the daemon's http; the code is 0 if nobody answers.
func (p *Pipeline) Get(path string) (string, int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.HTTP+path, nil)
	if err != nil {
		p.t.Fatalf("%v", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", 0
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", 0
	}
	return string(b), resp.StatusCode
}

// Status is the daemon's /status now.
func (p *Pipeline) Status() Status {
	p.t.Helper()
	body, code := p.Get("/status")
	if code == 0 {
		return Status{Unavailable: true}
	}
	var s Status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		p.t.Fatalf("/status answers %d, %.200q: %v", code, body, err)
	}
	return s
}

// State waits until the daemon is in one of the states.
func (p *Pipeline) State(limit time.Duration, states ...string) Status {
	p.t.Helper()
	var s Status
	if !Poll(limit, func() bool {
		s = p.Status()
		for _, want := range states {
			if s.State == want {
				return true
			}
		}
		return !p.Running()
	}) || !p.Running() {
		p.t.Fatalf("pipeline %s: state %q (%s), running: %t, after %v; want %v\n%s",
			p.Name, s.State, s.Reason, p.Running(), limit, states, p.LogTail(15))
	}
	return s
}

// CPU is the user and system time that a process has used so far.
func CPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11], &user); err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(fields[12], &system); err != nil {
		return 0, err
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	return time.Duration(user+system) * tick, nil
}
