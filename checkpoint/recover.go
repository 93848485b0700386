package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/lakesyncd/lakesyncd/sink"
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

func files(r *Record) (n int) {
	for _, d := range r.Deltas {
		for _, l := range d.Layers {
			n += len(l.Files)
		}
	}
	return n
}
