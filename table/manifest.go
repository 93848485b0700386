package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"sync"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
)

const (
	// manifestBytes is about the largest manifest that is written.
	manifestBytes = 8 << 20
	// fanIn is how many manifests of like size are merged into one. Each
	// commit adds one or two; so a list holds fewer than fanIn for each power of
	// fanIn in the number of files, and every file's entry is written again
	// only once for each of these powers.
	fanIn = 16
	// blobBytes is what the catalog keeps of small manifests and lists that it
	// wrote, so that merging and expiry do not read them back.
	blobBytes = 4 << 20
)

// manifestWriter writes entries into as many manifests as their size asks for.
type manifestWriter struct {
	p        *producer
	content  iceberg.ManifestContent
	spec     iceberg.PartitionSpec
	schema   *iceberg.Schema
	snapshot int64

	w    *iceberg.ManifestWriter
	buf  bytes.Buffer
	some map[int]bool // partition fields that have a value in this manifest
	done []iceberg.ManifestFile
}

func (p *producer) manifests(content iceberg.ManifestContent, spec iceberg.PartitionSpec, schema *iceberg.Schema, snapshot int64) *manifestWriter {
	return &manifestWriter{p: p, content: content, spec: spec, schema: schema, snapshot: snapshot}
}

// add writes one entry by Add, Existing or Delete of iceberg.ManifestWriter. A
// manifest is begun only for an entry: there are no empty ones.
func (w *manifestWriter) add(e iceberg.ManifestEntry, how func(*iceberg.ManifestWriter, iceberg.ManifestEntry) error) (err error) {
	if w.w == nil {
		w.buf.Reset()
		w.some = map[int]bool{}
		if w.w, err = iceberg.NewManifestWriter(2, &w.buf, w.spec, w.schema, w.snapshot, iceberg.WithManifestWriterContent(w.content)); err != nil {
			return fmt.Errorf("begin manifest: %w", err)
		}
	}
	if err := how(w.w, e); err != nil {
		return fmt.Errorf("write manifest entry of %s: %w", e.DataFile().FilePath(), err)
	}
	for id, value := range e.DataFile().Partition() {
		w.some[id] = w.some[id] || value != nil
	}
	if w.buf.Len() >= manifestBytes {
		return w.close()
	}
	return nil
}

// boundEmpty gives partition summaries the bounds that are the empty string. The
// library leaves those out, and a reader takes a field without bounds for one that
// holds only nulls and skips the manifest.
func (w *manifestWriter) boundEmpty(m iceberg.ManifestFile) iceberg.ManifestFile {
	summaries, mended := m.Partitions(), false
	for i, field := range w.spec.Fields() {
		if i < len(summaries) && w.some[field.FieldID] {
			for _, bound := range []**[]byte{&summaries[i].LowerBound, &summaries[i].UpperBound} {
				if *bound == nil || **bound == nil {
					*bound, mended = &[]byte{}, true
				}
			}
		}
	}
	if !mended {
		return m
	}
	return iceberg.NewManifestFile(2, m.FilePath(), m.Length(), m.PartitionSpecID(), m.SnapshotID()).
		Content(m.ManifestContent()).SequenceNum(m.SequenceNum(), m.MinSequenceNum()).
		AddedFiles(m.AddedDataFiles()).ExistingFiles(m.ExistingDataFiles()).DeletedFiles(m.DeletedDataFiles()).
		AddedRows(m.AddedRows()).ExistingRows(m.ExistingRows()).DeletedRows(m.DeletedRows()).
		Partitions(summaries).Build()
}

func (w *manifestWriter) close() error {
	if w.w == nil {
		return nil
	}
	if err := w.w.Close(); err != nil {
		return fmt.Errorf("close manifest: %w", err)
	}
	path := w.p.name(w.p.id + "-m" + strconv.Itoa(w.p.names) + ".avro")
	w.p.names++
	m, err := w.w.ToManifestFile(path, int64(w.buf.Len()), iceberg.WithManifestFileContent(w.content))
	if err != nil {
		return fmt.Errorf("close manifest: %w", err)
	}
	m = w.boundEmpty(m)
	w.w = nil
	w.done = append(w.done, m)
	data := bytes.Clone(w.buf.Bytes())
	w.p.t.cat.blobs.put(path, data)
	return w.p.put(path, data)
}

// readList reads the manifests of a snapshot.
func (t *Table) readList(ctx context.Context, s *icetable.Snapshot) ([]iceberg.ManifestFile, error) {
	data := t.cat.blobs.get(s.ManifestList)
	if data == nil {
		var err error
		if data, _, err = t.fs().Read(ctx, s.ManifestList); err != nil {
			return nil, fmt.Errorf("read manifest list: %w", err)
		}
	}
	list, err := iceberg.ReadManifestList(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: read manifest list %s: %w", ErrUnfit, s.ManifestList, err)
	}
	return list, nil
}

// entries calls fn for each entry of a manifest, with the sequence numbers that
// it inherits.
func (t *Table) entries(ctx context.Context, m iceberg.ManifestFile, fn func(iceberg.ManifestEntry) error) error {
	data := t.cat.blobs.get(m.FilePath())
	if data == nil {
		var err error
		if data, _, err = t.fs().Read(ctx, m.FilePath()); err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
	}
	r, err := iceberg.NewManifestReader(m, bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%w: read manifest %s: %w", ErrUnfit, m.FilePath(), err)
	}
	defer r.Close()
	for {
		e, err := r.ReadEntry()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: read manifest %s: %w", ErrUnfit, m.FilePath(), err)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
}

// tier is the power of fanIn that the number of live files falls into.
func tier(m iceberg.ManifestFile) int {
	n := max(1, int(m.AddedDataFiles())+int(m.ExistingDataFiles()))
	return (bits.Len(uint(n)) - 1) / (bits.Len(fanIn) - 1)
}

// merge folds manifests of like content, spec and size into one where fanIn of
// them have piled up. Entries keep their sequence numbers, so what a delete
// covers does not change; those of files that are gone fall away.
func (p *producer) merge(live []iceberg.ManifestFile, schema *iceberg.Schema, snapshot int64) ([]iceberg.ManifestFile, error) {
	type group struct {
		content iceberg.ManifestContent
		spec    int32
		tier    int
	}
	count, size := map[group]int{}, map[group]int64{}
	of := func(m iceberg.ManifestFile) group { return group{m.ManifestContent(), m.PartitionSpecID(), tier(m)} }
	for _, m := range live {
		if m.Length() < manifestBytes/2 {
			count[of(m)]++
			size[of(m)] += m.Length()
		}
	}
	writers := map[group]*manifestWriter{}
	var kept []iceberg.ManifestFile
	for _, m := range live {
		g := of(m)
		if m.Length() >= manifestBytes/2 || count[g] < fanIn {
			kept = append(kept, m)
			continue
		}
		w := writers[g]
		if w == nil {
			spec := p.base.PartitionSpecByID(int(g.spec))
			if spec == nil {
				return nil, fmt.Errorf("%w: manifest %s has the unknown partition spec %d", ErrUnfit, m.FilePath(), g.spec)
			}
			w = p.manifests(g.content, *spec, schema, snapshot)
			writers[g] = w
		}
		err := p.t.entries(p.ctx, m, func(e iceberg.ManifestEntry) error {
			if e.Status() == iceberg.EntryStatusDELETED {
				return nil
			}
			return w.add(e, (*iceberg.ManifestWriter).Existing)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, w := range writers {
		if err := w.close(); err != nil {
			return nil, err
		}
		kept = append(kept, w.done...)
	}
	return kept, nil
}

// removeAll writes manifests in which every live file is deleted.
func (p *producer) removeAll(live []iceberg.ManifestFile, schema *iceberg.Schema, snapshot int64, sum *summary) ([]iceberg.ManifestFile, error) {
	type group struct {
		content iceberg.ManifestContent
		spec    int32
	}
	writers := map[group]*manifestWriter{}
	var order []*manifestWriter
	for _, m := range live {
		g := group{m.ManifestContent(), m.PartitionSpecID()}
		w := writers[g]
		if w == nil {
			spec := p.base.PartitionSpecByID(int(g.spec))
			if spec == nil {
				return nil, fmt.Errorf("%w: manifest %s has the unknown partition spec %d", ErrUnfit, m.FilePath(), g.spec)
			}
			w = p.manifests(g.content, *spec, schema, snapshot)
			writers[g] = w
			order = append(order, w)
		}
		err := p.t.entries(p.ctx, m, func(e iceberg.ManifestEntry) error {
			if e.Status() == iceberg.EntryStatusDELETED {
				return nil
			}
			sum.remove(e.DataFile())
			return w.add(e, (*iceberg.ManifestWriter).Delete)
		})
		if err != nil {
			return nil, err
		}
	}
	var out []iceberg.ManifestFile
	for _, w := range order {
		if err := w.close(); err != nil {
			return nil, err
		}
		out = append(out, w.done...)
	}
	return out, nil
}

// blobs keeps the newest of some small files, up to a number of bytes.
type blobs struct {
	mu    sync.Mutex
	limit int
	size  int
	data  map[string][]byte
	order []string // oldest first
}

func newBlobs(limit int) *blobs { return &blobs{limit: limit, data: map[string][]byte{}} }

func (b *blobs) put(path string, data []byte) {
	if len(data) > 64<<10 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data[path] = data
	b.order = append(b.order, path)
	b.size += len(data)
	for b.size > b.limit {
		b.size -= len(b.data[b.order[0]])
		delete(b.data, b.order[0])
		b.order = b.order[1:]
	}
}

// get returns nil for what it does not hold.
func (b *blobs) get(path string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data[path]
}
