package sink

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	arrowparquet "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/parquet-go/parquet-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// physical is a value as the file holds it, as text; lists are in brackets.
func physical(c *fileColumn, v *source.Vector, i int) string {
	if v.Null(i) {
		return "null"
	}
	switch v.Type.Store() {
	case source.StoreBools:
		return fmt.Sprint(v.Bools[i] != 0)
	case source.StoreInts:
		return fmt.Sprint(v.Ints[i])
	case source.StoreLongs:
		return fmt.Sprint(v.Longs[i])
	case source.StoreWides:
		return hex.EncodeToString(appendWide(nil, v.Wides[i], decimalLength(v.Type.Precision)))
	case source.StoreFloats:
		return fmt.Sprintf("%08x", math.Float32bits(v.Floats[i]))
	case source.StoreDoubles:
		return fmt.Sprintf("%016x", math.Float64bits(v.Doubles[i]))
	}
	b := v.At(i)
	if v.Type.Kind == source.FloatList {
		s := "["
		for k := 0; k < len(b); k += 4 {
			s += fmt.Sprintf("%02x%02x%02x%02x,", b[k+3], b[k+2], b[k+1], b[k])
		}
		return s + "]"
	}
	if v.Type.Kind == source.List {
		s := "["
		for e, k := elementsOf(v, i), 0; k < e.Len(); k++ {
			s += physical(c, e, k) + ","
		}
		return s + "]"
	}
	return hex.EncodeToString(b)
}

// readParquetGo reads all columns with parquet-go, page index and all.
func readParquetGo(t *testing.T, data []byte, cols []fileColumn) [][]string {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatalf("parquet-go: open: %v", err)
	}
	out := make([][]string, len(cols))
	for _, g := range f.RowGroups() {
		for i, chunk := range g.ColumnChunks() {
			pages := chunk.Pages()
			for {
				p, err := pages.ReadPage()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("parquet-go: column %s: %v", cols[i].Name, err)
				}
				values := make([]parquet.Value, p.NumValues())
				if n, err := p.Values().ReadValues(values); n != len(values) || err != nil && !errors.Is(err, io.EOF) {
					t.Fatalf("parquet-go: column %s: %d of %d values: %v", cols[i].Name, n, len(values), err)
				}
				for _, v := range values {
					s := ""
					switch v.Kind() {
					case parquet.Boolean:
						s = fmt.Sprint(v.Boolean())
					case parquet.Int32:
						s = fmt.Sprint(v.Int32())
					case parquet.Int64:
						s = fmt.Sprint(v.Int64())
					case parquet.Float:
						s = fmt.Sprintf("%08x", math.Float32bits(v.Float()))
					case parquet.Double:
						s = fmt.Sprintf("%016x", math.Float64bits(v.Double()))
					default:
						s = hex.EncodeToString(v.ByteArray())
					}
					if v.IsNull() {
						s = "null"
					}
					out[i] = assemble(out[i], &cols[i], s, v.IsNull(), v.DefinitionLevel(), v.RepetitionLevel())
				}
				parquet.Release(p)
			}
			pages.Close()
		}
	}
	return out
}

// assemble adds a leaf value to the rows of a column.
func assemble(rows []string, c *fileColumn, s string, null bool, def, rep int) []string {
	if !c.Type.IsList() {
		return append(rows, s)
	}
	empty := 1
	if c.Required {
		empty = 0
	}
	switch {
	case rep > 0:
		last := rows[len(rows)-1]
		rows[len(rows)-1] = last[:len(last)-1] + s + ",]"
		return rows
	case !null:
		return append(rows, "["+s+",]")
	case def == empty:
		return append(rows, "[]")
	case def > empty:
		return append(rows, "[null,]")
	}
	return append(rows, "null")
}

// readArrow reads all columns with arrow-go.
func readArrow(t *testing.T, data []byte, cols []fileColumn) [][]string {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("arrow: open: %v", err)
	}
	defer r.Close()
	out := make([][]string, len(cols))
	for g := range r.NumRowGroups() {
		rg := r.RowGroup(g)
		for i := range cols {
			chunk, err := rg.Column(i)
			if err != nil {
				t.Fatalf("arrow: column %s: %v", cols[i].Name, err)
			}
			maxDef := chunk.Descriptor().MaxDefinitionLevel()
			for chunk.HasNext() {
				const batch = 1000
				def, rep := make([]int16, batch), make([]int16, batch)
				var text func(k int) string
				var n int64
				switch cr := chunk.(type) {
				case *file.BooleanColumnChunkReader:
					v := make([]bool, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return fmt.Sprint(v[k]) }
				case *file.Int32ColumnChunkReader:
					v := make([]int32, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return fmt.Sprint(v[k]) }
				case *file.Int64ColumnChunkReader:
					v := make([]int64, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return fmt.Sprint(v[k]) }
				case *file.Float32ColumnChunkReader:
					v := make([]float32, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return fmt.Sprintf("%08x", math.Float32bits(v[k])) }
				case *file.Float64ColumnChunkReader:
					v := make([]float64, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return fmt.Sprintf("%016x", math.Float64bits(v[k])) }
				case *file.ByteArrayColumnChunkReader:
					v := make([]arrowparquet.ByteArray, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return hex.EncodeToString(v[k]) }
				case *file.FixedLenByteArrayColumnChunkReader:
					v := make([]arrowparquet.FixedLenByteArray, batch)
					n, _, err = cr.ReadBatch(batch, v, def, rep)
					text = func(k int) string { return hex.EncodeToString(v[k]) }
				default:
					t.Fatalf("arrow: column %s: %T", cols[i].Name, chunk)
				}
				if err != nil {
					t.Fatalf("arrow: column %s: %v", cols[i].Name, err)
				}
				k := 0
				for j := range int(n) {
					if maxDef > 0 && def[j] < maxDef {
						out[i] = assemble(out[i], &cols[i], "null", true, int(def[j]), int(rep[j]))
						continue
					}
					out[i] = assemble(out[i], &cols[i], text(k), false, int(def[j]), int(rep[j]))
					k++
				}
			}
			if err := chunk.Err(); err != nil {
				t.Fatalf("arrow: column %s: %v", cols[i].Name, err)
			}
		}
	}
	return out
}
