package sink

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// foreignReader is a program that is not ours and reads tables.
type foreignReader struct {
	in  io.Writer
	out *bufio.Scanner
}

// openReader starts test/readers' script; it ends when its stdin is closed, with
// the test.
func openReader(t *testing.T, name string) *foreignReader {
	t.Helper()
	if testing.Short() {
		t.Skip("needs readers that are set up on first use")
	}
	cmd := exec.Command("../test/readers/read.sh", name, "serve")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Logf("reader %s: %v", name, err)
		}
	})
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	return &foreignReader{in: in, out: s}
}

func (r *foreignReader) ask(t *testing.T, args ...string) (lines []string, status string) {
	t.Helper()
	q, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(r.in, "%s\n", q); err != nil {
		t.Fatal(err)
	}
	for r.out.Scan() {
		if strings.HasPrefix(r.out.Text(), ".") {
			return lines, r.out.Text()
		}
		lines = append(lines, r.out.Text())
	}
	t.Fatalf("reader ended: %v", r.out.Err())
	return nil, ""
}

// testLake is a warehouse on local disk.
type testLake struct {
	fs  fileio.FS
	cat *table.Catalog
}

func newTestLake(t *testing.T) *testLake {
	t.Helper()
	warehouse := "file://" + t.TempDir()
	fs, err := fileio.Open(context.Background(), warehouse, config.Storage{}, fileio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cat, err := table.OpenCatalog(context.Background(), table.CatalogOptions{Warehouse: warehouse, FS: fs, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &testLake{fs: fs, cat: cat}
}

// stage writes a file through the store.
func (l *testLake) stage(t *testing.T, tb *table.Table, content table.Content, cols []fileColumn, opts writerOptions, vs []*source.Vector, rows []uint32) table.File {
	t.Helper()
	path := fmt.Sprintf("%s/data/%s-%d.parquet", tb.Location(), content, time.Now().UnixNano())
	w, err := l.fs.Create(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFileWriter(w, cols, opts)
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, f, vs, rows)
	s, err := f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return table.File{Content: content, Path: path, Bytes: s.Bytes, Rows: s.Rows, Columns: s.Columns, SplitOffsets: s.SplitOffsets}
}

func (l *testLake) commit(t *testing.T, tb *table.Table, checkpoint int64, files ...table.File) {
	t.Helper()
	d := table.Delta{Table: tb.Name(), UUID: tb.UUID(), Complete: true, Layers: []table.Layer{{SchemaID: tb.Schema().ID, SpecID: func() int { s := tb.Spec(); return s.ID() }(), Files: files}}}
	m := table.Mark{Pipeline: "shop", Epoch: 1, Checkpoint: checkpoint, Position: fmt.Sprint("file:binlog.000001:", checkpoint), SourceTime: time.Now()}
	if _, err := tb.Commit(context.Background(), d, m); err != nil {
		t.Fatal(err)
	}
}

func (l *testLake) path(tb *table.Table) string { return strings.TrimPrefix(tb.Location(), "file://") }

// canonical is a value as the readers' canonical rows have it.
func canonical(v *source.Vector, i int) string {
	if v.Null(i) {
		return "null"
	}
	float := func(x float64, bits int) string {
		switch {
		case x != x:
			return `"NaN"`
		case math.IsInf(x, 1):
			return `"Infinity"`
		case math.IsInf(x, -1):
			return `"-Infinity"`
		case x != 0 && (math.Abs(x) < 1e-4 || math.Abs(x) >= 1e16):
			return strconv.FormatFloat(x, 'e', -1, bits)
		}
		s := strconv.FormatFloat(x, 'f', -1, bits)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	switch v.Type.Kind {
	case source.Bool:
		return fmt.Sprint(v.Bools[i] != 0)
	case source.Int:
		return fmt.Sprint(v.Ints[i])
	case source.Long, source.Time:
		return fmt.Sprint(v.Longs[i])
	case source.Float:
		return float(float64(v.Floats[i]), 32)
	case source.Double:
		return float(v.Doubles[i], 64)
	case source.Decimal:
		n, _ := numberAt(v, i)
		return `"` + string(n.append(nil)) + `"`
	case source.Date:
		return time.Unix(int64(v.Ints[i])*86400, 0).UTC().Format(`"2006-01-02"`)
	case source.Timestamp:
		return time.UnixMicro(v.Longs[i]).UTC().Format(`"2006-01-02T15:04:05.000000"`)
	case source.TimestampTZ:
		return time.UnixMicro(v.Longs[i]).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)
	case source.UUID:
		return `"` + string(appendUUID(nil, v.At(i))) + `"`
	case source.Binary:
		return `"` + hex.EncodeToString(v.At(i)) + `"`
	case source.FloatList:
		var parts []string
		for b := v.At(i); len(b) > 0; b = b[4:] {
			parts = append(parts, float(float64(math.Float32frombits(uint32(b[0])|uint32(b[1])<<8|uint32(b[2])<<16|uint32(b[3])<<24)), 32))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case source.List:
		var parts []string
		e := elementsOf(v, i)
		for k := range e.Len() {
			parts = append(parts, canonical(e, k))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(string(v.At(i))); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func canonicalRows(cols []fileColumn, vs []*source.Vector, keep func(row int) bool) []string {
	var out []string
	for i := range vs[0].Len() {
		if !keep(i) {
			continue
		}
		var b strings.Builder
		for c := range cols {
			sep := ","
			if c == 0 {
				sep = "{"
			}
			fmt.Fprintf(&b, "%s%q:%s", sep, cols[c].Name, canonical(vs[c], i))
		}
		out = append(out, b.String()+"}")
	}
	slices.Sort(out)
	return out
}

// lakeVectors are random values that every reader can print: years 1 to 9999.
func lakeVectors(t *testing.T, cols []fileColumn, n int) []*source.Vector {
	r := testSeed(t)
	vs := randomVectors(r, cols, n, nullPatterns["random"], false)
	for c, v := range vs {
		if v.Type.Kind == source.List {
			vs[c] = lakeLists(r, v)
			continue
		}
		for i := range v.Len() {
			if v.Null(i) {
				continue
			}
			switch v.Type.Kind {
			case source.Date:
				v.Ints[i] = int32(r.IntN(3652059) - 719162)
			case source.Timestamp, source.TimestampTZ:
				v.Longs[i] = (r.Int64N(3652059)-719162)*dayMicros + r.Int64N(dayMicros)
			case source.Time:
				if cols[c].TimeOfDay {
					v.Longs[i] = r.Int64N(dayMicros)
				}
			}
		}
	}
	for i := range n {
		vs[0].Longs[i] = int64(i)
	}
	return vs
}

// lakeLists are the lists of v with dates and times that every reader can print.
func lakeLists(r *rand.Rand, v *source.Vector) *source.Vector {
	out := &source.Vector{Type: v.Type}
	for i := range v.Len() {
		if v.Null(i) {
			out.AppendNull()
			continue
		}
		e := elementsOf(v, i)
		for k := range e.Len() {
			switch e.Type.Kind {
			case source.Date:
				e.Ints[k] = int32(r.IntN(3652059) - 719162)
			case source.TimestampTZ:
				e.Longs[k] = (r.Int64N(3652059)-719162)*dayMicros + r.Int64N(dayMicros)
			}
		}
		out.AppendList(e)
	}
	return out
}

func TestOtherReadersReadEveryTypeAndApplyDeletes(t *testing.T) {
	readers := map[string]*foreignReader{"java": openReader(t, "java"), "duckdb": openReader(t, "duckdb")}
	l := newTestLake(t)
	columns := []source.Column{keyColumn("id", typ(source.Long))}
	for i, typ := range allTypes {
		if typ.Kind != source.UUID && typ.Elem != source.UUID {
			columns = append(columns, column1(fmt.Sprintf("c%d", i), typ))
		}
	}
	// The auditor cannot audit uuid: Iceberg's Java library takes it for a
	// fixed[16] when it makes a schema of a Parquet file's. Rows are read well.
	columns = append(columns, column1("uuid", typ(source.UUID)))
	for _, codec := range []string{"zstd", "snappy", "gzip", "uncompressed"} {
		columns := columns
		if codec != "zstd" {
			columns = columns[:len(columns)-1]
		}
		s, err := icebergSchema(relation([]int{0}, columns...), overrides{})
		if err != nil {
			t.Fatal(err)
		}
		tb, err := l.cat.Create(context.Background(), "shop.types_"+codec, table.Definition{Schema: s})
		if err != nil {
			t.Fatal(err)
		}
		cols, err := fileColumns(tb.Schema(), nil)
		if err != nil {
			t.Fatal(err)
		}
		const n = 3000
		vs := lakeVectors(t, cols, n)
		opts := writerOptions{Codec: codec, PageRows: 700, RowGroupBytes: 400 << 10}
		first := l.stage(t, tb, table.Data, cols, opts, vs, nil)
		l.commit(t, tb, 1, first)
		if len(first.SplitOffsets) < 2 {
			t.Errorf("%s: %d row groups: the test should have several", codec, len(first.SplitOffsets))
		}

		// The second checkpoint deletes every third key, writes every sixth
		// again, and kills one of those in its own file.
		var deleted, again []uint32
		for i := uint32(0); i < n; i += 3 {
			deleted = append(deleted, i)
			if i%6 == 0 {
				again = append(again, i)
			}
		}
		data := l.stage(t, tb, table.Data, cols, opts, vs, again)
		keys := equalityDeleteColumns(cols, []int{0})
		eq := l.stage(t, tb, table.EqualityDeletes, keys, opts, vs[:1], deleted)
		eq.EqualityIDs = []int{keys[0].ID}
		pos := l.stage(t, tb, table.PositionDeletes, positionDeleteColumns(), opts,
			[]*source.Vector{vectorOf(typ(source.String), data.Path), vectorOf(typ(source.Long), 7)}, nil)
		pos.Refers = data.Path
		l.commit(t, tb, 2, data, eq, pos)

		want := canonicalRows(cols, vs, func(i int) bool { return i%3 != 0 || i%6 == 0 && i != int(again[7]) })
		for name, r := range readers {
			got, status := r.ask(t, "rows", l.path(tb))
			if status != ".0" {
				t.Errorf("%s: %s: %s", codec, name, status)
				continue
			}
			slices.Sort(got)
			if !slices.Equal(want, got) {
				d := cmp.Diff(want, got)
				t.Errorf("%s: %s: %.3000s", codec, name, d)
			}
		}
		if codec == "zstd" {
			continue
		}
		bad, status := readers["java"].ask(t, "check", l.path(tb), "--all")
		bad = slices.DeleteFunc(bad, func(s string) bool { return strings.HasPrefix(s, "note ") })
		if status != ".0" {
			t.Errorf("%s: audit: %s\n%s", codec, status, strings.Join(bad, "\n"))
		}
	}
}

// The auditor of the readers computes the partition of every row with Iceberg's own transforms.
func TestOtherReadersFindRowsInTheirPartitions(t *testing.T) {
	java := openReader(t, "java")
	l := newTestLake(t)
	for k, tc := range []struct {
		typ        source.Type
		transforms []string
	}{
		{typ(source.Bool), []string{"identity"}},
		{typ(source.Int), []string{"identity", "bucket[4]", "truncate[1000000]"}},
		{typ(source.Long), []string{"identity", "bucket[16]", "truncate[1000000]"}},
		{decimal(9, 2), []string{"identity", "bucket[5]", "truncate[50]"}},
		{decimal(38, 6), []string{"identity", "bucket[5]", "truncate[50]"}},
		{typ(source.String), []string{"identity", "bucket[5]", "truncate[3]"}},
		{typ(source.Binary), []string{"identity", "bucket[5]", "truncate[3]"}},
		{typ(source.UUID), []string{"identity", "bucket[5]"}},
		{typ(source.Date), []string{"identity", "bucket[5]", "year", "month", "day"}},
		{typ(source.Time), []string{"identity", "bucket[5]"}},
		{typ(source.Timestamp), []string{"identity", "bucket[5]", "year", "month", "day", "hour"}},
		{typ(source.TimestampTZ), []string{"identity", "bucket[5]", "year", "month", "day", "hour"}},
	} {
		for j, transform := range tc.transforms {
			s, err := icebergSchema(relation([]int{0}, keyColumn("id", typ(source.Long)), column1("c", tc.typ)), overrides{})
			if err != nil {
				t.Fatal(err)
			}
			tr, err := iceberg.ParseTransform(transform)
			if err != nil {
				t.Fatal(err)
			}
			spec := iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{2}, FieldID: 1000, Name: "p", Transform: tr})
			tb, err := l.cat.Create(context.Background(), fmt.Sprintf("shop.p%d_%d", k, j), table.Definition{Schema: s, Spec: spec})
			if err != nil {
				t.Fatal(err)
			}
			cols, err := fileColumns(tb.Schema(), nil)
			if err != nil {
				t.Fatal(err)
			}
			vs := lakeVectors(t, cols, 40)
			p, err := newPartitioner(tb.Spec(), cols)
			if err != nil {
				t.Fatal(err)
			}
			rows := map[string][]uint32{}
			var tuples []string
			for i := range vs[0].Len() {
				tuple := string(p.Of(vs, i, nil))
				if rows[tuple] == nil {
					tuples = append(tuples, tuple)
				}
				rows[tuple] = append(rows[tuple], uint32(i))
			}
			var files []table.File
			for _, tuple := range tuples {
				f := l.stage(t, tb, table.Data, cols, writerOptions{}, vs, rows[tuple])
				f.Partition = p.Values([]byte(tuple))
				files = append(files, f)
			}
			l.commit(t, tb, 1, files...)
			bad, status := java.ask(t, "check", l.path(tb))
			if status != ".0" && tc.typ.Kind != source.UUID {
				t.Errorf("%s of %s: %s\n%s", transform, tc.typ, status, strings.Join(bad, "\n"))
			}
			got, status := java.ask(t, "rows", l.path(tb))
			slices.Sort(got)
			if want := canonicalRows(cols, vs, func(int) bool { return true }); status != ".0" || !slices.Equal(want, got) {
				t.Errorf("%s of %s: %s %.2000s", transform, tc.typ, status, cmp.Diff(want, got))
			}
		}
	}
}
