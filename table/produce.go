package table

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// producer builds one metadata commit. It writes manifests and manifest lists
// under new names; nothing refers to them until the metadata file exists.
type producer struct {
	ctx   context.Context // of the one commit that the producer lives for
	t     *Table
	delta Delta
	mark  Mark
	b     *icetable.MetadataBuilder
	base  icetable.Metadata

	version int    // of the metadata to be
	id      string // part of all names of this commit
	names   int

	// live are the manifests with live files after the layers so far; head is
	// the snapshot that the next layer follows (nil: none).
	live []iceberg.ManifestFile
	head *icetable.Snapshot
	seq  int64 // the next sequence number
	time int64 // of all snapshots of the commit, milliseconds

	pending []blob
	queued  int
	written []string
}

type blob struct {
	path string
	data []byte
}

// propose builds the metadata commit of d and m on top of st. On an error the
// proposal still says what was written.
func (t *Table) propose(ctx context.Context, st *state, d Delta, m Mark) (*proposal, error) {
	result := &proposal{t: t, before: st.meta}
	p := &producer{ctx: ctx, t: t, delta: d, mark: m, base: st.meta, version: st.version + 1, id: uuid.NewString(),
		head: st.meta.CurrentSnapshot(), seq: st.meta.LastSequenceNumber() + 1,
		// Snapshot times never decrease, even if the clock does.
		time: max(t.cat.now().UnixMilli(), st.meta.LastUpdatedMillis())}
	// The producer's own, whatever a caller may have left in them.
	p.mark.SnapshotID, p.mark.SequenceNumber = 0, 0
	err := p.build(st, result)
	result.written = p.written
	return result, err
}

func (p *producer) build(st *state, result *proposal) error {
	if err := p.t.check(p.delta, p.base); err != nil {
		return err
	}
	var err error
	if p.b, err = icetable.MetadataBuilderFromBase(p.base, metadataPath(p.t.location, st.version)); err != nil {
		return fmt.Errorf("build metadata: %w", err)
	}
	if err := p.step(); err != nil {
		return err
	}
	listed := st.listed
	p.live = st.manifests
	if len(p.delta.Layers) > 0 {
		if err := p.layers(st); err != nil {
			return err
		}
		listed = true
	}
	if err := p.properties(); err != nil {
		return err
	}
	if result.expired, err = p.expire(); err != nil {
		return err
	}
	meta, err := p.b.Build()
	if err != nil {
		return fmt.Errorf("build metadata: %w", err)
	}
	data, meta, err := encodeMetadata(meta, p.time)
	if err != nil {
		return err
	}
	result.data = data
	if p.seq > p.base.LastSequenceNumber()+1 {
		result.snapshot = p.head.SnapshotID
	}
	result.next = &state{version: st.version + 1, size: int64(len(data)), meta: meta, manifests: p.live, listed: listed}
	return p.flush()
}

// step makes the schema change of the delta.
func (p *producer) step() error {
	s := p.delta.Step
	if s == nil {
		return nil
	}
	if have := p.base.LastColumnID(); have != s.AssertLastColumnID {
		return fmt.Errorf("%w: its last column id is %d, the schema step %q was made for %d: somebody else changed the schema", ErrUnfit, have, s.Statement, s.AssertLastColumnID)
	}
	var target iceberg.Schema
	if err := json.Unmarshal(s.Schema, &target); err != nil {
		return fmt.Errorf("read the schema of step %q: %w", s.Statement, err)
	}
	want := target.ID
	if err := checkNames(&target, p.base.PartitionSpecs()); err != nil {
		return err
	}
	if err := p.b.AddSchema(&target); err != nil {
		return fmt.Errorf("%w: add the schema of step %q: %w", ErrUnfit, s.Statement, err)
	}
	// -1 is the one just added, or the equal one that was there.
	if err := p.b.SetCurrentSchemaID(-1); err != nil {
		return fmt.Errorf("%w: set the schema of step %q: %w", ErrUnfit, s.Statement, err)
	}
	if got := p.b.CurrentSchema().ID; got != want {
		return fmt.Errorf("%w: the schema of step %q would get id %d, its files were written for %d", ErrUnfit, s.Statement, got, want)
	}
	if got := p.b.LastColumnID(); got != s.LastColumnID {
		return fmt.Errorf("%w: the last column id after step %q would be %d, not %d", ErrUnfit, s.Statement, got, s.LastColumnID)
	}
	return nil
}

// layers adds a snapshot for each layer that has content and makes the last one
// the head of main.
func (p *producer) layers(st *state) error {
	if !st.listed && p.head != nil {
		list, err := p.t.readList(p.ctx, p.head)
		if err != nil {
			return err
		}
		p.live = liveOnly(list)
	}
	var content []Layer
	rows := len(p.live) > 0
	for _, l := range p.delta.Layers {
		if len(l.Files) == 0 && !(l.Truncate && rows) {
			continue
		}
		content = append(content, l)
		rows = true
	}
	for i, l := range content {
		if err := p.layer(l, i == 0, i == len(content)-1); err != nil {
			return err
		}
	}
	if len(content) == 0 {
		return nil
	}
	// A plain set-ref would clear the retention that somebody set on the branch.
	keep := p.b.NewRetainingSnapshotRefUpdate(icetable.MainBranch, p.head.SnapshotID, icetable.BranchRef)
	if err := keep.Apply(p.b); err != nil {
		return fmt.Errorf("set the head: %w", err)
	}
	p.mark.SnapshotID, p.mark.SequenceNumber = p.head.SnapshotID, p.head.SequenceNumber
	return nil
}

// layer adds one snapshot.
func (p *producer) layer(l Layer, first, last bool) error {
	schema, err := p.b.GetSchemaByID(l.SchemaID)
	if err != nil {
		return fmt.Errorf("%w: it has no schema %d, which a layer was written for", ErrUnfit, l.SchemaID)
	}
	spec := p.base.PartitionSpecByID(l.SpecID)
	snap := icetable.Snapshot{SnapshotID: p.newSnapshotID(), SequenceNumber: p.seq, TimestampMs: p.time, SchemaID: &l.SchemaID}
	if p.head != nil {
		parent := p.head.SnapshotID
		snap.ParentSnapshotID = &parent
	}
	var sum summary
	var manifests []iceberg.ManifestFile

	var data, deletes []iceberg.DataFile
	fields := spec.PartitionType(schema).FieldList
	for _, f := range l.Files {
		df, err := p.dataFile(f, *spec, fields)
		if err != nil {
			return err
		}
		if sum.add(f); f.Content == Data {
			data = append(data, df)
		} else {
			deletes = append(deletes, df)
		}
	}
	for _, group := range []struct {
		content iceberg.ManifestContent
		files   []iceberg.DataFile
	}{{iceberg.ManifestContentData, data}, {iceberg.ManifestContentDeletes, deletes}} {
		w := p.manifests(group.content, *spec, schema, snap.SnapshotID)
		for _, f := range group.files {
			if err := w.add(iceberg.NewManifestEntry(iceberg.EntryStatusADDED, &snap.SnapshotID, nil, nil, f), (*iceberg.ManifestWriter).Add); err != nil {
				return err
			}
		}
		if err := w.close(); err != nil {
			return err
		}
		manifests = append(manifests, w.done...)
	}

	switch {
	case l.Truncate:
		gone, err := p.removeAll(p.live, schema, snap.SnapshotID, &sum)
		if err != nil {
			return err
		}
		manifests = append(manifests, gone...)
	default:
		kept := p.live
		if first {
			if kept, err = p.merge(p.live, schema, snap.SnapshotID); err != nil {
				return err
			}
		}
		manifests = append(manifests, kept...)
	}

	var list bytes.Buffer
	if err := iceberg.WriteManifestList(2, &list, snap.SnapshotID, snap.ParentSnapshotID, &snap.SequenceNumber, 0, manifests); err != nil {
		return fmt.Errorf("encode manifest list: %w", err)
	}
	snap.ManifestList = p.name(fmt.Sprintf("snap-%d-1-%s.avro", snap.SnapshotID, p.id))
	p.t.cat.blobs.put(snap.ManifestList, list.Bytes())
	if err := p.put(snap.ManifestList, list.Bytes()); err != nil {
		return err
	}
	// Read back: the manifests with the sequence numbers that they have now.
	if manifests, err = iceberg.ReadManifestList(bytes.NewReader(list.Bytes())); err != nil {
		return fmt.Errorf("read back manifest list: %w", err)
	}

	snap.Summary = &icetable.Summary{Operation: sum.operation(), Properties: sum.properties(p.head)}
	maps.Copy(snap.Summary.Properties, p.markSummary(last))
	if err := p.b.AddSnapshot(&snap); err != nil {
		return fmt.Errorf("add snapshot: %w", err)
	}
	p.live, p.head = liveOnly(manifests), &snap
	p.seq++
	return nil
}

// markSummary is what of the mark goes into a snapshot's summary. A snapshot
// that is not the last of its commit is recognisable as ours, and as partial.
func (p *producer) markSummary(last bool) map[string]string {
	if !last {
		return map[string]string{keyPipeline: p.mark.Pipeline, keyPartial: "true"}
	}
	return map[string]string{
		keyPipeline:   p.mark.Pipeline,
		keyEpoch:      strconv.FormatInt(p.mark.Epoch, 10),
		keyCheckpoint: strconv.FormatInt(p.mark.Checkpoint, 10),
		keyPosition:   positionText(p.mark.Position),
		keySourceTime: p.mark.SourceTime.UTC().Format(time.RFC3339Nano),
		keyComplete:   strconv.FormatBool(p.delta.Complete),
	}
}

// properties sets the mark and what the delta asks for.
func (p *producer) properties() error {
	have := p.base.Properties()
	if p.mark.SnapshotID == 0 { // no new snapshot: the newest one of ours stays
		if m, ok, err := markOf(have, p.mark.Pipeline); err != nil {
			return err
		} else if ok {
			p.mark.SnapshotID, p.mark.SequenceNumber = m.SnapshotID, m.SequenceNumber
		} else if p.head != nil { // of somebody else: the table was adopted
			p.mark.SequenceNumber = p.head.SequenceNumber
		}
	}
	set, remove, err := markProperties(p.mark, have)
	if err != nil {
		return err
	}
	set[versionProperty] = strconv.Itoa(p.version)
	for k, v := range p.delta.Set {
		if _, taken := set[k]; taken {
			return fmt.Errorf("%w: the delta sets property %s, which is the commit's own", ErrUnfit, k)
		}
		set[k] = v
	}
	if err := p.b.SetProperties(set); err != nil {
		return fmt.Errorf("%w: set properties: %w", ErrUnfit, err)
	}
	if len(remove) > 0 {
		if err := p.b.RemoveProperties(remove); err != nil {
			return fmt.Errorf("remove properties: %w", err)
		}
	}
	return nil
}

func (p *producer) newSnapshotID() int64 {
	for {
		id := rand.Int64()
		if _, err := p.b.SnapshotByID(id); err != nil && id != 0 {
			return id
		}
	}
}

func (p *producer) name(file string) string { return p.t.location + metadataFolder + file }

// maxQueued is how many bytes of manifests wait in memory to be written together.
const maxQueued = 16 << 20

// put queues a file, so that those of a commit are written in parallel.
func (p *producer) put(path string, data []byte) error {
	p.pending = append(p.pending, blob{path, data})
	if p.queued += len(data); p.queued >= maxQueued {
		return p.flush()
	}
	return nil
}

func (p *producer) flush() error {
	todo := p.pending
	p.pending, p.queued = nil, 0
	for _, b := range todo {
		p.written = append(p.written, b.path)
	}
	return parallel(p.ctx, todo, func(ctx context.Context, b blob) error {
		if err := p.t.fs().Put(ctx, b.path, b.data); err != nil {
			return fmt.Errorf("write manifest: %w", err)
		}
		return nil
	})
}

// dataFile is a staged file as the manifest wants it.
func (p *producer) dataFile(f File, spec iceberg.PartitionSpec, fields []iceberg.NestedField) (iceberg.DataFile, error) {
	content := contents[f.Content]
	partition := make(map[int]any, len(fields))
	for i, field := range fields {
		if f.Partition[i] == nil {
			partition[field.ID] = nil
			continue
		}
		lit, err := iceberg.LiteralFromBytes(field.Type, f.Partition[i])
		if err != nil {
			return nil, fmt.Errorf("%w: partition value %s of file %s: %w", ErrUnfit, field.Name, f.Path, err)
		}
		partition[field.ID] = lit.Any()
	}
	b, err := iceberg.NewDataFileBuilder(spec, content, f.Path, iceberg.ParquetFile, partition, nil, nil, f.Rows, f.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: describe file %s: %w", ErrUnfit, f.Path, err)
	}
	sizes, values, nulls, nans := map[int]int64{}, map[int]int64{}, map[int]int64{}, map[int]int64{}
	lower, upper := map[int][]byte{}, map[int][]byte{}
	for id, c := range f.Columns {
		sizes[id], values[id], nulls[id] = c.Size, c.Values, c.Nulls
		if c.CountsNaN {
			nans[id] = c.NaNs
		}
		if c.Lower != nil {
			lower[id] = c.Lower
		}
		if c.Upper != nil {
			upper[id] = c.Upper
		}
	}
	if len(sizes) > 0 {
		b.ColumnSizes(sizes).ValueCounts(values).NullValueCounts(nulls)
	}
	if len(nans) > 0 {
		b.NaNValueCounts(nans)
	}
	if len(lower) > 0 {
		b.LowerBoundValues(lower)
	}
	if len(upper) > 0 {
		b.UpperBoundValues(upper)
	}
	if len(f.SplitOffsets) > 0 {
		b.SplitOffsets(f.SplitOffsets)
	}
	if len(f.EqualityIDs) > 0 {
		b.EqualityFieldIDs(f.EqualityIDs)
	}
	if f.Refers != "" {
		b.ReferencedDataFile(f.Refers)
	}
	if order := p.base.DefaultSortOrder(); f.Sorted && order != 0 && f.Content == Data {
		b.SortOrderID(order)
	}
	return b.Build(), nil
}

func liveOnly(manifests []iceberg.ManifestFile) []iceberg.ManifestFile {
	return slices.DeleteFunc(slices.Clone(manifests), func(m iceberg.ManifestFile) bool {
		return !m.HasAddedFiles() && !m.HasExistingFiles()
	})
}
