package mysql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
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
func (a *assembler) payload(e event) error {
	if !a.group.open {
		return a.stop("a compressed transaction without a GTID event")
	}
	if a.nested != nil {
		return a.stop("a compressed transaction inside of another one")
	}
	p, err := newPayload(e.body)
	if err != nil {
		return a.stop("read a compressed transaction: %w", err)
	}
	a.nested = p
	return nil
}

// payloadReader reads the events inside of a TRANSACTION_PAYLOAD event.
type payloadReader struct {
	zstd *zstd.Decoder
	r    io.Reader
	buf  []byte
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

func newPayload(b []byte) (*payloadReader, error) {
	var size, kind uint64
	for {
		field, rest, err := lenenc(b)
		if err != nil {
			return nil, err
		}
		b = rest
		if field == payloadEnd {
			break
		}
		n, rest, err := lenenc(b)
		if err != nil || n > uint64(len(rest)) {
			return nil, io.ErrUnexpectedEOF
		}
		v, _, err := lenenc(rest[:n])
		if err != nil {
			return nil, err
		}
		switch field {
		case payloadSize:
			size = v
		case payloadCompression:
			kind = v
		}
		b = rest[n:]
	}
	if size != uint64(len(b)) {
		return nil, fmt.Errorf("%d bytes of %d", len(b), size)
	}
	p := &payloadReader{r: bytes.NewReader(b)}
	switch kind {
	case payloadNone:
	case payloadZSTD:
		z, err := zstd.NewReader(p.r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		p.zstd, p.r = z, z
	default:
		return nil, fmt.Errorf("compression %d is unknown", kind)
	}
	return p, nil
}

func (p *payloadReader) next() (event, error) {
	var h [eventHeader]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
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
	if a.group.open {
		return a.stop("a compressed transaction does not end")
	}
	return nil
}

func (p *payloadReader) close() {
	if p.zstd != nil {
		p.zstd.Close()
	}
}
