package postgres

import (
	"math/bits"

	"github.com/lakesyncd/lakesyncd/source"
)

// appendNumeric reads a numeric of up to 18 digits. The server has rounded it to
// the scale already, so the text has at most that many fraction digits; NaN is the
// one value of such a column that is no number.
func appendNumeric(c *columnDecoder, b []byte, v *source.Vector) error {
	if notNumber(b) {
		return c.misfit(v, "numeric "+string(b))
	}
	negative, rest := sign(b)
	var n uint64
	digits, fraction, ok := scanDigits(rest, func(d byte) { n = n*10 + uint64(d) }, 18)
	if !ok || fraction > c.scale || digits+c.scale-fraction > c.digits {
		return errText
	}
	for ; fraction < c.scale; fraction++ {
		n *= 10
	}
	x := int64(n)
	if negative {
		x = -x
	}
	v.AppendLong(x)
	return nil
}

// appendWideNumeric reads a numeric of 19 to 38 digits.
func appendWideNumeric(c *columnDecoder, b []byte, v *source.Vector) error {
	if notNumber(b) {
		return c.misfit(v, "numeric "+string(b))
	}
	negative, rest := sign(b)
	var hi, lo uint64
	push := func(d byte) {
		over, l := bits.Mul64(lo, 10)
		l, carry := bits.Add64(l, uint64(d), 0)
		hi, lo = hi*10+over+carry, l
	}
	digits, fraction, ok := scanDigits(rest, push, 38)
	if !ok || fraction > c.scale || digits+c.scale-fraction > c.digits {
		return errText
	}
	for ; fraction < c.scale; fraction++ {
		push(0)
	}
	if negative {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	v.AppendWide(source.Int128{Hi: int64(hi), Lo: lo})
	return nil
}

// notNumber tells NaN and the infinities.
func notNumber(b []byte) bool {
	switch string(b) {
	case "NaN", "Infinity", "-Infinity":
		return true
	}
	return false
}

func sign(b []byte) (negative bool, rest []byte) {
	if len(b) > 0 && b[0] == '-' {
		return true, b[1:]
	}
	return false, b
}

// scanDigits hands out the digits of digits[.digits], without zeros before the
// first other one, and counts those and the ones after the point. It stops with
// false at anything else and beyond most digits.
func scanDigits(b []byte, push func(byte), most int) (digits, fraction int, ok bool) {
	point, any := false, false
	for _, c := range b {
		if c == '.' && !point && any {
			point = true
			continue
		}
		if c -= '0'; c > 9 {
			return 0, 0, false
		}
		any = true
		if point {
			fraction++
		}
		if digits == 0 && c == 0 {
			continue
		}
		if digits++; digits > most {
			return 0, 0, false
		}
		push(c)
	}
	return digits, fraction, any
}

// appendMoney reads an amount of cents. How it is printed depends on the
// database's lc_monetary: "-$1,234.56", "1.234,56 €", "($1.00)". What is common
// are the order of the digits and a separator before the last two; that there are
// two is known from the catalogs.
func appendMoney(_ *columnDecoder, b []byte, v *source.Vector) error {
	var n uint64
	digits, negative := 0, false
	split := -1 // digits before the last separator that is followed by a digit
	open := false
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			if open && digits > 0 {
				split = digits
			}
			open = false
			if digits++; digits > 19 {
				return errText
			}
			n = n*10 + uint64(c-'0')
		case c == '-' || c == '(':
			negative, open = true, true
		default:
			open = true
		}
	}
	if digits < 3 || split != digits-2 {
		return errText
	}
	switch {
	case negative && n <= 1<<63:
		v.AppendWide(source.Int128{Hi: -1, Lo: -n})
		if n == 0 {
			v.Wides[len(v.Wides)-1] = source.Int128{}
		}
	case !negative && n < 1<<63:
		v.AppendWide(source.Int128{Lo: n})
	default:
		return errText
	}
	return nil
}
