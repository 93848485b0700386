package sink

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

const (
	// dictionaryBytes is where a dictionary is given up: further pages of the
	// chunk are plain.
	dictionaryBytes = 1 << 20
	// probeValues is how many values of the first page decide whether a column
	// chunk gets a dictionary.
	probeValues = 8192
	// dictionaryValue is the largest value that goes into a dictionary.
	dictionaryValue = dictionaryBytes / 16
)

// dictionary numbers the distinct values of one column chunk. Values are bytes
// as PLAIN wants them, of a fixed width or with their length before them.
type dictionary struct {
	width int    // 0: variable
	raw   []byte // the dictionary page
	ends  []uint32
	slots []int32 // code+1 by hash; 0: free
	seed  maphash.Seed
}

func newDictionary(width int) *dictionary {
	return &dictionary{width: width, seed: maphash.MakeSeed()}
}

func (d *dictionary) reset() {
	d.raw, d.ends = d.raw[:0], d.ends[:0]
	clear(d.slots)
}

func (d *dictionary) len() int { return len(d.ends) }

func (d *dictionary) full() bool { return len(d.raw) >= dictionaryBytes }

func (d *dictionary) memory() int { return cap(d.raw) + 4*cap(d.ends) + 4*cap(d.slots) }

// value is the PLAIN form of a code without the length.
func (d *dictionary) value(code int32) []byte {
	if d.width > 0 {
		return d.raw[int(code)*d.width : (int(code)+1)*d.width]
	}
	start := uint32(0)
	if code > 0 {
		start = d.ends[code-1]
	}
	return d.raw[start+4 : d.ends[code]]
}

func (d *dictionary) hash(v []byte) uint64 {
	switch d.width {
	case 4:
		return mix(uint64(binary.LittleEndian.Uint32(v)))
	case 8:
		return mix(binary.LittleEndian.Uint64(v))
	}
	return maphash.Bytes(d.seed, v)
}

func mix(x uint64) uint64 {
	hi, lo := bits.Mul64(x^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// code returns the number of v and adds it if it is new.
func (d *dictionary) code(v []byte) int32 {
	if 4*(len(d.ends)+1) > 3*len(d.slots) {
		d.grow()
	}
	mask := uint64(len(d.slots) - 1)
	for i := d.hash(v) & mask; ; i = (i + 1) & mask {
		s := d.slots[i]
		if s == 0 {
			d.slots[i] = int32(len(d.ends)) + 1
			if d.width == 0 {
				d.raw = binary.LittleEndian.AppendUint32(d.raw, uint32(len(v)))
			}
			d.raw = append(d.raw, v...)
			d.ends = append(d.ends, uint32(len(d.raw)))
			return int32(len(d.ends)) - 1
		}
		if bytes.Equal(d.value(s-1), v) {
			return s - 1
		}
	}
}

func (d *dictionary) grow() {
	d.slots = make([]int32, max(64, 2*len(d.slots)))
	mask := uint64(len(d.slots) - 1)
	for c := range d.ends {
		i := d.hash(d.value(int32(c))) & mask
		for d.slots[i] != 0 {
			i = (i + 1) & mask
		}
		d.slots[i] = int32(c) + 1
	}
}

// encode appends the codes of the values in a PLAIN page to dst. It does not stop
// when the dictionary is full; a page bounds how far that goes.
func (d *dictionary) encode(dst []int32, plain []byte) []int32 {
	if d.width > 0 {
		for w := d.width; len(plain) > 0; plain = plain[w:] {
			dst = append(dst, d.code(plain[:w:w]))
		}
		return dst
	}
	for len(plain) > 0 {
		n := 4 + int(binary.LittleEndian.Uint32(plain))
		dst = append(dst, d.code(plain[4:n:n]))
		plain = plain[n:]
	}
	return dst
}

// probe decides from the values of a PLAIN page whether a dictionary is worth
// it: repeated often, and not so few that its own page costs more. The
// dictionary is empty afterwards.
func (d *dictionary) probe(plain []byte) bool {
	d.reset()
	defer d.reset()
	seen, size := 0, 0
	for len(plain) > 0 && seen < probeValues {
		n, at := d.width, 0
		if n == 0 {
			n, at = 4+int(binary.LittleEndian.Uint32(plain)), 4
		}
		if n > dictionaryValue {
			return false
		}
		d.code(plain[at:n:n])
		plain = plain[n:]
		size += n
		if seen++; d.full() || seen&1023 == 0 && 2*d.len() > seen {
			return false
		}
	}
	if seen == 0 || 3*d.len() > seen {
		return false
	}
	coded := len(d.raw) + seen*bits.Len(uint(d.len()-1))/8
	return coded+128 < size*9/10
}
