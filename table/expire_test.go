package table_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table"
)

// reachable lists every file that the metadata refers to, over all snapshots.
func reachable(tb *testing.T, t *table.Table) map[string]bool {
	tb.Helper()
	ice := t.Iceberg()
	fs, err := ice.FS(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]bool{}
	for _, s := range ice.Metadata().Snapshots() {
		out[s.ManifestList] = true
		manifests, err := s.Manifests(fs)
		if err != nil {
			tb.Fatal(err)
		}
		for _, m := range manifests {
			if out[m.FilePath()] {
				continue
			}
			out[m.FilePath()] = true
			for e, err := range m.Entries(fs, true) {
				if err != nil {
					tb.Fatal(err)
				}
				out[e.DataFile().FilePath()] = true
			}
		}
	}
	return out
}

// exact holds the files that are there against those that are referred to.
func exact(tb *testing.T, t *table.Table) {
	tb.Helper()
	refer := reachable(tb, t)
	own := regexp.MustCompile(`/metadata/(v\d+\.metadata\.json|version-hint\.text)$`)
	err := filepath.Walk(path(t.Location()), func(p string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() || own.MatchString(p) {
			return err
		}
		if !refer["file://"+p] {
			tb.Errorf("nothing refers to %s", p)
		}
		delete(refer, "file://"+p)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	for p := range refer {
		tb.Errorf("%s is missing", p)
	}
}

func TestExpiryKeepsWhatTheConfigurationSays(t *testing.T) {
	for name, c := range map[string]struct {
		snapshots config.Snapshots
		step      time.Duration
		left      int
	}{
		"max":           {config.Snapshots{Keep: config.Duration(24 * time.Hour), Min: 2, Max: 5}, time.Second, 5},
		"min over keep": {config.Snapshots{Keep: config.Duration(time.Minute), Min: 4, Max: 20}, time.Hour, 4},
		// Those of the last ten minutes, and the one that was current then.
		"keep": {config.Snapshots{Keep: config.Duration(10 * time.Minute), Min: 1, Max: 20}, 3 * time.Minute, 5},
		"none": {config.Snapshots{}, time.Hour, 30},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLake(t)
			l.snapshots = c.snapshots
			l.create("shop.orders")
			var all []row
			var res table.Result
			for i := int64(1); i <= 30; i++ {
				tb := l.load("shop.orders")
				res = commit(t, tb, delta(tb, []table.File{l.data(tb, row{i, "a"})}), mark(i))
				all = append(all, row{i, "a"})
				l.now = l.now.Add(c.step)
			}
			tb := l.load("shop.orders")
			if res.Snapshots != c.left || len(tb.Snapshots()) != c.left {
				t.Fatalf("%d snapshots, want %d", len(tb.Snapshots()), c.left)
			}
			exact(t, tb)
			audit(t, tb, lines(all...))
		})
	}
}

func TestExpiryNeedsARootForEveryRef(t *testing.T) { // B90
	l := newLake(t)
	l.snapshots = config.Snapshots{Min: 1, Max: 3}
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "old"})}), mark(1))
	tagged := commit(t, tb, delta(tb, []table.File{l.data(tb, row{2, "old"}), l.deletes(tb, 2)}), mark(2))
	branched := commit(t, tb, delta(tb, []table.File{l.data(tb, row{3, "old"})}), mark(3))
	l.foreign(tb, func(b *icetable.MetadataBuilder) {
		if err := errors.Join(b.SetSnapshotRef("audit", tagged.SnapshotID, icetable.TagRef), b.SetSnapshotRef("dev", branched.SnapshotID, icetable.BranchRef)); err != nil {
			t.Fatal(err)
		}
	})
	tb = l.load("shop.orders")
	d := delta(tb, []table.File{l.data(tb, row{9, "new"})})
	d.Layers[0].Truncate = true
	commit(t, tb, d, mark(4))
	for i := int64(5); i < 40; i++ {
		tb = l.load("shop.orders")
		d := delta(tb, []table.File{l.data(tb, row{i, "a"})})
		d.Layers[0].Truncate = i%3 == 0
		commit(t, tb, d, mark(i))
	}
	tb = l.load("shop.orders")
	// Three of main's, and the branch with its history, to which the tag belongs.
	if n := len(tb.Snapshots()); n != 6 {
		t.Fatalf("%d snapshots", n)
	}
	want(t, rows(t, tb, table.RowsOptions{Ref: "audit"}), lines(row{1, "old"}, row{2, "old"}))
	want(t, rows(t, tb, table.RowsOptions{Ref: "dev"}), lines(row{1, "old"}, row{2, "old"}, row{3, "old"}))
	exact(t, tb)
	audit(t, tb, lines(row{39, "a"}))
}

func TestExpiryKeepsTheNewestMarkedSnapshot(t *testing.T) { // B50
	l := newLake(t)
	tb := l.create("shop.orders")
	marked := commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	for range 5 { // somebody compacts and compacts
		s := foreignSnapshot(tb, icetable.OpReplace)
		s.SnapshotID += s.SequenceNumber
		l.foreign(tb, func(b *icetable.MetadataBuilder) {
			if err := errors.Join(b.AddSnapshot(&s), b.SetSnapshotRef("main", s.SnapshotID, icetable.BranchRef)); err != nil {
				t.Fatal(err)
			}
		})
		tb = l.load("shop.orders")
	}
	l.snapshots = config.Snapshots{Min: 1, Max: 1}
	tb = l.load("shop.orders")
	if err := tb.Touch(context.Background(), mark(2)); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range tb.Snapshots() {
		found = found || s.ID == marked.SnapshotID
	}
	if !found || len(tb.Snapshots()) != 6 {
		t.Fatalf("%d snapshots, the marked one among them: %t", len(tb.Snapshots()), found)
	}
	// Once a newer commit carries the mark it may go; those of others stay.
	tb = l.load("shop.orders")
	res := commit(t, tb, delta(tb, []table.File{l.data(tb, row{2, "b"})}), mark(3))
	if res.Expired != 0 {
		t.Fatalf("result %+v", res)
	}
	tb = l.load("shop.orders")
	res = commit(t, tb, delta(tb, []table.File{l.data(tb, row{3, "c"})}), mark(4))
	if res.Expired != 1 {
		t.Fatalf("result %+v", res)
	}
	audit(t, l.load("shop.orders"), lines(row{1, "a"}, row{2, "b"}, row{3, "c"}))
}

func TestExpiryOfLayersAndTruncates(t *testing.T) {
	l := newLake(t)
	l.snapshots = config.Snapshots{Min: 1, Max: 3}
	l.create("shop.orders")
	var last []row
	for i := int64(1); i <= 40; i++ {
		tb := l.load("shop.orders")
		d := delta(tb, []table.File{l.data(tb, row{i, "a"}), l.deletes(tb, i-1)}, []table.File{l.data(tb, row{1000 + i, "b"})})
		d.Layers[1].Truncate = i%7 == 0
		if d.Layers[1].Truncate {
			last = nil
		}
		commit(t, tb, d, mark(i))
		if !d.Layers[1].Truncate {
			for n := range last {
				if last[n].id == i-1 {
					last = append(last[:n], last[n+1:]...)
					break
				}
			}
			last = append(last, row{i, "a"})
		}
		last = append(last, row{1000 + i, "b"})
	}
	tb := l.load("shop.orders")
	whole := 0
	for _, s := range tb.Snapshots() {
		if s.Summary["lakesync.partial"] != "true" {
			whole++
		}
	}
	if whole != 3 || len(tb.Snapshots()) != 6 {
		t.Fatalf("%d of %d snapshots are whole", whole, len(tb.Snapshots()))
	}
	exact(t, tb)
	audit(t, tb, lines(last...))
}

func TestExpiryRespectsTheSwitchOfOthers(t *testing.T) {
	l := newLake(t)
	l.snapshots = config.Snapshots{Min: 1, Max: 1}
	tb, err := l.catalog().Create(context.Background(), "shop.orders", table.Definition{Schema: plain, Properties: map[string]string{"gc.enabled": "false"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := int64(1); i <= 5; i++ {
		commit(t, tb, delta(tb, []table.File{l.data(tb, row{i, "a"})}), mark(i))
	}
	if n := len(tb.Snapshots()); n != 5 {
		t.Fatalf("%d snapshots", n)
	}
}

func TestOldMetadataFilesGoAfterADay(t *testing.T) {
	l := newLake(t)
	l.snapshots = config.Snapshots{Min: 1, Max: 4}
	l.create("shop.orders")
	folder := ""
	for i := int64(1); i <= 79; i++ {
		tb := l.load("shop.orders")
		folder = tb.Location() + "/metadata"
		commit(t, tb, delta(tb, []table.File{l.data(tb, row{i, "a"})}), mark(i))
	}
	if n := len(files(t, folder, ".metadata.json")); n != 80 {
		t.Fatalf("%d metadata files within a day", n)
	}
	old := time.Now().Add(-25 * time.Hour)
	for v := 1; v <= 60; v++ {
		if err := os.Chtimes(fmt.Sprintf("%s/v%d.metadata.json", path(folder), v), old, old); err != nil {
			t.Fatal(err)
		}
	}
	l.now = time.Now()
	tb := l.load("shop.orders")
	for i := int64(80); i <= 111; i++ {
		commit(t, tb, delta(tb, []table.File{l.data(tb, row{i, "a"})}), mark(i))
	}
	left := files(t, folder, ".metadata.json")
	if len(left) != 112-48 {
		t.Fatalf("%d metadata files: %s", len(left), strings.Join(left, " "))
	}
	if l.load("shop.orders").MetadataVersion() != 112 {
		t.Fatal("the newest version is not found")
	}
}

// A commit costs the same, however many there were.
func TestCostOfCommitsIsFlat(t *testing.T) { // B97, B98
	commits := int64(520)
	if testing.Short() {
		commits = 160
	}
	l := newLake(t)
	l.snapshots = config.Snapshots{Keep: config.Duration(24 * time.Hour), Min: 20, Max: 60}
	tb := l.create("shop.orders")
	type cost struct {
		requests, manifests int
		bytes               int64
		took                time.Duration
	}
	var costs []cost
	window := commits / 4
	for w := range int64(4) {
		var c cost
		for i := w*window + 1; i <= (w+1)*window; i++ {
			l.now = l.now.Add(10 * time.Second)
			d := delta(tb, []table.File{l.data(tb, row{i, "a"}), l.deletes(tb, i-1)})
			before, began := l.requests.Total(), time.Now()
			res, err := tb.Commit(context.Background(), d, mark(i))
			if err != nil {
				t.Fatal(err)
			}
			c.took += time.Since(began)
			c.requests += l.requests.Total() - before
			c.manifests = max(c.manifests, res.Manifests)
			c.bytes = max(c.bytes, res.MetadataBytes)
		}
		costs = append(costs, c)
		t.Logf("commits to %d: %.2f requests each, at most %d manifests, %d bytes of metadata, %v each",
			(w+1)*window, float64(c.requests)/float64(window), c.manifests, c.bytes, c.took/time.Duration(window))
	}
	for _, c := range costs {
		if float64(c.requests)/float64(window) > 9 {
			t.Errorf("%.2f requests for a commit", float64(c.requests)/float64(window))
		}
		if c.manifests > 3*2*16 {
			t.Errorf("%d manifests", c.manifests)
		}
	}
	if !testing.Short() && costs[3].bytes > costs[1].bytes*11/10 {
		t.Errorf("metadata grows: %d, then %d bytes", costs[1].bytes, costs[3].bytes)
	}
	exact(t, tb)
	audit(t, l.load("shop.orders"), lines(row{commits, "a"}))
}
