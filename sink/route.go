package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// Rules by which an insert reaches a table.
const (
	RuleAppend = "append" // every change is a row; nothing is deleted
	RuleProven = "proven" // the log proves an insert's key new: no equality delete
	RuleUpsert = "upsert" // an insert also deletes its key
)

// route is what configuration and relation say of a table.
type route struct {
	rel    *source.Relation
	table  string
	config config.Table
	over   overrides
	schema *iceberg.Schema // of a new table
	spec   iceberg.PartitionSpec
	order  icetable.SortOrder
}

// route resolves a relation. Errors are all problems at once.
func (s *Sink) route(rel *source.Relation) (*route, error) {
	cfg := s.config.TableFor(rel.Namespace, rel.Name)
	r := &route{rel: rel, table: cfg.Table, config: cfg, over: overrides{Append: cfg.Mode == config.ModeAppend}}
	if len(cfg.Key) > 0 {
		r.over.Key = cfg.Key
	}
	if len(cfg.Columns) > 0 {
		r.over.As = map[string]string{}
		for name, c := range cfg.Columns {
			if c.As != "" {
				r.over.As[name] = c.As
			}
		}
	}
	var errs []error
	fail := func(err error) {
		if err != nil {
			errs = append(errs, r.wrap(err))
		}
	}
	if cfg.Mode != config.ModeAppend && cfg.Mode != config.ModeUpsert {
		fail(fmt.Errorf("mode %q is not in this version: use upsert or append", cfg.Mode))
	}
	if _, err := s.catalog.Location(r.table); err != nil {
		fail(err)
	}
	fail(checkCase(rel))
	var err error
	if r.schema, err = icebergSchema(rel, r.over); err != nil {
		fail(err)
	} else {
		r.spec, err = table.ParsePartition(cfg.PartitionBy, r.schema)
		fail(err)
		r.order, err = table.ParseSort(cfg.SortBy, r.schema)
		fail(err)
		_, err = fileColumns(r.schema, cfg.Properties)
		fail(err)
	}
	_, err = parseWriterOptions(cfg.Properties)
	fail(err)
	return r, errors.Join(errs...)
}

func (r *route) wrap(err error) error {
	return fmt.Errorf("relation %s, table %s: %w: %w", r.rel.FullName(), r.table, table.ErrUnfit, err)
}

// checkCase refuses names that some engines cannot tell apart.
func checkCase(rel *source.Relation) error {
	seen := map[string]string{}
	for _, c := range rel.Columns {
		l := strings.ToLower(c.Name)
		if other, ok := seen[l]; ok {
			return fmt.Errorf("columns %s and %s differ only in case, which many engines cannot read", other, c.Name)
		}
		seen[l] = c.Name
	}
	return nil
}

// rule is how an insert reaches the table, and why if it is dearer than it could be.
func (r *route) rule(st TableState) (rule, why string) {
	switch {
	case r.over.Append:
		return RuleAppend, ""
	case r.config.Inserts == config.InsertsUpsert:
		return RuleUpsert, "inserts: upsert is configured"
	case st.Upsert:
		return RuleUpsert, "the table may hold rows of keys that are inserted again"
	}
	if r.over.Key != nil {
		own := make([]string, len(r.rel.Key))
		for i, k := range r.rel.Key {
			own[i] = r.rel.Columns[k].Name
		}
		key := slices.Sorted(slices.Values(r.over.Key))
		slices.Sort(own)
		if !slices.Equal(key, own) {
			return RuleUpsert, "the source does not guarantee that the configured key is unique"
		}
	}
	if !r.rel.KeyProven {
		why = r.rel.Note
		if why == "" {
			why = "the log does not prove that an inserted key is new"
		}
		return RuleUpsert, why
	}
	return RuleProven, ""
}

// shape is a table as the writer needs it, between two schema changes.
type shape struct {
	table, uuid, location string
	rel                   *source.Relation
	schema                *iceberg.Schema
	specID, lastColumnID  int
	spec                  iceberg.PartitionSpec
	order                 icetable.SortOrder
	properties            map[string]string

	columns       []fileColumn
	from          []int // index into rel.Columns; -1: a column of append mode
	convert       []*converter
	key           []int // indexes into columns
	keyIDs        []int // ascending
	deleteColumns []fileColumn
	parts         *partitioner
	sort          []sortKey

	append     bool
	misfitStop bool
	misfitSeen map[string]bool
	options    writerOptions
	target     int64
	chunkRows  int
	chunkBytes int64
}

func (sh *shape) unpartitioned() bool { return sh.parts.Unpartitioned() }

// shape binds a relation to its table.
func (s *Sink) shape(r *route, t *table.Table) (*shape, error) {
	sh := &shape{
		table: r.table, uuid: t.UUID(), location: t.DataLocation(),
		schema: t.Schema(), spec: t.Spec(), order: t.SortOrder(), lastColumnID: t.LastColumnID(),
		properties: t.Properties(), misfitSeen: map[string]bool{},
	}
	maps.Copy(sh.properties, r.config.Properties)
	return sh, s.bind(sh, r)
}

// bind derives everything that follows from a shape's schema and relation.
func (s *Sink) bind(sh *shape, r *route) (err error) {
	sh.rel, sh.specID = r.rel, sh.spec.ID()
	sh.append = r.over.Append
	sh.misfitStop = r.config.Misfit == config.MisfitStop
	sh.target = int64(r.config.TargetFileSize)
	if sh.columns, err = fileColumns(sh.schema, sh.properties); err != nil {
		return err
	}
	if sh.options, err = parseWriterOptions(sh.properties); err != nil {
		return err
	}
	sh.options.Encoders = s.encoders
	if sh.options.RowGroupBytes == 0 {
		sh.options.RowGroupBytes = min(max(s.buffers/3, 1<<20), 32<<20)
	}
	sh.from = make([]int, len(sh.columns))
	sh.convert = make([]*converter, len(sh.columns))
	for i, c := range sh.columns {
		sh.from[i] = slices.IndexFunc(r.rel.Columns, func(o source.Column) bool { return o.Name == c.Name })
		if sh.from[i] < 0 {
			if sh.append && i >= len(sh.columns)-len(appendColumns) {
				continue
			}
			return fmt.Errorf("column %s is not in the relation", c.Name)
		}
		col := r.rel.Columns[sh.from[i]]
		to, timeOfDay, err := r.over.columnType(col)
		if err != nil {
			return err
		}
		if sh.convert[i], err = newConverter(col.Type, to, timeOfDay); err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	if sh.append {
		for i, a := range appendColumns {
			if n := len(sh.columns) - len(appendColumns) + i; n < 0 || sh.columns[n].Name != a.Name {
				return fmt.Errorf("the last columns of the table are not those of mode append")
			}
		}
	}
	sh.key, sh.keyIDs = nil, nil
	for i, c := range sh.columns {
		if slices.Contains(sh.schema.IdentifierFieldIDs, c.ID) {
			sh.key = append(sh.key, i)
			sh.keyIDs = append(sh.keyIDs, c.ID)
		}
	}
	slices.Sort(sh.keyIDs)
	sh.deleteColumns = equalityDeleteColumns(sh.columns, sh.key)
	if sh.parts, err = newPartitioner(sh.spec, sh.columns); err != nil {
		return err
	}
	sh.sort = sortKeys(sh.order, sh.columns)
	sh.chunkRows, sh.chunkBytes = chunkRows, s.chunkBytes
	if len(sh.sort) > 0 {
		sh.chunkRows, sh.chunkBytes = 1<<(rowBits-1), s.sortBytes
	}
	return nil
}

// table loads or creates the table of a relation and checks that it may be used.
func (s *Sink) openTable(ctx context.Context, r *route, known TableState, resumed bool) (*table.Table, error) {
	t, err := s.handle(ctx, r.table)
	if errors.Is(err, table.ErrNotFound) {
		if known.UUID != "" && resumed {
			return nil, r.wrap(errGone)
		}
		return s.createTable(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	if s.unused(t, known) {
		// A crash came between its creation and the first commit, and the relation
		// may have another shape by now.
		return s.createTable(ctx, r)
	}
	return t, s.checkTable(t, r, known, resumed)
}

func (s *Sink) createTable(ctx context.Context, r *route) (*table.Table, error) {
	properties := maps.Clone(r.config.Properties)
	if properties == nil {
		properties = map[string]string{}
	}
	properties[table.CreatedByProperty] = s.config.Pipeline
	t, err := s.catalog.Create(ctx, r.table, table.Definition{Schema: r.schema, Spec: r.spec, Order: r.order, Properties: properties})
	if err != nil {
		return nil, fmt.Errorf("relation %s: %w", r.rel.FullName(), err)
	}
	return t, nil
}

// unused: a table that an earlier start of this pipeline made, and that no record
// and no commit knows of.
func (s *Sink) unused(t *table.Table, known TableState) bool {
	return known.UUID == "" && !known.Complete && t.Untouched(s.config.Pipeline)
}

func (s *Sink) checkTable(t *table.Table, r *route, known TableState, resumed bool) error {
	if s.unused(t, known) {
		return nil // it is made to fit
	}
	var errs []error
	fail := func(err error) {
		errs = append(errs, fmt.Errorf("relation %s, table %s: %w", r.rel.FullName(), r.table, err))
	}
	if v := t.FormatVersion(); v != 2 {
		fail(fmt.Errorf("%w: it has format version %d, only 2 is written", table.ErrUnfit, v))
	}
	if err := fit(t.Schema(), r.schema); err != nil {
		fail(fmt.Errorf("%w: %w; give the relation another table with `tables: [{match: %s, table: …}]`, or move this one away", table.ErrUnfit, err, r.rel.FullName()))
	} else if len(r.config.PartitionBy) > 0 {
		want, err := table.ParsePartition(r.config.PartitionBy, t.Schema())
		if err != nil {
			fail(err)
		} else if !samePartitions(t.Spec(), want) {
			fail(fmt.Errorf("%w: it is partitioned by %s, configured is %s", table.ErrUnfit, t.Spec(), want))
		}
	}
	if err := t.Judge(s.config.Pipeline); err != nil {
		fail(err)
	}
	if known.UUID != "" && known.UUID != t.UUID() {
		fail(fmt.Errorf("%w: its UUID is %s, the saved record has %s", table.ErrReplaced, t.UUID(), known.UUID))
	}
	if known.Relation != "" && known.Relation != r.rel.FullName() {
		fail(fmt.Errorf("%w: it was filled from relation %s", table.ErrUnfit, known.Relation))
	}
	mark, marked, err := t.Mark(s.config.Pipeline)
	_, hasRows := t.Head()
	switch {
	case err != nil:
		fail(err)
	case known.Complete && known.Checkpoint > 0 && (!marked || mark.Checkpoint < known.Checkpoint):
		fail(fmt.Errorf("%w: the saved record says that checkpoint %d is in it, its mark says %d", table.ErrRolledBack, known.Checkpoint, mark.Checkpoint))
	case known.Complete:
	case marked:
		fail(fmt.Errorf("%w: it carries this pipeline's mark of checkpoint %d at %s, but there is no saved record of it; point checkpoint.store at the old records, or move the table away to copy again",
			table.ErrUnfit, mark.Checkpoint, mark.Position))
	case hasRows:
		fail(fmt.Errorf("%w: it has rows that this pipeline did not write; give the relation another table with `tables: [{match: %s, table: …}]`, or move this one away", table.ErrUnfit, r.rel.FullName()))
	}
	return errors.Join(errs...)
}

func samePartitions(a, b iceberg.PartitionSpec) bool {
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i := range a.NumFields() {
		x, y := a.Field(i), b.Field(i)
		if !slices.Equal(x.SourceIDs, y.SourceIDs) || !x.Transform.Equals(y.Transform) {
			return false
		}
	}
	return true
}

// evolve turns a schema change into a step of the table's next delta.
func (w *deltaWriter) evolve(r *route, ch *source.Change) error {
	sh := *w.shape
	fields := sh.schema.Fields()
	last := sh.lastColumnID
	for _, st := range ch.Steps {
		if st.Kind != source.AddColumn {
			return fmt.Errorf("step %d of %q: %w", st.Kind, ch.Statement, source.ErrCannotServe)
		}
		for _, f := range fields {
			if strings.EqualFold(f.Name, st.Column.Name) {
				return fmt.Errorf("added column %s: the table has a column %s already: %w", st.Column.Name, f.Name, source.ErrCannotServe)
			}
		}
		for _, p := range sh.spec.Fields() {
			if p.Name == st.Column.Name {
				return fmt.Errorf("added column %s: a partition field has that name: %w", st.Column.Name, source.ErrCannotServe)
			}
		}
		if sh.append && reservedColumn(st.Column.Name) {
			return fmt.Errorf("added column %s: mode append needs that name: %w", st.Column.Name, source.ErrCannotServe)
		}
		t, timeOfDay, err := r.over.columnType(st.Column)
		if err != nil {
			return fmt.Errorf("%w: %w", err, source.ErrCannotServe)
		}
		f := iceberg.NestedField{ID: last + 1, Name: st.Column.Name}
		last++
		if t.IsList() {
			last++
		}
		if f.Type = icebergType(t, timeOfDay, last); f.Type == nil {
			return fmt.Errorf("added column %s: no type in Iceberg for %s: %w", st.Column.Name, t, source.ErrCannotServe)
		}
		at := 0
		if st.After != "" {
			at = slices.IndexFunc(fields, func(f iceberg.NestedField) bool { return f.Name == st.After }) + 1
			if at == 0 {
				return fmt.Errorf("added column %s: the table has no column %s before it: %w", st.Column.Name, st.After, source.ErrCannotServe)
			}
		}
		fields = slices.Insert(fields, at, f)
	}
	if len(ch.Steps) == 0 {
		return w.sink.rebind(w, r)
	}
	w.lastSchemaID++
	schema := iceberg.NewSchemaWithIdentifiers(w.lastSchemaID, sh.schema.IdentifierFieldIDs, fields...)
	if err := fit(schema, r.schema); err != nil {
		return fmt.Errorf("after %q: %w: %w", ch.Statement, err, source.ErrCannotServe)
	}
	text, err := json.Marshal(schema)
	if err != nil {
		return fmt.Errorf("encode schema: %w", err)
	}
	step := &table.SchemaStep{AssertLastColumnID: sh.lastColumnID, LastColumnID: last, Schema: text, Statement: ch.Statement}
	sh.schema, sh.lastColumnID = schema, last
	if err := w.sink.bind(&sh, r); err != nil {
		return fmt.Errorf("after %q: %w: %w", ch.Statement, err, source.ErrCannotServe)
	}
	w.shape, w.step = &sh, step
	return nil
}

// rebind takes over a relation whose columns are the same.
func (s *Sink) rebind(w *deltaWriter, r *route) error {
	sh := *w.shape
	if err := fit(sh.schema, r.schema); err != nil {
		return fmt.Errorf("the relation changed its shape without a schema change in the log: %w: %w", err, source.ErrCannotServe)
	}
	if err := s.bind(&sh, r); err != nil {
		return fmt.Errorf("%w: %w", err, source.ErrCannotServe)
	}
	// Open chunks have the columns of the shape before, which are the same.
	w.shape = &sh
	return nil
}
