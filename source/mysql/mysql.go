// Package mysql reads MySQL and MariaDB as a replica does: it copies the
// captured tables under one consistent view and then follows the server's log.
//
// Stream is the source.Source. What it hands out comes from one connection that
// the server sends its log to; bytes are cut into events (dump.go), events into
// transactions (assemble.go), rows decoded straight into typed columns. Shapes
// of tables come from our own history and never from the server's present
// catalog, since the log may be far behind it.
//
// The invariant: a position is only ever the end of a whole transaction, and
// whoever opens a Stream at a position gets exactly what follows it.
package mysql

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// Options of a Stream, of Check and of Current.
type Options struct {
	Config   config.MySQL
	Flavor   Flavor
	Pipeline string
	// Match says whether a relation is captured, by schema and name.
	Match func(ns, name string) bool
	// Append says whether a relation is written in append mode, where a row
	// must not come twice. nil: none is.
	Append func(ns, name string) bool
	// Resume is where to go on; nil begins as Startup says.
	Resume  *Resume
	Startup config.Startup
	// Memory is for the queue between reading and decoding and for a batch, in
	// bytes; 0 is 16 MiB. One row that is larger passes all the same.
	Memory int64
	// SpillDir keeps the rows of XA transactions that are not decided.
	SpillDir string
	// RetryBudget is how long Open waits for a server that is down.
	RetryBudget time.Duration
	Log         *slog.Logger
	Registerer  prometheus.Registerer
	// OnState tells that the source waits for the server, and why, or no longer.
	OnState func(waiting bool, reason string)
	// OnProgress tells how far the initial snapshot is.
	OnProgress func(Progress)
}

// Resume is what a saved record holds of the source.
type Resume struct {
	Position source.Position
	State    []byte
}

// Progress of the initial snapshot of one relation.
type Progress struct {
	Relation        string
	Rows, Estimated int64 // Estimated is -1 if the server has no guess
	Done            bool
}

const (
	defaultMemory    = 16 << 20
	defaultHeartbeat = 10 * time.Second
	// maxEvent bounds what one compressed event may become.
	maxEvent = 2 << 30
)

// payloadPrefix begins the names of transactions that were spilled while they
// are read.
func (o *Options) payloadPrefix() string { return o.Pipeline + ".payload." }

// payloadFile makes a file for a transaction that memory is too small for.
func (o *Options) payloadFile() (*os.File, error) {
	err := os.MkdirAll(o.SpillDir, 0o750)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(o.SpillDir, o.payloadPrefix()+"*"); err == nil {
			return f, nil
		}
	}
	return nil, fmt.Errorf("%w: spill a transaction: %w", source.ErrCannotServe, err)
}

func (o *Options) defaults() {
	if o.SpillDir == "" {
		o.SpillDir = filepath.Join(os.TempDir(), "lakesyncd-"+o.Pipeline)
	}
	if o.Memory <= 0 {
		o.Memory = defaultMemory
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Config.Heartbeat <= 0 {
		o.Config.Heartbeat = config.Duration(defaultHeartbeat)
	}
	if o.Match == nil {
		o.Match = func(string, string) bool { return true }
	}
}

// batchBytes is about the size of one batch.
func (o *Options) batchBytes() int { return int(min(max(o.Memory/16, 64<<10), 1<<20)) }

// Stream is the events of one server. It is used by one goroutine.
type Stream struct {
	o    Options
	m    *metrics
	ids  *serverIDs
	uuid string // of this replica

	copier *copier // during the initial snapshot
	copied []*source.Relation
	cut    *cut

	as   *assembler
	dump *dump
	// skew is the server's clock minus ours.
	skew      time.Duration
	fails     int // in a row
	clash     int
	lastClash time.Time
	hold      time.Duration // the least that the next pause lasts
	waiting   bool
	beat      source.Event
	err       error // final
}

// Open connects to the server, checks that it can serve the pipeline, and learns
// the shapes of the captured tables: as the resumed state has them, else at a
// cut that the initial snapshot will be read from. A server that does not answer
// is waited for within the retry budget (source.ErrUnavailable after that);
// whatever waiting does not mend is source.ErrCannotServe.
func Open(ctx context.Context, o Options) (*Stream, error) {
	o.defaults()
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	ids, err := newServerIDs(&o)
	if err != nil {
		return nil, err
	}
	if o.Resume == nil && o.Startup.Mode != "" && o.Startup.Mode != "initial" {
		return nil, fmt.Errorf("%w: startup.mode: %s is not in this version; use initial", source.ErrCannotServe, o.Startup.Mode)
	}
	if err := positionless(o.Resume); err != nil {
		return nil, err
	}
	s := &Stream{o: o, m: m, ids: ids, uuid: newUUID()}
	if err := s.budgeted(ctx, s.open); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func positionless(r *Resume) error {
	if r != nil && (r.Position == "" || len(r.State) == 0) {
		return fmt.Errorf("%w: the record has no position of the source, or no state that belongs to it", source.ErrCannotServe)
	}
	return nil
}

// budgeted runs step until it succeeds, fails for good, or the retry budget is
// spent.
func (s *Stream) budgeted(ctx context.Context, step func(context.Context) error) error {
	deadline := time.Now().Add(s.o.RetryBudget)
	for {
		err := step(ctx)
		switch {
		case err == nil:
			s.state(false, "")
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, source.ErrCannotServe), errors.Is(err, source.ErrRestart):
			return err
		case refused(err):
			return fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		case !transport(err):
			return fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		case time.Now().After(deadline):
			return fmt.Errorf("%w: gave up after %s: %w", source.ErrUnavailable, s.o.RetryBudget, err)
		}
		s.state(true, err.Error())
		if err := s.backoff(ctx, err, time.Until(deadline)); err != nil {
			return err
		}
	}
}

// backoff waits longer after each failure in a row, up to half a minute.
func (s *Stream) backoff(ctx context.Context, cause error, most time.Duration) error {
	s.fails++
	d := min(250*time.Millisecond<<min(s.fails, 7), 30*time.Second)
	d = max(d/2+mrand.N(d/2), s.hold)
	s.hold = 0
	if most > 0 {
		d = min(d, most)
	}
	s.o.Log.Warn("waiting for the source", "err", cause, "attempt", s.fails, "pause", d)
	return pause(ctx, d)
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

func newUUID() string {
	var b sid
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return string(b.append(nil))
}

// open is one attempt of Open.
func (s *Stream) open(ctx context.Context) error {
	c, err := connect(ctx, s.o.Config, sideTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	facts, problems, err := preflight(ctx, &s.o, c)
	if err != nil {
		return err
	}
	if err := problems.err(); err != nil {
		return err
	}
	problems.logWarnings(s.o.Log)
	if s.o.Resume != nil {
		return s.resumeAt(ctx, c)
	}
	cut, err := takeCut(ctx, &s.o, facts.server)
	if err != nil {
		return err
	}
	if err := servable(cut.hist); err != nil {
		cut.view.Close()
		return err
	}
	s.cut = cut
	ov := &overlay{until: cut.until, overlapping: problems.overlapping}
	s.as = s.assembler(cut.hist, cut.at, ov)
	if s.as.torn, err = openTorn(s.o.SpillDir, s.o.Pipeline); err != nil {
		return err
	}
	s.as.file, s.as.offset = cut.file, cut.offset
	s.as.state.server = facts.identity
	if s.o.Flavor == FlavorMySQL && !cut.at.isFile() {
		s.as.state.server.Set = cut.at.set.String()
	}
	s.as.state.dirty = true
	if err := s.as.xa.restore(nil); err != nil {
		return err
	}
	if s.copier, err = newCopier(&s.o, cut, ov, s.o.batchBytes()); err != nil {
		cut.view.Close()
		return err
	}
	for _, t := range s.copier.tables {
		s.copied = append(s.copied, t.rel)
	}
	return nil
}

func (s *Stream) assembler(h *history, at place, ov *overlay) *assembler {
	return &assembler{
		flavor: s.o.Flavor, hist: h, at: at, limit: s.o.batchBytes(), inner: maxEvent,
		state: &state{overlay: ov}, xa: newXAStore(&s.o),
		tables: map[uint64]*tableRef{},
	}
}

// resumeAt prepares to go on from a saved record.
func (s *Stream) resumeAt(ctx context.Context, c *conn) error {
	saved, err := parseState(s.o.Resume.State)
	if err != nil {
		return err
	}
	at, err := parsePlace(s.o.Flavor, s.o.Resume.Position)
	if err != nil {
		return fmt.Errorf("%w: %w", source.ErrCannotServe, err)
	}
	h, err := decodeHistory(saved.History, s.o.Match)
	if err != nil {
		return fmt.Errorf("%w: read the schema history in the record: %w", source.ErrCannotServe, err)
	}
	if names := h.newlyMatched(); len(names) > 0 {
		return fmt.Errorf("%w: relations: %s were not captured when the pipeline began and have not been copied; leave them out, or capture them by a pipeline of another name", source.ErrCannotServe, joinSome(names, 10))
	}
	if err := servable(h); err != nil {
		return err
	}
	ov, err := restoreOverlay(saved)
	if err != nil {
		return err
	}
	s.as = s.assembler(h, at, ov)
	if s.as.torn, err = openTorn(s.o.SpillDir, s.o.Pipeline); err != nil {
		return err
	}
	s.as.state.server, s.as.state.history = saved.Server, saved.History
	s.as.state.file, s.as.state.offset = saved.Server.File, saved.Server.Offset
	if err := s.as.xa.restore(saved.XA); err != nil {
		return err
	}
	_, err = s.located(ctx, c)
	return err
}

// servable names every captured table that cannot be served.
func servable(h *history) error {
	var errs []error
	for _, d := range h.captured() {
		if err := d.problem(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Relations are the captured relations at the place where Next begins.
func (s *Stream) Relations() []*source.Relation {
	var out []*source.Relation
	for _, d := range s.as.hist.captured() {
		out = append(out, s.as.state.overlay.of(d.Rel))
	}
	return out
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
	if ev != nil {
		if ev.State != nil {
			s.m.xa.Set(float64(len(s.as.xa.prepared)))
		}
		s.m.count(ev)
	}
	return ev, err
}

func (s *Stream) next(ctx context.Context) (*source.Event, error) {
	if s.copier != nil {
		return s.nextCopied(ctx)
	}
	for {
		if ev, err := s.as.next(); ev != nil || err != nil {
			return ev, err
		}
		if s.dump == nil {
			if err := s.reconnect(ctx); err != nil {
				return nil, err
			}
		}
		b, file, err := s.dump.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err := s.lost(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		if s.waiting {
			s.state(false, "")
		}
		s.fails = 0
		s.m.bytes.Add(float64(len(b)))
		if ev := s.heartbeat(b); ev != nil {
			return ev, nil
		}
		if file != "" {
			err = s.as.feedSpilled(b, file)
		} else {
			err = s.as.feed(b)
		}
		if err != nil {
			return nil, err
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
	case err == errCopied:
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, source.ErrCannotServe), errors.Is(err, source.ErrRestart):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: the initial snapshot broke off: %w", source.ErrRestart, err)
	}
	s.copier.close()
	s.copier = nil
	st := s.as.state
	st.file, st.offset = s.cut.file, s.cut.offset
	b, err := st.encode(s.as)
	if err != nil {
		return nil, err
	}
	s.beat = source.Event{Kind: source.Commit, Position: s.cut.at.position(), Time: s.cut.time, State: b, Barrier: true, Copied: s.copied}
	s.cut = nil
	return &s.beat, nil
}

// heartbeat makes an event of the server's word that it has nothing more.
func (s *Stream) heartbeat(b []byte) *source.Event {
	if len(b) < eventHeader {
		return nil
	}
	switch replication.EventType(b[4]) {
	case replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2:
	default:
		return nil
	}
	if s.as.group.open || s.as.resume != nil {
		return nil
	}
	s.beat = source.Event{Kind: source.Heartbeat, Position: s.as.at.position(), Time: time.Now().Add(s.skew).UTC()}
	return &s.beat
}

// lost takes the assembler back to the last whole transaction and decides
// whether the log can be read on.
func (s *Stream) lost(ctx context.Context, cause error) error {
	s.dump.close()
	s.dump = nil
	if !s.as.cut() {
		return fmt.Errorf("%w: the connection was lost inside of a transaction that creates a table: %w", source.ErrRestart, cause)
	}
	s.m.reconnects.Inc()
	if err := s.classify(cause); err != nil {
		return err
	}
	s.state(true, cause.Error())
	return s.backoff(ctx, cause, 0)
}

// Ack implements source.Source. The server keeps its log by its own rules, so
// only what was spilled for us is forgotten.
func (s *Stream) Ack(_ context.Context, pos source.Position) error {
	s.as.xa.acked(pos)
	return nil
}

// Close ends the connections; it waits for no answer of the server.
func (s *Stream) Close() error {
	if s.copier != nil {
		s.copier.close()
		s.copier = nil
	}
	if s.dump != nil {
		s.dump.close()
		s.dump = nil
	}
	if s.as != nil {
		s.as.cut()
		if s.as.unzip != nil {
			s.as.unzip.Close()
		}
	}
	if s.err == nil {
		s.err = errClosed
	}
	return nil
}

// Current is where the server stands: the position that contains everything
// committed before the call.
func Current(ctx context.Context, o Options) (source.Position, error) {
	o.defaults()
	c, err := connect(ctx, o.Config, sideTimeout)
	if err != nil {
		if refused(err) {
			return "", fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		}
		return "", fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	defer c.Close()
	p, err := c.current(ctx)
	if err != nil {
		return "", err
	}
	return p.position(), nil
}

func (c *conn) current(ctx context.Context) (place, error) {
	if c.mariaDB {
		t, err := c.one(ctx, "SELECT @@GLOBAL.gtid_binlog_pos")
		if err != nil {
			return place{}, err
		}
		d, err := parseDomains(t)
		return place{domains: d}, err
	}
	mode, err := c.one(ctx, "SELECT @@GLOBAL.gtid_mode")
	if err != nil {
		return place{}, err
	}
	if mode == "ON" {
		t, err := c.one(ctx, "SELECT @@GLOBAL.gtid_executed")
		if err != nil {
			return place{}, err
		}
		set, err := parseGTIDSet(t)
		return place{set: set}, err
	}
	return c.logEnd(ctx)
}

// logEnd is the end of the log by file.
func (c *conn) logEnd(ctx context.Context) (place, error) {
	r, err := c.first(ctx, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
	if c.mariaDB {
		r, err = c.first(ctx, "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
	}
	if err != nil {
		return place{}, err
	}
	off, err := strconv.ParseUint(r.at(0, "Position"), 10, 64)
	if err != nil {
		return place{}, fmt.Errorf("%w: the server writes no log (log_bin)", source.ErrCannotServe)
	}
	return place{file: r.at(0, "File"), offset: off}, nil
}
