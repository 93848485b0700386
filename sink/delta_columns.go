package sink

import (
	"fmt"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// columnSet is the before or after rows of a batch as the columns of the file.
type columnSet struct {
	cols []*source.Vector // nil: the batch has no such rows
	// absent, by column: the batch doesn't say what the column held.
	absent  []bool
	shape   *shape
	scratch []source.Vector // of converted and added columns
	memory  []*source.Vector
}

// complete refuses rows that lack one of the columns.
func (s *columnSet) complete(columns []int) error {
	for _, c := range columns {
		if s.absent[c] {
			return fmt.Errorf("column %s is missing from the image of a changed row; the log must carry whole rows: %w", s.shape.columns[c].Name, source.ErrCannotServe)
		}
	}
	return nil
}

// columns maps a batch to the columns of the file.
func (w *deltaWriter) columns(b *source.Batch) error {
	w.before.cols, w.after.cols = nil, nil
	if w.shape.append && b.Op == source.Update {
		return w.fill(&w.after, b, b.After)
	}
	if b.Op == source.Update || b.Op == source.Delete {
		if err := w.fill(&w.before, b, b.Before); err != nil {
			return err
		}
	}
	if b.Op != source.Delete {
		return w.fill(&w.after, b, b.After)
	}
	return nil
}

func (w *deltaWriter) fill(s *columnSet, b *source.Batch, vectors []source.Vector) error {
	sh := w.shape
	if len(vectors) != len(sh.rel.Columns) {
		return fmt.Errorf("a batch has %d columns, relation %s has %d", len(vectors), sh.rel.FullName(), len(sh.rel.Columns))
	}
	n := len(sh.columns)
	if s.shape != sh {
		*s = columnSet{shape: sh, absent: make([]bool, n), scratch: make([]source.Vector, n), memory: make([]*source.Vector, n)}
	}
	s.cols = s.memory
	for i := range sh.columns {
		s.absent[i], s.cols[i] = false, nil
		from := sh.from[i]
		if from < 0 {
			continue // written as NULL, or by meta
		}
		v := &vectors[from]
		if v.Len() == 0 {
			s.absent[i] = true
			continue
		}
		if v.Len() != b.Rows {
			return fmt.Errorf("column %s of a batch has %d rows, the batch has %d", sh.columns[i].Name, v.Len(), b.Rows)
		}
		if len(v.Unchanged) > 0 {
			return fmt.Errorf("column %s: an update came without its value, which did not change and is stored out of line; run ALTER TABLE %q.%q REPLICA IDENTITY FULL, and start with a new pipeline name for another initial snapshot: %w",
				sh.columns[i].Name, sh.rel.Namespace, sh.rel.Name, source.ErrCannotServe)
		}
		if v.Misfits > 0 && (s == &w.after || sh.append) {
			if err := w.misfits(i, v); err != nil {
				return err
			}
		}
		if c := sh.convert[i]; c != nil {
			d := &s.scratch[i]
			d.Reset(sh.columns[i].Type)
			if err := c.Convert(d, v, 0, b.Rows); err != nil {
				return fmt.Errorf("column %s as %s: %w: %w", sh.columns[i].Name, sh.columns[i].Type, err, source.ErrCannotServe)
			}
			v = d
		}
		s.cols[i] = v
	}
	if sh.append {
		w.meta(s, b)
	}
	return nil
}

// opCodes are the values of _op.
var opCodes = map[source.Op]string{source.Read: "r", source.Insert: "c", source.Update: "u", source.Delete: "d", opTruncate: "t"}

// appendTruncate writes the row that stands for a TRUNCATE in append mode: _op t,
// and NULL in every column of the relation.
func (w *deltaWriter) appendTruncate(e *source.Event) error {
	b := &source.Batch{Relation: w.shape.rel, Rows: 1, Op: opTruncate, Position: e.Position, Time: e.Time}
	b.After = make([]source.Vector, len(w.shape.rel.Columns))
	for i, c := range w.shape.rel.Columns {
		b.After[i].Reset(c.Type)
		b.After[i].AppendNull()
	}
	return w.write(b)
}

// opTruncate is an operation of ours for appendTruncate.
const opTruncate source.Op = 255

// meta fills the columns that append mode adds: _op, _source_time, _position and
// _ordinal, the last four of the file.
func (w *deltaWriter) meta(s *columnSet, b *source.Batch) {
	first := len(w.shape.columns) - len(appendColumns)
	for i := first; i < len(w.shape.columns); i++ {
		s.scratch[i].Reset(w.shape.columns[i].Type)
		s.cols[i] = &s.scratch[i]
	}
	op, at, pos, ord := s.cols[first], s.cols[first+1], s.cols[first+2], s.cols[first+3]
	code, position := []byte(opCodes[b.Op]), []byte(b.Position)
	for i := range b.Rows {
		op.AppendBytes(code)
		if b.Time.IsZero() {
			at.AppendNull()
		} else {
			at.AppendLong(b.Time.UnixMicro())
		}
		pos.AppendBytes(position)
		ord.AppendLong(b.Ordinal + int64(i))
	}
}

// misfits counts values that became NULL, or refuses them.
func (w *deltaWriter) misfits(column int, v *source.Vector) error {
	sh := w.shape
	name := sh.columns[column].Name
	for _, k := range sh.key {
		if k == column {
			return fmt.Errorf("key column %s: %s: %w", name, v.Misfit, source.ErrCannotServe)
		}
	}
	if sh.misfitStop {
		return fmt.Errorf("column %s: %s; `misfit: null` writes NULL in its place, `columns: {%s: {as: string}}` keeps it as text where it can: %w", name, v.Misfit, name, source.ErrCannotServe)
	}
	w.sink.metrics.misfits.WithLabelValues(sh.table, name).Add(float64(v.Misfits))
	if !sh.misfitSeen[name] {
		sh.misfitSeen[name] = true
		w.sink.log.Warn("value does not fit the lake and becomes NULL", "table", sh.table, "relation", sh.rel.FullName(), "column", name, "reason", v.Misfit)
	}
	return nil
}

// reservedColumn reports whether append mode needs the name itself.
func reservedColumn(name string) bool {
	switch strings.ToLower(name) {
	case "_op", "_source_time", "_position", "_ordinal":
		return true
	}
	return false
}
