package table

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// Result is what a commit did.
type Result struct {
	// Skipped: the delta was in the table already (or a later one).
	Skipped        bool
	SnapshotID     int64 // of the pipeline's newest snapshot; 0: none yet
	SequenceNumber int64
	Version        int   // N of vN.metadata.json
	MetadataBytes  int64 // its size
	Snapshots      int   // in the metadata
	Manifests      int   // of the current snapshot; 0 when not known
	Expired        int   // snapshots that this commit expired
	Totals         Totals
}

// attempts bounds how often a commit is made anew because somebody else's came
// first. There is one writer: more than one conflict is rare, many are a fault.
const attempts = 5

// Commit makes d visible: one snapshot for each layer with content, all in one
// metadata commit, together with the schema step, the properties and the mark.
// It happens exactly once, however often it is called with the same mark: a
// table whose mark is at m.Checkpoint or beyond is left as it is.
//
// An error that wraps fileio.ErrUnavailable or fileio.ErrUnknown leaves open
// whether the commit happened; call again. ErrFenced, ErrRolledBack, ErrForeign,
// ErrReplaced and ErrUnfit are final.
func (t *Table) Commit(ctx context.Context, d Delta, m Mark) (Result, error) {
	res, err := t.commit(ctx, d, m)
	if err != nil {
		return res, fmt.Errorf("commit checkpoint %d to table %s: %w", m.Checkpoint, t.name, err)
	}
	return res, nil
}

// Touch brings the mark of an idle table up to date, by a commit of properties
// only. It does nothing if the mark is at m.Checkpoint or beyond.
func (t *Table) Touch(ctx context.Context, m Mark) error {
	if _, err := t.commit(ctx, Delta{Table: t.name, UUID: t.UUID()}, m); err != nil {
		return fmt.Errorf("bring the mark of table %s to checkpoint %d: %w", t.name, m.Checkpoint, err)
	}
	return nil
}

// MarkEnded notes, together with the mark, that the relation was dropped at the
// source at the given time. The table and its rows stay.
func (t *Table) MarkEnded(ctx context.Context, m Mark, at time.Time) error {
	d := Delta{Table: t.name, UUID: t.UUID(), Set: map[string]string{EndedProperty: at.UTC().Format(time.RFC3339)}}
	if _, err := t.commit(ctx, d, m); err != nil {
		return fmt.Errorf("mark table %s as ended: %w", t.name, err)
	}
	return nil
}

func (t *Table) commit(ctx context.Context, d Delta, m Mark) (res Result, err error) {
	if m.Pipeline == "" || m.Checkpoint <= 0 {
		return Result{}, fmt.Errorf("mark without pipeline or checkpoint")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	began := time.Now()
	defer func() {
		result := resultOf(err)
		if err == nil && res.Skipped {
			result = "skipped"
		}
		t.cat.metrics.committed(t.name, result, time.Since(began))
	}()
	for range attempts {
		if t.stale {
			if err := t.reload(ctx); err != nil {
				return Result{}, err
			}
		}
		st := t.state.Load()
		if done, err := t.done(st, d, m); err != nil || done {
			if err == nil {
				err = t.settle(ctx)
			}
			return t.result(st, m.Pipeline, Result{Skipped: true}), err
		}
		if same, err := t.untouched(ctx, st); err != nil {
			return Result{}, err
		} else if !same {
			t.stale = true
			continue
		}
		if err := t.inPlace(ctx, d); err != nil {
			return Result{}, err
		}
		p, err := t.propose(ctx, st, d, m)
		if err != nil {
			p.discard(ctx)
			return Result{}, err
		}
		t.stale = true // until its outcome is known
		err = swap(ctx, t.fs(), t.location, p.next.version, p.data, p.snapshot)
		if err == nil {
			err = t.publish(ctx, p)
		}
		switch {
		case err == nil:
			return t.accept(ctx, p, p.next, m), nil
		case errors.Is(err, errTaken):
			t.cat.metrics.committed(t.name, "conflict", time.Since(began))
			p.discard(ctx) // proven: the version belongs to another file
			if err := t.reload(ctx); err != nil {
				return Result{}, err
			}
			if err := t.onlyUs(t.state.Load()); err != nil {
				return Result{}, err
			}
			t.log.Warn("another commit came first", "version", p.next.version, "checkpoint", m.Checkpoint)
		default:
			// Whatever was written stays: the commit may have happened, or may
			// still happen. The next attempt reads before it decides.
			if reload := t.reload(ctx); reload != nil {
				return Result{}, errors.Join(err, reload)
			}
			st := t.state.Load()
			if done, judged := t.done(st, d, m); judged != nil || !done {
				return Result{}, errors.Join(err, judged)
			}
			if err := t.settle(ctx); err != nil {
				return Result{}, err
			}
			if p.snapshot != 0 && st.version == p.next.version && st.meta.SnapshotByID(p.snapshot) != nil {
				return t.accept(ctx, p, st, m), nil
			}
			return t.result(st, m.Pipeline, Result{}), nil
		}
	}
	return Result{}, fmt.Errorf("%w: %d commits of others came first", fileio.ErrUnavailable, attempts)
}

// done reports whether the table is past m already, and whether it may be
// committed to at all.
func (t *Table) done(st *state, d Delta, m Mark) (bool, error) {
	if d.UUID != "" && d.UUID != st.meta.TableUUID().String() {
		return false, fmt.Errorf("%w: its UUID is %s, the files were written for %s", ErrReplaced, st.meta.TableUUID(), d.UUID)
	}
	if v := st.meta.Version(); v != 2 {
		return false, fmt.Errorf("%w: format version %d, only 2 can be written", ErrUnfit, v)
	}
	have, ok, err := markOf(st.meta.Properties(), m.Pipeline)
	if err != nil || !ok {
		return false, err
	}
	if have.Epoch > m.Epoch {
		return false, fmt.Errorf("%w: its mark has epoch %d (checkpoint %d), ours is %d: another instance of pipeline %s took over, or the checkpoint store was lost or replaced",
			ErrFenced, have.Epoch, have.Checkpoint, m.Epoch, m.Pipeline)
	}
	if err := t.judge(st.meta, have); err != nil {
		return false, err
	}
	if have.Checkpoint == m.Checkpoint && have.Position != m.Position {
		return false, fmt.Errorf("%w: its mark of checkpoint %d is at position %s, not at %s: this is not the history that wrote it",
			ErrFenced, m.Checkpoint, positionText(have.Position), positionText(m.Position))
	}
	return have.Checkpoint >= m.Checkpoint, nil
}

// untouched looks whether the metadata that we know is still the file that we
// know: writers of other engines rename over it. False: it is gone, as after a
// long sleep.
func (t *Table) untouched(ctx context.Context, st *state) (bool, error) {
	path := metadataPath(t.location, st.version)
	info, err := t.fs().Stat(ctx, path)
	switch {
	case errors.Is(err, fileio.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at the metadata: %w", err)
	case info.Size != st.size:
		return false, fmt.Errorf("%w: %s was overwritten while the pipeline ran: another engine commits to this table, which its catalog cannot make safe", ErrForeign, path)
	}
	return true, nil
}

// onlyUs refuses metadata that another engine wrote while we were running.
func (t *Table) onlyUs(st *state) error {
	if v := st.meta.Properties()[versionProperty]; v != fmt.Sprint(st.version) {
		return fmt.Errorf("%w: %s is not from lakesyncd: another engine commits to this table while the pipeline runs, which its catalog cannot make safe",
			ErrForeign, metadataPath(t.location, st.version))
	}
	return nil
}

// inPlace looks, once after a start, that the files of a delta that was saved
// by another process are still there.
func (t *Table) inPlace(ctx context.Context, d Delta) error {
	if t.checked {
		return nil
	}
	var files []File
	for _, l := range d.Layers {
		files = append(files, l.Files...)
	}
	err := parallel(ctx, files, func(ctx context.Context, f File) error {
		info, err := t.fs().Stat(ctx, f.Path)
		switch {
		case errors.Is(err, fileio.ErrNotExist):
			return fmt.Errorf("%w: the staged file %s is gone: give the record up (checkpoint abandon), so that its range is read again", ErrUnfit, f.Path)
		case err != nil:
			return fmt.Errorf("look for staged file: %w", err)
		case info.Size != f.Bytes:
			return fmt.Errorf("%w: the staged file %s has %d bytes, the record says %d", ErrUnfit, f.Path, info.Size, f.Bytes)
		}
		return nil
	})
	t.checked = err == nil
	return err
}

// parallel runs fn for each item, eight at a time, and returns the first error.
func parallel[T any](ctx context.Context, items []T, fn func(context.Context, T) error) error {
	if len(items) == 1 {
		return fn(ctx, items[0])
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, item := range items {
		slots <- struct{}{}
		// Ends with fn, which ends with ctx; parallel waits for it.
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			if err := fn(ctx, item); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// proposal is a metadata commit that is ready to be tried.
type proposal struct {
	t        *Table
	next     *state
	data     []byte   // of the metadata file
	snapshot int64    // the last one that it adds; 0: none
	written  []string // files that only this proposal refers to
	expired  []icetable.Snapshot
	before   icetable.Metadata
}

// discard removes what was written for a proposal that was proven rejected or
// never tried. What can't be removed stays as an orphan.
func (p *proposal) discard(ctx context.Context) {
	if p == nil || len(p.written) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := p.t.fs().Remove(ctx, p.written...); err != nil {
		p.t.log.Warn("files of a rejected commit stay behind", "files", len(p.written), "error", err)
	}
}

// publish writes the hint: a commit counts once readers find it by that. A hint
// that has moved beyond our version tells that we slept while the table went on,
// and so long that the versions after ours are gone again; then errTaken.
func (t *Table) publish(ctx context.Context, p *proposal) (err error) {
	version := p.next.version
	t.hint, t.hintVersion, err = raiseHint(ctx, t.fs(), t.location, version, t.hint, t.hintVersion)
	if err != nil || t.hint == version {
		return err
	}
	newest, _, _, err := readNewest(ctx, t.fs(), t.location)
	if err != nil {
		return fmt.Errorf("%w: %w", fileio.ErrUnknown, err)
	}
	path := metadataPath(t.location, version)
	ours, err := descends(newest.meta, path, p.data, p.snapshot)
	if err != nil || ours || newest.version <= version {
		return err
	}
	return withdraw(ctx, t.fs(), path)
}

// accept makes st, which is what the successful proposal left in the store, the
// state, then does what may be done only after it.
func (t *Table) accept(ctx context.Context, p *proposal, st *state, m Mark) Result {
	t.state.Store(st)
	t.stale = false
	t.checked = true
	t.cat.metrics.describe(t.name, st)
	if len(p.expired) > 0 {
		t.cat.metrics.expired.WithLabelValues(t.name).Add(float64(len(p.expired)))
		if err := t.removeUnreachable(ctx, p); err != nil && ctx.Err() == nil {
			t.log.Warn("files of expired snapshots stay behind", "snapshots", len(p.expired), "error", err)
		}
	}
	if err := t.trimMetadata(ctx); err != nil && ctx.Err() == nil {
		t.log.Warn("old metadata files stay behind", "error", err)
	}
	return t.result(st, m.Pipeline, Result{Expired: len(p.expired)})
}

func (t *Table) result(st *state, pipeline string, r Result) Result {
	if m, ok, err := markOf(st.meta.Properties(), pipeline); ok && err == nil {
		r.SnapshotID, r.SequenceNumber = m.SnapshotID, m.SequenceNumber
	}
	r.Version, r.MetadataBytes = st.version, st.size
	r.Snapshots = len(st.meta.Snapshots())
	if st.listed {
		r.Manifests = len(st.manifests)
	}
	r.Totals = totalsOf(st.meta.CurrentSnapshot())
	return r
}

// check refuses a delta that is wrong in itself, before anything is written.
func (t *Table) check(d Delta, meta icetable.Metadata) error {
	current := meta.PartitionSpec()
	partitioned := current.NumFields() > 0
	if d.Table != "" && d.Table != t.name {
		return fmt.Errorf("%w: the delta is of table %s", ErrUnfit, d.Table)
	}
	data, seen := map[string]bool{}, map[string]bool{}
	for _, l := range d.Layers {
		for _, f := range l.Files {
			if f.Content == Data {
				data[f.Path] = true
			}
		}
		spec := meta.PartitionSpecByID(l.SpecID)
		if spec == nil {
			return fmt.Errorf("%w: it has no partition spec %d", ErrUnfit, l.SpecID)
		}
		for _, f := range l.Files {
			if seen[f.Path] {
				return fmt.Errorf("%w: file %s is in the delta twice", ErrUnfit, f.Path)
			}
			seen[f.Path] = true
			if len(f.Partition) != spec.NumFields() {
				return fmt.Errorf("%w: file %s has %d partition values, spec %d has %d fields", ErrUnfit, f.Path, len(f.Partition), l.SpecID, spec.NumFields())
			}
			switch f.Content {
			case Data:
			case EqualityDeletes:
				if len(f.EqualityIDs) == 0 || !slices.IsSorted(f.EqualityIDs) {
					return fmt.Errorf("%w: equality deletes %s with field ids %v, they must be ascending", ErrUnfit, f.Path, f.EqualityIDs)
				}
				if spec.NumFields() == 0 && partitioned {
					return fmt.Errorf("%w: equality deletes %s are of no partition, but the table is partitioned", ErrUnfit, f.Path)
				}
			case PositionDeletes:
				if !data[f.Refers] {
					return fmt.Errorf("%w: position deletes %s refer to %s, which is no data file of the delta", ErrUnfit, f.Path, f.Refers)
				}
			default:
				return fmt.Errorf("%w: file %s has unknown content %q", ErrUnfit, f.Path, f.Content)
			}
		}
	}
	return nil
}
