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
	t       harness.T
	port    int
	api     string
	client  http.Client
	cmd     *exec.Cmd
	proxies []map[string]any
}

func startToxiproxy(t harness.T, port int) *toxiproxy {
	x := &toxiproxy{t: t, port: port, api: "http://127.0.0.1:" + strconv.Itoa(port), client: http.Client{Timeout: 5 * time.Second}}
	x.start()
	t.Cleanup(x.stop)
	return x
}

func (x *toxiproxy) start() {
	x.cmd = exec.Command(filepath.Join(harness.Root(), "test/servers/tool.sh"), "toxiproxy-server", "-port", strconv.Itoa(x.port))
	x.cmd.Env = append(os.Environ(), "LOG_LEVEL=error")
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := x.cmd.Start(); err != nil {
		x.t.Fatalf("toxiproxy: %v", err)
	}
	if !harness.Poll(2*time.Minute, func() bool { return x.call("GET", "/version", nil) == nil }) {
		x.t.Fatalf("toxiproxy does not answer")
	}
}

func (x *toxiproxy) stop() {
	syscall.Kill(-x.cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
	x.cmd.Wait()                                      //nolint:errcheck // killed above
}

func (x *toxiproxy) call(method, path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(x.t.Context()), method, x.api+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := x.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(resp.Body) //nolint:errcheck // the status says enough
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

func (x *toxiproxy) must(method, path string, body any) {
	if err := x.call(method, path, body); err != nil {
		x.t.Fatalf("toxiproxy: %s %s: %v", method, path, err)
	}
}

// add makes a proxy that listens on a port.
func (x *toxiproxy) add(name string, listen, upstream int) {
	p := map[string]any{"name": name, "listen": fmt.Sprintf("127.0.0.1:%d", listen), "upstream": fmt.Sprintf("127.0.0.1:%d", upstream)}
	x.proxies = append(x.proxies, p)
	x.must("POST", "/proxies", p)
}

// cut ends all connections and refuses new ones, until mended.
func (x *toxiproxy) cut(name string) {
	x.must("POST", "/proxies/"+name, map[string]any{"enabled": false})
}

// toxic harms one direction: "upstream" hits requests, "downstream" replies.
func (x *toxiproxy) toxic(name, kind, stream string, attributes map[string]any) {
	x.must("POST", "/proxies/"+name+"/toxics", map[string]any{"name": kind + "-" + stream, "type": kind, "stream": stream, "attributes": attributes})
}

// mend takes everything off all proxies. Toxiproxy can hang when it ends a stall;
// then it is started anew, which cuts all connections.
func (x *toxiproxy) mend() {
	if x.call("POST", "/reset", nil) == nil {
		return
	}
	x.stop()
	x.start()
	for _, p := range x.proxies {
		x.must("POST", "/proxies", p)
	}
}

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
