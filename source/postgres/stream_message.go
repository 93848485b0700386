package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The messages of pgoutput, protocol 1. Everything is cut out of the received
// bytes with its bounds checked; nothing is copied but names.

var errShort = errors.New("the message ends too early")

// relationMessage tells the shape in which the next rows of a relation come. It
// is sent before the first row of each relation, and again after a change.
type relationMessage struct {
	OID             uint32
	Namespace, Name string
	Identity        byte // replica identity: d default, n nothing, f full, i index
	Columns         []relationColumn
}

type relationColumn struct {
	Key    bool // part of the replica identity
	Name   string
	Type   uint32 // OID
	Typmod int32  // -1 for a domain, whatever the domain says
}

// cursor reads a message. The first read beyond its end sets err.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) take(n int) []byte {
	if c.err != nil || n < 0 || n > len(c.b) {
		c.err = errShort
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) byte() byte {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if p := c.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if p := c.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if p := c.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) time() time.Time { return serverTime(int64(c.uint64())) }

func (c *cursor) string() string {
	i := bytes.IndexByte(c.b, 0)
	if c.err != nil || i < 0 {
		c.err = errShort
		return ""
	}
	s := string(c.b[:i])
	c.b = c.b[i+1:]
	return s
}

// tuple cuts out one TupleData: the number of columns and the columns.
func (c *cursor) tuple() []byte {
	all := c.b
	n := int(c.uint16())
	for range n {
		switch kind := c.byte(); kind {
		case 'n', 'u':
		case 't', 'b':
			c.take(int(int32(c.uint32())))
		default:
			if c.err == nil {
				c.err = fmt.Errorf("a column of kind %q", kind)
			}
		}
		if c.err != nil {
			return nil
		}
	}
	return all[:len(all)-len(c.b)]
}

// epoch is where the server's clock begins, in Unix microseconds.
const epoch = 946684800_000000

func serverTime(micros int64) time.Time { return time.UnixMicro(micros + epoch).UTC() }

type beginMessage struct {
	final lsn // of the commit record: where it begins, not where to go on
	time  time.Time
	xid   uint32
}

func parseBegin(b []byte) (beginMessage, error) {
	c := cursor{b: b}
	m := beginMessage{final: lsn(c.uint64()), time: c.time(), xid: c.uint32()}
	return m, c.err
}

type commitMessage struct {
	commit lsn // as final of begin
	end    lsn // where to go on
	time   time.Time
}

func parseCommit(b []byte) (commitMessage, error) {
	c := cursor{b: b}
	c.byte()
	m := commitMessage{commit: lsn(c.uint64()), end: lsn(c.uint64()), time: c.time()}
	return m, c.err
}

func parseRelation(b []byte) (*relationMessage, error) {
	c := cursor{b: b}
	m := &relationMessage{OID: c.uint32(), Namespace: c.string(), Name: c.string(), Identity: c.byte()}
	if m.Namespace == "" && c.err == nil {
		m.Namespace = "pg_catalog"
	}
	for range c.uint16() {
		col := relationColumn{Key: c.byte()&1 != 0, Name: c.string(), Type: c.uint32(), Typmod: int32(c.uint32())}
		if c.err != nil {
			return nil, c.err
		}
		m.Columns = append(m.Columns, col)
	}
	return m, c.err
}

// rowMessage is an insert, an update or a delete.
type rowMessage struct {
	oid uint32
	// oldKind is K for a tuple that has the replica identity only, O for a whole
	// row, 0 for none.
	oldKind  byte
	old, new []byte // TupleData
}

// parseRow reads the message whose type byte is kind: I, U or D.
func parseRow(kind byte, b []byte) (rowMessage, error) {
	c := cursor{b: b}
	m := rowMessage{oid: c.uint32()}
	for len(c.b) > 0 && c.err == nil {
		switch part := c.byte(); part {
		case 'K', 'O':
			if m.oldKind != 0 || m.new != nil || kind == 'I' {
				return m, fmt.Errorf("an old row where none belongs in message %q", kind)
			}
			m.oldKind, m.old = part, c.tuple()
		case 'N':
			if m.new != nil || kind == 'D' {
				return m, fmt.Errorf("a new row where none belongs in message %q", kind)
			}
			m.new = c.tuple()
		default:
			return m, fmt.Errorf("part %q in message %q", part, kind)
		}
	}
	if c.err == nil && (kind == 'D' && m.old == nil || kind != 'D' && m.new == nil) {
		return m, errShort
	}
	return m, c.err
}

func parseTruncate(b []byte) ([]uint32, error) {
	c := cursor{b: b}
	n := c.uint32()
	c.byte() // CASCADE, RESTART IDENTITY: the relations that follow are all of them
	var oids []uint32
	for range n {
		oids = append(oids, c.uint32())
		if c.err != nil {
			return nil, c.err
		}
	}
	return oids, c.err
}
