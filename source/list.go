package source

import (
	"encoding/binary"
	"math"
)

// A List is stored as the bytes of its elements, one after the other: 0 for
// NULL, else 1 and the value. Values of fixed width are little-endian (booleans
// one byte, decimals of more than 18 digits 16 bytes, the low half first), strings
// and bytes have their length before them in four.

// AppendList adds one list, which has the values of elements.
func (v *Vector) AppendList(elements *Vector) {
	b := v.Bytes
	for i := range elements.Valid {
		if elements.Null(i) {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		switch elements.Type.Store() {
		case StoreBools:
			b = append(b, elements.Bools[i])
		case StoreInts:
			b = binary.LittleEndian.AppendUint32(b, uint32(elements.Ints[i]))
		case StoreLongs:
			b = binary.LittleEndian.AppendUint64(b, uint64(elements.Longs[i]))
		case StoreWides:
			b = binary.LittleEndian.AppendUint64(b, elements.Wides[i].Lo)
			b = binary.LittleEndian.AppendUint64(b, uint64(elements.Wides[i].Hi))
		case StoreFloats:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(elements.Floats[i]))
		case StoreDoubles:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(elements.Doubles[i]))
		default:
			x := elements.At(i)
			if elements.Type.Kind != UUID {
				b = binary.LittleEndian.AppendUint32(b, uint32(len(x)))
			}
			b = append(b, x...)
		}
	}
	v.Bytes = b
	v.Valid = append(v.Valid, 1)
	v.Ends = append(v.Ends, uint32(len(b)))
}

// NextElement takes the first element off the bytes of a list with elements of
// type t. The value is its bytes without a length; ok is false if the list is
// broken or empty.
func (t Type) NextElement(list []byte) (value []byte, valid bool, rest []byte, ok bool) {
	if len(list) == 0 || list[0] > 1 {
		return nil, false, nil, false
	}
	valid, list = list[0] == 1, list[1:]
	if !valid {
		return nil, false, list, true
	}
	n := 0
	switch t.Store() {
	case StoreBools:
		n = 1
	case StoreInts, StoreFloats:
		n = 4
	case StoreLongs, StoreDoubles:
		n = 8
	case StoreWides:
		n = 16
	default:
		n = 16
		if t.Kind != UUID {
			if len(list) < 4 {
				return nil, false, nil, false
			}
			n, list = int(binary.LittleEndian.Uint32(list)), list[4:]
		}
	}
	if n > len(list) {
		return nil, false, nil, false
	}
	return list[:n:n], true, list[n:], true
}
