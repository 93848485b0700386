// Command torture runs the real program against a real server and a real lake
// while one fault after the other befalls them: crashes and freezes of the
// daemon, of the server and of the store, networks that cut, stall or swallow,
// disks that are full, memory that is short, second instances. Writers with a
// known history go on all the while. Again and again they pause, and the tables
// must then hold every row of the source once and nothing else, as readers see
// them that are not ours.
//
// The choice of faults is the seed's, and so is the writers'; when what happens
// meets what else happens is the machine's. It leaves nothing running.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// firstPort is the first of the ports that a run takes: servers from there on,
// then toxiproxy, and http of the daemons at the end.
const firstPort = 24321

type options struct {
	faults, round, audit int
	seed                 int64
	source, warehouse    string
	only, keep           string
	slot                 int
}

func main() {
	var o options
	flag.IntVar(&o.faults, "n", 50, "`NUMBER` of faults")
	flag.Int64Var(&o.seed, "seed", 0, "`SEED` of all choices; 0 takes one from the clock")
	flag.StringVar(&o.source, "source", "mariadb", "mysql, mariadb or mariadb10")
	flag.StringVar(&o.warehouse, "warehouse", "file", "file or s3")
	flag.IntVar(&o.round, "round", 12, "faults until everything begins anew, with new tables")
	flag.IntVar(&o.audit, "audit", 6, "faults until the tables are read")
	flag.StringVar(&o.only, "only", "", "names of faults, parted by commas")
	flag.StringVar(&o.keep, "keep", filepath.Join(os.TempDir(), "lakesync-torture"), "`FOLDER` for what is left of a run that failed")
	flag.IntVar(&o.slot, "slot", 0, "0 or 1: two runs with different slots and sources can go on at once, one of them with s3")
	flag.Parse()
	if o.seed == 0 {
		o.seed = time.Now().UnixNano()
	}
	os.Exit(harness.Program("torture", func(t harness.T) { run(t, o) }))
}

// A count is what a run found.
type count struct {
	faults, lost, doubled, wrong, corrupt int
	// failures are what isn't a row: unexpected ends, and waits without end.
	failures     int
	transactions int64
	rows         int
}

func (c *count) bad() bool { return c.lost+c.doubled+c.wrong+c.corrupt+c.failures > 0 }

func run(t harness.T, o options) {
	kinds := map[string]harness.Kind{"mysql": harness.MySQL, "mariadb": harness.MariaDB, "mariadb10": harness.MariaDB10_11}
	kind, ok := kinds[o.source]
	if !ok {
		t.Fatalf("-source %s? mysql, mariadb and mariadb10 are to be had", o.source)
	}
	if o.warehouse != "file" && o.warehouse != "s3" {
		t.Fatalf("-warehouse %s? file and s3 are to be had", o.warehouse)
	}
	t.Logf("seed %d, %d faults, source %v, warehouse %s", o.seed, o.faults, kind, o.warehouse)
	harness.Binary(t)
	// Connections die here all the time.
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil {
		t.Fatalf("%v", err)
	}
	port := firstPort
	if kind.Source == "mariadb" {
		port++
	}
	lock(t, fmt.Sprintf("port-%d", port))
	lock(t, fmt.Sprintf("slot-%d", o.slot))
	s := harness.Start(t, kind, port, "--innodb-lock-wait-timeout=5")
	api := firstPort + 3 + 3*o.slot
	toxi := startToxiproxy(t, api)
	toxi.add("db", api+1, port)
	b := &bench{options: o, s: s, toxi: toxi, dbPort: api + 1, http: firstPort + 9 + 2*o.slot, cage: newCage(t), count: &count{}}
	if o.warehouse == "s3" {
		lock(t, "s3")
		leftover(t, firstPort+2)
		d := newDisk(t, "store")
		b.store = harness.StartS3At(t, firstPort+2, d.dir)
		toxi.add("s3", api+2, firstPort+2)
		b.s3Endpoint = fmt.Sprintf("http://127.0.0.1:%d", api+2)
		b.disks = []*disk{d}
	} else {
		b.disks = []*disk{newDisk(t, "lake"), newDisk(t, "records")}
	}
	env := []string{"LAKESYNC_READERS_HEAP=2g"}
	if b.store != nil {
		env = append(env, b.store.Env()...)
	}
	b.java, b.duckdb = harness.NewReader("java", env...), harness.NewReader("duckdb", env...)
	t.Cleanup(b.java.Close)
	t.Cleanup(b.duckdb.Close)
	began := time.Now()
	for i := 0; b.count.faults < o.faults && !b.count.bad() && !t.Failed(); i++ {
		b.round(t, i, rand.New(rand.NewPCG(uint64(o.seed), uint64(i))))
	}
	c := b.count
	t.Logf("%d transactions, %d rows read and compared, %.0f s, at most %d MB resident", c.transactions, c.rows, time.Since(began).Seconds(), b.peak>>20)
	line := fmt.Sprintf("faults %d lost %d doubled %d wrong %d corrupt %d", c.faults, c.lost, c.doubled, c.wrong, c.corrupt)
	if c.failures > 0 {
		line += fmt.Sprintf(" failures %d", c.failures)
	}
	t.Logf("%s", line)
	if c.bad() || t.Failed() {
		t.Errorf("seed %d failed; again: make torture N=%d SEED=%d SOURCE=%s WAREHOUSE=%s", o.seed, o.faults, o.seed, o.source, o.warehouse)
	}
}

// lock keeps other runs off what this one takes, until it ends, whatever ends it.
func lock(t harness.T, what string) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "lakesync-torture-"+what+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // it only holds the lock
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return
	}
	t.Logf("another run has %s; waiting for its end", what)
	for syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		if t.Context().Err() != nil {
			t.Fatalf("interrupted")
		}
		time.Sleep(time.Second)
	}
}

// leftover makes sure that nobody serves a port that is about to be ours: the
// store's script would take any server there for its own.
func leftover(t harness.T, port int) {
	if !harness.Poll(10*time.Second, func() bool {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		return l.Close() == nil
	}) {
		t.Fatalf("port %d is taken, perhaps by the store of a run that was killed", port)
	}
}

// selected says whether -only lets a fault happen.
func (o *options) selected(name string) bool {
	if o.only == "" {
		return true
	}
	for _, n := range strings.Split(o.only, ",") {
		if n == name {
			return true
		}
	}
	return false
}
