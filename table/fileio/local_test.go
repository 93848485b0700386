package fileio_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func openLocal(t *testing.T, dir string, opts fileio.Options) (fileio.FS, string) {
	t.Helper()
	root := "file://" + dir
	store, err := fileio.Open(t.Context(), root, config.Storage{}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return store, root
}

func TestLocalKeepsThePromisesOfAStore(t *testing.T) {
	store, root := openLocal(t, t.TempDir(), fileio.Options{})
	testStore(t, store, root)
}

func TestLocalLeavesNoTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	store, root := openLocal(t, dir, fileio.Options{})
	p := root + "/a/b/file"
	_ = store.CreateExclusive(t.Context(), p, []byte("x"))
	_ = store.CreateExclusive(t.Context(), p, []byte("y"))
	_ = store.Put(t.Context(), p, []byte("z"))
	_, _ = store.Replace(t.Context(), p, []byte("z"), "not the version")
	_, _ = store.Replace(t.Context(), p, []byte("z"), "")
	// The name is taken when the writer closes.
	w, err := store.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); !errors.Is(err, fileio.ErrExists) {
		t.Errorf("close: got %v, want ErrExists", err)
	}
	wantContent(t, store, p, "z")
	entries, err := os.ReadDir(filepath.Join(dir, "a/b"))
	if err != nil || len(entries) != 1 {
		t.Errorf("folder holds %v, %v", entries, err)
	}
}

func TestLocalModesLetTheGroupRead(t *testing.T) {
	dir := t.TempDir()
	store, root := openLocal(t, dir, fileio.Options{})
	if err := store.Put(t.Context(), root+"/sub/file", nil); err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]os.FileMode{"sub": 0o750, "sub/file": 0o640} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if extra := fi.Mode().Perm() &^ most; extra != 0 || fi.Mode().Perm()&0o400 == 0 {
			t.Errorf("%s has mode %o", name, fi.Mode().Perm())
		}
	}
}

func TestLocalSaysDeniedWhereTheDiskRefuses(t *testing.T) {
	dir := t.TempDir()
	store, root := openLocal(t, dir, fileio.Options{})
	if err := store.Put(t.Context(), root+"/file", nil); err != nil {
		t.Fatal(err)
	}
	// A file where a folder is needed: refused for writing, absent for reading.
	err := store.CreateExclusive(t.Context(), root+"/file/below", nil)
	if !errors.Is(err, fileio.ErrDenied) {
		t.Errorf("below a file: %v", err)
	}
	if _, _, err := store.Read(t.Context(), root+"/file/below"); !errors.Is(err, fileio.ErrNotExist) {
		t.Errorf("read below a file: %v", err)
	}
	err = store.CreateExclusive(t.Context(), root+"/"+strings.Repeat("n", 300), nil)
	if !errors.Is(err, fileio.ErrDenied) {
		t.Errorf("long name: %v", err)
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		if err := store.Put(t.Context(), root+"/other", nil); !errors.Is(err, fileio.ErrDenied) {
			t.Errorf("read-only folder: %v", err)
		}
	}
}

// A full disk is waited out, and nothing half remains of what did not fit.
func TestLocalSaysUnavailableWhereTheDiskIsFull(t *testing.T) {
	if os.Getenv("LAKESYNCD_TEST_FULL_DISK") == "" {
		inNamespace(t, "LAKESYNCD_TEST_FULL_DISK")
		return
	}
	dir := t.TempDir()
	// As root without a user namespace mounts would be seen outside.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	store, root := openLocal(t, dir, fileio.Options{})
	big := make([]byte, 2<<20)
	if err := store.CreateExclusive(t.Context(), root+"/v1.json", big); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("create: got %v, want ErrUnavailable", err)
	}
	w, err := store.Create(t.Context(), root+"/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(big); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("write: got %v, want ErrUnavailable", err)
	}
	if err := w.Close(); !errors.Is(err, fileio.ErrUnavailable) {
		t.Errorf("close: got %v, want ErrUnavailable", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("left on the disk: %v, %v", entries, err)
	}
	if err := store.CreateExclusive(t.Context(), root+"/v1.json", []byte("fits")); err != nil {
		t.Error(err)
	}
}

// inNamespace runs the calling test again where it may mount.
func inNamespace(t *testing.T, env string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "PASS: "+t.Name()) {
		t.Errorf("the test did not run:\n%s", out)
	}
}

func TestLocalCountsRequests(t *testing.T) {
	var n fileio.Requests
	reg := prometheus.NewRegistry()
	store, root := openLocal(t, t.TempDir(), fileio.Options{Requests: &n, Registerer: reg})
	other, _ := openLocal(t, t.TempDir(), fileio.Options{Registerer: reg})
	_ = store.CreateExclusive(t.Context(), root+"/a", nil)
	_ = store.CreateExclusive(t.Context(), root+"/a", nil)
	_, _ = other.Stat(t.Context(), root+"/b")
	if n.Get("put") != 2 || n.Total() != 2 {
		t.Errorf("requests: %v", &n)
	}
	want := `
# HELP lakesyncd_store_requests_total Requests to the stores of the lake and of the records, by kind of store, operation and result.
# TYPE lakesyncd_store_requests_total counter
lakesyncd_store_requests_total{op="head",result="not_exist",store="file"} 1
lakesyncd_store_requests_total{op="put",result="exists",store="file"} 1
lakesyncd_store_requests_total{op="put",result="ok",store="file"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestOpenRefusesWhatItCannotServe(t *testing.T) {
	for uri, want := range map[string]string{
		"/srv/lake":           "not a full URI",
		"file://host/lake":    "names a host",
		"file:relative":       "not absolute",
		"hdfs://nn:8020/lake": "not in this version",
		"gs://bucket/lake":    "unknown scheme",
		"file:///srv//lake":   "empty segment",
		"file:///srv/../lake": `".."`,
	} {
		_, err := fileio.Open(t.Context(), uri, config.Storage{}, fileio.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", uri, err, want)
		}
	}
	if p, ok := fileio.LocalPath("file:///srv/lake%20x/"); !ok || p != "/srv/lake%20x" {
		t.Errorf("LocalPath gives %q, %v", p, ok)
	}
	if _, ok := fileio.LocalPath("s3://b/k"); ok {
		t.Error("LocalPath accepts s3")
	}
}

// The file survives the death of the writer whole or not at all: here only that
// what is unfinished is under no name that anybody reads.
func TestLocalHidesWhatACrashLeaves(t *testing.T) {
	dir := t.TempDir()
	store, root := openLocal(t, dir, fileio.Options{})
	w, err := store.Create(t.Context(), root+"/data/file")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if _, err := io.WriteString(w, "half"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "data"))
	if err != nil || len(entries) != 1 || entries[0].Name()[0] != '.' {
		t.Errorf("folder holds %v, %v", entries, err)
	}
	if got := list(t, store, root); len(got) != 0 {
		t.Errorf("listed: %v", got)
	}
}
