package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/table"
)

// states in the order in which the reference lists them.
var states = []checkpoint.State{
	checkpoint.Starting, checkpoint.Copying, checkpoint.Streaming,
	checkpoint.WaitingSource, checkpoint.WaitingLake, checkpoint.Stopped,
}

// statusReport is the JSON of /status and of `lakesyncd status -json`.
type statusReport struct {
	Pipeline   string                 `json:"pipeline"`
	State      checkpoint.State       `json:"state"`
	Since      time.Time              `json:"since"`
	Reason     string                 `json:"reason"`
	Checkpoint int64                  `json:"checkpoint"` // newest that is committed in all tables
	Epoch      int64                  `json:"epoch"`
	Position   string                 `json:"position"`    // of that checkpoint
	SourceTime *time.Time             `json:"source_time"` // every table is complete up to here
	LagSeconds *float64               `json:"lag_seconds"`
	Tables     map[string]tableReport `json:"tables"`
	// Copy is there while the initial snapshot runs, by relation.
	Copy map[string]copyReport `json:"copy,omitempty"`
	// Running is false in what is told of a daemon that does not answer.
	Running bool   `json:"running"`
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

// tableReport is one table of a statusReport.
type tableReport struct {
	Relation    string `json:"relation"`
	Rows        int64  `json:"rows"`
	Files       int64  `json:"files"`
	DeleteFiles int64  `json:"delete_files"`
	SnapshotID  int64  `json:"snapshot_id"` // 0: none yet
	Complete    bool   `json:"complete"`    // the initial snapshot is in
	Checkpoint  int64  `json:"checkpoint"`  // newest that changed the table
	Inserts     string `json:"inserts"`     // proven or upsert
	Note        string `json:"note,omitempty"`
}

// tableOf counts rows from the totals of the snapshot. Where the log proves each
// insert to be new, each delete takes exactly one row away and the number is
// exact; under the rule upsert a delete may meet no row, and there are at least
// so many.
func tableOf(t sink.TableStatus) tableReport {
	return tableReport{
		Relation: t.Relation, Rows: max(0, t.Rows-t.PositionDeletes-t.EqualityDeletes),
		Files: t.Files, DeleteFiles: t.DeleteFiles, SnapshotID: t.SnapshotID,
		Complete: t.Complete, Checkpoint: t.Checkpoint, Inserts: t.Rule, Note: t.Why,
	}
}

// copyReport tells how far the initial snapshot of a relation is.
type copyReport struct {
	Rows      int64 `json:"rows"`
	Estimated int64 `json:"estimated_rows"` // the server's guess; -1: unknown
	Done      bool  `json:"done"`
}

// statusBoard is the one place that knows what the daemon is doing. The pipeline
// writes to it; HTTP, systemd and the status command read it.
//
// Two waits may overlap, and each ends by itself: the lake's is part of the
// phase that the coordinator sets, the source's lies above it.
type statusBoard struct {
	log *slog.Logger
	now func() time.Time
	m   *metrics

	turned atomic.Int64 // Unix nanoseconds at which the loop last turned

	mu           sync.Mutex
	report       statusReport
	phase        checkpoint.State
	phaseReason  string
	sourceWaits  bool
	sourceReason string
	tables       func() []sink.TableStatus
	changed      chan struct{} // closed and replaced at each change of state
}

func newStatusBoard(pipeline string, reg prometheus.Registerer, log *slog.Logger, now func() time.Time) *statusBoard {
	b := &statusBoard{
		log: log, now: now, m: newMetrics(reg),
		phase:   checkpoint.Starting,
		changed: make(chan struct{}),
		report: statusReport{
			Pipeline: pipeline, State: checkpoint.Starting, Since: now().UTC(),
			Running: true, Version: programVersion(), PID: os.Getpid(),
		},
	}
	b.turned.Store(now().UnixNano())
	b.m.setState(checkpoint.Starting)
	return b
}

// Set takes the phase that the coordinator is in.
func (b *statusBoard) Set(s checkpoint.State, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.phase, b.phaseReason = s, reason
	b.settle()
}

// SourceWaits is told when the source's connection is lost and found again.
func (b *statusBoard) SourceWaits(waiting bool, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sourceWaits, b.sourceReason = waiting, reason
	b.settle()
}

// settle derives the state. b.mu is held.
func (b *statusBoard) settle() {
	s, reason := b.phase, b.phaseReason
	if b.sourceWaits && s != checkpoint.Stopped && s != checkpoint.WaitingLake {
		s, reason = checkpoint.WaitingSource, b.sourceReason
	}
	b.turned.Store(b.now().UnixNano())
	r := &b.report
	if s == r.State {
		r.Reason = reason
		return
	}
	args := []any{"state", string(s), "before", string(r.State)}
	level := slog.LevelInfo
	switch s {
	case checkpoint.WaitingSource, checkpoint.WaitingLake:
		level = slog.LevelWarn
	}
	if reason != "" {
		args = append(args, "reason", reason)
	}
	r.State, r.Reason, r.Since = s, reason, b.now().UTC()
	if s == checkpoint.Streaming {
		r.Copy = nil
	}
	b.m.setState(s)
	if s != checkpoint.Stopped { // the program's last line says why
		b.log.Log(context.Background(), level, "state changed", args...)
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// Changed is closed at the next change of state.
func (b *statusBoard) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Observer connects the board with a coordinator.
func (b *statusBoard) Observer() checkpoint.Observer {
	return checkpoint.Observer{
		State:     b.Set,
		Saved:     func(r *checkpoint.Record) { b.m.saved(r) },
		Committed: b.committed,
		Complete:  b.complete,
		Phase:     b.m.phase,
		Retry: func(target string, _ error, _ int, _ time.Duration) {
			b.m.retries.WithLabelValues(target).Inc()
			b.Tick()
		},
		Tick: b.Tick,
	}
}

// Tick says that the loop has turned.
func (b *statusBoard) Tick() { b.turned.Store(b.now().UnixNano()) }

func (b *statusBoard) committed(r *checkpoint.Record, _ map[string]table.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Tick()
	b.report.Checkpoint, b.report.Epoch, b.report.Position = r.ID, r.Epoch, string(r.Position)
	for name, state := range r.Tables {
		b.m.complete(name, state.Complete)
	}
	b.m.committed(r, b.now())
}

// complete moves the time up to which every table is complete.
func (b *statusBoard) complete(at time.Time) {
	if at.IsZero() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at = at.UTC()
	b.report.SourceTime = &at
	b.m.sourceTime.Set(float64(at.UnixMicro()) / 1e6)
}

// Resumed takes the record that a start goes on from, so that the status of an
// idle pipeline doesn't begin empty.
func (b *statusBoard) Resumed(r *checkpoint.Record) {
	if r == nil || r.Position == "" {
		return
	}
	b.complete(r.SourceTime)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.report.Checkpoint, b.report.Epoch, b.report.Position = r.ID, r.Epoch, string(r.Position)
	b.m.checkpoint.Set(float64(r.ID))
	for name, state := range r.Tables {
		b.m.complete(name, state.Complete)
	}
}

// TablesOf names the sink whose tables a report shows; the newest one counts.
// status must be safe to call at any time, also after the sink was closed.
func (b *statusBoard) TablesOf(status func() []sink.TableStatus) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tables = status
}

// SetCopy tells how far the initial snapshot of a relation is.
func (b *statusBoard) SetCopy(relation string, rows, estimated int64, done bool) {
	b.Tick()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.report.Copy == nil {
		b.report.Copy = map[string]copyReport{}
	}
	b.report.Copy[relation] = copyReport{Rows: rows, Estimated: estimated, Done: done}
	b.m.copied.WithLabelValues(relation).Set(float64(rows))
	if estimated >= 0 {
		b.m.estimated.WithLabelValues(relation).Set(float64(estimated))
	}
}

// Report is the status as it is now.
func (b *statusBoard) Report() statusReport {
	b.mu.Lock()
	r, tables := b.report, b.tables
	r.Copy = maps.Clone(r.Copy)
	b.mu.Unlock()
	r.age(b.now())
	r.Tables = map[string]tableReport{}
	if tables == nil {
		return r
	}
	for _, t := range tables() {
		r.Tables[t.Table] = tableOf(t)
	}
	return r
}

// age computes the lag at a moment.
func (r *statusReport) age(now time.Time) {
	if r.SourceTime == nil {
		return
	}
	// Clocks of two hosts differ; a negative lag says nothing.
	lag := max(0, now.Sub(*r.SourceTime).Seconds())
	r.LagSeconds = &lag
}

// stillness is how long the loop may not turn before the daemon counts as hung.
// An upload of a large checkpoint to a slow store is the longest turn.
const stillness = 10 * time.Minute

// Alive reports whether the loop turns. Waiting counts as turning: nothing that a
// restart of the daemon would mend is wrong with it.
func (b *statusBoard) Alive() (bool, time.Duration) {
	still := b.now().Sub(time.Unix(0, b.turned.Load()))
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.report.State {
	case checkpoint.Copying, checkpoint.Streaming:
		return still < stillness, still
	}
	return true, still
}

// saveEvery bounds how often an unchanged state is saved: what a person wants to
// know of a dead daemon isn't worth a request per checkpoint.
const saveEvery = time.Minute

// Persist keeps the status beside the records while the caller holds the lease,
// so that it can be told when the daemon is dead. finish ends that with the last
// state; the caller calls it before it releases the lease.
func (b *statusBoard) Persist(save func(ctx context.Context, status json.RawMessage) error) (finish func(err error)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	put := func(ctx context.Context) {
		data, err := json.Marshal(b.Report())
		if err == nil {
			err = save(ctx, data)
		}
		if err != nil && ctx.Err() == nil {
			b.log.Debug("status was not saved", "err", err)
		}
	}
	// finish stops it.
	go func() {
		defer close(done)
		tick := time.NewTicker(saveEvery)
		defer tick.Stop()
		for {
			changed := b.Changed()
			put(ctx)
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-tick.C:
			}
		}
	}()
	return func(err error) {
		cancel()
		<-done
		b.Stop(err)
		if errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, table.ErrFenced) {
			return // the status is the other instance's now
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		put(ctx)
	}
}

// Stop sets the last state. Repeating it keeps the first reason.
func (b *statusBoard) Stop(err error) {
	b.mu.Lock()
	stopped := b.phase == checkpoint.Stopped
	b.mu.Unlock()
	if stopped {
		return
	}
	reason := "stopped as asked"
	if code := exitCode(err); code != exitOK {
		reason = fmt.Sprintf("%v (exit code %d)", err, code)
	}
	b.Set(checkpoint.Stopped, reason)
}
