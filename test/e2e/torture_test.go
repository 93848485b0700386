package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// TestTorture lets random faults befall the daemon, the server and the store for
// some minutes, and wants no row lost, doubled or wrong, and no file corrupt
// (`make torture` is the same for longer).
func TestTorture(t *testing.T) {
	needsServers(t)
	torture := filepath.Join(t.TempDir(), "torture")
	build := exec.Command("go", "build", "-o", torture, "./test/torture")
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bin := harness.Binary(t)
	for _, c := range []struct {
		source, warehouse string
		faults            int
	}{{"mariadb", "file", 12}, {"mariadb", "s3", 8}, {"mysql", "file", 0}, {"mysql", "s3", 0}} {
		n := c.faults
		if *long {
			n = 60
		}
		if n == 0 {
			continue
		}
		t.Run(c.source+" "+c.warehouse, func(t *testing.T) {
			s := *seed
			if s == 0 {
				s = time.Now().UnixNano()
			}
			t.Logf("seed %d (make torture N=%d SEED=%d SOURCE=%s WAREHOUSE=%s)", s, n, s, c.source, c.warehouse)
			cmd := exec.CommandContext(t.Context(), torture, "-n", strconv.Itoa(n), "-seed", strconv.FormatInt(s, 10),
				"-source", c.source, "-warehouse", c.warehouse, "-audit", "6")
			// It then stops its servers.
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = time.Minute
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
			cmd.Env = append(os.Environ(), harness.EnvBinary+"="+bin)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
