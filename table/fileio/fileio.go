// Package fileio is the only door to where the lake and the records live: a
// local disk, S3, later HDFS. Paths are full URIs (file:///srv/lake/…,
// s3://bucket/key) everywhere.
//
// Its one promise that everything rests on: CreateExclusive makes a file whole
// or not at all, durable on return, and only one of many callers wins.
package fileio

import (
	"context"
	"errors"
	"io"
	"time"
)

var (
	// ErrExists: CreateExclusive found the name taken.
	ErrExists = errors.New("file exists")
	// ErrNotExist: there is no such file.
	ErrNotExist = errors.New("file does not exist")
	// ErrChanged: Replace found another version than it was told.
	ErrChanged = errors.New("file was changed by somebody else")
	// ErrUnknown: the outcome of a write isn't known (a lost reply, a time-out
	// after the request went out). Read before deciding.
	ErrUnknown = errors.New("outcome of the write is unknown")
	// ErrUnavailable: the store can't be reached, throttles, is full or out of
	// order; the same call may succeed later.
	ErrUnavailable = errors.New("store is unavailable")
	// ErrDenied: the store refuses (credentials, rights, no such bucket, a
	// missing feature such as conditional writes).
	ErrDenied = errors.New("store refuses")
)

// FS is one store. It is safe for concurrent use. Errors wrap one of the
// package's errors where it applies, and name the path.
type FS interface {
	// Create starts a new file, under a name that was never used. It is visible
	// and durable only after Close has returned nil; until then Abort leaves
	// nothing behind. The end of ctx ends the writing, too.
	Create(ctx context.Context, path string) (Writer, error)
	// CreateExclusive makes the file whole, only if the name is free.
	CreateExclusive(ctx context.Context, path string, data []byte) error
	// Put makes or overwrites a small file, whole.
	Put(ctx context.Context, path string, data []byte) error
	// Replace overwrites a small file if its version is still the one that
	// Read gave ("" : it must not exist), and returns the new version.
	Replace(ctx context.Context, path string, data []byte, version string) (string, error)
	// Read returns a whole file and its version.
	Read(ctx context.Context, path string) (data []byte, version string, err error)
	// Open gives random access to a file. The end of ctx ends the reading, too.
	Open(ctx context.Context, path string) (File, error)
	// Stat returns size and time of the last change.
	Stat(ctx context.Context, path string) (Info, error)
	// List calls fn for each file below the folder, in the order of names.
	List(ctx context.Context, folder string, fn func(Info) error) error
	// Remove removes files; one that isn't there is no error.
	Remove(ctx context.Context, paths ...string) error
}

// Writer is a file being written, strictly forward.
type Writer interface {
	io.Writer
	// Close makes the file durable and visible.
	Close() error
	// Abort gives the file up; harmless after Close.
	Abort() error
}

// File is a file being read.
type File interface {
	io.Reader
	io.ReaderAt
	io.Seeker
	io.Closer
	Size() int64
}

// Info describes a file.
type Info struct {
	Path    string
	Size    int64
	ModTime time.Time
}
