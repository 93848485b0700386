package sink

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lakesyncd/lakesyncd/source"
)

// gatherElements puts lists whose elements may be NULL into the open page. The
// definition levels are, from the highest: an element, a NULL, an empty list, no
// list.
func (c *column) gatherElements(v *source.Vector, rows []uint32, from, to int) (int, error) {
	of := c.Type.Element()
	element := byte(c.maxDef)
	for i := from; i < to; i++ {
		r := i
		if rows != nil {
			r = int(rows[i])
		}
		if v.Valid[r] == 0 {
			if c.Required {
				return 0, c.errNull()
			}
			c.levels, c.reps = append(c.levels, 0), append(c.reps, 0)
			c.nulls++
			continue
		}
		list := v.At(r)
		if len(list) == 0 {
			c.levels, c.reps = append(c.levels, element-2), append(c.reps, 0)
			c.nulls++
			continue
		}
		for rep := byte(0); len(list) > 0; rep = 1 {
			b, valid, rest, ok := of.NextElement(list)
			if !ok {
				return 0, fmt.Errorf("column %s: a broken list", c.Name)
			}
			list = rest
			c.reps = append(c.reps, rep)
			if !valid {
				c.levels = append(c.levels, element-1)
				c.nulls++
				continue
			}
			c.levels = append(c.levels, element)
			if err := c.appendElement(of, b); err != nil {
				return 0, err
			}
		}
		if len(c.raw) >= c.pageBytes {
			return i + 1 - from, nil
		}
	}
	return to - from, nil
}

// appendElement appends the PLAIN form of a list's element.
func (c *column) appendElement(of source.Type, b []byte) error {
	switch of.Store() {
	case source.StoreBytes:
		if c.width == 0 {
			c.raw = binary.LittleEndian.AppendUint32(c.raw, uint32(len(b)))
		}
	case source.StoreLongs:
		if c.width == 4 {
			x := int64(binary.LittleEndian.Uint64(b))
			if x < math.MinInt32 || x > math.MaxInt32 {
				return fmt.Errorf("column %s: a value has more digits than %s", c.Name, of)
			}
			c.raw = binary.LittleEndian.AppendUint32(c.raw, uint32(x))
			return nil
		}
	case source.StoreWides:
		w := source.Int128{Lo: binary.LittleEndian.Uint64(b), Hi: int64(binary.LittleEndian.Uint64(b[8:]))}
		c.raw = appendWide(c.raw, w, c.width)
		return nil
	}
	c.raw = append(c.raw, b...)
	return nil
}
