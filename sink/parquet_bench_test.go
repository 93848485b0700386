package sink

import (
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lakesyncd/lakesyncd/source"
)

// ordersBatch is a table as shops have it, about 290 bytes a row: twelve columns,
// half of them optional.
func ordersBatch(n int) ([]fileColumn, []*source.Vector) {
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 1, 1_000_000)
	cols := []fileColumn{
		{Name: "id", Type: source.Type{Kind: source.Long}, Required: true},
		{Name: "user_id", Type: source.Type{Kind: source.Long}},
		{Name: "status", Type: source.Type{Kind: source.String}, Required: true},
		{Name: "email", Type: source.Type{Kind: source.String}},
		{Name: "amount", Type: source.Type{Kind: source.Decimal, Precision: 12, Scale: 2}, Required: true},
		{Name: "flags", Type: source.Type{Kind: source.Int}, Required: true},
		{Name: "created_at", Type: source.Type{Kind: source.TimestampTZ}, Required: true},
		{Name: "updated_at", Type: source.Type{Kind: source.Timestamp}},
		{Name: "note", Type: source.Type{Kind: source.String}},
		{Name: "json", Type: source.Type{Kind: source.String}},
		{Name: "is_active", Type: source.Type{Kind: source.Bool}, Required: true},
		{Name: "score", Type: source.Type{Kind: source.Double}},
	}
	var vs []*source.Vector
	for i := range cols {
		cols[i].ID = i + 1
		v := &source.Vector{}
		v.Reset(cols[i].Type)
		vs = append(vs, v)
	}
	words := []string{"please", "leave", "parcel", "at", "the", "door", "ring", "twice", "customer", "asked", "for", "a", "refund", "call", "before", "noon", "gift", "wrap", "fragile", "second", "floor"}
	status := []string{"new", "paid", "packed", "shipped", "delivered", "returned"}
	null := func(i, percent int) bool {
		if r.IntN(100) < percent {
			vs[i].AppendNull()
			return true
		}
		return false
	}
	for k := range n {
		created := 1_700_000_000_000_000 + int64(k)*1_234_567 + r.Int64N(1_000_000)
		vs[0].AppendLong(int64(k))
		user := int64(zipf.Uint64())
		if !null(1, 2) {
			vs[1].AppendLong(user)
		}
		vs[2].AppendBytes([]byte(status[r.IntN(6)]))
		if !null(3, 1) {
			vs[3].AppendBytes(fmt.Appendf(nil, "user%d@example%d.org", user, r.IntN(100)))
		}
		vs[4].AppendLong(r.Int64N(1_000_000))
		vs[5].AppendInt(int32(r.IntN(16)))
		vs[6].AppendLong(created)
		if !null(7, 5) {
			vs[7].AppendLong(created + r.Int64N(1e12))
		}
		if !null(8, 20) {
			var b []byte
			for len(b) < 60 {
				b = append(append(b, words[r.IntN(len(words))]...), ' ')
			}
			vs[8].AppendBytes(b)
		}
		if !null(9, 5) {
			vs[9].AppendBytes(fmt.Appendf(nil, `{"sku":"A-%06d","qty":%d,"price":%d.%02d,"warehouse":"W%d","tags":["%s","%s"],"trace":"%016x","weight":%.3f}`,
				r.IntN(1e6), r.IntN(10), r.IntN(1000), r.IntN(100), r.IntN(20), words[r.IntN(len(words))], words[r.IntN(len(words))], r.Uint64(), r.Float64()*10))
		}
		vs[10].AppendBool(r.IntN(10) > 0)
		if !null(11, 10) {
			vs[11].AppendDouble(r.Float64() * 100)
		}
	}
	return cols, vs
}

// cpu is the processor time that this process has had, in seconds: on a busy
// machine the only figure that can be compared.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

type countWriter int64

func (c *countWriter) Write(p []byte) (int, error) { *c += countWriter(len(p)); return len(p), nil }

func BenchmarkFileWriter(b *testing.B) {
	const n = 64 << 10
	cols, vs := ordersBatch(n)
	raw := int64(0)
	for _, v := range vs {
		raw += int64(v.Size())
	}
	for _, codec := range []string{"zstd", "snappy", "uncompressed"} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/workers=%d", codec, workers), func(b *testing.B) {
				b.SetBytes(raw)
				b.ReportAllocs()
				opts := writerOptions{Codec: codec, Workers: workers, Encoders: newEncoders(workers)}
				var size countWriter
				start := cpu()
				for b.Loop() {
					size = 0
					f, err := newFileWriter(&size, cols, opts)
					if err != nil {
						b.Fatal(err)
					}
					for range 4 {
						if err := f.Append(vs, nil); err != nil {
							b.Fatal(err)
						}
					}
					if _, err := f.Close(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(4*n*b.N)/(cpu()-start), "rows/cpu-s")
				b.ReportMetric(float64(size)/(4*n), "B/row")
			})
		}
	}
}

// klauspostZstd gives parquet-go the compressor that fileWriter has.
type klauspostZstd struct{ z *zstd.Encoder }

func (k klauspostZstd) String() string                            { return "ZSTD" }
func (k klauspostZstd) CompressionCodec() format.CompressionCodec { return format.Zstd }
func (k klauspostZstd) Encode(dst, src []byte) ([]byte, error) {
	return k.z.EncodeAll(src, dst[:0]), nil
}
func (k klauspostZstd) Decode(dst, src []byte) ([]byte, error) { return nil, io.ErrUnexpectedEOF }

// BenchmarkParquetGo writes the same rows by ColumnWriter.WriteRowValues, the
// best that library offers for a schema not known when compiling.
func BenchmarkParquetGo(b *testing.B) {
	const n = 64 << 10
	cols, vs := ordersBatch(n)
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithAllLitEntropyCompression(true))
	if err != nil {
		b.Fatal(err)
	}
	group := parquet.Group{}
	for i, c := range cols {
		var node parquet.Node
		switch c.Type.Kind {
		case source.Long:
			node = parquet.Leaf(parquet.Int64Type)
		case source.Int:
			node = parquet.Leaf(parquet.Int32Type)
		case source.String:
			node = parquet.String()
		case source.Decimal:
			node = parquet.Decimal(c.Type.Scale, c.Type.Precision, parquet.Int64Type)
		case source.Timestamp:
			node = parquet.TimestampAdjusted(parquet.Microsecond, false)
		case source.TimestampTZ:
			node = parquet.Timestamp(parquet.Microsecond)
		case source.Bool:
			node = parquet.Leaf(parquet.BooleanType)
		case source.Double:
			node = parquet.Leaf(parquet.DoubleType)
		}
		if c.Name == "status" || c.Name == "flags" {
			node = parquet.Encoded(node, &parquet.RLEDictionary)
		} else {
			node = parquet.Encoded(node, &parquet.Plain)
		}
		if !c.Required {
			node = parquet.Optional(node)
		}
		group[fmt.Sprintf("%02d_%s", i, c.Name)] = node
	}
	schema := parquet.NewSchema("table", group)
	for name, codec := range map[string]compress.Codec{"zstd": klauspostZstd{z}, "uncompressed": &parquet.Uncompressed} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var size countWriter
			start := cpu()
			var values []parquet.Value
			for b.Loop() {
				size = 0
				w := parquet.NewGenericWriter[any](&size, schema, parquet.Compression(codec), parquet.DataPageVersion(1), parquet.PageBufferSize(512<<10))
				columns := w.ColumnWriters()
				for range 4 {
					for i := range cols {
						v := vs[i]
						def := 1
						if cols[i].Required {
							def = 0
						}
						for from := 0; from < n; from += 8192 {
							values = values[:0]
							for k := from; k < from+8192; k++ {
								if v.Null(k) {
									values = append(values, parquet.Value{}.Level(0, 0, i))
									continue
								}
								var x parquet.Value
								switch v.Type.Store() {
								case source.StoreBools:
									x = parquet.BooleanValue(v.Bools[k] != 0)
								case source.StoreInts:
									x = parquet.Int32Value(v.Ints[k])
								case source.StoreLongs:
									x = parquet.Int64Value(v.Longs[k])
								case source.StoreDoubles:
									x = parquet.DoubleValue(v.Doubles[k])
								default:
									x = parquet.ByteArrayValue(v.At(k))
								}
								values = append(values, x.Level(0, def, i))
							}
							if _, err := columns[i].WriteRowValues(values); err != nil {
								b.Fatal(err)
							}
						}
					}
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(4*n*b.N)/(cpu()-start), "rows/cpu-s")
			b.ReportMetric(float64(size)/(4*n), "B/row")
		})
	}
}

func BenchmarkSmallFile(b *testing.B) {
	cols, vs := ordersBatch(50)
	opts := writerOptions{Encoders: newEncoders(1)}
	b.ReportAllocs()
	for b.Loop() {
		f, err := newFileWriter(io.Discard, cols, opts)
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Append(vs, nil); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
