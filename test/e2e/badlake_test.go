package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// mountTmpfs gives the test a small file system of its own; remount changes its
// options.
func mountTmpfs(t *testing.T, options string) (dir string, remount func(options string)) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir, func(options string) {
		t.Helper()
		flags := uintptr(syscall.MS_REMOUNT)
		if rest, ro := strings.CutPrefix(options, "ro,"); ro {
			flags, options = flags|syscall.MS_RDONLY, rest
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
			t.Fatalf("remount: %v", err)
		}
	}
}

func TestWarehouseThatCannotBeWritten(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "ro")
	s.Exec(t, "CREATE TABLE ro.a(id INT PRIMARY KEY)", "INSERT INTO ro.a VALUES(1)")

	t.Run("read-only at the start", func(t *testing.T) {
		dir, remount := mountTmpfs(t, "size=50m")
		remount("ro,size=50m")
		p := harness.NewPipeline(t, s, "ro", "ro.*").Set("catalog.filesystem.warehouse", "file://"+dir)
		refuses(t, p, harness.ExitConfig, dir)
		remount("size=50m")
		p.Run()
		p.Wait(waitLimit)
		judge(t).Equal(t, p, s, db, "a")
		p.Stop()
	})
	t.Run("a file where the folder should be", func(t *testing.T) {
		p := harness.NewPipeline(t, s, "ro", "ro.*")
		file := filepath.Join(p.Dir, "lake")
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, p, harness.ExitConfig, file)
	})
	t.Run("read-only while running", func(t *testing.T) {
		dir, remount := mountTmpfs(t, "size=50m")
		p := harness.NewPipeline(t, s, "ro", "ro.*").Set("catalog.filesystem.warehouse", "file://"+dir)
		p.Run()
		p.Wait(waitLimit)
		remount("ro,size=50m")
		s.Exec(t, "INSERT INTO ro.a VALUES(2)", "UPDATE ro.a SET id=id+10")
		stops(t, p, harness.ExitConfig, 60*time.Second, dir, "read-only")
		remount("size=50m")
		p.Run()
		p.Wait(waitLimit)
		judge(t).Equal(t, p, s, db, "a")
		p.Stop()
	})
}

func TestDiskFull(t *testing.T) {
	s := server(t, harness.MariaDB)
	for _, where := range []string{"lake", "records"} {
		t.Run(where, func(t *testing.T) {
			db := database(t, s, "full")
			s.Exec(t, "CREATE TABLE full.a(id INT PRIMARY KEY, b LONGBLOB)", "INSERT INTO full.a VALUES(1,'x')")
			dir, remount := mountTmpfs(t, "size=12m")
			key := map[string]string{"lake": "catalog.filesystem.warehouse", "records": "checkpoint.store"}[where]
			p := harness.NewPipeline(t, s, "full", "full.*").Set(key, "file://"+dir)
			p.Run()
			p.Wait(waitLimit)
			// Something else fills the disk, and the source goes on.
			ballast := filepath.Join(dir, "ballast")
			if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); err == nil {
				t.Fatal("the disk isn't full")
			}
			for i := range 10 {
				s.Exec(t, f("INSERT INTO full.a VALUES(%d,RANDOM_BYTES(1024))", 10+i), f("UPDATE full.a SET b=RANDOM_BYTES(500) WHERE id=%d", 10+i/2))
			}
			p.State(60*time.Second, "waiting_lake")
			// A restart on a full disk waits for its budget and leaves with 69.
			p.Kill()
			p.Run()
			stops(t, p, harness.ExitUnavailable, 60*time.Second, "space")
			p.Run()
			remount("size=100m")
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			if p.Running() {
				p.Wait(waitLimit)
			} else {
				p.Kill()
				p.Run()
				p.Wait(waitLimit)
			}
			judge(t).Equal(t, p, s, db, "a")
			p.Stop()
		})
	}
}

// TestS3AsWarehouse: the store crashes and is away for a while, a second daemon
// is kept out by the lease, and a key that is wrong is refused.
func TestS3AsWarehouse(t *testing.T) {
	eachServer(t, func(t *testing.T, s *harness.Server) {
		db := database(t, s, "s3")
		s.Exec(t, "CREATE TABLE s3.a(id INT PRIMARY KEY, v TEXT)", "CREATE TABLE s3.b(id INT PRIMARY KEY, v TEXT)")
		for i := range 100 {
			s.Exec(t, f("INSERT INTO s3.a VALUES(%d,REPEAT('%d',1000))", i, i))
		}
		store := harness.StartS3(t)
		j := harness.NewJudge(store.Env(), "duckdb")
		t.Cleanup(j.Close)
		p := harness.NewPipeline(t, s, "s3", "s3.*").UseS3(store, "wh/"+s.Kind.Source, true)

		t.Run("wrong key", func(t *testing.T) {
			p.Set("storage.s3.secret_key", "wrong")
			refuses(t, p, harness.ExitConfig, "s3|403|denied|signature")
			p.Set("storage.s3.secret_key", store.SecretKey)
		})
		t.Run("no bucket", func(t *testing.T) {
			q := harness.NewPipeline(t, s, "s3", "s3.*").UseS3(store, "wh", true).
				Set("catalog.filesystem.warehouse", "s3://nosuchbucket/wh").Set("storage.s3.region", store.Region)
			refuses(t, q, harness.ExitConfig, "nosuchbucket")
		})
		p.Run()
		p.Wait(waitLimit)
		for _, r := range []string{"a", "b"} {
			j.Equal(t, p, s, db, r)
		}

		away := 15 * time.Second
		if *long {
			away = time.Minute
		}
		store.Kill(t)
		s.Exec(t, "UPDATE s3.a SET v='new' WHERE id<50", "INSERT INTO s3.b SELECT * FROM s3.a", "DELETE FROM s3.a WHERE id>90")
		gone := time.After(away)
		p.State(60*time.Second, "waiting_lake")
		<-gone
		store.Start(t)
		p.State(120*time.Second, "streaming")
		p.Wait(waitLimit)
		for _, r := range []string{"a", "b"} {
			j.Equal(t, p, s, db, r)
		}

		// Killed without notice; the next takes over when the lease has run out.
		s.Exec(t, "UPDATE s3.b SET v='x' WHERE id%2=0")
		p.Kill()
		s.Exec(t, "DELETE FROM s3.b WHERE id%5=0")
		p.Set("retry_budget", "2m")
		p.Run()
		p.Wait(2 * waitLimit)
		for _, r := range []string{"a", "b"} {
			j.Equal(t, p, s, db, r)
		}
		p.Stop()
	})
}

// TestSecondDaemonOnS3: of two daemons on one pipeline one ends with 75, and
// nothing is lost or doubled.
func TestSecondDaemonOnS3(t *testing.T) {
	s := server(t, harness.MariaDB)
	db := database(t, s, "lease")
	s.Exec(t, "CREATE TABLE lease.a(id INT PRIMARY KEY)", "INSERT INTO lease.a VALUES(1)")
	store := harness.StartS3(t)
	j := harness.NewJudge(store.Env())
	t.Cleanup(j.Close)
	p := harness.NewPipeline(t, s, "lease", "lease.*").UseS3(store, "lease", true)
	p.Run()
	p.Wait(waitLimit)
	q := harness.NewPipeline(t, s, "lease", "lease.*").UseS3(store, "lease", true).Set("source.mariadb.server_id", "5410-5413")
	q.Run()
	e := q.Ended(90 * time.Second)
	if e.Killed || e.Code != harness.ExitFenced {
		t.Errorf("the second daemon: %+v, want exit %d\n%s", e, harness.ExitFenced, q.LogTail(10))
	}
	s.Exec(t, "INSERT INTO lease.a VALUES(2)")
	p.Wait(waitLimit)

	// The first one sleeps through its lease; the second takes over; the first
	// wakes up and must go.
	p.Signal(syscall.SIGSTOP)
	s.Exec(t, "INSERT INTO lease.a VALUES(3)", "UPDATE lease.a SET id=11 WHERE id=1")
	q.Set("retry_budget", "2m")
	deadline := time.Now().Add(3 * time.Minute)
	for {
		q.Run()
		if e := q.Ended(40 * time.Second); e.Killed {
			q.Run() // it holds the lease: it was still running
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the second daemon never took over: %+v", e)
		}
	}
	q.Wait(2 * waitLimit)
	s.Exec(t, "DELETE FROM lease.a WHERE id=2")
	p.Signal(syscall.SIGCONT)
	if e := p.Ended(60 * time.Second); e.Killed || e.Code != harness.ExitFenced {
		t.Errorf("the daemon that lost its lease: %+v, want exit %d\n%s", e, harness.ExitFenced, p.LogTail(10))
	}
	q.Wait(waitLimit)
	j.Equal(t, q, s, db, "a")
	q.Stop()
}
