package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"
)

// mysqlGTID is what a GTID event of MySQL says.
type mysqlGTID struct {
	sid       sid
	tag       string
	gno       int64
	committed time.Time // zero before MySQL 8.0.1
}

// commitTime takes 7 bytes of microseconds, whose highest bit says that the
// commit time at the first server follows.
func commitTime(us uint64) time.Time {
	if us &^= 1 << 55; us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(us)).UTC()
}

// parseGTID reads a GTID event without a tag: flags, UUID, number, then the two
// numbers of parallel replication behind a byte of 2, then the commit time.
func parseGTID(b []byte) (g mysqlGTID, err error) {
	if len(b) < 25 {
		return g, errCutShort
	}
	copy(g.sid[:], b[1:])
	g.gno = int64(binary.LittleEndian.Uint64(b[17:]))
	if len(b) >= 25+1+16+7 && b[25] == 2 {
		var us [8]byte
		copy(us[:7], b[42:])
		g.committed = commitTime(binary.LittleEndian.Uint64(us[:]))
	}
	return g, nil
}

// Fields of a tagged GTID event, in their order.
const (
	taggedFlags = iota
	taggedUUID
	taggedNumber
	taggedTag
	taggedLastCommitted
	taggedSequence
	taggedCommitted
	taggedLast = 11 // the newest field that is known
)

// parseTaggedGTID reads MySQL's self-describing form: a version, the size, the
// last field that a reader must know, then fields behind their numbers.
func parseTaggedGTID(b []byte) (g mysqlGTID, err error) {
	d := varDecoder{b: b}
	d.uint()
	d.uint()
	if last := d.uint(); last > taggedLast {
		return g, fmt.Errorf("field %d is unknown and may not be ignored", last)
	}
	for d.err == nil && len(d.b) > 0 {
		switch field := d.uint(); field {
		case taggedFlags:
			d.uint()
		case taggedUUID:
			for i := range g.sid {
				g.sid[i] = byte(d.uint())
			}
		case taggedNumber:
			g.gno = d.int()
		case taggedTag:
			n := d.uint()
			if n > uint64(len(d.b)) {
				return g, errCutShort
			}
			g.tag, d.b = string(d.b[:n]), d.b[n:]
		case taggedLastCommitted, taggedSequence:
			d.int()
		case taggedCommitted:
			g.committed = commitTime(d.uint())
			return g, d.err
		default:
			return g, fmt.Errorf("field %d comes before the commit time", field)
		}
	}
	if d.err == nil {
		d.err = errCutShort
	}
	return g, d.err
}

// varDecoder reads MySQL's integers of variable length: as many low bits of the
// first byte are 1 as bytes follow it.
type varDecoder struct {
	b   []byte
	err error
}

func (d *varDecoder) uint() uint64 {
	if d.err != nil {
		return 0
	}
	if len(d.b) == 0 {
		d.err = errCutShort
		return 0
	}
	n := bits.TrailingZeros8(^d.b[0]) + 1
	if n > len(d.b) {
		d.err = errCutShort
		return 0
	}
	var x [8]byte
	if n == 9 {
		copy(x[:], d.b[1:9])
	} else {
		copy(x[:], d.b[:n])
	}
	d.b = d.b[n:]
	v := binary.LittleEndian.Uint64(x[:])
	if n < 9 {
		v >>= n
	}
	return v
}

// int has its sign in the lowest bit; the other bits of a negative number are
// inverted.
func (d *varDecoder) int() int64 {
	v := d.uint()
	if v&1 == 0 {
		return int64(v >> 1)
	}
	return -1 - int64(v>>1)
}

var errCutShort = errors.New("the event is cut short")
