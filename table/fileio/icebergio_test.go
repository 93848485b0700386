package fileio_test

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	iceio "github.com/apache/iceberg-go/io"
	"github.com/google/go-cmp/cmp"
	"github.com/lakesyncd/lakesyncd/table/fileio"
	"github.com/lakesyncd/lakesyncd/table/fileio/faultfs"
)

func TestIcebergReadsAndWritesThroughAStore(t *testing.T) {
	store, root := openLocal(t, t.TempDir(), fileio.Options{})
	ice := fileio.IO(store).(iceio.WriteFileIO)
	w, err := ice.Create(root + "/t/metadata/m.avro")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReadFrom(strings.NewReader("manifest")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ice.WriteFile(root+"/t/metadata/list.avro", []byte("list")); err != nil {
		t.Fatal(err)
	}
	if got, err := ice.(iceio.ReadFileIO).ReadFile(root + "/t/metadata/list.avro"); err != nil || string(got) != "list" {
		t.Errorf("read: %q, %v", got, err)
	}
	f, err := ice.Open(root + "/t/metadata/m.avro")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() != 8 || info.Name() != "m.avro" || info.IsDir() {
		t.Errorf("stat: %v, %v", info, err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != "manifest" {
		t.Errorf("read: %q, %v", got, err)
	}
	if _, err := ice.Open(root + "/t/absent"); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, fileio.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if _, err := ice.(iceio.StatIO).Stat(root + "/t/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

func TestIcebergWalksAndRemoves(t *testing.T) {
	store, root := openLocal(t, t.TempDir(), fileio.Options{})
	for _, n := range []string{"/t/a", "/t/b/1", "/t/b/2", "/t/c"} {
		if err := store.Put(t.Context(), root+n, []byte(n)); err != nil {
			t.Fatal(err)
		}
	}
	walk := func(store fileio.FS, stop string, with error) (seen []string, err error) {
		err = fileio.IO(store).(iceio.ListableIO).WalkDir(root+"/t/", func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			seen = append(seen, strings.TrimPrefix(path, root))
			if strings.HasSuffix(path, stop) {
				return with
			}
			return nil
		})
		return seen, err
	}
	broken := errors.New("broken")
	for _, c := range []struct {
		stop string
		with error
		want []string
		err  error
	}{
		{"none", nil, []string{"/t", "/t/a", "/t/b/1", "/t/b/2", "/t/c"}, nil},
		{"/t", fs.SkipDir, []string{"/t"}, nil},
		{"/1", fs.SkipDir, []string{"/t", "/t/a", "/t/b/1", "/t/c"}, nil},
		{"/1", fs.SkipAll, []string{"/t", "/t/a", "/t/b/1"}, nil},
		{"/1", broken, []string{"/t", "/t/a", "/t/b/1"}, broken},
	} {
		got, err := walk(store, c.stop, c.with)
		if err != c.err {
			t.Errorf("%s %v: got %v", c.stop, c.with, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s %v: %s", c.stop, c.with, diff)
		}
	}

	faulty, err := faultfs.New(store, "list *: fail", "remove */a: fail times=0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := walk(faulty, "none", nil); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("list fails: %v", err)
	}
	paths := []string{root + "/t/a", root + "/t/c", root + "/t/absent"}
	deleted, err := fileio.IO(faulty).(iceio.BulkRemovableIO).DeleteFiles(t.Context(), paths)
	if diff := cmp.Diff(paths[1:], deleted); diff != "" || !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	if deleted, err = fileio.IO(store).(iceio.BulkRemovableIO).DeleteFiles(t.Context(), paths); err != nil || len(deleted) != 3 {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	if got := list(t, store, root); len(got) != 2 {
		t.Errorf("left %v", got)
	}
}
