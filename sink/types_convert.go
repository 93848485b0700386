package sink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lakesyncd/lakesyncd/source"
)

// convertible reports whether values of one type can be written as another by
// `as:`. Single values may still not fit; those are errors when they come.
func convertible(from, to source.Type, timeOfDay bool) bool {
	if from == to || sameBytes(from, to) {
		return true
	}
	if timeOfDay {
		return from.Kind == source.Time
	}
	switch to.Kind {
	case source.Bool:
		return from.Kind == source.Int || from.Kind == source.Long || from.Kind == source.Decimal
	case source.Int, source.Decimal:
		switch from.Kind {
		case source.Bool, source.Int, source.Long, source.Decimal, source.String:
			return true
		}
	case source.Long:
		switch from.Kind {
		case source.Bool, source.Int, source.Long, source.Decimal, source.String, source.Time:
			return true
		}
	case source.String:
		return from.Kind != source.List
	case source.UUID:
		return from.Kind == source.Binary || from.Kind == source.String
	case source.Binary:
		return from.Kind == source.String || from.Kind == source.UUID
	}
	return false
}

// sameBytes reports whether vectors of one type are those of the other, too.
func sameBytes(from, to source.Type) bool {
	if from.Kind == source.List && to.Kind == source.List {
		from, to = from.Element(), to.Element()
	}
	return from.Kind == source.Time && to.Kind == source.Long
}

// converter turns vectors of one type into another, for `as:`.
type converter struct {
	to  source.Type
	one func(dst, src *source.Vector, row int) bool
}

// newConverter returns nil, nil if the values need no conversion.
func newConverter(from, to source.Type, timeOfDay bool) (*converter, error) {
	if !convertible(from, to, timeOfDay) {
		return nil, fmt.Errorf("%s cannot be written as %s", from, to)
	}
	c := &converter{to: to}
	switch {
	case timeOfDay:
		c.one = toTimeOfDay
	case from == to, sameBytes(from, to):
		return nil, nil
	case to.Kind == source.String:
		c.one = toString
	case to.Kind == source.UUID:
		c.one = toUUID
	case to.Kind == source.Binary:
		c.one = toBinary
	default:
		c.one = toNumber
	}
	return c, nil
}

var errDoesNotFit = errors.New("does not fit")

// Convert appends rows [from, to) of src to dst, which has the target type. A
// value that does not fit is an error; it names the row of src, not the value.
func (c *converter) Convert(dst, src *source.Vector, from, to int) error {
	for row := from; row < to; row++ {
		if src.Null(row) {
			dst.AppendNull()
			continue
		}
		if !c.one(dst, src, row) {
			return fmt.Errorf("value %d of the batch, a %s, %w %s", row, src.Type, errDoesNotFit, c.to)
		}
	}
	return nil
}

// numberAt reads an exact number.
func numberAt(v *source.Vector, row int) (number, bool) {
	switch v.Type.Kind {
	case source.Bool:
		return number{lo: uint64(v.Bools[row])}, true
	case source.Int:
		return wideNumber(wide(int64(v.Ints[row])), 0), true
	case source.Long:
		return wideNumber(wide(v.Longs[row]), 0), true
	case source.Decimal:
		if v.Type.Store() == source.StoreWides {
			return wideNumber(v.Wides[row], v.Type.Scale), true
		}
		return wideNumber(wide(v.Longs[row]), v.Type.Scale), true
	case source.String:
		return parseNumber(v.At(row))
	}
	return number{}, false
}

func toNumber(dst, src *source.Vector, row int) bool {
	n, ok := numberAt(src, row)
	if !ok || !n.rescale(dst.Type.Scale) {
		return false
	}
	w, ok := n.int128()
	if !ok {
		return false
	}
	small := w.Hi == int64(w.Lo)>>63
	switch dst.Type.Kind {
	case source.Bool:
		if !small || w.Lo > 1 {
			return false
		}
		dst.AppendBool(w.Lo == 1)
	case source.Int:
		if !small || int64(w.Lo) < math.MinInt32 || int64(w.Lo) > math.MaxInt32 {
			return false
		}
		dst.AppendInt(int32(w.Lo))
	case source.Long:
		if !small {
			return false
		}
		dst.AppendLong(int64(w.Lo))
	case source.Decimal:
		if n.digits() > dst.Type.Precision {
			return false
		}
		if dst.Type.Store() == source.StoreWides {
			dst.AppendWide(w)
		} else {
			dst.AppendLong(int64(w.Lo))
		}
	default:
		return false
	}
	return true
}

const dayMicros = 24 * 60 * 60 * 1_000_000

func toTimeOfDay(dst, src *source.Vector, row int) bool {
	x := src.Longs[row]
	if x < 0 || x >= dayMicros {
		return false
	}
	dst.AppendLong(x)
	return true
}

// end adds a row whose bytes are at the end of b, the arena with them appended.
func end(v *source.Vector, b []byte) bool {
	if len(b) > source.MaxArena {
		return false
	}
	v.Bytes = b
	v.Valid = append(v.Valid, 1)
	v.Ends = append(v.Ends, uint32(len(b)))
	return true
}

func toString(dst, src *source.Vector, row int) bool {
	b := dst.Bytes
	switch src.Type.Kind {
	case source.Bool:
		b = strconv.AppendBool(b, src.Bools[row] != 0)
	case source.Int:
		b = strconv.AppendInt(b, int64(src.Ints[row]), 10)
	case source.Long:
		b = strconv.AppendInt(b, src.Longs[row], 10)
	case source.Decimal:
		n, _ := numberAt(src, row)
		b = n.append(b)
	case source.Float:
		b = strconv.AppendFloat(b, float64(src.Floats[row]), 'g', -1, 32)
	case source.Double:
		b = strconv.AppendFloat(b, src.Doubles[row], 'g', -1, 64)
	case source.String:
		b = append(b, src.At(row)...)
	case source.Binary:
		if !utf8.Valid(src.At(row)) {
			return false
		}
		b = append(b, src.At(row)...)
	case source.Date:
		b = appendDate(b, int64(src.Ints[row]))
	case source.Time:
		x := src.Longs[row]
		if x < 0 {
			b, x = append(b, '-'), -x
		}
		b = appendClock(b, x)
	case source.Timestamp, source.TimestampTZ:
		x := src.Longs[row]
		b = append(appendDate(b, floorDiv(x, dayMicros)), ' ')
		b = appendClock(b, floorMod(x, dayMicros))
		if src.Type.Kind == source.TimestampTZ {
			b = append(b, "+00:00"...)
		}
	case source.UUID:
		b = appendUUID(b, src.At(row))
	case source.FloatList:
		b = append(b, '[')
		for i, l := 0, src.At(row); i+4 <= len(l); i += 4 {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendFloat(b, float64(math.Float32frombits(binary.LittleEndian.Uint32(l[i:]))), 'g', -1, 32)
		}
		b = append(b, ']')
	default:
		return false
	}
	return end(dst, b)
}

// appendDate appends days since 1970-01-01 as year-month-day.
func appendDate(b []byte, days int64) []byte {
	t := time.Unix(days*86400, 0).UTC()
	y := t.Year()
	if y < 0 {
		b, y = append(b, '-'), -y
	}
	for limit := 1000; limit > y && limit > 1; limit /= 10 {
		b = append(b, '0')
	}
	b = strconv.AppendInt(b, int64(y), 10)
	return t.AppendFormat(b, "-01-02")
}

// appendClock appends microseconds as hours:minutes:seconds, with six more
// digits if they are not zero.
func appendClock(b []byte, micros int64) []byte {
	s := micros / 1_000_000
	b = fmt.Appendf(b, "%02d:%02d:%02d", s/3600, s/60%60, s%60)
	if f := micros % 1_000_000; f != 0 {
		b = fmt.Appendf(b, ".%06d", f)
	}
	return b
}

func floorDiv(x, y int64) int64 {
	q := x / y
	if x%y != 0 && (x < 0) != (y < 0) {
		q--
	}
	return q
}

func floorMod(x, y int64) int64 { return x - floorDiv(x, y)*y }

func appendUUID(b, u []byte) []byte {
	for i, from := range [...]int{0, 4, 6, 8, 10} {
		if i > 0 {
			b = append(b, '-')
		}
		to := [...]int{4, 6, 8, 10, 16}[i]
		b = hex.AppendEncode(b, u[from:to])
	}
	return b
}

// parseUUID reads 36 characters with hyphens or 32 without.
func parseUUID(s []byte) (u [16]byte, ok bool) {
	if len(s) == 36 {
		if s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
			return u, false
		}
		var t [32]byte
		n := copy(t[:], s[:8])
		n += copy(t[n:], s[9:13])
		n += copy(t[n:], s[14:18])
		n += copy(t[n:], s[19:23])
		copy(t[n:], s[24:])
		s = t[:]
	}
	if len(s) != 32 {
		return u, false
	}
	_, err := hex.Decode(u[:], s)
	return u, err == nil
}

func toUUID(dst, src *source.Vector, row int) bool {
	b := src.At(row)
	if src.Type.Kind == source.Binary {
		if len(b) != 16 {
			return false
		}
		return end(dst, append(dst.Bytes, b...))
	}
	u, ok := parseUUID(b)
	return ok && end(dst, append(dst.Bytes, u[:]...))
}

func toBinary(dst, src *source.Vector, row int) bool {
	return end(dst, append(dst.Bytes, src.At(row)...))
}
