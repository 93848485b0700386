package mysql

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"
)

// MySQL stores JSON in a binary form of its own and prints it when it is read.
// The log has the binary form; appendJSON prints it as the server does, to the
// byte: keys in stored order, ", " and ": ", numbers and escapes as there.

const (
	jsonSmallObject = 0
	jsonLargeObject = 1
	jsonSmallArray  = 2
	jsonLargeArray  = 3
	jsonLiteral     = 4
	jsonInt16       = 5
	jsonUint16      = 6
	jsonInt32       = 7
	jsonUint32      = 8
	jsonInt64       = 9
	jsonUint64      = 10
	jsonDouble      = 11
	jsonString      = 12
	jsonOpaque      = 15

	// jsonDepth is beyond what the server stores (100).
	jsonDepth = 128
)

var errJSON = errors.New("a JSON value is damaged")

// appendJSON appends the text of a JSON value.
func appendJSON(dst, doc []byte) ([]byte, error) {
	if len(doc) == 0 { // what INSERT IGNORE makes of NULL in a NOT NULL column
		return append(dst, "null"...), nil
	}
	return appendJSONValue(dst, doc[0], doc[1:], 0)
}

func appendJSONValue(dst []byte, typ byte, b []byte, depth int) ([]byte, error) {
	need := 0
	switch typ {
	case jsonSmallObject, jsonLargeObject, jsonSmallArray, jsonLargeArray:
		if depth >= jsonDepth {
			return dst, errJSON
		}
		return appendJSONContainer(dst, typ, b, depth)
	case jsonLiteral:
		need = 1
	case jsonInt16, jsonUint16:
		need = 2
	case jsonInt32, jsonUint32:
		need = 4
	case jsonInt64, jsonUint64, jsonDouble:
		need = 8
	}
	if len(b) < need {
		return dst, errJSON
	}
	switch typ {
	case jsonLiteral:
		switch b[0] {
		case 0:
			return append(dst, "null"...), nil
		case 1:
			return append(dst, "true"...), nil
		case 2:
			return append(dst, "false"...), nil
		}
	case jsonInt16:
		return strconv.AppendInt(dst, int64(int16(binary.LittleEndian.Uint16(b))), 10), nil
	case jsonUint16:
		return strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint16(b)), 10), nil
	case jsonInt32:
		return strconv.AppendInt(dst, int64(int32(binary.LittleEndian.Uint32(b))), 10), nil
	case jsonUint32:
		return strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint32(b)), 10), nil
	case jsonInt64:
		return strconv.AppendInt(dst, int64(binary.LittleEndian.Uint64(b)), 10), nil
	case jsonUint64:
		return strconv.AppendUint(dst, binary.LittleEndian.Uint64(b), 10), nil
	case jsonDouble:
		return appendJSONDouble(dst, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	case jsonString:
		s, err := jsonBytes(b)
		if err != nil || !utf8.Valid(s) {
			return dst, errJSON
		}
		return appendJSONString(dst, s), nil
	case jsonOpaque:
		return appendJSONOpaque(dst, b)
	}
	return dst, errJSON
}

// jsonBytes reads a length of seven bits a byte and so many bytes.
func jsonBytes(b []byte) ([]byte, error) {
	var n uint64
	for i := 0; i < 5 && i < len(b); i++ {
		n |= uint64(b[i]&0x7F) << (7 * i)
		if b[i]&0x80 == 0 {
			if b = b[i+1:]; n > uint64(len(b)) {
				return nil, errJSON
			}
			return b[:n], nil
		}
	}
	return nil, errJSON
}

// appendJSONContainer prints an object or an array: counts, then entries for the
// keys, then for the values, whose offsets begin at b.
func appendJSONContainer(dst []byte, typ byte, b []byte, depth int) ([]byte, error) {
	width := 2
	if typ == jsonLargeObject || typ == jsonLargeArray {
		width = 4
	}
	if len(b) < 2*width {
		return dst, errJSON
	}
	count, size := int(littleEndian(b, width)), int(littleEndian(b[width:], width))
	object := typ == jsonSmallObject || typ == jsonLargeObject
	values := 2 * width
	if object {
		values += count * (width + 2)
	}
	if size > len(b) || size < values || count > (size-values)/(1+width) {
		return dst, errJSON
	}
	b = b[:size]
	brackets := "[]"
	if object {
		brackets = "{}"
	}
	dst = append(dst, brackets[0])
	for i := range count {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if object {
			e := b[2*width+i*(width+2):]
			at, n := int(littleEndian(e, width)), int(littleEndian(e[width:], 2))
			if at+n > len(b) || !utf8.Valid(b[at:at+n]) {
				return dst, errJSON
			}
			dst = append(appendJSONString(dst, b[at:at+n]), ": "...)
		}
		e := b[values+i*(1+width):]
		var err error
		if inlineJSON(e[0], width) {
			dst, err = appendJSONValue(dst, e[0], e[1:1+width], depth+1)
		} else {
			at := int(littleEndian(e[1:], width))
			if at >= len(b) {
				return dst, errJSON
			}
			dst, err = appendJSONValue(dst, e[0], b[at:], depth+1)
		}
		if err != nil {
			return dst, err
		}
	}
	return append(dst, brackets[1]), nil
}

// inlineJSON tells the types whose values stand in the entry itself.
func inlineJSON(typ byte, width int) bool {
	switch typ {
	case jsonLiteral, jsonInt16, jsonUint16:
		return true
	case jsonInt32, jsonUint32:
		return width == 4
	}
	return false
}

func appendJSONString(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '"', '\\':
			dst = append(dst, '\\', c)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// appendJSONDouble prints the shortest digits that give the number again, with
// an exponent for fifteen digits and more of which none is behind the point, or
// for very small numbers, and always so that it reads as no integer.
func appendJSONDouble(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return dst, errJSON
	}
	var buf [32]byte
	e := strconv.AppendFloat(buf[:0], f, 'e', -1, 64) // -d.ddde±dd
	if e[0] == '-' {
		dst, e = append(dst, '-'), e[1:]
	}
	var digits [24]byte
	n, i := 0, 0
	for ; e[i] != 'e'; i++ {
		if e[i] != '.' {
			digits[n] = e[i]
			n++
		}
	}
	exp, err := strconv.Atoi(string(e[i+1:]))
	if err != nil {
		return dst, errJSON
	}
	point := exp + 1 // the digits stand behind 0. and this many places higher
	if f == 0 {
		point = 1
	}
	switch d := digits[:n]; {
	case point < -14 || point > 15 && n <= point:
		dst = append(dst, d[0])
		if n > 1 {
			dst = append(append(dst, '.'), d[1:]...)
		}
		return strconv.AppendInt(append(dst, 'e'), int64(exp), 10), nil
	case point <= 0:
		dst = append(dst, '0', '.')
		for range -point {
			dst = append(dst, '0')
		}
		return append(dst, d...), nil
	case n <= point:
		dst = append(dst, d...)
		for range point - n {
			dst = append(dst, '0')
		}
		return append(dst, '.', '0'), nil
	default:
		return append(append(append(dst, d[:point]...), '.'), d[point:]...), nil
	}
}

// appendJSONOpaque prints a value of an SQL type inside JSON.
func appendJSONOpaque(dst, b []byte) ([]byte, error) {
	if len(b) < 1 {
		return dst, errJSON
	}
	typ := b[0]
	data, err := jsonBytes(b[1:])
	if err != nil {
		return dst, err
	}
	switch typ {
	case typeNewDecimal:
		if len(data) < 2 {
			return dst, errJSON
		}
		precision, scale := int(data[0]), int(data[1])
		if precision < 1 || precision > 65 || scale > precision || len(data) != 2+decimalSize(precision, scale) {
			return dst, errJSON
		}
		return appendDecimalText(dst, precision, scale, data[2:])
	case typeDate, typeDatetime, typeOldDatetime, typeTimestamp, typeOldTimestamp, typeTime, typeOldTime:
		if len(data) != 8 {
			return dst, errJSON
		}
		dst = append(dst, '"')
		dst = appendJSONTime(dst, typ, int64(binary.LittleEndian.Uint64(data)))
		return append(dst, '"'), nil
	}
	dst = append(dst, `"base64:type`...)
	dst = strconv.AppendUint(dst, uint64(typ), 10)
	dst = append(dst, ':')
	return append(base64.StdEncoding.AppendEncode(dst, data), '"'), nil
}

// appendJSONTime prints a packed date or time: microseconds in 24 bits, clock in
// 17 and the date above.
func appendJSONTime(dst []byte, typ byte, x int64) []byte {
	two := func(n int64) { dst = append(dst, byte('0'+n/10%10), byte('0'+n%10)) }
	if x < 0 {
		x = -x
		dst = append(dst, '-')
	}
	micros, clock, date := x&(1<<24-1), x>>24&(1<<17-1), x>>41
	if typ == typeTime || typ == typeOldTime {
		clock = x >> 24
		hours := clock >> 12 & 0x3FF
		if hours >= 100 {
			dst = strconv.AppendInt(dst, hours, 10)
		} else {
			two(hours)
		}
	} else {
		year := date >> 5 / 13
		two(year / 100)
		two(year % 100)
		dst = append(dst, '-')
		two(date >> 5 % 13)
		dst = append(dst, '-')
		two(date & 31)
		if typ == typeDate {
			return dst
		}
		dst = append(dst, ' ')
		two(clock >> 12 & 31)
	}
	dst = append(dst, ':')
	two(clock >> 6 & 63)
	dst = append(dst, ':')
	two(clock & 63)
	dst = append(dst, '.')
	for d := int64(100_000); d > 0; d /= 10 {
		dst = append(dst, byte('0'+micros/d%10))
	}
	return dst
}
