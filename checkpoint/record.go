package checkpoint

import (
	"encoding/json"
	"time"

	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// Record is all that a restart needs. It is written once, under its number, and
// never changed. docs/reference/formats.md describes its JSON form.
type Record struct {
	Format   int    `json:"format"` // 1
	Pipeline string `json:"pipeline"`
	// ID counts checkpoints from 1 without a gap. A start claims the next
	// number with a higher Epoch and the same Position, which fences whoever
	// wrote before.
	ID         int64           `json:"id"`
	Epoch      int64           `json:"epoch"`
	Position   source.Position `json:"position"`    // resume here; "" before the initial snapshot
	SourceTime time.Time       `json:"source_time"` // every table is complete up to here
	// Source is the source's own state at Position: the server's identity,
	// schema history, undecided transactions.
	Source json.RawMessage `json:"source,omitempty"`
	// Deltas lists the staged files of each table that changed. They are
	// committed before anything else happens after a restart.
	Deltas []table.Delta `json:"deltas,omitempty"`
	// Tables holds what must be known of each table of the pipeline, by
	// namespace.name.
	Tables map[string]sink.TableState `json:"tables,omitempty"`
	// SavedAt is the daemon's clock, for people.
	SavedAt time.Time `json:"saved_at"`
	Writer  string    `json:"writer"` // host and process, for people
}
