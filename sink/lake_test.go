package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// lake is a sink on a store in memory, and a reader of its own: it applies deltas
// by the rules of the Iceberg specification alone.
type lake struct {
	testing.TB
	fs   *memoryFS
	cfg  *config.Config
	cat  *table.Catalog
	sink *Sink
	id   int64
	// deltas committed, by table.
	deltas map[string][]table.Delta
	state  map[string]TableState
	memory int64
	parsed map[string][]fileRow // by path
	// warehouse is a URI of the store in memory.
	warehouse string
}

func newLake(t testing.TB, memory int64, tables ...config.Table) *lake {
	t.Helper()
	return newLakeAt(t, "file:///lake", memory, tables...)
}

func newLakeAt(t testing.TB, warehouse string, memory int64, tables ...config.Table) *lake {
	t.Helper()
	cfg := config.Default()
	cfg.Pipeline, cfg.Tables = "test", tables
	cfg.Snapshots = config.Snapshots{Keep: config.Duration(24 * time.Hour), Min: 20, Max: 500}
	l := &lake{TB: t, fs: newMemoryFS(), cfg: cfg, deltas: map[string][]table.Delta{}, memory: memory, parsed: map[string][]fileRow{}, warehouse: warehouse}
	l.open()
	return l
}

// open starts the sink as a restart does.
func (l *lake) open(rels ...*source.Relation) {
	l.Helper()
	cat, err := table.OpenCatalog(context.Background(), table.CatalogOptions{Warehouse: l.warehouse, FS: l.fs, Snapshots: l.cfg.Snapshots})
	if err != nil {
		l.Fatal(err)
	}
	s, err := Open(context.Background(), Options{Config: l.cfg, Catalog: cat, FS: l.fs, Memory: l.memory})
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { s.Close() })
	l.cat, l.sink = cat, s
	if len(rels) > 0 {
		l.prepare(rels...)
	}
}

func (l *lake) prepare(rels ...*source.Relation) {
	l.Helper()
	if err := l.sink.Prepare(context.Background(), rels, l.state); err != nil {
		l.Fatal(err)
	}
}

func (l *lake) write(e *source.Event) {
	l.Helper()
	if err := l.sink.Write(context.Background(), e); err != nil {
		l.Fatal(err)
	}
}

// checkpoint flushes and commits, and returns the deltas.
func (l *lake) checkpoint() []table.Delta {
	l.Helper()
	deltas, err := l.sink.Flush(context.Background())
	if err != nil {
		l.Fatal(err)
	}
	l.id++
	l.state = l.sink.Tables()
	for name, st := range l.state {
		st.Complete = true
		l.state[name] = st
	}
	for _, d := range deltas {
		d.Complete = true
		st := l.state[d.Table]
		st.Checkpoint = l.id
		l.state[d.Table] = st
		if _, err := l.sink.Commit(context.Background(), d, table.Mark{Pipeline: "test", Epoch: 1, Checkpoint: l.id, Position: fmt.Sprint("p", l.id), SourceTime: time.Unix(l.id, 0)}); err != nil {
			l.Fatal(err)
		}
		l.deltas[d.Table] = append(l.deltas[d.Table], d)
	}
	return deltas
}

// fileRow is a row of a Parquet file: its values by field id, and as text.
type fileRow struct {
	byID map[int]string
	text string
}

func (l *lake) rowsOf(f table.File) []fileRow {
	l.Helper()
	if rows, ok := l.parsed[f.Path]; ok {
		return rows
	}
	data := l.fs.files[f.Path]
	if int64(len(data)) != f.Bytes {
		l.Fatalf("%s has %d bytes, its delta says %d", f.Path, len(data), f.Bytes)
	}
	pf, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		l.Fatalf("%s: %v", f.Path, err)
	}
	if pf.NumRows() != f.Rows {
		l.Fatalf("%s has %d rows, its delta says %d", f.Path, pf.NumRows(), f.Rows)
	}
	fields := pf.Schema().Fields()
	var out []fileRow
	for _, g := range pf.RowGroups() {
		r := g.Rows()
		buf := make([]parquet.Row, 64)
		for {
			n, err := r.ReadRows(buf)
			for _, row := range buf[:n] {
				fr := fileRow{byID: map[int]string{}}
				var texts []string
				for i, v := range row {
					text := "NULL"
					if !v.IsNull() {
						text = fmt.Sprintf("%v", v)
					}
					fr.byID[fields[i].ID()] = text
					texts = append(texts, fields[i].Name()+"="+text)
				}
				fr.text = strings.Join(texts, " ")
				out = append(out, fr)
			}
			if n == 0 || err != nil {
				break
			}
		}
		r.Close()
	}
	l.parsed[f.Path] = out
	return out
}

type liveFile struct {
	table.File
	seq  int
	part string
	rows []fileRow
	dead map[int64]bool
}

// rows reads a table by its deltas.
func (l *lake) rows(name string) []string {
	l.Helper()
	var data []*liveFile
	seq := 0
	partition := func(f table.File) string { return fmt.Sprintf("%q", f.Partition) }
	for _, d := range l.deltas[name] {
		for _, layer := range d.Layers {
			seq++
			if layer.Truncate {
				data = nil
			}
			var eq, pos []table.File
			for _, f := range layer.Files {
				switch f.Content {
				case table.Data:
					data = append(data, &liveFile{File: f, seq: seq, part: partition(f), rows: l.rowsOf(f), dead: map[int64]bool{}})
				case table.EqualityDeletes:
					eq = append(eq, f)
				case table.PositionDeletes:
					pos = append(pos, f)
				}
			}
			seen := map[string]bool{}
			for _, f := range eq {
				if !slices.IsSorted(f.EqualityIDs) {
					l.Errorf("equality ids %v are not ascending", f.EqualityIDs)
				}
				part := partition(f)
				rows := l.rowsOf(f)
				for _, r := range rows {
					if len(r.byID) != len(f.EqualityIDs) {
						l.Errorf("an equality delete has columns %v, its ids are %v", r.byID, f.EqualityIDs)
					}
					key := keyText(r, f.EqualityIDs)
					if seen[part+key] {
						l.Errorf("key %s is deleted twice in one layer", key)
					}
					seen[part+key] = true
				}
				for _, d := range data {
					if d.seq < seq && d.part == part {
						for i, r := range d.rows {
							if seen[part+keyText(r, f.EqualityIDs)] {
								d.dead[int64(i)] = true
							}
						}
					}
				}
			}
			for _, f := range pos {
				last := int64(-1)
				for _, r := range l.rowsOf(f) {
					var p int64
					fmt.Sscan(r.byID[2147483545], &p)
					if r.byID[2147483546] != f.Refers {
						l.Errorf("a position delete names %s, its file refers to %s", r.byID[2147483546], f.Refers)
					}
					if p <= last {
						l.Errorf("positions of %s are not ascending", f.Path)
					}
					last = p
					hit := false
					for _, d := range data {
						if d.Path == f.Refers {
							if d.seq != seq {
								l.Errorf("a position delete names a file of another layer")
							}
							if d.dead[p] || p >= d.File.Rows {
								l.Errorf("position %d of %s is deleted twice or does not exist", p, d.Path)
							}
							d.dead[p], hit = true, true
						}
					}
					if !hit {
						l.Errorf("a position delete names %s, which is not there", f.Refers)
					}
				}
			}
		}
	}
	var out []string
	for _, d := range data {
		for i, r := range d.rows {
			if !d.dead[int64(i)] {
				out = append(out, r.text)
			}
		}
	}
	sort.Strings(out)
	return out
}

func keyText(r fileRow, ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, "%d:%s,", len(r.byID[id]), r.byID[id])
	}
	return b.String()
}

// counts of files by content over the deltas.
func counts(deltas []table.Delta) map[table.Content]int64 {
	n := map[table.Content]int64{}
	for _, d := range deltas {
		for _, l := range d.Layers {
			for _, f := range l.Files {
				n[f.Content] += f.Rows
			}
		}
	}
	return n
}

// shopRelation makes a relation of columns "name type", the key by name.
func shopRelation(name, key string, columns ...string) *source.Relation {
	r := &source.Relation{Namespace: "shop", Name: name, KeyProven: true, EstimatedRows: -1}
	for _, c := range columns {
		n, typ, _ := strings.Cut(c, " ")
		col := source.Column{Name: n, Native: typ, Nullable: true, Type: types[typ]}
		for _, k := range strings.Split(key, ",") {
			if k == n {
				r.Key = append(r.Key, len(r.Columns))
				col.Nullable = false
			}
		}
		r.Columns = append(r.Columns, col)
	}
	return r
}

var types = map[string]source.Type{
	"int": {Kind: source.Int}, "long": {Kind: source.Long}, "string": {Kind: source.String}, "date": {Kind: source.Date},
	"binary": {Kind: source.Binary}, "decimal": {Kind: source.Decimal, Precision: 12, Scale: 2},
	"wide": {Kind: source.Decimal, Precision: 20}, "timestamp": {Kind: source.Timestamp}, "double": {Kind: source.Double}, "uuid": {Kind: source.UUID},
}

// batch makes rows of Go values: int for whole numbers, string for bytes, nil.
func batch(rel *source.Relation, op source.Op, rows ...[]any) *source.Event {
	b := &source.Batch{Relation: rel, Op: op, Rows: len(rows), Position: "t1", Time: time.Unix(1, 0)}
	set := func() []source.Vector {
		v := make([]source.Vector, len(rel.Columns))
		for i, c := range rel.Columns {
			v[i].Reset(c.Type)
		}
		return v
	}
	b.Before, b.After = set(), set()
	fill := func(v []source.Vector, values []any) {
		for i, x := range values {
			d := &v[i]
			switch x := x.(type) {
			case nil:
				d.AppendNull()
			case string:
				d.AppendBytes([]byte(x))
			case float64:
				d.AppendDouble(x)
			case int:
				switch d.Type.Store() {
				case source.StoreInts:
					d.AppendInt(int32(x))
				case source.StoreWides:
					d.AppendWide(source.Int128{Hi: int64(x) >> 63, Lo: uint64(x)})
				case source.StoreDoubles:
					d.AppendDouble(float64(x))
				default:
					d.AppendLong(int64(x))
				}
			}
		}
	}
	n := len(rel.Columns)
	for _, row := range rows {
		switch op {
		case source.Update:
			fill(b.Before, row[:n])
			fill(b.After, row[n:])
		case source.Delete:
			fill(b.Before, row)
		default:
			fill(b.After, row)
		}
	}
	return &source.Event{Kind: source.Rows, Batch: b}
}

func row(v ...any) []any { return v }

func (l *lake) want(name string, want ...string) {
	l.Helper()
	got := l.rows(name)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.Errorf("table %s holds\n  %s\nwant\n  %s", name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// scan compares what iceberg-go reads with what the deltas say. Decimals and
// times print otherwise there, so a table with some is only counted.
func (l *lake) scan(name string) {
	l.Helper()
	t, err := l.cat.Load(context.Background(), name)
	if err != nil {
		l.Fatal(err)
	}
	countOnly := false
	var got []string
	for line, err := range t.Rows(context.Background(), table.RowsOptions{}) {
		if err != nil {
			l.Fatal(err)
		}
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		values := map[string]any{}
		if err := d.Decode(&values); err != nil {
			l.Fatal(err)
		}
		var texts []string
		for _, f := range t.Schema().Fields() {
			if typ := f.Type.String(); strings.HasPrefix(typ, "decimal") || strings.HasPrefix(typ, "timestamp") {
				countOnly = true
			}
			v := "NULL"
			if values[f.Name] != nil {
				v = fmt.Sprint(values[f.Name])
			}
			texts = append(texts, f.Name+"="+v)
		}
		got = append(got, strings.Join(texts, " "))
	}
	sort.Strings(got)
	want := l.rows(name)
	if len(got) != len(want) || !countOnly && !slices.Equal(got, want) {
		l.Errorf("iceberg-go reads %d rows of %s, the deltas have %d", len(got), name, len(want))
	}
}

// store writes the store in memory to the disk, for readers that are not ours.
func (l *lake) store() {
	l.Helper()
	for path, data := range l.fs.files {
		name := strings.TrimPrefix(path, "file://")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			l.Fatal(err)
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			l.Fatal(err)
		}
	}
}

// refused checks that an error is of a class (nil: any) and names things.
func (l *lake) refused(err, class error, names ...string) {
	l.Helper()
	if err == nil {
		l.Fatal("no error")
	}
	if class != nil && !errors.Is(err, class) {
		l.Errorf("%v is not %q", err, class)
	}
	for _, n := range names {
		if !strings.Contains(err.Error(), n) {
			l.Errorf("%q does not name %q", err, n)
		}
	}
}
