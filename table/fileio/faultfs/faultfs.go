// Package faultfs makes a store misbehave by rules, for tests: whatever is built
// on fileio must end with the right rows whichever call fails, and whether it
// fails before or after it was done.
//
// A rule is a line of text:
//
//	OP GLOB: FAULT [err=CLASS] [nth=N] [times=N] [p=0.1] [delay=10ms]
//
// OP is exclusive, put, replace, create, close (of a file being created), write
// (to it), read, open, readat, stat, list, remove, or * for all. GLOB is matched
// against the whole path, or the last part of it if the glob has no slash; *
// stands for anything, slashes too. FAULT is one of
//
//	fail        nothing is done; err is unavailable unless said
//	fail-after  it is done, then the error; err is unknown unless said
//	enospc      nothing is done, the disk is full
//	partial     write: half of the bytes go through, then fail
//	stale       read, open, stat, list: what was there before the last write
//	crash       nothing is done, and every later call fails: the process died
//	crash-after it is done, and every later call fails
//	slow        it is done after delay
//
// err is unavailable, unknown, denied, exists, changed, notexist or plain. A rule
// fires at its nth match (default 1) and the times-1 after it (default 1; 0: all
// later ones), each with probability p.
package faultfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// ErrInjected is wrapped by each error that a rule makes.
var ErrInjected = errors.New("injected")

// FS is a store with faults. It is safe for concurrent use.
type FS struct {
	under fileio.FS

	mu      sync.Mutex
	rules   []*rule
	rng     *rand.Rand
	dead    bool
	calls   []string
	before  func(op, path string)
	earlier map[string]*earlier
}

// earlier is what a path held before its last write.
type earlier struct {
	data   []byte
	exists bool
}

type rule struct {
	text  string
	op    string
	glob  *regexp.Regexp
	whole bool // the glob is of whole paths
	fault string
	err   error
	nth   int
	times int
	p     float64
	delay time.Duration
	seen  int
	fired int
}

// New puts faults in front of a store.
func New(under fileio.FS, rules ...string) (*FS, error) {
	f := &FS{under: under, rng: rand.New(rand.NewPCG(1, 1)), earlier: map[string]*earlier{}}
	return f, f.Add(rules...)
}

// Add adds rules. The first that matches a call and fires decides.
func (f *FS) Add(rules ...string) error {
	for _, text := range rules {
		r, err := parse(text)
		if err != nil {
			return fmt.Errorf("fault rule %q: %w", text, err)
		}
		f.mu.Lock()
		f.rules = append(f.rules, r)
		f.mu.Unlock()
	}
	return nil
}

// Seed makes rules with p= repeatable.
func (f *FS) Seed(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rng = rand.New(rand.NewPCG(seed, 1))
}

// Clear drops all rules and wakes the dead.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.dead = nil, false
}

// Before is called before each call of the store, without locks held, so that it
// may block or do things meanwhile. It must be set before the store is used.
func (f *FS) Before(fn func(op, path string)) { f.before = fn }

// Fired tells how often rules have fired.
func (f *FS) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n int
	for _, r := range f.rules {
		n += r.fired
	}
	return n
}

// Calls lists what was called so far as "op path", and forgets it.
func (f *FS) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	f.calls = nil
	return c
}

var ops = []string{"exclusive", "put", "replace", "create", "close", "write", "read", "open", "readat", "stat", "list", "remove", "*"}

var classes = map[string]error{
	"unavailable": fileio.ErrUnavailable,
	"unknown":     fileio.ErrUnknown,
	"denied":      fileio.ErrDenied,
	"exists":      fileio.ErrExists,
	"changed":     fileio.ErrChanged,
	"notexist":    fileio.ErrNotExist,
	"plain":       errors.New("something else"),
}

func parse(text string) (*rule, error) {
	head, tail, ok := strings.Cut(text, ": ")
	if !ok {
		return nil, errors.New("no colon")
	}
	op, glob, ok := strings.Cut(head, " ")
	if !ok || !slices.Contains(ops, op) {
		return nil, fmt.Errorf("operation %q is none of %v", op, ops)
	}
	words := strings.Fields(tail)
	if len(words) == 0 {
		return nil, errors.New("no fault")
	}
	r := &rule{text: text, op: op, fault: words[0], nth: 1, times: 1, p: 1, whole: strings.Contains(glob, "/")}
	var err error
	if r.glob, err = regexp.Compile("^" + strings.ReplaceAll(regexp.QuoteMeta(glob), `\*`, ".*") + "$"); err != nil {
		return nil, err
	}
	switch r.fault {
	case "fail", "partial", "crash", "enospc":
		r.err = fileio.ErrUnavailable
	case "fail-after", "crash-after":
		r.err = fileio.ErrUnknown
	case "stale", "slow":
	default:
		return nil, fmt.Errorf("fault %q is not known", r.fault)
	}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "err":
			if r.err, ok = classes[value]; !ok {
				return nil, fmt.Errorf("err %q is none of %v", value, slices.Sorted(maps.Keys(classes)))
			}
		case "nth":
			r.nth, err = strconv.Atoi(value)
		case "times":
			r.times, err = strconv.Atoi(value)
		case "p":
			r.p, err = strconv.ParseFloat(value, 64)
		case "delay":
			r.delay, err = time.ParseDuration(value)
		default:
			return nil, fmt.Errorf("%q is not known", key)
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rule) matches(op, path string) bool {
	if r.op != "*" && r.op != op {
		return false
	}
	if !r.whole {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	return r.glob.MatchString(path)
}

// enter gives the rule that fires, nil if none does.
func (f *FS) enter(ctx context.Context, op string, paths ...string) (*rule, error) {
	if f.before != nil {
		for _, p := range paths {
			f.before(op, p)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range paths {
		f.calls = append(f.calls, op+" "+p)
	}
	if f.dead {
		return nil, fmt.Errorf("%s %s: %w: %w: the process is dead", op, paths, fileio.ErrUnavailable, ErrInjected)
	}
	var hit *rule
	for _, r := range f.rules {
		if !slices.ContainsFunc(paths, func(p string) bool { return r.matches(op, p) }) {
			continue
		}
		r.seen++
		if hit != nil || r.seen < r.nth || r.times > 0 && r.seen >= r.nth+r.times || f.rng.Float64() >= r.p {
			continue
		}
		r.fired++
		hit = r
	}
	if hit == nil {
		return nil, nil
	}
	if hit.delay > 0 {
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(hit.delay):
		}
		f.mu.Lock()
	}
	switch hit.fault {
	case "crash":
		f.dead = true
		fallthrough
	case "fail":
		return nil, hit.error(op, paths)
	case "enospc":
		return nil, fmt.Errorf("%s %s: %w: %w: %w", op, paths, hit.err, ErrInjected, syscall.ENOSPC)
	}
	return hit, nil
}

func (r *rule) error(op string, paths []string) error {
	return fmt.Errorf("%s %s: %w: %w by %q", op, paths, r.err, ErrInjected, r.text)
}

// leave turns the result of what was done into what the rule says.
func (f *FS) leave(r *rule, err error, op string, paths ...string) error {
	if r == nil || err != nil {
		return err
	}
	switch r.fault {
	case "crash-after":
		f.mu.Lock()
		f.dead = true
		f.mu.Unlock()
		return r.error(op, paths)
	case "fail-after":
		return r.error(op, paths)
	}
	return nil
}

// remember keeps what a path holds now, for stale reads after it was written.
func (f *FS) remember(ctx context.Context, path string) {
	f.mu.Lock()
	wanted := slices.ContainsFunc(f.rules, func(r *rule) bool { return r.fault == "stale" })
	f.mu.Unlock()
	if !wanted {
		return
	}
	data, _, err := f.under.Read(ctx, path)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.earlier[path] = &earlier{data, err == nil}
}

// past is what a stale reply is made of; nil if the path was not written.
func (f *FS) past(r *rule, path string) *earlier {
	if r == nil || r.fault != "stale" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.earlier[path]
}

func (f *FS) CreateExclusive(ctx context.Context, path string, data []byte) error {
	r, err := f.enter(ctx, "exclusive", path)
	if err != nil {
		return err
	}
	f.remember(ctx, path)
	return f.leave(r, f.under.CreateExclusive(ctx, path, data), "exclusive", path)
}

func (f *FS) Put(ctx context.Context, path string, data []byte) error {
	r, err := f.enter(ctx, "put", path)
	if err != nil {
		return err
	}
	f.remember(ctx, path)
	return f.leave(r, f.under.Put(ctx, path, data), "put", path)
}

func (f *FS) Replace(ctx context.Context, path string, data []byte, version string) (string, error) {
	r, err := f.enter(ctx, "replace", path)
	if err != nil {
		return "", err
	}
	f.remember(ctx, path)
	next, err := f.under.Replace(ctx, path, data, version)
	if err := f.leave(r, err, "replace", path); err != nil {
		return "", err
	}
	return next, nil
}

func (f *FS) Read(ctx context.Context, path string) ([]byte, string, error) {
	r, err := f.enter(ctx, "read", path)
	if err != nil {
		return nil, "", err
	}
	if e := f.past(r, path); e != nil {
		if !e.exists {
			return nil, "", fmt.Errorf("read %s: %w: stale", path, fileio.ErrNotExist)
		}
		return slices.Clone(e.data), "stale", nil
	}
	data, version, err := f.under.Read(ctx, path)
	if err := f.leave(r, err, "read", path); err != nil {
		return nil, "", err
	}
	return data, version, nil
}

func (f *FS) Open(ctx context.Context, path string) (fileio.File, error) {
	r, err := f.enter(ctx, "open", path)
	if err != nil {
		return nil, err
	}
	if e := f.past(r, path); e != nil {
		if !e.exists {
			return nil, fmt.Errorf("open %s: %w: stale", path, fileio.ErrNotExist)
		}
		return staleFile{strings.NewReader(string(e.data))}, nil
	}
	file, err := f.under.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := f.leave(r, nil, "open", path); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &faultFile{File: file, fs: f, ctx: ctx, path: path}, nil
}

type staleFile struct{ *strings.Reader }

func (staleFile) Close() error  { return nil }
func (s staleFile) Size() int64 { return s.Reader.Size() }

type faultFile struct {
	fileio.File
	fs   *FS
	ctx  context.Context
	path string
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if _, err := f.fs.enter(f.ctx, "readat", f.path); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) Read(p []byte) (int, error) {
	if _, err := f.fs.enter(f.ctx, "readat", f.path); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

func (f *FS) Stat(ctx context.Context, path string) (fileio.Info, error) {
	r, err := f.enter(ctx, "stat", path)
	if err != nil {
		return fileio.Info{}, err
	}
	info, err := f.under.Stat(ctx, path)
	if e := f.past(r, path); e != nil {
		if !e.exists {
			return fileio.Info{}, fmt.Errorf("stat %s: %w: stale", path, fileio.ErrNotExist)
		}
		info.Path, info.Size, err = path, int64(len(e.data)), nil
	}
	return info, f.leave(r, err, "stat", path)
}

func (f *FS) List(ctx context.Context, folder string, fn func(fileio.Info) error) error {
	r, err := f.enter(ctx, "list", folder)
	if err != nil {
		return err
	}
	return f.leave(r, f.under.List(ctx, folder, func(i fileio.Info) error {
		if e := f.past(r, i.Path); e != nil {
			if !e.exists {
				return nil
			}
			i.Size = int64(len(e.data))
		}
		return fn(i)
	}), "list", folder)
}

func (f *FS) Remove(ctx context.Context, paths ...string) error {
	r, err := f.enter(ctx, "remove", paths...)
	if err != nil {
		return err
	}
	return f.leave(r, f.under.Remove(ctx, paths...), "remove", paths...)
}

func (f *FS) Create(ctx context.Context, path string) (fileio.Writer, error) {
	r, err := f.enter(ctx, "create", path)
	if err != nil {
		return nil, err
	}
	w, err := f.under.Create(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := f.leave(r, nil, "create", path); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	return &faultWriter{Writer: w, fs: f, ctx: ctx, path: path}, nil
}

type faultWriter struct {
	fileio.Writer
	fs   *FS
	ctx  context.Context
	path string
	err  error
}

func (w *faultWriter) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	r, err := w.fs.enter(w.ctx, "write", w.path)
	if err != nil {
		w.err = err
		return 0, err
	}
	if r != nil && r.fault == "partial" {
		n, err := w.Writer.Write(p[:len(p)/2])
		w.err = errors.Join(err, r.error("write", []string{w.path}))
		return n, w.err
	}
	n, err := w.Writer.Write(p)
	w.err = w.fs.leave(r, err, "write", w.path)
	return n, w.err
}

func (w *faultWriter) Close() error {
	if w.err != nil {
		return errors.Join(w.err, w.Writer.Abort())
	}
	r, err := w.fs.enter(w.ctx, "close", w.path)
	if err != nil {
		return errors.Join(err, w.Writer.Abort())
	}
	return w.fs.leave(r, w.Writer.Close(), "close", w.path)
}

var _ fileio.FS = (*FS)(nil)
