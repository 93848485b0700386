package mysql

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// Numbers of types as the log and the binary protocol have them.
const (
	typeTiny           = 1
	typeShort          = 2
	typeLong           = 3
	typeFloat          = 4
	typeDouble         = 5
	typeOldTimestamp   = 7
	typeLongLong       = 8
	typeInt24          = 9
	typeDate           = 10
	typeOldTime        = 11
	typeOldDatetime    = 12
	typeYear           = 13
	typeNewDate        = 14
	typeVarchar        = 15
	typeBit            = 16
	typeTimestamp      = 17
	typeDatetime       = 18
	typeTime           = 19
	typeBlobCompressed = 140
	typeVarCompressed  = 141
	typeVector         = 242
	typeJSON           = 245
	typeNewDecimal     = 246
	typeEnum           = 247
	typeSet            = 248
	typeTinyBlob       = 249
	typeMediumBlob     = 250
	typeLongBlob       = 251
	typeBlob           = 252
	typeVarString      = 253
	typeString         = 254
	typeGeometry       = 255
)

// columnDef is one column of a table, as its definition says.
type columnDef struct {
	Name string `json:"name"`
	// Base is the type without parameters, under one name each: int for INTEGER,
	// decimal for NUMERIC, and so on.
	Base string `json:"type"`
	// Len is characters of char and varchar, bytes of binary and varbinary, digits
	// of decimal, bits of bit, dimensions of vector, fraction digits of time,
	// datetime and timestamp.
	Len      int      `json:"len,omitempty"`
	Scale    int      `json:"scale,omitempty"`
	Unsigned bool     `json:"unsigned,omitempty"`
	Charset  string   `json:"charset,omitempty"` // of text, enum and set
	Labels   []string `json:"labels,omitempty"`  // of enum and set
	NotNull  bool     `json:"not_null,omitempty"`
	// Generated columns have values that the server computes.
	Generated bool `json:"generated,omitempty"`
	Invisible bool `json:"invisible,omitempty"`
	// Compressed is MariaDB's COMPRESSED: values are deflated in the log.
	Compressed bool `json:"compressed,omitempty"`
}

// isText tells the types that have a character set.
func (c *columnDef) isText() bool {
	switch c.Base {
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set":
		return true
	}
	return false
}

// native is the declared type as plan and messages show it.
func (c *columnDef) native() string {
	s := c.Base
	switch c.Base {
	case "char", "varchar", "binary", "varbinary", "bit", "vector":
		s += "(" + strconv.Itoa(c.Len) + ")"
	case "decimal":
		s += fmt.Sprintf("(%d,%d)", c.Len, c.Scale)
	case "time", "datetime", "timestamp":
		if c.Len > 0 {
			s += "(" + strconv.Itoa(c.Len) + ")"
		}
	case "enum", "set":
		q := make([]string, len(c.Labels))
		for i, l := range c.Labels {
			q[i] = "'" + strings.ReplaceAll(l, "'", "''") + "'"
		}
		s += "(" + strings.Join(q, ",") + ")"
	}
	if c.Unsigned {
		s += " unsigned"
	}
	return s
}

// sourceType is the type that a column has in the lake. ok is false for a type
// that is not known.
func (c *columnDef) sourceType() (_ source.Type, ok bool) {
	k := func(k source.Kind) (source.Type, bool) { return source.Type{Kind: k}, true }
	switch c.Base {
	case "tinyint", "smallint", "mediumint", "year":
		return k(source.Int)
	case "int":
		if c.Unsigned {
			return k(source.Long)
		}
		return k(source.Int)
	case "bigint":
		if c.Unsigned {
			return source.Type{Kind: source.Decimal, Precision: 20}, true
		}
		return k(source.Long)
	case "bit":
		switch {
		case c.Len == 1:
			return k(source.Bool)
		case c.Len <= 63:
			return k(source.Long)
		}
		return source.Type{Kind: source.Decimal, Precision: 20}, true
	case "decimal":
		if c.Len > 38 {
			return k(source.String)
		}
		return source.Type{Kind: source.Decimal, Precision: c.Len, Scale: c.Scale}, true
	case "float":
		return k(source.Float)
	case "double":
		return k(source.Double)
	case "date":
		return k(source.Date)
	case "time":
		return k(source.Time)
	case "datetime":
		return k(source.Timestamp)
	case "timestamp":
		return k(source.TimestampTZ)
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "uuid", "inet4", "inet6":
		return k(source.String)
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry":
		return k(source.Binary)
	case "vector":
		return k(source.FloatList)
	}
	return source.Type{}, false
}

// sameValues reports whether a column of this definition holds exactly the
// values, in the same bytes, that one of the other holds.
func (c *columnDef) sameValues(o *columnDef) bool {
	a, b := *c, *o
	a.Invisible, b.Invisible = false, false
	if len(a.Labels) != len(b.Labels) {
		return false
	}
	for i := range a.Labels {
		if a.Labels[i] != b.Labels[i] {
			return false
		}
	}
	return a.Name == b.Name && a.Base == b.Base && a.Len == b.Len && a.Scale == b.Scale && a.Unsigned == b.Unsigned &&
		a.Charset == b.Charset && a.NotNull == b.NotNull && !a.Generated && !b.Generated && a.Compressed == b.Compressed
}

// daysOf is the number of days from 1970-01-01 to a date of the proleptic
// Gregorian calendar; ok is false for a date that the calendar does not have.
func daysOf(year, month, day int) (_ int32, ok bool) {
	if month < 1 || month > 12 || day < 1 || day > 31 || day > daysIn(year, month) {
		return 0, false
	}
	// Years counted from March put the leap day at the end.
	y, m := year, month-3
	if m < 0 {
		y, m = y-1, m+12
	}
	y += 400 // year 0 stays above zero
	return int32(y*365 + y/4 - y/100 + y/400 + (153*m+2)/5 + day - 1 - 719468 - 146097), true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// badDate says what is wrong with a date that daysOf refuses, without the date.
func badDate(year, month, day int) string {
	switch {
	case year == 0 && month == 0 && day == 0:
		return "a zero date"
	case month == 0 || day == 0:
		return "a partial date"
	}
	return "a date that the calendar does not have"
}

const (
	microsPerSecond = 1_000_000
	microsPerDay    = 86_400 * microsPerSecond
)

// appendDate appends a date, or a misfit.
func appendDate(v *source.Vector, year, month, day int) {
	if d, ok := daysOf(year, month, day); ok {
		v.AppendInt(d)
	} else {
		v.AppendMisfit(badDate(year, month, day))
	}
}

// appendMoment appends a date and time without a zone (or in UTC), or a misfit.
func appendMoment(v *source.Vector, year, month, day, hour, minute, second, micros int) {
	if d, ok := daysOf(year, month, day); ok {
		v.AppendLong(int64(d)*microsPerDay + int64(hour*3600+minute*60+second)*microsPerSecond + int64(micros))
	} else {
		v.AppendMisfit(badDate(year, month, day))
	}
}

// trimSpaces cuts the arena's last value, which begins at from, behind its last
// character that is not a space: CHAR has no trailing spaces, but servers differ
// in when they remove them.
func trimSpaces(b []byte, from int) []byte {
	n := len(b)
	for n > from && b[n-1] == ' ' {
		n--
	}
	return b[:n]
}

// appendSet appends the labels of a set's bits, joined as the server joins them.
func appendSet(v *source.Vector, labels []string, bits uint64) error {
	if len(labels) < 64 && bits>>len(labels) != 0 {
		return fmt.Errorf("the set has bits beyond its %d labels", len(labels))
	}
	first := true
	for i, l := range labels {
		if bits&(1<<i) == 0 {
			continue
		}
		if !first {
			v.Bytes = append(v.Bytes, ',')
		}
		first = false
		v.Bytes = append(v.Bytes, l...)
	}
	endBytes(v)
	return nil
}

// appendEnum appends an enum's label; 0 is the empty label of a value that was
// not valid when it was written.
func appendEnum(v *source.Vector, labels []string, n uint64) error {
	if n > uint64(len(labels)) {
		return fmt.Errorf("the enum has the number %d of only %d labels", n, len(labels))
	}
	if n > 0 {
		v.Bytes = append(v.Bytes, labels[n-1]...)
	}
	endBytes(v)
	return nil
}

// endBytes ends a value whose bytes were appended to the vector's arena.
func endBytes(v *source.Vector) {
	v.Valid = append(v.Valid, 1)
	v.Ends = append(v.Ends, uint32(len(v.Bytes)))
}

// appendPadded appends b with zero bytes up to n.
func appendPadded(v *source.Vector, b []byte, n int) error {
	if len(b) > n {
		return fmt.Errorf("%d bytes in a column of %d", len(b), n)
	}
	v.Bytes = append(v.Bytes, b...)
	for i := len(b); i < n; i++ {
		v.Bytes = append(v.Bytes, 0)
	}
	endBytes(v)
	return nil
}
