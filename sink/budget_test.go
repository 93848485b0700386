package sink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	runtimemetrics "runtime/metrics"
	"testing"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// sinkholeFS forgets what is written to data files.
type sinkholeFS struct{ *memoryFS }

type sinkhole struct{}

func (sinkhole) Write(p []byte) (int, error) { return len(p), nil }
func (sinkhole) Close() error                { return nil }
func (sinkhole) Abort() error                { return nil }

func (sinkholeFS) Create(context.Context, string) (fileio.Writer, error) { return sinkhole{}, nil }

func liveHeap() int64 {
	s := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(s)
	return int64(s[0].Value.Uint64())
}

func TestMemoryStaysWithinTheBudget(t *testing.T) { // B12, B140
	if testing.Short() {
		t.Skip("a million rows")
	}
	const memory = 32 << 20
	for _, c := range []struct {
		name      string
		op        source.Op
		partition []string
	}{
		{"a large transaction of inserts", source.Insert, nil},
		{"a large transaction of updates", source.Update, nil},
		{"hundreds of partitions at once", source.Insert, []string{"b"}},
		{"an initial snapshot", source.Read, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			rel := narrow()
			l := newLake(t, memory, config.Table{Match: "shop.t", PartitionBy: c.partition})
			s, err := Open(t.Context(), Options{Config: l.cfg, Catalog: l.cat, FS: sinkholeFS{l.fs}, Memory: memory})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			l.sink = s
			l.prepare(rel)
			rng := rand.New(rand.NewPCG(1, 2))
			batches := make([]*source.Event, 16)
			for i := range batches {
				batches[i] = narrowBatch(rel, c.op, 500, rng, func(int) int64 { return 0 })
				for j, b := range batches[i].Batch.After[2].Ints {
					batches[i].Batch.After[2].Ints[j] = b % 300
				}
			}
			runtime.GC()
			base, peak := liveHeap(), int64(0)
			for n := 0; n < 1000000; n += 500 {
				e := batches[n/500%len(batches)]
				for i := range e.Batch.After[0].Longs {
					e.Batch.After[0].Longs[i] = int64(n + i)
				}
				if err := s.Write(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				peak = max(peak, liveHeap())
				if len(s.files) > maxOpenFiles {
					t.Fatalf("%d files are open", len(s.files))
				}
			}
			deltas, err := s.Flush(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			files := 0
			for _, l := range deltas[0].Layers {
				files += len(l.Files)
			}
			t.Logf("live heap grew by %d MiB at most; %d layers, %d files", (peak-base)>>20, len(deltas[0].Layers), files)
			if peak-base > memory*3/2+int64(len(s.writers["shop.t"].layers)+files)*4096 {
				t.Errorf("the live heap grew by %d bytes, the budget is %d", peak-base, memory)
			}
			if n := counts(deltas)[table.Data]; n != 1000000 {
				t.Errorf("%d rows staged", n)
			}
		})
	}
}

func TestOneRowLargerThanTheBudget(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v binary")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	big := make([]byte, 16<<20)
	for i := range big {
		big[i] = byte(i * i >> 7)
	}
	for i := range 3 {
		l.write(batch(rel, source.Insert, row(i, string(big))))
	}
	l.write(batch(rel, source.Delete, row(1, "")))
	l.checkpoint()
	if n := len(l.rows("shop.t")); n != 2 {
		t.Errorf("%d rows", n)
	}
}

func TestManyTablesShareTheBudget(t *testing.T) {
	l := newLake(t, 1<<20)
	var rels []*source.Relation
	for i := range 30 {
		rels = append(rels, shopRelation(fmt.Sprint("t", i), "id", "id long", "v string"))
	}
	l.prepare(rels...)
	for n := range 40 {
		for _, rel := range rels {
			var rows [][]any
			for i := range 50 {
				rows = append(rows, row(n*50+i, "some text that takes a little room in memory"))
			}
			l.write(batch(rel, source.Insert, rows...))
			if n > 0 {
				l.write(batch(rel, source.Delete, row((n-1)*50, "")))
			}
		}
	}
	l.checkpoint()
	for _, rel := range rels {
		if n := len(l.rows(rel.FullName())); n != 2000-39 {
			t.Errorf("%s: %d rows", rel.FullName(), n)
		}
	}
}
