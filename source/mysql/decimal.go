package mysql

import (
	"fmt"
	"math/bits"

	"github.com/lakesyncd/lakesyncd/source"
)

// A decimal in the log is its digits before and after the point, in groups of
// nine to four bytes, the odd group at the outer ends in as few bytes as hold
// it. The first bit is set for a positive number; a negative one is inverted.

var (
	digitBytes = [10]int{0, 1, 1, 2, 2, 3, 3, 4, 4, 4}
	pow10      = [10]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}
)

// decimalSize is the number of bytes of a decimal(precision,scale).
func decimalSize(precision, scale int) int {
	whole := precision - scale
	return whole/9*4 + digitBytes[whole%9] + scale/9*4 + digitBytes[scale%9]
}

// decimalGroups walks over the groups of a decimal of the log.
type decimalGroups struct {
	b        []byte
	mask     byte
	negative bool
	first    bool
}

func newDecimalGroups(b []byte) decimalGroups {
	g := decimalGroups{b: b, first: true}
	if b[0]&0x80 == 0 {
		g.mask, g.negative = 0xFF, true
	}
	return g
}

// next reads a group of so many digits.
func (g *decimalGroups) next(digits int) uint64 {
	n := digitBytes[digits]
	var x uint64
	for _, c := range g.b[:n] {
		c ^= g.mask
		if g.first {
			c ^= 0x80
			g.first = false
		}
		x = x<<8 | uint64(c)
	}
	g.b = g.b[n:]
	return x
}

// decimalLayout is the groups of a column: how many digits each has.
func decimalLayout(precision, scale int) []int {
	var l []int
	whole := precision - scale
	if n := whole % 9; n > 0 {
		l = append(l, n)
	}
	for range whole / 9 {
		l = append(l, 9)
	}
	for range scale / 9 {
		l = append(l, 9)
	}
	if n := scale % 9; n > 0 {
		l = append(l, n)
	}
	return l
}

var errDecimalDigits = fmt.Errorf("a decimal has a group of too many digits")

func appendDecimalLong(v *source.Vector, layout []int, b []byte) error {
	g := newDecimalGroups(b)
	var x uint64
	for _, n := range layout {
		d := g.next(n)
		if d >= pow10[n] {
			return errDecimalDigits
		}
		x = x*pow10[n] + d
	}
	if g.negative {
		v.AppendLong(-int64(x))
	} else {
		v.AppendLong(int64(x))
	}
	return nil
}

func appendDecimalWide(v *source.Vector, layout []int, b []byte) error {
	g := newDecimalGroups(b)
	var hi, lo uint64
	for _, n := range layout {
		d := g.next(n)
		if d >= pow10[n] {
			return errDecimalDigits
		}
		hi, lo = mulAdd(hi, lo, pow10[n], d)
	}
	v.AppendWide(int128(hi, lo, g.negative))
	return nil
}

// appendDecimalText writes the decimal as the server prints it: one digit before
// the point at least, all of the scale behind it.
func appendDecimalText(dst []byte, precision, scale int, b []byte) ([]byte, error) {
	g := newDecimalGroups(b)
	start, nonZero := len(dst), false
	if g.negative {
		dst = append(dst, '-')
	}
	digits := len(dst)
	group := func(n int) error {
		x := g.next(n)
		if x >= pow10[n] {
			return errDecimalDigits
		}
		nonZero = nonZero || x != 0
		for i := n - 1; i >= 0; i-- {
			dst = append(dst, byte('0'+x/pow10[i]%10))
		}
		return nil
	}
	groups := func(odd, nines int, oddFirst bool) error {
		if oddFirst && odd > 0 {
			if err := group(odd); err != nil {
				return err
			}
		}
		for range nines {
			if err := group(9); err != nil {
				return err
			}
		}
		if !oddFirst && odd > 0 {
			return group(odd)
		}
		return nil
	}
	whole := precision - scale
	if err := groups(whole%9, whole/9, true); err != nil {
		return dst, err
	}
	dst = trimZeros(dst, digits)
	if scale > 0 {
		dst = append(dst, '.')
		if err := groups(scale%9, scale/9, false); err != nil {
			return dst, err
		}
	}
	if g.negative && !nonZero {
		dst = append(dst[:start], dst[start+1:]...)
	}
	return dst, nil
}

// trimZeros removes zeros that lead the number beginning at from, but the last.
func trimZeros(dst []byte, from int) []byte {
	n := from
	for n < len(dst)-1 && dst[n] == '0' {
		n++
	}
	if from == len(dst) {
		return append(dst, '0')
	}
	return append(dst[:from], dst[n:]...)
}

func mulAdd(hi, lo, m, add uint64) (uint64, uint64) {
	h, l := bits.Mul64(lo, m)
	l, c := bits.Add64(l, add, 0)
	return hi*m + h + c, l
}

func int128(hi, lo uint64, negative bool) source.Int128 {
	if negative {
		var c uint64
		lo, c = bits.Add64(^lo, 1, 0)
		hi = ^hi + c
	}
	return source.Int128{Hi: int64(hi), Lo: lo}
}

// parseDecimal reads the server's text of a decimal(precision,scale) into its
// unscaled value.
func parseDecimal(text []byte, precision, scale int) (hi, lo uint64, negative bool, err error) {
	b := text
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		negative = b[0] == '-'
		b = b[1:]
	}
	digits, after, point := 0, 0, false
	for _, c := range b {
		switch {
		case c == '.' && !point:
			point = true
			continue
		case c < '0' || c > '9':
			return 0, 0, false, fmt.Errorf("the decimal has a character that is no digit")
		}
		if point {
			after++
		}
		if digits > 0 || c != '0' {
			digits++
		}
		hi, lo = mulAdd(hi, lo, 10, uint64(c-'0'))
	}
	if len(b) == 0 || after > scale {
		return 0, 0, false, fmt.Errorf("the decimal does not have the %d digits after the point that its type has", scale)
	}
	for ; after < scale; after++ {
		hi, lo = mulAdd(hi, lo, 10, 0)
		if digits > 0 {
			digits++
		}
	}
	if digits > precision {
		return 0, 0, false, fmt.Errorf("the decimal has more than %d digits", precision)
	}
	return hi, lo, negative, nil
}

// appendCanonicalDecimal appends the server's text of a decimal in the form of
// appendDecimalText; they differ for ZEROFILL columns.
func appendCanonicalDecimal(dst, text []byte, scale int) ([]byte, error) {
	if len(text) == 0 {
		return dst, fmt.Errorf("the decimal is empty")
	}
	start := len(dst)
	negative := text[0] == '-'
	if negative {
		text = text[1:]
		dst = append(dst, '-')
	}
	digits, nonZero, point := len(dst), false, -1
	for i, c := range text {
		if c == '.' && point < 0 {
			point = i
		} else if c < '0' || c > '9' {
			return dst, fmt.Errorf("the decimal has a character that is no digit")
		}
		nonZero = nonZero || c >= '1'
	}
	whole, frac := text, []byte(nil)
	if point >= 0 {
		whole, frac = text[:point], text[point+1:]
	}
	if len(frac) > scale {
		return dst, fmt.Errorf("the decimal has more digits after the point than its type")
	}
	dst = trimZeros(append(dst, whole...), digits)
	if scale > 0 {
		dst = append(append(dst, '.'), frac...)
		for i := len(frac); i < scale; i++ {
			dst = append(dst, '0')
		}
	}
	if negative && !nonZero {
		dst = append(dst[:start], dst[start+1:]...)
	}
	return dst, nil
}
