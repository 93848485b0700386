package table_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/table"
)

func TestCommitMakesOneSnapshotWithTheMark(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	file := l.data(tb, row{1, "a"}, row{2, ""}, row{3, "c"})
	res := commit(t, tb, delta(tb, []table.File{file}), mark(1))
	if res.Skipped || res.Version != 2 || res.Totals.Records != 3 || res.Totals.DataFiles != 1 {
		t.Fatalf("result %+v", res)
	}
	want(t, rows(t, tb, table.RowsOptions{}), lines(row{1, "a"}, row{2, ""}, row{3, "c"}))

	again := l.load("shop.orders")
	head, ok := again.Head()
	if !ok || head.ID != res.SnapshotID || head.Operation != "append" {
		t.Fatalf("head %+v", head)
	}
	for key, value := range map[string]string{
		"lakesync.pipeline": "shop", "lakesync.epoch": "1", "lakesync.checkpoint": "1", "lakesync.position": "file:binlog.000001:100",
		"lakesync.source-time": "2026-01-02T03:04:05Z", "lakesync.complete": "true",
		"added-records": "3", "added-data-files": "1", "total-records": "3", "total-delete-files": "0",
	} {
		if head.Summary[key] != value {
			t.Errorf("summary %s = %q, want %q", key, head.Summary[key], value)
		}
	}
	m, ok, err := again.Mark("shop")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	expected := mark(1)
	expected.SnapshotID, expected.SequenceNumber = res.SnapshotID, 1
	if m != expected {
		t.Fatalf("mark %+v, want %+v", m, expected)
	}
	if _, ok, _ := again.Mark("other"); ok {
		t.Fatal("another pipeline has a mark")
	}
	// The golden form of the property, which other programs may read.
	var fields map[string]any
	if err := json.Unmarshal([]byte(again.Properties()["lakesync.mark.shop"]), &fields); err != nil {
		t.Fatal(err)
	}
	if len(fields) != 7 || fields["checkpoint"] != 1.0 || fields["sequence_number"] != 1.0 || fields["source_time"] != "2026-01-02T03:04:05Z" {
		t.Fatalf("mark property %v", fields)
	}
	audit(t, again, lines(row{1, "a"}, row{2, ""}, row{3, "c"}))
}

func TestCommitOfTheSameCheckpointIsSkipped(t *testing.T) { // B46
	l := newLake(t)
	tb := l.create("shop.orders")
	d := delta(tb, []table.File{l.data(tb, row{1, "a"})})
	first := commit(t, tb, d, mark(1))
	for _, handle := range []*table.Table{tb, l.load("shop.orders")} {
		res := commit(t, handle, d, mark(1))
		if !res.Skipped || res.SnapshotID != first.SnapshotID || res.Version != first.Version {
			t.Fatalf("result %+v", res)
		}
	}
	want(t, rows(t, tb, table.RowsOptions{}), lines(row{1, "a"}))
}

func TestUpsertsDeletesAndSameCommitPositionDeletes(t *testing.T) { // B2, B4, B9, B13
	l := newLake(t)
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"}, row{2, "b"}, row{3, "c"})}), mark(1))
	// 1 gets a new value twice, 2 goes, 4 comes and goes, 5 comes.
	file := l.data(tb, row{1, "a1"}, row{4, "d"}, row{1, "a2"}, row{5, "e"})
	res := commit(t, tb, delta(tb, []table.File{file, l.deletes(tb, 1, 2), l.positions(tb, file, 0, 1)}), mark(2))
	if res.Totals != (table.Totals{Records: 7, DataFiles: 2, DeleteFiles: 2, EqualityDeletes: 2, PositionDeletes: 2, Bytes: res.Totals.Bytes}) {
		t.Fatalf("totals %+v", res.Totals)
	}
	expected := lines(row{1, "a2"}, row{3, "c"}, row{5, "e"})
	want(t, rows(t, tb, table.RowsOptions{}), expected)
	head, _ := tb.Head()
	if head.Operation != "overwrite" {
		t.Fatalf("operation %s", head.Operation)
	}
	commit(t, tb, delta(tb, []table.File{l.deletes(tb, 3)}), mark(3))
	if head, _ = tb.Head(); head.Operation != "delete" {
		t.Fatalf("operation %s", head.Operation)
	}
	audit(t, l.load("shop.orders"), lines(row{1, "a2"}, row{5, "e"}))
}

func TestLayersAreSnapshotsOfOneMetadataCommit(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "old"}, row{9, "kept"})}), mark(1))
	before := tb.MetadataVersion()
	// The same key in each layer: each deletes what came before it.
	res := commit(t, tb, delta(tb,
		[]table.File{l.data(tb, row{1, "x"}, row{2, "x"}), l.deletes(tb, 1)},
		[]table.File{l.data(tb, row{1, "y"}), l.deletes(tb, 1, 2)},
		[]table.File{l.data(tb, row{1, "z"}, row{3, "z"}), l.deletes(tb, 1)},
	), mark(2))
	if res.Version != before+1 || res.Snapshots != 4 {
		t.Fatalf("result %+v", res)
	}
	expected := lines(row{1, "z"}, row{3, "z"}, row{9, "kept"})
	want(t, rows(t, tb, table.RowsOptions{}), expected)
	tb = l.load("shop.orders")
	all := tb.Snapshots()
	for i, s := range all {
		if s.SequenceNumber != int64(i+1) {
			t.Errorf("snapshot %d has sequence number %d", i, s.SequenceNumber)
		}
		if i > 0 && s.Parent != all[i-1].ID {
			t.Errorf("snapshot %d does not follow the one before", i)
		}
		partial := i == 1 || i == 2
		if (s.Summary["lakesync.partial"] == "true") != partial || (s.Summary["lakesync.checkpoint"] == "") != partial || s.Summary["lakesync.pipeline"] != "shop" {
			t.Errorf("snapshot %d: summary %v", i, s.Summary)
		}
	}
	refs := tb.Iceberg().Metadata()
	for name, ref := range refs.Refs() {
		if name != "main" || ref.SnapshotID != res.SnapshotID {
			t.Errorf("ref %s at %d", name, ref.SnapshotID)
		}
	}
	for entry := range refs.SnapshotLogs() {
		if entry.SnapshotID == all[1].ID || entry.SnapshotID == all[2].ID {
			t.Errorf("the partial snapshot %d was current", entry.SnapshotID)
		}
	}
	audit(t, tb, expected)
}

func TestTruncateRemovesEverythingBeforeItsLayer(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"}, row{2, "b"})}), mark(1))
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a1"}), l.deletes(tb, 1)}), mark(2))
	d := delta(tb, []table.File{l.data(tb, row{7, "new"})}, nil)
	d.Layers = d.Layers[:1]
	d.Layers[0].Truncate = true
	res := commit(t, tb, d, mark(3))
	if res.Totals.Records != 1 || res.Totals.DataFiles != 1 || res.Totals.DeleteFiles != 0 {
		t.Fatalf("totals %+v", res.Totals)
	}
	head, _ := tb.Head()
	if head.Operation != "overwrite" || head.Summary["deleted-data-files"] != "2" || head.Summary["deleted-records"] != "3" || head.Summary["removed-equality-deletes"] != "1" {
		t.Fatalf("head %+v", head)
	}
	want(t, rows(t, tb, table.RowsOptions{}), lines(row{7, "new"}))
	// Entries of deleted files are not carried along.
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{8, "more"})}), mark(4))
	audit(t, l.load("shop.orders"), lines(row{7, "new"}, row{8, "more"}))

	// Rows, truncate, rows, all in one checkpoint; then one that leaves nothing.
	d = delta(tb, []table.File{l.data(tb, row{9, "gone"})}, []table.File{l.data(tb, row{10, "last"})})
	d.Layers[1].Truncate = true
	commit(t, tb, d, mark(5))
	audit(t, l.load("shop.orders"), lines(row{10, "last"}))
	d = delta(tb, nil)
	d.Layers[0].Truncate = true
	res = commit(t, tb, d, mark(6))
	if res.Totals != (table.Totals{}) {
		t.Fatalf("totals %+v", res.Totals)
	}
	if head, _ = tb.Head(); head.Operation != "delete" {
		t.Fatalf("operation %s", head.Operation)
	}
	audit(t, l.load("shop.orders"), nil)
	// Of an empty table: no snapshot, but the mark moves.
	again := commit(t, tb, d, mark(7))
	if again.SnapshotID != res.SnapshotID || again.Version != res.Version+1 {
		t.Fatalf("result %+v", again)
	}
	if m, _, _ := tb.Mark("shop"); m.Checkpoint != 7 {
		t.Fatalf("mark %+v", m)
	}
}

func TestTouchWritesNoSnapshot(t *testing.T) { // B57
	l := newLake(t)
	tb := l.create("shop.orders")
	if err := tb.Touch(context.Background(), mark(1)); err != nil {
		t.Fatal(err)
	}
	if _, ok := tb.Head(); ok {
		t.Fatal("a snapshot appeared")
	}
	res := commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(2))
	if err := tb.Touch(context.Background(), mark(3)); err != nil {
		t.Fatal(err)
	}
	version := tb.MetadataVersion()
	if err := tb.Touch(context.Background(), mark(3)); err != nil {
		t.Fatal(err)
	}
	m, _, _ := tb.Mark("shop")
	if m.Checkpoint != 3 || m.SnapshotID != res.SnapshotID || m.SequenceNumber != 1 || tb.MetadataVersion() != version {
		t.Fatalf("mark %+v at version %d", m, tb.MetadataVersion())
	}
	if err := tb.MarkEnded(context.Background(), mark(4), time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	tb = l.load("shop.orders")
	if tb.Properties()[table.EndedProperty] != "2026-05-06T07:08:09Z" || len(tb.Snapshots()) != 1 {
		t.Fatal(tb.Properties())
	}
	audit(t, tb, lines(row{1, "a"}))
}

func TestLongPositionsGoToNumberedProperties(t *testing.T) { // B73
	l := newLake(t)
	tb := l.create("shop.orders")
	m := mark(1)
	m.Position = "gtid:" + strings.Repeat("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77,", 80) + "ä"
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), m)
	tb = l.load("shop.orders")
	have, ok, err := tb.Mark("shop")
	if err != nil || !ok || have.Position != m.Position {
		t.Fatalf("position of %d bytes, want %d: %v", len(have.Position), len(m.Position), err)
	}
	head, _ := tb.Head()
	if p := head.Summary["lakesync.position"]; !strings.HasPrefix(p, "sha256:") || len(p) != 71 {
		t.Fatalf("summary position %q", p)
	}
	for key, value := range tb.Properties() {
		if len(value) > 2048 {
			t.Errorf("property %s has %d bytes", key, len(value))
		}
	}
	if res := commit(t, tb, delta(tb), m); !res.Skipped {
		t.Fatalf("result %+v", res)
	}
	// A short one leaves nothing of the long one.
	if err := tb.Touch(context.Background(), mark(2)); err != nil {
		t.Fatal(err)
	}
	for key := range tb.Properties() {
		if strings.Contains(key, ".position.") {
			t.Errorf("property %s is left", key)
		}
	}
}

func TestTimeTravel(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	first := commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	l.now = l.now.Add(time.Hour)
	tb = l.load("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{2, "b"})}), mark(2))
	want(t, rows(t, tb, table.RowsOptions{SnapshotID: first.SnapshotID}), lines(row{1, "a"}))
	want(t, rows(t, tb, table.RowsOptions{AsOf: l.now.Add(-time.Minute)}), lines(row{1, "a"}))
	want(t, rows(t, tb, table.RowsOptions{AsOf: l.now}), lines(row{1, "a"}, row{2, "b"}))
	want(t, rows(t, tb, table.RowsOptions{Ref: "main"}), lines(row{1, "a"}, row{2, "b"}))
	for _, o := range []table.RowsOptions{{AsOf: l.now.Add(-24 * time.Hour)}, {SnapshotID: 7}, {Ref: "none"}, {Ref: "main", SnapshotID: first.SnapshotID}} {
		failed := false
		for _, err := range tb.Rows(context.Background(), o) {
			failed = err != nil
		}
		if !failed {
			t.Errorf("%+v gave rows", o)
		}
	}
}

func TestSnapshotTimesNeverDecrease(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	l.now = l.now.Add(-3 * time.Hour)
	tb = l.load("shop.orders")
	if err := tb.Touch(context.Background(), mark(2)); err != nil {
		t.Fatal(err)
	}
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{2, "b"})}), mark(3))
	all := tb.Snapshots()
	if all[1].TimestampMs < all[0].TimestampMs {
		t.Fatalf("times %d, %d", all[0].TimestampMs, all[1].TimestampMs)
	}
	audit(t, l.load("shop.orders"), lines(row{1, "a"}, row{2, "b"}))
}
