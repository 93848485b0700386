package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
	"github.com/lakesyncd/lakesyncd/table/fileio/faultfs"
)

func TestLockKeepsASecondInstanceOut(t *testing.T) {
	dir := t.TempDir()
	folder := "file://" + dir + "/new/folder"
	first, err := Acquire(t.Context(), nil, folder, "db1/4711", LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Acquire(t.Context(), nil, folder, "db1/4712", LeaseOptions{})
	if !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "db1/4711") {
		t.Errorf("second: got %v, want ErrFenced that names the first", err)
	}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, err := Acquire(t.Context(), nil, folder, "db1/4712", LeaseOptions{})
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	if first.Err() != nil || second.Err() != nil {
		t.Errorf("lost: %v, %v", first.Err(), second.Err())
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLockThatWasReplacedIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l, err := Acquire(t.Context(), nil, "file://"+dir, "me", LeaseOptions{})
		if err != nil {
			t.Fatal(err)
		}
		remove(t, filepath.Join(dir, "lock"))
		<-l.Lost()
		if !errors.Is(l.Err(), ErrFenced) {
			t.Errorf("got %v, want ErrFenced", l.Err())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLockOfAReadOnlyFolderIsDenied(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(t.Context(), nil, "file://"+file+"/below", "me", LeaseOptions{}); !errors.Is(err, fileio.ErrDenied) {
		t.Errorf("got %v, want ErrDenied", err)
	}
}

// holdEnv makes the test program a holder of a lease that can be killed.
const holdEnv = "LAKESYNCD_TEST_HOLD"

func TestMain(m *testing.M) {
	if what := os.Getenv(holdEnv); what != "" {
		os.Exit(hold(what))
	}
	os.Exit(m.Run())
}

func hold(what string) int {
	kind, dir, _ := strings.Cut(what, ":")
	fs, err := openFS("file://" + dir)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	if kind == "lock" {
		_, err = Acquire(ctx, fs, "file://"+dir, "child", LeaseOptions{})
	} else {
		_, err = acquireObject(ctx, fs, "file://"+dir+"/lease.json", "child", LeaseOptions{Renew: time.Hour, Misses: 1, Log: discard})
	}
	fmt.Println("held", err)
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed
	return 0
}

func startHolder(t *testing.T, kind, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+kind+":"+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 200)
	n, _ := out.Read(line)
	if got := strings.TrimSpace(string(line[:n])); got != "held <nil>" {
		t.Fatalf("holder says %q", got)
	}
	return cmd
}

func TestKilledHolderIsFollowedAtOnce(t *testing.T) {
	for _, kind := range []string{"lock", "object"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			fs, err := openFS("file://" + dir)
			if err != nil {
				t.Fatal(err)
			}
			cmd := startHolder(t, kind, dir)
			if kind == "lock" {
				if _, err := Acquire(t.Context(), fs, "file://"+dir, "me", LeaseOptions{}); !errors.Is(err, ErrFenced) {
					t.Errorf("while it lives: got %v, want ErrFenced", err)
				}
			}
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if kind == "lock" {
				_ = cmd.Wait()
			} else {
				// Not waited for: it is a zombie then, and dead all the same.
				waitZombie(t, cmd.Process.Pid)
			}
			var l *Lease
			if kind == "lock" {
				l, err = Acquire(t.Context(), fs, "file://"+dir, "me", LeaseOptions{})
			} else {
				l, err = acquireObject(t.Context(), fs, "file://"+dir+"/lease.json", "me", LeaseOptions{Renew: time.Hour, Misses: 3, Log: discard})
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// waitZombie polls the kernel, which has no event for it that leaves the zombie.
func waitZombie(t *testing.T, pid int) {
	t.Helper()
	for range 1_000_000 {
		if _, zombie, err := startOf(pid); err != nil || zombie {
			return
		}
	}
	t.Fatal("the holder does not die")
}

// object gives a lease file's path, and a store with faults that it lies in.
func object(t *testing.T) (*faultfs.FS, string) {
	t.Helper()
	folder := "file://" + t.TempDir()
	under, err := openFS(folder)
	if err != nil {
		t.Fatal(err)
	}
	fs, err := faultfs.New(under)
	if err != nil {
		t.Fatal(err)
	}
	return fs, folder + "/lease.json"
}

var discard = slog.New(slog.DiscardHandler)

func openFS(uri string) (fileio.FS, error) {
	return fileio.Open(context.Background(), uri, config.Storage{}, fileio.Options{})
}

var tenSeconds = LeaseOptions{Renew: 10 * time.Second, Misses: 3, Log: discard}

// stranger writes a lease as a process of another host would.
func stranger(t *testing.T, fs fileio.FS, path string, renewal int64) {
	t.Helper()
	data, err := json.Marshal(leaseFile{Owner: "db2/1", Holder: "stranger", Renewal: renewal})
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Put(t.Context(), path, data); err != nil {
		t.Fatal(err)
	}
}

func TestLeaseOfALiveInstanceKeepsTheSecondOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, path := object(t)
		first, err := acquireObject(t.Context(), fs, path, "db1/1", tenSeconds)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = acquireObject(t.Context(), fs, path, "db1/2", tenSeconds)
		if !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "db1/1") {
			t.Errorf("second: got %v, want ErrFenced that names the first", err)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v to notice", took)
		}
		time.Sleep(5 * time.Minute)
		if first.Err() != nil {
			t.Errorf("first lost: %v", first.Err())
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		second, err := acquireObject(t.Context(), fs, path, "db1/2", tenSeconds)
		if err != nil || time.Since(began) != 0 {
			t.Fatalf("after release: %v, after %v", err, time.Since(began))
		}
		if err := second.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestLeaseIsTakenOverAfterThreeMissedRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, path := object(t)
		stranger(t, fs, path, 7)
		began := time.Now()
		l, err := acquireObject(t.Context(), fs, path, "me", tenSeconds)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 30*time.Second || took > 33*time.Second {
			t.Errorf("taken over after %v", took)
		}
		// The stranger was only asleep and takes it back: we are the loser.
		stranger(t, fs, path, 8)
		<-l.Lost()
		if !errors.Is(l.Err(), ErrFenced) || !strings.Contains(l.Err().Error(), "db2/1") {
			t.Errorf("got %v, want ErrFenced that names the other", l.Err())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestOneOfManyTakesALeaseOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, path := object(t)
		stranger(t, fs, path, 7)
		results := make(chan error)
		for i := range 5 {
			go func() {
				l, err := acquireObject(t.Context(), fs, path, fmt.Sprint("me/", i), tenSeconds)
				if err == nil {
					defer l.Release(t.Context())
				}
				results <- err
			}()
		}
		var won int
		for range 5 {
			if err := <-results; err == nil {
				won++
			} else if !errors.Is(err, ErrFenced) {
				t.Errorf("loser got %v, want ErrFenced", err)
			}
		}
		// The winner released at once, so that a late one may have won after it.
		if won < 1 {
			t.Errorf("%d winners", won)
		}
	})
}

func TestStoreThatIsDownLosesNoLease(t *testing.T) {
	for name, rules := range map[string][]string{
		"down":               {"replace *: fail times=100", "read *: fail times=100"},
		"replies lost":       {"replace *: fail-after times=6"},
		"replies lost, down": {"replace *: fail-after times=3", "read *: fail nth=1 times=3"},
		"unavailable, done":  {"replace *: fail-after err=unavailable times=3"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs, path := object(t)
				l, err := acquireObject(t.Context(), fs, path, "me", tenSeconds)
				if err != nil {
					t.Fatal(err)
				}
				if err := fs.Add(rules...); err != nil {
					t.Fatal(err)
				}
				time.Sleep(65 * time.Second)
				if fs.Fired() < 3 {
					t.Errorf("only %d faults", fs.Fired())
				}
				fs.Clear()
				_, before, err := fs.Read(t.Context(), path)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(65 * time.Second)
				_, after, err := fs.Read(t.Context(), path)
				if err != nil || after == before {
					t.Errorf("not renewed again: %v", err)
				}
				if l.Err() != nil {
					t.Errorf("lost: %v", l.Err())
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestLeaseRemovedByHandIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, path := object(t)
		l, err := acquireObject(t.Context(), fs, path, "me", tenSeconds)
		if err != nil {
			t.Fatal(err)
		}
		if err := fs.Remove(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if _, _, err := fs.Read(t.Context(), path); err != nil || l.Err() != nil {
			t.Errorf("%v, %v", err, l.Err())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBrokenLeaseIsNamed(t *testing.T) {
	fs, path := object(t)
	if err := fs.Put(t.Context(), path, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := acquireObject(t.Context(), fs, path, "me", tenSeconds); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}
