package postgres

import (
	"math"

	"github.com/lakesyncd/lakesyncd/source"
)

// Dates and times are read as DateStyle ISO prints them, in UTC and the proleptic
// Gregorian calendar, with years of four digits or more and " BC" at the end:
//
//	2024-03-10   0044-03-15 BC   infinity
//	2024-03-10 02:30:00.5   2024-03-10 02:30:00+00   0044-03-15 12:00:00+00 BC

const (
	secondMicros = 1_000_000
	dayMicros    = 24 * 60 * 60 * secondMicros
)

// datetime is a cursor in the text of a date or time. Whatever does not fit makes
// it bad.
type datetime struct {
	b   []byte
	bad bool
}

// digits reads at least min and at most max digits.
func (d *datetime) digits(min, max int) int64 {
	var n int64
	i := 0
	for i < len(d.b) && i < max && d.b[i]-'0' <= 9 {
		n = n*10 + int64(d.b[i]-'0')
		i++
	}
	if i < min {
		d.bad = true
	}
	d.b = d.b[i:]
	return n
}

// skip reads one byte, if it is c.
func (d *datetime) skip(c byte) bool {
	if len(d.b) > 0 && d.b[0] == c {
		d.b = d.b[1:]
		return true
	}
	return false
}

func (d *datetime) want(c byte) {
	if !d.skip(c) {
		d.bad = true
	}
}

// date reads year, month and day; the year gets its era later.
func (d *datetime) date() (year, month, day int64) {
	year = d.digits(4, 7)
	d.want('-')
	month = d.digits(2, 2)
	d.want('-')
	day = d.digits(2, 2)
	if year < 1 || month < 1 || month > 12 || day < 1 || day > 31 {
		d.bad = true
	}
	return
}

// clock reads hours, minutes, seconds and up to six digits of their fraction, as
// microseconds.
func (d *datetime) clock() int64 {
	h := d.digits(2, 2)
	d.want(':')
	m := d.digits(2, 2)
	d.want(':')
	s := d.digits(2, 2)
	t := ((h*60+m)*60 + s) * secondMicros
	if d.skip('.') {
		left := len(d.b)
		f := d.digits(1, 6)
		for n := left - len(d.b); n < 6; n++ {
			f *= 10
		}
		t += f
	}
	if m > 59 || s > 59 || t > dayMicros {
		d.bad = true
	}
	return t
}

// zone reads an offset: +hh, +hh:mm or +hh:mm:ss, as microseconds.
func (d *datetime) zone() int64 {
	negative := d.skip('-')
	if !negative {
		d.want('+')
	}
	s := d.digits(2, 2) * 3600
	if d.skip(':') {
		s += d.digits(2, 2) * 60
		if d.skip(':') {
			s += d.digits(2, 2)
		}
	}
	if negative {
		s = -s
	}
	return s * secondMicros
}

// era reads the end of the text and puts the year into astronomical count, in
// which 1 BC is 0.
func (d *datetime) era(year int64) int64 {
	if string(d.b) == " BC" {
		return 1 - year
	}
	if len(d.b) > 0 {
		d.bad = true
	}
	return year
}

// days counts from 1970-01-01 to a date.
func days(year, month, day int64) int64 {
	// In years that begin in March the leap day is the last one.
	if month <= 2 {
		year--
		month += 12
	}
	era := year / 400
	if year < 0 {
		era = (year - 399) / 400
	}
	y := year - era*400
	return era*146097 + y*365 + y/4 - y/100 + (153*(month-3)+2)/5 + day - 1 - 719468
}

func infinite(b []byte) bool {
	return len(b) >= 8 && (string(b) == "infinity" || string(b) == "-infinity")
}

func appendDate(c *columnDecoder, b []byte, v *source.Vector) error {
	if infinite(b) {
		return c.misfit(v, "date "+string(b))
	}
	d := datetime{b: b}
	year, month, day := d.date()
	year = d.era(year)
	n := days(year, month, day)
	if d.bad || n < math.MinInt32 || n > math.MaxInt32 {
		return errText
	}
	v.AppendInt(int32(n))
	return nil
}

func appendTime(_ *columnDecoder, b []byte, v *source.Vector) error {
	d := datetime{b: b}
	t := d.clock()
	if d.bad || len(d.b) > 0 {
		return errText
	}
	v.AppendLong(t)
	return nil
}

func appendTimestamp(c *columnDecoder, b []byte, v *source.Vector) error {
	return c.timestamp(b, v, false)
}

func appendTimestamptz(c *columnDecoder, b []byte, v *source.Vector) error {
	return c.timestamp(b, v, true)
}

func (c *columnDecoder) timestamp(b []byte, v *source.Vector, zoned bool) error {
	if infinite(b) {
		return c.misfit(v, "timestamp "+string(b))
	}
	d := datetime{b: b}
	year, month, day := d.date()
	d.want(' ')
	t := d.clock()
	if zoned {
		t -= d.zone()
	}
	year = d.era(year)
	if d.bad {
		return errText
	}
	n := days(year, month, day)
	// The server's last years are beyond 64 bits of microseconds since 1970.
	const last = math.MaxInt64 / dayMicros
	x := n * dayMicros
	if n > last || n < -last || (x+t < x) != (t < 0) {
		return c.misfit(v, "timestamp "+string(b))
	}
	v.AppendLong(x + t)
	return nil
}
