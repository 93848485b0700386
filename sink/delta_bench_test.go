package sink

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// narrow is a relation of 12 columns and about 140 bytes a row.
func narrow() *source.Relation {
	return shopRelation("t", "id", "id long", "a int", "b int", "c long", "s1 string", "d1 decimal", "t1 timestamp", "d2 date", "k int", "f double", "s2 string", "note string")
}

// narrowBatch is n rows with the ids that id gives.
func narrowBatch(rel *source.Relation, op source.Op, n int, rng *rand.Rand, id func(i int) int64) *source.Event {
	b := &source.Batch{Relation: rel, Op: op, Rows: n, Position: "t1", Time: time.Unix(1, 0)}
	fill := func() []source.Vector {
		v := make([]source.Vector, len(rel.Columns))
		for i, c := range rel.Columns {
			v[i].Reset(c.Type)
			for j := range n {
				x := rng.Uint64()
				switch {
				case i == 0:
					v[i].AppendLong(id(j))
				case c.Name == "s2":
					v[i].AppendBytes([]byte([]string{"red", "green", "blue", "white", "black"}[x%5]))
				case c.Type.Kind == source.String:
					v[i].AppendBytes(fmt.Appendf(nil, "%x-%x", x, x>>17))
				case c.Type.Store() == source.StoreInts:
					v[i].AppendInt(int32(x % 100000))
				case c.Type.Store() == source.StoreDoubles:
					v[i].AppendDouble(float64(x%1000000) / 1e6)
				default:
					v[i].AppendLong(int64(x >> 24))
				}
			}
		}
		return v
	}
	b.After = fill()
	b.Before = b.After
	if op == source.Insert || op == source.Read {
		b.Before = make([]source.Vector, len(rel.Columns))
	}
	return &source.Event{Kind: source.Rows, Batch: b}
}

// BenchmarkWrite takes rows in batches of 50, as a MySQL log has them, through to
// staged files. ns/op is per row.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name      string
		op        source.Op
		partition []string
		codec     string
	}{
		{"read", source.Read, nil, "zstd"},
		{"insert", source.Insert, nil, "zstd"},
		{"update", source.Update, nil, "zstd"},
		{"read uncompressed", source.Read, nil, "uncompressed"},
		{"insert uncompressed", source.Insert, nil, "uncompressed"},
		{"update uncompressed", source.Update, nil, "uncompressed"},
		{"insert partitioned uncompressed", source.Insert, []string{"bucket(16, id)"}, "uncompressed"},
	} {
		b.Run(c.name, func(b *testing.B) {
			rel := narrow()
			l := newLake(b, 128<<20, config.Table{Match: "shop.t", PartitionBy: c.partition, Properties: map[string]string{"write.parquet.compression-codec": c.codec}})
			l.prepare(rel)
			rng := rand.New(rand.NewPCG(1, 2))
			next := int64(0)
			// A few batches with ids put in anew: making them is not measured.
			batches := make([]*source.Event, 64)
			for i := range batches {
				batches[i] = narrowBatch(rel, c.op, 50, rng, func(int) int64 { return 0 })
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += 50 {
				e := batches[n/50%len(batches)]
				ids := e.Batch.After[0].Longs
				for i := range ids {
					if c.op == source.Update {
						ids[i] = rng.Int64N(200000)
					} else {
						ids[i] = next
						next++
					}
				}
				if err := l.sink.Write(context.Background(), e); err != nil {
					b.Fatal(err)
				}
				if n%1000000 == 999950 {
					if _, err := l.sink.Flush(context.Background()); err != nil {
						b.Fatal(err)
					}
					clear(l.fs.files)
				}
			}
			if _, err := l.sink.Flush(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			runtime.KeepAlive(l)
		})
	}
}
