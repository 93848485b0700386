package sink

import (
	"errors"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// icebergSchema is the schema of a new table for rel: its columns in their order
// and with their names, key columns required and identifier fields, all others
// optional. Field ids are assigned from 1.
func icebergSchema(rel *source.Relation, over overrides) (*iceberg.Schema, error) {
	return nil, errors.ErrUnsupported
}

// fit says why a table with schema have cannot take what want describes: columns
// by name, types, key. Field ids, order and documentation do not matter.
func fit(have, want *iceberg.Schema) error { return errors.ErrUnsupported }

// fileColumns are the columns of a data file of a table, in schema order.
// Identifier columns of type uuid have no bounds. props are the table's
// properties; write.metadata.metrics.* among them is obeyed.
func fileColumns(s *iceberg.Schema, props map[string]string) ([]fileColumn, error) {
	return nil, errors.ErrUnsupported
}

// equalityDeleteColumns picks the key columns out of fileColumns, in schema
// order.
func equalityDeleteColumns(cols []fileColumn, key []int) []fileColumn { return nil }

// parseWriterOptions reads the write.parquet.* properties of a table.
func parseWriterOptions(props map[string]string) (writerOptions, error) {
	return writerOptions{}, errors.ErrUnsupported
}
