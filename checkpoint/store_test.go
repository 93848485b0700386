package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

var rewriteGolden = flag.Bool("rewrite-golden", false, "write testdata/record.golden.json anew; the format is a promise, so say why in the commit")

// fullRecord has something in every field.
func fullRecord() *Record {
	at := time.Date(2026, 3, 4, 5, 6, 7, 891000000, time.UTC)
	return &Record{
		Format: 1, Pipeline: "shop", ID: 42, Epoch: 3,
		Position: "gtid:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77", SourceTime: at,
		Source: json.RawMessage(`{"server":"a<b>&c","n":9007199254740993}`),
		Deltas: []table.Delta{{
			Table: "sales.orders", UUID: "0b7d1c62-2f5a-4c3b-9d57-5a3d3b3d8c11", Newest: at, Complete: true,
			Set: map[string]string{"k": "v"},
			Step: &table.SchemaStep{AssertLastColumnID: 2, LastColumnID: 3, Statement: "ALTER TABLE orders ADD note text",
				Schema: []byte(`{"type":"struct"}`)},
			Layers: []table.Layer{{
				Truncate: true, SchemaID: 1, SpecID: 2,
				Files: []table.File{
					{Content: table.Data, Path: "file:///lake/sales/orders/data/a b%20.parquet", Bytes: 1234, Rows: 5,
						Partition: [][]byte{{0, 1}, nil, {}}, SplitOffsets: []int64{4, 900}, Sorted: true,
						Columns: map[int]table.ColumnStat{1: {Size: 7, Values: 5, Lower: []byte{1}, Upper: []byte{9}},
							10: {Size: 8, Values: 5, Nulls: 2, NaNs: 1, CountsNaN: true}}},
					{Content: table.EqualityDeletes, Path: "file:///lake/sales/orders/data/b.parquet", Bytes: 1, Rows: 1, EqualityIDs: []int{1, 2}},
					{Content: table.PositionDeletes, Path: "file:///lake/sales/orders/data/c.parquet", Bytes: 1, Rows: 1, Refers: "file:///lake/sales/orders/data/a b%20.parquet"},
				},
			}},
		}},
		Tables: map[string]sink.TableState{
			"sales.orders": {Relation: "shop.orders", UUID: "0b7d1c62-2f5a-4c3b-9d57-5a3d3b3d8c11", Complete: true, Checkpoint: 42},
			"sales.empty":  {Relation: "shop.empty", UUID: "1b7d1c62-2f5a-4c3b-9d57-5a3d3b3d8c11"},
		},
		SavedAt: at.Add(time.Second), Writer: "db1/4711",
	}
}

func record(id, epoch int64) *Record {
	return &Record{Format: 1, Pipeline: "shop", ID: id, Epoch: epoch, Writer: fmt.Sprintf("host/%d", epoch)}
}

func openTestStore(t testing.TB) (s *Store, dir string, fs fileio.FS) {
	t.Helper()
	dir = t.TempDir()
	fs, err := fileio.Open(t.Context(), "file://"+dir, config.Storage{}, fileio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	return OpenStore(fs, "file://"+dir+"/", "shop", now), dir, fs
}

func mustPut(t testing.TB, s *Store, records ...*Record) {
	t.Helper()
	for _, r := range records {
		if err := s.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordFormatIsAsPromised(t *testing.T) {
	got, err := encodeRecord(fullRecord())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join("testdata", "record.golden.json")
	if *rewriteGolden {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the JSON form changed (-want +got):\n%s", diff)
	}
	back, err := decodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullRecord(), back); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestStoreGivesBackWhatWasPut(t *testing.T) {
	s, _, _ := openTestStore(t)
	if _, err := s.Last(t.Context()); !errors.Is(err, ErrNoRecord) {
		t.Fatalf("empty store: got %v, want ErrNoRecord", err)
	}
	mustPut(t, s, record(41, 3), fullRecord())
	got, err := s.Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullRecord(), got); diff != "" {
		t.Error(diff)
	}
	if got, err := s.Get(t.Context(), 41); err != nil || got.ID != 41 {
		t.Errorf("get: %v, %v", got, err)
	}
	if _, err := s.Get(t.Context(), 40); !errors.Is(err, ErrNoRecord) {
		t.Errorf("get of no record: %v", err)
	}
}

func TestPutOfTheSameRecordAgainSucceeds(t *testing.T) {
	s, _, _ := openTestStore(t)
	mustPut(t, s, fullRecord(), fullRecord())
}

func TestPutIsFencedByAnotherRecordOfThatNumber(t *testing.T) {
	s, _, _ := openTestStore(t)
	mustPut(t, s, record(1, 2))
	err := s.Put(t.Context(), record(1, 1))
	if !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "host/2") || !strings.Contains(err.Error(), "epoch 2") {
		t.Errorf("got %v, want ErrFenced that names the other", err)
	}
}

// An instance that slept for many checkpoints finds its number free again, for
// the one that took over has pruned it.
func TestPutIsFencedWhenItsNumberWasPruned(t *testing.T) {
	s, _, _ := openTestStore(t)
	for id := int64(1); id <= 30; id++ {
		mustPut(t, s, record(id, 2))
	}
	if err := s.Prune(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), record(5, 1)); !errors.Is(err, ErrFenced) {
		t.Errorf("got %v, want ErrFenced", err)
	}
	// What it created by mistake does no harm and goes with the next pruning.
	if r, err := s.Last(t.Context()); err != nil || r.ID != 30 {
		t.Errorf("last: %v, %v", r, err)
	}
	if err := s.Prune(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if ids, err := s.IDs(t.Context()); err != nil || len(ids) != 10 || ids[0] != 21 {
		t.Errorf("left: %v, %v", ids, err)
	}
}

func TestPruneKeepsTheNewestTen(t *testing.T) {
	s, _, _ := openTestStore(t)
	if err := s.Prune(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= 15; id++ {
		mustPut(t, s, record(id, 1))
		if err := s.Prune(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
	}
	ids, err := s.IDs(t.Context())
	if diff := cmp.Diff([]int64{6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, ids); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestLastNamesWhatIsWrong(t *testing.T) {
	name := func(id int) string { return fmt.Sprintf("%020d.json", id) }
	for what, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		want   string
	}{
		"gap":                {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, name(4))) }, name(4) + " is missing"},
		"cut short":          {func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, name(5)), 30) }, name(5) + ": it is cut short"},
		"empty":              {func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, name(5)), 0) }, name(5) + ": it is cut short"},
		"another pipeline's": {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), `"shop"`, `"other"`) }, `belongs to pipeline "other"`},
		"another number":     {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), `"id":5`, `"id":6`) }, "it says that it is number 6"},
		"newer format":       {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), `"format":1`, `"format":2`) }, "format 2 is not known"},
		"unknown key":        {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), `{`, `{"extra":1,`) }, "extra"},
		"no epoch":           {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), `"epoch":1`, `"epoch":0`) }, "epoch 0"},
		"two records":        {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), "\n", "{}") }, "something follows"},
		"broken text":        {func(t *testing.T, dir string) { edit(t, filepath.Join(dir, name(5)), "shop", "sh\xffp") }, "UTF-8"},
		"number zero":        {func(t *testing.T, dir string) { rename(t, filepath.Join(dir, name(5)), filepath.Join(dir, name(0))) }, "not a number"},
		"other files only": {func(t *testing.T, dir string) {
			for i := 1; i < 5; i++ {
				remove(t, filepath.Join(dir, name(i)))
			}
			rename(t, filepath.Join(dir, name(5)), filepath.Join(dir, name(5)+".bak"))
		}, ".json.bak"},
	} {
		t.Run(what, func(t *testing.T) {
			s, dir, _ := openTestStore(t)
			for id := int64(1); id <= 5; id++ {
				mustPut(t, s, record(id, 1))
			}
			c.damage(t, dir)
			r, err := s.Last(t.Context())
			if err == nil || errors.Is(err, ErrNoRecord) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want an error with %q", r, err, c.want)
			}
		})
	}
}

func TestLastIgnoresWhatMayLieBesideTheRecords(t *testing.T) {
	s, dir, _ := openTestStore(t)
	if err := s.SaveStatus(t.Context(), json.RawMessage(`{}`)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"lock", "lease.json", "spill/xa-1.raw"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, n)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Last(t.Context()); !errors.Is(err, ErrNoRecord) {
		t.Errorf("got %v, want ErrNoRecord", err)
	}
}

func TestPutRefusesWhatCouldNotBeReadBack(t *testing.T) {
	s, _, _ := openTestStore(t)
	for what, r := range map[string]*Record{
		"other pipeline": {Format: 1, Pipeline: "other", ID: 1, Epoch: 1},
		"no format":      {Pipeline: "shop", ID: 1, Epoch: 1},
		"no number":      {Format: 1, Pipeline: "shop", Epoch: 1},
		"no epoch":       {Format: 1, Pipeline: "shop", ID: 1},
		"position":       {Format: 1, Pipeline: "shop", ID: 1, Epoch: 1, Position: "file:\xff:4"},
		"source":         {Format: 1, Pipeline: "shop", ID: 1, Epoch: 1, Source: json.RawMessage(`{`)},
		"table twice":    {Format: 1, Pipeline: "shop", ID: 1, Epoch: 1, Deltas: []table.Delta{{Table: "a.b"}, {Table: "a.b"}}},
	} {
		if err := s.Put(t.Context(), r); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if ids, err := s.IDs(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("left: %v, %v", ids, err)
	}
}

// lossy answers one CreateExclusive with ErrUnknown, after or instead of doing it.
type lossy struct {
	fileio.FS
	arrives bool
}

func (l lossy) CreateExclusive(ctx context.Context, path string, data []byte) error {
	if l.arrives {
		if err := l.FS.CreateExclusive(ctx, path, data); err != nil {
			return err
		}
	}
	return fmt.Errorf("create %s: %w", path, fileio.ErrUnknown)
}

// B49: the first try was stored, the answer lost.
func TestPutReadsWhenTheOutcomeIsUnknown(t *testing.T) {
	s, _, fs := openTestStore(t)
	s.fs = lossy{fs, true}
	mustPut(t, s, record(1, 1))
	if err := s.Put(t.Context(), record(1, 2)); !errors.Is(err, ErrFenced) {
		t.Errorf("another record: got %v, want ErrFenced", err)
	}
	s.fs = lossy{fs, false}
	if err := s.Put(t.Context(), record(2, 1)); !errors.Is(err, fileio.ErrUnknown) {
		t.Errorf("nothing arrived: got %v, want ErrUnknown", err)
	}
	s.fs = fs
	mustPut(t, s, record(2, 1))
}

func TestStatusOutlivesTheDaemon(t *testing.T) {
	s, _, _ := openTestStore(t)
	if _, _, err := s.LoadStatus(t.Context()); !errors.Is(err, fileio.ErrNotExist) {
		t.Errorf("no status: got %v, want ErrNotExist", err)
	}
	for _, want := range []string{`{"state":"streaming"}`, `{"state":"stopped","reason":"<why>"}`} {
		if err := s.SaveStatus(t.Context(), json.RawMessage(want)); err != nil {
			t.Fatal(err)
		}
		got, at, err := s.LoadStatus(t.Context())
		if err != nil || at.Year() != 2026 {
			t.Fatalf("at %v, %v", at, err)
		}
		var a, b any
		_ = json.Unmarshal([]byte(want), &a)
		_ = json.Unmarshal(got, &b)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Error(diff)
		}
	}
	if err := s.SaveStatus(t.Context(), json.RawMessage(`{`)); err == nil {
		t.Error("broken JSON was saved")
	}
}

func FuzzDecodeRecord(f *testing.F) {
	full, err := encodeRecord(fullRecord())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(`{"format":1,"pipeline":"p","id":1,"epoch":1,"position":"","source_time":"0001-01-01T00:00:00Z","saved_at":"0001-01-01T00:00:00Z","writer":""}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			return
		}
		once, err := encodeRecord(r)
		if err != nil {
			t.Fatalf("read, but not written: %v", err)
		}
		again, err := decodeRecord(once)
		if err != nil {
			t.Fatalf("written, but not read: %v\n%s", err, once)
		}
		twice, err := encodeRecord(again)
		if err != nil || string(once) != string(twice) {
			t.Fatalf("%v\n%s\n%s", err, once, twice)
		}
	})
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, name string, size int64) {
	t.Helper()
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, name, from, to string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(data), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}
