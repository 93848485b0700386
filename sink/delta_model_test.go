package sink

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

var (
	modelSeed  = flag.Uint64("sink.seed", 0, "seed of the model test; 0: by the clock")
	modelSteps = flag.Int("sink.steps", 120, "events of each run of the model test")
)

type modelShape struct {
	name  string
	rel   *source.Relation
	table config.Table
}

func modelShapes() []modelShape {
	return []modelShape{
		{"long key", shopRelation("t", "id", "id long", "v string", "n int"), config.Table{}},
		{"upsert", shopRelation("t", "id", "id long", "v string", "n int"), config.Table{Inserts: config.InsertsUpsert}},
		{"composite key", shopRelation("t", "a,b", "a string", "b string", "n int"), config.Table{}},
		{"key of three", shopRelation("t", "a,b,c", "a int", "v string", "b string", "c decimal"), config.Table{}},
		{"bucket of the key", shopRelation("t", "id", "id long", "v string", "n int"), config.Table{PartitionBy: []string{"bucket(4, id)"}}},
		{"partition outside the key", shopRelation("t", "id", "id long", "region string", "n int"), config.Table{PartitionBy: []string{"region"}}},
		{"partition and upsert", shopRelation("t", "id", "id long", "region string", "n int"), config.Table{PartitionBy: []string{"region", "truncate(10, n)"}, Inserts: config.InsertsUpsert}},
		{"sorted", shopRelation("t", "id", "id long", "v string", "n int"), config.Table{SortBy: []string{"v desc", "n"}}},
	}
}

type modelBudget struct {
	name   string
	memory int64
	chunk  int
	target int64
}

var modelBudgets = []modelBudget{
	{"roomy", 32 << 20, chunkRows, 128 << 20},
	{"small chunks", 4 << 20, 40, 128 << 20},
	{"small files", 4 << 20, 20, 1},
	{"layers", 24 << 10, 60, 4 << 10},
}

func seedOf() uint64 {
	if *modelSeed != 0 {
		return *modelSeed
	}
	return uint64(time.Now().UnixNano())
}

// newModel makes the model of a table for one shape and budget.
func newModel(t *testing.T, warehouse string, sh modelShape, b modelBudget, seed uint64) *model {
	t.Logf("seed: -sink.seed=%d", seed)
	cfg := sh.table
	cfg.Match, cfg.TargetFileSize = "shop.t", config.Size(b.target)
	m := &model{lake: newLakeAt(t, warehouse, b.memory, cfg), rel: sh.rel, rng: rand.New(rand.NewPCG(seed, 1)), rows: map[string][]any{}, chunk: b.chunk}
	if len(cfg.PartitionBy) > 0 {
		m.chunk /= 8
	}
	return m
}

// TestModel holds random histories against a plain map: keys of several columns,
// partitions that rows move between, keys that change and swap, truncations,
// restarts, and budgets so small that chunks are sealed, files rolled and layers
// cut all the time.
func TestModel(t *testing.T) {
	seed := seedOf()
	for _, sh := range modelShapes() {
		for _, b := range modelBudgets {
			t.Run(sh.name+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				m := newModel(t, "file:///lake", sh, b, seed)
				if testing.Short() {
					m.run(*modelSteps / 4)
					return
				}
				m.run(*modelSteps)
				m.covered(b.name, len(sh.table.SortBy) > 0)
			})
		}
	}
}

type model struct {
	*lake
	rel   *source.Relation
	rng   *rand.Rand
	rows  map[string][]any
	chunk int
}

func (m *model) keyOf(r []any) string {
	var b strings.Builder
	for _, k := range m.rel.Key {
		fmt.Fprintf(&b, "%q,", fmt.Sprint(r[k]))
	}
	return b.String()
}

func (m *model) random() []any {
	r := make([]any, len(m.rel.Columns))
	for i, c := range m.rel.Columns {
		key := slices.Contains(m.rel.Key, i)
		switch {
		case !key && m.rng.IntN(6) == 0:
			r[i] = nil
		case c.Type.Kind == source.String && key:
			r[i] = strings.Repeat("a", m.rng.IntN(4)) + strings.Repeat("|", m.rng.IntN(3)) + strings.Repeat("b", m.rng.IntN(3))
		case c.Type.Kind == source.String:
			r[i] = string(rune('a' + m.rng.IntN(5)))
		default:
			r[i] = m.rng.IntN(200) - 60
		}
	}
	return r
}

// pick returns a row that exists, in an order that only the seed decides.
func (m *model) pick() []any {
	keys := slices.Sorted(maps.Keys(m.rows))
	return m.rows[keys[m.rng.IntN(len(keys))]]
}

func (m *model) prepareAll() {
	m.prepare(m.rel)
	for _, w := range m.sink.writers {
		w.shape.chunkRows = m.chunk
	}
}

func (m *model) run(steps int) {
	m.prepareAll()
	var first [][]any
	for range m.rng.IntN(300) {
		if r := m.random(); m.rows[m.keyOf(r)] == nil {
			m.rows[m.keyOf(r)] = r
			first = append(first, r)
		}
	}
	m.write(batch(m.rel, source.Read, first...))
	m.checkpoint()
	m.check()
	for range steps {
		switch n := m.rng.IntN(100); {
		case n < 6:
			m.checkpoint()
			if m.rng.IntN(3) == 0 {
				m.check()
			}
		case n == 6:
			m.checkpoint()
			m.sink.Close()
			m.open()
			m.prepareAll()
		case n == 7 && m.rng.IntN(3) == 0:
			m.write(&source.Event{Kind: source.Truncate, Relation: m.rel})
			clear(m.rows)
		case n < 35:
			m.insert()
		case n < 80:
			m.update()
		default:
			m.remove()
		}
		if m.Failed() {
			return
		}
	}
	m.checkpoint()
	m.check()
	m.scan("shop.t")
	if n := len(m.fs.paths(m.warehouse + "/shop/t/data")); n != m.fileCount() {
		m.Errorf("%d files in the store, the deltas name %d", n, m.fileCount())
	}
	if m.fs.open != 0 {
		m.Errorf("%d uploads are still open", m.fs.open)
	}
}

// covered checks that the budget did force what it is there for.
func (m *model) covered(budget string, sorted bool) {
	layers, positions := 0, int64(0)
	for _, d := range m.deltas["shop.t"] {
		layers = max(layers, len(d.Layers))
		for _, l := range d.Layers {
			for _, f := range l.Files {
				if f.Sorted != (sorted && f.Content == table.Data) {
					m.Errorf("%s says sorted=%v", f.Path, f.Sorted)
				}
			}
		}
	}
	positions = counts(m.deltas["shop.t"])[table.PositionDeletes]
	switch budget {
	case "roomy":
		if layers > 1 || positions > 0 {
			m.Errorf("%d layers and %d position deletes without need", layers, positions)
		}
	case "layers":
		if layers < 2 {
			m.Errorf("no layer was cut")
		}
	default:
		if positions == 0 {
			m.Errorf("no row was deleted by position")
		}
	}
}

func (m *model) fileCount() (n int) {
	for _, ds := range m.deltas {
		for _, d := range ds {
			for _, l := range d.Layers {
				n += len(l.Files)
			}
		}
	}
	return n
}

func (m *model) insert() {
	var rows [][]any
	for range 1 + m.rng.IntN(60) {
		if r := m.random(); m.rows[m.keyOf(r)] == nil {
			m.rows[m.keyOf(r)] = r
			rows = append(rows, r)
		}
	}
	m.write(batch(m.rel, source.Insert, rows...))
}

func (m *model) update() {
	var rows [][]any
	for range 1 + m.rng.IntN(60) {
		if len(m.rows) == 0 {
			break
		}
		old := m.pick()
		r := m.random()
		if m.rng.IntN(5) > 0 { // keep the key
			for _, k := range m.rel.Key {
				r[k] = old[k]
			}
		}
		if m.keyOf(r) != m.keyOf(old) && m.rows[m.keyOf(r)] != nil {
			continue
		}
		delete(m.rows, m.keyOf(old))
		m.rows[m.keyOf(r)] = r
		rows = append(rows, append(slices.Clone(old), r...))
	}
	m.write(batch(m.rel, source.Update, rows...))
}

func (m *model) remove() {
	var rows [][]any
	for range 1 + m.rng.IntN(30) {
		if len(m.rows) == 0 {
			break
		}
		r := m.pick()
		delete(m.rows, m.keyOf(r))
		rows = append(rows, r)
	}
	m.write(batch(m.rel, source.Delete, rows...))
}

func (m *model) check() {
	m.Helper()
	var want []string
	for _, r := range m.rows {
		var texts []string
		for i, c := range m.rel.Columns {
			v := "NULL"
			if r[i] != nil {
				v = fmt.Sprint(r[i])
			}
			texts = append(texts, c.Name+"="+v)
		}
		want = append(want, strings.Join(texts, " "))
	}
	m.want("shop.t", want...)
}
