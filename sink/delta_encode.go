package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// stagedFile is one Parquet file on its way: durable after flush, visible to
// nobody before its delta is committed.
type stagedFile struct {
	part    *partition
	content table.Content
	path    string
	columns []fileColumn
	options writerOptions
	refers  string // position deletes: the data file
	ids     []int  // equality deletes: the key's field ids

	// Of the writing goroutine.
	rows    int64    // rows assigned to it; the encoder must write as many
	raw     int64    // their size in memory
	deleted []uint32 // positions of rows that died after sealing
	sorted  bool

	written atomic.Int64 // size so far, estimated
	encoded atomic.Int64 // how much of raw is in it
	dropped atomic.Bool  // nothing of it is wanted any more

	// Of the encoder, under its mutex where another goroutine reads it.
	fw     *fileWriter
	up     *upload
	held   int64 // memory of pages and upload, as accounted
	open   bool  // taken up and not closed
	stats  fileStats
	stored bool // durable under path
}

// job is one step of the encoder, which runs them in order.
type job struct {
	file  *stagedFile
	chunk []source.Vector
	owner *deltaWriter
	rows  []uint32 // of chunk; nil: all
	bytes int64    // memory of chunk
	// positions of a position-delete file, sorted.
	positions []uint32
	then      step
}

type step uint8

const (
	keepOpen step = iota
	closeFile
	flushRows // write a row group now, to free memory
	dropFile
)

// stager turns sealed chunks into files beside reading. One goroutine encodes
// (a file's columns go to several), a few more wait for uploads.
type stager struct {
	fs     fileio.FS
	spares *spares
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	ended  chan struct{}
	slots  chan struct{} // uploads at once
	pieces piecePool

	mu       sync.Mutex
	changed  *sync.Cond
	queue    []job
	busy     bool
	closed   bool
	err      error // the first; final
	inflight int64 // memory of chunks that are queued or being encoded
	held     int64 // memory of pages and uploads
	uploads  int   // under way
	open     map[*stagedFile]struct{}
}

const parallelUploads = 8

func newStager(fs fileio.FS, sp *spares) *stager {
	e := &stager{fs: fs, spares: sp, ended: make(chan struct{}), slots: make(chan struct{}, parallelUploads), open: map[*stagedFile]struct{}{}}
	e.changed = sync.NewCond(&e.mu)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.run() // until close
	return e
}

func (e *stager) submit(j job) {
	e.mu.Lock()
	e.queue = append(e.queue, j)
	e.inflight += j.bytes
	e.changed.Broadcast()
	e.mu.Unlock()
}

func (e *stager) run() {
	defer close(e.ended)
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		for len(e.queue) == 0 && !e.closed {
			e.changed.Wait()
		}
		if e.closed {
			return
		}
		j := e.queue[0]
		e.queue[0] = job{}
		e.queue = e.queue[1:]
		skip := e.err != nil
		e.busy = true
		e.mu.Unlock()
		var err error
		if !skip {
			err = e.do(j)
		}
		if j.chunk != nil && j.owner != nil {
			e.spares.give(j.owner, j.chunk)
		}
		e.mu.Lock()
		e.busy = false
		e.inflight -= j.bytes
		if err != nil && e.err == nil {
			e.err = err
		}
		e.changed.Broadcast()
	}
}

// do runs one job outside of the mutex.
func (e *stager) do(j job) error {
	f := j.file
	if j.then == dropFile || f.dropped.Load() {
		e.release(f)
		return nil
	}
	if f.fw == nil && (j.chunk != nil || j.positions != nil) {
		f.up = &upload{ctx: e.ctx, fs: e.fs, path: f.path, pool: &e.pieces}
		fw, err := newFileWriter(f.up, f.columns, f.options)
		if err != nil {
			return fmt.Errorf("open %s: %w", f.path, err)
		}
		f.fw = fw
		e.mu.Lock()
		f.open = true
		e.open[f] = struct{}{}
		e.mu.Unlock()
	}
	if f.fw == nil {
		return nil // closed before, or never had a row
	}
	if err := e.encode(f, j); err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	f.written.Store(f.fw.Written())
	f.encoded.Add(j.bytes)
	e.account(f, f.fw.Buffered()+f.up.memory())
	if j.then == closeFile {
		return e.close(f)
	}
	return nil
}

// positionRun is how many position deletes are turned into vectors at once.
const positionRun = 4096

func (e *stager) encode(f *stagedFile, j job) error {
	if j.chunk != nil {
		cols := make([]*source.Vector, len(j.chunk))
		for i := range cols {
			cols[i] = &j.chunk[i]
		}
		if err := f.fw.Append(cols, j.rows); err != nil {
			return err
		}
	}
	var path, pos source.Vector
	for p := j.positions; len(p) > 0; {
		n := min(len(p), positionRun)
		path.Reset(source.Type{Kind: source.String})
		pos.Reset(source.Type{Kind: source.Long})
		for _, x := range p[:n] {
			path.AppendBytes([]byte(f.refers))
			pos.AppendLong(int64(x))
		}
		if err := f.fw.Append([]*source.Vector{&path, &pos}, nil); err != nil {
			return err
		}
		p = p[n:]
	}
	if j.then == flushRows {
		return f.fw.FlushRowGroup()
	}
	return nil
}

func (e *stager) account(f *stagedFile, memory int64) {
	e.mu.Lock()
	e.held += memory - f.held
	f.held = memory
	e.mu.Unlock()
}

// release gives up a file that is open.
func (e *stager) release(f *stagedFile) {
	if f.fw == nil {
		return
	}
	f.fw.Release()
	f.up.abort()
	f.fw = nil
	e.account(f, 0)
	e.mu.Lock()
	delete(e.open, f)
	f.open = false
	e.mu.Unlock()
}

// close ends the Parquet file and lets an upload goroutine make it durable.
func (e *stager) close(f *stagedFile) error {
	stats, err := f.fw.Close()
	if err != nil {
		return fmt.Errorf("close %s: %w", f.path, err)
	}
	f.fw = nil
	if stats.Rows != f.rows {
		return fmt.Errorf("%s holds %d rows, %d were assigned to it", f.path, stats.Rows, f.rows)
	}
	if stats.Bytes != f.up.size {
		return fmt.Errorf("%s is %d bytes long, %d were written", f.path, stats.Bytes, f.up.size)
	}
	f.stats = stats
	e.account(f, f.up.memory())
	e.mu.Lock()
	delete(e.open, f)
	f.open = false
	e.uploads++
	e.mu.Unlock()
	// Ends when the file is durable or its context ends; close waits for it.
	go func() {
		e.slots <- struct{}{}
		err := f.up.finish()
		<-e.slots
		e.account(f, 0)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.uploads--
		if err == nil {
			f.up.forget()
			f.stored, f.up = true, nil
		} else if e.err == nil {
			e.err = fmt.Errorf("store %s: %w", f.path, err)
		}
		e.changed.Broadcast()
	}()
	return nil
}

// wait blocks until ready holds, called under the mutex, or something failed.
func (e *stager) wait(ctx context.Context, ready func() bool) error {
	defer context.AfterFunc(ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.changed.Broadcast()
	})()
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		switch {
		case e.err != nil:
			return e.err
		case e.closed:
			return errors.New("the sink is closed")
		case ready():
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		e.changed.Wait()
	}
}

// load tells what the encoder holds and whether it is at work.
func (e *stager) load() (inflight, held int64, working, uploading bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inflight, e.held, len(e.queue) > 0 || e.busy, e.uploads > 0, e.err
}

// idle waits until everything submitted is durable.
func (e *stager) idle(ctx context.Context) error {
	return e.wait(ctx, func() bool { return len(e.queue) == 0 && !e.busy && e.uploads == 0 })
}

// stop ends the goroutines and gives up what is open.
func (e *stager) stop() {
	e.mu.Lock()
	e.closed = true
	e.queue = nil
	e.changed.Broadcast()
	e.mu.Unlock()
	e.cancel()
	<-e.ended
	e.mu.Lock()
	for e.uploads > 0 {
		e.changed.Wait()
	}
	open := make([]*stagedFile, 0, len(e.open))
	for f := range e.open {
		open = append(open, f)
	}
	e.mu.Unlock()
	for _, f := range open {
		e.release(f)
	}
}
