package sink

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"net/url"
	"strconv"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

const hourMicros = dayMicros / 24

func dayOfMicros(x int64) int64  { return floorDiv(x, dayMicros) }
func hourOfMicros(x int64) int64 { return floorDiv(x, hourMicros) }

func yearOfDays(d int64) int64 {
	return int64(time.Unix(d*86400, 0).UTC().Year()) - 1970
}

func monthOfDays(d int64) int64 {
	t := time.Unix(d*86400, 0).UTC()
	return (int64(t.Year())-1970)*12 + int64(t.Month()) - 1
}

func yearOfMicros(x int64) int64  { return yearOfDays(dayOfMicros(x)) }
func monthOfMicros(x int64) int64 { return monthOfDays(dayOfMicros(x)) }

// truncateWide takes x down to a multiple of w.
func truncateWide(x source.Int128, w uint64) source.Int128 {
	n := wideNumber(x, 0)
	_, rest := bits.Div64(n.hi%w, n.lo, w)
	if n.negative && rest != 0 {
		rest = w - rest
	}
	lo, borrow := bits.Sub64(x.Lo, rest, 0)
	hi, _ := bits.Sub64(uint64(x.Hi), 0, borrow)
	return source.Int128{Hi: int64(hi), Lo: lo}
}

// longestPart is how long one field of a path may be; file systems allow 255
// bytes for a name.
const longestPart = 120

// Path is the tuple as folders, "day=2024-01-01/b=3", escaped; "" if
// unpartitioned. It is for people: a value that is too long for a folder is cut
// and a hash put after it.
func (p *partitioner) Path(tuple []byte) string {
	var path []byte
	for i, value := range p.Values(tuple) {
		f := &p.fields[i]
		if i > 0 {
			path = append(path, '/')
		}
		name := url.QueryEscape(f.name)
		if len(name) > longestPart {
			name = cutEscaped(name, []byte(f.name))
		}
		path = append(append(path, name...), '=')
		if value == nil {
			path = append(path, "null"...)
			continue
		}
		text := url.QueryEscape(string(f.text(nil, value)))
		if len(text) > longestPart {
			text = cutEscaped(text, value)
		}
		path = append(path, text...)
	}
	return string(path)
}

func cutEscaped(s string, whole []byte) string {
	h := fnv.New64a()
	h.Write(whole)
	n := longestPart - 17
	for k := n - 2; k < n; k++ {
		if s[k] == '%' {
			n = k
			break
		}
	}
	return fmt.Sprintf("%s-%016x", s[:n], h.Sum64())
}

func intOf(value []byte) int64 { return int64(int32(binary.LittleEndian.Uint32(value))) }

func textInt(dst, value []byte) []byte { return strconv.AppendInt(dst, intOf(value), 10) }

func textDay(dst, value []byte) []byte { return appendDate(dst, intOf(value)) }

func textYear(dst, value []byte) []byte { return fmt.Appendf(dst, "%04d", intOf(value)+1970) }

func textMonth(dst, value []byte) []byte {
	m := intOf(value)
	return fmt.Appendf(dst, "%04d-%02d", floorDiv(m, 12)+1970, floorMod(m, 12)+1)
}

func textHour(dst, value []byte) []byte {
	h := intOf(value)
	return fmt.Appendf(appendDate(dst, floorDiv(h, 24)), "-%02d", floorMod(h, 24))
}

// textOf returns how values of a column's own type are written in paths.
func textOf(c fileColumn) func(dst, value []byte) []byte {
	switch c.Type.Kind {
	case source.Bool:
		return func(dst, value []byte) []byte { return strconv.AppendBool(dst, value[0] != 0) }
	case source.Int:
		return textInt
	case source.Date:
		return textDay
	case source.Long, source.Time:
		return func(dst, value []byte) []byte {
			x := int64(binary.LittleEndian.Uint64(value))
			if c.TimeOfDay {
				return appendClock(dst, x)
			}
			return strconv.AppendInt(dst, x, 10)
		}
	case source.Timestamp, source.TimestampTZ:
		return func(dst, value []byte) []byte {
			x := int64(binary.LittleEndian.Uint64(value))
			dst = append(appendDate(dst, floorDiv(x, dayMicros)), 'T')
			dst = appendClock(dst, floorMod(x, dayMicros))
			if c.Type.Kind == source.TimestampTZ {
				dst = append(dst, "+00:00"...)
			}
			return dst
		}
	case source.Float:
		return func(dst, value []byte) []byte {
			return strconv.AppendFloat(dst, float64(math.Float32frombits(binary.LittleEndian.Uint32(value))), 'g', -1, 32)
		}
	case source.Double:
		return func(dst, value []byte) []byte {
			return strconv.AppendFloat(dst, math.Float64frombits(binary.LittleEndian.Uint64(value)), 'g', -1, 64)
		}
	case source.Decimal:
		return func(dst, value []byte) []byte {
			return wideNumber(parseDecimalBytes(value), c.Type.Scale).append(dst)
		}
	case source.UUID:
		return appendUUID
	case source.Binary:
		return func(dst, value []byte) []byte { return base64.StdEncoding.AppendEncode(dst, value) }
	}
	return func(dst, value []byte) []byte { return append(dst, value...) }
}

// parseDecimalBytes reads big-endian two's complement of at most 16 bytes.
func parseDecimalBytes(b []byte) source.Int128 {
	var x source.Int128
	if len(b) > 0 && b[0]&0x80 != 0 {
		x = source.Int128{Hi: -1, Lo: math.MaxUint64}
	}
	for _, c := range b {
		x.Hi = x.Hi<<8 | int64(x.Lo>>56)
		x.Lo = x.Lo<<8 | uint64(c)
	}
	return x
}
