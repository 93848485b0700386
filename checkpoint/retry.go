package checkpoint

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// action is what an error asks for.
type action uint8

const (
	stop    action = iota // give up and say so
	again                 // wait, then read again from the last record
	restart               // read again from the last record at once
)

// classify decides, here and nowhere else, what an error means for the pipeline.
func classify(err error) action {
	switch {
	case errors.Is(err, fileio.ErrDenied), errors.Is(err, source.ErrCannotServe), errors.Is(err, ErrFenced):
		return stop
	case errors.Is(err, fileio.ErrUnavailable), errors.Is(err, fileio.ErrUnknown):
		// The store is down, full or slow, or its last reply was lost: the
		// record tells what counts.
		return again
	case errors.Is(err, source.ErrRestart):
		return restart
	}
	return stop
}

const (
	firstWait = 200 * time.Millisecond
	longWait  = 15 * time.Second
)

// backoff waits before attempt n (from 1) tries again: doubling, with jitter, so
// that many pipelines do not come back in one instant.
func backoff(n int) time.Duration {
	d := longWait
	if n < 8 {
		d = min(longWait, firstWait<<(n-1))
	}
	return d/2 + rand.N(d/2+1)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
