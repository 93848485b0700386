package table

import "time"

// Delta is what one checkpoint does to one table: data, not code, so that it can
// be saved in the checkpoint record, compared in tests and committed again.
type Delta struct {
	Table string `json:"table"` // namespace.name
	UUID  string `json:"uuid"`  // of the table that the files were written for
	// Step is a schema change to make first, in the same metadata commit.
	Step *SchemaStep `json:"step,omitempty"`
	// Layers become one snapshot each, in this order, all in one metadata
	// commit. There is more than one only if the checkpoint outgrew memory; all
	// but the last are marked lakesync.partial=true. None: only Step, or
	// nothing but the mark.
	Layers []Layer `json:"layers,omitempty"`
	// Newest is the commit time at the source of the newest row.
	Newest time.Time `json:"newest,omitzero"`
	// Complete: the initial snapshot of the relation is in the table.
	Complete bool `json:"complete"`
	// Set holds table properties to set in the same commit.
	Set map[string]string `json:"set,omitempty"`
}

// Layer is the content of one snapshot.
type Layer struct {
	// Truncate: every row that was there before this layer goes.
	Truncate bool   `json:"truncate,omitempty"`
	SchemaID int    `json:"schema_id"`
	SpecID   int    `json:"spec_id"`
	Files    []File `json:"files,omitempty"`
}

// Content is the kind of a file, in the words of the Iceberg specification.
type Content string

const (
	Data            Content = "data"
	EqualityDeletes Content = "equality_deletes"
	PositionDeletes Content = "position_deletes"
)

// File describes a staged Parquet file completely: nothing is read again to
// commit it. Bounds and partition values are in the single-value binary
// serialization of the Iceberg specification (appendix D).
type File struct {
	Content Content `json:"content"`
	Path    string  `json:"path"` // full URI
	Bytes   int64   `json:"bytes"`
	Rows    int64   `json:"rows"`
	// Partition has a value for each field of the spec, nil for null.
	Partition    [][]byte           `json:"partition,omitempty"`
	Columns      map[int]ColumnStat `json:"columns,omitempty"` // by field id
	SplitOffsets []int64            `json:"split_offsets,omitempty"`
	EqualityIDs  []int              `json:"equality_ids,omitempty"` // EqualityDeletes, ascending
	// Refers is the one data file that the positions are of. PositionDeletes
	// never cover more than one file.
	Refers string `json:"refers,omitempty"`
	// Sorted: the rows follow the table's sort order.
	Sorted bool `json:"sorted,omitempty"`
}

// ColumnStat is what the manifest says of one column of a file.
type ColumnStat struct {
	Size   int64  `json:"size"`            // compressed bytes
	Values int64  `json:"values"`          // nulls included
	Nulls  int64  `json:"nulls"`           //
	NaNs   int64  `json:"nans,omitempty"`  // float and double only
	Lower  []byte `json:"lower,omitempty"` // nil: unknown
	Upper  []byte `json:"upper,omitempty"`
	// CountsNaN: NaNs is known (the column is a float or double).
	CountsNaN bool `json:"counts_nan,omitempty"`
}

// SchemaStep is one change of a table's schema. It happens once: the commit
// asserts AssertLastColumnID and sets Schema, whose field ids were chosen when
// the step was saved.
type SchemaStep struct {
	AssertLastColumnID int `json:"assert_last_column_id"`
	LastColumnID       int `json:"last_column_id"`
	// Schema is the target in Iceberg's JSON form (field ids, identifier
	// fields); its schema-id is the id that it will have.
	Schema    []byte `json:"schema"`
	Statement string `json:"statement,omitempty"` // the DDL, for messages
}

// Mark makes a commit recognisable. It is written into the snapshot summary and,
// with that snapshot's id and sequence number, into the table property
// lakesync.mark.PIPELINE, in one metadata commit.
type Mark struct {
	Pipeline       string    `json:"pipeline"`
	Epoch          int64     `json:"epoch"`
	Checkpoint     int64     `json:"checkpoint"`
	Position       string    `json:"position"`
	SourceTime     time.Time `json:"source_time"` // the table is complete up to here
	SnapshotID     int64     `json:"snapshot_id"`
	SequenceNumber int64     `json:"sequence_number"`
}
