package fileio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

const s3Port = "24141"

// startS3 starts a real server for the test. again starts it after kill, with
// what it held.
func startS3(t *testing.T) (cfg config.S3, kill, again func()) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short")
	}
	script, err := filepath.Abs("../../test/servers/s3.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(verb string) {
		// Its children keep the output open, so it goes to a file.
		log, err := os.Create(filepath.Join(dir, verb+".log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd := exec.Command(script, verb, "-p", s3Port, "-d", dir)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			out, _ := os.ReadFile(log.Name())
			t.Errorf("s3.sh %s: %v\n%s", verb, err, out)
		}
	}
	run("start")
	t.Cleanup(func() { run("kill") })
	cfg = config.S3{Endpoint: "http://127.0.0.1:" + s3Port, Region: "us-east-1", PathStyle: true, AccessKey: "lakesync", SecretKey: "lakesync-secret"}
	return cfg, func() { run("kill") }, func() { run("start") }
}

func openS3(t *testing.T, cfg config.S3, opts fileio.Options) fileio.FS {
	t.Helper()
	store, err := fileio.Open(t.Context(), "s3://lake/x", config.Storage{S3: cfg}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestS3(t *testing.T) {
	cfg, _, _ := startS3(t)
	var n fileio.Requests
	store := openS3(t, cfg, fileio.Options{Requests: &n})
	const root = "s3://lake/wh"

	t.Run("keeps the promises of a store", func(t *testing.T) { testStore(t, store, root+"/suite") })

	t.Run("large files go up in parts", func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 2))
		for _, size := range []int{8 << 20, 8<<20 + 1, 16 << 20, 19<<20 + 12345} {
			want := make([]byte, size)
			for i := 0; i+8 <= size; i += 8 {
				v := rng.Uint64()
				for j := range 8 {
					want[i+j] = byte(v >> (8 * j))
				}
			}
			p := fmt.Sprintf("%s/parts/%d", root, size)
			n.Reset()
			w, err := store.Create(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for rest := want; len(rest) > 0; {
				m := min(len(rest), 1+rng.IntN(1<<20))
				if _, err := w.Write(rest[:m]); err != nil {
					t.Fatal(err)
				}
				rest = rest[m:]
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			parts := (size + 8<<20 - 1) / (8 << 20)
			if parts == 1 {
				if n.Get("put") != 1 || n.Total() != 1 {
					t.Errorf("%d bytes took %v", size, &n)
				}
			} else if n.Get("part") != parts || n.Get("start") != 1 || n.Get("finish") != 1 || n.Total() != parts+2 {
				t.Errorf("%d bytes took %v", size, &n)
			}
			f, err := store.Open(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if f.Size() != int64(size) {
				t.Errorf("size %d, want %d", f.Size(), size)
			}
			n.Reset()
			got, err := io.ReadAll(f)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes read back wrong: %d bytes, %v", size, len(got), err)
			}
			if n.Total() != 1 {
				t.Errorf("reading on took %v", &n)
			}
			_ = f.Close()
		}
	})

	t.Run("an aborted upload in parts leaves nothing", func(t *testing.T) {
		p := root + "/aborted/file"
		w, err := store.Create(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 20<<20)); err != nil {
			t.Fatal(err)
		}
		n.Reset()
		if err := w.Abort(); err != nil {
			t.Fatal(err)
		}
		if n.Get("abort") != 1 {
			t.Errorf("took %v", &n)
		}
		if _, err := store.Stat(t.Context(), p); !errors.Is(err, fileio.ErrNotExist) {
			t.Errorf("stat: %v", err)
		}
	})

	t.Run("many files are removed by few requests", func(t *testing.T) {
		var paths []string
		var wg sync.WaitGroup
		for i := range 1050 {
			p := fmt.Sprintf("%s/many/%04d", root, i)
			paths = append(paths, p)
			if i%25 == 24 {
				wg.Go(func() {
					for j := i - 24; j <= i; j++ {
						if err := store.Put(t.Context(), paths[j], []byte("x")); err != nil {
							t.Error(err)
						}
					}
				})
				wg.Wait()
			}
		}
		if got := list(t, store, root+"/many"); len(got) != 1050 {
			t.Errorf("listed %d files over pages", len(got))
		}
		n.Reset()
		if err := store.Remove(t.Context(), append(paths, root+"/many/absent")...); err != nil {
			t.Fatal(err)
		}
		if n.Total() != 2 {
			t.Errorf("took %v", &n)
		}
		if got := list(t, store, root+"/many"); len(got) != 0 {
			t.Errorf("left %v", got)
		}
	})

	t.Run("small files cost one request each way", func(t *testing.T) {
		p := root + "/small"
		n.Reset()
		if err := store.CreateExclusive(t.Context(), p, []byte("x")); err != nil {
			t.Fatal(err)
		}
		f, err := store.Open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		if n.Get("put") != 1 || n.Get("get") != 1 || n.Total() != 2 {
			t.Errorf("took %v", &n)
		}
	})

	t.Run("a file that changes while it is read is an error", func(t *testing.T) {
		p := root + "/changing"
		if err := store.Put(t.Context(), p, bytes.Repeat([]byte("a"), 1<<20)); err != nil {
			t.Fatal(err)
		}
		f, err := store.Open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := store.Put(t.Context(), p, bytes.Repeat([]byte("b"), 1<<20)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(make([]byte, 10), 900<<10); !errors.Is(err, fileio.ErrChanged) {
			t.Errorf("got %v, want ErrChanged", err)
		}
	})

	t.Run("refusals are denied", func(t *testing.T) {
		wrong := cfg
		wrong.SecretKey = "wrong"
		denied := openS3(t, wrong, fileio.Options{})
		for what, c := range map[string]struct {
			store fileio.FS
			root  string
		}{"wrong secret": {denied, root}, "no such bucket": {store, "s3://no-such-bucket/wh"}} {
			p := c.root + "/file"
			_, errCreate := c.store.Create(t.Context(), p)
			if errCreate != nil {
				t.Errorf("%s: create: %v", what, errCreate)
			}
			_, _, errRead := c.store.Read(t.Context(), p)
			_, errStat := c.store.Stat(t.Context(), p)
			_, errOpen := c.store.Open(t.Context(), p)
			for op, err := range map[string]error{
				"exclusive": c.store.CreateExclusive(t.Context(), p, nil),
				"put":       c.store.Put(t.Context(), p, nil),
				"read":      errRead, "stat": errStat, "open": errOpen,
				"list": c.store.List(t.Context(), c.root, func(fileio.Info) error { return nil }),
			} {
				if !errors.Is(err, fileio.ErrDenied) {
					t.Errorf("%s: %s: got %v, want ErrDenied", what, op, err)
				} else if strings.Contains(err.Error(), "lakesync-secret") || !strings.Contains(err.Error(), c.root) {
					t.Errorf("%s: %s: %v", what, op, err)
				}
			}
		}
	})

	t.Run("a canceled upload in parts is aborted", func(t *testing.T) {
		p := root + "/canceled-parts"
		ctx, cancel := context.WithCancel(t.Context())
		w, err := store.Create(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 9<<20)); err != nil {
			t.Fatal(err)
		}
		cancel()
		n.Reset()
		if err := w.Close(); !errors.Is(err, context.Canceled) {
			t.Errorf("close: %v", err)
		}
		if n.Get("abort") != 1 {
			t.Errorf("took %v", &n)
		}
	})
}

// A server that dies in the middle of an upload is waited for by whoever calls:
// the file is not there, and the next attempt finds nothing in its way.
func TestS3UploadOverADeadServerIsUnavailable(t *testing.T) {
	cfg, kill, again := startS3(t)
	store, err := fileio.Open(t.Context(), "s3://lake", config.Storage{S3: cfg}, fileio.Options{RetryWait: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w, err := store.Create(t.Context(), "s3://lake/cut/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 9<<20)); err != nil {
		t.Fatal(err)
	}
	kill()
	_, err = w.Write(make([]byte, 30<<20))
	if err == nil {
		err = w.Close()
	} else if cerr := w.Close(); cerr == nil {
		t.Error("close after a failed write succeeded")
	}
	if !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	again()
	if got := list(t, store, "s3://lake/cut"); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
	if err := store.Put(t.Context(), "s3://lake/cut/data", []byte("again")); err != nil {
		t.Error(err)
	}
}

func TestS3IsUnavailableWhenNobodyListens(t *testing.T) {
	store := openS3(t, config.S3{Endpoint: "http://127.0.0.1:1", PathStyle: true, AccessKey: "a", SecretKey: "b"}, fileio.Options{RetryWait: time.Millisecond})
	err := store.CreateExclusive(t.Context(), "s3://lake/x/y", nil)
	if !errors.Is(err, fileio.ErrUnavailable) || errors.Is(err, fileio.ErrUnknown) {
		t.Errorf("got %v, want ErrUnavailable alone: nothing was sent", err)
	}
}
