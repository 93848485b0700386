package sink

import (
	"cmp"
	"context"
	"slices"
)

// Memory is shared by all tables: a third for key maps, an eighth for spare chunks,
// the rest for rows on their way from a batch to a file. What outgrows it is
// written earlier: the largest chunks are sealed, files are rolled, and a layer is
// cut when its key map would not fit.
type budget struct {
	memory  int64 // in all
	maps    int64 // limit of key maps and of what goes with them
	buffers int64 // limit of open chunks, chunks being encoded, pages, uploads
	// queued is the limit of chunks waiting for the encoder: more would not
	// make it faster.
	queued int64

	chunkBytes int64
	sortBytes  int64 // of a chunk whose table is sorted

	// Of the writing goroutine.
	open  int64 // bytes of open chunks
	extra int64 // bytes of sealed chunks' positions and of deleted positions
	files map[*stagedFile]struct{}
}

// maxOpenFiles bounds the files that are open at once, over all tables and
// partitions. Beyond it the largest is rolled.
const maxOpenFiles = 128

func newBudget(memory int64) budget {
	b := budget{memory: memory, maps: memory / 3, files: map[*stagedFile]struct{}{}}
	b.buffers = memory - b.maps - memory/8
	b.chunkBytes = min(max(memory/20, 64<<10), 8<<20)
	b.queued = max(2*b.chunkBytes, b.buffers/4)
	b.sortBytes = max(b.buffers/4, b.chunkBytes)
	return b
}

// makeRoom waits until a batch may be taken in.
func (s *Sink) makeRoom(ctx context.Context) error {
	for {
		inflight, held, working, uploading, err := s.enc.load()
		if err != nil {
			return err
		}
		s.metrics.buffered.Set(float64(s.open + inflight + held))
		if inflight > s.queued {
			if err := s.enc.wait(ctx, func() bool { return s.enc.inflight <= s.queued }); err != nil {
				return err
			}
			continue
		}
		if s.open+inflight+held <= s.buffers {
			return nil
		}
		fits := func() bool { return s.open+s.enc.inflight+s.enc.held <= s.buffers }
		switch {
		case s.open > s.buffers/3 && s.sealLargest(s.buffers/6):
		case working:
			err = s.enc.wait(ctx, func() bool { return fits() || len(s.enc.queue) == 0 && !s.enc.busy })
		case s.rollLargest(held - s.buffers/6):
		case uploading:
			err = s.enc.wait(ctx, func() bool { return fits() || s.enc.uploads == 0 })
		case s.sealLargest(0):
		default:
			return nil // nothing left to free; a single batch may be larger than the budget
		}
		if err != nil {
			return err
		}
	}
}

// sealLargest seals open chunks, the largest first, until they take at most
// target bytes.
func (s *Sink) sealLargest(target int64) (any bool) {
	type open struct {
		w *deltaWriter
		p *partition
		c *chunk
	}
	var all []open
	for _, w := range s.writers {
		for _, p := range w.parts {
			for _, c := range []*chunk{p.open, p.deletes} {
				if c != nil && c.rows > 0 {
					all = append(all, open{w, p, c})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b open) int { return cmp.Compare(b.c.bytes, a.c.bytes) })
	for _, o := range all {
		if s.open <= target && any {
			break
		}
		any = true
		if o.c == o.p.open {
			o.w.seal(o.p)
		} else {
			o.w.sealDeletes(o.p)
		}
	}
	return any
}

// rollLargest frees pages of open files: a large one writes its row group, others
// end. The encoder must have nothing to do.
func (s *Sink) rollLargest(excess int64) (any bool) {
	all := make([]*stagedFile, 0, len(s.files))
	for f := range s.files {
		if f.held > 0 {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b *stagedFile) int { return cmp.Compare(b.held, a.held) })
	for _, f := range all {
		if excess <= 0 && any {
			break
		}
		any = true
		excess -= f.held
		pages := f.held - f.up.memory()
		if f.up.w != nil && pages >= 1<<20 || pages >= streamFrom {
			s.enc.submit(job{file: f, then: flushRows})
		} else {
			s.closeFile(f)
		}
	}
	return any
}

// boundOpenFiles makes room for one more open file.
func (s *Sink) boundOpenFiles() {
	for len(s.files) >= maxOpenFiles {
		var largest *stagedFile
		for f := range s.files {
			if largest == nil || f.raw > largest.raw {
				largest = f
			}
		}
		s.closeFile(largest)
	}
}

// closeFile ends a file; what follows in its partition goes into another.
func (s *Sink) closeFile(f *stagedFile) {
	s.forget(f)
	s.enc.submit(job{file: f, then: closeFile})
}

// forget notes that a file takes no more rows.
func (s *Sink) forget(f *stagedFile) {
	delete(s.files, f)
	if f.part.data == f {
		f.part.data = nil
	}
	if f.part.keys == f {
		f.part.keys = nil
	}
}

// roomForKeys makes room in the key map of w, at the price of cutting the layer of
// the table with the largest one if memory is short.
func (s *Sink) roomForKeys(w *deltaWriter, more int) error {
	for {
		fits := w.keys.fits(more)
		if fits && s.extra <= s.maps/2 {
			return nil
		}
		var total int64
		largest := w
		for _, o := range s.writers {
			total += o.keys.bytes()
			if o.keys.bytes()+o.extra > largest.keys.bytes()+largest.extra {
				largest = o
			}
		}
		s.metrics.keyMaps.Set(float64(total))
		// Old and new map exist side by side for a moment. If there is no room to
		// double it, less will do.
		slots := 0
		if !fits {
			slots = slotsFor(w.keys.n + more)
			spare := int((s.maps - total - s.extra) / slotBytes)
			if spare < slots && spare/4*3 >= w.keys.n+more && spare >= len(w.keys.slots)*5/4 {
				slots = spare
			}
		}
		switch {
		case total+s.extra+int64(slots)*slotBytes <= s.maps,
			// Or it is less than one run of rows needs, the least that works.
			largest.keys.n == 0 && largest.extra == 0 && largest.keys.slots == nil:
			if slots > 0 {
				w.keys.resize(slots)
			}
			return nil
		case largest.keys.n == 0 && largest.extra == 0:
			largest.keys.slots = nil
		default:
			s.metrics.layers.WithLabelValues(largest.shape.table).Inc()
			s.log.Debug("layer cut, its key map is full", "table", largest.shape.table, "keys", largest.keys.n)
			if err := largest.cut(); err != nil {
				return err
			}
		}
	}
}
