package checkpoint

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// LeaseOptions tune a Lease. The zero value is fine.
type LeaseOptions struct {
	Renew  time.Duration // between renewals; default 10s
	Misses int           // missed renewals after which a lease is taken over; default 3
	Log    *slog.Logger  // default: nothing is logged
}

// Lease keeps a second instance of a pipeline out. It is a courtesy that makes
// mistakes cheap: what makes them harmless is that record numbers are created
// once and that tables refuse a mark of an older epoch.
//
// On a local disk it is flock(2) on FOLDER/lock, which ends with the process. A
// disk shared by a network file system is not supported: flock may hold on one
// host only.
//
// Elsewhere it is FOLDER/lease.json, rewritten at each renewal on condition that
// nobody else rewrote it. A lease is taken over when it did not change for three
// renewals by the watcher's own clock: clocks of two hosts are never compared.
type Lease struct {
	lost    chan struct{}
	stop    context.CancelFunc
	stopped chan struct{}
	release func(ctx context.Context) error

	mu  sync.Mutex
	err error
}

// Acquire takes the lease of the pipeline that keeps its records in folder. owner
// tells people who holds it, such as "host/pid".
//
// ErrFenced: another instance holds it. On a local disk that is known at once,
// elsewhere after one renewal.
func Acquire(ctx context.Context, fs fileio.FS, folder, owner string, opts LeaseOptions) (*Lease, error) {
	if opts.Renew <= 0 {
		opts.Renew = 10 * time.Second
	}
	if opts.Misses <= 0 {
		opts.Misses = 3
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if dir, ok := fileio.LocalPath(folder); ok {
		return acquireLock(dir, owner, opts)
	}
	return acquireObject(ctx, fs, fileio.Join(folder, leaseName), owner, opts)
}

// Lost is closed when another instance has taken over; Err says which. A store
// that is down loses no lease.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Err is nil until the lease is lost, and wraps ErrFenced then.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Release gives the lease up, so that the next instance need not wait.
func (l *Lease) Release(ctx context.Context) error {
	l.stop()
	<-l.stopped
	if l.Err() != nil {
		return nil
	}
	return l.release(ctx)
}

// keep runs check at each renewal until Release. An error that wraps ErrFenced
// loses the lease, others are tried again.
func (l *Lease) keep(opts LeaseOptions, check func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	l.lost, l.stop, l.stopped = make(chan struct{}), cancel, make(chan struct{})
	// Release stops it.
	go func() {
		defer close(l.stopped)
		tick := time.NewTicker(opts.Renew)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := check(ctx)
			switch {
			case err == nil || ctx.Err() != nil:
			case errors.Is(err, ErrFenced):
				l.mu.Lock()
				l.err = err
				l.mu.Unlock()
				close(l.lost)
				return
			default:
				opts.Log.Warn("lease was not renewed", "err", err)
			}
		}
	}()
}

func acquireLock(dir, owner string, opts LeaseOptions) (*Lease, error) {
	name := filepath.Join(dir, lockName)
	fail := func(err error) error {
		class := fileio.ErrUnavailable
		if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOTDIR) {
			class = fileio.ErrDenied
		}
		return fmt.Errorf("lock %s: %w: %w", name, class, err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fail(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fail(err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		who, _ := io.ReadAll(io.LimitReader(f, 1000))
		_ = f.Close()
		return nil, fmt.Errorf("lock %s is held by %s: %w", name, strings.TrimSpace(string(who)), ErrFenced)
	}
	if err != nil {
		_ = f.Close()
		return nil, fail(err)
	}
	// For people; a full disk must not keep us from holding the lock.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(owner+"\n"), 0)
	}
	l := &Lease{release: func(context.Context) error { return f.Close() }}
	l.keep(opts, func(context.Context) error {
		// Another instance could lock a new file if ours was removed.
		ours, err := f.Stat()
		if err != nil {
			return err
		}
		there, err := os.Stat(name)
		if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(ours, there) {
			return fmt.Errorf("lock %s was removed or replaced: %w", name, ErrFenced)
		}
		return err
	})
	return l, nil
}

// leaseFile is lease.json.
type leaseFile struct {
	Owner string `json:"owner"`
	// Holder is of one acquisition; with Renewal it makes each content unique.
	Holder   string  `json:"holder"`
	Renewal  int64   `json:"renewal"`
	Released bool    `json:"released,omitempty"`
	Process  process `json:"process,omitzero"`
}

func (f leaseFile) bytes() []byte {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return append(b, '\n')
}

func acquireObject(ctx context.Context, fs fileio.FS, path, owner string, opts LeaseOptions) (*Lease, error) {
	mine := leaseFile{Owner: owner, Holder: rand.Text(), Process: thisProcess()}
	version, err := waitForLease(ctx, fs, path, opts)
	if err != nil {
		return nil, err
	}
	h := &holder{fs: fs, path: path, file: mine}
	if h.version, err = h.write(ctx, version); err != nil {
		return nil, err
	}
	l := &Lease{release: h.release}
	l.keep(opts, func(ctx context.Context) error {
		// A hanging request must not eat the next renewal.
		ctx, cancel := context.WithTimeout(ctx, opts.Renew)
		defer cancel()
		return h.renew(ctx)
	})
	return l, nil
}

// waitForLease gives the version that may be replaced, "" if there is no lease.
func waitForLease(ctx context.Context, fs fileio.FS, path string, opts LeaseOptions) (string, error) {
	var first string
	var since time.Time
	for {
		data, version, err := fs.Read(ctx, path)
		if errors.Is(err, fileio.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		var other leaseFile
		if err := json.Unmarshal(data, &other); err != nil {
			return "", fmt.Errorf("lease %s: %w; remove the file if no other instance runs", path, err)
		}
		switch {
		case other.Released || other.Process.isDead():
			return version, nil
		case first == "":
			first, since = version, time.Now()
			opts.Log.Info("watching the lease of another instance", "owner", other.Owner, "path", path)
		case version != first:
			return "", fmt.Errorf("lease %s is held by %s: %w", path, other.Owner, ErrFenced)
		case time.Since(since) >= opts.Renew*time.Duration(opts.Misses):
			opts.Log.Warn("taking over a lease that was not renewed", "owner", other.Owner, "path", path, "elapsed", time.Since(since))
			return version, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("lease %s is held by %s: %w", path, other.Owner, ctx.Err())
		case <-time.After(opts.Renew / 4):
		}
	}
}

// holder is our side of lease.json. It is used by one goroutine at a time.
type holder struct {
	fs      fileio.FS
	path    string
	file    leaseFile
	version string
}

// write replaces a version by our next content and gives the version that it
// has. Whatever the store answers, what is there decides.
func (h *holder) write(ctx context.Context, version string) (string, error) {
	h.file.Renewal++
	data := h.file.bytes()
	for range 5 {
		next, err := h.fs.Replace(ctx, h.path, data, version)
		changed := errors.Is(err, fileio.ErrChanged)
		if err == nil || !changed && !errors.Is(err, fileio.ErrUnknown) {
			return next, err
		}
		have, there, rerr := h.fs.Read(ctx, h.path)
		if errors.Is(rerr, fileio.ErrNotExist) && changed {
			version = "" // removed by hand: whoever makes it first has it
			continue
		}
		if errors.Is(rerr, fileio.ErrNotExist) {
			return "", err // it may still arrive
		}
		if rerr != nil {
			return "", rerr
		}
		var found leaseFile
		_ = json.Unmarshal(have, &found) // what it cannot tell stays empty
		switch {
		case string(have) == string(data):
			return there, nil // ours did arrive
		case found.Holder == h.file.Holder:
			version = there // an earlier one of ours, whose reply was lost
		case changed || there != version:
			return "", fmt.Errorf("lease %s was taken by %s: %w", h.path, found.Owner, ErrFenced)
		default:
			return "", err // ours did not arrive yet
		}
	}
	return "", fmt.Errorf("lease %s: %w: it changes faster than we can write it", h.path, fileio.ErrUnavailable)
}

func (h *holder) renew(ctx context.Context) error {
	next, err := h.write(ctx, h.version)
	if err == nil {
		h.version = next
	}
	return err
}

func (h *holder) release(ctx context.Context) error {
	h.file.Released = true
	_, err := h.write(ctx, h.version)
	if errors.Is(err, ErrFenced) {
		return nil // nothing of ours is left to release
	}
	return err
}
