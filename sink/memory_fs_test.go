package sink

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// memoryFS is a store in memory. fail may refuse an operation on a path.
type memoryFS struct {
	mu    sync.Mutex
	files map[string][]byte
	vers  map[string]int
	open  int // writers neither closed nor aborted
	fail  func(op, path string) error
}

func newMemoryFS() *memoryFS {
	return &memoryFS{files: map[string][]byte{}, vers: map[string]int{}}
}

func (m *memoryFS) refused(op, path string) error {
	if m.fail != nil {
		return m.fail(op, path)
	}
	return nil
}

type memoryWriter struct {
	fs   *memoryFS
	path string
	bytes.Buffer
	done bool
}

func (w *memoryWriter) Close() error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if w.done {
		return fmt.Errorf("%s is closed", w.path)
	}
	if err := w.fs.refused("close", w.path); err != nil {
		return err
	}
	if _, ok := w.fs.files[w.path]; ok {
		return fmt.Errorf("%s: %w", w.path, fileio.ErrExists)
	}
	w.fs.files[w.path] = bytes.Clone(w.Bytes())
	w.done = true
	w.fs.open--
	return nil
}

func (w *memoryWriter) Abort() error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if !w.done {
		w.done = true
		w.fs.open--
	}
	return nil
}

func (m *memoryFS) Create(_ context.Context, path string) (fileio.Writer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refused("create", path); err != nil {
		return nil, err
	}
	m.open++
	return &memoryWriter{fs: m, path: path}, nil
}

func (m *memoryFS) CreateExclusive(_ context.Context, path string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[path]; ok {
		return fmt.Errorf("%s: %w", path, fileio.ErrExists)
	}
	m.files[path] = bytes.Clone(data)
	return nil
}

func (m *memoryFS) Put(_ context.Context, path string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[path] = bytes.Clone(data)
	m.vers[path]++
	return nil
}

func (m *memoryFS) Replace(_ context.Context, path string, data []byte, version string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := ""
	if _, ok := m.files[path]; ok {
		have = strconv.Itoa(m.vers[path])
	}
	if have != version {
		return "", fmt.Errorf("%s: %w", path, fileio.ErrChanged)
	}
	m.files[path] = bytes.Clone(data)
	m.vers[path]++
	return strconv.Itoa(m.vers[path]), nil
}

func (m *memoryFS) Read(_ context.Context, path string) ([]byte, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.files[path]
	if !ok {
		return nil, "", fmt.Errorf("%s: %w", path, fileio.ErrNotExist)
	}
	return bytes.Clone(b), strconv.Itoa(m.vers[path]), nil
}

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error  { return nil }
func (f memoryFile) Size() int64 { return f.Reader.Size() }

func (m *memoryFS) Open(ctx context.Context, path string) (fileio.File, error) {
	b, _, err := m.Read(ctx, path)
	return memoryFile{bytes.NewReader(b)}, err
}

func (m *memoryFS) Stat(ctx context.Context, path string) (fileio.Info, error) {
	b, _, err := m.Read(ctx, path)
	return fileio.Info{Path: path, Size: int64(len(b)), ModTime: time.Now()}, err
}

func (m *memoryFS) List(_ context.Context, folder string, fn func(fileio.Info) error) error {
	for _, p := range m.paths(folder) {
		if err := fn(fileio.Info{Path: p, ModTime: time.Now()}); err != nil {
			return err
		}
	}
	return nil
}

func (m *memoryFS) paths(folder string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Sorted(maps.Keys(m.files))
	return slices.DeleteFunc(all, func(p string) bool { return !strings.HasPrefix(p, folder) })
}

func (m *memoryFS) Remove(_ context.Context, paths ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range paths {
		delete(m.files, p)
	}
	return nil
}
