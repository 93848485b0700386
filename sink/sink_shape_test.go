package sink

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

func truncated(rel *source.Relation) *source.Event {
	return &source.Event{Kind: source.Truncate, Relation: rel}
}

func TestTruncateDropsWhatCameBeforeIt(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b")))
	l.checkpoint()
	before := len(l.fs.paths("file:///lake/shop/t/data"))
	l.sink.writers["shop.t"].shape.chunkRows = 1
	for i := range 5 {
		l.write(batch(rel, source.Insert, row(10+i, "x")))
	}
	l.write(truncated(rel))
	l.write(batch(rel, source.Insert, row(1, "new"), row(3, "c")))
	l.write(batch(rel, source.Delete, row(3, "c")))
	deltas := l.checkpoint()
	if n := counts(deltas); n[table.EqualityDeletes] != 0 {
		t.Errorf("equality deletes after a truncation: %v", n)
	}
	if len(deltas[0].Layers) != 1 || !deltas[0].Layers[0].Truncate {
		t.Errorf("layers: %+v", deltas[0].Layers)
	}
	l.want("shop.t", "id=1 v=new")
	l.scan("shop.t")
	if n := len(l.fs.paths("file:///lake/shop/t/data")); n != before+1 {
		t.Errorf("%d data files in the store, want %d: staged files before the truncation are left", n, before+1)
	}
	l.write(truncated(rel))
	l.checkpoint()
	l.want("shop.t")
	l.scan("shop.t")
	// Of a table in which nothing changed since.
	l.write(truncated(rel))
	l.write(batch(rel, source.Insert, row(1, "again")))
	l.checkpoint()
	l.write(batch(rel, source.Update, row(1, "again", 1, "last")))
	l.checkpoint()
	l.want("shop.t", "id=1 v=last")
	l.scan("shop.t")
}

func TestTruncatePolicies(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", OnTruncate: config.TruncateStop})
	l.prepare(rel)
	l.refused(l.sink.Write(t.Context(), truncated(rel)), source.ErrCannotServe, "shop.t", "on_truncate")

	l = newLake(t, 1<<20, config.Table{Match: "shop.t", OnTruncate: config.TruncateKeep})
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b")))
	l.checkpoint()
	l.write(truncated(rel))
	l.checkpoint()
	l.open(rel) // the rule outlives a restart
	l.write(batch(rel, source.Insert, row(1, "again")))
	l.checkpoint()
	l.want("shop.t", "id=1 v=again", "id=2 v=b")

	l = newLake(t, 1<<20, config.Table{Match: "shop.t", Mode: config.ModeAppend})
	l.prepare(rel)
	l.refused(l.sink.Write(t.Context(), truncated(rel)), source.ErrCannotServe, "shop.t", "on_truncate")

	l = newLake(t, 1<<20, config.Table{Match: "shop.t", Mode: config.ModeAppend, OnTruncate: config.TruncateApply})
	l.prepare(rel)
	l.write(truncated(rel))
	l.checkpoint()
	l.want("shop.t", "id=NULL v=NULL _op=t _source_time=NULL _position= _ordinal=0")
}

func TestAppendModeWritesEveryChange(t *testing.T) {
	rel := shopRelation("t", "", "id long", "v string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", Mode: config.ModeAppend})
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a")))
	l.checkpoint()
	e := batch(rel, source.Insert, row(2, "b"), row(2, "b"))
	e.Batch.Ordinal = 7
	l.write(e)
	l.write(batch(rel, source.Update, row(2, "b", 2, "c")))
	l.write(batch(rel, source.Delete, row(2, "c")))
	n := counts(l.checkpoint())
	if n[table.Data] != 4 || len(n) != 1 {
		t.Errorf("rows by content: %v", n)
	}
	meta := " _source_time=1000000 _position=t1 _ordinal="
	l.want("shop.t",
		"id=1 v=a _op=r"+meta+"0", "id=2 v=b _op=c"+meta+"7", "id=2 v=b _op=c"+meta+"8",
		"id=2 v=c _op=u"+meta+"0", "id=2 v=c _op=d"+meta+"0")

	taken := shopRelation("u", "", "_op string")
	l.cfg.Tables = []config.Table{{Match: "shop.*", Mode: config.ModeAppend}}
	l.refused(l.sink.Prepare(t.Context(), []*source.Relation{taken}, nil), nil, "shop.u", "_op")
}

func TestAppendModePartitionedByItsOwnColumns(t *testing.T) {
	rel := shopRelation("t", "", "id long")
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", Mode: config.ModeAppend, PartitionBy: []string{"day(_source_time)", "_op"}})
	l.prepare(rel)
	e := batch(rel, source.Read, row(1))
	e.Batch.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.write(e)
	d := l.checkpoint()
	if p := d[0].Layers[0].Files[0].Path; !strings.Contains(p, "2026-01-02/_op=r/") {
		t.Errorf("path %s", p)
	}
	l.scan("shop.t")
}

func TestNullInAKeyStops(t *testing.T) { // MY-113
	rel := shopRelation("t", "id", "id long", "v string")
	for _, op := range []source.Op{source.Read, source.Insert} {
		l := newLake(t, 1<<20)
		l.prepare(rel)
		l.refused(l.sink.Write(t.Context(), batch(rel, op, row(nil, "a"))), source.ErrCannotServe, "shop.t", "key column id")
	}
}

func added(rel *source.Relation, after, column, typ string) (*source.Relation, *source.Event) {
	r := *rel
	c := source.Column{Name: column, Native: typ, Nullable: true, Type: types[typ]}
	at := slices.IndexFunc(rel.Columns, func(c source.Column) bool { return c.Name == after }) + 1
	r.Columns = slices.Insert(slices.Clone(rel.Columns), at, c)
	r.Key = nil
	for _, k := range rel.Key {
		if k >= at {
			k++
		}
		r.Key = append(r.Key, k)
	}
	return &r, &source.Event{Kind: source.Schema, Relation: &r, Change: &source.Change{Statement: "ALTER TABLE … ADD " + column, Steps: []source.Step{{Kind: source.AddColumn, Column: c, After: after}}}}
}

func TestAddedColumnsBecomeASchemaStep(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b")))
	l.checkpoint()
	wider, e := added(rel, "id", "n", "int")
	l.write(e)
	l.write(batch(wider, source.Insert, row(3, 33, "c")))
	l.write(batch(wider, source.Update, row(1, nil, "a", 1, 11, "A")))
	deltas := l.checkpoint()
	step := deltas[0].Step
	if step == nil || step.AssertLastColumnID != 2 || step.LastColumnID != 3 || !strings.Contains(step.Statement, "ADD n") {
		t.Fatalf("step: %+v", step)
	}
	var schema iceberg.Schema
	if err := json.Unmarshal(step.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	if deltas[0].Layers[0].SchemaID != schema.ID {
		t.Errorf("layer of schema %d, the step has %d", deltas[0].Layers[0].SchemaID, schema.ID)
	}
	l.want("shop.t", "id=2 v=b", "id=3 n=33 v=c", "id=1 n=11 v=A")
	tab, err := l.cat.Load(t.Context(), "shop.t")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range tab.Schema().Fields() {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"id", "n", "v"}) || tab.LastColumnID() != 3 {
		t.Errorf("columns %v, last id %d", names, tab.LastColumnID())
	}

	// First, without rows after it, and again after a restart.
	first, e := added(wider, "", "z", "string")
	l.write(e)
	if d := l.checkpoint(); len(d) != 1 || d[0].Step == nil || len(d[0].Layers) != 0 {
		t.Errorf("deltas: %+v", d)
	}
	l.open(first)
	last, e := added(first, "v", "y", "wide")
	l.write(e)
	l.write(batch(last, source.Insert, row("z", 4, 44, "d", 5)))
	l.checkpoint()
	l.want("shop.t", "id=2 v=b", "id=3 n=33 v=c", "id=1 n=11 v=A", "z=z id=4 n=44 v=d y=\x00\x00\x00\x00\x00\x00\x00\x00\x05")
}

func TestAddedColumnInAppendModeStaysBeforeOurs(t *testing.T) {
	rel := shopRelation("t", "", "id long")
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", Mode: config.ModeAppend})
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1)))
	l.checkpoint()
	wider, e := added(rel, "id", "v", "string")
	l.write(e)
	l.write(batch(wider, source.Insert, row(2, "b")))
	l.checkpoint()
	l.want("shop.t", "id=1 _op=r _source_time=1000000 _position=t1 _ordinal=0", "id=2 v=b _op=c _source_time=1000000 _position=t1 _ordinal=0")
	_, e = added(wider, "v", "_Op", "string")
	l.refused(l.sink.Write(t.Context(), e), nil, "_Op")
}

func TestSchemaChangesThatCannotBeMade(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", PartitionBy: []string{"bucket(2, id)"}})
	l.prepare(rel)
	_, e := added(rel, "v", "V", "string")
	l.refused(l.sink.Write(t.Context(), e), nil, "shop.t", "V")
	_, e = added(rel, "v", "id_bucket", "string") // B41
	l.refused(l.sink.Write(t.Context(), e), source.ErrCannotServe, "id_bucket")
	l.write(batch(rel, source.Insert, row(1, "a")))
	_, e = added(rel, "v", "w", "string")
	if err := l.sink.Write(t.Context(), e); !errors.Is(err, errUnsettled) {
		t.Errorf("a schema change over rows that are in no checkpoint: %v", err)
	}
}

func TestARelationCreatedLater(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "v string")
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a")))
	l.checkpoint()
	later := shopRelation("later", "id", "id long")
	l.write(&source.Event{Kind: source.Schema, Relation: later, Change: &source.Change{Created: true, Statement: "CREATE TABLE later …"}})
	if !l.sink.Pending(later) {
		t.Error("nothing is pending after CREATE TABLE")
	}
	d := l.checkpoint()
	if len(d) != 1 || d[0].Table != "shop.later" || !d[0].Complete {
		t.Errorf("deltas: %+v", d)
	}
	l.write(batch(later, source.Insert, row(1), row(2)))
	l.write(batch(later, source.Delete, row(1)))
	if n := counts(l.checkpoint()); n[table.Data] != 1 || len(n) != 1 {
		t.Errorf("rows by content: %v", n)
	}
	l.want("shop.later", "id=2")
	l.open(rel, later)
	l.write(batch(later, source.Delete, row(2)))
	l.checkpoint()
	l.want("shop.later")
	l.scan("shop.later")
}

func TestMisfitsAreCountedOrStop(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "d date")
	misfit := func() *source.Event {
		e := batch(rel, source.Insert, row(1))
		e.Batch.After[1].AppendMisfit("zero date 0000-00-00")
		return e
	}
	l := newLake(t, 1<<20)
	l.prepare(rel)
	l.write(misfit())
	l.checkpoint()
	l.want("shop.t", "id=1 d=NULL")

	l = newLake(t, 1<<20, config.Table{Match: "shop.t", Misfit: config.MisfitStop})
	l.prepare(rel)
	l.refused(l.sink.Write(t.Context(), misfit()), source.ErrCannotServe, "shop.t", "column d", "zero date", "misfit: null")

	dated := shopRelation("k", "d", "d date", "v string")
	l = newLake(t, 1<<20)
	l.prepare(dated)
	e := batch(dated, source.Insert, row())
	e.Batch.Rows = 1
	e.Batch.After[0].AppendMisfit("zero date 0000-00-00")
	e.Batch.After[1].AppendBytes([]byte("x"))
	l.refused(l.sink.Write(t.Context(), e), source.ErrCannotServe, "key column d", "zero date")
}

func TestOverridesConvertKeysToo(t *testing.T) {
	rel := shopRelation("t", "id", "id wide", "v string")
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", Columns: map[string]config.Column{"id": {As: "string"}}})
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "a"), row(2, "b")))
	l.checkpoint()
	l.write(batch(rel, source.Update, row(1, "a", 3, "A")))
	l.checkpoint()
	l.want("shop.t", "id=2 v=b", "id=3 v=A")
}

func TestAKeyThatTheSourceDoesNotGuaranteeIsUpserted(t *testing.T) {
	rel := shopRelation("t", "id", "id long", "code string")
	rel.Columns[1].Nullable = false
	l := newLake(t, 1<<20, config.Table{Match: "shop.t", Key: []string{"code"}})
	l.prepare(rel)
	l.write(batch(rel, source.Read, row(1, "x")))
	l.checkpoint()
	l.write(batch(rel, source.Insert, row(2, "x"), row(3, "y")))
	l.checkpoint()
	l.want("shop.t", "id=2 code=x", "id=3 code=y")
	if s := l.sink.Status(); s[0].Rule != RuleUpsert || s[0].Why == "" {
		t.Errorf("status: %+v", s)
	}
}
