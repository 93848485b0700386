package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/table"
)

// recover finishes what the last record names, then claims the next number with a
// higher epoch. It returns the claim: the record to resume at.
func (c *Coordinator) recover(ctx context.Context, out *sink.Sink) (*Record, error) {
	for {
		last, err := c.Store.Last(ctx)
		switch {
		case errors.Is(err, ErrNoRecord):
			last = &Record{Format: 1, Pipeline: c.Pipeline}
		case err != nil:
			return nil, err
		}
		if c.epoch != 0 && last.Epoch > c.epoch {
			return nil, fmt.Errorf("record %d has epoch %d, ours is %d, written by %s: %w", last.ID, last.Epoch, c.epoch, last.Writer, ErrFenced)
		}
		// Committing comes before claiming: the claim hides the record before it.
		// Two instances may both do this; the mark makes it harmless.
		if len(last.Deltas) > 0 {
			c.Log.Info("committing the last record before reading on", "checkpoint", last.ID, "files", files(last))
			if err := c.commitRecord(ctx, out, last, false); err != nil {
				return nil, err
			}
		}
		if c.epoch != 0 {
			return last, nil
		}
		if err := behind(ctx, out, last); err != nil {
			if newer, lerr := c.Store.Last(ctx); lerr == nil && newer.ID > last.ID {
				continue // it was saved meanwhile, by an instance in its last moments
			}
			return nil, err
		}
		claim := *last
		claim.ID, claim.Epoch, claim.Deltas = last.ID+1, last.Epoch+1, nil
		claim.SavedAt, claim.Writer = c.Now().UTC(), c.Writer
		err = c.Store.Put(ctx, &claim)
		if errors.Is(err, ErrFenced) {
			// Somebody saved this number meanwhile. The lock or lease is ours,
			// so it was its last: finish that record, too.
			if newer, lerr := c.Store.Last(ctx); lerr == nil && newer.Epoch == last.Epoch {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("claiming record %d: %w", claim.ID, err)
		}
		c.epoch = claim.Epoch
		if claim.Position != "" {
			c.Log.Info("resuming at the saved record", "checkpoint", last.ID, "position", claim.Position)
		}
		return &claim, nil
	}
}

// behind refuses records that are older than the tables: a backup, or a store that
// lost its newest. What the tables hold since then would be read and written a
// second time, or be taken for committed by its number. It comes before the claim,
// which would hide it from the next start.
func behind(ctx context.Context, out *sink.Sink, last *Record) error {
	marks, err := out.Marks(ctx, slices.Sorted(maps.Keys(last.Tables)))
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(marks)) {
		m := marks[name]
		if m.Checkpoint > last.ID || m.Checkpoint == last.ID && m.Epoch != last.Epoch || m.Epoch > last.Epoch {
			errs = append(errs, fmt.Errorf("table %s: %w: it carries the mark of checkpoint %d (epoch %d), but the newest saved record is %d (epoch %d): "+
				"records were lost or are an old copy; point checkpoint.store at the newest ones, or read on from what the tables hold with lakesyncd checkpoint set -from-tables",
				name, table.ErrUnfit, m.Checkpoint, m.Epoch, last.ID, last.Epoch))
		}
	}
	return errors.Join(errs...)
}

func files(r *Record) (n int) {
	for _, d := range r.Deltas {
		for _, l := range d.Layers {
			n += len(l.Files)
		}
	}
	return n
}
