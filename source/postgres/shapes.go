package postgres

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// shapes are the captured tables by OID, as they were at some place in the log.
// The log tells names, types and the replica identity again before the first row
// and after each change; all else that is known of a table is kept here, and in
// the saved record.
type shapes struct {
	byOID map[uint32]*shape
}

func newShapes() *shapes { return &shapes{byOID: map[uint32]*shape{}} }

// get is nil for a table that is not known.
func (s *shapes) get(oid uint32) *shape { return s.byOID[oid] }

func (s *shapes) set(sh *shape) { s.byOID[sh.OID] = sh }

// all are the shapes in the order of their names.
func (s *shapes) all() []*shape {
	var out []*shape
	for _, sh := range s.byOID {
		out = append(out, sh)
	}
	slices.SortFunc(out, func(a, b *shape) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return int(int64(a.OID) - int64(b.OID))
	})
	return out
}

const shapesFormat = 1

type shapesText struct {
	Format int      `json:"format"`
	Tables []*shape `json:"tables"`
}

// encode is the text of the shapes for the saved record; equal shapes have equal
// texts.
func (s *shapes) encode() ([]byte, error) {
	return json.Marshal(shapesText{Format: shapesFormat, Tables: s.all()})
}

func decodeShapes(b []byte) (*shapes, error) {
	var t shapesText
	if err := json.Unmarshal(b, &t); err != nil {
		return nil, err
	}
	if t.Format != shapesFormat {
		return nil, fmt.Errorf("they have format %d, this version reads %d", t.Format, shapesFormat)
	}
	s := newShapes()
	for _, sh := range t.Tables {
		if sh == nil || s.byOID[sh.OID] != nil {
			return nil, fmt.Errorf("a table is missing or twice in them")
		}
		for _, k := range sh.Key {
			if k < 0 || k >= len(sh.Columns) {
				return nil, fmt.Errorf("table %s: key column %d of %d", sh.fullName(), k, len(sh.Columns))
			}
		}
		sh.finish(-1)
		s.set(sh)
	}
	return s, nil
}

// resetBatch empties dst for rows of rel.
func resetBatch(dst *source.Batch, rel *source.Relation, op source.Op, keyOnly bool) {
	dst.Relation, dst.Op, dst.Rows, dst.KeyOnly = rel, op, 0, keyOnly
	dst.Before = resetVectors(dst.Before, rel)
	dst.After = resetVectors(dst.After, rel)
}

func resetVectors(v []source.Vector, rel *source.Relation) []source.Vector {
	if cap(v) < len(rel.Columns) {
		v = append(v[:cap(v)], make([]source.Vector, len(rel.Columns)-cap(v))...)
	}
	v = v[:len(rel.Columns)]
	for i := range v {
		v[i].Reset(rel.Columns[i].Type)
	}
	return v
}
