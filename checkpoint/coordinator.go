package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// Coordinator runs one pipeline: it reads, writes and takes checkpoints.
type Coordinator struct {
	Options
	epoch int64 // ours; 0 until claimed
	// eager: a checkpoint is cut at each commit, up to a change of shape that
	// needs it.
	eager    bool
	streamed bool // the source and the lake have worked once: wait for them without end
	// step is called before and after each step; an error ends the run as a
	// crash at that point would. Only tests set it.
	step func(when, what string) error
}

// New checks the options and returns a Coordinator that Run starts.
func New(o Options) *Coordinator {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.IdleMark <= 0 {
		o.IdleMark = time.Hour
	}
	return &Coordinator{Options: o, step: func(string, string) error { return nil }}
}

// Run recovers, then reads, writes and takes checkpoints until ctx ends, when it
// takes a last one and returns nil. Other errors are for the program to turn into
// an exit code; errors that waiting or reading again can mend are handled here.
func (c *Coordinator) Run(ctx context.Context) error {
	c.state(Starting, "")
	started := c.Now()
	for attempt := 1; ; attempt++ {
		began := c.Now()
		err := c.attempt(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return nil // asked to stop before anything was open
		}
		if c.Now().Sub(began) > time.Minute {
			attempt = 1
		}
		switch classify(err) {
		case stop:
			return err
		case restart:
			c.Log.Warn("reading again from the last record", "err", err)
			continue
		}
		if !c.streamed && c.Now().Sub(started) > c.RetryBudget {
			return fmt.Errorf("gave up after %v: %w", c.RetryBudget, err)
		}
		if err := c.wait(ctx, "lake", err, attempt); err != nil {
			return nil
		}
	}
}

// wait tells of a retry and pauses before it; an error means that ctx ended.
func (c *Coordinator) wait(ctx context.Context, target string, err error, attempt int) error {
	in := backoff(attempt)
	c.state(WaitingLake, err.Error())
	c.Log.Warn("waiting for the lake", "err", err, "attempt", attempt, "elapsed", in)
	if c.Observer.Retry != nil {
		c.Observer.Retry(target, err, attempt, in)
	}
	return pause(ctx, in)
}

func (c *Coordinator) state(s State, reason string) {
	if c.Observer.State != nil {
		c.Observer.State(s, reason)
	}
}

// attempt opens both sides at the last record and runs until something ends it.
func (c *Coordinator) attempt(ctx context.Context) error {
	out, err := c.OpenSink(ctx)
	if err != nil {
		return err
	}
	defer out.Close()
	last, err := c.recover(ctx, out)
	if err != nil {
		return err
	}
	in, err := c.OpenSource(ctx, last, c.streamed)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := out.Prepare(ctx, in.Relations(), last.Tables); err != nil {
		return err
	}
	r := &run{Coordinator: c, in: in, out: out, last: last, position: last.Position, sourceTime: last.SourceTime, state: last.Source}
	r.begin()
	err = r.loop(ctx)
	r.abandon()
	return err
}

// run is the state of one attempt. The loop's goroutine owns it.
type run struct {
	*Coordinator
	in  Stream
	out *sink.Sink

	last *Record // newest saved

	// The newest point at which a checkpoint may be cut.
	position   source.Position
	sourceTime time.Time
	state      []byte

	open     bool            // rows of a transaction that has not ended were written
	dirty    bool            // something was written since the last flush
	barrier  bool            // a checkpoint is due now
	complete map[string]bool // relations whose initial snapshot is complete
	copying  bool

	next    time.Time // the next checkpoint may start
	touched time.Time // marks of unchanged tables were last refreshed

	commit *commit // under way or finished and not yet acknowledged; nil if none
}

func (r *run) begin() {
	now := r.Now()
	r.complete = map[string]bool{}
	for _, t := range r.last.Tables {
		if t.Complete {
			r.complete[t.Relation] = true
		}
	}
	r.copying = r.last.Position == ""
	r.next, r.touched = now.Add(r.Interval), now
	if r.copying {
		r.Coordinator.state(Copying, "")
	} else {
		r.Coordinator.state(Streaming, "")
	}
}

// loop turns until ctx ends or an error does. One turn: a checkpoint if one is
// due, then the next event.
func (r *run) loop(ctx context.Context) error {
	for {
		r.tick()
		if err := r.collect(ctx, false); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return r.finish(ctx)
		}
		if r.due() {
			if err := r.checkpoint(ctx); err != nil {
				return err
			}
		}
		ev, err := r.event(ctx)
		if err != nil {
			return r.keep(ctx, err)
		}
		if ev == nil {
			continue // a deadline, the end of ctx or of a commit: look again
		}
		if err := r.write(ctx, ev); err != nil {
			return err
		}
	}
}

// turnTime is the longest that the loop sleeps without turning, so that a
// watchdog can tell a wait from a hang.
const turnTime = 5 * time.Second

func (r *run) tick() {
	if r.Observer.Tick != nil {
		r.Observer.Tick()
	}
}

// due reports whether a checkpoint must be taken now.
func (r *run) due() bool {
	if r.open {
		return false
	}
	if r.barrier || r.eager && r.dirty {
		return true
	}
	if r.commit != nil || r.Now().Before(r.next) {
		return false
	}
	return r.dirty || r.position != r.last.Position || r.Now().Sub(r.touched) >= r.IdleMark
}

// event waits for the source until a checkpoint may be due or the commit under
// way ends, whichever comes first.
func (r *run) event(ctx context.Context) (*source.Event, error) {
	sleep := turnTime
	if until := r.deadline(); !until.IsZero() {
		sleep = min(sleep, until.Sub(r.Now()))
	}
	wait, cancel := context.WithTimeout(ctx, sleep)
	defer cancel()
	if r.commit != nil {
		var done context.CancelFunc
		wait, done = context.WithCancel(wait)
		defer done()
		defer context.AfterFunc(r.commit.ctx, done)()
	}
	ev, err := r.in.Next(wait)
	if err != nil && wait.Err() != nil && errors.Is(err, wait.Err()) {
		return nil, nil
	}
	return ev, err
}

// deadline is when due may turn true without an event; zero: not by time.
func (r *run) deadline() time.Time {
	switch {
	case r.open || r.commit != nil:
		return time.Time{}
	case r.dirty || r.position != r.last.Position:
		return r.next
	}
	return r.touched.Add(r.IdleMark)
}

func (r *run) write(ctx context.Context, ev *source.Event) error {
	switch ev.Kind {
	case source.Rows, source.Truncate:
		r.open, r.dirty = true, true
	case source.Schema:
		if err := r.settle(ctx, ev); err != nil {
			return err
		}
		if ev.Change != nil && ev.Change.Created {
			r.complete[ev.Relation.FullName()] = true
		}
		r.open, r.dirty = true, true
	case source.Commit, source.Heartbeat:
		return r.mark(ev)
	default:
		return fmt.Errorf("source event of kind %d: %w", ev.Kind, source.ErrCannotServe)
	}
	// A batch is written whole or not at all, also when asked to stop meanwhile:
	// the last checkpoint needs it.
	if err := r.out.Write(context.WithoutCancel(ctx), ev); err != nil {
		return fmt.Errorf("writing after %s: %w", r.position, err)
	}
	return nil
}

// settle makes the relation of a Schema event ready for its new shape: rows of the
// old one belong to the checkpoint before it.
func (r *run) settle(ctx context.Context, ev *source.Event) error {
	if r.out.Pending(ev.Relation) {
		switch {
		case !r.open:
			if err := r.checkpoint(ctx); err != nil {
				return err
			}
		case !r.eager:
			// No checkpoint can be cut inside of a transaction. Read again, and cut
			// one at each commit up to here: then only rows of this transaction
			// can be in the way.
			r.eager = true
			return fmt.Errorf("relation %s gets a new shape inside of a transaction after %s: %w", ev.Relation.FullName(), r.position, source.ErrRestart)
		default:
			return fmt.Errorf("relation %s gets a new shape after rows of it were changed in the same transaction, which follows %s; "+
				"this version cannot apply both in one snapshot: copy the relation again into a new table under a new pipeline, and change shapes in transactions of their own: %w",
				ev.Relation.FullName(), r.position, source.ErrCannotServe)
		}
	}
	r.eager = false
	return r.collect(ctx, true)
}

// mark moves the point at which a checkpoint may be cut.
func (r *run) mark(ev *source.Event) error {
	if ev.Kind == source.Heartbeat && r.open {
		return fmt.Errorf("heartbeat at %s inside a transaction", ev.Position)
	}
	r.open = false
	if ev.Position != "" {
		r.position = ev.Position
	}
	if ev.Time.After(r.sourceTime) {
		r.sourceTime = ev.Time
	}
	if ev.State != nil {
		r.state = ev.State
	}
	for _, rel := range ev.Copied {
		r.complete[rel.FullName()] = true
	}
	r.out.Completed(ev.Copied...)
	r.barrier = r.barrier || ev.Barrier
	if r.Observer.Read != nil {
		r.Observer.Read(r.position, r.sourceTime)
	}
	if !r.dirty && r.commit == nil && r.Observer.Complete != nil && !r.copying {
		r.Observer.Complete(r.sourceTime)
	}
	return nil
}

// checkpoint flushes and saves, then commits beside the loop.
func (r *run) checkpoint(ctx context.Context) error {
	started := r.Now()
	if err := r.step("before", "flush"); err != nil {
		return err
	}
	deltas, err := r.out.Flush(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("flushing before %s: %w", r.position, err)
	}
	r.phase("flush", started)
	if err := r.step("after", "flush"); err != nil {
		return err
	}
	// The record before must be committed in all tables first: two of them are
	// never open at once, and never merged.
	if err := r.collect(ctx, true); err != nil {
		return err
	}
	rec := r.record(deltas)
	if err := r.save(ctx, rec); err != nil {
		return err
	}
	r.last, r.dirty = rec, false
	touch := r.barrier || r.Now().Sub(r.touched) >= r.IdleMark
	if touch {
		r.touched = r.Now()
	}
	r.next = started.Add(r.Interval)
	r.commit = r.startCommit(ctx, rec, touch)
	if r.barrier {
		r.barrier = false
		if err := r.collect(ctx, true); err != nil {
			return err
		}
		r.copying = false
		r.Coordinator.state(Streaming, "")
	}
	return nil
}

func (r *run) phase(name string, started time.Time) {
	if r.Observer.Phase != nil {
		r.Observer.Phase(name, r.Now().Sub(started))
	}
}

// record puts together what a restart at this point needs.
func (r *run) record(deltas []table.Delta) *Record {
	rec := &Record{
		Format: 1, Pipeline: r.Pipeline, ID: r.last.ID + 1, Epoch: r.epoch,
		Position: r.position, SourceTime: r.sourceTime, Source: r.state,
		Deltas: deltas, Tables: r.out.Tables(), SavedAt: r.Now().UTC(), Writer: r.Writer,
	}
	for name, t := range rec.Tables {
		t.Complete = r.complete[t.Relation]
		t.Checkpoint = max(t.Checkpoint, r.last.Tables[name].Checkpoint)
		rec.Tables[name] = t
	}
	for i := range rec.Deltas {
		d := &rec.Deltas[i]
		t := rec.Tables[d.Table]
		d.Complete = t.Complete
		t.Checkpoint = rec.ID
		rec.Tables[d.Table] = t
	}
	return rec
}

// save makes the record durable. It holds everything that was flushed, so a store
// that is down is waited for here.
func (r *run) save(ctx context.Context, rec *Record) error {
	started := r.Now()
	if err := r.step("before", "save"); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := r.Store.Put(context.WithoutCancel(ctx), rec)
		if err == nil {
			break
		}
		if classify(err) != again || ctx.Err() != nil {
			return fmt.Errorf("saving record %d: %w", rec.ID, err)
		}
		if werr := r.wait(ctx, "lake", err, attempt); werr != nil {
			return fmt.Errorf("saving record %d: %w", rec.ID, err)
		}
	}
	r.streamed = true
	r.phase("save", started)
	if r.Observer.Saved != nil {
		r.Observer.Saved(rec)
	}
	return r.step("after", "save")
}

// keep saves what is complete before the source stops the pipeline for good: the
// changes before a statement that can't be followed belong to the lake, and the
// next start would stop at the same place before it had read them.
func (r *run) keep(ctx context.Context, cause error) error {
	if r.open || !r.dirty || classify(cause) != stop {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	err := r.checkpoint(ctx)
	if err == nil {
		err = r.collect(ctx, true)
	}
	if err != nil {
		r.Log.Warn("the changes before the stop are not in the lake yet", "position", r.position, "err", err)
	}
	return cause
}

// lastTime is how long the last checkpoint of a process may take.
const lastTime = 25 * time.Second

// finish takes the last checkpoint after ctx has ended. A transaction that is
// still open is given a moment to end; otherwise it is read again next time.
func (r *run) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	if r.open && !r.copying {
		wait, done := context.WithTimeout(ctx, 5*time.Second)
		defer done()
		for r.open {
			ev, err := r.in.Next(wait)
			if err != nil {
				break
			}
			if err := r.write(ctx, ev); err != nil {
				return err
			}
		}
	}
	if !r.open && (r.dirty || r.position != r.last.Position) {
		if err := r.checkpoint(ctx); err != nil {
			return err
		}
	}
	return r.collect(ctx, true)
}
