// Package postgres reads one database of a PostgreSQL server by logical
// replication: it copies the captured tables under one exported snapshot and
// then follows the changes that the server decodes for a replication slot.
//
// Stream is the source.Source. A slot keeps the server's log of changes (WAL)
// until it is told that it may go, and it believes whatever it is told. So the
// place that is confirmed comes from Ack alone, which follows a saved record and
// the commits of its tables; nothing that was merely received is ever confirmed,
// and every check that a place is there to resume at is ours (lifecycle.go).
//
// The invariant: a position is only ever the end of a whole transaction, or a
// place that the server has said it has nothing for us before, and whoever opens
// a Stream at a position gets exactly what follows it.
package postgres

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// Options of a Stream, of Check and of Current.
type Options struct {
	Config   config.Postgres
	Pipeline string
	// Match says whether a relation is captured, by schema and name.
	Match func(ns, name string) bool
	// Append says whether a relation is written in append mode, where it needs
	// no key. nil: none is.
	Append func(ns, name string) bool
	// Partitioned names the columns by which the table of a relation is
	// partitioned. Those outside of the key must come with old rows. nil: none.
	Partitioned func(ns, name string) []string
	// Resume is where to go on; nil begins as Startup says.
	Resume  *Resume
	Startup config.Startup
	// Memory is for the queue between receiving and decoding and for a batch, in
	// bytes; 0 is 16 MiB. One row that is larger passes all the same.
	Memory int64
	// RetryBudget is how long Open waits for a server that is down.
	RetryBudget time.Duration
	Log         *slog.Logger
	Registerer  prometheus.Registerer
	// OnState tells that the source waits for the server, and why, or no longer.
	OnState func(waiting bool, reason string)
	// OnProgress tells how far the initial snapshot is.
	OnProgress func(Progress)

	opening bool // this is no mere check
}

// Resume is what a saved record holds of the source.
type Resume struct {
	Position source.Position
	State    []byte
}

// Progress of the initial snapshot of one relation.
type Progress struct {
	Relation        string
	Rows, Estimated int64 // Estimated is -1 if the server has no guess
	Done            bool
}

const (
	defaultMemory    = 16 << 20
	defaultHeartbeat = 10 * time.Second
)

func (o *Options) defaults() {
	if o.Memory <= 0 {
		o.Memory = defaultMemory
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Config.Heartbeat <= 0 {
		o.Config.Heartbeat = config.Duration(defaultHeartbeat)
	}
	if o.Match == nil {
		o.Match = func(string, string) bool { return true }
	}
	if o.Config.Slot == "" {
		o.Config.Slot = namePrefix + o.Pipeline
	}
	if o.Config.Publication == "" {
		o.Config.Publication = namePrefix + o.Pipeline
	}
}

// namePrefix begins the names of slots and publications that are ours.
const namePrefix = "lakesync_"

// batchBytes is about the size of one batch.
func (o *Options) batchBytes() int { return int(min(max(o.Memory/16, 64<<10), 1<<20)) }
