package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// testLake is a warehouse on the local disk with records and marked tables, as a
// daemon leaves them.
type testLake struct {
	*lake
	t   *testing.T
	cfg *config.Config
}

func newTestLake(t *testing.T, tables string) *testLake {
	t.Helper()
	cfg := daemonConfig(t, "off")
	text, err := os.ReadFile(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.File, append(text, tables...), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, err = config.Load(cfg.File); err != nil {
		t.Fatal(err)
	}
	l, err := openLake(t.Context(), cfg, writing, (&cli{stderr: io.Discard}).quietLog(cfg), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &testLake{lake: l, t: t, cfg: cfg}
}

func at(n int) source.Position { return source.Position(fmt.Sprintf("file:binlog.000001:%d", 100*n)) }

// table makes a table, or loads it, and returns its UUID.
func (l *testLake) table(name string) string {
	l.t.Helper()
	schema := iceberg.NewSchemaWithIdentifiers(0, []int{1}, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true})
	t, err := l.catalog.Create(l.t.Context(), name, table.Definition{Schema: schema})
	if err != nil {
		l.t.Fatal(err)
	}
	return t.UUID()
}

// mark makes a table carry the mark of a checkpoint.
func (l *testLake) mark(name string, id int64) {
	l.t.Helper()
	t, err := l.catalog.Load(l.t.Context(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	m := table.Mark{Pipeline: "shop", Epoch: 1, Checkpoint: id, Position: string(at(int(id))), SourceTime: time.Unix(1700000000+id, 0).UTC()}
	if err := t.Touch(l.t.Context(), m); err != nil {
		l.t.Fatal(err)
	}
}

// save saves a record that changes tables.
func (l *testLake) save(id int64, position source.Position, changed ...string) {
	l.t.Helper()
	r := &checkpoint.Record{
		Format: 1, Pipeline: "shop", ID: id, Epoch: 1, Position: position, Source: json.RawMessage(`{"format":1}`),
		Tables: map[string]sink.TableState{}, SavedAt: time.Unix(1700000000, 0).UTC(), Writer: "test/1",
	}
	for _, name := range []string{"shop.a", "shop.b"} {
		r.Tables[name] = sink.TableState{Relation: name, UUID: l.table(name), Complete: true, Checkpoint: 1}
	}
	for _, name := range changed {
		r.Deltas = append(r.Deltas, table.Delta{Table: name, UUID: l.table(name), Complete: true})
		s := r.Tables[name]
		s.Checkpoint = id
		r.Tables[name] = s
	}
	if err := l.store.Put(l.t.Context(), r); err != nil {
		l.t.Fatal(err)
	}
}

// run executes a command on the pipeline's file.
func (l *testLake) run(args ...string) (code int, out string) {
	l.t.Helper()
	code, stdout, stderr := execTest(l.t, append(args, "-config", l.cfg.File)...)
	return code, stdout + stderr
}

func (l *testLake) expect(code int, text string, args ...string) string {
	l.t.Helper()
	got, out := l.run(args...)
	if got != code || !strings.Contains(out, text) {
		l.t.Errorf("%q: exit %d, want %d with %q:\n%s", args, got, code, text, out)
	}
	return out
}

func (l *testLake) last() *checkpoint.Record {
	l.t.Helper()
	r, err := l.store.Last(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

func TestWaitReturnsWhenThePositionIsInTheTables(t *testing.T) {
	l := newTestLake(t, "")
	short := []string{"wait", "-timeout", "300ms", "-position", string(at(2))}
	l.expect(exitTempFail, "no checkpoint record", short...)
	l.save(1, "")
	l.expect(exitTempFail, "the initial snapshot is running", short...)
	l.save(2, at(1), "shop.a", "shop.b")
	l.expect(exitTempFail, "record 2 is at file:binlog.000001:100", short...)
	l.save(3, at(2), "shop.a")
	l.expect(exitTempFail, "is not committed to table shop.", short...)
	l.mark("shop.a", 3)
	l.expect(exitTempFail, "checkpoint 1 is not committed to table shop.b", short...)
	l.mark("shop.b", 2)
	l.expect(exitOK, "file:binlog.000001:200 is in the tables (checkpoint 3)", short...)
	l.expect(exitOK, "is in the tables", "wait", "-timeout", "300ms", "-position", "file:binlog.000001:150")
	l.expect(exitUsage, "-position", "wait", "-position", "yesterday")
	l.expect(exitUsage, "two kinds", "wait", "-position", "gtid:3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
}

// Readers begin with the hint: a commit without it does not count.
func TestWaitWantsTheVersionHint(t *testing.T) {
	l := newTestLake(t, "")
	l.save(1, at(1), "shop.a", "shop.b")
	l.mark("shop.a", 1)
	l.mark("shop.b", 1)
	args := []string{"wait", "-timeout", "300ms", "-position", string(at(1))}
	l.expect(exitOK, "is in the tables", args...)
	a, err := l.catalog.Load(t.Context(), "shop.a")
	if err != nil {
		t.Fatal(err)
	}
	hint := strings.TrimPrefix(a.Location(), "file://") + "/metadata/version-hint.text"
	if err := os.WriteFile(hint, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.expect(exitTempFail, "the version hint of table shop.a is behind", args...)
}

func TestWaitTellsOfARelationBeingCopied(t *testing.T) {
	l := newTestLake(t, "")
	l.save(1, at(1))
	r := l.last()
	s := r.Tables["shop.b"]
	s.Complete = false
	r.Tables["shop.b"] = s
	r.ID = 2
	if err := l.store.Put(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	l.mark("shop.a", 1)
	l.expect(exitTempFail, "relation shop.b is still being copied", "wait", "-timeout", "300ms", "-position", string(at(1)))
}

func TestShowPrintsTheRecord(t *testing.T) {
	l := newTestLake(t, "")
	l.expect(exitConfig, "no checkpoint record", "checkpoint", "show")
	l.save(1, at(1), "shop.a", "shop.b")
	l.save(2, at(2), "shop.a")
	l.mark("shop.a", 1)
	out := l.expect(exitOK, "file:binlog.000001:200", "checkpoint", "show")
	if !strings.Contains(out, "not committed  shop.a") {
		t.Errorf("show does not tell what is not committed:\n%s", out)
	}
	l.expect(exitOK, "file:binlog.000001:100", "checkpoint", "show", "-id", "1")
	var r checkpoint.Record
	_, stdout, _ := execTest(t, "checkpoint", "show", "-json", "-config", l.cfg.File)
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.ID != 2 {
		t.Errorf("%v: %s", err, stdout)
	}
}

func TestSetMovesThePositionAndMakesInsertsUpserts(t *testing.T) {
	l := newTestLake(t, "")
	l.expect(exitConfig, "the schema history that belongs to a position is gone", "checkpoint", "set", "-position", string(at(1)))
	l.save(1, at(1), "shop.a", "shop.b")
	l.save(2, at(2), "shop.a")
	l.mark("shop.b", 1)
	l.expect(exitConfig, "record 2 is not committed in shop.a", "checkpoint", "set", "-position", string(at(1)))
	l.mark("shop.a", 2)
	l.expect(exitOK, "from the new position up to file:binlog.000001:200 are read again", "checkpoint", "set", "-position", string(at(1)))
	r := l.last()
	if r.ID != 3 || r.Epoch != 2 || r.Position != at(1) || len(r.Deltas) != 0 || string(r.Source) != `{"format":1}` {
		t.Errorf("record %+v", r)
	}
	for name, s := range r.Tables {
		if !s.Upsert || !s.Complete {
			t.Errorf("table %s: %+v", name, s)
		}
	}
	l.expect(exitOK, "are never read", "checkpoint", "set", "-position", string(at(9)))
	l.expect(exitUsage, "-position", "checkpoint", "set", "-position", "noon")
}

func TestSetFromTablesTakesTheOldestMark(t *testing.T) {
	l := newTestLake(t, "")
	l.save(1, at(1), "shop.a", "shop.b")
	// The store was set back to an old backup, and then to an older one.
	for _, newest := range []int64{7, 100} {
		l.mark("shop.a", newest)
		l.mark("shop.b", newest-2)
		l.expect(exitOK, "reads on at "+string(at(int(newest-2))), "checkpoint", "set", "-from-tables")
		r := l.last()
		if r.ID != newest+1 || r.Position != at(int(newest-2)) || !r.SourceTime.Equal(time.Unix(1700000000+newest-2, 0)) {
			t.Errorf("record %+v", r)
		}
	}
}

func TestSetRefusesAppendTables(t *testing.T) {
	l := newTestLake(t, "tables: [{match: shop.b, mode: append}]\n")
	l.save(1, at(1), "shop.a", "shop.b")
	l.mark("shop.a", 1)
	l.mark("shop.b", 1)
	l.expect(exitConfig, "would lack or repeat the changes in between: shop.b", "checkpoint", "set", "-position", string(at(2)))
	l.expect(exitOK, "saved record 2", "checkpoint", "set", "-position", string(at(2)), "-force")
	if r := l.last(); r.Tables["shop.b"].Upsert || !r.Tables["shop.a"].Upsert {
		t.Errorf("tables %+v", r.Tables)
	}
}

func TestEditingNeedsTheDaemonStopped(t *testing.T) {
	l := newTestLake(t, "")
	l.save(1, at(1), "shop.a", "shop.b")
	l.mark("shop.a", 1)
	l.mark("shop.b", 1)
	lease, err := checkpoint.Acquire(t.Context(), l.records, l.cfg.Checkpoint.Store, "other/7", checkpoint.LeaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.expect(exitTempFail, "stop the daemon first", "checkpoint", "set", "-position", string(at(2)))
	l.expect(exitTempFail, "other/7", "checkpoint", "abandon")
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.expect(exitOK, "saved record 2", "checkpoint", "set", "-position", string(at(2)))
}

func TestAbandonReadsTheRangeAgain(t *testing.T) {
	l := newTestLake(t, "")
	l.expect(exitConfig, "no checkpoint record", "checkpoint", "abandon")
	l.save(1, at(1), "shop.a", "shop.b")
	l.mark("shop.a", 1)
	l.mark("shop.b", 1)
	l.expect(exitConfig, "there is nothing to give up", "checkpoint", "abandon")
	l.save(2, at(2), "shop.a", "shop.b")
	l.mark("shop.a", 2) // b can't be
	l.expect(exitOK, "saved record 3: the next start reads on at file:binlog.000001:100", "checkpoint", "abandon")
	r := l.last()
	if r.ID != 3 || r.Epoch != 2 || r.Position != at(1) || len(r.Deltas) != 0 {
		t.Errorf("record %+v", r)
	}
	if a := r.Tables["shop.a"]; !a.Upsert || a.Checkpoint != 2 {
		t.Errorf("a has the range already, so inserts must be upserts: %+v", a)
	}
	if b := r.Tables["shop.b"]; b.Upsert || b.Checkpoint != 1 {
		t.Errorf("b has nothing of the range: %+v", b)
	}
	l.expect(exitConfig, "there is nothing to give up", "checkpoint", "abandon")
}

func TestAbandonOfTheFirstRecord(t *testing.T) {
	l := newTestLake(t, "")
	l.save(1, "")
	l.save(2, at(1), "shop.a", "shop.b")
	l.mark("shop.a", 2)
	l.expect(exitConfig, "move the table away first", "checkpoint", "abandon")
	if err := os.RemoveAll(filepath.Join(filepath.Dir(l.cfg.File), "lake/shop/a")); err != nil {
		t.Fatal(err)
	}
	l.expect(exitOK, "begins the initial snapshot", "checkpoint", "abandon")
}

func TestReadOfATableWithoutRowsOrWithoutTable(t *testing.T) {
	l := newTestLake(t, "")
	l.table("shop.a")
	code, out, errs := execTest(t, "read", "shop.a", "-config", l.cfg.File)
	if code != exitOK || out != "" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	code, out, errs = execTest(t, "read", filepath.Join(filepath.Dir(l.cfg.File), "lake/shop/a"))
	if code != exitOK || out != "" {
		t.Errorf("by path: exit %d: %s%s", code, out, errs)
	}
	l.expect(exitUsage, "table does not exist", "read", "shop.none")
}
