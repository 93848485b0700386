package sink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// upload is where a file's bytes go. A small file stays in memory until it is
// whole, so that storing it can be tried again; a larger one is streamed.
type upload struct {
	ctx  context.Context
	fs   fileio.FS
	path string
	size int64

	pieces [][]byte
	pool   *piecePool
	w      fileio.Writer // streaming
}

// piecePool keeps the large pieces of uploads that have ended.
type piecePool struct {
	mu   sync.Mutex
	free [][]byte
}

const (
	pieceSize  = 256 << 10
	sparePiece = 16
)

// take returns an empty piece for a file that is size bytes long so far.
func (p *piecePool) take(size int64) []byte {
	if size < pieceSize {
		return make([]byte, 0, max(4<<10, size))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, 0, pieceSize)
}

func (p *piecePool) give(pieces [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range pieces {
		if cap(b) == pieceSize && len(p.free) < sparePiece {
			p.free = append(p.free, b[:0])
		}
	}
}

const (
	// streamFrom is the size at which a file is no longer held in memory.
	streamFrom = 8 << 20
	// streamMemory is what an open stream to an object store holds.
	streamMemory = 8 << 20
	// storeRetry is how long storing a small file is tried again.
	storeRetry = 20 * time.Second
)

func (u *upload) memory() int64 {
	if u.w != nil {
		return streamMemory
	}
	var n int64
	for _, b := range u.pieces {
		n += int64(cap(b))
	}
	return n
}

func (u *upload) Write(p []byte) (int, error) {
	before := u.size
	u.size += int64(len(p))
	if u.w == nil && u.size <= streamFrom {
		u.hold(p, before)
		return len(p), nil
	}
	if u.w == nil {
		w, err := u.fs.Create(u.ctx, u.path)
		if err != nil {
			return 0, err
		}
		u.w = w
		for _, b := range u.pieces {
			if _, err := w.Write(b); err != nil {
				return 0, err
			}
		}
		u.forget()
	}
	return u.w.Write(p)
}

// hold copies p into memory.
func (u *upload) hold(p []byte, size int64) {
	for len(p) > 0 {
		n := len(u.pieces)
		if n == 0 || len(u.pieces[n-1]) == cap(u.pieces[n-1]) {
			u.pieces = append(u.pieces, u.pool.take(size))
			n++
		}
		last := u.pieces[n-1]
		m := min(len(p), cap(last)-len(last))
		u.pieces[n-1] = append(last, p[:m]...)
		p, size = p[m:], size+int64(m)
	}
}

func (u *upload) forget() {
	u.pool.give(u.pieces)
	u.pieces = nil
}

func (u *upload) abort() {
	if u.w != nil {
		_ = u.w.Abort()
	}
	u.forget()
}

// finish makes the file durable.
func (u *upload) finish() error {
	if u.w != nil {
		err := u.w.Close()
		if err != nil {
			u.abort()
		}
		return err
	}
	deadline := time.Now().Add(storeRetry)
	for attempt := 0; ; attempt++ {
		err := u.put()
		if err == nil {
			return nil
		}
		if attempt > 0 && errors.Is(err, fileio.ErrExists) && u.there() {
			return nil // a try before this one had succeeded
		}
		again := errors.Is(err, fileio.ErrUnavailable) || errors.Is(err, fileio.ErrUnknown)
		if !again || time.Now().After(deadline) {
			return err
		}
		pause := time.NewTimer(min(3*time.Second, 100*time.Millisecond<<min(attempt, 5)))
		select {
		case <-pause.C:
		case <-u.ctx.Done():
			pause.Stop()
			return err
		}
	}
}

func (u *upload) put() error {
	w, err := u.fs.Create(u.ctx, u.path)
	if err != nil {
		return err
	}
	for _, b := range u.pieces {
		if err == nil {
			_, err = w.Write(b)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		_ = w.Abort()
	}
	return err
}

// there reports whether the path, which nobody else uses, holds the file.
func (u *upload) there() bool {
	info, err := u.fs.Stat(u.ctx, u.path)
	return err == nil && info.Size == u.size
}
