package sink

import (
	"math/bits"

	"github.com/lakesyncd/lakesyncd/source"
)

// number is an exact decimal: sign, 128 bits of unscaled value, scale.
type number struct {
	negative bool
	hi, lo   uint64
	scale    int
}

func wideNumber(x source.Int128, scale int) number {
	n := number{hi: uint64(x.Hi), lo: x.Lo, scale: scale}
	if x.Hi < 0 {
		n.negative = true
		var borrow uint64
		n.lo, borrow = bits.Sub64(0, n.lo, 0)
		n.hi, _ = bits.Sub64(0, n.hi, borrow)
	}
	return n
}

// int128 is the unscaled value; false if it needs more than 127 bits.
func (n number) int128() (source.Int128, bool) {
	if n.hi>>63 != 0 {
		return source.Int128{}, false
	}
	if !n.negative {
		return source.Int128{Hi: int64(n.hi), Lo: n.lo}, true
	}
	lo, borrow := bits.Sub64(0, n.lo, 0)
	hi, _ := bits.Sub64(0, n.hi, borrow)
	return source.Int128{Hi: int64(hi), Lo: lo}, true
}

// times10plus is n*10+d without regard to sign and scale; false if it overflows.
func (n *number) times10plus(d uint64) bool {
	over, hi := bits.Mul64(n.hi, 10)
	carryHi, lo := bits.Mul64(n.lo, 10)
	lo, c := bits.Add64(lo, d, 0)
	hi, c = bits.Add64(hi, carryHi, c)
	if over+c != 0 {
		return false
	}
	n.hi, n.lo = hi, lo
	return true
}

// over10 divides by ten and returns the rest.
func (n *number) over10() uint64 {
	hi, r := n.hi/10, n.hi%10
	lo, r := bits.Div64(r, n.lo, 10)
	n.hi, n.lo = hi, lo
	return r
}

// rescale changes the scale; false if digits would be lost or do not fit.
func (n *number) rescale(scale int) bool {
	for ; n.scale < scale; n.scale++ {
		if !n.times10plus(0) {
			return false
		}
	}
	for ; n.scale > scale; n.scale-- {
		if n.over10() != 0 {
			return false
		}
	}
	return true
}

// digits is the number of decimal digits of the unscaled value.
func (n number) digits() int {
	d := 0
	for n.hi != 0 || n.lo != 0 {
		n.over10()
		d++
	}
	return d
}

// append appends the number as text, with all digits of its scale.
func (n number) append(dst []byte) []byte {
	var scratch [48]byte
	b := scratch[:]
	if n.scale > 40 {
		b = make([]byte, n.scale+8)
	}
	i := len(b)
	negative := n.negative && (n.hi != 0 || n.lo != 0)
	for k := 0; n.hi != 0 || n.lo != 0 || k <= n.scale; k++ {
		if k == n.scale && n.scale > 0 {
			i--
			b[i] = '.'
		}
		i--
		b[i] = byte('0' + n.over10())
	}
	if negative {
		i--
		b[i] = '-'
	}
	return append(dst, b[i:]...)
}

// parseNumber reads [+-]digits[.digits], nothing else.
func parseNumber(s []byte) (n number, ok bool) {
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		n.negative = s[0] == '-'
		s = s[1:]
	}
	digits, point := 0, false
	for _, c := range s {
		switch {
		case c == '.' && !point:
			point = true
		case c >= '0' && c <= '9':
			if !n.times10plus(uint64(c - '0')) {
				return n, false
			}
			digits++
			if point {
				n.scale++
			}
		default:
			return n, false
		}
	}
	return n, digits > 0
}
