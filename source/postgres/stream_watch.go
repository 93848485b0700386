package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// watcher asks the server, beside the feed, what the feed does not tell: how far
// the log goes at what time, what the slot holds back, and whether relations and
// publication are still what they were.
type watcher struct {
	s      *Stream
	cancel context.CancelFunc
	ended  chan struct{}

	mu    sync.Mutex
	feed  *feed
	marks []mark
}

// mark: what was committed before a time has its place in the log before end.
type mark struct {
	end  lsn
	time time.Time
}

// maxMarks bounds the memory of a feed that is far behind.
const maxMarks = 128

// watchEvery is how often relations and publication are looked at.
const watchEvery = time.Minute

func (s *Stream) startWatcher() *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{s: s, cancel: cancel, ended: make(chan struct{})}
	// Ends when close cancels ctx.
	go func() {
		defer close(w.ended)
		w.run(ctx)
	}()
	return w
}

func (w *watcher) close() {
	w.cancel()
	<-w.ended
}

// follow makes w ask f, and forget what was true of another.
func (w *watcher) follow(f *feed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.feed, w.marks = f, nil
}

// complete is the newest time before which everything that was committed has its
// place before sent.
func (w *watcher) complete(sent lsn) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.marks) && w.marks[n].end <= sent {
		n++
	}
	if n == 0 {
		return time.Time{}, false
	}
	at := w.marks[n-1].time
	w.marks = w.marks[n:]
	return at, true
}

func (w *watcher) run(ctx context.Context) {
	t := time.NewTicker(w.s.o.Config.Heartbeat.D())
	defer t.Stop()
	var c *conn
	var looked time.Time
	for ctx.Err() == nil {
		if c == nil || c.IsClosed() {
			var err error
			if c, err = connect(ctx, w.s.o, sideSession); err != nil {
				w.s.o.Log.Debug("cannot look at the server beside the log", "err", err)
				c = nil
			}
		}
		if c != nil {
			err := w.look(ctx, c)
			if err == nil && time.Since(looked) >= watchEvery {
				looked = time.Now()
				err = w.s.watch(ctx, c, c.version)
			}
			switch {
			case errors.Is(err, source.ErrCannotServe):
				w.fault(err)
			case err != nil:
				w.s.o.Log.Debug("cannot look at the server beside the log", "err", err)
				c.close()
				c = nil
			}
		}
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
	if c != nil {
		c.close()
	}
}

// fault stops the stream.
func (w *watcher) fault(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.feed != nil {
		w.feed.q.interrupt(err)
	}
}

// logEnd is where the log ends, and the server's clock just before. The place is
// taken where a record ends: at the border of a page the server counts the next
// page's header, which no record has yet.
const logEnd = `
	SELECT (extract(epoch FROM t) * 1000000)::bigint, CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.pg_current_wal_insert_lsn() END
	FROM (SELECT pg_catalog.clock_timestamp() AS t OFFSET 0) x`

func readLogEnd(ctx context.Context, q querier) (mark, error) {
	r, err := q.query(ctx, logEnd)
	if err != nil {
		return mark{}, fmt.Errorf("read where the log ends: %w", err)
	}
	if r[0][1] == nil {
		return mark{}, errStandby
	}
	var micros int64
	if _, err := fmt.Sscanf(r.text(0, 0), "%d", &micros); err != nil {
		return mark{}, fmt.Errorf("read the server's clock: %w", err)
	}
	end, err := parseLSN(r.text(0, 1))
	if err != nil {
		return mark{}, fmt.Errorf("read where the log ends: %w", err)
	}
	const page, short, long = 8192, 24, 40
	if off := end % page; off == short || off == long {
		end -= off
	}
	return mark{end: end, time: time.UnixMicro(micros).UTC()}, nil
}

func (w *watcher) look(ctx context.Context, c *conn) error {
	m, err := readLogEnd(ctx, c)
	if err != nil {
		return err
	}
	slot, err := readSlot(ctx, c, w.s.o.Config.Slot)
	if err != nil {
		return err
	}
	w.s.m.kept.Set(float64(slot.kept))
	w.s.m.behind.Set(float64(slot.behind))
	w.s.m.safe.Set(float64(slot.safe))
	w.mu.Lock()
	if len(w.marks) == maxMarks {
		// Every second one goes: what is left is as good, a little later.
		for i := range maxMarks / 2 {
			w.marks[i] = w.marks[2*i+1]
		}
		w.marks = w.marks[:maxMarks/2]
	}
	w.marks = append(w.marks, m)
	f := w.feed
	w.mu.Unlock()
	if f != nil {
		f.ask()
	}
	return nil
}

// Current is where the server stands: the position that contains everything
// committed before the call.
func Current(ctx context.Context, o Options) (source.Position, error) {
	o.defaults()
	c, err := connect(ctx, &o, sideSession)
	if err != nil {
		if refused(err) || errors.Is(err, source.ErrCannotServe) {
			return "", fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		}
		return "", fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	defer c.close()
	m, err := readLogEnd(ctx, c)
	if errors.Is(err, errStandby) {
		return "", fmt.Errorf("%w: %w", source.ErrCannotServe, err)
	}
	if err != nil {
		return "", err
	}
	return m.end.position(), nil
}
