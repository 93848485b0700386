package fileio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

const (
	chunkBytes = 256 << 10
	partBytes  = 8 << 20
	// partsPerSize: S3 takes 10,000 parts, so parts grow after each so many.
	// Up to 16 GiB all are of one size, as some stores demand.
	partsPerSize = 2000
)

// chunkList hands out buffers of one size and keeps some for reuse.
type chunkList struct{ free chan []byte }

func newChunkList(keep int) *chunkList { return &chunkList{make(chan []byte, keep)} }

func (l *chunkList) get() []byte {
	select {
	case c := <-l.free:
		return c
	default:
		return make([]byte, chunkBytes)
	}
}

func (l *chunkList) put(chunks [][]byte) {
	for _, c := range chunks {
		select {
		case l.free <- c:
		default:
			return
		}
	}
}

// part is a part of a file in memory. It takes as much as it holds, not the size
// that it may grow to, so that many small files can be open at once.
type part struct {
	chunks [][]byte
	size   int
}

func (p *part) append(b []byte, list *chunkList) {
	for len(b) > 0 {
		at := p.size % chunkBytes
		if at == 0 {
			p.chunks = append(p.chunks, list.get())
		}
		n := copy(p.chunks[len(p.chunks)-1][at:], b)
		p.size += n
		b = b[n:]
	}
}

// partReader reads a part, several times over if need be.
type partReader struct {
	*part
	at int64
}

func (r *partReader) Read(b []byte) (n int, err error) {
	if r.at >= int64(r.size) {
		return 0, io.EOF
	}
	for len(b) > 0 && r.at < int64(r.size) {
		c := r.chunks[r.at/chunkBytes]
		if last := r.size - int(r.at/chunkBytes)*chunkBytes; last < chunkBytes {
			c = c[:last]
		}
		m := copy(b, c[r.at%chunkBytes:])
		n, r.at, b = n+m, r.at+int64(m), b[m:]
	}
	return n, nil
}

func (r *partReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += int64(r.size)
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	r.at = offset
	return offset, nil
}

// Create starts an object. Up to 8 MiB it is one PUT at Close; beyond, an upload
// in parts, each sent beside the writing of the next. Names are never used
// twice, so nothing is asked about what may be there.
func (s *s3Store) Create(ctx context.Context, path string) (Writer, error) {
	bucket, key, err := s.enter(ctx, path)
	if err != nil {
		return nil, named("create", path, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	return &s3Writer{store: s, ctx: ctx, cancel: cancel, path: path, bucket: bucket, key: key}, nil
}

// s3Writer is used by one goroutine; one of its own sends a part at a time.
type s3Writer struct {
	store       *s3Store
	ctx         context.Context // of Create: it bounds the whole upload
	cancel      context.CancelFunc
	path        string
	bucket, key string

	filling part
	upload  string // id of the upload in parts, "" before the first part
	started int32  // parts begun
	total   int64  // bytes in them
	done    bool

	sending sync.WaitGroup
	mu      sync.Mutex
	parts   []types.CompletedPart
	err     error // the first
}

func (w *s3Writer) partSize() int {
	return partBytes << (w.started / partsPerSize)
}

func (w *s3Writer) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *s3Writer) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *s3Writer) Write(b []byte) (n int, err error) {
	if w.done {
		return 0, named("write", w.path, os.ErrClosed)
	}
	for len(b) > 0 {
		if err := w.failed(); err != nil {
			return n, named("write", w.path, err)
		}
		if err := w.ctx.Err(); err != nil {
			return n, named("write", w.path, err)
		}
		// A full part is sent only when more comes, so that the last part is
		// never empty and a file of exactly one part is a single PUT.
		if w.filling.size == w.partSize() {
			if err := w.send(); err != nil {
				w.fail(err)
				return n, named("write", w.path, err)
			}
		}
		m := min(len(b), w.partSize()-w.filling.size)
		w.filling.append(b[:m], w.store.chunks)
		n, b = n+m, b[m:]
	}
	return n, nil
}

// send hands the filled part to a goroutine.
func (w *s3Writer) send() error {
	s := w.store
	if w.upload == "" {
		t := s.try(w.ctx, opStart, func(ctx context.Context, moved func()) error {
			out, err := s.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &w.bucket, Key: &w.key})
			if err == nil {
				w.upload = aws.ToString(out.UploadId)
			}
			return err
		})
		if t.err != nil {
			return t.err
		}
	}
	w.sending.Wait() // one at a time for each file
	select {
	case s.slots <- struct{}{}:
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
	w.started++
	number, p := w.started, w.filling
	w.total += int64(p.size)
	w.filling = part{}
	// It ends with its request, which ends with the writer's context.
	w.sending.Go(func() {
		defer func() { <-s.slots }()
		var etag *string
		t := s.try(w.ctx, opPart, func(ctx context.Context, moved func()) error {
			out, err := s.client.UploadPart(ctx, &s3.UploadPartInput{
				Bucket: &w.bucket, Key: &w.key, UploadId: &w.upload, PartNumber: &number,
				Body: &movingReader{&partReader{part: &p}, moved}, ContentLength: aws.Int64(int64(p.size)),
			})
			if err == nil {
				etag = out.ETag
			}
			return err
		})
		if t.err != nil {
			w.fail(t.err)
			return
		}
		s.chunks.put(p.chunks)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.parts = append(w.parts, types.CompletedPart{ETag: etag, PartNumber: &number})
	})
	return nil
}

func (w *s3Writer) Close() error {
	if w.done {
		return named("close", w.path, os.ErrClosed)
	}
	err := w.finish()
	if err != nil {
		err = named("close", w.path, err)
		// Whatever the outcome, nobody will name this file.
		if abort := w.Abort(); abort != nil {
			w.store.log.Warn("an upload could not be aborted", "path", w.path, "err", abort)
		}
	}
	w.done = true
	w.cancel()
	return err
}

func (w *s3Writer) finish() error {
	s := w.store
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.upload == "" {
		if err := w.failed(); err != nil {
			return err
		}
		t := s.try(w.ctx, opPut, func(ctx context.Context, moved func()) error {
			_, err := s.client.PutObject(ctx, &s3.PutObjectInput{
				Bucket: &w.bucket, Key: &w.key,
				Body: &movingReader{&partReader{part: &w.filling}, moved}, ContentLength: aws.Int64(int64(w.filling.size)),
			})
			return err
		})
		if t.err == nil {
			s.chunks.put(w.filling.chunks)
			w.filling = part{}
		}
		return t.err
	}
	if err := w.send(); err != nil {
		return err
	}
	w.sending.Wait()
	if err := w.failed(); err != nil {
		return err
	}
	t := s.try(w.ctx, opFinish, func(ctx context.Context, moved func()) error {
		_, err := s.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &w.bucket, Key: &w.key, UploadId: &w.upload,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: w.parts},
		})
		return err
	})
	if t.err == nil || !t.mayExist || w.ctx.Err() != nil {
		return t.err
	}
	// A try whose reply was lost may have completed it. The name is ours alone,
	// so an object of that size is the file.
	info, err := s.Stat(w.ctx, w.path)
	if err == nil && info.Size == w.total {
		return nil
	}
	return t.err
}

func (w *s3Writer) Abort() error {
	if w.done {
		return nil
	}
	w.done = true
	w.cancel()
	w.sending.Wait()
	w.filling = part{}
	if w.upload == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), 10*time.Second)
	defer cancel()
	s := w.store
	t := s.try(ctx, opAbort, func(ctx context.Context, moved func()) error {
		_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &w.bucket, Key: &w.key, UploadId: &w.upload})
		return err
	})
	if failure(t.err).code == "NoSuchUpload" {
		return nil
	}
	return named(fmt.Sprintf("abort upload %s of", w.upload), w.path, t.err)
}
