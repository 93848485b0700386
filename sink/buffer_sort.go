package sink

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/source"
)

// sortKey is one column of a table's sort order.
type sortKey struct {
	column    int
	desc      bool
	nullsLast bool
}

// sortKeys are the keys of an order by plain columns. Any other order is not
// followed, and files don't claim to follow it.
func sortKeys(order icetable.SortOrder, columns []fileColumn) []sortKey {
	var keys []sortKey
	for _, f := range order.Fields() {
		if _, ok := f.Transform.(iceberg.IdentityTransform); !ok || len(f.SourceIDs) != 1 {
			return nil
		}
		i := slices.IndexFunc(columns, func(c fileColumn) bool { return c.ID == f.SourceIDs[0] })
		if i < 0 || columns[i].Type.IsList() {
			return nil
		}
		keys = append(keys, sortKey{column: i, desc: f.Direction == icetable.SortDESC, nullsLast: f.NullOrder == icetable.NullsLast})
	}
	return keys
}

// sortRows puts the rows of a chunk (nil: all) in the table's order.
func (sh *shape) sortRows(c *chunk, rows []uint32) []uint32 {
	if rows == nil {
		rows = make([]uint32, c.rows)
		for i := range rows {
			rows[i] = uint32(i)
		}
	}
	slices.SortStableFunc(rows, func(a, b uint32) int {
		for _, k := range sh.sort {
			if n := k.compare(&c.cols[k.column], int(a), int(b)); n != 0 {
				return n
			}
		}
		return 0
	})
	return rows
}

func (k sortKey) compare(v *source.Vector, a, b int) int {
	if v.Null(a) || v.Null(b) {
		n := cmp.Compare(v.Valid[a], v.Valid[b]) // nulls first
		if k.nullsLast {
			return -n
		}
		return n
	}
	var n int
	switch v.Type.Store() {
	case source.StoreBools:
		n = cmp.Compare(v.Bools[a], v.Bools[b])
	case source.StoreInts:
		n = cmp.Compare(v.Ints[a], v.Ints[b])
	case source.StoreLongs:
		n = cmp.Compare(v.Longs[a], v.Longs[b])
	case source.StoreWides:
		if n = cmp.Compare(v.Wides[a].Hi, v.Wides[b].Hi); n == 0 {
			n = cmp.Compare(v.Wides[a].Lo, v.Wides[b].Lo)
		}
	case source.StoreFloats:
		n = compareFloats(float64(v.Floats[a]), float64(v.Floats[b]))
	case source.StoreDoubles:
		n = compareFloats(v.Doubles[a], v.Doubles[b])
	default:
		n = bytes.Compare(v.At(a), v.At(b))
	}
	if k.desc {
		return -n
	}
	return n
}

// compareFloats is Iceberg's order: -NaN, -Infinity, …, -0, +0, …, Infinity, NaN.
func compareFloats(a, b float64) int {
	order := func(x float64) int64 {
		i := int64(math.Float64bits(x))
		return i ^ int64(uint64(i>>63)>>1)
	}
	return cmp.Compare(order(a), order(b))
}
