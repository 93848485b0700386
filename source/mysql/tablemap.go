package mysql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// tableMap is a TABLE_MAP event, which says how the rows events that follow it
// are laid out.
type tableMap struct {
	ID           uint64
	Schema, Name string

	raw     []byte // the body
	types   []byte
	meta    []uint16
	notNull []bool

	// What binlog_row_metadata=FULL adds.
	full       bool
	names      []string
	unsigned   []bool        // of numeric columns, in their order
	collations collationMeta // of character columns
	enums      collationMeta // of enum and set columns
	labels     [][][]byte    // of enum columns, in their order
	setLabels  [][][]byte    // of set columns
	key        []uint64
}

// collationMeta is collations in one of the two forms that the log knows: a
// default and its exceptions, or one for each column.
type collationMeta struct {
	set     bool
	byOrder []uint64
	def     uint64
	except  map[uint64]uint64
}

func (c *collationMeta) of(i int) (uint64, bool) {
	switch {
	case !c.set:
		return 0, false
	case c.byOrder != nil:
		if i >= len(c.byOrder) {
			return 0, false
		}
		return c.byOrder[i], true
	}
	if id, ok := c.except[uint64(i)]; ok {
		return id, true
	}
	return c.def, true
}

var errTableMap = errors.New("the TABLE_MAP event ends too early")

// cursor reads an event's bytes; after the first lack of them everything is zero.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.bad, c.b = true, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) byte() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

// length reads a number of one to nine bytes.
func (c *cursor) length() uint64 {
	n, size, ok := packedLength(c.b)
	if !ok {
		c.bad, c.b = true, nil
		return 0
	}
	c.b = c.b[size:]
	return n
}

// packedLength reads the protocol's number of one to nine bytes.
func packedLength(b []byte) (n uint64, size int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	switch b[0] {
	case 0xfc:
		size = 3
	case 0xfd:
		size = 4
	case 0xfe:
		size = 9
	case 0xfb, 0xff:
		return 0, 0, false
	default:
		return uint64(b[0]), 1, true
	}
	if len(b) < size {
		return 0, 0, false
	}
	for i := size - 1; i > 0; i-- {
		n = n<<8 | uint64(b[i])
	}
	return n, size, true
}

// tableMapHead is the number of the table and the flags, which differ between
// table maps that are otherwise equal.
const tableMapHead = 8

// parseTableMap reads the body of a TABLE_MAP event: what comes after the
// event's header, without the checksum. It keeps no reference to body.
func parseTableMap(body []byte) (*tableMap, error) {
	if len(body) < tableMapHead {
		return nil, errTableMap
	}
	t := &tableMap{raw: bytes.Clone(body)}
	t.ID = binary.LittleEndian.Uint64(append(append(make([]byte, 0, 8), body[:6]...), 0, 0))
	c := &cursor{b: t.raw[tableMapHead:]}
	t.Schema = string(c.take(uint64(c.byte())))
	c.byte()
	t.Name = string(c.take(uint64(c.byte())))
	c.byte()
	n := c.length()
	t.types = c.take(n)
	meta := &cursor{b: c.take(c.length())}
	nulls := c.take((n + 7) / 8)
	if c.bad {
		return nil, errTableMap
	}
	t.meta = make([]uint16, n)
	t.notNull = make([]bool, n)
	for i, typ := range t.types {
		switch typ {
		case typeString, typeNewDecimal, typeEnum, typeSet:
			t.meta[i] = uint16(meta.byte())<<8 | uint16(meta.byte())
		case typeVarString, typeVarchar, typeBit, typeVarCompressed:
			t.meta[i] = uint16(meta.byte()) | uint16(meta.byte())<<8
		case typeBlob, typeTinyBlob, typeMediumBlob, typeLongBlob, typeDouble, typeFloat, typeGeometry, typeVector, typeJSON,
			typeTime, typeDatetime, typeTimestamp, typeBlobCompressed:
			t.meta[i] = uint16(meta.byte())
		}
		t.notNull[i] = nulls[i/8]&(1<<(i%8)) == 0
	}
	if meta.bad || len(meta.b) > 0 {
		return nil, fmt.Errorf("the TABLE_MAP event of %s.%s has metadata of another length than its types need", t.Schema, t.Name)
	}
	if err := t.optional(c); err != nil {
		return nil, fmt.Errorf("the TABLE_MAP event of %s.%s: %w", t.Schema, t.Name, err)
	}
	return t, nil
}

// Kinds of the optional metadata.
const (
	metaSignedness    = 1
	metaCharset       = 2
	metaColumnCharset = 3
	metaNames         = 4
	metaSetLabels     = 5
	metaEnumLabels    = 6
	metaKey           = 8
	metaKeyPrefix     = 9
	metaEnumCharset   = 10
	metaEnumCharsets  = 11
)

func (t *tableMap) optional(c *cursor) error {
	for len(c.b) > 0 {
		kind := c.byte()
		v := &cursor{b: c.take(c.length())}
		if c.bad {
			return errTableMap
		}
		switch kind {
		case metaSignedness:
			for i := 0; i < 8*len(v.b); i++ {
				t.unsigned = append(t.unsigned, v.b[i/8]&(0x80>>(i%8)) != 0)
			}
			v.b = nil
		case metaCharset:
			t.collations = v.defaults()
		case metaColumnCharset:
			t.collations = collationMeta{set: true, byOrder: v.numbers()}
		case metaEnumCharset:
			t.enums = v.defaults()
		case metaEnumCharsets:
			t.enums = collationMeta{set: true, byOrder: v.numbers()}
		case metaNames:
			t.full = true
			for len(v.b) > 0 {
				t.names = append(t.names, string(v.take(v.length())))
			}
		case metaSetLabels:
			t.setLabels = v.labelLists()
		case metaEnumLabels:
			t.labels = v.labelLists()
		case metaKey:
			t.key = v.numbers()
		case metaKeyPrefix:
			for len(v.b) > 0 {
				t.key = append(t.key, v.length())
				v.length()
			}
		}
		if v.bad {
			return errTableMap
		}
	}
	return nil
}

func (c *cursor) numbers() (all []uint64) {
	for len(c.b) > 0 {
		all = append(all, c.length())
	}
	return all
}

func (c *cursor) defaults() collationMeta {
	m := collationMeta{set: true, def: c.length(), except: map[uint64]uint64{}}
	for len(c.b) > 0 {
		i := c.length()
		m.except[i] = c.length()
	}
	return m
}

func (c *cursor) labelLists() (all [][][]byte) {
	for len(c.b) > 0 {
		n := c.length()
		var one [][]byte
		for ; n > 0 && !c.bad; n-- {
			one = append(one, c.take(c.length()))
		}
		all = append(all, one)
	}
	return all
}

// same reports whether body is the same table map apart from the table's
// number, so that a decoder made for it serves again.
func (t *tableMap) same(body []byte) bool {
	return len(body) > tableMapHead && bytes.Equal(t.raw[tableMapHead:], body[tableMapHead:])
}
