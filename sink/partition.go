package sink

import (
	"errors"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// partitioner computes the partition of a row.
type partitioner struct{}

// newPartitioner binds spec to the columns of a file; Of then expects the
// vectors in their order.
func newPartitioner(spec iceberg.PartitionSpec, cols []fileColumn) (*partitioner, error) {
	return nil, errors.ErrUnsupported
}

// Unpartitioned reports whether there is only one partition.
func (p *partitioner) Unpartitioned() bool { return true }

// Sources are the indexes of the columns that the partition is computed from.
func (p *partitioner) Sources() []int { return nil }

// Of appends the partition tuple of a row to buf, as bytes that are equal only
// for equal tuples. Two rows are in one partition if their bytes are equal.
func (p *partitioner) Of(cols []*source.Vector, row int, buf []byte) []byte { return buf }

// Values takes a tuple apart: the single-value serialization of each field of
// the spec, nil for null, as table.File.Partition wants it.
func (p *partitioner) Values(tuple []byte) [][]byte { return nil }

// Path is the tuple as folders, "day=2024-01-01/b=3", escaped; "" if
// unpartitioned.
func (p *partitioner) Path(tuple []byte) string { return "" }
