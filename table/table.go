// Package table is the lake's side of the pipeline: it finds and creates Iceberg
// tables in a filesystem catalog and commits deltas to them, exactly once.
//
// A delta is committed by one metadata commit that carries the checkpoint's
// mark, in the summary of its snapshot and in a table property. Whoever doubts
// whether a commit happened reads the mark; nothing is ever concluded from an
// error, and no staged file is removed before the mark proved that it is not
// needed.
//
// The table's version is the existence of metadata/vN.metadata.json, made by
// one and only one writer (fileio.FS.CreateExclusive). version-hint.text only
// tells where to begin to look.
//
// The package speaks Iceberg and knows nothing of sources. iceberg-go's package
// of the same name is imported as icetable.
package table

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

var (
	// ErrNotFound: there is no such table.
	ErrNotFound = errors.New("table does not exist")
	// ErrFenced: the table carries a mark of this pipeline with a higher epoch,
	// or another history under the same checkpoint number: another instance
	// took over, or the checkpoint store was lost or replaced.
	ErrFenced = errors.New("fenced by another instance of the pipeline")
	// ErrRolledBack: the pipeline's last commit is no longer part of the table.
	ErrRolledBack = errors.New("table was rolled back")
	// ErrForeign: somebody else wrote the table's metadata, or rows of it, where
	// only this pipeline may.
	ErrForeign = errors.New("table was written by somebody else")
	// ErrReplaced: the table isn't the one that the files were written for.
	ErrReplaced = errors.New("table was replaced by another one")
	// ErrUnfit: the table or the delta cannot be used as it is.
	ErrUnfit = errors.New("table does not fit")
)

// Table is one Iceberg table. It is safe for concurrent use; commits go one by
// one. The accessors answer from the metadata as it was at the last Load,
// Refresh or commit.
type Table struct {
	cat      *Catalog
	name     string // namespace.name
	location string // URI without a trailing slash
	log      *slog.Logger

	state atomic.Pointer[state]

	mu sync.Mutex // held by commits and Refresh
	// hint is what version-hint.text says as far as we know, hintVersion the
	// store's version of that file.
	hint        int
	hintVersion string
	stale       bool // the last commit's outcome is unknown: reload before deciding
	checked     bool // the files of the first delta after Load were found in place
	oldest      int  // lowest metadata version that still exists; 0: not looked for yet
}

// state is one version of the metadata. It is never changed.
type state struct {
	version int
	size    int64 // bytes of the metadata file
	meta    icetable.Metadata
	// manifests are those of the head if they are known without reading the
	// manifest list.
	manifests []iceberg.ManifestFile
	listed    bool
}

// Name is namespace.name.
func (t *Table) Name() string { return t.name }

// UUID identifies the table; one that was dropped and created again has another.
func (t *Table) UUID() string { return t.meta().TableUUID().String() }

// Location is the table's folder as a URI, without a trailing slash.
func (t *Table) Location() string { return t.location }

// DataLocation is the folder for data and delete files.
func (t *Table) DataLocation() string {
	if p := t.meta().Properties()[icetable.WriteDataPathKey]; p != "" {
		return strings.TrimRight(p, "/")
	}
	return t.location + "/data"
}

// Schema is the current schema.
func (t *Table) Schema() *iceberg.Schema { return t.meta().CurrentSchema() }

// SchemaByID returns a schema of the table's history, nil if there is none.
func (t *Table) SchemaByID(id int) *iceberg.Schema {
	for _, s := range t.meta().Schemas() {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// LastColumnID is the highest field id that was ever given.
func (t *Table) LastColumnID() int { return t.meta().LastColumnID() }

// Spec is the default partition spec.
func (t *Table) Spec() iceberg.PartitionSpec { return t.meta().PartitionSpec() }

// SortOrder is the default sort order.
func (t *Table) SortOrder() icetable.SortOrder { return t.meta().SortOrder() }

// FormatVersion of the table; only version 2 can be committed to.
func (t *Table) FormatVersion() int { return t.meta().Version() }

// Properties is a copy of the table's properties.
func (t *Table) Properties() map[string]string { return t.meta().Properties() }

// MetadataVersion is N of the current vN.metadata.json.
func (t *Table) MetadataVersion() int { return t.state.Load().version }

// Snapshot describes one snapshot, for status and messages.
type Snapshot struct {
	ID, Parent     int64 // Parent 0: none
	SequenceNumber int64
	TimestampMs    int64
	SchemaID       int
	Operation      string
	Summary        map[string]string
}

// Head is the current snapshot; false if the table has none.
func (t *Table) Head() (Snapshot, bool) {
	s := t.meta().CurrentSnapshot()
	if s == nil {
		return Snapshot{}, false
	}
	return describe(s), true
}

// Snapshots lists all snapshots of the metadata, oldest first.
func (t *Table) Snapshots() []Snapshot {
	all := t.meta().Snapshots()
	out := make([]Snapshot, len(all))
	for i := range all {
		out[i] = describe(&all[i])
	}
	return out
}

// Totals of the current snapshot.
func (t *Table) Totals() Totals { return totalsOf(t.meta().CurrentSnapshot()) }

// Iceberg gives the table to iceberg-go, to read only.
func (t *Table) Iceberg() *icetable.Table {
	st := t.state.Load()
	return icetable.New(strings.SplitN(t.name, ".", 2), st.meta, metadataPath(t.location, st.version), t.cat.icebergFS, nil)
}

// Refresh reads the newest metadata.
func (t *Table) Refresh(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reload(ctx)
}

func (t *Table) meta() icetable.Metadata { return t.state.Load().meta }

func (t *Table) fs() fileio.FS { return t.cat.fs }

func describe(s *icetable.Snapshot) Snapshot {
	out := Snapshot{ID: s.SnapshotID, SequenceNumber: s.SequenceNumber, TimestampMs: s.TimestampMs}
	if s.ParentSnapshotID != nil {
		out.Parent = *s.ParentSnapshotID
	}
	if s.SchemaID != nil {
		out.SchemaID = *s.SchemaID
	}
	if s.Summary != nil {
		out.Operation = string(s.Summary.Operation)
		out.Summary = s.Summary.Properties
	}
	return out
}
