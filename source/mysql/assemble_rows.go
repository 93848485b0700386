package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/lakesyncd/lakesyncd/source"
)

// tableMap prepares for the rows events of a statement.
func (a *assembler) tableMap(e event) error {
	if !a.group.open {
		return a.stop("rows outside of a transaction")
	}
	if len(e.body) < 8 {
		return a.stop("a table map of %d bytes", len(e.body))
	}
	id := tableID(e.body)
	if t := a.tables[id]; t != nil && t.version == a.version && t.tm.same(e.body) {
		t.statement = a.statement
		if a.group.park != nil && t.dec != nil {
			return a.parkEvent(e)
		}
		return nil
	}
	tm, err := parseTableMap(e.body)
	if err != nil {
		return a.located(err)
	}
	dec, err := a.hist.decoderFor(tm)
	if err != nil {
		return a.located(err)
	}
	if len(a.tables) > 4096 {
		clear(a.tables)
	}
	a.tables[id] = &tableRef{tm: tm, dec: dec, statement: a.statement, version: a.version}
	if a.group.park != nil && dec != nil {
		return a.parkEvent(e)
	}
	return nil
}

func (a *assembler) parkEvent(e event) error {
	if err := a.group.park.add(e); err != nil {
		return a.located(err)
	}
	return nil
}

func tableID(b []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(b)) | uint64(binary.LittleEndian.Uint16(b[4:]))<<32
}

// dummyTable is the table id of a rows event that only ends a statement.
const dummyTable = 0x00ffffff

func (a *assembler) rowsEvent(e event) error {
	if !a.group.open {
		return a.stop("rows outside of a transaction")
	}
	b := e.body
	if len(b) < 8 {
		return a.stop("a rows event of %d bytes", len(b))
	}
	id, flags := tableID(b), binary.LittleEndian.Uint16(b[6:])
	b = b[8:]
	end := flags&replication.STMT_END_F != 0
	t := a.tables[id]
	if t == nil || t.statement != a.statement {
		if id == dummyTable {
			a.endStatement(end)
			return nil
		}
		return a.stop("rows of table number %d, which no table map announced", id)
	}
	if t.dec == nil {
		a.endStatement(end)
		return nil
	}
	if a.group.park != nil {
		if err := a.parkEvent(e); err != nil {
			return err
		}
		a.endStatement(end)
		return nil
	}
	op, v2, compressed := rowsKind(e.typ)
	if v2 {
		if len(b) < 2 || int(binary.LittleEndian.Uint16(b)) < 2 || int(binary.LittleEndian.Uint16(b)) > len(b) {
			return a.stop("a rows event is cut short")
		}
		b = b[binary.LittleEndian.Uint16(b):]
	}
	n, b, err := lenenc(b)
	if err != nil {
		return a.stop("a rows event: %w", err)
	}
	bitmap := int(n+7) / 8
	c := rowsCursor{dec: t.dec, op: op, end: end}
	take := func() []byte {
		if bitmap > len(b) {
			err = errors.New("a rows event is cut short")
			return nil
		}
		x := b[:bitmap]
		b = b[bitmap:]
		return x
	}
	c.present1 = take()
	if op == source.Update {
		c.present2 = take()
	}
	if err != nil {
		return a.stop("%w", err)
	}
	if compressed {
		if b, err = mariaInflate(b, a.inner); err != nil {
			return a.stop("a compressed rows event: %w", err)
		}
	}
	c.data = b
	a.rows = c
	return nil
}

func (a *assembler) endStatement(end bool) {
	if end {
		a.statement++
	}
}

func rowsKind(t replication.EventType) (op source.Op, v2, compressed bool) {
	switch t {
	case replication.WRITE_ROWS_EVENTv1:
		return source.Insert, false, false
	case replication.UPDATE_ROWS_EVENTv1:
		return source.Update, false, false
	case replication.DELETE_ROWS_EVENTv1:
		return source.Delete, false, false
	case replication.WRITE_ROWS_EVENTv2:
		return source.Insert, true, false
	case replication.UPDATE_ROWS_EVENTv2:
		return source.Update, true, false
	case replication.DELETE_ROWS_EVENTv2:
		return source.Delete, true, false
	case replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1:
		return source.Insert, false, true
	case replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1:
		return source.Update, false, true
	case replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		return source.Delete, false, true
	case mariaWriteRowsCompressed2:
		return source.Insert, true, true
	case mariaUpdateRowsCompressed2:
		return source.Update, true, true
	}
	return source.Delete, true, true
}

// lenenc reads a length-encoded integer.
func lenenc(b []byte) (uint64, []byte, error) {
	if len(b) == 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	n := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[b[0]]
	if n == 0 {
		return uint64(b[0]), b[1:], nil
	}
	if len(b) < 1+n {
		return 0, nil, io.ErrUnexpectedEOF
	}
	var x [8]byte
	copy(x[:], b[1:1+n])
	return binary.LittleEndian.Uint64(x[:]), b[1+n:], nil
}

// decodeRows makes one batch of what is left of a rows event; nil if all of it
// was handed out before the connection was lost.
func (a *assembler) decodeRows() (*source.Event, error) {
	c := &a.rows
	if a.large {
		a.batch, a.large = source.Batch{}, false
	}
	c.dec.reset(&a.batch, c.op)
	used, n, err := c.dec.decode(c.op, c.present1, c.present2, c.data, &a.batch, a.limit)
	if err != nil {
		return nil, a.located(err)
	}
	a.large = used > 4*a.limit
	if used == 0 && len(c.data) > 0 {
		return nil, a.stop("a rows event of %s has %d bytes that make no row", a.batch.Relation.FullName(), len(c.data))
	}
	c.data = c.data[used:]
	if len(c.data) == 0 {
		a.endStatement(c.end)
		*c = rowsCursor{}
	}
	if n == 0 {
		return nil, nil
	}
	first := a.group.ordinal
	a.group.ordinal += int64(n)
	if a.group.torn {
		return nil, nil
	}
	if r := a.resume; r != nil {
		if first < r.rows {
			if a.group.ordinal > r.rows {
				return nil, fmt.Errorf("%w: %s is cut into other rows than before the connection was lost", source.ErrRestart, r.name)
			}
			return nil, nil
		}
		a.resume = nil
	}
	a.group.emitted = true
	a.batch.Relation = a.state.overlay.of(a.batch.Relation)
	a.batch.Position, a.batch.Ordinal, a.batch.Time = a.group.name, first, a.group.time
	a.ev = source.Event{Kind: source.Rows, Batch: &a.batch}
	return &a.ev, nil
}
