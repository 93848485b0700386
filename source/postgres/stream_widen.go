package postgres

import "github.com/lakesyncd/lakesyncd/source"

// widen makes rows that came in an earlier shape rows of the present one, which
// has the same columns and more; those hold NULL.
func (a *assembler) widen(to *source.Relation) {
	from := a.batch.Relation
	before, after := a.wide.Before, a.wide.After
	a.wide = a.batch
	a.wide.Relation = to
	old, rows := a.batch.Rows, a.batch.Rows
	if a.batch.KeyOnly || a.batch.Op == source.Insert {
		old = 0
	}
	if a.batch.Op == source.Delete {
		rows = 0
	}
	a.wide.Before = widened(before, a.batch.Before, from, to, old)
	a.wide.After = widened(after, a.batch.After, from, to, rows)
}

// widened are vectors with the columns of another shape. Those that have lacks get
// so many rows.
func widened(dst, have []source.Vector, from, to *source.Relation, rows int) []source.Vector {
	if len(have) == 0 {
		return have
	}
	for len(dst) < len(to.Columns) {
		dst = append(dst, source.Vector{})
	}
	dst = dst[:len(to.Columns)]
	for i, c := range to.Columns {
		at := -1
		for j := range from.Columns {
			if from.Columns[j].Name == c.Name {
				at = j
			}
		}
		if at >= 0 {
			dst[i] = have[at]
			continue
		}
		dst[i] = source.Vector{}
		dst[i].Reset(c.Type)
		for range rows {
			dst[i].AppendNull()
		}
	}
	return dst
}
