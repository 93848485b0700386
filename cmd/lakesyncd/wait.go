package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

func waitFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	position := fs.String("position", "", "`POSITION` to wait for: gtid:…, file:NAME:OFFSET or lsn:X/Y; without it where the source stands now")
	timeout := fs.Duration("timeout", time.Minute, "how `LONG` to wait")
	return func(ctx context.Context, c *cli, _ []string) error {
		if *timeout <= 0 {
			return usagef("wait: -timeout must be positive")
		}
		cfg, err := load(*path)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		w := &waiter{cfg: cfg, want: source.Position(*position), committed: map[string]int64{}}
		if err := w.run(ctx, c); err != nil {
			if ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
				return w.timeout(*timeout)
			}
			return err
		}
		c.printf("%s is in the tables (checkpoint %d)", w.want, w.reached)
		return nil
	}
}

// waiter looks at records and tables from outside, so that its answer holds for
// every reader, whatever the daemon believes.
type waiter struct {
	cfg     *config.Config
	lake    *lake
	want    source.Position
	reached int64

	committed map[string]int64 // newest checkpoint seen in a table, with its hint written
	missing   string           // what is not there yet
}

func (w *waiter) timeout(after time.Duration) error {
	text := w.missing
	if text == "" {
		text = "nothing was heard"
	}
	if w.lake != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if r, err := savedReport(ctx, w.lake.store); err == nil && r.State != checkpoint.Streaming {
			text += "; the daemon is " + statusLine(r)
		}
	}
	return fmt.Errorf("wait for %s: %w after %s: %s", w.want, errTimeout, after, text)
}

// run returns nil once everything is there.
func (w *waiter) run(ctx context.Context, c *cli) error {
	if w.want != "" {
		if _, err := reached(w.want, w.want); err != nil {
			return usagef("wait: -position: %v", err)
		}
	}
	log := c.quietLog(w.cfg)
	every := 100 * time.Millisecond
	if _, local := fileio.LocalPath(w.cfg.Checkpoint.Store); !local {
		every = time.Second
	}
	for {
		err := w.look(ctx, func() (err error) {
			if w.lake == nil {
				w.lake, err = openLake(ctx, w.cfg, looking, log, nil)
			}
			if err == nil && w.want == "" {
				w.want, err = currentPosition(ctx, w.cfg, log)
			}
			return err
		})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNotYet):
			w.missing = err.Error()
		case errors.Is(err, fileio.ErrUnavailable), errors.Is(err, source.ErrUnavailable), errors.Is(err, checkpoint.ErrNoRecord):
			w.missing = err.Error()
		default:
			return err
		}
		t := time.NewTimer(every)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

// errNotYet: everything answered, but is not far enough.
var errNotYet = errors.New("not there yet")

func (w *waiter) look(ctx context.Context, open func() error) error {
	if err := open(); err != nil {
		return err
	}
	rec, err := w.lake.store.Last(ctx)
	if err != nil {
		return err
	}
	if rec.Position == "" {
		return fmt.Errorf("%w: the initial snapshot is running", errNotYet)
	}
	ok, err := reached(rec.Position, w.want)
	if err != nil {
		return usagef("wait: -position: %v", err)
	}
	if !ok {
		return fmt.Errorf("%w: record %d is at %s", errNotYet, rec.ID, rec.Position)
	}
	for name, t := range rec.Tables {
		if !t.Complete {
			return fmt.Errorf("%w: relation %s is still being copied", errNotYet, t.Relation)
		}
		if err := w.inTable(ctx, name, t.Checkpoint); err != nil {
			return err
		}
	}
	w.reached = rec.ID
	return nil
}

// inTable checks that a table carries the mark of a checkpoint and that readers
// find it.
func (w *waiter) inTable(ctx context.Context, name string, id int64) error {
	if w.committed[name] >= id {
		return nil
	}
	missing := fmt.Errorf("%w: checkpoint %d is not committed to table %s", errNotYet, id, name)
	t, err := w.lake.catalog.Load(ctx, name)
	if errors.Is(err, table.ErrNotFound) {
		return missing
	}
	if err != nil {
		return err
	}
	m, ok, err := t.Mark(w.cfg.Pipeline)
	if err != nil {
		return err
	}
	if !ok || m.Checkpoint < id {
		return missing
	}
	hint, err := w.lake.hint(ctx, t)
	switch {
	case errors.Is(err, fileio.ErrNotExist), err == nil && hint < t.MetadataVersion():
		return fmt.Errorf("%w: the version hint of table %s is behind", errNotYet, name)
	case err != nil:
		return err
	}
	w.committed[name] = m.Checkpoint
	return nil
}

// uncommitted lists the tables that lack a delta of the record, sorted.
func (l *lake) uncommitted(ctx context.Context, pipeline string, rec *checkpoint.Record) (missing, committed []string, err error) {
	for i := range rec.Deltas {
		name := rec.Deltas[i].Table
		t, err := l.catalog.Load(ctx, name)
		if errors.Is(err, table.ErrNotFound) {
			missing = append(missing, name)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		m, ok, err := t.Mark(pipeline)
		if err != nil {
			return nil, nil, err
		}
		if ok && m.Checkpoint >= rec.ID && t.UUID() == rec.Deltas[i].UUID {
			committed = append(committed, name)
		} else {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	slices.Sort(committed)
	return missing, committed, nil
}
