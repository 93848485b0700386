package sink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lakesyncd/lakesyncd/source"
)

// metricsMode is one of Iceberg's write.metadata.metrics modes. The zero value
// is truncate(16).
type metricsMode struct {
	kind  metricsKind
	width int // of metricsTruncate, in code points; 0 means 16
}

type metricsKind uint8

const (
	metricsTruncate metricsKind = iota
	metricsNone
	metricsCounts
	metricsFull
)

// parseMetricsMode reads none, counts, truncate(N) or full.
func parseMetricsMode(s string) (metricsMode, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	switch t {
	case "none":
		return metricsMode{kind: metricsNone}, nil
	case "counts":
		return metricsMode{kind: metricsCounts}, nil
	case "full":
		return metricsMode{kind: metricsFull}, nil
	}
	if n, ok := strings.CutPrefix(t, "truncate("); ok {
		if n, ok = strings.CutSuffix(n, ")"); ok {
			if w, err := strconv.Atoi(strings.TrimSpace(n)); err == nil && w > 0 && w <= 1<<16 {
				return metricsMode{kind: metricsTruncate, width: w}, nil
			}
		}
	}
	return metricsMode{}, fmt.Errorf("metrics mode %q: use none, counts, truncate(N) or full", s)
}

// codePoints is the number of code points (bytes, of binary) that a bound in the
// manifest may have; 0 means all.
func (m metricsMode) codePoints() int {
	switch {
	case m.kind == metricsFull:
		return 0
	case m.width == 0:
		return 16
	}
	return m.width
}

// footerBound is the length in bytes to which bounds in the footer and the page
// index are cut; a whole 1 MB text there would be dear and help nobody.
const footerBound = 64

// bounds are the smallest and the largest value of a run of values. Which fields
// count depends on the store of the column. NaN is never a bound.
type bounds struct {
	set      bool
	lo, hi   int64 // booleans, ints, longs
	flo, fhi float64
	wlo, whi source.Int128
	// Of bytes only the first keep bytes matter; blo and bhi are copies of at
	// most that many. plo and phi are their first eight bytes as numbers,
	// which decide most comparisons.
	blo, bhi []byte
	plo, phi uint64
}

func (b *bounds) reset() {
	b.set = false
	b.blo, b.bhi = b.blo[:0], b.bhi[:0]
}

func (b *bounds) addInts(lo, hi int64) {
	if !b.set {
		b.set, b.lo, b.hi = true, lo, hi
		return
	}
	b.lo, b.hi = min(b.lo, lo), max(b.hi, hi)
}

func (b *bounds) addFloat(x float64) {
	switch {
	case !b.set:
		b.set, b.flo, b.fhi = true, x, x
	case x < b.flo:
		b.flo = x
	case x > b.fhi:
		b.fhi = x
	}
}

func (b *bounds) addWide(x source.Int128) {
	switch {
	case !b.set:
		b.set, b.wlo, b.whi = true, x, x
	case compareWide(x, b.wlo) < 0:
		b.wlo = x
	case compareWide(x, b.whi) > 0:
		b.whi = x
	}
}

func compareWide(a, b source.Int128) int {
	switch {
	case a.Hi != b.Hi:
		if a.Hi < b.Hi {
			return -1
		}
		return 1
	case a.Lo < b.Lo:
		return -1
	case a.Lo > b.Lo:
		return 1
	}
	return 0
}

// prefix8 is the first eight bytes as a number that orders as the bytes do,
// except that it cannot tell apart what differs later.
func prefix8(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var p uint64
	for i, c := range b {
		p |= uint64(c) << (56 - 8*i)
	}
	return p
}

// addBytes considers v, of which the first keep bytes matter (0: all).
func (b *bounds) addBytes(v []byte, keep int) {
	p := prefix8(v)
	if b.set && p > b.plo && p < b.phi {
		return
	}
	if keep > 0 && len(v) > keep {
		v = v[:keep]
	}
	if !b.set {
		b.set, b.plo, b.phi = true, p, p
		b.blo, b.bhi = append(b.blo[:0], v...), append(b.bhi[:0], v...)
		return
	}
	if p < b.plo || p == b.plo && bytes.Compare(v, b.blo) < 0 {
		b.plo, b.blo = p, append(b.blo[:0], v...)
	}
	if p > b.phi || p == b.phi && bytes.Compare(v, b.bhi) > 0 {
		b.phi, b.bhi = p, append(b.bhi[:0], v...)
	}
}

// merge widens b by o; both are of one column.
func (b *bounds) merge(o *bounds, store source.Store) {
	if !o.set {
		return
	}
	switch store {
	case source.StoreFloats, source.StoreDoubles:
		b.addFloat(o.flo)
		b.addFloat(o.fhi)
	case source.StoreWides:
		b.addWide(o.wlo)
		b.addWide(o.whi)
	case source.StoreBytes:
		b.addBytes(o.blo, 0)
		b.addBytes(o.bhi, 0)
	default:
		b.addInts(o.lo, o.hi)
	}
}

// zeros makes a bound of zero the negative zero below and the positive above, so
// that it holds whichever zero the column has.
func zeros(lo, hi float64) (float64, float64) {
	if lo == 0 {
		lo = math.Copysign(0, -1)
	}
	if hi == 0 {
		hi = 0
	}
	return lo, hi
}

// parquetBounds encodes b as the footer and the page index want it. ok is false
// if there is nothing that may be said of both ends.
func (c *fileColumn) parquetBounds(b *bounds) (lo, hi []byte, ok bool) {
	if !b.set || c.NoBounds {
		return nil, nil, false
	}
	switch c.Type.Store() {
	case source.StoreBools:
		return []byte{byte(b.lo)}, []byte{byte(b.hi)}, true
	case source.StoreInts:
		return le32(uint32(b.lo)), le32(uint32(b.hi)), true
	case source.StoreLongs:
		if c.Type.Kind == source.Decimal && c.Type.Precision <= 9 {
			return le32(uint32(b.lo)), le32(uint32(b.hi)), true
		}
		return le64(uint64(b.lo)), le64(uint64(b.hi)), true
	case source.StoreFloats:
		l, h := zeros(b.flo, b.fhi)
		return le32(math.Float32bits(float32(l))), le32(math.Float32bits(float32(h))), true
	case source.StoreDoubles:
		l, h := zeros(b.flo, b.fhi)
		return le64(math.Float64bits(l)), le64(math.Float64bits(h)), true
	case source.StoreWides:
		n := decimalLength(c.Type.Precision)
		return appendWide(nil, b.wlo, n), appendWide(nil, b.whi, n), true
	}
	limit := footerBound
	if c.Metrics.kind == metricsFull {
		limit = math.MaxInt
	}
	lo = cutBytes(b.blo, limit, c.Type.Kind == source.String)
	if hi, ok = raise(b.bhi, limit, c.Type.Kind == source.String); !ok {
		return nil, nil, false
	}
	return clone(lo), hi, true
}

// manifestBounds encodes b as Iceberg's single values. Either may be nil.
func (c *fileColumn) manifestBounds(b *bounds) (lo, hi []byte) {
	if !b.set || c.NoBounds || c.Metrics.kind == metricsNone || c.Metrics.kind == metricsCounts {
		return nil, nil
	}
	switch c.Type.Store() {
	case source.StoreLongs:
		if c.Type.Kind == source.Decimal {
			return appendDecimal(nil, wide(b.lo)), appendDecimal(nil, wide(b.hi))
		}
	case source.StoreWides:
		return appendDecimal(nil, b.wlo), appendDecimal(nil, b.whi)
	case source.StoreBytes:
		n := c.Metrics.codePoints()
		if n == 0 || c.Type.Kind == source.UUID {
			return clone(b.blo), clone(b.bhi)
		}
		if c.Type.Kind == source.String {
			lo = firstCodePoints(b.blo, n)
			hi, _ = raise(b.bhi, len(firstCodePoints(b.bhi, n)), true)
			return clone(lo), hi
		}
		hi, _ = raise(b.bhi, n, false)
		return clone(cutBytes(b.blo, n, false)), hi
	}
	lo, hi, _ = c.parquetBounds(b)
	return lo, hi
}

// keep is how many bytes of a value its bounds may need, one more than any cut
// leaves so that it shows that there was more; 0 means all.
func (c *fileColumn) keep() int {
	if c.Metrics.kind == metricsFull {
		return 0
	}
	return max(footerBound, utf8.UTFMax*c.Metrics.codePoints()) + 1
}

// firstCodePoints cuts valid UTF-8 (whose end may be cut inside a code point) to
// n code points.
func firstCodePoints(b []byte, n int) []byte {
	i := 0
	for ; n > 0 && i < len(b); n-- {
		_, w := utf8.DecodeRune(b[i:])
		i += w
	}
	return b[:i]
}

// cutBytes cuts b to at most limit bytes, of text at the start of a code point.
func cutBytes(b []byte, limit int, text bool) []byte {
	if len(b) <= limit {
		return b
	}
	if text {
		for limit > 0 && !utf8.RuneStart(b[limit]) {
			limit--
		}
	}
	return b[:limit]
}

// raise returns b if it is no longer than limit, else a short value that is
// larger than every value that begins like b: cut, with its last code point (byte)
// raised by one. It is false if none can be raised.
func raise(b []byte, limit int, text bool) ([]byte, bool) {
	c := cutBytes(b, limit, text)
	if len(c) == len(b) {
		return clone(b), true
	}
	if !text {
		for i := len(c) - 1; i >= 0; i-- {
			if c[i] != 0xff {
				r := clone(c[:i+1])
				r[i]++
				return r, true
			}
		}
		return nil, false
	}
	for len(c) > 0 {
		r, w := utf8.DecodeLastRune(c)
		c = c[:len(c)-w]
		switch {
		case r == utf8.RuneError && w == 1, r == utf8.MaxRune:
			continue
		case r == 0xd7ff: // the surrogates that follow are no code points of UTF-8
			r = 0xe000
		default:
			r++
		}
		return utf8.AppendRune(clone(c), r), true
	}
	return nil, false
}

// clone copies b into memory of its own, never nil.
func clone(b []byte) []byte { return append(make([]byte, 0, len(b)), b...) }

func le32(x uint32) []byte { return binary.LittleEndian.AppendUint32(nil, x) }
func le64(x uint64) []byte { return binary.LittleEndian.AppendUint64(nil, x) }

func wide(x int64) source.Int128 { return source.Int128{Hi: x >> 63, Lo: uint64(x)} }

// appendWide appends x as n bytes, two's complement, big-endian. n must be large
// enough.
func appendWide(dst []byte, x source.Int128, n int) []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(x.Hi))
	binary.BigEndian.PutUint64(b[8:], x.Lo)
	return append(dst, b[16-n:]...)
}

// appendDecimal appends the unscaled value as the shortest big-endian two's
// complement: how Iceberg writes single decimals.
func appendDecimal(dst []byte, x source.Int128) []byte {
	var n int // bits without the sign
	hi, lo := uint64(x.Hi), x.Lo
	if x.Hi < 0 {
		hi, lo = ^hi, ^lo
	}
	if hi != 0 {
		n = 64 + bits.Len64(hi)
	} else {
		n = bits.Len64(lo)
	}
	return appendWide(dst, x, n/8+1)
}

// decimalLength is the number of bytes that Parquet needs for decimals of so
// many digits: the smallest n with 10^precision <= 2^(8n-1).
func decimalLength(precision int) int {
	return int(math.Ceil((float64(precision)*math.Log2(10) + 1) / 8))
}
