package sink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// partitioner computes the partition of a row: every transform of the Iceberg
// specification, bit for bit, on typed columns.
type partitioner struct {
	fields  []partitionField
	sources []int
}

// partitionField is one field of a spec, bound to a column.
type partitionField struct {
	name   string
	column int // index into the columns of the file; -1: always null
	// value appends the single-value serialization of the field for a row that
	// is not null.
	value func(dst []byte, v *source.Vector, row int) []byte
	// text appends a value as it is written in paths.
	text func(dst, value []byte) []byte
}

// newPartitioner binds spec to the columns of a file; Of then expects the
// vectors in their order.
func newPartitioner(spec iceberg.PartitionSpec, cols []fileColumn) (*partitioner, error) {
	p := &partitioner{}
	var errs []error
	for _, f := range spec.Fields() {
		pf, err := bindField(f, cols)
		if err != nil {
			errs = append(errs, fmt.Errorf("partition field %s: %w", f.Name, err))
			continue
		}
		p.fields = append(p.fields, pf)
		if pf.column >= 0 && !slices.Contains(p.sources, pf.column) {
			p.sources = append(p.sources, pf.column)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

func bindField(f iceberg.PartitionField, cols []fileColumn) (partitionField, error) {
	pf := partitionField{name: f.Name, column: -1}
	if _, ok := f.Transform.(iceberg.VoidTransform); ok {
		return pf, nil // its source may have been dropped
	}
	if len(f.SourceIDs) != 1 {
		return pf, fmt.Errorf("transforms of %d columns are not supported", len(f.SourceIDs))
	}
	pf.column = slices.IndexFunc(cols, func(c fileColumn) bool { return c.ID == f.SourceID() })
	if pf.column < 0 {
		return pf, fmt.Errorf("the schema has no column with id %d", f.SourceID())
	}
	c := cols[pf.column]
	no := fmt.Errorf("%s does not apply to column %s of type %s", f.Transform, c.Name, c.Type)
	pf.text = textInt
	switch t := f.Transform.(type) {
	case iceberg.IdentityTransform:
		if c.Type.IsList() {
			return pf, no
		}
		pf.value, pf.text = appendSingle, textOf(c)
	case iceberg.BucketTransform:
		if t.NumBuckets < 1 || t.NumBuckets > math.MaxInt32 {
			return pf, fmt.Errorf("%s is out of range", t)
		}
		hash := hashOf(c.Type)
		if hash == nil {
			return pf, no
		}
		n := uint32(t.NumBuckets)
		pf.value = func(dst []byte, v *source.Vector, row int) []byte {
			return binary.LittleEndian.AppendUint32(dst, hash(v, row)&math.MaxInt32%n)
		}
	case iceberg.TruncateTransform:
		if t.Width < 1 || t.Width > math.MaxInt32 {
			return pf, fmt.Errorf("%s is out of range", t)
		}
		if c.TimeOfDay {
			return pf, no
		}
		if pf.value = truncateOf(c.Type, t.Width); pf.value == nil {
			return pf, no
		}
		pf.text = textOf(c)
	case iceberg.YearTransform:
		pf.value, pf.text = dateTransform(c.Type, yearOfDays, yearOfMicros), textYear
	case iceberg.MonthTransform:
		pf.value, pf.text = dateTransform(c.Type, monthOfDays, monthOfMicros), textMonth
	case iceberg.DayTransform:
		pf.value, pf.text = dateTransform(c.Type, func(d int64) int64 { return d }, dayOfMicros), textDay
	case iceberg.HourTransform:
		pf.value, pf.text = dateTransform(c.Type, nil, hourOfMicros), textHour
	default:
		return pf, fmt.Errorf("transform %s is not known", f.Transform)
	}
	if pf.value == nil {
		return pf, no
	}
	return pf, nil
}

// Unpartitioned reports whether there is only one partition.
func (p *partitioner) Unpartitioned() bool { return len(p.sources) == 0 }

// Sources are the indexes of the columns that the partition is computed from.
func (p *partitioner) Sources() []int { return p.sources }

// Of appends the partition tuple of a row to buf, as bytes that are equal only
// for equal tuples. Two rows are in one partition if their bytes are equal.
func (p *partitioner) Of(cols []*source.Vector, row int, buf []byte) []byte {
	for i := range p.fields {
		f := &p.fields[i]
		if f.column < 0 || cols[f.column].Valid[row] == 0 {
			buf = append(buf, 0)
			continue
		}
		// The length goes before the value when it is known: nearly always in
		// the one byte kept for it.
		buf = append(buf, 1, 0)
		at := len(buf)
		buf = f.value(buf, cols[f.column], row)
		n := len(buf) - at
		if n < 0x80 {
			buf[at-1] = byte(n)
			continue
		}
		var head [binary.MaxVarintLen64]byte
		h := binary.PutUvarint(head[:], uint64(n))
		buf = slices.Replace(buf, at-1, at, head[:h]...)
	}
	return buf
}

// Values takes a tuple apart: the single-value serialization of each field of
// the spec, nil for null, as table.File.Partition wants it. They are part of
// tuple.
func (p *partitioner) Values(tuple []byte) [][]byte {
	if len(p.fields) == 0 {
		return nil
	}
	values := make([][]byte, len(p.fields))
	for i := range values {
		if tuple[0] == 0 {
			tuple = tuple[1:]
			continue
		}
		n, w := binary.Uvarint(tuple[1:])
		tuple = tuple[1+w:]
		values[i] = tuple[:n:n]
		tuple = tuple[n:]
	}
	return values
}

// appendSingle appends a value as Iceberg serializes single values.
func appendSingle(dst []byte, v *source.Vector, row int) []byte {
	switch v.Type.Store() {
	case source.StoreBools:
		return append(dst, v.Bools[row])
	case source.StoreInts:
		return binary.LittleEndian.AppendUint32(dst, uint32(v.Ints[row]))
	case source.StoreLongs:
		if v.Type.Kind == source.Decimal {
			return appendDecimal(dst, wide(v.Longs[row]))
		}
		return binary.LittleEndian.AppendUint64(dst, uint64(v.Longs[row]))
	case source.StoreWides:
		return appendDecimal(dst, v.Wides[row])
	case source.StoreFloats:
		f := v.Floats[row]
		if f != f {
			f = float32(math.NaN())
		}
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(f))
	case source.StoreDoubles:
		f := v.Doubles[row]
		if f != f {
			f = math.NaN()
		}
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(f))
	}
	return append(dst, v.At(row)...)
}

// hashOf returns the 32-bit hash of the bucket transform for a type, nil if it
// has none. Integers, dates and times hash as 64-bit integers, decimals as their
// shortest big-endian two's complement.
func hashOf(t source.Type) func(v *source.Vector, row int) uint32 {
	switch t.Kind {
	case source.Int, source.Date:
		return func(v *source.Vector, row int) uint32 { return hashLong(int64(v.Ints[row])) }
	case source.Long, source.Time, source.Timestamp, source.TimestampTZ:
		return func(v *source.Vector, row int) uint32 { return hashLong(v.Longs[row]) }
	case source.Decimal, source.String, source.Binary, source.UUID:
		return func(v *source.Vector, row int) uint32 {
			var b [16]byte
			switch v.Type.Store() {
			case source.StoreLongs:
				return murmur3(appendDecimal(b[:0], wide(v.Longs[row])))
			case source.StoreWides:
				return murmur3(appendDecimal(b[:0], v.Wides[row]))
			}
			return murmur3(v.At(row))
		}
	}
	return nil
}

func hashLong(x int64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(x))
	return murmur3(b[:])
}

// murmur3 is MurmurHash3 x86 32-bit with seed 0.
func murmur3(b []byte) uint32 {
	const c1, c2 = 0xcc9e2d51, 0x1b873593
	var h uint32
	n := len(b)
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * c1
		k = k<<15 | k>>17
		h ^= k * c2
		h = h<<13 | h>>19
		h = h*5 + 0xe6546b64
	}
	if len(b) > 0 {
		var k uint32
		for i, x := range b {
			k |= uint32(x) << (8 * i)
		}
		k *= c1
		k = k<<15 | k>>17
		h ^= k * c2
	}
	h ^= uint32(n)
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}

// truncateOf returns the truncate transform for a type: numbers down to a
// multiple of width, text to so many code points, bytes to so many bytes.
func truncateOf(t source.Type, width int) func(dst []byte, v *source.Vector, row int) []byte {
	w := int64(width)
	switch t.Kind {
	case source.Int:
		return func(dst []byte, v *source.Vector, row int) []byte {
			x := v.Ints[row]
			return binary.LittleEndian.AppendUint32(dst, uint32(x-int32(floorMod(int64(x), w))))
		}
	case source.Long:
		return func(dst []byte, v *source.Vector, row int) []byte {
			x := v.Longs[row]
			return binary.LittleEndian.AppendUint64(dst, uint64(x-floorMod(x, w)))
		}
	case source.Decimal:
		return func(dst []byte, v *source.Vector, row int) []byte {
			x := v.Wides
			if v.Type.Store() == source.StoreLongs {
				return appendDecimal(dst, truncateWide(wide(v.Longs[row]), uint64(w)))
			}
			return appendDecimal(dst, truncateWide(x[row], uint64(w)))
		}
	case source.String:
		return func(dst []byte, v *source.Vector, row int) []byte {
			return append(dst, firstCodePoints(v.At(row), width)...)
		}
	case source.Binary:
		return func(dst []byte, v *source.Vector, row int) []byte {
			b := v.At(row)
			return append(dst, b[:min(len(b), width)]...)
		}
	}
	return nil
}

// dateTransform returns a transform of days (nil: not of dates) and of
// microseconds, nil if it does not apply to the type.
func dateTransform(t source.Type, days, micros func(int64) int64) func(dst []byte, v *source.Vector, row int) []byte {
	switch {
	case t.Kind == source.Date && days != nil:
		return func(dst []byte, v *source.Vector, row int) []byte {
			return binary.LittleEndian.AppendUint32(dst, uint32(days(int64(v.Ints[row]))))
		}
	case t.Kind == source.Timestamp || t.Kind == source.TimestampTZ:
		return func(dst []byte, v *source.Vector, row int) []byte {
			return binary.LittleEndian.AppendUint32(dst, uint32(micros(v.Longs[row])))
		}
	}
	return nil
}
