package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// cut is one consistent view of the database and the place in the log that
// belongs to it: the slot's consistent point and the snapshot exported there.
// Until it is closed, its connection holds the view open.
type cut struct {
	view    *conn
	at      lsn
	time    time.Time // by the server's clock
	id      identity
	shapes  *shapes
	tables  []tableInfo
	others  []uint32
	viaRoot bool
	coverage
}

var errAgain = errors.New("a table was created, altered or dropped meanwhile")

// takeCut makes the slot and opens the view that belongs to it. What it has made
// is taken away again when it fails.
func takeCut(ctx context.Context, o *Options, side *conn, viaRoot bool) (*cut, error) {
	for attempt := 1; ; attempt++ {
		c, err := tryCut(ctx, o, side, viaRoot)
		if err == nil || !errors.Is(err, errAgain) || attempt >= 20 {
			return c, err
		}
		o.Log.Warn("the initial snapshot cannot begin yet", "attempt", attempt, "err", err)
		if err := pause(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

func tryCut(ctx context.Context, o *Options, side *conn, viaRoot bool) (_ *cut, err error) {
	rc, err := connect(ctx, o, replicationSession)
	if err != nil {
		return nil, err
	}
	defer rc.close()
	if err := readiedSlot(ctx, o, side, rc); err != nil {
		return nil, err
	}
	now, err := identify(ctx, rc)
	if err != nil {
		return nil, err
	}
	c := &cut{id: now.identity, shapes: newShapes(), viaRoot: viaRoot}
	began := time.Now()
	at, snapshot, err := createSlot(ctx, o, rc)
	if err != nil {
		if who := blockers(ctx, side); who != "" && transport(err) {
			return nil, fmt.Errorf("%w; a new slot waits until transactions that are open have ended: %s", err, who)
		}
		return nil, err
	}
	c.at = at
	if c.view, err = connect(ctx, o, copySession); err == nil {
		err = c.open(ctx, o, side, snapshot)
	}
	if err != nil {
		if c.view != nil {
			c.view.close()
		}
		// The next attempt, in this process or another, would drop it too.
		drop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if derr := dropSlot(drop, o, rc); derr != nil {
			o.Log.Warn("could not drop the replication slot of a copy that did not begin", "slot", o.Config.Slot, "err", derr)
		}
		return nil, err
	}
	o.Log.Info("created the replication slot", "slot", o.Config.Slot, "position", string(at.position()), "elapsed", time.Since(began))
	return c, nil
}

// open makes the connection see what the slot's snapshot shows, and learns the
// shapes of then. Tables can't change their shape from here on, since the view
// holds a lock on each; that none changed it before is checked.
func (c *cut) open(ctx context.Context, o *Options, side *conn, snapshot string) error {
	for _, s := range []string{
		"BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
		"SET TRANSACTION SNAPSHOT " + literal(snapshot),
	} {
		if _, err := c.view.simple(ctx, s); err != nil {
			return fmt.Errorf("open the slot's snapshot: %w", err)
		}
	}
	r, err := c.view.query(ctx, "SELECT (extract(epoch FROM pg_catalog.transaction_timestamp()) * 1000000)::bigint")
	if err != nil {
		return err
	}
	var micros int64
	if _, err := fmt.Sscanf(r.text(0, 0), "%d", &micros); err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	c.time = time.UnixMicro(micros).UTC()
	tables, err := listTables(ctx, c.view, o.Match, c.viaRoot)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if !t.captured {
			c.others = append(c.others, t.oid)
			continue
		}
		if _, err := c.view.simple(ctx, "LOCK TABLE "+t.qualified()+" IN ACCESS SHARE MODE"); err != nil {
			if code := errorCode(err); code == "42P01" || code == "3F000" {
				return fmt.Errorf("%s: %w", t.full(), errAgain)
			}
			return fmt.Errorf("lock %s against changes of its shape: %w", t.full(), err)
		}
		sh, err := loadShape(ctx, c.view, t.oid)
		if err != nil {
			return err
		}
		now, err := loadShape(ctx, side, t.oid)
		if err != nil {
			return err
		}
		if sh == nil || now == nil || !sameShape(sh, now) {
			return fmt.Errorf("%s: %w", t.full(), errAgain)
		}
		if err := sh.problem(); err != nil {
			return err
		}
		if why, fix := o.lacksOldRows(sh, t); why != "" {
			return fmt.Errorf("%w: %s: %s; %s", source.ErrCannotServe, t.full(), why, fix)
		}
		c.shapes.set(sh)
		c.tables = append(c.tables, t)
	}
	p, err := readPublication(ctx, c.view, c.view.version, o.Config.Publication)
	if err != nil {
		return err
	}
	c.coverage = coverage{p.all, p.schemas}
	if missing := missingFrom(p, c.tables); len(missing) > 0 {
		return fmt.Errorf("%s is not in the publication: %w", joinFull(missing), errAgain)
	}
	return nil
}

func sameShape(a, b *shape) bool {
	x, y := newShapes(), newShapes()
	x.set(a)
	y.set(b)
	s, err1 := x.encode()
	t, err2 := y.encode()
	return err1 == nil && err2 == nil && bytes.Equal(s, t)
}

// copier reads the rows of all captured tables under one view. A goroutine
// receives lines ahead, next decodes them.
type copier struct {
	o      *Options
	cut    *cut
	tables []*copyTable
	q      *fifo
	cur    *slab
	batch  source.Batch
	ev     source.Event
	limit  int
	rows   int64
	ended  chan struct{}
	cancel context.CancelFunc
	m      *metrics
}

// copyTable is one relation of the copy.
type copyTable struct {
	info     tableInfo
	rel      *source.Relation
	dec      *copyDecoder
	rows     int64
	progress time.Time
}

func newCopier(o *Options, c *cut, m *metrics) (*copier, error) {
	k := &copier{o: o, cut: c, q: newFIFO(o.Memory), limit: o.batchBytes(), ended: make(chan struct{}), m: m}
	for _, t := range c.tables {
		sh := c.shapes.get(t.oid)
		dec, err := sh.copyDecoder()
		if err != nil {
			return nil, err
		}
		k.tables = append(k.tables, &copyTable{info: t, rel: sh.Rel, dec: dec})
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	// It ends when all is read, a read fails, or close ends ctx and the queue.
	go func() {
		defer close(k.ended)
		k.q.end(k.read(ctx))
	}()
	return k, nil
}

func (k *copier) close() {
	k.cancel()
	k.q.close()
	<-k.ended
	k.cut.view.close()
}

// errCopied ends the queue of a copy that is complete.
var errCopied = errors.New("the copy is complete")

// read reads all tables, one after the other.
func (k *copier) read(ctx context.Context) error {
	for _, t := range k.tables {
		w := &lines{q: k.q, of: t}
		only := "ONLY "
		if t.info.partitioned {
			only = ""
		}
		sql := "COPY (SELECT " + t.dec.selectList() + " FROM " + only + t.info.qualified() + ") TO STDOUT"
		if _, err := k.cut.view.CopyTo(ctx, w, sql); err != nil {
			return fmt.Errorf("copy %s: %w", t.info.full(), err)
		}
		if len(w.partial) > 0 {
			return fmt.Errorf("copy %s: the last line has no end", t.info.full())
		}
		k.q.finish(t)
	}
	if _, err := k.cut.view.simple(ctx, "ROLLBACK"); err != nil {
		k.o.Log.Warn("could not end the view", "err", err)
	}
	return errCopied
}

// lines cuts what COPY sends into lines. The text format has no other newline
// than the one that ends a line.
type lines struct {
	q       *fifo
	of      *copyTable
	partial []byte
}

func (w *lines) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			w.partial = append(w.partial, rest...)
			break
		}
		line := rest[:i]
		rest = rest[i+1:]
		if len(w.partial) > 0 {
			w.partial = append(w.partial, line...)
			line = w.partial
		}
		if err := w.put(line); err != nil {
			return 0, err
		}
		w.partial = w.partial[:0]
	}
	return len(b), nil
}

func (w *lines) put(line []byte) error {
	if len(line) > slabSize/2 {
		return w.q.addLarge(w.of, tagMessage, len(line), func(b []byte) error {
			copy(b, line)
			return nil
		})
	}
	if !w.q.add(w.of, tagMessage, line) {
		return errClosed
	}
	return nil
}

// next is the next batch. After the last one the error is errCopied.
func (k *copier) next(ctx context.Context) (*source.Event, error) {
	var of *copyTable // whose rows the batch has
	size := 0
	for {
		if k.cur == nil {
			s, err := k.q.get(ctx)
			if err != nil {
				// What was decoded so far must not be lost.
				if of != nil && (errors.Is(err, errCopied) || ctx.Err() != nil) {
					return k.event(of), nil
				}
				return nil, err
			}
			k.cur = s
		}
		t := k.cur.of
		if of != nil && of != t {
			return k.event(of), nil
		}
		for row := k.cur.next(); row != nil; row = k.cur.next() {
			if of == nil {
				t.dec.reset(&k.batch)
				of = t
			}
			if err := t.dec.decode(row[1:], &k.batch); err != nil {
				return nil, fmt.Errorf("copy %s: %w", t.info.full(), err)
			}
			t.rows++
			if size += len(row); size >= k.limit {
				return k.event(of), nil
			}
		}
		if k.cur.last {
			k.progress(t, true)
		} else if time.Since(t.progress) > time.Second {
			k.progress(t, false)
		}
		k.q.done(k.cur)
		k.cur = nil
	}
}

func (k *copier) progress(t *copyTable, done bool) {
	t.progress = time.Now()
	if done {
		k.o.Log.Info("copied a relation", slog.String("relation", t.info.full()), slog.Int64("rows", t.rows))
	}
	if k.o.OnProgress != nil {
		k.o.OnProgress(Progress{Relation: t.info.full(), Rows: t.rows, Estimated: t.rel.EstimatedRows, Done: done})
	}
}

func (k *copier) event(of *copyTable) *source.Event {
	k.batch.Relation, k.batch.Op = of.rel, source.Read
	k.batch.Position, k.batch.Ordinal, k.batch.Time = k.cut.at.position(), k.rows, k.cut.time
	k.rows += int64(k.batch.Rows)
	k.m.rows.WithLabelValues("read").Add(float64(k.batch.Rows))
	k.ev = source.Event{Kind: source.Rows, Batch: &k.batch}
	return &k.ev
}
