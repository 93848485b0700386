package sink

import (
	"errors"
	"io"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// fileColumn describes one column of a Parquet file.
type fileColumn struct {
	ID       int // Iceberg field id
	Name     string
	Type     source.Type // of the vectors that are handed in
	Required bool
	// NoBounds: neither manifest, footer nor page index says anything of the
	// column's smallest and largest value.
	NoBounds bool
	// TimeOfDay: Type is Time and the Iceberg type is time, not long.
	TimeOfDay bool
	// ElementID is the field id of the elements of a FloatList.
	ElementID int
	// Metrics is what the manifest says of the column; the zero value is
	// Iceberg's default, truncate(16).
	Metrics metricsMode
}

// writerOptions of a file. The zero value is usable.
type writerOptions struct {
	Codec         string // zstd, snappy, gzip, uncompressed; default zstd
	Level         int    // of zstd and gzip; 0 is the codec's fastest useful one
	RowGroupBytes int64  // bytes held in memory at which a row group is written; default 32 MiB
	PageBytes     int64  // bytes before compression; default 512 KiB
	PageRows      int    // default 20000
	NoDictionary  bool
	Workers       int // goroutines that encode columns; default 2
	// Encoders are shared by all files of a sink; nil gives the file its own.
	Encoders *encoders
}

// fileStats is what a manifest needs to know of a finished file.
type fileStats struct {
	Rows, Bytes  int64
	SplitOffsets []int64
	Columns      map[int]table.ColumnStat // by field id
}

// fileWriter writes one Parquet file strictly forward. It is used by one
// goroutine.
type fileWriter struct{}

// encoders holds compressors and buffers that files share, so that many open
// files do not each hold their own.
type encoders struct{}

// newEncoders makes a set for at most n columns being encoded at once.
func newEncoders(n int) *encoders { return &encoders{} }

func newFileWriter(w io.Writer, cols []fileColumn, opts writerOptions) (*fileWriter, error) {
	return nil, errors.ErrUnsupported
}

// Append encodes rows of the vectors, one for each column of the file: those
// that rows names, in that order, or all if it is nil. The vectors may be reused
// when it returns.
func (f *fileWriter) Append(cols []*source.Vector, rows []uint32) error { return errors.ErrUnsupported }

// Rows is the number of rows appended.
func (f *fileWriter) Rows() int64 { return 0 }

// Buffered is the memory that the file holds, in bytes.
func (f *fileWriter) Buffered() int64 { return 0 }

// Written estimates how large the file would be if it were closed now.
func (f *fileWriter) Written() int64 { return 0 }

// FlushRowGroup writes what is buffered as a row group.
func (f *fileWriter) FlushRowGroup() error { return errors.ErrUnsupported }

// Close writes what is left and the footer. It does not close the io.Writer.
func (f *fileWriter) Close() (fileStats, error) { return fileStats{}, errors.ErrUnsupported }

// Release gives the memory back without writing; for a file that is given up.
func (f *fileWriter) Release() {}

// positionDeleteColumns are the columns of a position-delete file: vectors of
// String and Long.
func positionDeleteColumns() []fileColumn { return nil }
