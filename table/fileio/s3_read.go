package fileio

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// headBytes come with Open: most metadata files fit, so that they cost a single
// request.
const headBytes = 256 << 10

// Open asks for the first bytes at once; the reply also tells the size. Later
// requests name the ETag, so that the file cannot change while it is read.
func (s *s3Store) Open(ctx context.Context, path string) (File, error) {
	bucket, key, err := s.enter(ctx, path)
	if err != nil {
		return nil, named("open", path, err)
	}
	f := &s3File{store: s, ctx: ctx, path: path, bucket: bucket, key: key}
	t := s.try(ctx, opGet, func(ctx context.Context, moved func()) error {
		out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: aws.String(byteRange(0, headBytes))})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		if f.head, err = readBody(out.Body, out.ContentLength, moved); err != nil {
			return err
		}
		f.etag, f.size = aws.ToString(out.ETag), int64(len(f.head))
		if r := aws.ToString(out.ContentRange); r != "" {
			_, total, _ := strings.Cut(r, "/")
			if f.size, err = strconv.ParseInt(total, 10, 64); err != nil {
				return fmt.Errorf("content range %q: %w", r, err)
			}
		}
		return nil
	})
	if failure(t.err).status == 416 {
		f.head, f.size = nil, 0 // no range of an empty object can be satisfied
		return f, nil
	}
	if t.err != nil {
		return nil, named("open", path, t.err)
	}
	return f, nil
}

func byteRange(from, n int64) string { return fmt.Sprintf("bytes=%d-%d", from, from+n-1) }

// s3File is safe for concurrent ReadAt; Read and Seek are for one goroutine.
type s3File struct {
	store       *s3Store
	ctx         context.Context // of Open: it bounds all reads
	path        string
	bucket, key string
	etag        string
	size        int64
	head        []byte

	at     int64
	stream *idleBody // from at on; nil if none is open
	closed bool
}

func (f *s3File) Size() int64 { return f.size }

func (f *s3File) ReadAt(p []byte, off int64) (int, error) {
	switch {
	case off < 0:
		return 0, named("read", f.path, os.ErrInvalid)
	case off >= f.size:
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), f.size-off)]
	if off+int64(len(want)) <= int64(len(f.head)) {
		copy(want, f.head[off:])
	} else if len(want) > 0 {
		t := f.store.try(f.ctx, opGet, func(ctx context.Context, moved func()) error {
			out, err := f.get(ctx, off, int64(len(want)))
			if err != nil {
				return err
			}
			defer out.Close()
			if n, err := io.ReadFull(&movingBody{out, moved}, want); err != nil {
				return &shortBody{got: int64(n), want: int64(len(want)), cause: err}
			}
			return nil
		})
		if t.err != nil {
			return 0, named("read", f.path, t.err)
		}
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

func (f *s3File) get(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	in := &s3.GetObjectInput{Bucket: &f.bucket, Key: &f.key, Range: aws.String(byteRange(off, n))}
	if f.etag != "" {
		in.IfMatch = &f.etag
	}
	out, err := f.store.client.GetObject(ctx, in)
	if err != nil {
		return nil, err
	}
	if got := aws.ToInt64(out.ContentLength); got != n {
		_ = out.Body.Close()
		return nil, fmt.Errorf("asked for %d bytes at %d, offered %d", n, off, got)
	}
	return out.Body, nil
}

// Read goes on from one request for all that is left; a body that breaks or
// stands still is asked for again from there.
func (f *s3File) Read(p []byte) (int, error) {
	if f.closed {
		return 0, named("read", f.path, os.ErrClosed)
	}
	if f.at >= f.size {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if f.at < int64(len(f.head)) {
		n := copy(p, f.head[f.at:])
		f.at += int64(n)
		return n, nil
	}
	for broken := 0; ; broken++ {
		if f.stream == nil {
			t := f.store.try(f.ctx, opGet, func(context.Context, func()) (err error) {
				f.stream, err = f.open()
				return err
			})
			if t.err != nil {
				return 0, named("read", f.path, t.err)
			}
		}
		n, err := f.stream.Read(p)
		if n > 0 {
			f.at += int64(n)
			return n, nil
		}
		f.stop()
		if err == nil {
			continue
		}
		err = s3Error(f.ctx, &shortBody{got: f.at, want: f.size, cause: err})
		if broken == tries || f.ctx.Err() != nil {
			return 0, named("read", f.path, err)
		}
	}
}

func (f *s3File) open() (*idleBody, error) {
	ctx, cancel := context.WithCancel(f.ctx)
	b := &idleBody{cancel: cancel, quiet: f.store.quiet, timer: time.AfterFunc(f.store.quiet, cancel)}
	body, err := f.get(ctx, f.at, f.size-f.at)
	if err != nil {
		b.timer.Stop()
		cancel()
		return nil, err
	}
	b.body = body
	return b, nil
}

func (f *s3File) stop() {
	if f.stream != nil {
		f.stream.close()
		f.stream = nil
	}
}

func (f *s3File) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return 0, named("seek", f.path, os.ErrInvalid)
	}
	if offset != f.at {
		f.stop()
	}
	f.at = offset
	return offset, nil
}

func (f *s3File) Close() error {
	f.stop()
	f.closed = true
	return nil
}

// idleBody cancels its request when nothing was read for too long.
type idleBody struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	quiet  time.Duration
	timer  *time.Timer
}

func (b *idleBody) Read(p []byte) (int, error) {
	b.timer.Reset(b.quiet)
	n, err := b.body.Read(p)
	b.timer.Stop() // the time between two calls is the caller's
	return n, err
}

func (b *idleBody) close() {
	b.timer.Stop()
	b.cancel()
	_ = b.body.Close()
}
