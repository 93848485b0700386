package sink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lakesyncd/lakesyncd/source"
)

// column encodes one column of a file: values go into the open page, full pages
// are compressed at once, and what is kept of them are their bytes, counts and
// bounds. It is used by one goroutine at a time.
type column struct {
	fileColumn
	store          source.Store
	phys           format.Type
	width          int // bytes of a PLAIN value; 0: variable
	maxDef, maxRep int
	pageBytes      int
	pageRows       int
	dictionaries   bool
	codec          codec
	keepBytes      int

	// The open page.
	raw    []byte  // PLAIN values; of booleans one byte each
	codes  []int32 // instead of raw, with a dictionary
	levels []byte  // definition levels, one per value, of optional columns
	reps   []byte  // repetition levels of lists
	rows   int
	nulls  int64
	nans   int64
	bounds bounds

	// The open column chunk.
	mode   chunkMode
	dict   *dictionary
	pages  []page
	packed int64 // bytes of pages
	plain  int64 // the same before compression
	chunk  bounds
	// giveUp: the next value does not belong into the dictionary.
	giveUp bool
	// noIndex: a page has values but no bounds, so that the chunk can have
	// neither bounds nor a column index.
	noIndex bool

	total columnTotal
}

// chunkMode is how the pages of a chunk are encoded. The first page is gathered
// in PLAIN form and decides.
type chunkMode uint8

const (
	chunkProbing chunkMode = iota
	chunkPlain
	chunkDictionary
)

// columnTotal is what is known of the finished chunks of a column.
type columnTotal struct {
	size, values, nulls, nans int64
	bounds                    bounds
}

func newColumn(fc fileColumn, opts writerOptions, c codec) (*column, error) {
	col := &column{fileColumn: fc, store: fc.Type.Store(), pageBytes: int(opts.PageBytes), pageRows: opts.PageRows,
		codec: c, keepBytes: fc.keep(), dictionaries: !opts.NoDictionary}
	switch k := fc.Type.Kind; k {
	case source.Bool:
		col.phys, col.width, col.dictionaries = format.Boolean, 1, false
	case source.Int, source.Date:
		col.phys, col.width = format.Int32, 4
	case source.Long, source.Time, source.Timestamp, source.TimestampTZ:
		col.phys, col.width = format.Int64, 8
	case source.Float:
		col.phys, col.width = format.Float, 4
	case source.Double:
		col.phys, col.width = format.Double, 8
	case source.Decimal:
		switch p := fc.Type.Precision; {
		case p < 1 || p > 38 || fc.Type.Scale < 0 || fc.Type.Scale > p:
			return nil, fmt.Errorf("column %s: %s is out of range", fc.Name, fc.Type)
		case p <= 9:
			col.phys, col.width = format.Int32, 4
		case p <= 18:
			col.phys, col.width = format.Int64, 8
		default:
			col.phys, col.width = format.FixedLenByteArray, decimalLength(p)
		}
	case source.UUID:
		col.phys, col.width = format.FixedLenByteArray, 16
	case source.String, source.Binary:
		col.phys = format.ByteArray
	case source.FloatList, source.List:
		if fc.ElementID == 0 {
			return nil, fmt.Errorf("column %s: a list needs the field id of its elements", fc.Name)
		}
		col.maxDef, col.maxRep = 1, 1
		col.phys, col.width = format.Float, 4
		if k == source.List {
			of, err := newColumn(fileColumn{Name: fc.Name, Type: fc.Type.Element()}, opts, c)
			if err != nil || of.maxRep > 0 {
				return nil, fmt.Errorf("column %s: no Parquet type for %s", fc.Name, fc.Type)
			}
			col.maxDef++
			col.phys, col.width = of.phys, of.width
		}
		col.dictionaries = false
		// Bounds of elements would say nothing of lists.
		col.NoBounds = true
	default:
		return nil, fmt.Errorf("column %s: no Parquet type for %s", fc.Name, fc.Type)
	}
	if !fc.Required {
		col.maxDef++
	}
	return col, nil
}

// memory is what the open chunk holds, in bytes.
func (c *column) memory() int64 {
	n := int64(cap(c.raw)+4*cap(c.codes)+cap(c.levels)+cap(c.reps)) + c.packed + int64(len(c.pages))*160
	if c.dict != nil {
		n += int64(c.dict.memory())
	}
	return n
}

// pending is what the open page holds before compression, in bytes.
func (c *column) pending() int64 {
	return int64(len(c.raw) + 2*len(c.codes) + len(c.levels)/8)
}

// append encodes rows [from, to) of v, or of those that rows names.
func (c *column) append(e *encoder, v *source.Vector, rows []uint32, from, to int) error {
	for from < to {
		n := min(to-from, c.pageRows-c.rows)
		if c.width > 0 && c.maxRep == 0 {
			n = min(n, max(1, (c.pageBytes-len(c.raw)+c.width-1)/c.width))
		}
		n, err := c.gather(e, v, rows, from, from+n)
		if err != nil {
			return err
		}
		from += n
		c.rows += n
		if c.rows >= c.pageRows || len(c.raw) >= c.pageBytes || c.giveUp || c.mode == chunkDictionary && c.dict.full() {
			if err := c.cut(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// gather puts rows into the open page and says how many it took: all, unless the
// page got full.
func (c *column) gather(e *encoder, v *source.Vector, rows []uint32, from, to int) (int, error) {
	if c.store == source.StoreBytes {
		if c.Type.Kind == source.List {
			return c.gatherElements(v, rows, from, to)
		}
		if c.maxRep > 0 {
			return c.gatherLists(v, rows, from, to)
		}
		return c.gatherBytes(v, rows, from, to)
	}
	valid := 0
	if rows == nil {
		valid = bytes.Count(v.Valid[from:to], one)
		if c.maxDef > 0 {
			c.levels = append(c.levels, v.Valid[from:to]...)
		}
	} else if c.maxDef > 0 {
		for _, r := range rows[from:to] {
			x := v.Valid[r]
			valid += int(x)
			c.levels = append(c.levels, x)
		}
	} else {
		for _, r := range rows[from:to] {
			valid += int(v.Valid[r])
		}
	}
	if c.maxDef == 0 && valid < to-from {
		return 0, c.errNull()
	}
	c.nulls += int64(to - from - valid)
	if valid == 0 {
		return to - from, nil
	}
	sel := selection{valid: v.Valid, rows: rows, from: from, to: to, all: valid == to-from}
	start := len(c.raw)
	switch c.store {
	case source.StoreBools:
		at := len(c.raw)
		c.raw = pick(c.raw, v.Bools, sel)
		trues := bytes.Count(c.raw[at:], one)
		if trues < valid {
			c.bounds.addInts(0, 0)
		}
		if trues > 0 {
			c.bounds.addInts(1, 1)
		}
		return to - from, nil
	case source.StoreInts:
		x := pickInto(&e.ints, v.Ints, sel)
		lo, hi := minMax(x)
		c.bounds.addInts(int64(lo), int64(hi))
		c.raw = appendInt32s(c.raw, x)
	case source.StoreLongs:
		x := pickInto(&e.longs, v.Longs, sel)
		lo, hi := minMax(x)
		c.bounds.addInts(lo, hi)
		if c.width == 4 {
			if lo < math.MinInt32 || hi > math.MaxInt32 {
				return 0, fmt.Errorf("column %s: a value has more digits than %s", c.Name, c.Type)
			}
			c.raw = appendNarrow(c.raw, x)
		} else {
			c.raw = appendInt64s(c.raw, x)
		}
	case source.StoreWides:
		x := pickInto(&e.wides, v.Wides, sel)
		for _, w := range x {
			c.bounds.addWide(w)
			c.raw = appendWide(c.raw, w, c.width)
		}
	case source.StoreFloats:
		x := pickInto(&e.floats, v.Floats, sel)
		for _, f := range x {
			if f != f {
				c.nans++
			} else {
				c.bounds.addFloat(float64(f))
			}
			c.raw = binary.LittleEndian.AppendUint32(c.raw, math.Float32bits(f))
		}
	case source.StoreDoubles:
		x := pickInto(&e.double, v.Doubles, sel)
		for _, f := range x {
			if f != f {
				c.nans++
			} else {
				c.bounds.addFloat(f)
			}
			c.raw = binary.LittleEndian.AppendUint64(c.raw, math.Float64bits(f))
		}
	}
	if c.mode == chunkDictionary {
		c.codes = c.dict.encode(c.codes, c.raw[start:])
		c.raw = c.raw[:start]
	}
	return to - from, nil
}

func (c *column) errNull() error {
	return fmt.Errorf("column %s: NULL in a required column", c.Name)
}

func (c *column) gatherBytes(v *source.Vector, rows []uint32, from, to int) (int, error) {
	dict, fixed := c.mode == chunkDictionary, c.width
	bounded := !c.NoBounds
	if rows == nil && !dict && v.Ends[to-1] > 0 {
		first := uint32(0)
		if from > 0 {
			first = v.Ends[from-1]
		}
		want := int(v.Ends[to-1]-first) + 4*(to-from)
		c.raw = slices.Grow(c.raw, min(want, max(c.pageBytes-len(c.raw), 0)))
	}
	for i := from; i < to; i++ {
		r := i
		if rows != nil {
			r = int(rows[i])
		}
		ok := v.Valid[r]
		if ok == 0 {
			if c.maxDef == 0 {
				return 0, c.errNull()
			}
			c.levels = append(c.levels, ok)
			c.nulls++
			continue
		}
		start := uint32(0)
		if r > 0 {
			start = v.Ends[r-1]
		}
		b := v.Bytes[start:v.Ends[r]]
		if dict && len(b) > dictionaryValue {
			c.giveUp = true
			return i - from, nil
		}
		if c.maxDef > 0 {
			c.levels = append(c.levels, ok)
		}
		if bounded {
			c.bounds.addBytes(b, c.keepBytes)
		}
		if fixed > 0 && len(b) != fixed {
			return 0, fmt.Errorf("column %s: a %s of %d bytes", c.Name, c.Type, len(b))
		}
		if dict {
			c.codes = append(c.codes, c.dict.code(b))
			if c.dict.full() {
				return i + 1 - from, nil
			}
			continue
		}
		if fixed == 0 {
			c.raw = binary.LittleEndian.AppendUint32(c.raw, uint32(len(b)))
		}
		c.raw = append(c.raw, b...)
		if len(c.raw) >= c.pageBytes {
			return i + 1 - from, nil
		}
	}
	return to - from, nil
}

func (c *column) gatherLists(v *source.Vector, rows []uint32, from, to int) (int, error) {
	element, empty := byte(c.maxDef), byte(c.maxDef-1)
	for i := from; i < to; i++ {
		r := i
		if rows != nil {
			r = int(rows[i])
		}
		if v.Valid[r] == 0 {
			if c.Required {
				return 0, c.errNull()
			}
			c.levels, c.reps = append(c.levels, 0), append(c.reps, 0)
			c.nulls++
			continue
		}
		b := v.At(r)
		if len(b)%4 != 0 {
			return 0, fmt.Errorf("column %s: a list of floats of %d bytes", c.Name, len(b))
		}
		if len(b) == 0 {
			c.levels, c.reps = append(c.levels, empty), append(c.reps, 0)
			c.nulls++
			continue
		}
		for k := range len(b) / 4 {
			c.levels, c.reps = append(c.levels, element), append(c.reps, byte(min(k, 1)))
		}
		c.raw = append(c.raw, b...)
		if len(c.raw) >= c.pageBytes {
			return i + 1 - from, nil
		}
	}
	return to - from, nil
}

// cut ends the open page.
func (c *column) cut(e *encoder) error {
	if c.giveUp {
		defer func() { c.giveUp, c.mode = false, chunkPlain }()
	}
	if c.rows == 0 {
		return nil
	}
	values := int64(c.rows)
	if c.maxRep > 0 {
		values = int64(len(c.reps))
	}
	if c.mode == chunkProbing {
		c.mode = chunkPlain
		if c.dictionaries {
			if c.dict == nil {
				c.dict = newDictionary(c.width)
			}
			if c.dict.probe(c.raw) {
				c.mode = chunkDictionary
				c.codes = c.dict.encode(c.codes[:0], c.raw)
				c.raw = c.raw[:0]
			}
		}
	}
	body, encoding, err := c.body(e)
	if err != nil {
		return err
	}
	data, plain, err := e.seal(c.codec, body, format.DataPage, values, encoding)
	if err != nil {
		return fmt.Errorf("column %s: %w", c.Name, err)
	}
	p := page{data: data, rows: int64(c.rows), values: values, nulls: c.nulls, plain: plain, encoding: encoding}
	p.lo, p.hi, p.bounded = c.parquetBounds(&c.bounds)
	if !p.bounded && c.nulls < values {
		c.noIndex = true
	}
	c.chunk.merge(&c.bounds, c.store)
	c.total.nans += c.nans
	c.pages = append(c.pages, p)
	c.packed += int64(len(data))
	c.plain += int64(plain)

	c.raw, c.codes, c.levels, c.reps = c.raw[:0], c.codes[:0], c.levels[:0], c.reps[:0]
	if cap(c.raw) > 4*c.pageBytes {
		c.raw = nil
	}
	c.rows, c.nulls, c.nans = 0, 0, 0
	c.bounds.reset()
	if c.mode == chunkDictionary && c.dict.full() {
		c.mode = chunkPlain
	}
	return nil
}

// body is the open page as it is before compression: levels, then values.
func (c *column) body(e *encoder) (body []byte, encoding format.Encoding, err error) {
	body = e.body[:0]
	if c.maxRep > 0 {
		if body, err = e.appendLevels(body, c.reps, 1); err != nil {
			return nil, 0, err
		}
	}
	if c.maxDef > 0 {
		if body, err = e.appendLevels(body, c.levels, 1+c.maxDef/2); err != nil {
			return nil, 0, err
		}
	}
	encoding = format.Plain
	switch {
	case c.mode == chunkDictionary:
		encoding = format.RLEDictionary
		// Codes of a dictionary of one value would need no bit at all; not every
		// reader can do with that.
		enc := rle.Encoding{BitWidth: max(1, bits.Len(uint(c.dict.len()-1)))}
		if e.levels, err = enc.EncodeInt32(e.levels, c.codes); err != nil {
			return nil, 0, fmt.Errorf("column %s: encode dictionary page: %w", c.Name, err)
		}
		body = append(append(body, byte(enc.BitWidth)), e.levels...)
	case c.phys == format.Boolean:
		body = appendBits(body, c.raw)
	case len(body) == 0:
		return c.raw, encoding, nil
	default:
		body = append(body, c.raw...)
	}
	e.body = body
	return body, encoding, nil
}

// finish ends the chunk: its last page and its dictionary page, nil if it has
// none.
func (c *column) finish(e *encoder) (dictionary []byte, plain int, err error) {
	if err := c.cut(e); err != nil {
		return nil, 0, err
	}
	if c.dict == nil || c.dict.len() == 0 {
		return nil, 0, nil
	}
	dictionary, plain, err = e.seal(c.codec, c.dict.raw, format.DictionaryPage, int64(c.dict.len()), format.Plain)
	if err != nil {
		return nil, 0, fmt.Errorf("column %s: %w", c.Name, err)
	}
	return dictionary, plain, nil
}

// next begins another chunk.
func (c *column) next() {
	if c.dict != nil {
		c.dict.reset()
	}
	clear(c.pages)
	c.pages = c.pages[:0]
	c.mode, c.packed, c.plain, c.noIndex = chunkProbing, 0, 0, false
	c.chunk.reset()
}

var one = []byte{1}

// selection names rows of a vector; all says that none of them is null.
type selection struct {
	valid    []byte
	rows     []uint32
	from, to int
	all      bool
}

// pick appends the values of the rows that are not null.
func pick[T any](dst, src []T, s selection) []T {
	switch {
	case s.rows == nil && s.all:
		return append(dst, src[s.from:s.to]...)
	case s.rows == nil:
		for i, x := range src[s.from:s.to] {
			if s.valid[s.from+i] != 0 {
				dst = append(dst, x)
			}
		}
	case s.all:
		for _, r := range s.rows[s.from:s.to] {
			dst = append(dst, src[r])
		}
	default:
		for _, r := range s.rows[s.from:s.to] {
			if s.valid[r] != 0 {
				dst = append(dst, src[r])
			}
		}
	}
	return dst
}

// pickInto is pick into scratch, or the vector's own memory where that holds
// exactly the selection.
func pickInto[T any](scratch *[]T, src []T, s selection) []T {
	if s.rows == nil && s.all {
		return src[s.from:s.to]
	}
	*scratch = pick((*scratch)[:0], src, s)
	return *scratch
}

func minMax[T int32 | int64](x []T) (lo, hi T) {
	lo, hi = x[0], x[0]
	for _, v := range x[1:] {
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi
}

// room extends b by n bytes and returns it and the new part.
func room(b []byte, n int) (whole, added []byte) {
	at := len(b)
	if cap(b)-at < n {
		grown := make([]byte, at, max(2*cap(b), at+n, 256))
		copy(grown, b)
		b = grown
	}
	b = b[:at+n]
	return b, b[at:]
}

func appendInt32s(dst []byte, x []int32) []byte {
	dst, b := room(dst, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	return dst
}

func appendNarrow(dst []byte, x []int64) []byte {
	dst, b := room(dst, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
	}
	return dst
}

func appendInt64s(dst []byte, x []int64) []byte {
	dst, b := room(dst, 8*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(v))
	}
	return dst
}

// cost estimates how long the column takes compared with others.
func (c *column) cost() int64 { return c.plain + int64(len(c.raw)) + c.total.size }
