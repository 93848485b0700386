package sink

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/lakesyncd/lakesyncd/source"
)

func listOf(k source.Kind) source.Type { return source.ListOf(source.Type{Kind: k}) }

// elementsOf is a list as a vector.
func elementsOf(v *source.Vector, i int) *source.Vector {
	e := &source.Vector{Type: v.Type.Element()}
	for list := v.At(i); len(list) > 0; {
		b, valid, rest, ok := e.Type.NextElement(list)
		if !ok {
			panic("a broken list")
		}
		list = rest
		if !valid {
			e.AppendNull()
			continue
		}
		switch e.Type.Store() {
		case source.StoreBools:
			e.AppendBool(b[0] != 0)
		case source.StoreInts:
			e.AppendInt(int32(binary.LittleEndian.Uint32(b)))
		case source.StoreLongs:
			e.AppendLong(int64(binary.LittleEndian.Uint64(b)))
		case source.StoreWides:
			e.AppendWide(source.Int128{Lo: binary.LittleEndian.Uint64(b), Hi: int64(binary.LittleEndian.Uint64(b[8:]))})
		case source.StoreFloats:
			e.AppendFloat(math.Float32frombits(binary.LittleEndian.Uint32(b)))
		case source.StoreDoubles:
			e.AppendDouble(math.Float64frombits(binary.LittleEndian.Uint64(b)))
		default:
			e.AppendBytes(b)
		}
	}
	return e
}

func TestListsHaveOptionalElementsInTheSchema(t *testing.T) {
	rel := relation([]int{0}, keyColumn("id", typ(source.Long)), column1("a", listOf(source.String)),
		column1("d", source.ListOf(decimal(8, 3))), column1("v", typ(source.FloatList)), column1("f", listOf(source.Float)), column1("t", listOf(source.Time)))
	s, err := icebergSchema(rel, overrides{})
	if err != nil {
		t.Fatal(err)
	}
	cols, err := fileColumns(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []source.Type{typ(source.Long), listOf(source.String), source.ListOf(decimal(8, 3)), typ(source.FloatList), listOf(source.Float), listOf(source.Long)} {
		if cols[i].Type != want {
			t.Errorf("column %s is %s, want %s", cols[i].Name, cols[i].Type, want)
		}
		if c, err := newConverter(rel.Columns[i].Type, cols[i].Type, false); err != nil || c != nil {
			t.Errorf("column %s: converter %v, %v", cols[i].Name, c, err)
		}
	}
	if err := fit(s, s); err != nil {
		t.Error(err)
	}
	other, err := icebergSchema(relation([]int{0}, keyColumn("id", typ(source.Long)), column1("v", typ(source.FloatList))), overrides{})
	if err != nil {
		t.Fatal(err)
	}
	optional, err := icebergSchema(relation([]int{0}, keyColumn("id", typ(source.Long)), column1("v", listOf(source.Float))), overrides{})
	if err != nil {
		t.Fatal(err)
	}
	if fit(other, optional) == nil {
		t.Error("a table whose lists have no NULL takes lists with NULL")
	}
	if _, err := newConverter(listOf(source.Int), typ(source.String), false); err == nil {
		t.Error("lists become strings")
	}
}
