package sink

import (
	"testing"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

func TestInsertsWriteNoDeletes(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b")))
	if n := counts(l.checkpoint()); n[table.Data] != 2 || len(n) != 1 {
		t.Errorf("rows by content: %v", n)
	}
	l.write(batch(rel, source.Insert, row(3, "c")))
	if n := counts(l.checkpoint()); n[table.Data] != 1 || len(n) != 1 {
		t.Errorf("rows by content: %v", n)
	}
	l.want("shop.t", "id=1 v=a", "id=2 v=b", "id=3 v=c")
}

func TestRepeatedChangesOfAKeyInOneCheckpoint(t *testing.T) { // B2, B5
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "old"), row(10, "old")))
	l.checkpoint()
	l.write(batch(rel, source.Insert, row(20, "v1")))
	l.write(batch(rel, source.Update, row(20, "v1", 20, "v2")))
	l.write(batch(rel, source.Update, row(20, "v2", 20, "v3")))
	l.write(batch(rel, source.Insert, row(21, "x")))
	l.write(batch(rel, source.Delete, row(21, "x")))
	l.write(batch(rel, source.Delete, row(10, "old")))
	l.write(batch(rel, source.Insert, row(10, "ins")))
	l.write(batch(rel, source.Delete, row(10, "ins")))
	l.write(batch(rel, source.Insert, row(10, "again")))
	if n := counts(l.checkpoint()); n[table.Data] != 2 || n[table.EqualityDeletes] != 1 || n[table.PositionDeletes] != 0 {
		t.Errorf("rows by content: %v", n)
	}
	l.want("shop.t", "id=1 v=old", "id=10 v=again", "id=20 v=v3")
}

func TestKeyChangesAreDeleteAndInsert(t *testing.T) { // MY-104, MY-105, MY-106, B9
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b"), row(3, "c")))
	l.checkpoint()
	l.write(batch(rel, source.Update, row(3, "c", 4, "c"), row(2, "b", 3, "b"), row(1, "a", 2, "a")))
	l.checkpoint()
	l.want("shop.t", "id=2 v=a", "id=3 v=b", "id=4 v=c")
	// A swap through a third key.
	l.write(batch(rel, source.Update, row(2, "a", -1, "a"), row(3, "b", 2, "b"), row(-1, "a", 3, "a")))
	l.checkpoint()
	l.want("shop.t", "id=2 v=b", "id=3 v=a", "id=4 v=c")
}
