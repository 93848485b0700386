package table_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// lake is a warehouse on local disk whose store can be made to fail.
type lake struct {
	t         *testing.T
	fs        *faults
	requests  *fileio.Requests
	warehouse string
	now       time.Time
	snapshots config.Snapshots
}

func newLake(t *testing.T) *lake {
	t.Helper()
	l := &lake{t: t, requests: &fileio.Requests{}, warehouse: "file://" + folder(t), now: time.Now()}
	store, err := fileio.Open(context.Background(), l.warehouse, config.Storage{}, fileio.Options{Requests: l.requests})
	if err != nil {
		t.Fatal(err)
	}
	l.fs = &faults{FS: store}
	return l
}

// folder is a temporary one, in memory where there is such a place: a sync to
// disk costs more than all else here.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "lakesyncd-table-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (l *lake) catalog() *table.Catalog {
	l.t.Helper()
	c, err := table.OpenCatalog(context.Background(), table.CatalogOptions{
		Warehouse: l.warehouse, FS: l.fs, Snapshots: l.snapshots, Now: func() time.Time { return l.now },
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// load opens the table anew, as another process would.
func (l *lake) load(name string) *table.Table {
	l.t.Helper()
	t, err := l.catalog().Load(context.Background(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	return t
}

var plain = iceberg.NewSchemaWithIdentifiers(0, []int{1},
	iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
	iceberg.NestedField{ID: 2, Name: "name", Type: iceberg.PrimitiveTypes.String})

func (l *lake) create(name string) *table.Table {
	l.t.Helper()
	t, err := l.catalog().Create(context.Background(), name, table.Definition{Schema: plain})
	if err != nil {
		l.t.Fatal(err)
	}
	return t
}

func mark(checkpoint int64) table.Mark {
	return table.Mark{Pipeline: "shop", Epoch: 1, Checkpoint: checkpoint, Position: fmt.Sprintf("file:binlog.000001:%d", 100*checkpoint),
		SourceTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// row of the plain schema; an empty name is null.
type row struct {
	id   int64
	name string
}

// column of a test file.
type column struct {
	id       int
	name     string
	node     parquet.Node
	required bool
	values   []parquet.Value // null where IsNull
	lists    [][]float32     // instead of values: an optional list, nil for null
	lower    []byte
	upper    []byte
}

// write stages a Parquet file.
func (l *lake) write(t *table.Table, content table.Content, columns []column) table.File {
	l.t.Helper()
	group := parquet.Group{}
	for _, c := range columns {
		n := c.node
		if !c.required {
			n = parquet.Optional(n)
		}
		group[c.name] = parquet.FieldID(n, c.id)
	}
	order := slices.Clone(columns) // a Group has its columns in the order of names
	sort.Slice(order, func(i, j int) bool { return order[i].name < order[j].name })
	var buf bytes.Buffer
	w := parquet.NewWriter(&buf, parquet.NewSchema("row", group))
	rows := len(columns[0].values)
	for i := range rows {
		var r parquet.Row
		for j, c := range order {
			if c.lists != nil {
				r = append(r, elements(c.lists[i], j)...)
				continue
			}
			v := c.values[i]
			definition := 1
			if c.required || v.IsNull() {
				definition = 0
			}
			r = append(r, v.Level(0, definition, j))
		}
		if _, err := w.WriteRows([]parquet.Row{r}); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		l.t.Fatal(err)
	}
	path := t.DataLocation() + "/" + uuid.NewString() + ".parquet"
	if err := l.fs.FS.Put(context.Background(), path, buf.Bytes()); err != nil {
		l.t.Fatal(err)
	}
	f := table.File{Content: content, Path: path, Bytes: int64(buf.Len()), Rows: int64(rows), Columns: map[int]table.ColumnStat{}}
	for _, c := range columns {
		if c.lists != nil {
			continue
		}
		s := table.ColumnStat{Size: 1, Values: int64(rows), Lower: c.lower, Upper: c.upper}
		for _, v := range c.values {
			if v.IsNull() {
				s.Nulls++
			}
		}
		f.Columns[c.id] = s
	}
	return f
}

// elements of an optional list of required floats, with their levels.
func elements(list []float32, column int) (out []parquet.Value) {
	switch {
	case list == nil:
		return []parquet.Value{parquet.NullValue().Level(0, 0, column)}
	case len(list) == 0:
		return []parquet.Value{parquet.NullValue().Level(0, 1, column)}
	}
	for i, f := range list {
		out = append(out, parquet.ValueOf(f).Level(min(i, 1), 2, column))
	}
	return out
}

func long(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

func ids(rows []row) column {
	c := column{id: 1, name: "id", node: parquet.Int(64), required: true}
	low, high := rows[0].id, rows[0].id
	for _, r := range rows {
		c.values = append(c.values, parquet.ValueOf(r.id))
		low, high = min(low, r.id), max(high, r.id)
	}
	c.lower, c.upper = long(low), long(high)
	return c
}

func (l *lake) data(t *table.Table, rows ...row) table.File {
	l.t.Helper()
	names := column{id: 2, name: "name", node: parquet.String()}
	for _, r := range rows {
		if r.name == "" {
			names.values = append(names.values, parquet.NullValue())
		} else {
			names.values = append(names.values, parquet.ValueOf(r.name))
		}
	}
	return l.write(t, table.Data, []column{ids(rows), names})
}

// deletes stages equality deletes of keys.
func (l *lake) deletes(t *table.Table, keys ...int64) table.File {
	l.t.Helper()
	var rows []row
	for _, k := range keys {
		rows = append(rows, row{id: k})
	}
	f := l.write(t, table.EqualityDeletes, []column{ids(rows)})
	f.EqualityIDs = []int{1}
	return f
}

// positions stages position deletes of rows of a file.
func (l *lake) positions(t *table.Table, of table.File, rows ...int64) table.File {
	l.t.Helper()
	path := column{id: 2147483546, name: "file_path", node: parquet.String(), required: true, lower: []byte(of.Path), upper: []byte(of.Path)}
	pos := column{id: 2147483545, name: "pos", node: parquet.Int(64), required: true, lower: long(rows[0]), upper: long(rows[len(rows)-1])}
	for _, r := range rows {
		path.values = append(path.values, parquet.ValueOf(of.Path))
		pos.values = append(pos.values, parquet.ValueOf(r))
	}
	f := l.write(t, table.PositionDeletes, []column{path, pos})
	f.Refers = of.Path
	return f
}

// delta of one layer for each list of files.
func delta(t *table.Table, layers ...[]table.File) table.Delta {
	d := table.Delta{Table: t.Name(), UUID: t.UUID(), Complete: true}
	for _, files := range layers {
		spec := t.Spec()
		d.Layers = append(d.Layers, table.Layer{SchemaID: t.Schema().ID, SpecID: spec.ID(), Files: files})
	}
	return d
}

func commit(tb *testing.T, t *table.Table, d table.Delta, m table.Mark) table.Result {
	tb.Helper()
	res, err := t.Commit(context.Background(), d, m)
	if err != nil {
		tb.Fatalf("commit of checkpoint %d: %v", m.Checkpoint, err)
	}
	return res
}

// rows of a table by our own scan, sorted.
func rows(tb *testing.T, t *table.Table, o table.RowsOptions) []string {
	tb.Helper()
	var out []string
	for line, err := range t.Rows(context.Background(), o) {
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, string(line))
	}
	sort.Strings(out)
	return out
}

func lines(rows ...row) []string {
	var out []string
	for _, r := range rows {
		name := "null"
		if r.name != "" {
			name = fmt.Sprintf("%q", r.name)
		}
		out = append(out, fmt.Sprintf(`{"id":%d,"name":%s}`, r.id, name))
	}
	sort.Strings(out)
	return out
}

func want(tb *testing.T, got, want []string) {
	tb.Helper()
	if !slices.Equal(got, want) {
		tb.Fatalf("rows:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func is(tb *testing.T, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Fatalf("error %v, want one that is %v", err, want)
	}
}

func path(uri string) string { return strings.TrimPrefix(uri, "file://") }

// files of a folder whose name contains part.
func files(tb *testing.T, uri, part string) []string {
	tb.Helper()
	entries, err := os.ReadDir(path(uri))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.Contains(e.Name(), part) {
			out = append(out, e.Name())
		}
	}
	return out
}

// java is Iceberg's own reader in its serving mode: one process for all tests.
var java struct {
	sync.Mutex
	in  *bufio.Writer
	out *bufio.Reader
}

// ask the Java library.
func ask(tb *testing.T, request ...string) (answer []string, status string) {
	tb.Helper()
	java.Lock()
	defer java.Unlock()
	if java.in == nil {
		cmd := exec.Command("../test/readers/java.sh", "serve")
		in, err := cmd.StdinPipe()
		if err != nil {
			tb.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			tb.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			tb.Fatal(err)
		}
		// Ends when the test binary does: its standard input closes then.
		java.in, java.out = bufio.NewWriter(in), bufio.NewReaderSize(out, 1<<20)
	}
	text, err := json.Marshal(request)
	if err != nil {
		tb.Fatal(err)
	}
	fmt.Fprintf(java.in, "%s\n", text)
	if err := java.in.Flush(); err != nil {
		tb.Fatal(err)
	}
	for {
		line, err := java.out.ReadString('\n')
		if err != nil {
			tb.Fatalf("the Java reader died: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, ".") {
			return answer, line
		}
		answer = append(answer, line)
	}
}

// audit has the Java library check all snapshots of the table against its files
// and read the head as expected. In a short run only our own scan reads it.
func audit(tb *testing.T, t *table.Table, expected []string) {
	tb.Helper()
	want(tb, rows(tb, t, table.RowsOptions{}), expected)
	if testing.Short() {
		return
	}
	answer, status := ask(tb, "check", path(t.Location()), "--all")
	var bad []string
	for _, line := range answer {
		if !strings.HasPrefix(line, "note ") {
			bad = append(bad, line)
		}
	}
	if status != ".0" {
		tb.Fatalf("audit %s:\n%s", status, strings.Join(bad, "\n"))
	}
	got, status := ask(tb, "rows", path(t.Location()))
	if status != ".0" {
		tb.Fatalf("java rows: %s", status)
	}
	sort.Strings(got)
	want(tb, got, expected)
}

// faults is a store that does what a rule says to a call.
type faults struct {
	fileio.FS
	mu sync.Mutex
	// before may refuse a call, or answer it instead of the store; after is
	// called once it was done and may lose its reply.
	before func(op, path string) error
	after  func(op, path string) error
	log    []string
}

func (f *faults) rule(op, path string) (func(string, string) error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, op+" "+filepath.Base(path))
	if f.before != nil {
		if err := f.before(op, path); err != nil {
			return nil, fmt.Errorf("%s %s: %w", op, path, err)
		}
	}
	return f.after, nil
}

func (f *faults) done(op, path string, after func(string, string) error, err error) error {
	if after == nil || err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := after(op, path); err != nil {
		return fmt.Errorf("%s %s: %w", op, path, err)
	}
	return nil
}

func (f *faults) set(before, after func(op, path string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

func (f *faults) CreateExclusive(ctx context.Context, path string, data []byte) error {
	after, err := f.rule("create", path)
	if err != nil {
		return err
	}
	return f.done("create", path, after, f.FS.CreateExclusive(ctx, path, data))
}

func (f *faults) Put(ctx context.Context, path string, data []byte) error {
	after, err := f.rule("put", path)
	if err != nil {
		return err
	}
	return f.done("put", path, after, f.FS.Put(ctx, path, data))
}

func (f *faults) Replace(ctx context.Context, path string, data []byte, version string) (string, error) {
	after, err := f.rule("replace", path)
	if err != nil {
		return "", err
	}
	v, err := f.FS.Replace(ctx, path, data, version)
	return v, f.done("replace", path, after, err)
}

func (f *faults) Read(ctx context.Context, path string) ([]byte, string, error) {
	after, err := f.rule("read", path)
	if err != nil {
		return nil, "", err
	}
	data, v, err := f.FS.Read(ctx, path)
	return data, v, f.done("read", path, after, err)
}

func (f *faults) Stat(ctx context.Context, path string) (fileio.Info, error) {
	after, err := f.rule("stat", path)
	if err != nil {
		return fileio.Info{}, err
	}
	info, err := f.FS.Stat(ctx, path)
	return info, f.done("stat", path, after, err)
}

func (f *faults) Remove(ctx context.Context, paths ...string) error {
	var after func(string, string) error
	for _, p := range paths {
		var err error
		if after, err = f.rule("remove", p); err != nil {
			return err
		}
	}
	return f.done("remove", paths[0], after, f.FS.Remove(ctx, paths...))
}

// foreign commits with the library alone, as another engine that knows the
// layout would: the next vN, without our marks.
func (l *lake) foreign(t *table.Table, change func(b *icetable.MetadataBuilder)) {
	l.t.Helper()
	b := foreignBuilder(l.t, t)
	change(b)
	meta, err := b.Build()
	if err != nil {
		l.t.Fatal(err)
	}
	data, err := json.Marshal(meta)
	if err != nil {
		l.t.Fatal(err)
	}
	n := t.MetadataVersion() + 1
	if err := os.WriteFile(fmt.Sprintf("%s/metadata/v%d.metadata.json", path(t.Location()), n), data, 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path(t.Location())+"/metadata/version-hint.text", fmt.Append(nil, n), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func foreignBuilder(tb *testing.T, t *table.Table) *icetable.MetadataBuilder {
	tb.Helper()
	ice := t.Iceberg()
	b, err := icetable.MetadataBuilderFromBase(ice.Metadata(), ice.MetadataLocation())
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
