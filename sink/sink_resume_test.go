package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

func TestResumeAgainstTheSavedRecord(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	filled := func() *lake {
		l := newLake(t, 1<<20)
		l.prepare(rel)
		l.write(batch(rel, source.Read, row(1, "a")))
		l.checkpoint()
		l.open()
		return l
	}
	rels := []*source.Relation{rel}

	l := filled()
	l.refused(l.sink.Prepare(t.Context(), rels, nil), table.ErrUnfit, "shop.t", "checkpoint.store", "mark")

	l = filled()
	l.cfg.Pipeline = "other"
	l.refused(l.sink.Prepare(t.Context(), rels, nil), nil, "shop.t")

	l = filled()
	st := l.state["shop.t"]
	st.UUID = "00000000-0000-0000-0000-000000000000"
	l.refused(l.sink.Prepare(t.Context(), rels, map[string]TableState{"shop.t": st}), table.ErrReplaced, "shop.t")

	l = filled()
	st = l.state["shop.t"]
	st.Checkpoint = 5
	l.refused(l.sink.Prepare(t.Context(), rels, map[string]TableState{"shop.t": st}), table.ErrRolledBack, "shop.t")

	l = filled()
	st = l.state["shop.t"]
	st.Relation = "shop.other"
	l.refused(l.sink.Prepare(t.Context(), rels, map[string]TableState{"shop.t": st}), table.ErrUnfit, "shop.other")

	// A relation that came to the configuration since has no initial snapshot.
	l = filled()
	l.refused(l.sink.Prepare(t.Context(), []*source.Relation{rel, shopRelation("new", "id", "id long")}, l.state), nil, "shop.new")
	if n := len(l.fs.paths("file:///lake/shop/new")); n != 0 {
		t.Errorf("%d files of a table that was refused", n)
	}

	// Another shape.
	l = filled()
	l.refused(l.sink.Prepare(t.Context(), []*source.Relation{shopRelation("t", "id", "id long", "v int")}, l.state), table.ErrUnfit, "column v")
	l = filled()
	l.cfg.Tables = []config.Table{{Match: "shop.t", PartitionBy: []string{"bucket(2, id)"}}}
	l.refused(l.sink.Prepare(t.Context(), rels, l.state), table.ErrUnfit, "partitioned")

	// The record's table was dropped from the lake.
	l = filled()
	_ = l.fs.Remove(t.Context(), l.fs.paths("file:///lake/shop/t")...)
	l.refused(l.sink.Prepare(t.Context(), rels, l.state), nil, "shop.t", "gone")

	l = filled()
	l.prepare(rel)
	l.write(batch(rel, source.Delete, row(1, "a")))
	l.checkpoint()
	l.want("shop.t")
}

func TestAnEmptyTableThatFitsIsAdopted(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.open(rel) // made, but nothing was committed before a crash
	l.write(batch(rel, source.Read, row(1, "a")))
	if n := counts(l.checkpoint()); len(n) != 1 {
		t.Errorf("rows by content: %v", n)
	}
	l.want("shop.t", "id=1 v=a")
}

// The source changes a relation between a crash in the first copy and the start
// after it.
func TestATableOfABrokenOffCopyFollowsTheRelation(t *testing.T) {
	l := newLake(t, 1<<20)
	l.prepare(shopRelation("t", "id", "id long", "v string"))
	rel := shopRelation("t", "id", "id long", "w int", "v string")
	if _, errs := l.sink.Plan(t.Context(), []*source.Relation{rel}); len(errs) > 0 {
		t.Errorf("plan: %v", errs)
	}
	l.open(rel)
	l.write(batch(rel, source.Read, row(1, 7, "a")))
	l.checkpoint()
	l.want("shop.t", "id=1 w=7 v=a")
}

func TestDeltasOfARecordAreCommittedBeforePrepare(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a")))
	deltas, err := l.sink.Flush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deltas[0].Complete = true
	l.open()
	m := table.Mark{Pipeline: "test", Epoch: 1, Checkpoint: 1, Position: "p", SourceTime: time.Unix(1, 0)}
	for range 2 {
		if _, err := l.sink.Commit(t.Context(), deltas[0], m); err != nil {
			t.Fatal(err)
		}
	}
	l.deltas["shop.t"] = deltas
	l.state = l.sink.Tables()
	st := l.state["shop.t"]
	st.Relation, st.Checkpoint = "shop.t", 1
	l.state["shop.t"] = st
	l.id = 1
	l.prepare(rel)
	l.scan("shop.t")
}

func TestWritingGoesOnDuringCommit(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(0, "a")))
	l.checkpoint()
	for i := range 10 {
		l.write(batch(rel, source.Insert, row(100+i, "x")))
		deltas, err := l.sink.Flush(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.id++
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, d := range deltas {
				d.Complete = true
				m := table.Mark{Pipeline: "test", Epoch: 1, Checkpoint: l.id, Position: fmt.Sprint(l.id), SourceTime: time.Unix(l.id, 0)}
				if _, err := l.sink.Commit(context.Background(), d, m); err != nil {
					t.Error(err)
				}
			}
			l.sink.Status()
			l.sink.Tables()
		})
		l.deltas["shop.t"] = append(l.deltas["shop.t"], deltas...)
		for j := range 20 {
			l.write(batch(rel, source.Insert, row(1000+100*i+j, "y")))
			l.write(batch(rel, source.Update, row(0, "a", 0, "a")))
		}
		wg.Wait()
	}
	l.checkpoint()
	if n := len(l.rows("shop.t")); n != 1+10+200 {
		t.Errorf("%d rows", n)
	}
	l.scan("shop.t")
}

func TestUploadsAreTriedAgain(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	failures := 3
	l.fs.fail = func(op, path string) error {
		if strings.Contains(path, "/data/") && failures > 0 {
			failures--
			return fmt.Errorf("%s %s: %w", op, path, fileio.ErrUnavailable)
		}
		return nil
	}
	l.write(batch(rel, source.Read, row(1, "a")))
	l.checkpoint()
	l.want("shop.t", "id=1 v=a")
	if l.fs.open != 0 {
		t.Errorf("%d uploads are still open", l.fs.open)
	}
}

func TestARefusedUploadEndsTheSinkAndLeavesNothing(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	n := 0
	l.fs.fail = func(op, path string) error {
		if strings.Contains(path, "/data/") && op == "create" {
			if n++; n == 3 {
				return fmt.Errorf("%s: %w", path, fileio.ErrDenied)
			}
		}
		return nil
	}
	l.sink.writers["shop.t"].shape.chunkRows = 1
	l.sink.writers["shop.t"].shape.target = 1
	var err error
	for i := range 8 {
		if err = l.sink.Write(t.Context(), batch(rel, source.Read, row(i, "a"))); err != nil {
			break
		}
	}
	if err == nil {
		_, err = l.sink.Flush(t.Context())
	}
	if !errors.Is(err, fileio.ErrDenied) {
		t.Errorf("error: %v", err)
	}
	if err := l.sink.Close(); err != nil {
		t.Error(err)
	}
	if left := l.fs.paths("file:///lake/shop/t/data"); len(left) != 0 || l.fs.open != 0 {
		t.Errorf("left: %v, %d open", left, l.fs.open)
	}
}

func TestResetGivesUpWhatWasNotFlushed(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a")))
	l.checkpoint()
	files := len(l.fs.paths("file:///lake/shop/t/data"))
	l.sink.writers["shop.t"].shape.chunkRows = 1
	l.sink.writers["shop.t"].shape.target = 1
	for i := range 5 {
		l.write(batch(rel, source.Insert, row(10+i, "x")))
	}
	if err := l.sink.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.fs.paths("file:///lake/shop/t/data")); n != files {
		t.Errorf("%d files, want %d", n, files)
	}
	l.prepare(rel)
	l.write(batch(rel, source.Insert, row(2, "b")))
	l.checkpoint()
	l.want("shop.t", "id=1 v=a", "id=2 v=b")
}

func TestPlanChangesNothing(t *testing.T) {
	a := shopRelation("a", "id", "id long", "at timestamp", "n wide")
	b := shopRelation("b", "", "v string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.a", PartitionBy: []string{"day(at)"}})
	plan, errs := l.sink.Plan(t.Context(), []*source.Relation{a, b})
	if len(plan) != 1 || len(errs) != 1 {
		t.Fatalf("plan %+v, errors %v", plan, errs)
	}
	p := plan[0]
	if p.Table != "shop.a" || p.Rule != RuleProven || p.Exists || len(p.Columns) != 3 || p.Columns[2].Type != "decimal(20, 0)" || len(p.Warnings) != 2 {
		t.Errorf("plan: %+v", p)
	}
	l.refused(errs[0], table.ErrUnfit, "shop.b")
	if n := len(l.fs.paths("file:///lake/shop")); n != 0 {
		t.Errorf("%d files", n)
	}
}
