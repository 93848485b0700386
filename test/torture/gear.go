package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A toxiproxy is a server of github.com/Shopify/toxiproxy and its proxies.
type toxiproxy struct {
	t   harness.T
	api string
}

func startToxiproxy(t harness.T, port int) *toxiproxy {
	x := &toxiproxy{t: t, api: "http://127.0.0.1:" + strconv.Itoa(port)}
	cmd := exec.Command(filepath.Join(harness.Root(), "test/servers/tool.sh"), "toxiproxy-server", "-port", strconv.Itoa(port))
	cmd.Env = append(os.Environ(), "LOG_LEVEL=error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("toxiproxy: %v", err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
		cmd.Wait()                                      //nolint:errcheck // killed above
	})
	if !harness.Poll(2*time.Minute, func() bool {
		resp, err := http.Get(x.api + "/version")
		if err == nil {
			resp.Body.Close() //nolint:errcheck // nothing is read
		}
		return err == nil
	}) {
		t.Fatalf("toxiproxy does not answer")
	}
	return x
}

func (x *toxiproxy) call(method, path string, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		x.t.Fatalf("toxiproxy: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.t.Context()), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, x.api+path, bytes.NewReader(b))
	if err != nil {
		x.t.Fatalf("toxiproxy: %v", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		x.t.Fatalf("toxiproxy: %v", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(resp.Body) //nolint:errcheck // the status says enough
		x.t.Fatalf("toxiproxy: %s %s: %s: %s", method, path, resp.Status, text)
	}
}

// add makes a proxy that listens on a port.
func (x *toxiproxy) add(name string, listen, upstream int) {
	x.call("POST", "/proxies", map[string]any{"name": name, "listen": fmt.Sprintf("127.0.0.1:%d", listen),
		"upstream": fmt.Sprintf("127.0.0.1:%d", upstream)})
}

// cut ends all connections and refuses new ones, until mended.
func (x *toxiproxy) cut(name string) {
	x.call("POST", "/proxies/"+name, map[string]any{"enabled": false})
}

// toxic harms one direction: "upstream" hits requests, "downstream" replies.
func (x *toxiproxy) toxic(name, kind, stream string, attributes map[string]any) {
	x.call("POST", "/proxies/"+name+"/toxics", map[string]any{"name": kind + "-" + stream, "type": kind, "stream": stream, "attributes": attributes})
}

// mend takes everything off all proxies.
func (x *toxiproxy) mend() { x.call("POST", "/reset", nil) }

// A disk is a file system of its own in memory, which can be made full.
type disk struct {
	t   harness.T
	dir string
}

const diskSize = "size=6g"

func newDisk(t harness.T, name string) *disk {
	d := &disk{t: t, dir: filepath.Join(t.TempDir(), name)}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, diskSize); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", d.dir, err)
		}
	})
	return d
}

// fill leaves so many bytes free. A writer may be faster: then it is full.
func (d *disk) fill(free int64) {
	for ; ; free += 4 << 20 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(d.dir, &st); err != nil {
			d.t.Fatalf("%v", err)
		}
		used := (int64(st.Blocks) - int64(st.Bfree)) * st.Bsize
		err := syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", (used+free)/st.Bsize*st.Bsize+st.Bsize))
		if err == nil {
			return
		}
		if free > 64<<20 {
			d.t.Fatalf("fill %s: %v", d.dir, err)
		}
	}
}

func (d *disk) empty() {
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_REMOUNT, diskSize); err != nil {
		d.t.Fatalf("free %s: %v", d.dir, err)
	}
}

// A cage is a control group that limits the memory of a process; nil where the
// machine has none.
type cage struct{ dir, limit, usage string }

func newCage(t harness.T) *cage {
	for _, c := range []cage{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
		{"/sys/fs/cgroup", "memory.max", "memory.current"},
	} {
		dir := filepath.Join(c.dir, fmt.Sprintf("lakesync-torture-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(c.dir, "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			// It can go once its processes have.
			harness.Poll(5*time.Second, func() bool { return os.Remove(dir) == nil })
		})
		if _, err := os.Stat(filepath.Join(dir, c.limit)); err == nil {
			c.dir = dir
			return &c
		}
	}
	return nil
}

func (c *cage) write(file, text string) error {
	return os.WriteFile(filepath.Join(c.dir, file), []byte(text), 0o600)
}

func (c *cage) add(pid int) error { return c.write("cgroup.procs", strconv.Itoa(pid)) }

// squeeze leaves the processes next to nothing above what they use.
func (c *cage) squeeze(more int64) error {
	b, err := os.ReadFile(filepath.Join(c.dir, c.usage))
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return err
	}
	return c.write(c.limit, strconv.FormatInt(n+more, 10))
}

func (c *cage) release() {
	if c.write(c.limit, "max") != nil {
		c.write(c.limit, "-1") //nolint:errcheck // the next daemon would die, which shows
	}
}
