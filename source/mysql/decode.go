package mysql

import (
	"fmt"
	"slices"

	"github.com/lakesyncd/lakesyncd/source"
)

// rowDecoder turns the rows of one table map into typed columns. It is used by
// one goroutine.
type rowDecoder struct {
	def     *tableDef
	columns []columnDecoder
	// hidden is how many columns the log has behind those of the definition.
	hidden int
	// expands: a value may become much larger than its bytes in the log.
	expands bool
}

// columnDecoder decodes the values of one column; which function does it is
// chosen once.
type columnDecoder struct {
	// decode appends the value at the beginning of b and returns its length.
	decode func(c *columnDecoder, b []byte, v *source.Vector) (int, error)
	// text converts the bytes of strings.
	text appendText
	// size is the bytes of a value of fixed length, or of a length's prefix.
	size   int
	pad    int   // BINARY(n): its length
	layout []int // decimal
	labels []string
	scale  int // decimal: precision and scale; time types: fraction digits
	digits int
	inner  func(c *columnDecoder, b []byte, v *source.Vector) error
	buf    []byte
	inKey  bool
	twice  bool // in a key, and its character set has some characters twice
	name   string
}

// decoderFor returns the decoder of a captured table and nil for others. What
// the log says of the columns is compared with the definition: a difference
// means that the history is not that of this log, and wraps
// source.ErrCannotServe.
func (h *history) decoderFor(tm *tableMap) (*rowDecoder, error) {
	def := h.table(tm.Schema, tm.Name)
	if def == nil {
		if n := h.stored(tableName{tm.Schema, tm.Name}); h.match(n.Schema, n.Name) {
			return nil, fmt.Errorf("the log has rows of table %s, whose definition is not known; start again with a new pipeline name for another initial snapshot: %w",
				n, source.ErrCannotServe)
		}
		return nil, nil
	}
	if !def.Captured {
		return nil, nil
	}
	if err := def.problem(); err != nil {
		return nil, err
	}
	if err := tm.check(def, h.flavor); err != nil {
		return nil, fmt.Errorf("table %s: %w: %w", def.fullName(), err, source.ErrCannotServe)
	}
	d := &rowDecoder{def: def, hidden: len(tm.types) - len(def.Columns)}
	for i := range def.Columns {
		c := columnDecoder{name: def.Columns[i].Name, inKey: slices.Contains(def.Key, i)}
		if err := c.choose(&def.Columns[i], tm.types[i], tm.meta[i], h.flavor); err != nil {
			return nil, fmt.Errorf("table %s, column %s: %w: %w", def.fullName(), def.Columns[i].Name, err, source.ErrCannotServe)
		}
		d.expands = d.expands || def.Columns[i].Compressed
		d.columns = append(d.columns, c)
	}
	return d, nil
}

// reset empties dst for rows of this decoder's relation and op.
func (d *rowDecoder) reset(dst *source.Batch, op source.Op) { resetBatch(dst, d.def.Rel, op) }

func resetBatch(dst *source.Batch, rel *source.Relation, op source.Op) {
	dst.Relation, dst.Op, dst.Rows, dst.KeyOnly = rel, op, 0, false
	dst.Before = resetVectors(dst.Before, rel)
	dst.After = resetVectors(dst.After, rel)
}

func resetVectors(v []source.Vector, rel *source.Relation) []source.Vector {
	if cap(v) < len(rel.Columns) {
		v = append(v[:cap(v)], make([]source.Vector, len(rel.Columns)-cap(v))...)
	}
	v = v[:len(rel.Columns)]
	for i := range v {
		v[i].Reset(rel.Columns[i].Type)
	}
	return v
}

// image reads a bitmap of the columns in an image and returns how many hidden
// ones are among them. All others must be there.
func (d *rowDecoder) image(bitmap []byte) (hidden int, err error) {
	n := len(d.columns)
	if len(bitmap) != (n+d.hidden+7)/8 {
		return 0, d.broken()
	}
	generated := true // only generated columns are missing
	missing := ""
	for i := range n {
		if bitmap[i>>3]&(1<<(i&7)) == 0 {
			generated = generated && d.def.Columns[i].Generated
			missing = d.columns[i].name
		}
	}
	for i := n; i < n+d.hidden; i++ {
		if bitmap[i>>3]&(1<<(i&7)) != 0 {
			hidden++
		}
	}
	switch {
	case missing == "":
		return hidden, nil
	case generated:
		return 0, fmt.Errorf("table %s: the server leaves the generated column %s out of its log; leave the table out of relations or drop the column: %w",
			d.def.fullName(), missing, source.ErrCannotServe)
	}
	return 0, fmt.Errorf("table %s: the log has a row without column %s: a session set binlog_row_image to something else than FULL; set it to FULL everywhere, then start again with a new pipeline name for another initial snapshot: %w",
		d.def.fullName(), missing, source.ErrCannotServe)
}

const (
	// sizeEvery is after how many rows the size of a batch is looked at.
	sizeEvery = 32
	// maxBatchRows bounds a batch of rows that take no bytes to speak of.
	maxBatchRows = 1 << 16
)

// decode appends whole rows from rows to dst, which reset has prepared, until
// they end or dst holds about maxBytes. present1 and present2 are the bitmaps
// of columns in the image; present2 only for updates. It returns how many bytes
// and rows it took; errors wrap source.ErrCannotServe and name table and column.
func (d *rowDecoder) decode(op source.Op, present1, present2, rows []byte, dst *source.Batch, maxBytes int) (consumed, n int, err error) {
	hidden1, err := d.image(present1)
	if err != nil {
		return 0, 0, err
	}
	hidden2 := 0
	if op == source.Update {
		if hidden2, err = d.image(present2); err != nil {
			return 0, 0, err
		}
	}
	first, second := dst.After, dst.After
	switch op {
	case source.Delete:
		first = dst.Before
	case source.Update:
		first = dst.Before
	}
	checked := 0 // bytes of rows at the last look at the size
	for consumed < len(rows) {
		took, err := d.row(rows[consumed:], hidden1, first)
		if err != nil {
			return consumed, n, err
		}
		consumed += took
		if op == source.Update {
			if took, err = d.row(rows[consumed:], hidden2, second); err != nil {
				return consumed, n, err
			}
			consumed += took
		}
		n++
		dst.Rows++
		if n%sizeEvery == 0 || d.expands || consumed-checked > maxBytes/8 {
			checked = consumed
			if dst.Rows >= maxBatchRows || batchSize(dst) >= maxBytes {
				break
			}
		}
	}
	return consumed, n, nil
}

func batchSize(b *source.Batch) int {
	n := 0
	for i := range b.Before {
		n += b.Before[i].Size()
	}
	for i := range b.After {
		n += b.After[i].Size()
	}
	return n
}

// row decodes one row image and returns its length.
func (d *rowDecoder) row(b []byte, hidden int, into []source.Vector) (int, error) {
	pos := (len(d.columns) + hidden + 7) / 8
	if len(b) < pos {
		return 0, d.broken()
	}
	nulls := b[:pos]
	for i := range d.columns {
		c, v := &d.columns[i], &into[i]
		if nulls[i>>3]&(1<<(i&7)) != 0 {
			if c.inKey {
				return 0, d.wrap(c, errNullKey)
			}
			v.AppendNull()
			continue
		}
		n, err := c.decode(c, b[pos:], v)
		if err != nil {
			return 0, d.wrap(c, err)
		}
		if c.inKey && v.Misfits > 0 {
			return 0, d.wrap(c, misfitInKey(v))
		}
		pos += n
	}
	for i := len(d.columns); i < len(d.columns)+hidden; i++ {
		if nulls[i>>3]&(1<<(i&7)) == 0 {
			pos += hiddenBytes
		}
	}
	if pos > len(b) {
		return 0, d.broken()
	}
	return pos, nil
}

var errNullKey = fmt.Errorf("a key column is NULL")

func misfitInKey(v *source.Vector) error {
	return fmt.Errorf("a key column holds %s, which the lake cannot hold as a key; correct the row", v.Misfit)
}

func (d *rowDecoder) broken() error {
	return fmt.Errorf("table %s: a rows event ends within a row: %w", d.def.fullName(), source.ErrCannotServe)
}

func (d *rowDecoder) wrap(c *columnDecoder, err error) error {
	return fmt.Errorf("table %s, column %s: %w: %w", d.def.fullName(), c.name, err, source.ErrCannotServe)
}
