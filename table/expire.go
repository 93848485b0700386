package table

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"

	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// expire removes old snapshots of ours from the metadata being built and returns
// them. Their files go after the commit (removeUnreachable).
func (p *producer) expire() ([]icetable.Snapshot, error) {
	if strings.EqualFold(p.base.Properties()[icetable.GCEnabledKey], "false") {
		return nil, nil
	}
	coming := 0
	if head := p.base.CurrentSnapshot(); p.head != nil && (head == nil || head.SnapshotID != p.head.SnapshotID) {
		coming = 1
	}
	old := p.t.expirable(p.base, coming)
	if len(old) == 0 || len(old) < p.t.expiryBatch() {
		return nil, nil
	}
	ids := make([]int64, len(old))
	for i, s := range old {
		ids[i] = s.SnapshotID
	}
	if err := p.b.RemoveSnapshots(ids, false); err != nil {
		return nil, fmt.Errorf("expire snapshots: %w", err)
	}
	return old, nil
}

// expiryBatch is how many snapshots are expired together, so that not each
// commit has to.
func (t *Table) expiryBatch() int {
	if n := t.cat.snapshots.Max; n > 0 {
		return max(1, min(20, n/20))
	}
	return 20
}

// expirable lists the snapshots that the configuration lets go: of main's
// history, from the old end; only ours; never one that a mark names or that
// another branch or a tag needs. coming is how many whole snapshots the commit
// adds to those of meta.
//
// A snapshot counts as being of use until the next one came: time travel to any
// moment in the window finds its snapshot. A partial snapshot stays as long as
// the one that completes it.
func (t *Table) expirable(meta icetable.Metadata, coming int) []icetable.Snapshot {
	rules := t.cat.snapshots
	if rules.Min <= 0 && rules.Max <= 0 && rules.Keep <= 0 {
		return nil
	}
	needed := map[int64]bool{}
	for name, ref := range meta.Refs() {
		if name == icetable.MainBranch {
			continue
		}
		for s := meta.SnapshotByID(ref.SnapshotID); s != nil; s = parentOf(meta, s) {
			needed[s.SnapshotID] = true
			if ref.SnapshotRefType == icetable.TagRef {
				break
			}
		}
	}
	properties := meta.Properties()
	for key := range properties {
		if pipeline, ok := strings.CutPrefix(key, markProperty); ok && !strings.Contains(pipeline, ".") {
			if m, ok, err := markOf(properties, pipeline); ok && err == nil {
				needed[m.SnapshotID] = true
			}
		}
	}
	now := t.cat.now()
	var old []icetable.Snapshot
	kept, until := coming, now
	gone := false
	for s := meta.CurrentSnapshot(); s != nil; s = parentOf(meta, s) {
		if whole := s.Summary == nil || s.Summary.Properties[keyPartial] != "true"; whole {
			gone = kept >= max(rules.Min, 1) &&
				(rules.Max > 0 && kept >= rules.Max || rules.Keep > 0 && now.Sub(until) > rules.Keep.D())
			kept++
			until = time.UnixMilli(s.TimestampMs)
		}
		if gone && !needed[s.SnapshotID] && s.Summary != nil && s.Summary.Properties[keyPipeline] != "" {
			old = append(old, *s)
		}
	}
	return old
}

func parentOf(meta icetable.Metadata, s *icetable.Snapshot) *icetable.Snapshot {
	if s.ParentSnapshotID == nil {
		return nil
	}
	return meta.SnapshotByID(*s.ParentSnapshotID)
}

// removeUnreachable removes the files that only expired snapshots referred to.
// The commit that expired them has happened; what is left behind by an error or
// a crash here is orphaned and harmless.
func (t *Table) removeUnreachable(ctx context.Context, p *proposal) error {
	removed := map[int64]bool{}
	for _, s := range p.expired {
		removed[s.SnapshotID] = true
	}
	roots, simple := t.roots(p, removed)

	// Manifests first: those of the removed that no snapshot of the rest has.
	lists := map[int64][]iceberg.ManifestFile{}
	kept := map[string]iceberg.ManifestFile{}
	keptLists := map[string]bool{}
	for _, s := range p.next.meta.Snapshots() {
		keptLists[s.ManifestList] = true
	}
	for _, s := range roots {
		list, err := t.readList(ctx, s)
		if err != nil {
			return err
		}
		lists[s.SnapshotID] = list
		for _, m := range list {
			kept[m.FilePath()] = m
		}
	}
	var files []string
	gone := map[string]iceberg.ManifestFile{}
	for i := range p.expired {
		s := &p.expired[i]
		list, err := t.readList(ctx, s)
		if errors.Is(err, fileio.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		lists[s.SnapshotID] = list
		if !keptLists[s.ManifestList] {
			files = append(files, s.ManifestList)
		}
		for _, m := range list {
			if _, ok := kept[m.FilePath()]; !ok {
				gone[m.FilePath()] = m
			}
		}
	}

	// Then data and delete files. Ours leave a table only by an entry that
	// says so.
	candidates := map[string]bool{}
	collect := func(m iceberg.ManifestFile, all bool) error {
		return t.entries(ctx, m, func(e iceberg.ManifestEntry) error {
			if all || e.Status() == iceberg.EntryStatusDELETED {
				candidates[e.DataFile().FilePath()] = true
			}
			return nil
		})
	}
	if simple {
		for id, list := range lists {
			s := p.before.SnapshotByID(id)
			if s == nil || s.ParentSnapshotID == nil || !removed[*s.ParentSnapshotID] {
				continue
			}
			for _, m := range list {
				if m.DeletedDataFiles() > 0 && m.SnapshotID() == id {
					if err := collect(m, false); err != nil {
						return err
					}
				}
			}
		}
	} else {
		for _, m := range gone {
			if err := collect(m, true); err != nil {
				return err
			}
		}
	}
	if len(candidates) > 0 {
		for _, m := range kept {
			err := t.entries(ctx, m, func(e iceberg.ManifestEntry) error {
				if e.Status() != iceberg.EntryStatusDELETED {
					delete(candidates, e.DataFile().FilePath())
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	for path := range candidates {
		files = append(files, path)
	}
	for path := range gone {
		files = append(files, path)
	}
	if len(files) == 0 {
		return nil
	}
	if err := t.fs().Remove(ctx, files...); err != nil {
		return fmt.Errorf("remove files of expired snapshots: %w", err)
	}
	t.cat.metrics.removed.Add(float64(len(files)))
	return nil
}

// roots are the retained snapshots that must be read to know what the retained
// ones refer to.
//
// Where main's history is ours, it is enough to read the oldest retained one of
// it and those off that path: our commits drop manifests and never take one up
// again, so one that a removed and any later snapshot share is in every snapshot
// between them. Else all are read.
func (t *Table) roots(p *proposal, removed map[int64]bool) (roots []*icetable.Snapshot, simple bool) {
	path := map[int64]bool{}
	var oldest *icetable.Snapshot
	simple, past := true, false
	for s := p.before.CurrentSnapshot(); s != nil; s = parentOf(p.before, s) {
		if s.Summary == nil || s.Summary.Properties[keyPipeline] == "" {
			simple = false
		}
		switch {
		case removed[s.SnapshotID]:
			past = true
		case !past:
			oldest = s
			path[s.SnapshotID] = true
		}
	}
	if oldest == nil {
		simple = false
	}
	all := p.next.meta.Snapshots()
	for i := range all {
		s := &all[i]
		added := p.before.SnapshotByID(s.SnapshotID) == nil
		if !simple || s.SnapshotID == oldest.SnapshotID || !path[s.SnapshotID] && !added {
			roots = append(roots, s)
		}
	}
	return roots, simple
}

const (
	// metadataAge is how long a metadata file stays that newer ones do not
	// list any more, unless there are more than metadataFiles of them. (Each
	// repeats all snapshots: a table that is committed to every ten seconds
	// writes some gigabytes of them a day.) A writer that slept cannot create
	// a version anew while the old file is there; one that slept longer is
	// caught by the hint.
	metadataAge   = 24 * time.Hour
	metadataFiles = 1000
	// trimEvery and trimBatch keep the price of this down to a request now and
	// then.
	trimEvery = 16
	trimBatch = 16
)

// trimMetadata removes old metadata files. t.mu is held.
func (t *Table) trimMetadata(ctx context.Context) error {
	st := t.state.Load()
	if st.version%trimEvery != 0 {
		return nil
	}
	if t.oldest == 0 {
		// Versions are dense: the lowest that exists is found by halving.
		low, high := 1, st.version
		for at := 1; low < high; at = (low + high) / 2 {
			there, err := exists(ctx, t.fs(), metadataPath(t.location, at))
			if err != nil {
				return err
			}
			if there {
				high = at
			} else {
				low = at + 1
			}
		}
		t.oldest = low
	}
	listed := 0
	for range st.meta.PreviousFiles() {
		listed++
	}
	for range 4 {
		last := t.oldest + trimBatch - 1
		if last >= st.version-listed {
			return nil
		}
		many := st.version-listed-t.oldest > metadataFiles
		info, err := t.fs().Stat(ctx, metadataPath(t.location, last))
		if errors.Is(err, fileio.ErrNotExist) {
			t.oldest = 0 // somebody else removes them: look again
			return nil
		}
		if err != nil {
			return fmt.Errorf("look at old metadata: %w", err)
		}
		if !many && t.cat.now().Sub(info.ModTime) < metadataAge {
			return nil
		}
		var paths []string
		for v := t.oldest; v <= last; v++ {
			paths = append(paths, metadataPath(t.location, v))
		}
		if err := t.fs().Remove(ctx, paths...); err != nil {
			return fmt.Errorf("remove old metadata: %w", err)
		}
		t.oldest = last + 1
	}
	return nil
}
