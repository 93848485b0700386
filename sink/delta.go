package sink

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// deltaWriter turns the changes of one table into files, layer by layer. It
// belongs to the goroutine that writes.
//
// An equality delete of a layer reaches only rows of older snapshots and layers,
// so what happens to a key inside one layer is settled here: the key map knows
// where the key's live row is, and a second change kills that row, in memory
// while its chunk is open, by a position delete once it has been sealed.
type deltaWriter struct {
	sink  *Sink
	shape *shape
	// upsert: an insert also deletes its key, since nothing proves it new.
	upsert bool

	parts map[string]*partition // by tuple
	keys  keyMap
	// chunks are those of this layer that the key map points into.
	chunks []*chunk
	extra  int64 // memory of sealed chunks and of deleted positions

	layer  *layer
	layers []*layer // finished, of this delta
	// garbage lists files that are stored or on their way and not wanted.
	garbage      []*stagedFile
	step         *table.SchemaStep
	lastSchemaID int
	set          map[string]string // properties for the next delta
	dirty        bool
	newest       time.Time
	// announce: the table is new and its mark is wanted even without rows.
	announce bool
	// empty: nothing was ever committed to the table, so the first layer need
	// delete nothing.
	empty bool

	// lengths are those of the last full chunk of this checkpoint.
	lengths []length

	before, after columnSet
	hashes        []keyHash // of compact, which runs between filling and use of the others
	hashesBefore  []keyHash
	hashesAfter   []keyHash
	partsBefore   []*partition
	partsAfter    []*partition
	ids           []uint64
	tuple         []byte
	run           uint64
}

// partition is a part of the table that is a table of its own for deletes.
type partition struct {
	tuple   string
	hash    keyHash
	open    *chunk // rows
	deletes *chunk // keys whose older rows go
	data    *stagedFile
	keys    *stagedFile // equality deletes
	run     uint64      // last run of rows that added to it
}

// layer becomes one snapshot.
type layer struct {
	truncate bool
	// pastEmpty: no older layer or snapshot holds a row.
	pastEmpty bool
	// unmapped: the layer has rows that the key map doesn't know.
	unmapped bool
	files    []*stagedFile
}

func newDeltaWriter(s *Sink, sh *shape) *deltaWriter {
	w := &deltaWriter{sink: s, shape: sh}
	w.startLayer(false)
	return w
}

func (w *deltaWriter) startLayer(pastEmpty bool) {
	w.layer = &layer{pastEmpty: pastEmpty}
	w.parts = map[string]*partition{}
	w.chunks = nil
	w.keys.clear()
	w.extra = 0
}

// subBatch bounds the rows that are handled at once: the key map must have room
// for all of them before the first is touched, and chunks are sealed between.
const subBatch = 1024

// write takes the rows of a batch.
func (w *deltaWriter) write(b *source.Batch) error {
	if b.Rows == 0 {
		return nil
	}
	if err := w.columns(b); err != nil {
		return err
	}
	w.dirty = true
	if b.Time.After(w.newest) {
		w.newest = b.Time
	}
	size := 0
	for _, v := range w.after.cols {
		if v != nil {
			size += v.Size()
		}
	}
	run := min(subBatch, max(1, b.Rows*(1<<20)/(size+1)))
	for lo := 0; lo < b.Rows; lo += run {
		hi := min(lo+run, b.Rows)
		var err error
		switch {
		case w.shape.append:
			err = w.appendRows(lo, hi)
		case b.Op == source.Read && w.layer.pastEmpty && w.keys.n == 0:
			w.layer.unmapped = true
			err = w.appendRows(lo, hi)
		default:
			err = w.upsertRows(b.Op, lo, hi)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// appendRows adds rows that no later change of this layer may touch.
func (w *deltaWriter) appendRows(lo, hi int) error {
	rows := &w.after
	if rows.cols == nil {
		rows = &w.before
	}
	if err := rows.complete(w.shape.key); err != nil {
		return err
	}
	if err := w.checkKey(rows, lo, hi); err != nil {
		return err
	}
	return w.eachRun(rows, lo, hi, func(p *partition, lo, hi int) error {
		c, err := w.room(p, false, false)
		if err != nil {
			return err
		}
		c.add(rows.cols, lo, hi)
		w.count(c)
		return nil
	})
}

// eachRun calls fn for runs of rows of the same partition.
func (w *deltaWriter) eachRun(rows *columnSet, lo, hi int, fn func(p *partition, lo, hi int) error) error {
	for lo < hi {
		p, err := w.partitionOf(rows, lo)
		if err != nil {
			return err
		}
		end := lo + 1
		for !w.shape.unpartitioned() && end < hi {
			next, err := w.partitionOf(rows, end)
			if err != nil {
				return err
			}
			if next != p {
				break
			}
			end++
		}
		if w.shape.unpartitioned() {
			end = hi
		}
		if w.shape.unpartitioned() {
			end = hi
		}
		if err := fn(p, lo, end); err != nil {
			return err
		}
		lo = end
	}
	return nil
}

func (w *deltaWriter) partitionOf(rows *columnSet, row int) (*partition, error) {
	w.tuple = w.tuple[:0]
	if !w.shape.unpartitioned() {
		if err := rows.complete(w.shape.parts.Sources()); err != nil {
			return nil, err
		}
		w.tuple = w.shape.parts.Of(rows.cols, row, w.tuple)
	}
	p := w.parts[string(w.tuple)]
	if p == nil {
		p = &partition{tuple: string(w.tuple)}
		if len(w.tuple) > 0 {
			p.hash = w.sink.hasher.bytes(w.tuple)
		}
		w.parts[p.tuple] = p
	}
	return p, nil
}

// upsertRows applies rows [lo, hi) in their order.
func (w *deltaWriter) upsertRows(op source.Op, lo, hi int) error {
	if w.layer.unmapped {
		if err := w.cut(); err != nil {
			return err
		}
	}
	if err := w.sink.roomForKeys(w, 2*(hi-lo)); err != nil {
		return err
	}
	n := hi - lo
	hasBefore, hasAfter := op == source.Update || op == source.Delete, op != source.Delete
	if hasBefore {
		if err := w.locate(&w.before, lo, hi, &w.hashesBefore, &w.partsBefore); err != nil {
			return err
		}
	}
	if hasAfter {
		if err := w.locate(&w.after, lo, hi, &w.hashesAfter, &w.partsAfter); err != nil {
			return err
		}
		// All rows come first: a row that isn't in the key map yet is out of
		// reach of the changes before it.
		if err := w.addRows(lo, hi); err != nil {
			return err
		}
	}
	for i := range n {
		switch {
		case !hasBefore:
			if s, known := w.keys.put(w.hashesAfter[i]); known {
				w.kill(s)
				s.set(w.ids[i])
			} else {
				s.set(w.ids[i])
				if w.upsert {
					w.deleteOlder(w.partsAfter[i], &w.after, lo+i)
				}
			}
		case hasAfter && w.hashesBefore[i] == w.hashesAfter[i]:
			s, known := w.keys.put(w.hashesBefore[i])
			if known {
				w.kill(s)
			} else {
				w.deleteOlder(w.partsBefore[i], &w.before, lo+i)
			}
			s.set(w.ids[i])
		default:
			s, known := w.keys.put(w.hashesBefore[i])
			if known {
				w.kill(s)
			} else {
				w.deleteOlder(w.partsBefore[i], &w.before, lo+i)
			}
			s.row = slotDead
			if hasAfter {
				s, known := w.keys.put(w.hashesAfter[i])
				if known {
					w.kill(s)
				} else if w.upsert {
					w.deleteOlder(w.partsAfter[i], &w.after, lo+i)
				}
				s.set(w.ids[i])
			}
		}
	}
	return nil
}

// locate finds partition and key of rows [lo, hi).
func (w *deltaWriter) locate(rows *columnSet, lo, hi int, hashes *[]keyHash, parts *[]*partition) error {
	if err := rows.complete(w.shape.key); err != nil {
		return err
	}
	if err := w.checkKey(rows, lo, hi); err != nil {
		return err
	}
	*hashes = w.sink.hasher.keys((*hashes)[:0], rows.cols, w.shape.key, lo, hi)
	*parts = (*parts)[:0]
	return w.eachRun(rows, lo, hi, func(p *partition, a, b int) error {
		for i := a; i < b; i++ {
			*parts = append(*parts, p)
			(*hashes)[i-lo] = (*hashes)[i-lo].add(p.hash)
		}
		return nil
	})
}

// checkKey refuses rows without a key.
func (w *deltaWriter) checkKey(rows *columnSet, lo, hi int) error {
	for _, k := range w.shape.key {
		if v := rows.cols[k]; bytes.IndexByte(v.Valid[lo:hi], 0) >= 0 {
			why := v.Misfit
			if why == "" {
				why = "NULL"
			}
			return fmt.Errorf("key column %s: %s cannot be part of a key: %w", w.shape.columns[k].Name, why, source.ErrCannotServe)
		}
	}
	return nil
}

// addRows appends the after rows to the chunks of their partitions and notes
// their ids.
func (w *deltaWriter) addRows(lo, hi int) error {
	w.ids = w.ids[:0]
	w.run++
	for a := lo; a < hi; {
		p := w.partsAfter[a-lo]
		b := a + 1
		for b < hi && w.partsAfter[b-lo] == p {
			b++
		}
		// Rows of this run are not in the key map yet, so a chunk that has some
		// must not be compacted.
		c, err := w.room(p, true, p.run != w.run)
		p.run = w.run
		if err != nil {
			return err
		}
		id := c.index<<rowBits | uint64(c.rows)
		for i := range b - a {
			w.ids = append(w.ids, id+uint64(i))
		}
		c.add(w.after.cols, a, b)
		w.count(c)
		a = b
	}
	return nil
}

// kill ends the life of a key's row, if it has one. The caller says what the slot
// holds from then on.
func (w *deltaWriter) kill(s *slot) {
	if !s.live() {
		return
	}
	id := s.id()
	c, row := w.chunks[id>>rowBits], int(id&rowMask)
	if c.file == nil {
		c.kill(row)
		return
	}
	c.file.deleted = append(c.file.deleted, uint32(c.position(row)))
	w.addExtra(4)
}

// deleteOlder deletes a key from older snapshots and layers: once, since the key
// map knows the key from now on.
func (w *deltaWriter) deleteOlder(p *partition, rows *columnSet, row int) {
	if w.layer.pastEmpty {
		return
	}
	if p.deletes == nil {
		p.deletes = &chunk{cols: w.sink.spares.take(nil, w.shape.deleteColumns)}
	}
	c := p.deletes
	for i, k := range w.shape.key {
		c.cols[i].AppendRow(rows.cols[k], row)
	}
	c.rows++
	if c.rows%64 == 0 || c.counted == 0 {
		c.bytes = 0
		for i := range c.cols {
			c.bytes += int64(c.cols[i].Size())
		}
		w.count(c)
		if c.rows >= chunkRows || c.bytes >= w.sink.chunkBytes {
			w.sealDeletes(p)
		}
	}
}

// count tells the budget what a chunk has grown to.
func (w *deltaWriter) count(c *chunk) {
	w.sink.open += c.bytes - c.counted
	c.counted = c.bytes
}

// truncate forgets everything written so far: the rows of the table are gone at
// this place of the log.
func (w *deltaWriter) truncate(at time.Time) {
	w.discard()
	w.layers = nil
	w.startLayer(true)
	w.layer.truncate = !w.empty
	w.dirty = true
	if at.After(w.newest) {
		w.newest = at
	}
}

// discard gives up every file and row of the delta.
func (w *deltaWriter) discard() {
	for _, p := range w.parts {
		for _, c := range []*chunk{p.open, p.deletes} {
			if c != nil {
				w.sink.open -= c.counted
			}
		}
	}
	for _, l := range append(w.layers, w.layer) {
		for _, f := range l.files {
			w.drop(f)
		}
		l.files = nil
	}
	w.sink.extra -= w.extra
	w.extra = 0
}

// drop gives a file up, wherever it is on its way.
func (w *deltaWriter) drop(f *stagedFile) {
	f.dropped.Store(true)
	w.sink.forget(f)
	w.sink.enc.submit(job{file: f, then: dropFile})
	w.garbage = append(w.garbage, f)
}

var errUnsettled = errors.New("a schema change came while rows before it were not in a checkpoint")

// pending reports whether the delta holds anything.
func (w *deltaWriter) pending() bool { return w.dirty || w.step != nil }
