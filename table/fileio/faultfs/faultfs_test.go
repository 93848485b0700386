package faultfs_test

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
	"github.com/lakesyncd/lakesyncd/table/fileio/faultfs"
)

func open(t *testing.T, rules ...string) (*faultfs.FS, string) {
	t.Helper()
	root := "file://" + t.TempDir()
	under, err := fileio.Open(t.Context(), root, config.Storage{}, fileio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := faultfs.New(under, rules...)
	if err != nil {
		t.Fatal(err)
	}
	return f, root
}

func TestRulesFireWhereTheySay(t *testing.T) {
	f, root := open(t,
		"exclusive v*.metadata.json: fail nth=2",
		"exclusive v*.metadata.json: fail-after nth=3",
		"put *: enospc",
		"stat *: fail err=denied times=0",
	)
	want := []error{nil, fileio.ErrUnavailable, fileio.ErrUnknown, fileio.ErrExists}
	for i, n := range []string{"v1", "v2", "v3", "v3"} {
		err := f.CreateExclusive(t.Context(), root+"/m/"+n+".metadata.json", []byte(n))
		if !errors.Is(err, want[i]) {
			t.Errorf("%s: got %v, want %v", n, err, want[i])
		}
	}
	if _, _, err := f.Read(t.Context(), root+"/m/v2.metadata.json"); !errors.Is(err, fileio.ErrNotExist) {
		t.Errorf("v2 was made: %v", err)
	}
	if err := f.Put(t.Context(), root+"/hint", nil); !errors.Is(err, fileio.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("put: %v", err)
	}
	if err := f.Put(t.Context(), root+"/hint", nil); err != nil {
		t.Errorf("second put: %v", err)
	}
	for range 3 {
		if _, err := f.Stat(t.Context(), root+"/hint"); !errors.Is(err, fileio.ErrDenied) || !errors.Is(err, faultfs.ErrInjected) {
			t.Errorf("stat: %v", err)
		}
	}
	if f.Fired() != 6 {
		t.Errorf("fired %d", f.Fired())
	}
	f.Clear()
	f.Calls()
	_, _ = f.Stat(t.Context(), root+"/hint")
	if diff := cmp.Diff([]string{"stat " + root + "/hint"}, f.Calls()); diff != "" {
		t.Error(diff)
	}
}

func TestStaleShowsWhatWasThereBefore(t *testing.T) {
	f, root := open(t, "read hint: stale times=0", "list *: stale times=0", "open hint: stale", "stat hint: stale")
	p := root + "/hint"
	for _, s := range []string{"1", "22"} {
		if err := f.Put(t.Context(), p, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if got, _, err := f.Read(t.Context(), p); err != nil || string(got) != "1" {
		t.Errorf("read: %q, %v", got, err)
	}
	file, err := f.Open(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(file); err != nil || string(got) != "1" {
		t.Errorf("open: %q, %v", got, err)
	}
	if i, err := f.Stat(t.Context(), p); err != nil || i.Size != 1 {
		t.Errorf("stat: %v, %v", i, err)
	}
	if err := f.CreateExclusive(t.Context(), root+"/new", nil); err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := f.List(t.Context(), root, func(i fileio.Info) error { names = append(names, i.Path); return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{p}, names); diff != "" {
		t.Error(diff)
	}
}

func TestCrashEndsEverything(t *testing.T) {
	f, root := open(t, "close b: crash-after")
	for _, n := range []string{"a", "b", "c"} {
		w, err := f.Create(t.Context(), root+"/"+n)
		if err == nil {
			err = w.Close()
		}
		if (err == nil) != (n == "a") {
			t.Errorf("%s: %v", n, err)
		}
	}
	if _, _, err := f.Read(t.Context(), root+"/a"); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("read of the dead: %v", err)
	}
	f.Clear()
	if _, _, err := f.Read(t.Context(), root+"/b"); err != nil {
		t.Errorf("b was not made: %v", err)
	}
}

func TestPartialWriteFailsTheFile(t *testing.T) {
	f, root := open(t, "write *: partial nth=2", "readat *: fail nth=2", "replace *: slow delay=1ms")
	w, err := f.Create(t.Context(), root+"/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Write(make([]byte, 10)); n != 5 || !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("%d, %v", n, err)
	}
	if err := w.Close(); err == nil {
		t.Error("close succeeded")
	}
	start := time.Now()
	if _, err := f.Replace(t.Context(), root+"/data", []byte("0123456789"), ""); err != nil || time.Since(start) < time.Millisecond {
		t.Errorf("replace: %v", err)
	}
	file, err := f.Open(t.Context(), root+"/data")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.ReadAt(make([]byte, 1), 0); err != nil {
		t.Error(err)
	}
	if _, err := file.ReadAt(make([]byte, 1), 0); !errors.Is(err, fileio.ErrUnavailable) {
		t.Error(err)
	}
}

func TestWrongRulesAreRefused(t *testing.T) {
	for _, text := range []string{"", "create x", "fly x: fail", "create x: explode", "create x: fail err=odd", "create x: fail nth=x", "create x: fail often=1", "create x: "} {
		if _, err := faultfs.New(nil, text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
