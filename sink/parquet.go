package sink

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

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
	// ElementID is the field id of the elements of a list.
	ElementID int
	// Metrics is what the manifest says of the column; the zero value is
	// Iceberg's default, truncate(16).
	Metrics metricsMode
}

// writerOptions of a file. The zero value is usable.
type writerOptions struct {
	Codec         string // zstd, snappy, gzip, uncompressed; default zstd
	Level         int    // of zstd and gzip; 0 is the default: zstd 1, gzip 6
	RowGroupBytes int64  // bytes held in memory at which a row group is written; default 32 MiB
	PageBytes     int64  // bytes before compression; default 512 KiB
	PageRows      int    // default 20000
	NoDictionary  bool
	Workers       int // goroutines that encode columns; default 2
	// Encoders are shared by all files of a sink; nil gives the file its own.
	Encoders *encoders
}

func (o writerOptions) withDefaults() writerOptions {
	o.RowGroupBytes = cmp.Or(o.RowGroupBytes, 32<<20)
	o.PageBytes = min(cmp.Or(o.PageBytes, 512<<10), 64<<20)
	o.PageRows = cmp.Or(o.PageRows, 20000)
	o.Workers = cmp.Or(o.Workers, 2)
	if o.Encoders == nil {
		o.Encoders = newEncoders(o.Workers)
	}
	return o
}

// fileStats is what a manifest needs to know of a finished file.
type fileStats struct {
	Rows, Bytes  int64
	SplitOffsets []int64
	Columns      map[int]table.ColumnStat // by field id
}

// fileWriter writes one Parquet file strictly forward. It is used by one
// goroutine; it may use others inside a call. After an error it is of no more
// use.
//
// Pages are encoded and compressed as the rows come; a row group waits in memory
// until all its columns can be written one after the other.
type fileWriter struct {
	w       io.Writer
	opts    writerOptions
	columns []*column
	rows    int64 // of the open row group
	offset  int64 // bytes written
	footer  footer
	err     error
	order   []int // scratch
}

var errClosed = errors.New("file is closed")

// newFileWriter begins a file with the columns in this order.
func newFileWriter(w io.Writer, cols []fileColumn, opts writerOptions) (*fileWriter, error) {
	if len(cols) == 0 {
		return nil, errors.New("a Parquet file needs a column")
	}
	opts = opts.withDefaults()
	c, err := newCodec(opts.Codec, opts.Level)
	if err != nil {
		return nil, err
	}
	f := &fileWriter{w: w, opts: opts}
	for _, fc := range cols {
		col, err := newColumn(fc, opts, c)
		if err != nil {
			return nil, err
		}
		f.columns = append(f.columns, col)
	}
	return f, nil
}

// Append encodes rows of the vectors, one for each column of the file: those
// that rows names, in that order, or all if it is nil. The vectors may be reused
// when it returns.
func (f *fileWriter) Append(cols []*source.Vector, rows []uint32) error {
	if f.err != nil {
		return f.err
	}
	n, err := f.check(cols, rows)
	if err != nil {
		f.err = err
		return err
	}
	for from := 0; from < n; {
		to := min(n, from+f.opts.PageRows)
		err := f.each(to-from, func(e *encoder, i int) error {
			return f.columns[i].append(e, cols[i], rows, from, to)
		})
		if err != nil {
			f.err = err
			return err
		}
		f.rows += int64(to - from)
		from = to
		if f.Buffered() >= f.opts.RowGroupBytes {
			if err := f.FlushRowGroup(); err != nil {
				return err
			}
		}
	}
	return nil
}

// check refuses vectors that are not those of the file, and returns the number
// of rows to write.
func (f *fileWriter) check(cols []*source.Vector, rows []uint32) (int, error) {
	if len(cols) != len(f.columns) {
		return 0, fmt.Errorf("append %d columns to a file with %d", len(cols), len(f.columns))
	}
	n := cols[0].Len()
	for i, v := range cols {
		c := f.columns[i]
		if v.Type != c.Type && (v.Type.Kind != source.Time || c.Type.Kind != source.Long) {
			return 0, fmt.Errorf("column %s: append %s to %s", c.Name, v.Type, c.Type)
		}
		if v.Len() != n {
			return 0, fmt.Errorf("column %s: %d values where others have %d", c.Name, v.Len(), n)
		}
	}
	if rows == nil {
		return n, nil
	}
	for _, r := range rows {
		if int(r) >= n {
			return 0, fmt.Errorf("append row %d of %d", r, n)
		}
	}
	return len(rows), nil
}

// parallelValues is how many values a call must have for a second goroutine to be
// worth it.
const parallelValues = 8192

// each calls fn once for each column, on several goroutines if there is enough
// to do, the column with most to do first. The goroutines end before it returns.
func (f *fileWriter) each(rows int, fn func(e *encoder, column int) error) error {
	n := len(f.columns)
	workers := min(f.opts.Workers, n)
	if workers <= 1 || rows*n < parallelValues {
		e := f.opts.Encoders.get()
		defer f.opts.Encoders.put(e)
		for i := range n {
			if err := fn(e, i); err != nil {
				return err
			}
		}
		return nil
	}
	f.order = f.order[:0]
	for i := range n {
		f.order = append(f.order, i)
	}
	slices.SortStableFunc(f.order, func(a, b int) int { return cmp.Compare(f.columns[b].cost(), f.columns[a].cost()) })
	var (
		next   atomic.Int64
		wg     sync.WaitGroup
		errs   = make([]error, workers)
		failed atomic.Bool
	)
	for w := range workers {
		wg.Go(func() {
			e := f.opts.Encoders.get()
			defer f.opts.Encoders.put(e)
			for !failed.Load() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(e, f.order[i]); err != nil {
					errs[w] = err
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Rows is the number of rows appended.
func (f *fileWriter) Rows() int64 { return f.footer.rows + f.rows }

// Buffered is the memory that the file holds, in bytes.
func (f *fileWriter) Buffered() int64 {
	var n int64
	for _, c := range f.columns {
		n += c.memory()
	}
	return n
}

// Written estimates how large the file would be if it were closed now.
func (f *fileWriter) Written() int64 {
	var packed, plain, pending int64
	for _, c := range f.columns {
		packed += c.packed
		plain += c.plain
		pending += c.pending()
	}
	n := f.offset + packed
	switch {
	case plain > 0:
		n += int64(float64(pending) * float64(packed) / float64(plain))
	case f.footer.plain > 0:
		n += int64(float64(pending) * float64(f.footer.packed) / float64(f.footer.plain))
	default:
		n += pending / 2
	}
	return n
}

// FlushRowGroup writes what is buffered as a row group.
func (f *fileWriter) FlushRowGroup() error {
	if f.err != nil {
		return f.err
	}
	if f.rows == 0 {
		return nil
	}
	if err := f.flush(); err != nil {
		f.err = err
	}
	return f.err
}

func (f *fileWriter) flush() error {
	dicts := make([][]byte, len(f.columns))
	plain := make([]int, len(f.columns))
	err := f.each(int(f.rows), func(e *encoder, i int) (err error) {
		dicts[i], plain[i], err = f.columns[i].finish(e)
		return err
	})
	if err != nil {
		return err
	}
	e := f.opts.Encoders.get()
	defer f.opts.Encoders.put(e)
	w := e.writer(f.w)
	defer w.Reset(nil)
	if f.offset == 0 {
		if _, err := w.WriteString(magic); err != nil {
			return fmt.Errorf("write Parquet file: %w", err)
		}
		f.offset = int64(len(magic))
	}
	g := rowGroup{start: f.offset, rows: f.rows}
	for i, c := range f.columns {
		k := chunkFooter{}
		if dicts[i] != nil {
			k.dictionary = f.offset
			if _, err := w.Write(dicts[i]); err != nil {
				return fmt.Errorf("write Parquet file: %w", err)
			}
			f.offset += int64(len(dicts[i]))
			k.packed, k.plain = int64(len(dicts[i])), int64(plain[i])
		}
		k.data = f.offset
		for _, p := range c.pages {
			if _, err := w.Write(p.data); err != nil {
				return fmt.Errorf("write Parquet file: %w", err)
			}
			f.offset += int64(len(p.data))
		}
		k.take(c)
		g.chunks = append(g.chunks, k)
		f.footer.packed += k.packed
		f.footer.plain += k.plain
		c.next()
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write Parquet file: %w", err)
	}
	f.footer.groups = append(f.footer.groups, g)
	f.footer.rows += f.rows
	f.rows = 0
	return nil
}

// Close writes what is left and the footer. It does not close the io.Writer.
func (f *fileWriter) Close() (fileStats, error) {
	if err := f.FlushRowGroup(); err != nil {
		return fileStats{}, err
	}
	f.err = errClosed
	n, err := f.writeFooter()
	if err != nil {
		return fileStats{}, fmt.Errorf("write Parquet footer: %w", err)
	}
	f.offset += n
	s := fileStats{Rows: f.footer.rows, Bytes: f.offset, Columns: map[int]table.ColumnStat{}}
	for _, g := range f.footer.groups {
		s.SplitOffsets = append(s.SplitOffsets, g.start)
	}
	for _, c := range f.columns {
		if id, stat, ok := c.stat(); ok {
			s.Columns[id] = stat
		}
	}
	f.columns = nil
	return s, nil
}

// Release gives the memory back without writing; for a file that is given up.
func (f *fileWriter) Release() {
	f.err = errClosed
	f.columns = nil
}
