package table_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// once lets fn decide about the first call that matches.
func once(op, part string, err error) func(string, string) error {
	done := false
	return func(o, p string) error {
		if done || o != op || !strings.Contains(p, part) {
			return nil
		}
		done = true
		return err
	}
}

func hint(tb *testing.T, t *table.Table) int {
	tb.Helper()
	text, err := os.ReadFile(path(t.Location()) + "/metadata/version-hint.text")
	if err != nil {
		tb.Fatal(err)
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

func TestLostReplyOfTheSwapIsNoConflict(t *testing.T) { // B48, B49
	for name, lost := range map[string]error{"unknown": fileio.ErrUnknown, "exists": fileio.ErrExists, "unavailable": fileio.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			l := newLake(t)
			tb := l.create("shop.orders")
			d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
			l.fs.set(nil, once("create", "v2.metadata.json", lost))
			res := commit(t, tb, d, mark(1))
			if res.Skipped || res.Version != 2 || hint(t, tb) != 2 {
				t.Fatalf("result %+v", res)
			}
			audit(t, l.load("shop.orders"), lines(row{1, "a"}))
		})
	}
}

func TestFailedCommitLeavesTheTableAsItWas(t *testing.T) {
	for _, at := range []string{"put .avro", "create v2.metadata.json", "stat v1.metadata.json"} {
		t.Run(at, func(t *testing.T) {
			l := newLake(t)
			tb := l.create("shop.orders")
			d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
			op, part, _ := strings.Cut(at, " ")
			l.fs.set(once(op, part, fileio.ErrUnavailable), nil)
			_, err := tb.Commit(context.Background(), d, mark(1))
			is(t, err, fileio.ErrUnavailable)
			if other := l.load("shop.orders"); other.MetadataVersion() != 1 {
				t.Fatalf("version %d", other.MetadataVersion())
			}
			res := commit(t, tb, d, mark(1))
			if res.Skipped {
				t.Fatal("skipped")
			}
			audit(t, l.load("shop.orders"), lines(row{1, "a"}))
		})
	}
}

func TestUnknownOutcomeIsDecidedByTheMark(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
	// The file is created, then the store is gone for a while.
	down := false
	l.fs.set(func(op, path string) error {
		if down {
			return fileio.ErrUnavailable
		}
		return nil
	}, func(op, path string) error {
		if op == "create" {
			down = true
			return fileio.ErrUnknown
		}
		return nil
	})
	_, err := tb.Commit(context.Background(), d, mark(1))
	is(t, err, fileio.ErrUnavailable)
	l.fs.set(nil, nil)
	res := commit(t, tb, d, mark(1))
	if !res.Skipped || res.Version != 2 || hint(t, tb) != 2 {
		t.Fatalf("result %+v, hint %d", res, hint(t, tb))
	}
	audit(t, l.load("shop.orders"), lines(row{1, "a"}))
}

func TestCommitCountsOnceTheHintIsWritten(t *testing.T) { // B66
	l := newLake(t)
	tb := l.create("shop.orders")
	d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
	l.fs.set(func(op, _ string) error {
		if op == "replace" {
			return fileio.ErrUnavailable
		}
		return nil
	}, nil)
	_, err := tb.Commit(context.Background(), d, mark(1))
	is(t, err, fileio.ErrUnavailable)
	l.fs.set(nil, nil)
	if hint(t, tb) != 1 {
		t.Fatalf("hint %d", hint(t, tb))
	}
	// The table is found nevertheless, and another process mends the hint.
	other := l.load("shop.orders")
	if res := commit(t, other, d, mark(1)); !res.Skipped || hint(t, tb) != 2 {
		t.Fatalf("result %+v, hint %d", res, hint(t, tb))
	}
}

func TestHintThatIsWrongMissingOrBroken(t *testing.T) { // B66
	l := newLake(t)
	tb := l.create("shop.orders")
	for i := range int64(5) {
		commit(t, tb, delta(tb, []table.File{l.data(tb, row{i, "a"})}), mark(i+1))
	}
	file := path(tb.Location()) + "/metadata/version-hint.text"
	for _, text := range []string{"4", "1", "6\n", "99", "nonsense", "-1", ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if v := l.load("shop.orders").MetadataVersion(); v != 6 {
			t.Errorf("hint %q leads to version %d", text, v)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	again := l.load("shop.orders")
	commit(t, again, delta(again, []table.File{l.data(again, row{9, "a"})}), mark(6))
	if hint(t, again) != 7 {
		t.Fatalf("hint %d", hint(t, again))
	}
	// It never goes down, and ours is not overwritten by who is late.
	if err := os.WriteFile(file, []byte("8"), 0o600); err != nil {
		t.Fatal(err)
	}
	commit(t, again, delta(again, []table.File{l.data(again, row{10, "a"})}), mark(7))
	if hint(t, again) != 8 {
		t.Fatalf("hint %d", hint(t, again))
	}
}

func TestHigherEpochFences(t *testing.T) { // B45
	l := newLake(t)
	tb := l.create("shop.orders")
	m := mark(1)
	m.Epoch = 2
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), m)
	for _, checkpoint := range []int64{1, 2} {
		_, err := tb.Commit(context.Background(), delta(tb, []table.File{l.data(tb, row{2, "b"})}), mark(checkpoint))
		is(t, err, table.ErrFenced)
	}
	is(t, tb.Touch(context.Background(), mark(3)), table.ErrFenced)
	// The same number with another position is another history.
	m.Position = "file:binlog.000009:4"
	_, err := tb.Commit(context.Background(), delta(tb, []table.File{l.data(tb, row{2, "b"})}), m)
	is(t, err, table.ErrFenced)
}

func TestTwoInstancesCommitTheSameRecord(t *testing.T) {
	l := newLake(t)
	l.create("shop.orders")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	a, b := l.load("shop.orders"), l.load("shop.orders")
	var all []row
	for i := int64(1); i <= 12; i++ {
		d := delta(a, []table.File{l.data(a, row{i, "a"})})
		all = append(all, row{i, "a"})
		var wg sync.WaitGroup
		var landed [2]bool
		var errs [2]error
		for n, handle := range []*table.Table{a, b} {
			// Ends with the commit.
			wg.Go(func() {
				res, err := handle.Commit(context.Background(), d, mark(i))
				landed[n], errs[n] = !res.Skipped, err
			})
		}
		wg.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if landed[0] == landed[1] {
			t.Fatalf("checkpoint %d landed twice or never: %v", i, landed)
		}
	}
	want(t, rows(t, l.load("shop.orders"), table.RowsOptions{}), lines(all...))
	audit(t, l.load("shop.orders"), lines(all...))
}

func TestWriterThatSleptIsRefused(t *testing.T) {
	l := newLake(t)
	l.create("shop.orders")
	asleep, awake := l.load("shop.orders"), l.load("shop.orders")
	for i := int64(1); i <= 4; i++ {
		commit(t, awake, delta(awake, []table.File{l.data(awake, row{i, "a"})}), mark(i))
	}
	// The version that the sleeper is about to create is gone, as after a day.
	if err := os.Remove(path(awake.Location()) + "/metadata/v2.metadata.json"); err != nil {
		t.Fatal(err)
	}
	d := delta(asleep, []table.File{l.data(asleep, row{99, "late"})})
	res := commit(t, asleep, d, mark(2))
	if !res.Skipped {
		t.Fatalf("result %+v", res)
	}
	if got := files(t, awake.Location()+"/metadata", "v2.metadata"); len(got) != 0 {
		t.Fatalf("left %v", got)
	}
	expected := lines(row{1, "a"}, row{2, "a"}, row{3, "a"}, row{4, "a"})
	audit(t, l.load("shop.orders"), expected)
	if hint(t, awake) != 5 {
		t.Fatalf("hint %d", hint(t, awake))
	}
	// Two versions after the one it knows are gone: only the hint tells.
	asleep = l.load("shop.orders")
	known, err := os.ReadFile(path(awake.Location()) + "/metadata/v5.metadata.json")
	if err != nil {
		t.Fatal(err)
	}
	for i := int64(5); i <= 9; i++ {
		commit(t, awake, delta(awake, []table.File{l.data(awake, row{i, "a"})}), mark(i))
	}
	for _, v := range []string{"5", "6", "7", "8"} {
		if err := os.Remove(path(awake.Location()) + "/metadata/v" + v + ".metadata.json"); err != nil {
			t.Fatal(err)
		}
	}
	l.fs.set(func(op, p string) error { // it had looked at v5 just before that
		if op == "stat" && strings.HasSuffix(p, "/v5.metadata.json") {
			return os.WriteFile(path(p), known, 0o600)
		}
		return nil
	}, nil)
	res = commit(t, asleep, delta(asleep, []table.File{l.data(asleep, row{10, "a"})}), mark(10))
	l.fs.set(nil, nil)
	if res.Skipped || res.Version != 11 {
		t.Fatalf("result %+v", res)
	}
	expected = lines(row{1, "a"}, row{2, "a"}, row{3, "a"}, row{4, "a"}, row{5, "a"}, row{6, "a"}, row{7, "a"}, row{8, "a"}, row{9, "a"}, row{10, "a"})
	audit(t, l.load("shop.orders"), expected)
	if got := files(t, awake.Location()+"/metadata", "v6.metadata"); len(got) != 0 {
		t.Fatalf("left %v", got)
	}
	// With a checkpoint of its own it goes on from what is there.
	awake = l.load("shop.orders")
	asleep = l.load("shop.orders")
	commit(t, awake, delta(awake, []table.File{l.data(awake, row{11, "a"})}), mark(11))
	if err := os.Remove(path(awake.Location()) + "/metadata/v11.metadata.json"); err != nil {
		t.Fatal(err)
	}
	res = commit(t, asleep, delta(asleep, []table.File{l.data(asleep, row{12, "a"})}), mark(12))
	if res.Version != 13 {
		t.Fatalf("result %+v", res)
	}
}

func TestCommitOnTopOfOursProvesThatItLanded(t *testing.T) {
	l := newLake(t)
	l.create("shop.orders")
	a, b := l.load("shop.orders"), l.load("shop.orders")
	d := delta(a, []table.File{l.data(a, row{1, "a"})})
	// b commits between the creation of a's version and a's look around.
	l.fs.set(nil, func(op, p string) error {
		if op == "create" && strings.HasSuffix(p, "/v2.metadata.json") {
			l.fs.after = nil
			l.fs.mu.Unlock()
			defer l.fs.mu.Lock()
			commit(t, b, delta(b, []table.File{l.data(b, row{2, "b"})}), mark(2))
		}
		return nil
	})
	res := commit(t, a, d, mark(1))
	if res.Skipped {
		t.Fatalf("result %+v", res)
	}
	audit(t, l.load("shop.orders"), lines(row{1, "a"}, row{2, "b"}))
}

func TestRolledBackTableIsRefused(t *testing.T) { // B58
	l := newLake(t)
	tb := l.create("shop.orders")
	first := commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{2, "b"})}), mark(2))
	l.foreign(tb, func(b *icetable.MetadataBuilder) {
		if err := b.SetSnapshotRef("main", first.SnapshotID, icetable.BranchRef); err != nil {
			t.Fatal(err)
		}
	})
	tb = l.load("shop.orders")
	is(t, tb.Judge("shop"), table.ErrRolledBack)
	for _, checkpoint := range []int64{2, 3} {
		_, err := tb.Commit(context.Background(), delta(tb, []table.File{l.data(tb, row{3, "c"})}), mark(checkpoint))
		is(t, err, table.ErrRolledBack)
	}
	is(t, tb.Touch(context.Background(), mark(4)), table.ErrRolledBack)
}

func TestReplacedTableIsRefused(t *testing.T) { // B44
	l := newLake(t)
	tb := l.create("shop.orders")
	d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
	d.UUID = "00000000-0000-4000-8000-000000000000"
	_, err := tb.Commit(context.Background(), d, mark(1))
	is(t, err, table.ErrReplaced)
	// Dropped and made again under our feet.
	if err := os.RemoveAll(path(tb.Location())); err != nil {
		t.Fatal(err)
	}
	l.create("shop.orders")
	is(t, tb.Refresh(context.Background()), table.ErrReplaced)
}

// foreignSnapshot is one that another engine made.
func foreignSnapshot(tb *table.Table, operation icetable.Operation) icetable.Snapshot {
	head := tb.Iceberg().CurrentSnapshot()
	s := *head
	s.SnapshotID = 4711
	s.ParentSnapshotID = &head.SnapshotID
	s.SequenceNumber++
	s.Summary = &icetable.Summary{Operation: operation, Properties: iceberg.Properties{}}
	for k, v := range head.Summary.Properties {
		if strings.HasPrefix(k, "total-") {
			s.Summary.Properties[k] = v
		}
	}
	return s
}

func TestForeignCommits(t *testing.T) {
	setup := func(t *testing.T) (*lake, *table.Table) {
		l := newLake(t)
		tb := l.create("shop.orders")
		commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
		return l, tb
	}
	add := func(t *testing.T, tb *table.Table, operation icetable.Operation) func(*icetable.MetadataBuilder) {
		s := foreignSnapshot(tb, operation)
		return func(b *icetable.MetadataBuilder) {
			if err := errors.Join(b.AddSnapshot(&s), b.SetSnapshotRef("main", s.SnapshotID, icetable.BranchRef)); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := func(l *lake, tb *table.Table) error {
		_, err := tb.Commit(context.Background(), delta(tb, []table.File{l.data(tb, row{2, "b"})}), mark(2))
		return err
	}
	t.Run("while we run", func(t *testing.T) {
		l, tb := setup(t)
		l.foreign(tb, func(b *icetable.MetadataBuilder) {
			if err := b.SetProperties(iceberg.Properties{"note": "x"}); err != nil {
				t.Fatal(err)
			}
		})
		is(t, next(l, tb), table.ErrForeign)
	})
	t.Run("over ours", func(t *testing.T) {
		l, tb := setup(t)
		if err := os.WriteFile(path(tb.Location())+"/metadata/v2.metadata.json", []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		is(t, next(l, tb), table.ErrForeign)
	})
	t.Run("a tag while we were away is respected", func(t *testing.T) {
		l, tb := setup(t)
		head, _ := tb.Head()
		l.foreign(tb, func(b *icetable.MetadataBuilder) {
			if err := errors.Join(b.SetSnapshotRef("audit", head.ID, icetable.TagRef, icetable.WithMaxRefAgeMs(1<<40)),
				b.SetSnapshotRef("main", head.ID, icetable.BranchRef, icetable.WithMinSnapshotsToKeep(77))); err != nil {
				t.Fatal(err)
			}
		})
		tb = l.load("shop.orders")
		if err := errors.Join(tb.Judge("shop"), next(l, tb)); err != nil {
			t.Fatal(err)
		}
		found := 0
		for name, ref := range l.load("shop.orders").Iceberg().Metadata().Refs() {
			if name == "audit" && ref.SnapshotID == head.ID && *ref.MaxRefAgeMs == 1<<40 {
				found++
			}
			if name == "main" && ref.MinSnapshotsToKeep != nil && *ref.MinSnapshotsToKeep == 77 {
				found++
			}
		}
		if found != 2 {
			t.Fatal("the tag or the branch's retention is gone")
		}
	})
	t.Run("a rewrite while we were away is respected", func(t *testing.T) {
		l, tb := setup(t)
		l.foreign(tb, add(t, tb, icetable.OpReplace))
		tb = l.load("shop.orders")
		if err := errors.Join(tb.Judge("shop"), next(l, tb)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("rows of others", func(t *testing.T) {
		l, tb := setup(t)
		l.foreign(tb, add(t, tb, icetable.OpAppend))
		tb = l.load("shop.orders")
		is(t, tb.Judge("shop"), table.ErrForeign)
		is(t, next(l, tb), table.ErrForeign)
	})
	t.Run("adopted with rows of others", func(t *testing.T) {
		l, tb := setup(t)
		l.foreign(tb, func(b *icetable.MetadataBuilder) {
			if err := b.RemoveProperties([]string{"lakesync.mark.shop"}); err != nil {
				t.Fatal(err)
			}
			add(t, tb, icetable.OpAppend)(b)
		})
		tb = l.load("shop.orders")
		if err := errors.Join(tb.Judge("shop"), tb.Touch(context.Background(), mark(1)), tb.Judge("shop"), next(l, tb), tb.Judge("shop")); err != nil {
			t.Fatal(err)
		}
	})
}

func TestStagedFilesThatAreGoneAreNamed(t *testing.T) { // B56
	l := newLake(t)
	tb := l.create("shop.orders")
	d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
	if err := os.Remove(path(d.Layers[0].Files[0].Path)); err != nil {
		t.Fatal(err)
	}
	_, err := l.load("shop.orders").Commit(context.Background(), d, mark(1))
	is(t, err, table.ErrUnfit)
	if !strings.Contains(err.Error(), d.Layers[0].Files[0].Path) {
		t.Fatal(err)
	}
}

func TestDeltasThatAreWrongInThemselves(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	a, b := l.data(tb, row{1, "a"}), l.data(tb, row{2, "b"})
	eq := l.deletes(tb, 1)
	unsorted := eq
	unsorted.EqualityIDs = []int{2, 1}
	stray := l.positions(tb, b, 0)
	for name, change := range map[string]func(*table.Delta){
		"twice":                     func(d *table.Delta) { d.Layers[0].Files = append(d.Layers[0].Files, a) },
		"unknown spec":              func(d *table.Delta) { d.Layers[0].SpecID = 9 },
		"unknown schema":            func(d *table.Delta) { d.Layers[0].SchemaID = 9 },
		"partition values":          func(d *table.Delta) { d.Layers[0].Files[0].Partition = [][]byte{nil} },
		"no equality ids":           func(d *table.Delta) { d.Layers[0].Files[0].Content = table.EqualityDeletes },
		"unsorted ids":              func(d *table.Delta) { d.Layers[0].Files = append(d.Layers[0].Files, unsorted) },
		"positions of another file": func(d *table.Delta) { d.Layers[0].Files = append(d.Layers[0].Files, stray) },
		"content":                   func(d *table.Delta) { d.Layers[0].Files[0].Content = "puffin" },
		"own property":              func(d *table.Delta) { d.Set = map[string]string{"lakesync.mark.shop": "x"} },
	} {
		t.Run(name, func(t *testing.T) {
			d := delta(tb, []table.File{a})
			change(&d)
			_, err := tb.Commit(context.Background(), d, mark(1))
			is(t, err, table.ErrUnfit)
			if left := files(t, tb.Location()+"/metadata", ".avro"); len(left) != 0 {
				t.Fatalf("left %v", left)
			}
		})
	}
	if tb.MetadataVersion() != 1 {
		t.Fatal("something was committed")
	}
}

// Random faults of the store, random restarts, the same records again and
// again: every checkpoint's rows are there once.
func TestCommitsAreExactlyOnceUnderRandomFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LAKESYNC_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("LAKESYNC_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	l := newLake(t)
	l.snapshots.Min, l.snapshots.Max = 3, 8
	tb := l.create("shop.orders")
	kinds := []error{fileio.ErrUnavailable, fileio.ErrUnknown, errors.New("connection reset")}
	chance := 0.0
	fault := func(after bool) func(op, path string) error {
		return func(op, path string) error {
			if r.Float64() >= chance {
				return nil
			}
			if after && op == "create" && r.IntN(3) == 0 {
				return fileio.ErrExists // a retry in the client that met its own file
			}
			return kinds[r.IntN(len(kinds))]
		}
	}
	model := map[int64]string{}
	for checkpoint := int64(1); checkpoint <= 60; checkpoint++ {
		var layers [][]table.File
		var written []row
		chance = 0
		for range 1 + r.IntN(2) {
			var fresh []row
			var touched []int64
			for _, id := range r.Perm(20)[:1+r.IntN(5)] {
				name := fmt.Sprintf("%d-%d", checkpoint, r.IntN(1000))
				fresh = append(fresh, row{int64(id), name})
				touched = append(touched, int64(id))
			}
			written = append(written, fresh...)
			layers = append(layers, []table.File{l.data(tb, fresh...), l.deletes(tb, touched...)})
		}
		d := delta(tb, layers...)
		if r.IntN(15) == 0 {
			d.Layers[0].Truncate = true
			clear(model)
		}
		for _, w := range written {
			model[w.id] = w.name
		}
		chance = 0.02
		l.fs.set(fault(false), fault(true))
		for attempt := 0; ; attempt++ {
			_, err := tb.Commit(context.Background(), d, mark(checkpoint))
			if err == nil && r.IntN(4) > 0 {
				break
			}
			for _, final := range []error{table.ErrFenced, table.ErrForeign, table.ErrRolledBack, table.ErrReplaced, table.ErrUnfit} {
				if errors.Is(err, final) {
					t.Fatalf("checkpoint %d, attempt %d: %v", checkpoint, attempt, err)
				}
			}
			if attempt > 200 {
				t.Fatal(err)
			}
			if r.IntN(3) == 0 { // a new process
				if again, err := reopen(l); err == nil {
					tb = again
				}
			}
		}
		l.fs.set(nil, nil)
	}
	var expected []row
	for id, name := range model {
		expected = append(expected, row{id, name})
	}
	tb = l.load("shop.orders")
	want(t, rows(t, tb, table.RowsOptions{}), lines(expected...))
	if hint(t, tb) != tb.MetadataVersion() {
		t.Errorf("hint %d, version %d", hint(t, tb), tb.MetadataVersion())
	}
	audit(t, tb, lines(expected...))
}

func reopen(l *lake) (*table.Table, error) {
	c, err := table.OpenCatalog(context.Background(), table.CatalogOptions{Warehouse: l.warehouse, FS: l.fs, Snapshots: l.snapshots, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	return c.Load(context.Background(), "shop.orders")
}
