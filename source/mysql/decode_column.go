package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/lakesyncd/lakesyncd/source"
)

var (
	errValueShort = errors.New("a rows event ends within a value")
	errCharset    = errors.New("a value is not valid in its character set; correct the row or change the column to VARBINARY or BLOB")
	errKeyCharset = errors.New("a value of the key is not valid in its character set, or holds a character that the set has twice, so that two keys could become one; correct the row or convert the column to utf8mb4")
)

// invalid is the error for text that cannot be converted.
func (c *columnDecoder) invalid() error {
	if c.twice {
		return errKeyCharset
	}
	return errCharset
}

// choose picks the function for a column. typ and meta are of the table map and
// were found to agree with the definition.
func (c *columnDecoder) choose(def *columnDef, typ byte, meta uint16, flavor Flavor) error {
	if def.isText() {
		set := lookupCharset(def.Charset)
		if set == nil {
			return fmt.Errorf("the character set %q is not supported", def.Charset)
		}
		c.text = set.appendTo(c.inKey)
		c.twice = c.inKey && !set.injective()
	}
	c.labels = def.Labels
	switch def.Base {
	case "tinyint":
		c.decode = pick(def.Unsigned, decodeUint8, decodeInt8)
	case "smallint":
		c.decode = pick(def.Unsigned, decodeUint16, decodeInt16)
	case "mediumint":
		c.decode = pick(def.Unsigned, decodeUint24, decodeInt24)
	case "int":
		c.decode = pick(def.Unsigned, decodeUint32, decodeInt32)
	case "bigint":
		c.decode = pick(def.Unsigned, decodeUint64, decodeInt64)
	case "float":
		c.decode = decodeFloat
	case "double":
		c.decode = decodeDouble
	case "year":
		c.decode = decodeYear
	case "decimal":
		c.digits, c.scale, c.size = def.Len, def.Scale, decimalSize(def.Len, def.Scale)
		c.layout = decimalLayout(def.Len, def.Scale)
		switch {
		case def.Len <= 18:
			c.decode = decodeDecimalLong
		case def.Len <= 38:
			c.decode = decodeDecimalWide
		default:
			c.decode = decodeDecimalText
		}
	case "bit":
		c.size = (def.Len + 7) / 8
		switch {
		case def.Len == 1:
			c.decode = decodeBool
		case def.Len < 64:
			c.decode = decodeBits
		default:
			c.decode = decodeBits64
		}
	case "date":
		c.decode = decodeDate
	case "time":
		c.digits, c.size, c.decode = def.Len, 3+(def.Len+1)/2, decodeTime
	case "datetime":
		c.digits, c.size, c.decode = def.Len, 5+(def.Len+1)/2, decodeDatetime
	case "timestamp":
		c.digits, c.size, c.decode = def.Len, 4+(def.Len+1)/2, decodeTimestamp
	case "enum":
		c.size, c.decode = int(meta&0xFF), decodeEnum
	case "set":
		c.size, c.decode = int(meta&0xFF), decodeSet
	case "char":
		c.size, c.decode, c.inner = charPrefix(meta), decodeString, innerChar
	case "binary":
		c.size, c.pad, c.decode, c.inner = charPrefix(meta), def.Len, decodeString, innerBinary
	case "uuid":
		c.size, c.pad, c.decode, c.inner = charPrefix(meta), 16, decodeString, innerUUID
	case "inet4":
		c.size, c.pad, c.decode, c.inner = charPrefix(meta), 4, decodeString, innerINET4
	case "inet6":
		c.size, c.pad, c.decode, c.inner = charPrefix(meta), 16, decodeString, innerINET6
	case "varchar", "varbinary":
		c.size, c.decode = 1, decodeString
		if meta > 255 {
			c.size = 2
		}
		c.inner = innerBytes
		if def.Base == "varchar" {
			c.inner = innerText
		}
	case "tinytext", "text", "mediumtext", "longtext":
		c.size, c.decode, c.inner = int(meta), decodeString, innerText
	case "tinyblob", "blob", "mediumblob", "longblob", "geometry":
		c.size, c.decode, c.inner = int(meta), decodeString, innerBytes
	case "json":
		c.size, c.decode, c.inner = int(meta), decodeString, innerJSON
	case "vector":
		c.size, c.decode, c.inner = int(meta), decodeString, innerVector
		if typ == typeVarchar {
			if c.size = 1; meta > 255 {
				c.size = 2
			}
		}
	default:
		return fmt.Errorf("the type %s is not supported", def.Base)
	}
	if def.Compressed {
		plain := c.inner
		c.inner = func(c *columnDecoder, b []byte, v *source.Vector) error {
			b, err := c.inflate(b)
			if err != nil {
				return err
			}
			return plain(c, b, v)
		}
	}
	return nil
}

type decodeFunc = func(c *columnDecoder, b []byte, v *source.Vector) (int, error)

func pick(unsigned bool, u, s decodeFunc) decodeFunc {
	if unsigned {
		return u
	}
	return s
}

// charPrefix is the bytes of the length of a CHAR or BINARY, by the table map's
// metadata, which has the upper bits of the length inverted beside the type.
func charPrefix(meta uint16) int {
	if charBytes(meta) > 255 {
		return 2
	}
	return 1
}

func charBytes(meta uint16) int {
	return int(meta&0xFF) | int((meta>>4)&0x300^0x300)
}

func decodeInt8(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 {
		return 0, errValueShort
	}
	v.AppendInt(int32(int8(b[0])))
	return 1, nil
}

func decodeUint8(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 {
		return 0, errValueShort
	}
	v.AppendInt(int32(b[0]))
	return 1, nil
}

func decodeInt16(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 2 {
		return 0, errValueShort
	}
	v.AppendInt(int32(int16(binary.LittleEndian.Uint16(b))))
	return 2, nil
}

func decodeUint16(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 2 {
		return 0, errValueShort
	}
	v.AppendInt(int32(binary.LittleEndian.Uint16(b)))
	return 2, nil
}

func decodeInt24(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 3 {
		return 0, errValueShort
	}
	v.AppendInt(int32(uint32(b[0])<<8|uint32(b[1])<<16|uint32(b[2])<<24) >> 8)
	return 3, nil
}

func decodeUint24(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 3 {
		return 0, errValueShort
	}
	v.AppendInt(int32(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16))
	return 3, nil
}

func decodeInt32(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 4 {
		return 0, errValueShort
	}
	v.AppendInt(int32(binary.LittleEndian.Uint32(b)))
	return 4, nil
}

func decodeUint32(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 4 {
		return 0, errValueShort
	}
	v.AppendLong(int64(binary.LittleEndian.Uint32(b)))
	return 4, nil
}

func decodeInt64(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 8 {
		return 0, errValueShort
	}
	v.AppendLong(int64(binary.LittleEndian.Uint64(b)))
	return 8, nil
}

func decodeUint64(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 8 {
		return 0, errValueShort
	}
	v.AppendWide(source.Int128{Lo: binary.LittleEndian.Uint64(b)})
	return 8, nil
}

func decodeFloat(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 4 {
		return 0, errValueShort
	}
	v.AppendFloat(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	return 4, nil
}

func decodeDouble(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 8 {
		return 0, errValueShort
	}
	v.AppendDouble(math.Float64frombits(binary.LittleEndian.Uint64(b)))
	return 8, nil
}

func decodeYear(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 {
		return 0, errValueShort
	}
	y := int32(b[0])
	if y != 0 {
		y += 1900
	}
	v.AppendInt(y)
	return 1, nil
}

func decodeDecimalLong(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	return c.size, appendDecimalLong(v, c.layout, b)
}

func decodeDecimalWide(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	return c.size, appendDecimalWide(v, c.layout, b)
}

func decodeDecimalText(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	out, err := appendDecimalText(v.Bytes, c.digits, c.scale, b)
	if err != nil {
		return 0, err
	}
	v.Bytes = out
	endBytes(v)
	return c.size, nil
}

// bigEndian reads the first n bytes, eight at most.
func bigEndian(b []byte, n int) uint64 {
	var x uint64
	for _, c := range b[:n] {
		x = x<<8 | uint64(c)
	}
	return x
}

func littleEndian(b []byte, n int) uint64 {
	var x uint64
	for i := n - 1; i >= 0; i-- {
		x = x<<8 | uint64(b[i])
	}
	return x
}

func decodeBool(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 {
		return 0, errValueShort
	}
	v.AppendBool(b[0] != 0)
	return 1, nil
}

func decodeBits(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	v.AppendLong(int64(bigEndian(b, c.size)))
	return c.size, nil
}

func decodeBits64(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	v.AppendWide(source.Int128{Lo: bigEndian(b, c.size)})
	return c.size, nil
}

func decodeDate(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 3 {
		return 0, errValueShort
	}
	x := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
	appendDate(v, x>>9, x>>5&15, x&31)
	return 3, nil
}

// fraction turns the digits of a fraction, as the log packs them two to a byte,
// into microseconds.
func fraction(x int64, digits int) int64 {
	switch (digits + 1) / 2 {
	case 1:
		return x * 10_000
	case 2:
		return x * 100
	}
	return x
}

func decodeDatetime(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	x := int64(bigEndian(b, 5)) - 0x80_0000_0000
	if x < 0 {
		return 0, fmt.Errorf("a datetime is negative")
	}
	micros := fraction(int64(bigEndian(b[5:], c.size-5)), c.digits)
	date, clock := int(x>>17), int(x&0x1FFFF)
	month := date >> 5
	appendMoment(v, month/13, month%13, date&31, clock>>12, clock>>6&63, clock&63, int(micros))
	return c.size, nil
}

func decodeTimestamp(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	seconds := int64(bigEndian(b, 4))
	micros := fraction(int64(bigEndian(b[4:], c.size-4)), c.digits)
	if seconds == 0 && micros == 0 {
		v.AppendMisfit("a zero date")
	} else {
		v.AppendLong(seconds*microsPerSecond + micros)
	}
	return c.size, nil
}

func decodeTime(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	// Whole and fraction are one number, offset so that it sorts as bytes.
	bits := 8 * (c.size - 3)
	x := int64(bigEndian(b, c.size)) - 0x80_0000<<bits
	negative := x < 0
	if negative {
		x = -x
	}
	clock, micros := x>>bits, fraction(x&(1<<bits-1), c.digits)
	us := ((clock>>12)*3600+(clock>>6&63)*60+clock&63)*microsPerSecond + micros
	if negative {
		us = -us
	}
	v.AppendLong(us)
	return c.size, nil
}

func decodeEnum(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	return c.size, appendEnum(v, c.labels, littleEndian(b, c.size))
}

func decodeSet(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	return c.size, appendSet(v, c.labels, littleEndian(b, c.size))
}

// decodeString is any value with its length before it.
func decodeString(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < c.size {
		return 0, errValueShort
	}
	n := c.size + int(littleEndian(b, c.size))
	if n > len(b) || n < 0 {
		return 0, errValueShort
	}
	return n, c.inner(c, b[c.size:n], v)
}

func innerBytes(_ *columnDecoder, b []byte, v *source.Vector) error {
	v.AppendBytes(b)
	return nil
}

func innerText(c *columnDecoder, b []byte, v *source.Vector) error {
	out, ok := c.text(v.Bytes, b)
	if !ok {
		return c.invalid()
	}
	v.Bytes = out
	endBytes(v)
	return nil
}

func innerChar(c *columnDecoder, b []byte, v *source.Vector) error {
	from := len(v.Bytes)
	out, ok := c.text(v.Bytes, b)
	if !ok {
		return c.invalid()
	}
	v.Bytes = trimSpaces(out, from)
	endBytes(v)
	return nil
}

// innerBinary restores the zero bytes at the end that the log leaves out.
func innerBinary(c *columnDecoder, b []byte, v *source.Vector) error {
	return appendPadded(v, b, c.pad)
}

func innerVector(_ *columnDecoder, b []byte, v *source.Vector) error {
	if len(b)%4 != 0 {
		return fmt.Errorf("a vector of %d bytes", len(b))
	}
	v.AppendBytes(b)
	return nil
}

func innerJSON(_ *columnDecoder, b []byte, v *source.Vector) error {
	out, err := appendJSON(v.Bytes, b)
	if err != nil {
		return err
	}
	v.Bytes = out
	endBytes(v)
	return nil
}
