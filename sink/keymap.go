package sink

import (
	"math/bits"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"github.com/lakesyncd/lakesyncd/source"
)

// keyHash stands for a key (and its partition) in the key map. It is 128 bits
// wide and seeded at random, so that no stored key is needed to tell two keys
// apart: among 10^9 keys any collision has a chance of about 10^-21.
type keyHash struct{ hi, lo uint64 }

// add mixes a partition's hash into a key's.
func (h keyHash) add(p keyHash) keyHash { return keyHash{h.hi + p.hi, h.lo + p.lo} }

// keyHasher turns keys into hashes. Keys are compared as stored bytes.
type keyHasher struct {
	seed, a, b uint64
	buf        []byte
}

func newKeyHasher() *keyHasher {
	return &keyHasher{seed: rand.Uint64(), a: rand.Uint64(), b: rand.Uint64()}
}

// scramble is a bijection (the finalizer of MurmurHash3): two integers never give the
// same lo.
func scramble(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}

func (k *keyHasher) word(x uint64) keyHash { return keyHash{scramble(x + k.b), scramble(x ^ k.a)} }

func (k *keyHasher) bytes(b []byte) keyHash {
	u := xxh3.Hash128Seed(b, k.seed)
	return keyHash{u.Hi, u.Lo}
}

// keys appends the hashes of rows [lo, hi) to dst.
func (k *keyHasher) keys(dst []keyHash, cols []*source.Vector, key []int, lo, hi int) []keyHash {
	if len(key) == 1 {
		v := cols[key[0]]
		switch v.Type.Store() {
		case source.StoreLongs:
			for _, x := range v.Longs[lo:hi] {
				dst = append(dst, k.word(uint64(x)))
			}
			return dst
		case source.StoreInts:
			for _, x := range v.Ints[lo:hi] {
				dst = append(dst, k.word(uint64(uint32(x))))
			}
			return dst
		case source.StoreBytes:
			for i := lo; i < hi; i++ {
				dst = append(dst, k.bytes(v.At(i)))
			}
			return dst
		}
	}
	for i := lo; i < hi; i++ {
		k.buf = appendKey(k.buf[:0], cols, key, i)
		dst = append(dst, k.bytes(k.buf))
	}
	return dst
}

// keyMap remembers, for each key that a layer has touched, where its live row is.
// A key that is in the map has been dealt with: whatever older layers and
// snapshots hold of it is deleted by this layer, or proven not to exist. It has
// open addressing and no pointers, so the collector never looks into it.
type keyMap struct {
	slots []slot
	n     int
}

type slot struct {
	hash keyHash
	// row is 0 in a free slot, slotDead for a key without a live row, else
	// the row's id + slotFirst.
	row uint64
}

const (
	slotDead  = 1
	slotFirst = 2
	slotBytes = 24
)

func (s *slot) live() bool     { return s.row >= slotFirst }
func (s *slot) id() uint64     { return s.row - slotFirst }
func (s *slot) set(id uint64)  { s.row = id + slotFirst }
func (m *keyMap) bytes() int64 { return int64(len(m.slots)) * slotBytes }

// slotsFor is how many slots n keys need, at a load of at most 3/4 and with room to
// grow.
func slotsFor(n int) int {
	s := 256
	for s/4*3 < n {
		s *= 2
	}
	return s
}

// fits reports whether more keys fit without growing.
func (m *keyMap) fits(more int) bool { return m.n+more <= len(m.slots)/4*3 }

// put returns the slot of a key and whether it was there. The map must have room.
// The slot is valid until the map grows.
func (m *keyMap) put(h keyHash) (*slot, bool) {
	for i := m.home(h); ; i++ {
		if i == len(m.slots) {
			i = 0
		}
		s := &m.slots[i]
		if s.row == 0 {
			s.hash = h
			m.n++
			return s, false
		}
		if s.hash == h {
			return s, true
		}
	}
}

// find returns the slot of a key, or nil.
func (m *keyMap) find(h keyHash) *slot {
	if m.n == 0 {
		return nil
	}
	for i := m.home(h); ; i++ {
		if i == len(m.slots) {
			i = 0
		}
		s := &m.slots[i]
		if s.row == 0 {
			return nil
		}
		if s.hash == h {
			return s
		}
	}
}

// home is where a hash belongs among any number of slots.
func (m *keyMap) home(h keyHash) int {
	i, _ := bits.Mul64(h.lo, uint64(len(m.slots)))
	return int(i)
}

// resize moves the keys to a map of the given number of slots.
func (m *keyMap) resize(slots int) {
	old := m.slots
	m.slots = make([]slot, slots)
	for _, s := range old {
		if s.row == 0 {
			continue
		}
		i := m.home(s.hash)
		for m.slots[i].row != 0 {
			if i++; i == len(m.slots) {
				i = 0
			}
		}
		m.slots[i] = s
	}
}

// clear empties the map. It keeps its memory if the next layer is likely to need
// it, going by this one.
func (m *keyMap) clear() {
	if m.n == 0 || slotsFor(m.n) < len(m.slots)/2 {
		m.slots = nil
	} else {
		clear(m.slots)
	}
	m.n = 0
}
