package sink

import (
	"testing"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// Small histories that other programs get wrong.

func TestUpdateOfARowInsertedInTheSameCheckpoint(t *testing.T) {
	rel := shopRelation("seq1", "id", "id long", "v string")
	for _, chunk := range []int{chunkRows, 1} {
		l := newLake(t, 1<<20)
		l.prepare(rel)
		for _, w := range l.sink.writers {
			w.shape.chunkRows = chunk
		}
		l.write(batch(rel, source.Insert, row(1, "x")))
		l.checkpoint()
		l.write(batch(rel, source.Insert, row(20, "v1")))
		l.write(batch(rel, source.Update, row(20, "v1", 20, "v2")))
		l.write(batch(rel, source.Update, row(20, "v2", 20, "v3")))
		l.write(batch(rel, source.Insert, row(21, "v1")))
		l.write(batch(rel, source.Delete, row(21, "v1")))
		l.write(batch(rel, source.Insert, row(10, "ins")))
		l.write(batch(rel, source.Delete, row(10, "ins")))
		l.write(batch(rel, source.Insert, row(10, "again")))
		l.checkpoint()
		l.want("shop.seq1", "id=1 v=x", "id=10 v=again", "id=20 v=v3")
		l.scan("shop.seq1")
	}
}

func TestKeyUpdateLeavesNothingUnderTheOldKey(t *testing.T) {
	rel := shopRelation("pkmove", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a")))
	l.checkpoint()
	l.write(batch(rel, source.Update, row(1, "a", 100, "a")))
	l.checkpoint()
	l.want("shop.pkmove", "id=100 v=a")
	l.scan("shop.pkmove")
}

func TestCompositeKeysAreNotConcatenated(t *testing.T) {
	rel := shopRelation("pair", "k1,k2", "k1 string", "k2 string", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row("a|", "b", "one"), row("a", "|b", "two")))
	l.checkpoint()
	l.write(batch(rel, source.Update, row("a|", "b", "one", "a|", "b", "ONE")))
	l.checkpoint()
	l.want("shop.pair", "k1=a| k2=b v=ONE", "k1=a k2=|b v=two")
	l.scan("shop.pair")
}

func TestKeysAreComparedAsBytes(t *testing.T) {
	rel := shopRelation("bytes", "k", "k string", "n int")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row("a", 1)))
	l.checkpoint()
	l.write(batch(rel, source.Update, row("a", 1, "A", 2)))
	l.write(batch(rel, source.Insert, row("a ", 3)))
	l.checkpoint()
	l.want("shop.bytes", "k=A n=2", "k=a  n=3")
}

func TestARowMovesBetweenPartitions(t *testing.T) {
	rel := shopRelation("part", "id", "id long", "region string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.part", PartitionBy: []string{"region"}})
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "eu"), row(2, "us"), row(3, "eu"), row(4, nil)))
	l.checkpoint()
	l.write(batch(rel, source.Update, row(1, "eu", 1, "us")))
	l.write(batch(rel, source.Delete, row(3, "eu")))
	l.write(batch(rel, source.Update, row(4, nil, 4, "eu")))
	l.checkpoint()
	l.want("shop.part", "id=1 region=us", "id=2 region=us", "id=4 region=eu")
	l.scan("shop.part")
	// There and back in one checkpoint.
	l.write(batch(rel, source.Update, row(1, "us", 1, "eu"), row(1, "eu", 1, "us"), row(2, "us", 2, nil)))
	l.checkpoint()
	l.want("shop.part", "id=1 region=us", "id=2 region=NULL", "id=4 region=eu")
	l.scan("shop.part")
}

func TestPartitionOutsideTheKeyNeedsWholeRows(t *testing.T) { // B28
	rel := shopRelation("part", "id", "id long", "region string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.part", PartitionBy: []string{"region"}})
	l.prepare(rel)
	e := batch(rel, source.Delete, row(1, "eu"))
	e.Batch.KeyOnly = true
	e.Batch.Before[1].Reset(e.Batch.Before[1].Type)
	l.refused(l.sink.Write(t.Context(), e), source.ErrCannotServe, "shop.part", "region")
}

func TestKeyOnlyBeforeImagesSuffice(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b")))
	l.checkpoint()
	e := batch(rel, source.Delete, row(1, "a"))
	e.Batch.KeyOnly = true
	e.Batch.Before[1].Reset(e.Batch.Before[1].Type)
	l.write(e)
	l.checkpoint()
	l.want("shop.t", "id=2 v=b")
}

func TestARelationWithoutAKeyIsRefused(t *testing.T) { // MY-112, B26
	rel := shopRelation("nokey", "", "a int")
	l := newLake(t, 1<<20)
	l.refused(l.sink.Prepare(t.Context(), []*source.Relation{rel}, nil), nil, "shop.nokey", "mode: append")
	if n := len(l.fs.paths("file:///lake/shop")); n != 0 {
		t.Errorf("%d files were made for a pipeline that cannot run", n)
	}
}

func TestFloatKeysAreRefused(t *testing.T) { // B18
	rel := shopRelation("f", "d", "d double")
	l := newLake(t, 1<<20)
	l.refused(l.sink.Prepare(t.Context(), []*source.Relation{rel}, nil), nil, "shop.f", "column d")
}

func TestTwoRelationsDoNotShareATable(t *testing.T) { // MY-116
	a, b := shopRelation("s0", "id", "id int", "v int"), shopRelation("s1", "id", "id int", "v int")
	l := newLake(t, 1<<20, config.Table{Match: "shop.s*", Table: "shop.s"})
	l.refused(l.sink.Prepare(t.Context(), []*source.Relation{a, b}, nil), nil, "shop.s0", "shop.s1")
}
