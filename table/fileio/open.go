package fileio

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/prometheus/client_golang/prometheus"
)

// Options of a store. The zero value is fine.
type Options struct {
	Log        *slog.Logger          // default: nothing is logged
	Registerer prometheus.Registerer // default: no metrics
	// RetryWait is before the second try of a request to an object store; it
	// grows fourfold from try to try. Default 100ms.
	RetryWait time.Duration
	// Quiet is how long a request to an object store may stand still before it is
	// given up. Default 20s.
	Quiet time.Duration
	// Requests, if set, counts what is asked of the store, for tests.
	Requests *Requests
}

// Open gives the store that uri lies in, chosen by its scheme: file:///path or
// s3://bucket/prefix. The store serves every path of the scheme, not only those
// below uri. Nothing is asked of it yet.
func Open(ctx context.Context, uri string, storage config.Storage, opts Options) (FS, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.RetryWait <= 0 {
		opts.RetryWait = 100 * time.Millisecond
	}
	if opts.Quiet <= 0 {
		opts.Quiet = 20 * time.Second
	}
	scheme, _, ok := strings.Cut(uri, ":")
	if !ok {
		return nil, fmt.Errorf("open store %q: not a full URI: write file:///path or s3://bucket/prefix", uri)
	}
	switch scheme {
	case "file":
		if _, err := localPath(strings.TrimRight(uri, "/")); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		return newLocal(opts), nil
	case "s3":
		if _, _, err := bucketKey(strings.TrimRight(uri, "/")); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		store, err := newS3(ctx, storage.S3, opts)
		if err != nil {
			return nil, fmt.Errorf("open store %s: %w", uri, err)
		}
		return store, nil
	case "hdfs":
		return nil, fmt.Errorf("open store %q: hdfs is not in this version: use file:// or s3://", uri)
	default:
		return nil, fmt.Errorf("open store %q: unknown scheme %q: use file:// or s3://", uri, scheme)
	}
}

// Join puts a path together from a folder and names below it, with exactly one
// slash between them.
func Join(folder string, names ...string) string {
	var b strings.Builder
	b.WriteString(strings.TrimRight(folder, "/"))
	for _, n := range names {
		b.WriteByte('/')
		b.WriteString(strings.Trim(n, "/"))
	}
	return b.String()
}

// LocalPath is the path on the local disk that a file: URI names.
func LocalPath(uri string) (path string, ok bool) {
	p, err := localPath(strings.TrimRight(uri, "/"))
	return p, err == nil
}

// checkKey refuses what stores and readers normalise differently.
func checkKey(key string) error {
	for seg := range strings.SplitSeq(key, "/") {
		switch seg {
		case "":
			return fmt.Errorf("an empty segment (a doubled or trailing slash)")
		case ".", "..":
			return fmt.Errorf("the segment %q", seg)
		}
	}
	if strings.ContainsRune(key, 0) {
		return fmt.Errorf("a zero byte")
	}
	return nil
}
