package sink

import (
	"math/bits"
	"sync"

	"github.com/lakesyncd/lakesyncd/source"
)

const (
	// chunkRows is about three pages of a column: enough to compress well and
	// to kill repeated changes of a key in memory.
	chunkRows = 1 << 16
	// rowBits of a row's id are its number in the chunk.
	rowBits = 20
	rowMask = 1<<rowBits - 1
)

// chunk is a run of rows of one partition, as typed columns in the order of the
// file. Its rows may die while it is open. Once sealed it is encoded, its memory
// is used for another, and what is left of it is only what tells a row's position
// in the file.
type chunk struct {
	cols  []source.Vector // nil after sealing
	rows  int
	bytes int64
	// counted is what the sink's budget has been told of bytes.
	counted int64
	index   uint64 // in the layer's list of chunks

	dead   []uint64 // bitmap, frozen by sealing; nil: none died
	deaths int

	file  *stagedFile // nil: open
	base  int64       // position of its first live row in the file
	ranks []uint32    // dead rows before each word of dead
	place []uint32    // of a sorted chunk: the rank of each row
}

func (c *chunk) live() int { return c.rows - c.deaths }

// kill marks a row of an open chunk; it will not be written.
func (c *chunk) kill(row int) {
	if need := row/64 + 1; len(c.dead) < need {
		c.dead = append(c.dead, make([]uint64, max(need, (c.rows+63)/64)-len(c.dead))...)
	}
	c.dead[row/64] |= 1 << (row % 64)
	c.deaths++
}

func (c *chunk) isDead(row int) bool {
	return row/64 < len(c.dead) && c.dead[row/64]&(1<<(row%64)) != 0
}

// liveRows lists the rows to write, nil if all.
func (c *chunk) liveRows() []uint32 {
	if c.deaths == 0 {
		return nil
	}
	rows := make([]uint32, 0, c.live())
	for i := 0; i < c.rows; i++ {
		if !c.isDead(i) {
			rows = append(rows, uint32(i))
		}
	}
	return rows
}

// freeze prepares position for a chunk whose live rows go into f from base on.
func (c *chunk) freeze(f *stagedFile, base int64) {
	c.file, c.base = f, base
	if c.deaths == 0 {
		c.dead = nil
		return
	}
	c.ranks = make([]uint32, len(c.dead))
	n := 0
	for i, w := range c.dead {
		c.ranks[i] = uint32(n)
		n += bits.OnesCount64(w)
	}
}

// position is where a row of a sealed chunk is in its file.
func (c *chunk) position(row int) int64 {
	if c.place != nil {
		return c.base + int64(c.place[row])
	}
	if c.deaths == 0 {
		return c.base + int64(row)
	}
	dead := c.deaths
	if w := row / 64; w < len(c.dead) {
		dead = int(c.ranks[w]) + bits.OnesCount64(c.dead[w]&(1<<(row%64)-1))
	}
	return c.base + int64(row-dead)
}

// overhead is the memory that a sealed chunk keeps for position.
func (c *chunk) overhead() int64 {
	return 128 + 8*int64(len(c.dead)) + 4*int64(len(c.ranks)) + 4*int64(len(c.place))
}

// add appends rows [lo, hi) of cols; a nil column or an empty one is NULL.
func (c *chunk) add(cols []*source.Vector, lo, hi int) {
	var size int64
	for i := range c.cols {
		d := &c.cols[i]
		if s := cols[i]; s == nil || s.Len() == 0 {
			for range hi - lo {
				d.AppendNull()
			}
		} else {
			appendRange(d, s, lo, hi)
		}
		size += int64(d.Size())
	}
	c.rows += hi - lo
	c.bytes = size
}

// vectors is what the encoder takes.
func (c *chunk) vectors() []*source.Vector {
	p := make([]*source.Vector, len(c.cols))
	for i := range c.cols {
		p[i] = &c.cols[i]
	}
	return p
}

// appendRange appends rows [lo, hi) of s, which has the type of d.
func appendRange(d, s *source.Vector, lo, hi int) {
	if hi == lo+1 {
		d.AppendRow(s, lo)
		return
	}
	d.Valid = append(d.Valid, s.Valid[lo:hi]...)
	switch d.Type.Store() {
	case source.StoreBools:
		d.Bools = append(d.Bools, s.Bools[lo:hi]...)
	case source.StoreInts:
		d.Ints = append(d.Ints, s.Ints[lo:hi]...)
	case source.StoreLongs:
		d.Longs = append(d.Longs, s.Longs[lo:hi]...)
	case source.StoreWides:
		d.Wides = append(d.Wides, s.Wides[lo:hi]...)
	case source.StoreFloats:
		d.Floats = append(d.Floats, s.Floats[lo:hi]...)
	case source.StoreDoubles:
		d.Doubles = append(d.Doubles, s.Doubles[lo:hi]...)
	default:
		from := uint32(0)
		if lo > 0 {
			from = s.Ends[lo-1]
		}
		shift := uint32(len(d.Bytes)) - from // wraps around, and back below
		d.Bytes = append(d.Bytes, s.Bytes[from:s.Ends[hi-1]]...)
		for _, e := range s.Ends[lo:hi] {
			d.Ends = append(d.Ends, e+shift)
		}
	}
}

// capacity is the memory that vectors occupy, used or not.
func capacity(cols []source.Vector) (n int64) {
	for i := range cols {
		v := &cols[i]
		n += int64(cap(v.Valid) + cap(v.Bools) + 4*cap(v.Ints) + 8*cap(v.Longs) + 16*cap(v.Wides) +
			4*cap(v.Floats) + 8*cap(v.Doubles) + 4*cap(v.Ends) + cap(v.Bytes))
	}
	return n
}

// spares keeps the memory of sealed chunks for new ones, within a limit. A vector
// can hold any type, but it is kept for the table whose values it fitted.
type spares struct {
	mu    sync.Mutex
	limit int64
	held  int64
	free  map[*deltaWriter][][]source.Vector
}

func newSpares(limit int64) *spares {
	return &spares{limit: limit, free: map[*deltaWriter][][]source.Vector{}}
}

// take returns vectors for the types of cols, empty. Without a writer they are new.
func (s *spares) take(w *deltaWriter, cols []fileColumn) []source.Vector {
	var v []source.Vector
	if w != nil {
		s.mu.Lock()
		if all := s.free[w]; len(all) > 0 {
			v, s.free[w] = all[len(all)-1], all[:len(all)-1]
			s.held -= capacity(v)
		}
		s.mu.Unlock()
	}
	if len(v) != len(cols) {
		v = make([]source.Vector, len(cols))
		if w != nil && len(w.lengths) == len(cols) {
			for i, l := range w.lengths {
				presize(&v[i], cols[i].Type, l)
			}
		}
	}
	for i := range v {
		v[i].Reset(cols[i].Type)
	}
	return v
}

func (s *spares) give(w *deltaWriter, v []source.Vector) {
	n := capacity(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free[w]) < 2 && s.held+n <= s.limit {
		s.free[w] = append(s.free[w], v)
		s.held += n
	}
}

func (s *spares) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.free)
	s.held = 0
}

// length is what a full chunk's column took.
type length struct{ rows, bytes int }

func lengthsOf(c *chunk) []length {
	l := make([]length, len(c.cols))
	for i := range l {
		l[i] = length{c.rows, len(c.cols[i].Bytes)}
	}
	return l
}

// presize makes room for a column as long as the last, and a little more: growing
// by doubling costs copies and half of the memory.
func presize(v *source.Vector, t source.Type, l length) {
	rows := l.rows + subBatch
	v.Valid = make([]byte, 0, rows)
	switch t.Store() {
	case source.StoreBools:
		v.Bools = make([]byte, 0, rows)
	case source.StoreInts:
		v.Ints = make([]int32, 0, rows)
	case source.StoreLongs:
		v.Longs = make([]int64, 0, rows)
	case source.StoreWides:
		v.Wides = make([]source.Int128, 0, rows)
	case source.StoreFloats:
		v.Floats = make([]float32, 0, rows)
	case source.StoreDoubles:
		v.Doubles = make([]float64, 0, rows)
	default:
		v.Ends = make([]uint32, 0, rows)
		v.Bytes = make([]byte, 0, l.bytes+l.bytes/16)
	}
}
