// Package checkpoint is the top of the domain: it alone knows the order of
// steps that makes a pipeline exactly-once.
//
// A checkpoint is flush, save, commit, ack:
//
//   - flush makes every staged file durable and visible to nobody;
//   - save writes one record with the source's position and the staged files,
//     created exclusively under the next number;
//   - commit makes one Iceberg snapshot per changed table, each with a mark by
//     which a commit is recognised;
//   - ack tells the source what it may forget.
//
// Whatever dies: before save, nothing happened, and the source is read again
// from the record before; after save, a restart commits what the record names,
// skips the tables whose mark is there already, and reads on. At most one saved
// record is not committed yet: the save of the next waits for it. Reading and
// writing of the next checkpoint goes on meanwhile.
//
// One writer: the store's lock or lease keeps a second instance out; a start
// claims the next record number with a higher epoch, so that whoever still runs
// finds its own next number taken and stops.
package checkpoint

import (
	"context"
	"log/slog"
	"time"

	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// State is what the pipeline is doing, in the one word that /status, the metric,
// the log and the runbook share.
type State string

const (
	Starting      State = "starting"
	Copying       State = "copying"
	Streaming     State = "streaming"
	WaitingSource State = "waiting_source"
	WaitingLake   State = "waiting_lake"
	Stopped       State = "stopped"
)

// Stream is an opened source with the shapes of the relations at the place
// where it begins.
type Stream interface {
	source.Source
	Relations() []*source.Relation
}

// Options of a Coordinator. Every field but Observer and Now is required.
type Options struct {
	Pipeline string
	Store    *Store
	// OpenSource opens the source at a record, or for an initial snapshot when
	// the record has no position. It waits for a source that is down: within
	// the retry budget if patient is false, for ever if true.
	OpenSource func(ctx context.Context, at *Record, patient bool) (Stream, error)
	// OpenSink opens the lake's side afresh.
	OpenSink func(ctx context.Context) (*sink.Sink, error)

	Interval    time.Duration // between the starts of two checkpoints
	MinPause    time.Duration // between the commit of one and the start of the next
	IdleMark    time.Duration // marks of unchanged tables are refreshed this often
	RetryBudget time.Duration // how long a start waits for the lake
	Writer      string        // host and process, for people who read a record

	Log      *slog.Logger
	Observer Observer
	Now      func() time.Time
}

// Observer is told what happens. Every field may be nil. The functions are
// called from several goroutines and must not block.
type Observer struct {
	State     func(s State, reason string)
	Read      func(position source.Position, at time.Time)                  // newest transaction that was read
	Saved     func(r *Record)                                               // a record is durable
	Committed func(r *Record, result map[string]table.Result)               // its tables are committed
	Complete  func(at time.Time)                                            // all tables are complete up to here
	Phase     func(phase string, took time.Duration)                        // flush, save, commit, ack
	Retry     func(target string, err error, attempt int, in time.Duration) // source, lake
	Tick      func()                                                        // the loop has turned
}
