package fileio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// oddNames are file names that stores and URL handling get wrong.
var oddNames = []string{
	"plain.parquet", "day=2024-01-01", "with space", "plus+plus", "per%20cent", "100%",
	"hash#tag", "question?mark", "amp&ersand", "semi;colon", "ümlaut-日本語", "tilde~", "quote'\"", "back\\slash",
	"a:b", "(paren)", "[bracket]", "star*", "comma,equals==",
}

// testStore is what every store must keep. root is an empty folder.
func testStore(t *testing.T, store fileio.FS, root string) {
	ctx := t.Context()
	sub := func(name string) string { return fileio.Join(root, strings.ReplaceAll(name, " ", "_")) }

	t.Run("CreateExclusive takes a name once", func(t *testing.T) {
		p := sub("exclusive/v1.json")
		if err := store.CreateExclusive(ctx, p, []byte("first")); err != nil {
			t.Fatal(err)
		}
		err := store.CreateExclusive(ctx, p, []byte("second"))
		if !errors.Is(err, fileio.ErrExists) {
			t.Fatalf("second create: got %v, want ErrExists", err)
		}
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error does not name the path: %v", err)
		}
		wantContent(t, store, p, "first")
	})

	t.Run("one of many callers of CreateExclusive wins", func(t *testing.T) {
		for round := range 10 {
			p := sub(fmt.Sprintf("race/v%d.json", round))
			var won atomic.Int32
			var winner atomic.Value
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					body := fmt.Sprintf("writer %d", i)
					err := store.CreateExclusive(ctx, p, []byte(body))
					switch {
					case err == nil:
						won.Add(1)
						winner.Store(body)
					case !errors.Is(err, fileio.ErrExists):
						t.Errorf("loser got %v, want ErrExists", err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Fatalf("%d winners", won.Load())
			}
			wantContent(t, store, p, winner.Load().(string))
		}
	})

	t.Run("Put overwrites", func(t *testing.T) {
		p := sub("put/hint.text")
		for _, s := range []string{"1", "22", ""} {
			if err := store.Put(ctx, p, []byte(s)); err != nil {
				t.Fatal(err)
			}
			wantContent(t, store, p, s)
		}
	})

	t.Run("Replace asks for the version that Read gave", func(t *testing.T) {
		p := sub("replace/lease.json")
		v1, err := store.Replace(ctx, p, []byte("one"), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Replace(ctx, p, []byte("again"), ""); !errors.Is(err, fileio.ErrChanged) {
			t.Fatalf("replace of nothing where something is: got %v, want ErrChanged", err)
		}
		_, read, err := store.Read(ctx, p)
		if err != nil || read != v1 {
			t.Fatalf("read gives version %q (%v), replace gave %q", read, err, v1)
		}
		v2, err := store.Replace(ctx, p, []byte("two"), v1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Replace(ctx, p, []byte("stale"), v1); !errors.Is(err, fileio.ErrChanged) {
			t.Fatalf("replace of an old version: got %v, want ErrChanged", err)
		}
		wantContent(t, store, p, "two")
		if err := store.Remove(ctx, p); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Replace(ctx, p, []byte("ghost"), v2); !errors.Is(err, fileio.ErrChanged) {
			t.Fatalf("replace of a removed file: got %v, want ErrChanged", err)
		}
	})

	t.Run("Replace of one version succeeds for one caller", func(t *testing.T) {
		p := sub("replace-race/lease.json")
		version, err := store.Replace(ctx, p, []byte("start"), "")
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			var won atomic.Int32
			var next atomic.Value
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					v, err := store.Replace(ctx, p, fmt.Appendf(nil, "%s by %d", version, i), version)
					switch {
					case err == nil:
						won.Add(1)
						next.Store(v)
					case !errors.Is(err, fileio.ErrChanged):
						t.Errorf("loser got %v, want ErrChanged", err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Fatalf("%d winners", won.Load())
			}
			version = next.Load().(string)
		}
	})

	t.Run("what is not there", func(t *testing.T) {
		p := sub("nowhere/file")
		if _, _, err := store.Read(ctx, p); !errors.Is(err, fileio.ErrNotExist) {
			t.Errorf("read: %v", err)
		}
		if _, err := store.Stat(ctx, p); !errors.Is(err, fileio.ErrNotExist) {
			t.Errorf("stat: %v", err)
		}
		if _, err := store.Open(ctx, p); !errors.Is(err, fileio.ErrNotExist) {
			t.Errorf("open: %v", err)
		}
		if err := store.Remove(ctx, p, p); err != nil {
			t.Errorf("remove: %v", err)
		}
		if err := store.List(ctx, sub("nowhere"), func(i fileio.Info) error { return fmt.Errorf("found %s", i.Path) }); err != nil {
			t.Errorf("list: %v", err)
		}
	})

	t.Run("Create shows nothing before Close", func(t *testing.T) {
		p := sub("create/file")
		w, err := store.Create(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "hello, "); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Stat(ctx, p); !errors.Is(err, fileio.ErrNotExist) {
			t.Errorf("stat before close: %v", err)
		}
		if got := list(t, store, sub("create")); len(got) != 0 {
			t.Errorf("list before close: %v", got)
		}
		if _, err := io.WriteString(w, "world"); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.Abort(); err != nil {
			t.Errorf("abort after close: %v", err)
		}
		if err := w.Close(); err == nil {
			t.Error("second close succeeded")
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("write after close succeeded")
		}
		wantContent(t, store, p, "hello, world")
	})

	t.Run("Abort leaves nothing", func(t *testing.T) {
		p := sub("abort/file")
		w, err := store.Create(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if err := w.Abort(); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err == nil {
			t.Error("close after abort succeeded")
		}
		if got := list(t, store, sub("abort")); len(got) != 0 {
			t.Errorf("left: %v", got)
		}
	})

	t.Run("a canceled context ends an upload", func(t *testing.T) {
		p := sub("cancel/file")
		wctx, cancel := context.WithCancel(ctx)
		w, err := store.Create(wctx, p)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte("half"))
		cancel()
		if err := w.Close(); !errors.Is(err, context.Canceled) {
			t.Errorf("close: got %v, want context.Canceled", err)
		}
		if _, err := store.Stat(ctx, p); !errors.Is(err, fileio.ErrNotExist) {
			t.Errorf("stat: %v", err)
		}
	})

	t.Run("an empty file", func(t *testing.T) {
		p := sub("empty/file")
		w, err := store.Create(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		wantContent(t, store, p, "")
		f, err := store.Open(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Size() != 0 {
			t.Errorf("size %d", f.Size())
		}
		if n, err := f.ReadAt(make([]byte, 4), 0); n != 0 || err != io.EOF {
			t.Errorf("read: %d, %v", n, err)
		}
	})

	t.Run("Open reads any range", func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		for _, size := range []int{1, 1000, 256<<10 - 1, 256 << 10, 256<<10 + 1, 3 << 20} {
			want := make([]byte, size)
			for i := range want {
				want[i] = byte(rng.Uint32())
			}
			p := sub(fmt.Sprintf("ranges/%d", size))
			if err := store.Put(ctx, p, want); err != nil {
				t.Fatal(err)
			}
			f, err := store.Open(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if f.Size() != int64(size) {
				t.Errorf("size %d, want %d", f.Size(), size)
			}
			for range 20 {
				off := rng.Int64N(int64(size))
				buf := make([]byte, 1+rng.IntN(size))
				n, err := f.ReadAt(buf, off)
				wantN := min(len(buf), size-int(off))
				if n != wantN || (n < len(buf)) != (err == io.EOF) || err != nil && err != io.EOF {
					t.Fatalf("size %d: ReadAt(%d, %d) = %d, %v", size, len(buf), off, n, err)
				}
				if !bytes.Equal(buf[:n], want[off:int(off)+n]) {
					t.Fatalf("size %d: ReadAt(%d, %d): wrong bytes", size, len(buf), off)
				}
			}
			if _, err := f.Seek(int64(size/2), io.SeekStart); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(f)
			if err != nil || !bytes.Equal(got, want[size/2:]) {
				t.Fatalf("size %d: read after seek: %d bytes, %v", size, len(got), err)
			}
			if at, err := f.Seek(-1, io.SeekEnd); err != nil || at != int64(size-1) {
				t.Fatalf("seek from the end: %d, %v", at, err)
			}
			got, err = io.ReadAll(f)
			if err != nil || !bytes.Equal(got, want[size-1:]) {
				t.Fatalf("last byte: %v, %v", got, err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("names are taken as they are", func(t *testing.T) {
		for _, n := range oddNames {
			p := fileio.Join(root, "names", n, n)
			if err := store.CreateExclusive(ctx, p, []byte(n)); err != nil {
				t.Errorf("%q: %v", n, err)
				continue
			}
			wantContent(t, store, p, n)
			info, err := store.Stat(ctx, p)
			if err != nil || info.Size != int64(len(n)) || info.Path != p || info.ModTime.IsZero() {
				t.Errorf("stat %q: %+v, %v", n, info, err)
			}
			f, err := store.Open(ctx, p)
			if err != nil {
				t.Errorf("open %q: %v", n, err)
				continue
			}
			if got, err := io.ReadAll(f); err != nil || string(got) != n {
				t.Errorf("open %q: %q, %v", n, got, err)
			}
			_ = f.Close()
		}
		found := map[string]bool{}
		for _, p := range list(t, store, sub("names")) {
			found[p] = true
		}
		var paths []string
		for _, n := range oddNames {
			p := fileio.Join(root, "names", n, n)
			paths = append(paths, p)
			if !found[p] {
				t.Errorf("not listed: %s", p)
			}
		}
		if err := store.Remove(ctx, paths...); err != nil {
			t.Error(err)
		}
		if left := list(t, store, sub("names")); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})

	t.Run("List is in the order of paths and below the folder only", func(t *testing.T) {
		names := []string{"l/a.txt", "l/a/b", "l/a/c/d", "l/a0", "l/b"}
		for _, n := range append([]string{"l2/x", "k/y"}, names...) {
			if err := store.Put(ctx, sub("list/"+n), []byte(n)); err != nil {
				t.Fatal(err)
			}
		}
		var want []string
		for _, n := range names {
			want = append(want, sub("list/"+n))
		}
		if diff := cmp.Diff(want, list(t, store, sub("list/l"))); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want, list(t, store, sub("list/l")+"/")); diff != "" {
			t.Error(diff)
		}
		stop := errors.New("enough")
		var n int
		err := store.List(ctx, sub("list/l"), func(fileio.Info) error {
			if n++; n == 2 {
				return stop
			}
			return nil
		})
		if err != stop || n != 2 {
			t.Errorf("list ends with %v after %d files", err, n)
		}
	})

	t.Run("paths that stores normalise differently are refused", func(t *testing.T) {
		for _, tail := range []string{"a//b", "a/", "a/../b", "./a", "a\x00b"} {
			p := root + "/" + tail
			if err := store.CreateExclusive(ctx, p, nil); err == nil {
				t.Errorf("%q was accepted", p)
			}
			if _, _, err := store.Read(ctx, p); err == nil || errors.Is(err, fileio.ErrNotExist) {
				t.Errorf("%q: read gives %v", p, err)
			}
		}
	})

	t.Run("a canceled context stops every call", func(t *testing.T) {
		p := sub("canceled/file")
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, errCreate := store.Create(done, p)
		_, errReplace := store.Replace(done, p, nil, "")
		_, _, errRead := store.Read(done, p)
		_, errOpen := store.Open(done, p)
		_, errStat := store.Stat(done, p)
		for what, err := range map[string]error{
			"create": errCreate, "replace": errReplace, "read": errRead, "open": errOpen, "stat": errStat,
			"exclusive": store.CreateExclusive(done, p, nil),
			"put":       store.Put(done, p, nil),
			"list":      store.List(done, root, func(fileio.Info) error { return nil }),
			"remove":    store.Remove(done, p),
		} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func wantContent(t *testing.T, store fileio.FS, path, want string) {
	t.Helper()
	got, version, err := store.Read(t.Context(), path)
	if err != nil {
		t.Error(err)
		return
	}
	if string(got) != want {
		t.Errorf("%s holds %q, want %q", path, got, want)
	}
	if version == "" {
		t.Errorf("%s: no version", path)
	}
}

func list(t *testing.T, store fileio.FS, folder string) []string {
	t.Helper()
	var got []string
	if err := store.List(t.Context(), folder, func(i fileio.Info) error {
		got = append(got, i.Path)
		return nil
	}); err != nil {
		t.Error(err)
	}
	return got
}
