// Package source is the vocabulary between a database and the lake: what a
// relation looks like, how its changes travel, and where to resume.
//
// A source hands out events in the order of the database's log. Rows travel in
// batches of typed columns, never one by one. The rows of a transaction come
// together and end with a Commit; only Commit and Heartbeat carry a position,
// so a checkpoint cannot cut a transaction in two: that is a property of the
// types, not a rule to remember.
//
// The package imports nothing of ours. source/mysql and source/postgres
// implement it, sink and checkpoint consume it.
package source

import (
	"context"
	"errors"
	"time"
)

// Position says where to resume: everything up to it has been handed out. It is
// opaque text that only the source which made it can read, for example
// "gtid:3e11fa47-…:1-77" or "file:binlog.000003:154".
type Position string

// Source hands out the events of one database. It is used by one goroutine.
type Source interface {
	// Next waits for an event. If ctx ends first it returns ctx.Err() and
	// nothing is lost: the next call continues. The event and its batch are
	// valid until the next call.
	//
	// A lost connection is the source's own business: it reconnects, for ever
	// once it has streamed, and reports the wait through its OnState hook.
	// Errors returned are final for this Source.
	Next(ctx context.Context) (*Event, error)
	// Ack tells the database that it may forget everything up to pos.
	Ack(ctx context.Context, pos Position) error
	Close() error
}

var (
	// ErrCannotServe marks an error that waiting does not mend: a setting, a
	// right, a position that is gone, another server, a statement or value that
	// we do not understand. The program ends with 78.
	ErrCannotServe = errors.New("the source cannot serve this pipeline")
	// ErrUnavailable marks a source that could not be reached within the retry
	// budget at start. The program ends with 69.
	ErrUnavailable = errors.New("the source is unavailable")
	// ErrRestart asks for everything since the last saved record to be thrown
	// away and read again, because an open transaction can't be continued
	// (another server answers now, for example).
	ErrRestart = errors.New("the source must be read again from the last saved position")
)

// EventKind tells what an Event is.
type EventKind uint8

const (
	// Rows carries a Batch.
	Rows EventKind = iota + 1
	// Truncate removes every row of Relation.
	Truncate
	// Schema gives Relation a new shape, or tells of a relation that was
	// created. It comes outside of row transactions and is followed by the
	// Commit of its statement.
	Schema
	// Commit ends a transaction. Position and Time are set.
	Commit
	// Heartbeat says that the log has nothing more up to Position and Time.
	Heartbeat
)

// Event is one step of the source's history.
type Event struct {
	Kind     EventKind
	Batch    *Batch    // Rows
	Relation *Relation // Truncate and Schema: the relation, as it is after a Schema event
	Change   *Change   // Schema
	// Commit, Heartbeat: resume here. Truncate: the transaction, as in a Batch.
	Position Position
	Time     time.Time // Commit, Truncate: its commit time at the source; Heartbeat: complete up to here
	// State is the source's own memory that must be saved together with
	// Position (schema history, identity of the server, undecided
	// transactions), as JSON. It comes with a Commit or Heartbeat; nil means
	// unchanged since the last one that was not nil.
	State []byte
	// Barrier asks for a checkpoint at this Commit before anything else is
	// written: an initial snapshot ends here.
	Barrier bool
	// Copied lists the relations whose initial snapshot is complete with this
	// Commit.
	Copied []*Relation
}

// Change is a difference between two shapes of one relation, as steps in the
// order in which they apply.
type Change struct {
	Statement string // the DDL text, for messages
	Created   bool   // the relation is new and empty
	Steps     []Step
}

// StepKind tells what a Step does.
type StepKind uint8

const (
	// AddColumn adds Column; existing rows hold NULL in it.
	AddColumn StepKind = iota + 1
)

// Step is one change of one column.
type Step struct {
	Kind   StepKind
	Column Column
	After  string // AddColumn: comes after this column; "" means first
}
