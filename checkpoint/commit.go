package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/table"
)

// parallelCommits bounds how many tables are committed at once: enough to hide a
// store's latency, few enough to bound memory.
const parallelCommits = 8

// commit is the third step of one checkpoint, beside the loop.
type commit struct {
	rec    *Record
	ctx    context.Context // ends when the commit has ended
	cancel context.CancelFunc
	err    error // read after ctx has ended
}

// startCommit commits a saved record. abandon or collect wait for its goroutine.
func (r *run) startCommit(ctx context.Context, rec *Record, touch bool) *commit {
	// The loop's ctx may end while a commit is under way; it is then finished
	// by finish, within its time, or by the next start.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	done, finished := context.WithCancel(context.Background())
	k := &commit{rec: rec, ctx: done, cancel: stop}
	go func() {
		defer finished()
		started := r.Now()
		k.err = r.commitRecord(work, r.out, rec, touch)
		if k.err == nil {
			r.phase("commit", started)
			if len(rec.Deltas) > 0 {
				r.Log.Info("checkpoint committed", "checkpoint", rec.ID, "position", rec.Position, "tables", len(rec.Deltas),
					"files", files(rec), "source_time", rec.SourceTime, "elapsed", r.Now().Sub(started).Round(time.Millisecond))
			}
		}
	}()
	return k
}

// collect takes note of a commit that has ended, and waits for it if asked to.
func (r *run) collect(ctx context.Context, wait bool) error {
	k := r.commit
	if k == nil {
		return nil
	}
	if !wait && k.ctx.Err() == nil {
		return nil
	}
	if err := r.await(ctx, k); err != nil {
		return err
	}
	r.commit = nil
	k.cancel()
	if k.err != nil {
		return k.err
	}
	if next := r.Now().Add(r.MinPause); next.After(r.next) {
		r.next = next
	}
	if r.Observer.Complete != nil {
		r.Observer.Complete(k.rec.SourceTime)
	}
	started := r.Now()
	if err := r.step("before", "ack"); err != nil {
		return err
	}
	if err := r.in.Ack(ctx, k.rec.Position); err != nil {
		return fmt.Errorf("acknowledging %s: %w", k.rec.Position, err)
	}
	r.phase("ack", started)
	if err := r.step("after", "ack"); err != nil {
		return err
	}
	return r.Store.Prune(ctx, keptRecords)
}

// await waits for a commit, turning the loop's watchdog meanwhile.
func (r *run) await(ctx context.Context, k *commit) error {
	for {
		r.tick()
		if k.ctx.Err() != nil {
			return nil
		}
		turn := time.NewTimer(turnTime)
		select {
		case <-k.ctx.Done():
		case <-turn.C:
		case <-ctx.Done():
			turn.Stop()
			return fmt.Errorf("record %d is saved but not committed in time, the next start commits it: %w", k.rec.ID, context.Cause(ctx))
		}
		turn.Stop()
	}
}

// keptRecords is how many records are left for people to look at.
const keptRecords = 10

// abandon ends a commit that is under way, before its sink is closed.
func (r *run) abandon() {
	if r.commit != nil {
		r.commit.cancel()
		<-r.commit.ctx.Done()
	}
}

// commitRecord commits every delta of a saved record, each exactly once, waiting
// for a lake that is down as long as ctx lasts. touch also refreshes the marks of
// the tables that did not change.
func (c *Coordinator) commitRecord(ctx context.Context, out *sink.Sink, rec *Record, touch bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg      sync.WaitGroup
		slots   = make(chan struct{}, parallelCommits)
		mu      sync.Mutex
		results = map[string]table.Result{}
	)
	do := func(name string, f func() (table.Result, error)) {
		slots <- struct{}{}
		wg.Add(1)
		// Ends with f, which ends with ctx; commitRecord waits for it.
		go func() {
			defer func() { <-slots; wg.Done() }()
			res, err := c.commitTable(ctx, name, f)
			if err != nil {
				cancel(fmt.Errorf("committing checkpoint %d to %s: %w", rec.ID, name, err))
				return
			}
			mu.Lock()
			results[name] = res
			mu.Unlock()
		}()
	}
	m := rec.mark()
	changed := map[string]bool{}
	for _, d := range rec.Deltas {
		changed[d.Table] = true
		do(d.Table, func() (table.Result, error) { return out.Commit(ctx, d, m) })
	}
	if touch {
		for name := range rec.Tables {
			if !changed[name] {
				do(name, func() (table.Result, error) { return table.Result{}, out.Touch(ctx, name, m) })
			}
		}
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if c.Observer.Committed != nil {
		c.Observer.Committed(rec, results)
	}
	return nil
}

func (c *Coordinator) commitTable(ctx context.Context, name string, f func() (table.Result, error)) (table.Result, error) {
	if err := c.step("before", "commit:"+name); err != nil {
		return table.Result{}, err
	}
	waited := false
	for attempt := 1; ; attempt++ {
		res, err := f()
		if err == nil {
			if waited {
				c.state(Streaming, "")
			}
			return res, c.step("after", "commit:"+name)
		}
		if classify(err) != again || ctx.Err() != nil {
			return res, err
		}
		waited = true
		if werr := c.wait(ctx, "lake", err, attempt); werr != nil {
			return res, errors.Join(err, werr)
		}
	}
}

// mark is what the tables carry once this record is committed.
func (r *Record) mark() table.Mark {
	return table.Mark{Pipeline: r.Pipeline, Epoch: r.Epoch, Checkpoint: r.ID, Position: string(r.Position), SourceTime: r.SourceTime.UTC().Truncate(time.Microsecond)}
}
