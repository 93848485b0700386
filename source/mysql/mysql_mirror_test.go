package mysql

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lakesyncd/lakesyncd/source"
)

// mirror is a lake of one map per relation. It takes what a Stream hands out at
// its word: an insert whose key is there, or a delete whose key is not, is a
// fault.
type mirror struct {
	t        *testing.T
	rows     map[string]map[string]string
	open     []string // relations with rows since the last commit
	pos      source.Position
	state    []byte
	commits  int
	ordinal  int64
	groups   []source.Position
	beats    int
	schemas  int
	barriers int
}

func newMirror(t *testing.T) *mirror {
	return &mirror{t: t, rows: map[string]map[string]string{}}
}

// clone is what a crash leaves.
func (m *mirror) clone() *mirror {
	c := *m
	c.rows = map[string]map[string]string{}
	for k, v := range m.rows {
		c.rows[k] = maps.Clone(v)
	}
	c.open = nil
	c.groups = slices.Clone(m.groups)
	return &c
}

func (m *mirror) resume() *Resume { return &Resume{Position: m.pos, State: m.state} }

func text(v *source.Vector, i int) string {
	if v.Null(i) {
		return "NULL"
	}
	switch v.Type.Store() {
	case source.StoreBools:
		return fmt.Sprint(v.Bools[i])
	case source.StoreInts:
		return fmt.Sprint(v.Ints[i])
	case source.StoreLongs:
		return fmt.Sprint(v.Longs[i])
	case source.StoreWides:
		return fmt.Sprint(v.Wides[i].Hi, ":", v.Wides[i].Lo)
	case source.StoreFloats:
		return fmt.Sprint(math.Float32bits(v.Floats[i]))
	case source.StoreDoubles:
		return fmt.Sprint(math.Float64bits(v.Doubles[i]))
	}
	if len(v.At(i)) > 64 {
		return fmt.Sprintf("%d bytes %x", len(v.At(i)), v.At(i)[:8])
	}
	if v.Type.Kind == source.String {
		return fmt.Sprintf("%q", v.At(i))
	}
	return "x" + hex.EncodeToString(v.At(i))
}

func row(vs []source.Vector, cols []int, i int) string {
	var out []string
	if cols == nil {
		for c := range vs {
			out = append(out, text(&vs[c], i))
		}
	}
	for _, c := range cols {
		out = append(out, text(&vs[c], i))
	}
	return strings.Join(out, ",")
}

func (m *mirror) apply(ev *source.Event) {
	m.t.Helper()
	switch ev.Kind {
	case source.Rows:
		b := ev.Batch
		name := b.Relation.FullName()
		table := m.rows[name]
		if table == nil {
			table = map[string]string{}
			m.rows[name] = table
		}
		if len(m.open) == 0 {
			m.ordinal = 0
			if b.Op != source.Read {
				m.groups = append(m.groups, b.Position)
			}
		}
		m.open = append(m.open, name)
		if b.Op != source.Read && b.Position != m.groups[len(m.groups)-1] {
			m.t.Errorf("batch of %s inside of %s", b.Position, m.groups[len(m.groups)-1])
		}
		if b.Ordinal != m.ordinal && b.Op != source.Read {
			m.t.Errorf("%s: ordinal %d after %d rows", b.Position, b.Ordinal, m.ordinal)
		}
		m.ordinal += int64(b.Rows)
		for i := range b.Rows {
			if b.Op == source.Update || b.Op == source.Delete {
				k := row(b.Before, b.Relation.Key, i)
				if _, ok := table[k]; !ok && b.Relation.KeyProven {
					m.t.Errorf("%s: %s has no row %s to change", b.Position, name, k)
				}
				delete(table, k)
			}
			if b.Op != source.Delete {
				k := row(b.After, b.Relation.Key, i)
				if have, ok := table[k]; ok && (b.Relation.KeyProven || b.Op == source.Read) && b.Op != source.Update {
					m.t.Errorf("%s: %s has row %s already: %s", b.Position, name, k, have)
				}
				table[k] = row(b.After, nil, i)
			}
		}
	case source.Truncate:
		clear(m.rows[ev.Relation.FullName()])
	case source.Schema:
		m.schemas++
	case source.Commit:
		m.commits++
		m.open = nil
		m.pos = ev.Position
		if ev.State != nil {
			m.state = ev.State
		}
		if ev.Barrier {
			m.barriers++
		}
	case source.Heartbeat:
		if len(m.open) > 0 {
			m.t.Error("a heartbeat inside of a transaction")
		}
		m.beats++
		m.pos = ev.Position
		if ev.State != nil {
			m.state = ev.State
		}
	}
}

// follow reads until the server's present position, each event through look,
// which may stop it by returning false.
func (m *mirror) follow(ctx context.Context, s *Stream, until source.Position, look func(*source.Event) bool) error {
	m.t.Helper()
	for {
		if m.pos != "" && len(m.open) == 0 && until != "" {
			past, err := Reached(m.pos, until)
			if err != nil {
				return err
			}
			if past {
				return nil
			}
		}
		ev, err := s.Next(ctx)
		if err != nil {
			return err
		}
		m.apply(ev)
		if look != nil && !look(ev) {
			return nil
		}
	}
}
