package sink

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/rle"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lakesyncd/lakesyncd/source"
)

// encoders holds what columns need while they are encoded (compressors and
// scratch memory) for all files of a sink, so that hundreds of open files cost
// no more of it than one. Its size is also the number of columns that are being
// encoded at any moment.
type encoders struct {
	free chan *encoder
}

// newEncoders makes a set for at most n columns being encoded at once.
func newEncoders(n int) *encoders {
	e := &encoders{free: make(chan *encoder, max(n, 1))}
	for range cap(e.free) {
		e.free <- &encoder{}
	}
	return e
}

func (e *encoders) get() *encoder  { return <-e.free }
func (e *encoders) put(x *encoder) { e.free <- x }

// scratchKept is the largest scratch buffer that is kept from page to page; a
// page with one huge value may need more for a moment.
const scratchKept = 4 << 20

// encoder is the scratch memory of one goroutine.
type encoder struct {
	zstd   map[zstd.EncoderLevel]*zstd.Encoder
	gzip   map[int]*gzip.Writer
	out    *bufio.Writer
	body   []byte // levels and values of a page
	packed []byte // compressed
	levels []byte
	ints   []int32
	longs  []int64
	wides  []source.Int128
	floats []float32
	double []float64
}

func (e *encoder) trim() {
	if cap(e.body) > scratchKept {
		e.body = nil
	}
	if cap(e.packed) > scratchKept {
		e.packed = nil
	}
}

// codec is a compression and its level.
type codec struct {
	format format.CompressionCodec
	zstd   zstd.EncoderLevel
	gzip   int
}

func newCodec(name string, level int) (codec, error) {
	switch name {
	case "", "zstd":
		if level < 0 || level > 22 {
			return codec{}, fmt.Errorf("zstd level %d: use 1 to 22", level)
		}
		l := zstd.SpeedFastest
		if level > 0 {
			l = zstd.EncoderLevelFromZstd(level)
		}
		return codec{format: format.Zstd, zstd: l}, nil
	case "snappy":
		return codec{format: format.Snappy}, nil
	case "gzip":
		if level < 0 || level > 9 {
			return codec{}, fmt.Errorf("gzip level %d: use 1 to 9", level)
		}
		if level == 0 {
			level = 6
		}
		return codec{format: format.Gzip, gzip: level}, nil
	case "uncompressed", "none":
		return codec{format: format.Uncompressed}, nil
	}
	return codec{}, fmt.Errorf("compression codec %q: use zstd, snappy, gzip or uncompressed", name)
}

// compress returns src compressed, in memory that is valid until the next call
// (src itself if there is no compression).
func (e *encoder) compress(c codec, src []byte) ([]byte, error) {
	switch c.format {
	case format.Zstd:
		z := e.zstd[c.zstd]
		if z == nil {
			var err error
			// Without all-literal entropy coding pages without matches (plain
			// timestamps) would be stored as they are.
			z, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(c.zstd), zstd.WithEncoderConcurrency(1),
				zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true),
				zstd.WithAllLitEntropyCompression(true), zstd.WithEncoderCRC(false), zstd.WithZeroFrames(true))
			if err != nil {
				return nil, fmt.Errorf("set up zstd: %w", err)
			}
			if e.zstd == nil {
				e.zstd = map[zstd.EncoderLevel]*zstd.Encoder{}
			}
			e.zstd[c.zstd] = z
		}
		e.packed = z.EncodeAll(src, e.packed[:0])
	case format.Snappy:
		e.packed = s2.EncodeSnappy(e.packed[:cap(e.packed)], src)
	case format.Gzip:
		z := e.gzip[c.gzip]
		b := bytes.NewBuffer(e.packed[:0])
		if z == nil {
			var err error
			if z, err = gzip.NewWriterLevel(b, c.gzip); err != nil {
				return nil, fmt.Errorf("set up gzip: %w", err)
			}
			if e.gzip == nil {
				e.gzip = map[int]*gzip.Writer{}
			}
			e.gzip[c.gzip] = z
		} else {
			z.Reset(b)
		}
		if _, err := z.Write(src); err != nil {
			return nil, fmt.Errorf("compress page: %w", err)
		}
		if err := z.Close(); err != nil {
			return nil, fmt.Errorf("compress page: %w", err)
		}
		e.packed = b.Bytes()
	default:
		return src, nil
	}
	return e.packed, nil
}

// page is an encoded page: header and compressed body.
type page struct {
	data     []byte
	rows     int64
	values   int64 // nulls included
	nulls    int64
	plain    int // bytes before compression, with the header
	encoding format.Encoding
	bounded  bool // lo and hi hold
	lo, hi   []byte
}

// appendLevels appends levels as a data page of version 1 wants them: their
// length, then runs.
func (e *encoder) appendLevels(dst, levels []byte, width int) ([]byte, error) {
	enc := rle.Encoding{BitWidth: width}
	var err error
	if e.levels, err = enc.EncodeLevels(e.levels, levels); err != nil {
		return nil, fmt.Errorf("encode levels: %w", err)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.levels)))
	return append(dst, e.levels...), nil
}

// appendBits packs booleans, one a byte, into bits.
func appendBits(dst, src []byte) []byte {
	for len(src) >= 8 {
		x := binary.LittleEndian.Uint64(src)
		// Gathers the lowest bit of each byte, the first byte lowest.
		dst = append(dst, byte(x*0x0102040810204080>>56))
		src = src[8:]
	}
	if len(src) > 0 {
		var b byte
		for i, x := range src {
			b |= x << i
		}
		dst = append(dst, b)
	}
	return dst
}

// seal compresses body and puts the header before it.
func (e *encoder) seal(c codec, body []byte, kind format.PageType, values int64, enc format.Encoding) (data []byte, plain int, err error) {
	if len(body) > math.MaxInt32 {
		return nil, 0, fmt.Errorf("page of %d bytes: Parquet allows %d", len(body), math.MaxInt32)
	}
	packed, err := e.compress(c, body)
	if err != nil {
		return nil, 0, err
	}
	if len(packed) > math.MaxInt32 {
		return nil, 0, fmt.Errorf("compressed page of %d bytes: Parquet allows %d", len(packed), math.MaxInt32)
	}
	var scratch [64]byte
	h := appendPageHeader(scratch[:0], kind, len(body), packed, values, enc)
	data = make([]byte, len(h)+len(packed))
	copy(data, h)
	copy(data[len(h):], packed)
	e.trim()
	return data, len(h) + len(body), nil
}

// appendPageHeader writes format.PageHeader in Thrift's compact protocol by
// hand: going by reflection costs more than everything else of a small page.
func appendPageHeader(dst []byte, kind format.PageType, size int, packed []byte, values int64, enc format.Encoding) []byte {
	i32 := func(delta byte, x int32) {
		dst = append(dst, delta<<4|5)
		dst = binary.AppendVarint(dst, int64(x)) // zigzag, as Thrift's
	}
	i32(1, int32(kind))
	i32(1, int32(size))
	i32(1, int32(len(packed)))
	i32(1, int32(crc32.ChecksumIEEE(packed)))
	if kind == format.DictionaryPage {
		dst = append(dst, 3<<4|12) // field 7
		i32(1, int32(values))
		i32(1, int32(enc))
	} else {
		dst = append(dst, 1<<4|12) // field 5
		i32(1, int32(values))
		i32(1, int32(enc))
		i32(1, int32(format.RLE))
		i32(1, int32(format.RLE))
	}
	return append(dst, 0, 0)
}

// writer returns a buffered writer on w; it must be flushed before e is put back.
func (e *encoder) writer(w io.Writer) *bufio.Writer {
	if e.out == nil {
		e.out = bufio.NewWriterSize(w, 64<<10)
	} else {
		e.out.Reset(w)
	}
	return e.out
}
