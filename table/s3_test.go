package table_test

import (
	"context"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

const s3Port = "24131"

func TestCommitsOnS3(t *testing.T) {
	if testing.Short() {
		t.Skip("needs an S3 server")
	}
	dir := t.TempDir()
	script := func(verb string) string {
		cmd := exec.Command("../test/servers/s3.sh", verb, "-p", s3Port, "-d", dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("s3.sh %s: %v", verb, err)
		}
		return string(out)
	}
	settings := script("start")
	t.Cleanup(func() { script("wipe") })
	ctx := context.Background()
	requests := &fileio.Requests{}
	warehouse := "s3://lake/warehouse"
	fs, err := fileio.Open(ctx, warehouse, config.Storage{S3: config.S3{
		Endpoint: "http://127.0.0.1:" + s3Port, Region: "us-east-1", PathStyle: true, AccessKey: "lakesync", SecretKey: "lakesync-secret",
	}}, fileio.Options{Requests: requests})
	if err != nil {
		t.Fatal(err)
	}
	l := &lake{t: t, fs: &faults{FS: fs}, requests: requests, warehouse: warehouse, now: time.Now(), snapshots: config.Snapshots{Min: 5, Max: 20}}
	tb := l.create("shop.orders")
	commits := int64(60)
	sum := 0
	for i := int64(1); i <= commits; i++ {
		d := delta(tb, []table.File{l.data(tb, row{i, "a"}), l.deletes(tb, i-1)})
		before := requests.Total()
		commit(t, tb, d, mark(i))
		sum += requests.Total() - before
	}
	t.Logf("%.2f requests for a commit", float64(sum)/float64(commits))
	if float64(sum)/float64(commits) > 9 {
		t.Error("too many")
	}
	// Two instances race for each version.
	a, b := l.load("shop.orders"), l.load("shop.orders")
	for i := commits + 1; i <= commits+10; i++ {
		d := delta(a, []table.File{l.data(a, row{i, "a"}), l.deletes(a, i-1)})
		var wg sync.WaitGroup
		var landed [2]bool
		for n, handle := range []*table.Table{a, b} {
			// Ends with the commit.
			wg.Go(func() {
				res, err := handle.Commit(ctx, d, mark(i))
				if err != nil {
					t.Error(err)
				}
				landed[n] = !res.Skipped
			})
		}
		wg.Wait()
		if landed[0] == landed[1] {
			t.Fatalf("checkpoint %d: %v", i, landed)
		}
	}
	expected := lines(row{commits + 10, "a"})
	want(t, rows(t, l.load("shop.orders"), table.RowsOptions{}), expected)

	java := func(verb string, args ...string) []string {
		cmd := exec.Command("../test/readers/java.sh", append([]string{verb, warehouse + "/shop/orders"}, args...)...)
		cmd.Env = append(os.Environ(), environment(settings)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("java %s: %v\n%s", verb, err, out)
		}
		got := strings.Split(strings.TrimSpace(string(out)), "\n")
		sort.Strings(got)
		return got
	}
	java("check", "--all")
	want(t, java("rows"), expected)
}

// environment reads the assignments that the server's script prints.
func environment(settings string) (out []string) {
	for line := range strings.Lines(settings) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if name, value, ok := strings.Cut(line, "="); ok {
			out = append(out, name+"="+strings.Trim(value, `'"`))
		}
	}
	return out
}
