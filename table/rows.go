package table

import (
	"context"
	"fmt"
	"iter"
	"time"

	icetable "github.com/apache/iceberg-go/table"
)

// RowsOptions choose the snapshot to read; at most one field is set. None: the
// current one.
type RowsOptions struct {
	SnapshotID int64
	AsOf       time.Time // the snapshot that was current then
	Ref        string    // a branch or tag
}

// Rows hands out the rows of a snapshot as canonical JSON (docs/reference/cli.md,
// read): one object for each row, columns in schema order. A branch is read with
// the table's schema of now, everything else with that of the snapshot. The
// order is that of the files. A row is valid until the next one.
func (t *Table) Rows(ctx context.Context, o RowsOptions) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		fail := func(err error) { yield(nil, fmt.Errorf("read table %s: %w", t.name, err)) }
		scan, err := t.scan(o)
		if err != nil {
			fail(err)
			return
		}
		if scan == nil { // no snapshot yet
			return
		}
		defer scan.Close()
		schema, err := scan.Projection()
		if err != nil {
			fail(err)
			return
		}
		_, batches, err := scan.ToArrowRecords(ctx)
		if err != nil {
			fail(err)
			return
		}
		printer := newPrinter(schema)
		for batch, err := range batches {
			if err != nil {
				fail(err)
				return
			}
			stop, err := func() (bool, error) {
				defer batch.Release()
				if err := printer.bind(batch); err != nil {
					return true, err
				}
				for row := range int(batch.NumRows()) {
					line, err := printer.row(row)
					if err != nil {
						return true, err
					}
					if !yield(line, nil) {
						return true, nil
					}
				}
				return false, nil
			}()
			if err != nil {
				fail(err)
			}
			if stop {
				return
			}
		}
	}
}

func (t *Table) scan(o RowsOptions) (*icetable.Scan, error) {
	set := 0
	for _, b := range []bool{o.SnapshotID != 0, !o.AsOf.IsZero(), o.Ref != ""} {
		if b {
			set++
		}
	}
	if set > 1 {
		return nil, fmt.Errorf("more than one of snapshot, time and ref is given")
	}
	ice := t.Iceberg()
	meta := ice.Metadata()
	// Two tasks at a time bound what is decoded and not yet handed out.
	options := []icetable.ScanOption{icetable.WithMaxConcurrency(2)}
	switch {
	case o.SnapshotID != 0:
		if meta.SnapshotByID(o.SnapshotID) == nil {
			return nil, fmt.Errorf("there is no snapshot %d: it never was, or it has expired", o.SnapshotID)
		}
		options = append(options, icetable.WithSnapshotID(o.SnapshotID))
	case !o.AsOf.IsZero():
		id := int64(0)
		for entry := range meta.SnapshotLogs() {
			if entry.TimestampMs <= o.AsOf.UnixMilli() {
				id = entry.SnapshotID
			}
		}
		if id == 0 || meta.SnapshotByID(id) == nil {
			return nil, fmt.Errorf("no snapshot is left that was current at %s", o.AsOf.UTC().Format(time.RFC3339Nano))
		}
		options = append(options, icetable.WithSnapshotID(id))
	case o.Ref != "":
		for name, ref := range meta.Refs() {
			if name != o.Ref {
				continue
			}
			if ref.SnapshotRefType == icetable.TagRef {
				return ice.Scan(append(options, icetable.WithSnapshotID(ref.SnapshotID))...), nil
			}
			return ice.Scan(options...).UseRef(name)
		}
		return nil, fmt.Errorf("there is no branch or tag %q", o.Ref)
	default:
		if meta.CurrentSnapshot() == nil {
			return nil, nil
		}
	}
	return ice.Scan(options...), nil
}
