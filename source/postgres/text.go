package postgres

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/lakesyncd/lakesyncd/source"
)

// Values come as the server's text, from COPY and from the log alike, in
// sessions whose settings are pinned (conn.go). So there is one decoder for each
// type, and a row is the same whichever way it came.

// columnDecoder decodes the values of one column; which function does it is
// chosen once.
type columnDecoder struct {
	// append adds the value whose text is b to v.
	append func(c *columnDecoder, b []byte, v *source.Vector) error
	name   string
	inKey  bool
	digits int // numeric: precision
	scale  int
	// Of arrays: the decoder of the elements, where they are put first, and what is
	// between them.
	element *columnDecoder
	scratch source.Vector
	buf     []byte
	delim   byte
}

var (
	errText   = errors.New("the server sent a text that is no value of the type")
	errUTF8   = errors.New("the server sent bytes that are not UTF-8")
	errMisfit = errors.New("the lake cannot hold this value, and in a key it cannot be NULL instead")
)

// decoders makes the decoders of all columns.
func (s *shape) decoders() ([]columnDecoder, error) {
	if err := s.problem(); err != nil {
		return nil, err
	}
	d := make([]columnDecoder, len(s.Columns))
	for i := range s.Columns {
		c := &s.Columns[i]
		if why := c.unserved(); why != "" {
			return nil, s.cannot("column %s (%s): %s", c.Name, c.Native, why)
		}
		d[i] = c.decoder()
	}
	for _, k := range s.Key {
		d[k].inKey = true
	}
	return d, nil
}

// scalarDecoder is the decoder of a type that is neither a domain nor an array.
func scalarDecoder(oid uint32, typmod int32) columnDecoder {
	t := scalarType(oid, typmod)
	c := columnDecoder{append: appendString, digits: t.Precision, scale: t.Scale}
	switch t.Kind {
	case source.Bool:
		c.append = appendBool
	case source.Int:
		c.append = appendInt
	case source.Long:
		c.append = appendLong
	case source.Float:
		c.append = appendFloat
	case source.Double:
		c.append = appendDouble
	case source.Decimal:
		switch {
		case oid == oidMoney:
			c.append = appendMoney
		case t.Store() == source.StoreWides:
			c.append = appendWideNumeric
		default:
			c.append = appendNumeric
		}
	case source.Binary:
		c.append = appendBytea
	case source.Date:
		c.append = appendDate
	case source.Time:
		c.append = appendTime
	case source.Timestamp:
		c.append = appendTimestamp
	case source.TimestampTZ:
		c.append = appendTimestamptz
	}
	return c
}

// misfit adds NULL in place of a value that the lake cannot hold.
func (c *columnDecoder) misfit(v *source.Vector, why string) error {
	if c.inKey {
		return fmt.Errorf("%s: %w", why, errMisfit)
	}
	v.AppendMisfit(why)
	return nil
}

func appendString(_ *columnDecoder, b []byte, v *source.Vector) error {
	if !utf8.Valid(b) {
		return errUTF8
	}
	v.AppendBytes(b)
	return nil
}

func appendBool(_ *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) != 1 || b[0] != 't' && b[0] != 'f' {
		return errText
	}
	v.AppendBool(b[0] == 't')
	return nil
}

// parseLong reads [-]digits.
func parseLong(b []byte) (int64, bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		if c -= '0'; c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	switch {
	case negative && n <= 1<<63:
		return -int64(n), true
	case !negative && n < 1<<63:
		return int64(n), true
	}
	return 0, false
}

func appendInt(_ *columnDecoder, b []byte, v *source.Vector) error {
	n, ok := parseLong(b)
	if !ok || n < math.MinInt32 || n > math.MaxInt32 {
		return errText
	}
	v.AppendInt(int32(n))
	return nil
}

func appendLong(_ *columnDecoder, b []byte, v *source.Vector) error {
	n, ok := parseLong(b)
	if !ok {
		return errText
	}
	v.AppendLong(n)
	return nil
}

func appendFloat(_ *columnDecoder, b []byte, v *source.Vector) error {
	f, err := strconv.ParseFloat(string(b), 32)
	if err != nil {
		return errText
	}
	v.AppendFloat(float32(f))
	return nil
}

func appendDouble(_ *columnDecoder, b []byte, v *source.Vector) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return errText
	}
	v.AppendDouble(f)
	return nil
}

func appendBytea(_ *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) < 2 || b[0] != '\\' || b[1] != 'x' || len(b)%2 != 0 {
		return errText
	}
	at := len(v.Bytes)
	var err error
	if v.Bytes, err = hex.AppendDecode(v.Bytes, b[2:]); err != nil {
		v.Bytes = v.Bytes[:at]
		return errText
	}
	v.Valid = append(v.Valid, 1)
	v.Ends = append(v.Ends, uint32(len(v.Bytes)))
	return nil
}
