package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// tupleDecoder turns rows of the log into typed columns. It is used by one
// goroutine.
type tupleDecoder struct {
	shape   *shape
	columns []columnDecoder
	// wire has, for each column of a row in the log, its index in columns; -1 for
	// one that is left out.
	wire     []int
	key      []bool // by column
	old, new []field
}

// field is the text of one column of a row, as it came.
type field struct {
	kind byte // n NULL, u unchanged and not sent, t text; 0: not there
	text []byte
}

// decoder makes the decoder of rows that come as msg describes, which the shape
// was found by.
func (s *shape) decoder(msg *relationMessage) (*tupleDecoder, error) {
	columns, err := s.decoders()
	if err != nil {
		return nil, err
	}
	d := &tupleDecoder{shape: s, columns: columns, key: make([]bool, len(columns)), old: make([]field, len(columns)), new: make([]field, len(columns))}
	for _, k := range s.Key {
		d.key[k] = true
	}
	for _, m := range msg.Columns {
		d.wire = append(d.wire, s.column(m.Name))
	}
	return d, nil
}

// reset empties dst for rows of op. oldKind is O if they come with whole old rows.
func (d *tupleDecoder) reset(op source.Op, oldKind byte, dst *source.Batch) {
	resetBatch(dst, d.shape.Rel, op, (op == source.Update || op == source.Delete) && oldKind != 'O')
}

// decode adds one row to dst, which must have been reset for rows of its kind. It
// works in place: old and new are TupleData, nil if they were not sent.
func (d *tupleDecoder) decode(oldKind byte, old, new []byte, dst *source.Batch) error {
	if old != nil {
		if err := d.split(old, d.old); err != nil {
			return err
		}
	}
	if new != nil {
		if err := d.split(new, d.new); err != nil {
			return err
		}
	}
	if dst.Op == source.Update || dst.Op == source.Delete {
		if err := d.before(oldKind, old, new, dst); err != nil {
			return err
		}
	}
	if dst.Op != source.Delete {
		for i := range d.columns {
			if err := d.after(i, old != nil, &dst.After[i]); err != nil {
				return err
			}
		}
	}
	dst.Rows++
	return nil
}

// before adds the old row, or its key columns. An update that changes no column of
// the replica identity comes without them, so the new row has them.
func (d *tupleDecoder) before(oldKind byte, old, new []byte, dst *source.Batch) error {
	if dst.KeyOnly == (oldKind == 'O') {
		return fmt.Errorf("table %s: a row of another kind than the batch's", d.shape.fullName())
	}
	from := d.old
	if old == nil {
		if new == nil {
			return fmt.Errorf("table %s: a deleted row without its key: %w", d.shape.fullName(), source.ErrCannotServe)
		}
		from = d.new
	}
	for i := range d.columns {
		if dst.KeyOnly && !d.key[i] {
			continue
		}
		switch f := from[i]; {
		case f.kind == 't':
			if err := d.value(i, f.text, &dst.Before[i]); err != nil {
				return err
			}
		case f.kind == 'n' && !d.key[i]:
			dst.Before[i].AppendNull()
		default:
			return d.incomplete(i)
		}
	}
	return nil
}

// after adds one column of the new row. A value that is stored out of line and
// did not change is not sent: it is in the old row, under FULL or as part of the
// key, or it is not known and the vector says so.
func (d *tupleDecoder) after(i int, haveOld bool, v *source.Vector) error {
	f := d.new[i]
	if f.kind == 'u' && haveOld {
		// NULL is never stored out of line: it stands for a column that the old row
		// does not have.
		if o := d.old[i]; o.kind == 't' {
			f = o
		}
	}
	switch {
	case f.kind == 't':
		return d.value(i, f.text, v)
	case f.kind == 'u' && !d.key[i]:
		v.AppendUnchanged()
		return nil
	case f.kind == 'n' && !d.key[i]:
		v.AppendNull()
		return nil
	}
	return d.incomplete(i)
}

func (d *tupleDecoder) incomplete(i int) error {
	return fmt.Errorf("table %s: a row came without a value of its key column %s: %w", d.shape.fullName(), d.columns[i].name, source.ErrCannotServe)
}

func (d *tupleDecoder) value(i int, b []byte, v *source.Vector) error {
	c := &d.columns[i]
	if err := c.append(c, b, v); err != nil {
		return c.failed(d.shape, err)
	}
	return nil
}

func (c *columnDecoder) failed(s *shape, err error) error {
	return fmt.Errorf("table %s, column %s: %w: %w", s.fullName(), c.name, err, source.ErrCannotServe)
}

// split cuts the columns out of a row.
func (d *tupleDecoder) split(b []byte, into []field) error {
	clear(into)
	broken := func() error {
		return fmt.Errorf("table %s: a row that is cut off or has other columns than its description: %w", d.shape.fullName(), source.ErrCannotServe)
	}
	if len(b) < 2 || int(binary.BigEndian.Uint16(b)) != len(d.wire) {
		return broken()
	}
	b = b[2:]
	for _, at := range d.wire {
		if len(b) == 0 {
			return broken()
		}
		f := field{kind: b[0]}
		b = b[1:]
		switch f.kind {
		case 'n', 'u':
		case 't':
			if len(b) < 4 {
				return broken()
			}
			n := int(binary.BigEndian.Uint32(b))
			if n > len(b)-4 {
				return broken()
			}
			f.text, b = b[4:4+n], b[4+n:]
		default:
			return fmt.Errorf("table %s: a value in the form %q, which was not asked for: %w", d.shape.fullName(), f.kind, source.ErrCannotServe)
		}
		if at >= 0 {
			into[at] = f
		}
	}
	if len(b) > 0 {
		return broken()
	}
	return nil
}

// copyDecoder turns lines of COPY … TO STDOUT in the text format into typed
// columns. It is used by one goroutine.
type copyDecoder struct {
	shape   *shape
	columns []columnDecoder
	buf     []byte
}

func (s *shape) copyDecoder() (*copyDecoder, error) {
	columns, err := s.decoders()
	if err != nil {
		return nil, err
	}
	return &copyDecoder{shape: s, columns: columns}, nil
}

// selectList are the columns to copy, in the order in which decode takes them.
func (d *copyDecoder) selectList() string {
	list := make([]string, len(d.columns))
	for i := range d.columns {
		list[i] = ident(d.columns[i].name)
	}
	return strings.Join(list, ", ")
}

// reset empties dst for rows of the copy.
func (d *copyDecoder) reset(dst *source.Batch) { resetBatch(dst, d.shape.Rel, source.Read, false) }

// decode adds the row in line, which has no newline at its end.
func (d *copyDecoder) decode(line []byte, dst *source.Batch) error {
	for i := range d.columns {
		f := line
		if at := bytes.IndexByte(line, '\t'); at >= 0 {
			f, line = line[:at], line[at+1:]
			if i == len(d.columns)-1 {
				return d.broken()
			}
		} else if i < len(d.columns)-1 {
			return d.broken()
		}
		c := &d.columns[i]
		if len(f) == 2 && f[0] == '\\' && f[1] == 'N' {
			if c.inKey {
				return fmt.Errorf("table %s, column %s: NULL in a key: %w", d.shape.fullName(), c.name, source.ErrCannotServe)
			}
			dst.After[i].AppendNull()
			continue
		}
		if at := bytes.IndexByte(f, '\\'); at >= 0 {
			if f = d.unescape(f, at); f == nil {
				return d.broken()
			}
		}
		if err := c.append(c, f, &dst.After[i]); err != nil {
			return c.failed(d.shape, err)
		}
	}
	dst.Rows++
	return nil
}

func (d *copyDecoder) broken() error {
	return fmt.Errorf("table %s: a line of COPY that has other columns than asked for, or an escape that is not known: %w", d.shape.fullName(), source.ErrCannotServe)
}

// unescape resolves the backslashes in f, the first of which is at at. The server
// writes no others than these. nil: it did.
func (d *copyDecoder) unescape(f []byte, at int) []byte {
	b := append(d.buf[:0], f[:at]...)
	for f = f[at:]; len(f) > 0; {
		if f[0] != '\\' {
			n := bytes.IndexByte(f, '\\')
			if n < 0 {
				n = len(f)
			}
			b, f = append(b, f[:n]...), f[n:]
			continue
		}
		if len(f) < 2 {
			return nil
		}
		c := f[1]
		switch c {
		case '\\':
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'v':
			c = '\v'
		default:
			return nil
		}
		b, f = append(b, c), f[2:]
	}
	d.buf = b
	return b
}
