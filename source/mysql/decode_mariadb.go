package mysql

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"fmt"
	"io"
	"strconv"

	"github.com/lakesyncd/lakesyncd/source"
)

// Types that only MariaDB has. The log has the bytes of its records.

// padded restores the zero bytes at the end that the log leaves out.
func (c *columnDecoder) padded(b []byte) []byte {
	c.buf = append(c.buf[:0], b...)
	for len(c.buf) < c.pad {
		c.buf = append(c.buf, 0)
	}
	return c.buf
}

// innerUUID prints MariaDB's UUID. Its record has the parts of a UUID of the
// older versions in reverse order, so that the time they begin with does not
// scatter an index; the others are stored as they are.
func innerUUID(c *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) > 16 {
		return fmt.Errorf("a uuid of %d bytes", len(b))
	}
	r := c.padded(b)
	var u [16]byte
	if swappedUUID(r) {
		copy(u[0:4], r[12:16])
		copy(u[4:6], r[10:12])
		copy(u[6:8], r[8:10])
		copy(u[8:10], r[6:8])
		copy(u[10:16], r[0:6])
	} else {
		copy(u[:], r)
	}
	const hex = "0123456789abcdef"
	for i, x := range u {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			v.Bytes = append(v.Bytes, '-')
		}
		v.Bytes = append(v.Bytes, hex[x>>4], hex[x&15])
	}
	endBytes(v)
	return nil
}

// swappedUUID tells a record in reverse order: the variant's high bit is where
// the reversed order puts it, and where the other order has it, the version's
// byte is, which is neither zero nor has its high bit set.
func swappedUUID(r []byte) bool { return r[6]&0x80 != 0 && r[8] > 0 && r[8] <= 0x80 }

func innerINET4(c *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) > 4 {
		return fmt.Errorf("an inet4 of %d bytes", len(b))
	}
	for i, x := range c.padded(b) {
		if i > 0 {
			v.Bytes = append(v.Bytes, '.')
		}
		v.Bytes = strconv.AppendUint(v.Bytes, uint64(x), 10)
	}
	endBytes(v)
	return nil
}

// inflate unpacks a value of a COMPRESSED column: a byte that says how, the
// length that it had, and a deflate stream. A zero byte means that it is plain.
func (c *columnDecoder) inflate(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return b, nil
	}
	head := b[0]
	if head == 0 {
		return b[1:], nil
	}
	size := int(head & 7)
	if head>>4 != 8 || size == 0 || size > 4 || len(b) < 1+size {
		return nil, fmt.Errorf("a compressed value begins with %#x, which is not known", head)
	}
	want := bigEndian(b[1:], size)
	in := bytes.NewReader(b[1+size:])
	var r io.ReadCloser
	if head&8 != 0 {
		r = flate.NewReader(in)
	} else {
		z, err := zlib.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("a compressed value does not unpack: %w", err)
		}
		r = z
	}
	out := bytes.NewBuffer(c.buf[:0])
	n, err := io.Copy(out, io.LimitReader(r, int64(want)+1))
	c.buf = out.Bytes()
	if err != nil {
		return nil, fmt.Errorf("a compressed value does not unpack: %w", err)
	}
	if uint64(n) != want {
		return nil, fmt.Errorf("a compressed value unpacks to another length than it says")
	}
	return c.buf, nil
}

// innerINET6 prints MariaDB's INET6 as the server does: the first of the longest
// runs of zero groups is left out, even a single one, and an address that holds
// one of version 4 ends with it.
func innerINET6(c *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) > 16 {
		return fmt.Errorf("an inet6 of %d bytes", len(b))
	}
	r := c.padded(b)
	group := func(i int) uint64 { return bigEndian(r[2*i:], 2) }
	gap, length := -1, 0
	for i := 0; i < 8; i++ {
		n := 0
		for i+n < 8 && group(i+n) == 0 {
			n++
		}
		if n > length {
			gap, length = i, n
		}
		i += n
	}
	v4 := gap == 0 && (length == 6 || length == 5 && group(5) == 0xFFFF)
	for i := 0; i < 8; i++ {
		switch {
		case i == gap:
			v.Bytes = append(v.Bytes, ':', ':')
			i += length - 1
			continue
		case v4 && i == 6:
			if group(5) != 0 {
				v.Bytes = append(v.Bytes, ':')
			}
			for j, x := range r[12:] {
				if j > 0 {
					v.Bytes = append(v.Bytes, '.')
				}
				v.Bytes = strconv.AppendUint(v.Bytes, uint64(x), 10)
			}
			endBytes(v)
			return nil
		case i > 0 && i != gap+length || i > 0 && gap < 0:
			v.Bytes = append(v.Bytes, ':')
		}
		v.Bytes = strconv.AppendUint(v.Bytes, group(i), 16)
	}
	endBytes(v)
	return nil
}
