package mysql

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/lakesyncd/lakesyncd/source"
)

// mariaInflate decompresses what MariaDB's log_bin_compress made: a byte with
// algorithm and width, the length in big endian, a zlib stream. More than limit
// bytes are refused before they are made; 0 is no limit.
func mariaInflate(b []byte, limit int64) ([]byte, error) {
	if len(b) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	alg, width := b[0]>>4&7, int(b[0]&7)
	if alg != 0 || width == 0 || width > 4 || len(b) < 1+width {
		return nil, fmt.Errorf("compression header %#x is unknown", b[0])
	}
	var n int64
	for _, x := range b[1 : 1+width] {
		n = n<<8 | int64(x)
	}
	if limit > 0 && n > limit {
		return nil, fmt.Errorf("%d bytes when decompressed are more than the %d that one event may take", n, limit)
	}
	r, err := zlib.NewReader(bytes.NewReader(b[1+width:]))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	out := make([]byte, n)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return out, nil
}

// payload begins to read a compressed transaction. Its events are decompressed
// one by one, so the whole is never in memory.
func (a *assembler) payload(in io.Reader, size int64, close func() error) error {
	stop := func(err error) error {
		if close != nil {
			close()
		}
		return a.stop("read a compressed transaction: %w", err)
	}
	switch {
	case !a.group.open:
		return stop(errors.New("no GTID event came before it"))
	case a.nested != nil:
		return stop(errors.New("it is inside of another one"))
	}
	if a.unzip == nil {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return stop(err)
		}
		a.unzip = z
	}
	p := &payloadReader{buf: a.unzipped, release: close}
	if err := p.open(bufio.NewReader(in), size, a.unzip); err != nil {
		return stop(err)
	}
	a.nested = p
	return nil
}

// feedSpilled takes a compressed transaction that was too large for memory: head
// is its event up to the body, file has the rest. The file is gone afterwards.
func (a *assembler) feedSpilled(head []byte, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("%w: read a spilled transaction: %w", source.ErrRestart, err)
	}
	// Open files live on without a name.
	if err := os.Remove(file); err != nil {
		f.Close()
		return fmt.Errorf("%w: read a spilled transaction: %w", source.ErrRestart, err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("%w: read a spilled transaction: %w", source.ErrRestart, err)
	}
	e := event{
		time: binary.LittleEndian.Uint32(head), typ: replication.EventType(head[4]), server: binary.LittleEndian.Uint32(head[5:]), size: binary.LittleEndian.Uint32(head[9:]),
		logPos: binary.LittleEndian.Uint32(head[13:]), flags: binary.LittleEndian.Uint16(head[17:]),
	}
	size := st.Size()
	if int64(e.size) != size+eventHeader {
		f.Close()
		return a.stop("an event of %d bytes says that it has %d", size+eventHeader, e.size)
	}
	if a.checksums {
		size -= 4
		h := crc32.NewIEEE()
		h.Write(head)
		var want [4]byte
		_, err := io.Copy(h, io.NewSectionReader(f, 0, size))
		if err == nil {
			_, err = f.ReadAt(want[:], size)
		}
		if err == nil && h.Sum32() != binary.LittleEndian.Uint32(want[:]) {
			err = errChecksum
		}
		if err != nil {
			f.Close()
			return a.stop("an event of type %s: %w", e.typ, err)
		}
	}
	a.advance(e)
	if a.skipTo > 0 && a.offset <= a.skipTo {
		return f.Close()
	}
	a.skipTo = 0
	return a.payload(io.NewSectionReader(f, 0, size), size, f.Close)
}

// payloadReader reads the events inside of a TRANSACTION_PAYLOAD event.
type payloadReader struct {
	r       io.Reader
	buf     []byte
	release func() error
}

// Fields of a TRANSACTION_PAYLOAD event, and its ways of compression.
const (
	payloadEnd = iota
	payloadSize
	payloadCompression
	payloadUncompressedSize

	payloadZSTD = 0
	payloadNone = 255
)

// open reads the fields, of an event of size bytes, and stands at the first
// event inside.
func (p *payloadReader) open(in *bufio.Reader, size int64, z *zstd.Decoder) error {
	var body, kind uint64
	for {
		field, n, err := readLenenc(in)
		if err != nil {
			return err
		}
		size -= n
		if field == payloadEnd {
			break
		}
		length, n, err := readLenenc(in)
		if err != nil {
			return err
		}
		size -= n
		if length > 9 {
			if _, err := in.Discard(int(min(length, 1<<16))); err != nil || length > 1<<16 {
				return io.ErrUnexpectedEOF
			}
			size -= int64(length)
			continue
		}
		value := make([]byte, length)
		if _, err := io.ReadFull(in, value); err != nil {
			return err
		}
		size -= int64(length)
		v, _, err := lenenc(value)
		if err != nil {
			return err
		}
		switch field {
		case payloadSize:
			body = v
		case payloadCompression:
			kind = v
		}
	}
	if size < 0 || body != uint64(size) {
		return fmt.Errorf("%d bytes of %d", size, body)
	}
	switch kind {
	case payloadNone:
		p.r = in
	case payloadZSTD:
		if err := z.Reset(in); err != nil {
			return err
		}
		p.r = z
	default:
		return fmt.Errorf("compression %d is unknown", kind)
	}
	return nil
}

// readLenenc reads a length-encoded integer and says how long it was.
func readLenenc(in *bufio.Reader) (v uint64, n int64, err error) {
	b, err := in.ReadByte()
	if err != nil {
		return 0, 0, io.ErrUnexpectedEOF
	}
	x := []byte{b}
	switch b {
	case 0xfc:
		x = append(x, 0, 0)
	case 0xfd:
		x = append(x, 0, 0, 0)
	case 0xfe:
		x = append(x, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	if _, err := io.ReadFull(in, x[1:]); err != nil {
		return 0, 0, io.ErrUnexpectedEOF
	}
	v, _, err = lenenc(x)
	return v, int64(len(x)), err
}

func (p *payloadReader) next() (event, error) {
	var h [eventHeader]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		if err == io.EOF {
			return event{}, io.EOF
		}
		return event{}, fmt.Errorf("decompress a transaction: %w", err)
	}
	n := int(binary.LittleEndian.Uint32(h[9:]))
	if n < eventHeader {
		return event{}, fmt.Errorf("an event of %d bytes in a compressed transaction", n)
	}
	if cap(p.buf) < n {
		// The length is only what the data says, so memory follows what is there.
		p.buf = make([]byte, 0, min(n, 1<<20))
	}
	p.buf = append(p.buf[:0], h[:]...)
	for len(p.buf) < n {
		if len(p.buf) == cap(p.buf) {
			p.buf = append(make([]byte, 0, min(2*cap(p.buf), n)), p.buf...)
		}
		at := len(p.buf)
		p.buf = p.buf[:min(cap(p.buf), n)]
		if _, err := io.ReadFull(p.r, p.buf[at:]); err != nil {
			return event{}, fmt.Errorf("decompress a transaction: %w", err)
		}
	}
	return parseEvent(p.buf)
}

func (p *payloadReader) finish(a *assembler) error {
	if cap(p.buf) <= 1<<20 {
		a.unzipped = p.buf
	}
	if a.group.open {
		return a.stop("a compressed transaction does not end")
	}
	return nil
}

func (p *payloadReader) close() {
	if p.release != nil {
		p.release()
	}
}
