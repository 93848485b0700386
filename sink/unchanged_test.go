package sink

import (
	"testing"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

func TestUnchangedValuesThatWereNotSentAreRefused(t *testing.T) { // PG-053, PG-057
	for _, mode := range []string{"upsert", "append"} {
		rel := shopRelation("t", "id", "id long", "v string")
		l := newLake(t, 1<<20, config.Table{Match: "shop.t", Mode: mode})
		l.prepare(rel)
		e := batch(rel, source.Update, row(1, "a", 1, nil))
		v := &e.Batch.After[1]
		v.Reset(v.Type)
		v.AppendUnchanged()
		l.refused(l.sink.Write(t.Context(), e), source.ErrCannotServe, "shop.t", "column v", "REPLICA IDENTITY FULL")
	}
}
