package postgres

import (
	"github.com/lakesyncd/lakesyncd/source"
)

// OIDs of the types that are not text in the lake. They are fixed in every
// server; a type whose OID is not among them is written as the server prints it.
const (
	oidBool        = 16
	oidBytea       = 17
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidOID         = 26
	oidBox         = 603
	oidFloat4      = 700
	oidFloat8      = 701
	oidMoney       = 790
	oidVarchar     = 1043
	oidDate        = 1082
	oidTime        = 1083
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidNumeric     = 1700
	oidXID8        = 5069
)

// numericShape takes a numeric's precision and scale out of its modifier. Since
// 15 the scale has eleven bits with a sign.
func numericShape(typmod int32) (precision, scale int, ok bool) {
	if typmod < 4 {
		return 0, 0, false
	}
	m := typmod - 4
	scale = int(m & 0x7ff)
	if scale >= 0x400 {
		scale -= 0x800
	}
	return int(m>>16) & 0xffff, scale, true
}

// scalarType is the type in the lake of a type that is neither a domain nor an
// array.
func scalarType(oid uint32, typmod int32) source.Type {
	switch oid {
	case oidBool:
		return source.Type{Kind: source.Bool}
	case oidInt2, oidInt4:
		return source.Type{Kind: source.Int}
	case oidInt8, oidOID:
		return source.Type{Kind: source.Long}
	case oidXID8:
		return source.Type{Kind: source.Decimal, Precision: 20}
	case oidFloat4:
		return source.Type{Kind: source.Float}
	case oidFloat8:
		return source.Type{Kind: source.Double}
	case oidMoney:
		return source.Type{Kind: source.Decimal, Precision: 19, Scale: 2}
	case oidBytea:
		return source.Type{Kind: source.Binary}
	case oidDate:
		return source.Type{Kind: source.Date}
	case oidTime:
		return source.Type{Kind: source.Time}
	case oidTimestamp:
		return source.Type{Kind: source.Timestamp}
	case oidTimestamptz:
		return source.Type{Kind: source.TimestampTZ}
	case oidNumeric:
		p, s, ok := numericShape(typmod)
		switch {
		case !ok:
		case s < 0 && p-s <= 38:
			return source.Type{Kind: source.Decimal, Precision: p - s}
		case s > p && s <= 38:
			return source.Type{Kind: source.Decimal, Precision: s, Scale: s}
		case s >= 0 && s <= p && p <= 38:
			return source.Type{Kind: source.Decimal, Precision: p, Scale: s}
		}
	}
	return source.Type{Kind: source.String}
}
