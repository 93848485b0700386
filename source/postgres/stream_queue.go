package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
)

// slabSize is how much travels from the receiving to the decoding goroutine at
// once; a larger record travels alone.
const slabSize = 128 << 10

var errClosed = errors.New("the stream was closed")

// slab is a run of records, each after its length in four bytes.
type slab struct {
	buf  []byte
	read int
	of   *copyTable // of the initial snapshot: the relation that the rows are of
	last bool       // nothing of that relation comes after this
}

// next is the next record; nil at the end.
func (s *slab) next() []byte {
	r := s.peek(s.read)
	if r != nil {
		s.read += 4 + len(r)
	}
	return r
}

// peek is the record at an offset. A record has at least one byte.
func (s *slab) peek(at int) []byte {
	if at >= len(s.buf) {
		return nil
	}
	n := int(binary.LittleEndian.Uint32(s.buf[at:]))
	return s.buf[at+4 : at+4+n : at+4+n]
}

// fifo hands records from one goroutine to another and holds at most max bytes,
// or one record if that is larger. What the reader has taken counts until it is
// done with it.
type fifo struct {
	max int64

	mu              sync.Mutex
	slabs           []*slab
	free            []*slab
	bytes           int64
	blocked         bool  // the writer waits for room
	err             error // what comes after the slabs
	fault           error // what comes before them
	closed          bool
	filled, emptied chan struct{} // one token each, which says: look again
}

func newFIFO(limit int64) *fifo {
	return &fifo{max: limit, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// room waits until n more bytes may be added. It returns false when nobody wants
// more.
func (q *fifo) room(n int) bool {
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return false
		}
		ok := q.bytes == 0 || q.bytes+int64(n) <= q.max
		q.blocked = !ok
		q.mu.Unlock()
		if ok {
			return true
		}
		poke(q.filled) // who looks ahead must know that nothing more comes
		<-q.emptied
	}
}

// add copies a record of a tag and a body, of at most slabSize bytes, to the
// end. It returns false when nobody wants more.
func (q *fifo) add(of *copyTable, tag byte, body []byte) bool {
	n := 5 + len(body)
	if !q.room(n) {
		return false
	}
	q.mu.Lock()
	var s *slab
	if k := len(q.slabs); k > 0 {
		s = q.slabs[k-1]
	}
	if s == nil || s.of != of || s.last || len(s.buf)+n > cap(s.buf) {
		s = q.fresh(n)
		s.of = of
		q.slabs = append(q.slabs, s)
	}
	s.buf = binary.LittleEndian.AppendUint32(s.buf, uint32(n-4))
	s.buf = append(append(s.buf, tag), body...)
	q.bytes += int64(n)
	q.mu.Unlock()
	poke(q.filled)
	return true
}

func (q *fifo) fresh(n int) *slab {
	if n <= slabSize {
		if k := len(q.free); k > 0 {
			s := q.free[k-1]
			q.free = q.free[:k-1]
			return s
		}
		n = slabSize
	}
	return &slab{buf: make([]byte, 0, n)}
}

// addLarge adds a record whose body fill writes into memory of its own.
func (q *fifo) addLarge(of *copyTable, tag byte, n int, fill func(body []byte) error) error {
	if !q.room(5 + n) {
		return errClosed
	}
	s := &slab{buf: make([]byte, 5+n), of: of}
	binary.LittleEndian.PutUint32(s.buf, uint32(1+n))
	s.buf[4] = tag
	if err := fill(s.buf[5:]); err != nil {
		return err
	}
	q.mu.Lock()
	q.slabs = append(q.slabs, s)
	q.bytes += int64(len(s.buf))
	q.mu.Unlock()
	poke(q.filled)
	return nil
}

// finish says that nothing comes of a relation after what was added.
func (q *fifo) finish(of *copyTable) {
	q.mu.Lock()
	q.slabs = append(q.slabs, &slab{of: of, last: true})
	q.mu.Unlock()
	poke(q.filled)
}

// end says that nothing comes after what was added.
func (q *fifo) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	poke(q.filled)
}

// interrupt makes the reader see err at once.
func (q *fifo) interrupt(err error) {
	q.mu.Lock()
	q.fault = err
	q.mu.Unlock()
	poke(q.filled)
}

// try takes a slab if there is one. ended is what comes after the last one.
func (q *fifo) try() (s *slab, blocked bool, ended error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault != nil {
		return nil, false, q.fault
	}
	if len(q.slabs) > 0 {
		s := q.slabs[0]
		q.slabs[0] = nil
		q.slabs = q.slabs[1:]
		return s, false, nil
	}
	return nil, q.blocked, q.err
}

// get waits for a slab. After the last one it returns what end was given.
func (q *fifo) get(ctx context.Context) (*slab, error) {
	for {
		s, _, err := q.try()
		if s != nil || err != nil {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.filled:
		}
	}
}

// ahead is get for a reader that keeps the slabs that it has. It returns nil when
// waiting would be in vain: the writer waits for room, or has ended.
func (q *fifo) ahead(ctx context.Context) (*slab, error) {
	for {
		s, blocked, err := q.try()
		if s != nil || blocked || err != nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.filled:
		}
	}
}

// done gives a slab's memory back.
func (q *fifo) done(s *slab) {
	q.mu.Lock()
	q.bytes -= int64(len(s.buf))
	if cap(s.buf) == slabSize && len(q.free) < 8 {
		*s = slab{buf: s.buf[:0]}
		q.free = append(q.free, s)
	}
	q.mu.Unlock()
	poke(q.emptied)
}

func (q *fifo) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	poke(q.emptied)
}
