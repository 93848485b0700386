package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// lost takes the assembler back to the last whole transaction and decides
// whether the changes can be read on.
func (s *Stream) lost(cause error) error {
	if s.feed != nil {
		s.feed.close()
		s.feed = nil
	}
	if errors.Is(cause, errSilent) {
		// Older servers say nothing while they decode a large transaction.
		if s.stalled == s.as.at {
			s.patience = min(2*s.patience, time.Hour)
		}
		s.stalled = s.as.at
	}
	s.as.lose()
	s.m.reconnects.Inc()
	if err := s.classify(cause); err != nil {
		return err
	}
	s.state(true, cause.Error())
	s.notBefore = time.Now().Add(s.delay(cause))
	return nil
}

// classify is nil for an error that waiting can mend while the pipeline runs.
func (s *Stream) classify(err error) error {
	switch {
	case errors.Is(err, source.ErrCannotServe), errors.Is(err, source.ErrRestart):
		return err
	case login(err), transport(err), errors.Is(err, errStandby):
		return nil // passwords are changed in two places, one after the other
	}
	return fmt.Errorf("%w: after %s: %w; %s", source.ErrCannotServe, s.as.at.position(), err, copyAnew)
}

// opened is a feed, or why there is none.
type opened struct {
	feed *feed
	id   identity
	err  error
}

// reconnect opens the feed behind the last whole transaction, however long it
// takes. When ctx ends, the next call goes on with the same attempt.
func (s *Stream) reconnect(ctx context.Context) error {
	for {
		if s.opening == nil {
			if d := time.Until(s.notBefore); d > 0 {
				if err := pause(ctx, d); err != nil {
					return err
				}
			}
			s.opening = make(chan opened, 1)
			done, at, acked, was := s.opening, s.as.at, s.acked, s.id
			// Ends with the attempt, which life bounds. Who takes the result is
			// reconnect or Close.
			go func() {
				f, id, err := s.openFeed(s.life, was, at, acked)
				done <- opened{f, id, err}
			}()
		}
		var r opened
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r = <-s.opening:
			s.opening = nil
		}
		if r.err == nil {
			return s.begin(r)
		}
		if err := s.classify(r.err); err != nil {
			return err
		}
		s.state(true, r.err.Error())
		s.notBefore = time.Now().Add(s.delay(r.err))
	}
}

// begin reads a feed that was opened.
func (s *Stream) begin(r opened) error {
	s.feed = r.feed
	if t := s.as.resume; t != nil && r.id != s.id {
		return fmt.Errorf("%w: the connection was lost inside of the transaction that commits at %s, and the server is on another timeline now", source.ErrRestart, t.final)
	}
	s.moved(r.id)
	s.feed.confirm(s.acked)
	s.as.read(s.feed.q)
	if s.watcher == nil {
		s.watcher = s.startWatcher()
	}
	s.watcher.follow(s.feed)
	s.state(false, "")
	s.o.Log.Info("reading the log", "slot", s.o.Config.Slot, "position", string(s.as.at.position()))
	return nil
}

// openFeed is one attempt to read the changes from at on.
func (s *Stream) openFeed(ctx context.Context, was identity, at, acked lsn) (*feed, identity, error) {
	side, err := connect(ctx, s.o, sideSession)
	if err != nil {
		return nil, was, err
	}
	defer side.close()
	rc, err := connect(ctx, s.o, replicationSession)
	if err != nil {
		return nil, was, err
	}
	now, confirmed, err := located(ctx, s.o, side, rc, was, at)
	if err == nil {
		err = s.watch(ctx, side, side.version)
	}
	if err != nil {
		rc.close()
		return nil, was, err
	}
	f, err := startFeed(ctx, s.o, rc, feedOptions{
		at: at, confirmed: max(confirmed, acked), memory: s.o.Memory, heartbeat: s.o.Config.Heartbeat.D(),
		patience: s.patience, count: func(n int) { s.m.bytes.Add(float64(n)) },
	})
	return f, now.identity, err
}
