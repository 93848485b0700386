// Package sink is where source and lake meet: it routes relations to Iceberg
// tables, translates types and values, and turns changes into data and delete
// files.
//
// A Sink collects the changes of one checkpoint: Write takes them in log order,
// Flush makes every file durable and returns one delta for each changed table,
// Commit makes a delta visible. What was written after a Flush belongs to the
// next checkpoint, so writing goes on while the deltas are committed.
//
// The invariant: applying the deltas in order, each layer under a sequence number
// of its own, leaves every key with the row that the log gave it last, and no row
// of a key that the log deleted. An equality delete reaches only what is older
// than its layer; inside a layer the delta writer kills rows itself.
package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// Options of a Sink.
type Options struct {
	Config     *config.Config
	Catalog    *table.Catalog
	FS         fileio.FS
	Memory     int64 // bytes for buffers, key maps and encoders; 0: 96 MiB
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Now        func() time.Time
}

// Sink writes to all tables of a pipeline. Prepare, Write, Flush, Reset and Close
// belong to one goroutine; Commit, Touch, Tables and Status may be called beside
// them from others.
type Sink struct {
	budget
	config   *config.Config
	catalog  *table.Catalog
	fs       fileio.FS
	log      *slog.Logger
	metrics  *metrics
	hasher   *keyHasher
	encoders *encoders
	spares   *spares
	enc      *stager

	writers    map[string]*deltaWriter // by relation
	byRelation map[*source.Relation]*deltaWriter

	mu       sync.Mutex
	handles  map[string]*table.Table
	states   map[string]TableState
	statuses map[string]TableStatus
}

// TableStatus describes one table, for people.
type TableStatus struct {
	Table, Relation string
	Rule, Why       string // how inserts are written, and why not cheaper
	Complete        bool   // the initial snapshot is in
	Rows            int64  // of data files, deletes not taken off
	Files           int64
	DeleteFiles     int64
	EqualityDeletes int64 // rows
	PositionDeletes int64 // rows
	Bytes           int64
	SnapshotID      int64
	Checkpoint      int64 // newest that is in the table
	SourceTime      time.Time
}

// Open makes a Sink. It does not touch the lake.
func Open(ctx context.Context, o Options) (*Sink, error) {
	if o.Memory == 0 {
		o.Memory = 96 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sink{
		budget: newBudget(o.Memory), config: o.Config, catalog: o.Catalog, fs: o.FS, log: o.Log,
		metrics: newMetrics(o.Registerer), hasher: newKeyHasher(), encoders: newEncoders(2),
		spares:  newSpares(o.Memory / 8),
		writers: map[string]*deltaWriter{}, byRelation: map[*source.Relation]*deltaWriter{},
		handles: map[string]*table.Table{}, states: map[string]TableState{}, statuses: map[string]TableStatus{},
	}
	s.enc = newStager(o.FS, s.spares)
	return s, nil
}

// Prepare binds relations to tables: it creates those that are missing and checks
// those that exist. known is what the saved record tells of them; the deltas of
// that record must have been committed. Errors are all problems at once.
func (s *Sink) Prepare(ctx context.Context, rels []*source.Relation, known map[string]TableState) error {
	resumed := false
	for name, st := range known {
		resumed = resumed || st.Complete
		s.setState(name, st)
	}
	var errs []error
	routes := make([]*route, 0, len(rels))
	taken := map[string]string{}
	for _, rel := range rels {
		r, err := s.route(rel)
		if err == nil && taken[r.table] != "" {
			err = r.wrap(fmt.Errorf("relation %s is written to that table too; give each its own with `tables: [{match: …, table: …}]`", taken[r.table]))
		}
		if err == nil && resumed && !known[r.table].Complete {
			err = r.wrap(fmt.Errorf("the saved record has no complete initial snapshot of it, and a relation cannot be added to a running pipeline in this version; leave it out of `relations`, or start a new pipeline for it"))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		taken[r.table] = rel.FullName()
		routes = append(routes, r)
	}
	if len(errs) > 0 {
		// No table is made for a pipeline that cannot run.
		return errors.Join(errs...)
	}
	// Many small requests: the store's latency counts, not its bandwidth.
	opened := make([]*table.Table, len(routes))
	failed := make([]error, len(routes))
	slots := make(chan struct{}, parallelOpens)
	var all sync.WaitGroup
	for i, r := range routes {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			opened[i], failed[i] = s.openTable(ctx, r, known[r.table], resumed)
		})
	}
	all.Wait()
	for i, r := range routes {
		err := failed[i]
		if err == nil {
			err = s.bindTable(r, opened[i], known[r.table])
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const parallelOpens = 8

// bindTable makes the writer of a relation.
func (s *Sink) bindTable(r *route, t *table.Table, known TableState) error {
	sh, err := s.shape(r, t)
	if err != nil {
		return r.wrap(err)
	}
	st := known
	st.Relation, st.UUID = r.rel.FullName(), t.UUID()
	rule, why := r.rule(st)
	w := newDeltaWriter(s, sh)
	for _, schema := range t.Iceberg().Metadata().Schemas() {
		w.lastSchemaID = max(w.lastSchemaID, schema.ID)
	}
	_, hasRows := t.Head()
	w.empty = !hasRows
	w.startLayer(w.empty)
	w.set = changedProperties(t.Properties(), r.config.Properties)
	w.upsert = rule == RuleUpsert
	s.writers[r.rel.FullName()] = w
	s.byRelation[r.rel] = w
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles[r.table] = t
	s.states[r.table] = st
	status := TableStatus{Table: r.table, Relation: r.rel.FullName(), Rule: rule, Why: why, Complete: st.Complete}
	if head, ok := t.Head(); ok {
		status.SnapshotID = head.ID
	}
	status.totals(t.Totals())
	if m, ok, err := t.Mark(s.config.Pipeline); err == nil && ok {
		status.Checkpoint, status.SourceTime = m.Checkpoint, m.SourceTime
	}
	s.statuses[r.table] = status
	return nil
}

// changedProperties are configured properties that a table doesn't have yet.
func changedProperties(have, want map[string]string) map[string]string {
	set := map[string]string{}
	for k, v := range want {
		if old, ok := have[k]; !ok || old != v {
			set[k] = v
		}
	}
	if len(set) == 0 {
		return nil
	}
	return set
}

func (t *TableStatus) totals(n table.Totals) {
	t.Rows, t.Files, t.DeleteFiles, t.Bytes = n.Records, n.DataFiles, n.DeleteFiles, n.Bytes
	t.EqualityDeletes, t.PositionDeletes = n.EqualityDeletes, n.PositionDeletes
}

// Write takes in one event. Rows, Truncate and Schema change something, others do
// not concern a sink. It blocks while memory is short. After an error the sink
// is of no more use but to be closed.
func (s *Sink) Write(ctx context.Context, e *source.Event) error {
	switch e.Kind {
	case source.Rows:
		if err := s.makeRoom(ctx); err != nil {
			return err
		}
		w, err := s.writer(e.Batch.Relation)
		if err != nil {
			return err
		}
		if err := w.write(e.Batch); err != nil {
			return w.wrap(err)
		}
		s.metrics.rows.WithLabelValues(w.shape.table, opNames[e.Batch.Op]).Add(float64(e.Batch.Rows))
		return nil
	case source.Truncate:
		w, err := s.writer(e.Relation)
		if err != nil {
			return err
		}
		return s.truncate(w, e)
	case source.Schema:
		return s.alter(ctx, e)
	case source.Commit, source.Heartbeat:
		return nil
	}
	return fmt.Errorf("source event of kind %d: %w", e.Kind, source.ErrCannotServe)
}

var opNames = map[source.Op]string{source.Read: "read", source.Insert: "insert", source.Update: "update", source.Delete: "delete"}

func (w *deltaWriter) wrap(err error) error {
	return fmt.Errorf("relation %s, table %s: %w", w.shape.rel.FullName(), w.shape.table, err)
}

// writer finds the writer of a relation. A relation that differs from the one
// known must have the same columns; what is proven of it may have changed.
func (s *Sink) writer(rel *source.Relation) (*deltaWriter, error) {
	if w := s.byRelation[rel]; w != nil {
		return w, nil
	}
	w := s.writers[rel.FullName()]
	if w == nil {
		return nil, fmt.Errorf("relation %s was not announced: %w", rel.FullName(), source.ErrCannotServe)
	}
	r, err := s.route(rel)
	if err != nil {
		return nil, err
	}
	if err := s.rebind(w, r); err != nil {
		return nil, w.wrap(err)
	}
	s.adopt(w, r)
	return w, nil
}

// adopt makes r the relation of w.
func (s *Sink) adopt(w *deltaWriter, r *route) {
	maps.DeleteFunc(s.byRelation, func(_ *source.Relation, o *deltaWriter) bool { return o == w })
	s.byRelation[r.rel] = w
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.statuses[r.table]
	status.Rule, status.Why = r.rule(s.states[r.table])
	s.statuses[r.table] = status
	w.upsert = status.Rule == RuleUpsert
}

// truncate applies a TRUNCATE by the table's policy.
func (s *Sink) truncate(w *deltaWriter, e *source.Event) error {
	sh := w.shape
	switch s.config.TableFor(sh.rel.Namespace, sh.rel.Name).OnTruncate {
	case config.TruncateStop:
		return w.wrap(fmt.Errorf("TRUNCATE at the source; set on_truncate to apply or keep: %w", source.ErrCannotServe))
	case config.TruncateKeep:
		s.metrics.ignored.WithLabelValues(sh.table).Inc()
		s.log.Warn("truncate not applied, on_truncate is keep", "table", sh.table, "relation", sh.rel.FullName())
		s.mu.Lock()
		st, status := s.states[sh.table], s.statuses[sh.table]
		if !sh.append {
			// The kept rows' keys may be inserted again.
			st.Upsert, w.upsert = true, true
			status.Rule, status.Why = RuleUpsert, "a truncation was not applied"
			w.dirty, w.announce = true, true
		}
		s.states[sh.table], s.statuses[sh.table] = st, status
		s.mu.Unlock()
		return nil
	}
	if sh.append {
		if err := w.appendTruncate(e); err != nil {
			return w.wrap(err)
		}
		return nil
	}
	w.truncate(e.Time)
	return nil
}

// alter takes a relation's new shape, or a new relation.
func (s *Sink) alter(ctx context.Context, e *source.Event) error {
	if e.Change == nil {
		return fmt.Errorf("relation %s: a schema event says nothing of what changed: %w", e.Relation.FullName(), source.ErrCannotServe)
	}
	r, err := s.route(e.Relation)
	if err != nil {
		return err
	}
	w := s.writers[e.Relation.FullName()]
	if e.Change.Created {
		if w != nil {
			return w.wrap(fmt.Errorf("%q: the relation exists already: %w", e.Change.Statement, source.ErrCannotServe))
		}
		for _, o := range s.writers {
			if o.shape.table == r.table {
				return r.wrap(fmt.Errorf("relation %s is written to that table too; give each its own with `tables: [{match: …, table: …}]`", o.shape.rel.FullName()))
			}
		}
		t, err := s.openTable(ctx, r, s.state(r.table), false)
		if err != nil {
			return err
		}
		if err := s.bindTable(r, t, s.state(r.table)); err != nil {
			return err
		}
		w = s.writers[e.Relation.FullName()]
		w.dirty, w.announce = true, true
		s.complete(r.table)
		return nil
	}
	if w == nil {
		return fmt.Errorf("relation %s was not announced: %w", e.Relation.FullName(), source.ErrCannotServe)
	}
	if w.pending() {
		return w.wrap(errUnsettled)
	}
	if err := w.evolve(r, e.Change); err != nil {
		return w.wrap(err)
	}
	w.dirty = true
	s.adopt(w, r)
	return nil
}

// Flush ends the checkpoint: when it returns, every file is durable, and the
// deltas of the tables that changed name them all, ordered by table.
func (s *Sink) Flush(ctx context.Context) ([]table.Delta, error) {
	var changed []*deltaWriter
	for _, w := range s.writers {
		if w.pending() {
			changed = append(changed, w)
		}
	}
	slices.SortFunc(changed, func(a, b *deltaWriter) int { return cmp.Compare(a.shape.table, b.shape.table) })
	for _, w := range changed {
		if err := w.cut(); err != nil {
			return nil, w.wrap(err)
		}
	}
	if err := s.enc.idle(ctx); err != nil {
		return nil, err
	}
	var deltas []table.Delta
	var garbage []string
	for _, w := range changed {
		for _, f := range w.garbage {
			if f.stored {
				garbage = append(garbage, f.path)
			}
		}
		if d := w.delta(); d != nil {
			d.Complete = s.state(d.Table).Complete
			s.account(d)
			deltas = append(deltas, *d)
		}
	}
	if len(garbage) > 0 {
		// Nothing names them; that they stay is no fault.
		if err := s.fs.Remove(ctx, garbage...); err != nil {
			s.log.Warn("files that are not needed could not be removed", "files", len(garbage), "err", err)
		}
	}
	return deltas, nil
}

func (s *Sink) account(d *table.Delta) {
	for _, l := range d.Layers {
		for _, f := range l.Files {
			s.metrics.files.WithLabelValues(d.Table, string(f.Content)).Inc()
			s.metrics.bytes.WithLabelValues(d.Table, string(f.Content)).Add(float64(f.Bytes))
			s.metrics.staged.WithLabelValues(d.Table, string(f.Content)).Add(float64(f.Rows))
		}
	}
}

// Commit makes a delta visible, exactly once; see table.Table.Commit. It works
// before Prepare, for the deltas of a saved record.
func (s *Sink) Commit(ctx context.Context, d table.Delta, m table.Mark) (table.Result, error) {
	t, err := s.handle(ctx, d.Table)
	if errors.Is(err, table.ErrNotFound) {
		return table.Result{}, fmt.Errorf("table %s: %w", d.Table, errGone)
	}
	if err != nil {
		return table.Result{}, err
	}
	res, err := t.Commit(ctx, d, m)
	if err != nil {
		return res, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, status := s.states[d.Table], s.statuses[d.Table]
	st.UUID = d.UUID
	st.Complete = st.Complete || d.Complete
	st.Checkpoint = max(st.Checkpoint, m.Checkpoint)
	status.Table, status.Relation, status.Complete = d.Table, st.Relation, st.Complete
	status.SnapshotID, status.Checkpoint, status.SourceTime = res.SnapshotID, m.Checkpoint, m.SourceTime
	status.totals(res.Totals)
	s.states[d.Table], s.statuses[d.Table] = st, status
	return res, nil
}

// Touch brings the mark of a table without changes up to date.
func (s *Sink) Touch(ctx context.Context, name string, m table.Mark) error {
	t, err := s.handle(ctx, name)
	if err != nil {
		return err
	}
	if err := t.Touch(ctx, m); err != nil {
		return err
	}
	if m.Position != "" {
		// Initial snapshots end in one checkpoint, the first with a position.
		s.complete(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.statuses[name]
	status.Table, status.Checkpoint, status.SourceTime = name, m.Checkpoint, m.SourceTime
	s.statuses[name] = status
	return nil
}

func (s *Sink) handle(ctx context.Context, name string) (*table.Table, error) {
	s.mu.Lock()
	t := s.handles[name]
	s.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := s.catalog.Load(ctx, name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.handles[name]; other != nil {
		return other, nil
	}
	s.handles[name] = t
	return t, nil
}

// errGone: a table that the saved record knows is not in the lake.
var errGone = fmt.Errorf("%w: it is gone from the lake, and the saved record has rows of it; restore it, or copy everything again with a new checkpoint store", table.ErrReplaced)

// Marks are the pipeline's marks in the tables of these names. Tables that are
// gone or have none are left out.
func (s *Sink) Marks(ctx context.Context, names []string) (map[string]table.Mark, error) {
	marks := map[string]table.Mark{}
	var errs []error
	var mu sync.Mutex
	slots := make(chan struct{}, parallelOpens)
	var all sync.WaitGroup
	for _, name := range names {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			t, err := s.handle(ctx, name)
			if errors.Is(err, table.ErrNotFound) {
				return
			}
			var m table.Mark
			var ok bool
			if err == nil {
				m, ok, err = t.Mark(s.config.Pipeline)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			} else if ok {
				marks[name] = m
			}
		})
	}
	all.Wait()
	return marks, errors.Join(errs...)
}

// Tables is what the next record must say of the tables.
func (s *Sink) Tables() map[string]TableState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.states)
}

// Completed notes that the initial snapshots of relations are in.
func (s *Sink) Completed(rels ...*source.Relation) {
	for _, rel := range rels {
		if w := s.writers[rel.FullName()]; w != nil {
			s.complete(w.shape.table)
		}
	}
}

func (s *Sink) complete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, status := s.states[name], s.statuses[name]
	st.Complete, status.Complete = true, true
	s.states[name], s.statuses[name] = st, status
}

func (s *Sink) state(name string) TableState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[name]
}

func (s *Sink) setState(name string, st TableState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states[name] = st
}

// Status describes the tables, by name.
func (s *Sink) Status() []TableStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.statuses), func(a, b TableStatus) int { return strings.Compare(a.Table, b.Table) })
}

// Pending reports whether anything was written of a relation since the last
// Flush. A schema change needs a checkpoint first if so.
func (s *Sink) Pending(rel *source.Relation) bool {
	w := s.writers[rel.FullName()]
	return w != nil && w.pending()
}

// Reset gives up everything that was not flushed, removes what was uploaded of
// it, and forgets the relations: Prepare comes next.
func (s *Sink) Reset(ctx context.Context) error {
	err := s.discard(ctx)
	s.budget = newBudget(s.memory)
	s.spares.clear()
	s.enc = newStager(s.fs, s.spares)
	clear(s.writers)
	clear(s.byRelation)
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.handles)
	clear(s.states)
	clear(s.statuses)
	return err
}

// discard ends the encoder and removes the files that no delta names.
func (s *Sink) discard(ctx context.Context) error {
	s.enc.stop()
	var stored []string
	for _, w := range s.writers {
		for _, l := range append(w.layers, w.layer) {
			for _, f := range l.files {
				if f.stored {
					stored = append(stored, f.path)
				}
			}
		}
		for _, f := range w.garbage {
			if f.stored {
				stored = append(stored, f.path)
			}
		}
	}
	slices.Sort(stored)
	stored = slices.Compact(stored)
	if len(stored) == 0 {
		return nil
	}
	if err := s.fs.Remove(ctx, stored...); err != nil {
		return fmt.Errorf("remove %d staged files: %w", len(stored), err)
	}
	return nil
}

// Close ends the sink; what was not flushed is given up.
func (s *Sink) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.discard(ctx)
}
