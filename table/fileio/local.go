package fileio

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The lake holds what the database holds: its group may read, others nothing.
const (
	fileMode   = 0o640
	folderMode = 0o750
)

// tempPrefix begins the names of files that are not finished. Readers of lakes
// skip names with a leading dot, and so does List. What a crash leaves under
// such a name is never named by anything.
const tempPrefix = ".lakesyncd-tmp-"

// local is the disk of this host. A file appears under its name only when it is
// whole and on disk: it is written under a temporary name in the same folder
// and synced, then gets its name by link(2), which fails if the name is taken
// (or by rename(2) where overwriting is asked for), then the folder is synced.
// O_EXCL alone would not do: a crash would leave half a file that blocks the
// name for ever.
//
// Files are made with mode 0640, folders with 0750, less the umask.
type local struct {
	observer
}

func newLocal(opts Options) *local {
	return &local{observer: newObserver("file", opts)}
}

// localPath takes everything after the scheme as it is: a percent sign is a
// percent sign, as in Hadoop's paths.
func localPath(uri string) (string, error) {
	p, ok := strings.CutPrefix(uri, "file:")
	if !ok {
		return "", fmt.Errorf("%q is not a file: URI", uri)
	}
	if rest, ok := strings.CutPrefix(p, "//"); ok {
		p = rest
		if !strings.HasPrefix(p, "/") {
			return "", fmt.Errorf("%q names a host: write file:///path", uri)
		}
	}
	if !strings.HasPrefix(p, "/") {
		return "", fmt.Errorf("%q is not absolute: write file:///path", uri)
	}
	if err := checkKey(p[1:]); err != nil {
		return "", fmt.Errorf("%q contains %w", uri, err)
	}
	return p, nil
}

// localError names what was being done to which path, and classifies.
func localError(verb, path string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrUnknown) {
		return fmt.Errorf("%s %s: %w", verb, path, err)
	}
	// The os package repeats verb and path; only the cause is news.
	cause := err
	var pe *os.PathError
	var le *os.LinkError
	var se *os.SyscallError
	switch {
	case errors.As(err, &pe):
		cause = pe.Err
	case errors.As(err, &le):
		cause = le.Err
	case errors.As(err, &se):
		cause = se.Err
	}
	var class error
	switch {
	case errors.Is(cause, syscall.ENOENT):
		return fmt.Errorf("%s %s: %w", verb, path, ErrNotExist)
	case errors.Is(cause, syscall.EEXIST):
		return fmt.Errorf("%s %s: %w", verb, path, ErrExists)
	case errors.Is(cause, syscall.ENOSPC), errors.Is(cause, syscall.EDQUOT),
		errors.Is(cause, syscall.EIO), errors.Is(cause, syscall.ESTALE),
		errors.Is(cause, syscall.ENFILE), errors.Is(cause, syscall.EMFILE),
		errors.Is(cause, syscall.ENOMEM), errors.Is(cause, syscall.ETIMEDOUT),
		errors.Is(cause, syscall.EBUSY), errors.Is(cause, syscall.EAGAIN):
		class = ErrUnavailable
	case errors.Is(cause, syscall.EACCES), errors.Is(cause, syscall.EPERM),
		errors.Is(cause, syscall.EROFS), errors.Is(cause, syscall.ENOTDIR),
		errors.Is(cause, syscall.EISDIR), errors.Is(cause, syscall.ENAMETOOLONG),
		errors.Is(cause, syscall.EFBIG), errors.Is(cause, syscall.ELOOP):
		class = ErrDenied
	default:
		return fmt.Errorf("%s %s: %w", verb, path, cause)
	}
	return fmt.Errorf("%s %s: %w: %w", verb, path, class, cause)
}

// makeFolder makes a folder and what is missing above it, durably: a new folder
// is an entry in its parent, which must be synced.
func makeFolder(dir string) error {
	err := os.Mkdir(dir, folderMode)
	if errors.Is(err, os.ErrNotExist) {
		if err = makeFolder(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, folderMode)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(dir))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	// Some file systems cannot sync a folder and say EINVAL; there is nothing
	// more that one could do there.
	if errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// temporary makes a new unfinished file beside name, and the folder if needed.
func temporary(name string) (*os.File, error) {
	dir := filepath.Dir(name)
	temp := filepath.Join(dir, tempPrefix+rand.Text())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeFolder(dir); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	}
	return f, err
}

// staged writes data to a temporary file beside name and syncs it.
func staged(name string, data []byte) (temp string, err error) {
	f, err := temporary(name)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// publish gives a synced temporary file its name if that is free. The temporary
// name is gone afterwards, whatever happened.
func publish(temp, name string) error {
	defer os.Remove(temp)
	err := os.Link(temp, name)
	if errors.Is(err, os.ErrExist) {
		// A network file system may repeat the request after a lost reply and
		// then find our own link.
		a, errA := os.Lstat(temp)
		b, errB := os.Lstat(name)
		if errA != nil || errB != nil || !os.SameFile(a, b) {
			return err
		}
		err = nil
	}
	if err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(name)); err != nil {
		return fmt.Errorf("%w: sync of the folder: %w", ErrUnknown, err)
	}
	return nil
}

func (l *local) CreateExclusive(ctx context.Context, path string, data []byte) (err error) {
	defer l.count(opPut, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	// Spares the losers a sync; link decides.
	if _, err := os.Lstat(name); err == nil {
		return fmt.Errorf("create %s: %w", path, ErrExists)
	}
	temp, err := staged(name, data)
	if err != nil {
		return localError("create", path, err)
	}
	return localError("create", path, publish(temp, name))
}

func (l *local) Put(ctx context.Context, path string, data []byte) (err error) {
	defer l.count(opPut, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return fmt.Errorf("put %s: %w", path, err)
	}
	return localError("put", path, overwrite(name, data))
}

func overwrite(name string, data []byte) error {
	temp, err := staged(name, data)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, name); err != nil {
		_ = os.Remove(temp)
		return err
	}
	if err := syncFolder(filepath.Dir(name)); err != nil {
		return fmt.Errorf("%w: sync of the folder: %w", ErrUnknown, err)
	}
	return nil
}

// localVersion is the content's: a file that holds again what it held is the
// same version.
func localVersion(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

func (l *local) Replace(ctx context.Context, path string, data []byte, version string) (_ string, err error) {
	defer l.count(opPut, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return "", fmt.Errorf("replace %s: %w", path, err)
	}
	if version == "" {
		temp, err := staged(name, data)
		if err == nil {
			err = publish(temp, name)
		}
		if errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("replace %s: %w", path, ErrChanged)
		}
		if err != nil {
			return "", localError("replace", path, err)
		}
		return localVersion(data), nil
	}
	unlock, err := lockFolder(ctx, filepath.Dir(name))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("replace %s: it is gone: %w", path, ErrChanged)
		}
		return "", localError("replace", path, err)
	}
	defer unlock()
	have, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("replace %s: it is gone: %w", path, ErrChanged)
	}
	if err != nil {
		return "", localError("replace", path, err)
	}
	if localVersion(have) != version {
		return "", fmt.Errorf("replace %s: %w", path, ErrChanged)
	}
	if err := overwrite(name, data); err != nil {
		return "", localError("replace", path, err)
	}
	return localVersion(data), nil
}

// lockFolder keeps other Replace calls, of any process on this host, out of a
// folder. Holders are quick, but a stopped process could hold it for ever, so
// the wait ends with ctx.
func lockFolder(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = d.Close()
			return nil, fmt.Errorf("lock folder: %w", err)
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (l *local) Read(ctx context.Context, path string) (data []byte, version string, err error) {
	defer l.count(opGet, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	}
	data, err = os.ReadFile(name)
	if err != nil {
		return nil, "", localError("read", path, notExist(err))
	}
	return data, localVersion(data), nil
}

// notExist: below a file there is nothing.
func notExist(err error) error {
	if errors.Is(err, syscall.ENOTDIR) {
		return syscall.ENOENT
	}
	return err
}

func (l *local) Open(ctx context.Context, path string) (_ File, err error) {
	defer l.count(opGet, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, localError("open", path, notExist(err))
	}
	fi, err := f.Stat()
	if err == nil && fi.IsDir() {
		err = syscall.EISDIR
	}
	if err != nil {
		_ = f.Close()
		return nil, localError("open", path, err)
	}
	return &localFile{File: f, path: path, size: fi.Size()}, nil
}

type localFile struct {
	*os.File
	path string
	size int64
}

func (f *localFile) Size() int64 { return f.size }

func (f *localFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	return n, f.wrap(err)
}

func (f *localFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	return n, f.wrap(err)
}

// wrap leaves io.EOF as it is: readers compare it by value.
func (f *localFile) wrap(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return localError("read", f.path, err)
}

func (l *local) Stat(ctx context.Context, path string) (_ Info, err error) {
	defer l.count(opHead, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return Info{}, fmt.Errorf("stat %s: %w", path, err)
	}
	fi, err := os.Stat(name)
	if err == nil && fi.IsDir() {
		// As on an object store, a folder is no file.
		err = syscall.ENOENT
	}
	if err != nil {
		return Info{}, localError("stat", path, notExist(err))
	}
	return Info{Path: path, Size: fi.Size(), ModTime: fi.ModTime()}, nil
}

func (l *local) List(ctx context.Context, folder string, fn func(Info) error) (err error) {
	defer l.count(opList, &err)
	folder = strings.TrimRight(folder, "/")
	name, err := l.enter(ctx, folder)
	if err != nil {
		return fmt.Errorf("list %s: %w", folder, err)
	}
	return l.walk(ctx, name, folder, fn)
}

// walk goes in the order of whole paths, as object stores list them: a folder
// sorts as its name with a slash.
func (l *local) walk(ctx context.Context, dir, uri string, fn func(Info) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("list %s: %w", uri, err)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(notExist(err), syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return localError("list", uri, err)
	}
	key := func(e os.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(key(a), key(b)) })
	for _, e := range entries {
		if e.IsDir() {
			if err := l.walk(ctx, filepath.Join(dir, e.Name()), uri+"/"+e.Name(), fn); err != nil {
				return err
			}
			continue
		}
		if strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		fi, err := os.Stat(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return localError("list", uri+"/"+e.Name(), err)
		}
		if !fi.Mode().IsRegular() {
			continue
		}
		if err := fn(Info{Path: uri + "/" + e.Name(), Size: fi.Size(), ModTime: fi.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

func (l *local) Remove(ctx context.Context, paths ...string) (err error) {
	defer l.count(opDelete, &err)
	var errs []error
	for _, path := range paths {
		name, err := l.enter(ctx, path)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", path, err))
			continue
		}
		err = syscall.Unlink(name)
		if err != nil && !errors.Is(notExist(err), syscall.ENOENT) {
			errs = append(errs, localError("remove", path, err))
		}
	}
	return errors.Join(errs...)
}

func (l *local) Create(ctx context.Context, path string) (_ Writer, err error) {
	defer l.count(opPut, &err)
	name, err := l.enter(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", path, err)
	}
	f, err := temporary(name)
	if err != nil {
		return nil, localError("create", path, err)
	}
	return &localWriter{ctx: ctx, f: f, name: name, path: path}, nil
}

func (l *local) enter(ctx context.Context, path string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return localPath(path)
}

// localWriter is a file under its temporary name.
type localWriter struct {
	ctx        context.Context // of Create: it bounds the whole upload
	f          *os.File
	name, path string
	done       bool
	err        error // of the first write that did not succeed
}

func (w *localWriter) Write(p []byte) (int, error) {
	if w.done {
		return 0, fmt.Errorf("write %s: %w", w.path, os.ErrClosed)
	}
	if w.err != nil {
		return 0, w.err
	}
	if err := w.ctx.Err(); err != nil {
		return 0, fmt.Errorf("write %s: %w", w.path, err)
	}
	n, err := w.f.Write(p)
	w.err = localError("write", w.path, err)
	return n, w.err
}

func (w *localWriter) Close() error {
	if w.done {
		return fmt.Errorf("close %s: %w", w.path, os.ErrClosed)
	}
	if err := errors.Join(w.err, w.ctx.Err()); err != nil {
		return errors.Join(fmt.Errorf("close %s: %w", w.path, err), w.Abort())
	}
	w.done = true
	err := w.f.Sync()
	err = errors.Join(err, w.f.Close())
	if err != nil {
		_ = os.Remove(w.f.Name())
		return localError("close", w.path, err)
	}
	return localError("close", w.path, publish(w.f.Name(), w.name))
}

func (w *localWriter) Abort() error {
	if w.done {
		return nil
	}
	w.done = true
	err := errors.Join(w.f.Close(), os.Remove(w.f.Name()))
	return localError("abort", w.path, err)
}
