package table_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
	"github.com/parquet-go/parquet-go"

	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// addColumn is the step that adds a column to the table's current schema.
func addColumn(tb *testing.T, t *table.Table, name string, typ iceberg.Type) *table.SchemaStep {
	tb.Helper()
	old := t.Schema()
	id := t.LastColumnID() + 1
	next := iceberg.NewSchemaWithIdentifiers(old.ID+1, old.IdentifierFieldIDs, append(old.Fields(), iceberg.NestedField{ID: id, Name: name, Type: typ})...)
	text, err := json.Marshal(next)
	if err != nil {
		tb.Fatal(err)
	}
	return &table.SchemaStep{AssertLastColumnID: id - 1, LastColumnID: id, Schema: text, Statement: "ALTER TABLE t ADD " + name + " INT"}
}

func TestSchemaStepHappensOnceWithItsRows(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	step := addColumn(t, tb, "qty", iceberg.PrimitiveTypes.Int32)
	// Rows before the statement in a layer of their own, rows after it in the next.
	d := delta(tb, []table.File{l.data(tb, row{2, "b"})}, []table.File{l.write(tb, table.Data, []column{
		ids([]row{{id: 3}}),
		{id: 2, name: "name", node: parquet.String(), values: []parquet.Value{parquet.ValueOf("c")}},
		{id: 3, name: "qty", node: parquet.Int(32), values: []parquet.Value{parquet.ValueOf(int32(5))}},
	})})
	d.Step = step
	d.Layers[1].SchemaID = 1
	d.Set = map[string]string{"note": "set"}
	commit(t, tb, d, mark(2))
	expected := []string{`{"id":1,"name":"a","qty":null}`, `{"id":2,"name":"b","qty":null}`, `{"id":3,"name":"c","qty":5}`}
	tb = l.load("shop.orders")
	audit(t, tb, expected)
	if s := tb.Schema(); s.ID != 1 || tb.LastColumnID() != 3 || !slices.Equal(s.IdentifierFieldIDs, []int{1}) || tb.Properties()["note"] != "set" {
		t.Fatalf("schema %s", s)
	}
	all := tb.Snapshots()
	if all[1].SchemaID != 0 || all[2].SchemaID != 1 {
		t.Fatalf("schema ids %d, %d", all[1].SchemaID, all[2].SchemaID)
	}
	// The replay of the record does nothing.
	if res := commit(t, tb, d, mark(2)); !res.Skipped {
		t.Fatalf("result %+v", res)
	}
	// A snapshot is read as it was.
	want(t, rows(t, tb, table.RowsOptions{SnapshotID: all[0].ID}), lines(row{1, "a"}))
}

func TestSchemaStepWithoutRows(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	d := delta(tb)
	d.Step = addColumn(t, tb, "qty", iceberg.PrimitiveTypes.Int32)
	commit(t, tb, d, mark(1))
	if _, ok := tb.Head(); ok || tb.Schema().ID != 1 {
		t.Fatal("a snapshot, or no schema")
	}
	// Whoever changed the schema before us is noticed.
	d = delta(tb)
	d.Step = addColumn(t, tb, "more", iceberg.PrimitiveTypes.Int32)
	d.Step.AssertLastColumnID--
	_, err := tb.Commit(context.Background(), d, mark(2))
	is(t, err, table.ErrUnfit)
	if !strings.Contains(err.Error(), "ADD more") {
		t.Fatal(err)
	}
}

func TestColumnNamesThatCollide(t *testing.T) { // B41, B122
	l := newLake(t)
	schema := iceberg.NewSchemaWithIdentifiers(0, []int{1},
		iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		iceberg.NestedField{ID: 2, Name: "at", Type: iceberg.PrimitiveTypes.Timestamp},
		iceberg.NestedField{ID: 3, Name: "at_day", Type: iceberg.PrimitiveTypes.Int32})
	spec, err := table.ParsePartition([]string{"day(at)", "bucket(4, id)"}, schema)
	if err != nil {
		t.Fatal(err)
	}
	if spec.Field(0).Name != "at_day_2" || spec.Field(1).Name != "id_bucket" {
		t.Fatal(spec)
	}
	tb, err := l.catalog().Create(context.Background(), "shop.orders", table.Definition{Schema: schema, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"at_day_2", "id_bucket", "AT"} {
		d := delta(tb)
		d.Step = addColumn(t, tb, name, iceberg.PrimitiveTypes.Int32)
		var next iceberg.Schema
		if err := json.Unmarshal(d.Step.Schema, &next); err != nil {
			t.Fatal(err)
		}
		is(t, tb.CheckSchema(&next), table.ErrUnfit)
		_, err := tb.Commit(context.Background(), d, mark(1))
		is(t, err, table.ErrUnfit)
	}
}

func TestCreateIsIdempotentForTheSameDefinition(t *testing.T) {
	l := newLake(t)
	ctx := context.Background()
	def := table.Definition{Schema: plain, Properties: map[string]string{"write.parquet.compression-codec": "zstd"}}
	var wg sync.WaitGroup
	uuids := make([]string, 4)
	for i := range uuids {
		c := l.catalog()
		// Ends with the creation.
		wg.Go(func() {
			if tb, err := c.Create(ctx, "shop.orders", def); err != nil {
				t.Error(err)
			} else {
				uuids[i] = tb.UUID()
			}
		})
	}
	wg.Wait()
	slices.Sort(uuids)
	if len(slices.Compact(uuids)) != 1 {
		t.Fatalf("several tables: %v", uuids)
	}
	tb := l.load("shop.orders")
	for key, value := range map[string]string{
		"write.parquet.compression-codec": "zstd", "write.delete.isolation-level": "snapshot",
		"write.metadata.compression-codec": "none", "write.metadata.delete-after-commit.enabled": "true",
	} {
		if tb.Properties()[key] != value {
			t.Errorf("property %s = %q", key, tb.Properties()[key])
		}
	}
	if tb.FormatVersion() != 2 || hint(t, tb) != 1 {
		t.Fatal(tb.FormatVersion(), hint(t, tb))
	}
	other := iceberg.NewSchemaWithIdentifiers(0, []int{1}, append(plain.Fields(), iceberg.NestedField{ID: 3, Name: "more", Type: iceberg.PrimitiveTypes.Int32})...)
	_, err := l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: other})
	is(t, err, table.ErrUnfit)
	spec, err := table.ParsePartition([]string{"bucket(2, id)"}, plain)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: plain, Spec: spec})
	is(t, err, table.ErrUnfit)
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	_, err = l.catalog().Create(ctx, "shop.orders", def)
	is(t, err, table.ErrUnfit)
	names, err := l.catalog().List(ctx)
	if err != nil || !slices.Equal(names, []string{"shop.orders"}) {
		t.Fatal(names, err)
	}
}

// A crash can come between the creation of a table and the first commit, and the
// relation can change its shape before the next start.
func TestATableThatNothingWasCommittedToIsMadeAnew(t *testing.T) {
	l := newLake(t)
	ctx := context.Background()
	mine := map[string]string{table.CreatedByProperty: "shop"}
	more := iceberg.NewSchemaWithIdentifiers(0, []int{1}, append(plain.Fields(), iceberg.NestedField{ID: 3, Name: "more", Type: iceberg.PrimitiveTypes.Int32})...)
	first, err := l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: plain, Properties: mine})
	if err != nil {
		t.Fatal(err)
	}
	// Another pipeline's, or nobody's, stays as it is.
	_, err = l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: more})
	is(t, err, table.ErrUnfit)
	_, err = l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: more, Properties: map[string]string{table.CreatedByProperty: "other"}})
	is(t, err, table.ErrUnfit)
	second, err := l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: more, Properties: mine})
	if err != nil {
		t.Fatal(err)
	}
	tb := l.load("shop.orders")
	if n := len(tb.Schema().Fields()); n != 3 || hint(t, tb) != 2 || tb.MetadataVersion() != 2 || tb.UUID() == first.UUID() || tb.UUID() != second.UUID() {
		t.Errorf("%d columns, hint %d, version %d, UUIDs %s, %s, %s", n, hint(t, tb), tb.MetadataVersion(), first.UUID(), second.UUID(), tb.UUID())
	}
	// What was written for the definition before goes nowhere.
	_, err = first.Commit(ctx, delta(first, []table.File{l.data(first, row{1, "a"})}), mark(1))
	is(t, err, table.ErrReplaced)
	commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	_, err = l.catalog().Create(ctx, "shop.orders", table.Definition{Schema: plain, Properties: mine})
	is(t, err, table.ErrUnfit)
}

func TestCreateAfterALostReply(t *testing.T) {
	l := newLake(t)
	c := l.catalog()
	l.fs.set(nil, once("create", "v1.metadata.json", fileio.ErrExists))
	if _, err := c.Create(context.Background(), "shop.orders", table.Definition{Schema: plain}); err != nil {
		t.Fatal(err)
	}
	l.fs.set(once("replace", "version-hint", fileio.ErrUnavailable), nil)
	_, err := c.Create(context.Background(), "shop.lines", table.Definition{Schema: plain})
	is(t, err, fileio.ErrUnavailable)
	tb, err := c.Create(context.Background(), "shop.lines", table.Definition{Schema: plain})
	if err != nil || hint(t, tb) != 1 {
		t.Fatal(err)
	}
}

func TestLoadOfWhatIsNoTableOfOurs(t *testing.T) {
	l := newLake(t)
	ctx := context.Background()
	_, err := l.catalog().Load(ctx, "shop.none")
	is(t, err, table.ErrNotFound)
	for _, name := range []string{"orders", "shop.", ".orders", "shop.a/b", "shop.a%2fb", "shop..x", "sh\x00p.a", "shop. a", `shop.a\b`, "a:b.c"} {
		_, err := l.catalog().Load(ctx, name)
		if err == nil || errors.Is(err, table.ErrNotFound) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	// Names that are odd but harmless.
	if tb, err := l.catalog().Create(ctx, "Shop 1.Bestellungen-ä.x", table.Definition{Schema: plain}); err != nil {
		t.Error(err)
	} else {
		commit(t, tb, delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
		audit(t, l.load("Shop 1.Bestellungen-ä.x"), lines(row{1, "a"}))
	}
	put := func(name, text string) {
		if err := l.fs.FS.Put(ctx, l.warehouse+"/shop/"+name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	put("zipped/metadata/v1.gz.metadata.json", "x")
	put("rest/metadata/00000-8a4b1f9e-5f0e-4f5e-9d0e-1c8d2f3a4b5c.metadata.json", "{}")
	put("broken/metadata/v1.metadata.json", `{"format-version":2`)
	for _, name := range []string{"zipped", "rest", "broken"} {
		_, err := l.catalog().Load(ctx, "shop."+name)
		is(t, err, table.ErrUnfit)
	}
	// A copy of a table would write to where it came from.
	tb := l.create("shop.orders")
	data, _, err := l.fs.FS.Read(ctx, tb.Location()+"/metadata/v1.metadata.json")
	if err != nil {
		t.Fatal(err)
	}
	put("copy/metadata/v1.metadata.json", string(data))
	_, err = l.catalog().Load(ctx, "shop.copy")
	is(t, err, table.ErrUnfit)
	// The same place in other engines' words is the same place.
	put("spark/metadata/v1.metadata.json", strings.ReplaceAll(string(data), tb.Location(), "file:"+path(l.warehouse)+"/shop/spark"))
	if _, err := l.catalog().Load(ctx, "shop.spark"); err != nil {
		t.Error(err)
	}
}

func TestFormatVersionsOtherThan2AreNotWritten(t *testing.T) {
	l := newLake(t)
	tb := l.create("shop.orders")
	l.foreign(tb, func(b *icetable.MetadataBuilder) {
		if err := b.SetFormatVersion(3); err != nil {
			t.Fatal(err)
		}
	})
	tb = l.load("shop.orders")
	_, err := tb.Commit(context.Background(), delta(tb, []table.File{l.data(tb, row{1, "a"})}), mark(1))
	is(t, err, table.ErrUnfit)
}

// careless is a store that ignores conditions.
type careless struct {
	fileio.FS
	create, replace bool
}

func (c careless) CreateExclusive(ctx context.Context, path string, data []byte) error {
	if c.create {
		return c.Put(ctx, path, data)
	}
	return c.FS.CreateExclusive(ctx, path, data)
}

func (c careless) Replace(ctx context.Context, path string, data []byte, version string) (string, error) {
	if c.replace {
		return "", c.Put(ctx, path, data)
	}
	return c.FS.Replace(ctx, path, data, version)
}

func TestStoreThatIgnoresConditionsIsRefused(t *testing.T) { // B65, B68
	l := newLake(t)
	for _, store := range []careless{{l.fs, true, false}, {l.fs, false, true}} {
		_, err := table.OpenCatalog(context.Background(), table.CatalogOptions{Warehouse: l.warehouse, FS: store})
		is(t, err, fileio.ErrDenied)
	}
	if _, err := table.OpenCatalog(context.Background(), table.CatalogOptions{Warehouse: l.warehouse + "/", FS: l.fs}); err != nil {
		t.Fatal(err)
	}
	if left := files(t, l.warehouse+"/.lakesyncd", "probe"); len(left) != 0 {
		t.Fatalf("left %v", left)
	}
	for _, bad := range []string{"", "/srv/lake", "file://", "s3://b//t"} { // B94
		if _, err := table.OpenCatalog(context.Background(), table.CatalogOptions{Warehouse: bad, FS: l.fs}); err == nil {
			t.Errorf("warehouse %q was taken", bad)
		}
	}
}

func TestPartitionedTable(t *testing.T) { // B30
	l := newLake(t)
	schema := iceberg.NewSchemaWithIdentifiers(0, []int{1, 2},
		iceberg.NestedField{ID: 1, Name: "region", Type: iceberg.PrimitiveTypes.String, Required: true},
		iceberg.NestedField{ID: 2, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true})
	spec, err := table.ParsePartition([]string{"region"}, schema)
	if err != nil {
		t.Fatal(err)
	}
	order, err := table.ParseSort([]string{"id desc"}, schema)
	if err != nil {
		t.Fatal(err)
	}
	tb, err := l.catalog().Create(context.Background(), "shop.orders", table.Definition{Schema: schema, Spec: spec, Order: order})
	if err != nil {
		t.Fatal(err)
	}
	file := func(content table.Content, region string, keys ...int64) table.File {
		r := column{id: 1, name: "region", node: parquet.String(), required: true, lower: []byte(region), upper: []byte(region)}
		var k []row
		for _, id := range keys {
			k = append(k, row{id: id})
			r.values = append(r.values, parquet.ValueOf(region))
		}
		c := ids(k)
		c.id = 2
		f := l.write(tb, content, []column{r, c})
		f.Partition = [][]byte{[]byte(region)}
		f.Sorted = true
		if content == table.EqualityDeletes {
			f.EqualityIDs = []int{1, 2}
		}
		return f
	}
	for i := int64(1); i <= 40; i++ { // enough to have manifests merged
		d := delta(tb, []table.File{
			file(table.Data, "eu", 2*i, 2*i-1), file(table.Data, "us", i),
			file(table.EqualityDeletes, "us", i-1), file(table.EqualityDeletes, "eu", 2*i-2),
		})
		commit(t, tb, d, mark(i))
	}
	var expected []string
	for i := 1; i <= 40; i++ {
		expected = append(expected, fmt.Sprintf(`{"region":"eu","id":%d}`, 2*i-1))
	}
	expected = append(expected, `{"region":"eu","id":80}`, `{"region":"us","id":40}`)
	slices.Sort(expected)
	tb = l.load("shop.orders")
	audit(t, tb, expected)
	d := delta(tb, nil)
	d.Layers[0].Truncate = true
	commit(t, tb, d, mark(41))
	audit(t, tb, nil)
	exactish := tb.Totals()
	if exactish != (table.Totals{}) {
		t.Fatalf("totals %+v", exactish)
	}
}

func TestParsePartition(t *testing.T) {
	fields := []iceberg.NestedField{
		{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		{ID: 2, Name: "at", Type: iceberg.PrimitiveTypes.TimestampTz},
		{ID: 3, Name: "price", Type: iceberg.DecimalTypeOf(10, 2)},
		{ID: 4, Name: "ratio", Type: iceberg.PrimitiveTypes.Float64},
		{ID: 5, Name: "odd, (name)", Type: iceberg.PrimitiveTypes.String},
		{ID: 6, Name: "day", Type: iceberg.PrimitiveTypes.Date},
		{ID: 7, Name: "v", Type: &iceberg.ListType{ElementID: 8, Element: iceberg.PrimitiveTypes.Float32, ElementRequired: true}},
	}
	schema := iceberg.NewSchema(0, fields...)
	for text, name := range map[string]string{
		"id": "id: identity(1)", "identity(id)": "id: identity(1)", " bucket( 16 , id ) ": "id_bucket: bucket[16](1)",
		"day(at)": "at_day: day(2)", "HOUR(at)": "at_hour: hour(2)", "month(day)": "day_month: month(6)", "year(at)": "at_year: year(2)",
		`truncate(3, "odd, (name)")`: "odd, (name)_trunc: truncate[3](5)", "`odd, (name)`": "odd, (name): identity(5)",
		"void(id)": "id_null: void(1)", "bucket(8, price)": "price_bucket: bucket[8](3)",
	} {
		spec, err := table.ParsePartition([]string{text}, schema)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		f := spec.Field(0)
		if got := fmt.Sprintf("%s: %s(%d)", f.Name, f.Transform, f.SourceID()); got != name {
			t.Errorf("%q is %q, want %q", text, got, name)
		}
	}
	for _, bad := range []string{"", "nope", "day(id)", "bucket(id)", "bucket(0, id)", "bucket(-1, id)", "bucket(x, id)", "bucket(4, id", "lower(id)",
		"hour(day)", "ratio", "bucket(4, ratio)", "truncate(5, price)", "v", "day(nope)", "day()", "truncate(99999999999, id)"} {
		if spec, err := table.ParsePartition([]string{bad}, schema); err == nil {
			t.Errorf("%q gave %v", bad, spec)
		}
	}
	if _, err := table.ParsePartition([]string{"day(at)", "day(at)"}, schema); err == nil {
		t.Error("the same twice was taken")
	}
	for text, wanted := range map[string]string{
		"id": "1 asc nulls-first", "id DESC": "1 desc nulls-last", "id asc nulls last": "1 asc nulls-last", "id desc  NULLS FIRST": "1 desc nulls-first", `"odd, (name)" desc`: "5 desc nulls-last",
	} {
		order, err := table.ParseSort([]string{text}, schema)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		f := order.Field(0)
		if got := fmt.Sprintf("%d %s %s", f.SourceID(), f.Direction, f.NullOrder); got != wanted {
			t.Errorf("%q is %q, want %q", text, got, wanted)
		}
	}
	for _, bad := range []string{"", "nope", "v", "id upwards"} {
		if _, err := table.ParseSort([]string{bad}, schema); err == nil {
			t.Errorf("sort by %q was taken", bad)
		}
	}
}

func FuzzParseTransform(f *testing.F) {
	for _, s := range []string{"id", "bucket(16, id)", "truncate(3, `a,b`)", `day("x""y")`, "((", "bucket(,)", `"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		transform, column, err := table.ParseTransform(text)
		if err == nil && (transform == nil || column == "" && !strings.Contains(text, `""`) && !strings.Contains(text, "``")) {
			t.Fatalf("%q: transform %v, column %q", text, transform, column)
		}
	})
}
