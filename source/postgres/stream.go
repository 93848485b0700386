package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// Stream is the events of one database. It is used by one goroutine.
type Stream struct {
	o *Options
	m *metrics

	copier *copier // during the initial snapshot
	cut    *cut

	as       *assembler
	feed     *feed
	id       identity
	viaRoot  bool
	others   []uint32
	covers   coverage
	acked    lsn // everything up to here is saved and committed
	patience time.Duration
	stalled  lsn // where a silent server was last waited for in vain

	fails   int // in a row
	waiting bool
	beat    source.Event
	err     error // final

	watcher *watcher

	life      context.Context // ends with Close
	end       context.CancelFunc
	opening   chan opened // a connection is being opened; nil: none
	notBefore time.Time   // the next attempt

	mu    sync.Mutex
	known map[uint32]string // captured relations by OID, for the watcher
	some  bool              // one of them mirrors its source
	told  map[uint32]bool   // relations that a warning was written of
}

// patience is how long a server that should answer may be silent, at least.
const patience = time.Minute

// Open connects to the server, checks that it can serve the pipeline, and learns
// the shapes of the captured tables: as the resumed state has them, else at a
// cut that the initial snapshot will be read from. A server that does not answer
// is waited for within the retry budget (source.ErrUnavailable after that);
// whatever waiting does not mend is source.ErrCannotServe.
func Open(ctx context.Context, o Options) (*Stream, error) {
	o.defaults()
	o.opening = true
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if o.Resume == nil && o.Startup.Mode != "" && o.Startup.Mode != "initial" {
		return nil, fmt.Errorf("%w: startup.mode: %s is not in this version; use initial", source.ErrCannotServe, o.Startup.Mode)
	}
	if r := o.Resume; r != nil && (r.Position == "" || len(r.State) == 0) {
		return nil, fmt.Errorf("%w: the record has no position of the source, or no state that belongs to it", source.ErrCannotServe)
	}
	s := &Stream{o: &o, m: m, patience: patience, told: map[uint32]bool{}}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.budgeted(ctx, s.open); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// budgeted runs step until it succeeds, fails for good, or the retry budget is
// spent.
func (s *Stream) budgeted(ctx context.Context, step func(context.Context) error) error {
	began := time.Now()
	for {
		err := step(ctx)
		left := s.o.RetryBudget - time.Since(began)
		switch {
		case err == nil:
			s.state(false, "")
			s.fails = 0
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, source.ErrCannotServe), errors.Is(err, source.ErrRestart):
			return err
		case errors.Is(err, errStandby), refused(err), !transport(err):
			return fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		case left <= 0:
			return fmt.Errorf("%w: gave up after %s: %w", source.ErrUnavailable, s.o.RetryBudget, err)
		}
		s.state(true, err.Error())
		if err := s.backoff(ctx, err, left); err != nil {
			return err
		}
	}
}

// backoff waits longer after each failure in a row, up to half a minute.
func (s *Stream) backoff(ctx context.Context, cause error, most time.Duration) error {
	return pause(ctx, min(s.delay(cause), most))
}

// delay is how long to wait before the next attempt.
func (s *Stream) delay(cause error) time.Duration {
	s.fails++
	d := min(250*time.Millisecond<<min(s.fails, 7), 30*time.Second)
	d = d/2 + rand.N(d/2)
	s.o.Log.Warn("waiting for the source", "err", cause, "attempt", s.fails, "pause", d)
	return d
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (s *Stream) state(waiting bool, reason string) {
	if s.o.OnState != nil && (waiting || s.waiting) {
		s.o.OnState(waiting, reason)
	}
	s.waiting = waiting
}

// open is one attempt of Open.
func (s *Stream) open(ctx context.Context) error {
	side, err := connect(ctx, s.o, sideSession)
	if err != nil {
		return err
	}
	defer side.close()
	f, problems, err := preflight(ctx, s.o, side)
	if err != nil {
		return err
	}
	if err := problems.err(); err != nil {
		return err
	}
	if s.o.Resume != nil {
		return s.resumeAt(ctx, side)
	}
	if err := ensurePublication(ctx, s.o, side, f.publication, f.tables); err != nil {
		return err
	}
	viaRoot := f.publication.viaRoot || !f.publication.exists
	cut, err := takeCut(ctx, s.o, side, viaRoot)
	if err != nil {
		return err
	}
	s.cut, s.id, s.viaRoot, s.others, s.covers = cut, cut.id, viaRoot, cut.others, cut.coverage
	s.as = newAssembler(s.o, cut.shapes, cut.at)
	s.as.covers = s.covers
	s.as.catalog = s.loadNow
	s.as.exclude(s.others)
	s.learn()
	if s.copier, err = newCopier(s.o, cut, s.m); err != nil {
		cut.view.close()
		return err
	}
	return nil
}

// resumeAt prepares to go on from a saved record.
func (s *Stream) resumeAt(ctx context.Context, side *conn) error {
	saved, err := parseState(s.o.Resume.State)
	if err != nil {
		return err
	}
	at, err := parsePosition(s.o.Resume.Position)
	if err != nil {
		return fmt.Errorf("%w: %w", source.ErrCannotServe, err)
	}
	all, err := decodeShapes(saved.Shapes)
	if err != nil {
		return fmt.Errorf("%w: read the shapes in the record: %w", source.ErrCannotServe, err)
	}
	for _, x := range []struct{ key, was, now string }{
		{"slot", saved.Slot, s.o.Config.Slot}, {"publication", saved.Publication, s.o.Config.Publication}, {"database", saved.Database, s.o.Config.Database},
	} {
		if x.was != x.now {
			return fmt.Errorf("%w: %s: is %q now, but the record of this pipeline continues %q; write that again, or copy the tables anew under another pipeline name", source.ErrCannotServe, x.key, x.now, x.was)
		}
	}
	shapes := newShapes()
	s.id, s.viaRoot, s.others, s.covers = saved.identity, saved.ViaRoot, saved.Others, saved.coverage
	for _, sh := range all.all() {
		if s.o.Match(sh.Rel.Namespace, sh.Rel.Name) {
			shapes.set(sh)
		} else {
			s.others = append(s.others, sh.OID)
		}
	}
	s.as = newAssembler(s.o, shapes, at)
	s.as.covers = s.covers
	// What is left out now must not come back with a hole.
	s.as.dirty = len(s.others) != len(saved.Others)
	s.as.catalog = s.loadNow
	s.as.exclude(s.others)
	s.acked = at
	if b := saved.Before; b != nil {
		final, err := parseLSN(b.Final)
		if err != nil {
			return fmt.Errorf("%w: read the source's state in the record: %w", source.ErrCannotServe, err)
		}
		before, err := decodeShapes(b.Shapes)
		if err != nil {
			return fmt.Errorf("%w: read the shapes in the record: %w", source.ErrCannotServe, err)
		}
		s.as.before, s.as.beforeFinal, s.as.beforeText = before, final, b.Shapes
	}
	s.learn()
	rc, err := connect(ctx, s.o, replicationSession)
	if err != nil {
		return err
	}
	defer rc.close()
	now, _, err := located(ctx, s.o, side, rc, s.id, at)
	if err != nil {
		return err
	}
	s.moved(now.identity)
	return s.watch(ctx, side, side.version)
}

// moved takes in that the server is on another timeline.
func (s *Stream) moved(now identity) {
	if now != s.id {
		s.o.Log.Warn("the server is on another timeline, which contains the position", "timeline", now.Timeline, "was", s.id.Timeline)
		s.id = now
		s.as.dirty = true
	}
}

// learn tells the watcher which relations are captured.
func (s *Stream) learn() {
	known, some := map[uint32]string{}, false
	for _, sh := range s.as.shapes.all() {
		known[sh.OID] = sh.Rel.FullName()
		some = some || s.o.Append == nil || !s.o.Append(sh.Rel.Namespace, sh.Rel.Name)
	}
	s.mu.Lock()
	s.known, s.some = known, some
	s.mu.Unlock()
}

func (s *Stream) knownTables() map[uint32]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// mirrors reports whether a captured relation mirrors its source.
func (s *Stream) mirrors() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.some
}

// tell reports whether nothing was said of a relation yet.
func (s *Stream) tell(oid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told[oid] {
		return false
	}
	s.told[oid] = true
	return true
}

// loadNow reads a shape from the catalog as it is now.
func (s *Stream) loadNow(ctx context.Context, oid uint32) (*shape, error) {
	side, err := connect(ctx, s.o, sideSession)
	if err != nil {
		return nil, err
	}
	defer side.close()
	return loadShape(ctx, side, oid)
}

// Relations are the captured relations at the place where Next begins.
func (s *Stream) Relations() []*source.Relation {
	var out []*source.Relation
	for _, sh := range s.as.shapes.all() {
		out = append(out, sh.Rel)
	}
	return out
}

// encodeState makes the state that belongs to what was handed out last.
func (s *Stream) encodeState() ([]byte, error) {
	text, err := s.as.shapes.encode()
	if err != nil {
		return nil, fmt.Errorf("write the shapes: %w", err)
	}
	v := savedState{
		Format: 1, identity: s.id, Database: s.o.Config.Database, Slot: s.o.Config.Slot, Publication: s.o.Config.Publication,
		ViaRoot: s.viaRoot, Shapes: text, Others: s.others, coverage: s.covers,
	}
	if s.as.before != nil {
		v.Before = &shapesBefore{Final: s.as.beforeFinal.String(), Shapes: s.as.beforeText}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write the source's state: %w", err)
	}
	s.as.dirty = false
	return b, nil
}

// Next implements source.Source.
func (s *Stream) Next(ctx context.Context) (*source.Event, error) {
	if s.err != nil {
		return nil, s.err
	}
	ev, err := s.next(ctx)
	if err != nil && ctx.Err() == nil {
		s.err = err
	}
	if err == nil && (ev.Kind == source.Commit || ev.Kind == source.Heartbeat) && s.as.dirty && ev.State == nil {
		if ev.State, err = s.encodeState(); err != nil {
			s.err = err
			return nil, err
		}
	}
	if err == nil {
		s.count(ev)
	}
	return ev, err
}

func (s *Stream) count(ev *source.Event) {
	kind := ""
	switch ev.Kind {
	case source.Rows:
		kind = "rows"
		switch ev.Batch.Op {
		case source.Insert:
			s.m.rows.WithLabelValues("insert").Add(float64(ev.Batch.Rows))
		case source.Update:
			s.m.rows.WithLabelValues("update").Add(float64(ev.Batch.Rows))
		case source.Delete:
			s.m.rows.WithLabelValues("delete").Add(float64(ev.Batch.Rows))
		}
	case source.Truncate:
		kind = "truncate"
	case source.Schema:
		kind = "schema"
		s.learn()
	case source.Commit, source.Heartbeat:
		kind = "commit"
		if ev.Kind == source.Heartbeat {
			kind = "heartbeat"
		}
		if !ev.Time.IsZero() {
			s.m.timestamp.Set(float64(ev.Time.UnixMicro()) / 1e6)
		}
	}
	s.m.events.WithLabelValues(kind).Inc()
}

func (s *Stream) next(ctx context.Context) (*source.Event, error) {
	if s.copier != nil {
		return s.nextCopied(ctx)
	}
	for {
		if s.feed == nil {
			if err := s.reconnect(ctx); err != nil {
				return nil, err
			}
		}
		ev, err := s.as.next(ctx)
		switch {
		case ev != nil:
			return ev, nil
		case err == nil:
			if ev := s.heartbeat(); ev != nil {
				return ev, nil
			}
			err = s.as.wait(ctx)
		}
		switch {
		case err == nil:
			if s.waiting {
				s.state(false, "")
			}
			s.fails = 0
		case ctx.Err() != nil:
			return nil, ctx.Err()
		default:
			if err := s.lost(err); err != nil {
				return nil, err
			}
		}
	}
}

// nextCopied is the initial snapshot: its rows, then one Commit that makes all
// of them visible at the place of the cut.
func (s *Stream) nextCopied(ctx context.Context) (*source.Event, error) {
	ev, err := s.copier.next(ctx)
	switch {
	case err == nil:
		return ev, nil
	case errors.Is(err, errCopied):
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, source.ErrCannotServe), errors.Is(err, source.ErrRestart):
		return nil, err
	case refused(err) || !transport(err):
		return nil, fmt.Errorf("%w: the initial snapshot broke off: %w", source.ErrCannotServe, err)
	default:
		return nil, fmt.Errorf("%w: the initial snapshot broke off: %w", source.ErrRestart, err)
	}
	s.copier.close()
	s.copier = nil
	b, err := s.encodeState()
	if err != nil {
		return nil, err
	}
	s.beat = source.Event{Kind: source.Commit, Position: s.cut.at.position(), Time: s.cut.time, State: b, Barrier: true, Copied: s.Relations()}
	s.cut = nil
	return &s.beat, nil
}

// heartbeat makes an event of the server's word that it has sent everything up to
// some place, unless that says nothing new.
func (s *Stream) heartbeat() *source.Event {
	sent := s.as.kept
	if !s.as.between() || sent < s.as.at || s.watcher == nil {
		return nil
	}
	at, ok := s.watcher.complete(sent)
	if sent == s.as.at && !ok {
		return nil
	}
	s.as.at = sent
	s.beat = source.Event{Kind: source.Heartbeat, Position: sent.position(), Time: at}
	return &s.beat
}

// Ack implements source.Source: the server may forget everything up to pos,
// which a saved record has, with its tables committed.
func (s *Stream) Ack(_ context.Context, pos source.Position) error {
	at, err := parsePosition(pos)
	if err != nil {
		return err
	}
	if at > s.as.at {
		return fmt.Errorf("confirm %s, which was not handed out (the last was %s)", pos, s.as.at.position())
	}
	if at > s.acked {
		s.acked = at
		if s.feed != nil {
			s.feed.confirm(at)
		}
	}
	return nil
}

// Close ends the connections within a few seconds. What was acknowledged last is
// told to the server first.
func (s *Stream) Close() error {
	s.end()
	if s.opening != nil {
		if r := <-s.opening; r.feed != nil {
			r.feed.close()
		}
		s.opening = nil
	}
	if s.watcher != nil {
		s.watcher.close()
		s.watcher = nil
	}
	if s.copier != nil {
		s.copier.close()
		s.copier = nil
	}
	if s.feed != nil {
		s.feed.close()
		s.feed = nil
	}
	if s.err == nil {
		s.err = errClosed
	}
	return nil
}
