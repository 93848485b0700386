package sink

import (
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/lakesyncd/lakesyncd/table"
)

// room returns the open chunk of a partition with room for a run of rows. mapped:
// the key map will point at the rows. compact: a full chunk may be compacted
// instead of being sealed.
func (w *deltaWriter) room(p *partition, mapped, compact bool) (*chunk, error) {
	if c := p.open; c != nil && (c.rows >= w.shape.chunkRows || c.bytes >= w.shape.chunkBytes) {
		if compact && c.live() <= c.rows/2 {
			if err := w.compact(p); err != nil {
				return nil, err
			}
		} else {
			if w.lengths == nil {
				w.lengths = lengthsOf(c)
			}
			w.seal(p)
		}
	}
	if p.open == nil {
		p.open = &chunk{cols: w.sink.spares.take(w, w.shape.columns)}
		if mapped {
			p.open.index = uint64(len(w.chunks))
			w.chunks = append(w.chunks, p.open)
		}
	}
	return p.open, nil
}

// compact gathers the live rows of a chunk in which most have died, so that keys
// that change all the time are written once and not once for each full chunk.
func (w *deltaWriter) compact(p *partition) error {
	old := p.open
	c := &chunk{cols: w.sink.spares.take(w, w.shape.columns), index: old.index}
	rows := old.liveRows()
	vectors := old.vectors()
	for i := 0; i < len(rows); {
		j := i + 1
		for j < len(rows) && rows[j] == rows[j-1]+1 {
			j++
		}
		c.add(vectors, int(rows[i]), int(rows[j-1])+1)
		i = j
	}
	vectors = c.vectors()
	for lo := 0; lo < c.rows; lo += subBatch {
		hi := min(lo+subBatch, c.rows)
		w.hashes = w.sink.hasher.keys(w.hashes[:0], vectors, w.shape.key, lo, hi)
		for i, h := range w.hashes {
			s := w.keys.find(h.add(p.hash))
			if s == nil || !s.live() || s.id() != old.index<<rowBits|uint64(rows[lo+i]) {
				return fmt.Errorf("table %s: the key map lost a row", w.shape.table)
			}
			s.set(c.index<<rowBits | uint64(lo+i))
		}
	}
	w.chunks[c.index], p.open = c, c
	w.sink.open -= old.counted
	w.count(c)
	w.sink.spares.give(w, old.cols)
	return nil
}

// seal hands the open chunk of a partition to the encoder. Which of its rows live,
// and so where each is in the file, is settled here, not when they are encoded.
func (w *deltaWriter) seal(p *partition) {
	c := p.open
	if c == nil {
		return
	}
	p.open = nil
	w.sink.open -= c.counted
	if c.live() == 0 {
		w.sink.spares.give(w, c.cols)
		c.cols = nil
		return
	}
	if p.data == nil {
		w.sink.boundOpenFiles()
		p.data = w.stage(p, table.Data, w.shape.columns, "")
	}
	f := p.data
	rows := c.liveRows()
	if len(w.shape.sort) > 0 {
		rows = w.shape.sortRows(c, rows)
		c.place = make([]uint32, c.rows)
		for at, row := range rows {
			c.place[row] = uint32(at)
		}
	}
	c.freeze(f, f.rows)
	f.rows += int64(c.live())
	f.raw += c.bytes
	w.addExtra(c.overhead())
	j := job{file: f, chunk: c.cols, owner: w, rows: rows, bytes: c.bytes}
	c.cols = nil
	switch {
	case len(w.shape.sort) > 0:
		// A file is sorted as a whole only if it holds one chunk.
		f.sorted = true
		fallthrough
	case f.size() >= w.shape.target:
		j.then = closeFile
		w.sink.forget(f)
	}
	w.sink.enc.submit(j)
}

// size estimates how large a file is with all that was sealed for it.
func (f *stagedFile) size() int64 {
	return f.written.Load() + (f.raw-f.encoded.Load())/4
}

func (w *deltaWriter) addExtra(n int64) {
	w.extra += n
	w.sink.extra += n
}

// sealDeletes hands the keys to delete to the encoder.
func (w *deltaWriter) sealDeletes(p *partition) {
	c := p.deletes
	if c == nil {
		return
	}
	p.deletes = nil
	w.sink.open -= c.counted
	if p.keys == nil {
		w.sink.boundOpenFiles()
		p.keys = w.stage(p, table.EqualityDeletes, w.shape.deleteColumns, "")
		p.keys.ids = w.shape.keyIDs
	}
	f := p.keys
	f.rows += int64(c.rows)
	f.raw += c.bytes
	j := job{file: f, chunk: c.cols, bytes: c.bytes}
	if f.size() >= w.shape.target {
		j.then = closeFile
		w.sink.forget(f)
	}
	w.sink.enc.submit(j)
}

// stage names a new file of the layer.
func (w *deltaWriter) stage(p *partition, content table.Content, columns []fileColumn, refers string) *stagedFile {
	folder := w.shape.location + "/"
	if !w.shape.unpartitioned() {
		if path := w.shape.parts.Path([]byte(p.tuple)); path != "" {
			folder += path + "/"
		}
	}
	kind := map[table.Content]string{table.Data: "data", table.EqualityDeletes: "eq-deletes", table.PositionDeletes: "pos-deletes"}[content]
	f := &stagedFile{
		part: p, content: content, columns: columns, options: w.shape.options, refers: refers,
		path: folder + newUUID() + "-" + kind + ".parquet",
	}
	w.layer.files = append(w.layer.files, f)
	if content != table.PositionDeletes {
		w.sink.files[f] = struct{}{}
	}
	return f
}

// newUUID names files; names are never used again.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// cut ends the layer: what follows deletes its rows by equality.
func (w *deltaWriter) cut() error {
	for _, p := range w.parts {
		w.seal(p)
		w.sealDeletes(p)
		for _, f := range []*stagedFile{p.data, p.keys} {
			if f != nil {
				w.sink.closeFile(f)
			}
		}
	}
	l := w.layer
	rows := false
	for _, f := range l.files[:len(l.files):len(l.files)] {
		if f.content != table.Data {
			continue
		}
		switch {
		case int64(len(f.deleted)) == f.rows:
			w.drop(f) // nothing of it is left
		case len(f.deleted) > 0:
			slices.Sort(f.deleted)
			d := w.stage(f.part, table.PositionDeletes, positionDeleteColumns(), f.path)
			d.rows = int64(len(f.deleted))
			w.sink.enc.submit(job{file: d, positions: f.deleted, then: closeFile})
			fallthrough
		default:
			rows = true
		}
		f.deleted = nil
	}
	if len(l.files) > 0 || l.truncate {
		w.layers = append(w.layers, l)
	}
	w.sink.extra -= w.extra
	w.startLayer(l.pastEmpty && !rows)
	return nil
}

// delta lists what was staged since the last one, all of it durable, and begins
// the next. Nil: nothing.
func (w *deltaWriter) delta() *table.Delta {
	d := &table.Delta{Table: w.shape.table, UUID: w.shape.uuid, Step: w.step, Newest: w.newest}
	for _, l := range w.layers {
		out := table.Layer{Truncate: l.truncate, SchemaID: w.shape.schema.ID, SpecID: w.shape.specID}
		for _, f := range l.files {
			if !f.dropped.Load() {
				out.Files = append(out.Files, f.describe(w.shape))
			}
		}
		if len(out.Files) > 0 || l.truncate {
			d.Layers = append(d.Layers, out)
		}
	}
	announce := w.step != nil || w.announce
	w.lengths = nil
	w.layers, w.garbage, w.step, w.dirty, w.announce = nil, nil, nil, false, false
	if len(d.Layers) > 0 {
		w.empty = false
	}
	w.startLayer(w.empty)
	if len(d.Layers) == 0 && !announce {
		return nil
	}
	d.Set, w.set = w.set, nil
	return d
}

func (f *stagedFile) describe(sh *shape) table.File {
	out := table.File{
		Content: f.content, Path: f.path, Bytes: f.stats.Bytes, Rows: f.stats.Rows,
		Columns: f.stats.Columns, SplitOffsets: f.stats.SplitOffsets,
		EqualityIDs: f.ids, Refers: f.refers, Sorted: f.sorted,
	}
	if !sh.unpartitioned() {
		out.Partition = sh.parts.Values([]byte(f.part.tuple))
	}
	return out
}
