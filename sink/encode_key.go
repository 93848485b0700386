package sink

import (
	"encoding/binary"
	"math"

	"github.com/lakesyncd/lakesyncd/source"
)

// appendKey appends the values of the key columns of a row to dst, as bytes that
// are equal only for equal keys: no two different keys of the same columns,
// whatever bytes they hold, have the same encoding.
func appendKey(dst []byte, cols []*source.Vector, key []int, row int) []byte {
	for _, k := range key {
		v := cols[k]
		if v.Valid[row] == 0 {
			dst = append(dst, 0)
			continue
		}
		dst = append(dst, 1)
		switch v.Type.Store() {
		case source.StoreBools:
			dst = append(dst, v.Bools[row])
		case source.StoreInts:
			dst = binary.LittleEndian.AppendUint32(dst, uint32(v.Ints[row]))
		case source.StoreLongs:
			dst = binary.LittleEndian.AppendUint64(dst, uint64(v.Longs[row]))
		case source.StoreWides:
			dst = binary.LittleEndian.AppendUint64(dst, v.Wides[row].Lo)
			dst = binary.LittleEndian.AppendUint64(dst, uint64(v.Wides[row].Hi))
		case source.StoreFloats:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v.Floats[row]))
		case source.StoreDoubles:
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.Doubles[row]))
		default:
			b := v.At(row)
			dst = binary.AppendUvarint(dst, uint64(len(b)))
			dst = append(dst, b...)
		}
	}
	return dst
}
