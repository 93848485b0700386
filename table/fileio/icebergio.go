package fileio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	iceio "github.com/apache/iceberg-go/io"
)

// IO lets iceberg-go read and write through a store. Beyond its least interface
// it reads and writes whole files, lists and removes in bulk. Its files are
// never renamed: a commit is made by CreateExclusive, not here.
func IO(store FS) iceio.IO { return IOContext(context.Background(), store) }

// IOContext is IO whose requests end with ctx, as iceberg-go hands none down.
func IOContext(ctx context.Context, store FS) iceio.IO { return icebergIO{ctx, store} }

type icebergIO struct {
	ctx   context.Context
	store FS
}

var (
	_ iceio.ReadFileIO      = icebergIO{}
	_ iceio.WriteFileIO     = icebergIO{}
	_ iceio.ListableIO      = icebergIO{}
	_ iceio.BulkRemovableIO = icebergIO{}
	_ iceio.StatIO          = icebergIO{}
)

// pathError speaks io/fs: iceberg-go tests for fs.ErrNotExist.
func pathError(op, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotExist):
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case errors.Is(err, ErrExists):
		err = fmt.Errorf("%w: %w", fs.ErrExist, err)
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (i icebergIO) Open(name string) (iceio.File, error) {
	f, err := i.store.Open(i.ctx, name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return icebergFile{f, name}, nil
}

func (i icebergIO) ReadFile(name string) ([]byte, error) {
	data, _, err := i.store.Read(i.ctx, name)
	return data, pathError("read", name, err)
}

func (i icebergIO) Create(name string) (iceio.FileWriter, error) {
	w, err := i.store.Create(i.ctx, name)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	return icebergWriter{w}, nil
}

func (i icebergIO) WriteFile(name string, p []byte) error {
	return pathError("write", name, i.store.Put(i.ctx, name, p))
}

func (i icebergIO) Remove(name string) error {
	return pathError("remove", name, i.store.Remove(i.ctx, name))
}

func (i icebergIO) DeleteFiles(ctx context.Context, paths []string) ([]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	if err := i.store.Remove(ctx, paths...); err == nil {
		return paths, nil
	}
	// Which ones went is found out one by one; those that are gone already cost
	// nothing but the request.
	var deleted []string
	var errs []error
	for _, p := range paths {
		if err := i.store.Remove(ctx, p); err != nil {
			errs = append(errs, err)
			continue
		}
		deleted = append(deleted, p)
	}
	return deleted, errors.Join(errs...)
}

func (i icebergIO) Stat(name string) (fs.FileInfo, error) {
	info, err := i.store.Stat(i.ctx, name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return fileInfo{info}, nil
}

// WalkDir visits root and the files below it; folders between them are not
// visited, since object stores have none.
func (i icebergIO) WalkDir(root string, fn fs.WalkDirFunc) error {
	root = strings.TrimRight(root, "/")
	err := fn(root, fs.FileInfoToDirEntry(folderInfo(root)), nil)
	if errors.Is(err, fs.SkipDir) || errors.Is(err, fs.SkipAll) {
		return nil
	}
	if err != nil {
		return err
	}
	var skip string // a folder to leave out, with its slash
	var failed error
	err = i.store.List(i.ctx, root, func(info Info) error {
		if skip != "" && strings.HasPrefix(info.Path, skip) {
			return nil
		}
		failed = fn(info.Path, fs.FileInfoToDirEntry(fileInfo{info}), nil)
		if errors.Is(failed, fs.SkipDir) {
			skip = info.Path[:strings.LastIndexByte(info.Path, '/')+1]
			failed = nil
		}
		return failed
	})
	switch {
	case errors.Is(failed, fs.SkipAll):
		return nil
	case failed != nil:
		return failed
	case err != nil:
		return fn(root, fs.FileInfoToDirEntry(folderInfo(root)), pathError("walk", root, err))
	}
	return nil
}

type icebergFile struct {
	File
	name string
}

func (f icebergFile) Stat() (fs.FileInfo, error) {
	return fileInfo{Info{Path: f.name, Size: f.Size()}}, nil
}

type icebergWriter struct{ Writer }

func (w icebergWriter) ReadFrom(r io.Reader) (int64, error) {
	if rf, ok := w.Writer.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(writeOnly{w.Writer}, r)
}

type fileInfo struct{ Info }

func (i fileInfo) Name() string       { return path.Base(i.Path) }
func (i fileInfo) Size() int64        { return i.Info.Size }
func (i fileInfo) Mode() fs.FileMode  { return fileMode }
func (i fileInfo) ModTime() time.Time { return i.Info.ModTime }
func (i fileInfo) IsDir() bool        { return false }
func (i fileInfo) Sys() any           { return nil }

type folderInfo string

func (i folderInfo) Name() string       { return path.Base(string(i)) }
func (i folderInfo) Size() int64        { return 0 }
func (i folderInfo) Mode() fs.FileMode  { return fs.ModeDir | folderMode }
func (i folderInfo) ModTime() time.Time { return time.Time{} }
func (i folderInfo) IsDir() bool        { return true }
func (i folderInfo) Sys() any           { return nil }

// writeOnly hides ReadFrom from io.Copy, which would call it again.
type writeOnly struct{ io.Writer }
