package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// assembler makes events of the messages of a feed. It holds what must outlive a
// connection: shapes, the last whole transaction, and how much of an open one was
// handed out.
//
// The server describes a relation just before its next row, which may be in the
// middle of a transaction, where no checkpoint can be cut. So the messages of a
// transaction are looked through for changes of shape before its first row is
// handed out, as far as memory allows.
type assembler struct {
	o       *Options
	shapes  *shapes
	others  map[uint32]bool
	covers  coverage
	catalog func(ctx context.Context, oid uint32) (*shape, error)
	dirty   bool // the state differs from what was handed out last

	at   lsn // the end of what was handed out
	kept lsn // the server has sent everything up to here
	// before are the shapes from before the last change, while the transaction
	// that brought it, whose commit record is at beforeFinal, is not handed out.
	before      *shapes
	beforeFinal lsn
	beforeText  json.RawMessage

	q       *fifo
	slabs   []*slab            // taken; the first is read
	layouts map[uint32]*layout // as the server described them on this connection; nil: not captured
	scanned []*layout          // of the relation messages ahead, as far as they were looked at

	tx      *transaction
	resume  *transaction // was cut off by the end of a connection
	pending []source.Event

	batch   source.Batch
	wide    source.Batch
	lay     *layout // of the batch
	full    bool    // the batch has whole old rows
	size    int
	flushed bool // the batch was handed out
	limit   int
	ev      source.Event
}

// layout is how rows of a relation come.
type layout struct {
	shape *shape
	dec   *tupleDecoder
	late  []byte // a description that is not looked at before a row needs it
}

type transaction struct {
	beginMessage
	handed  int64 // rows and truncations
	again   int64 // so many of them come again
	skipped bool  // was handed out whole, before
	looked  bool  // its messages were looked through
}

func newAssembler(o *Options, shapes *shapes, at lsn) *assembler {
	return &assembler{o: o, shapes: shapes, others: map[uint32]bool{}, at: at, limit: o.batchBytes(), layouts: map[uint32]*layout{}}
}

// exclude names tables that were there, and not captured, when the copy was made.
func (a *assembler) exclude(oids []uint32) {
	for _, oid := range oids {
		a.others[oid] = true
	}
}

// read goes on with a new connection.
func (a *assembler) read(q *fifo) { a.q = q }

// between reports whether nothing is open.
func (a *assembler) between() bool {
	return a.tx == nil && a.resume == nil && len(a.pending) == 0 && (a.batch.Rows == 0 || a.flushed)
}

// lose forgets the connection. What was handed out of an open transaction is
// skipped when it comes again.
func (a *assembler) lose() {
	if t := a.tx; t != nil && !t.skipped && t.handed > 0 {
		if a.resume == nil || t.handed > a.resume.handed {
			a.resume = &transaction{beginMessage: t.beginMessage, handed: t.handed}
		}
	}
	a.tx, a.q, a.slabs, a.scanned, a.kept = nil, nil, nil, nil, 0
	clear(a.layouts)
}

// next is the next event; nil without an error if more must be received first.
func (a *assembler) next(ctx context.Context) (*source.Event, error) {
	if a.flushed {
		a.flushed, a.batch.Rows = false, 0
	}
	for {
		if len(a.pending) > 0 {
			a.ev = a.pending[0]
			a.pending = a.pending[1:]
			return &a.ev, nil
		}
		if t := a.tx; t != nil && !t.looked {
			if err := a.look(ctx); err != nil {
				return nil, err
			}
			continue
		}
		rec := a.record()
		if rec == nil {
			return a.flush(), nil
		}
		ev, err := a.take(ctx, rec)
		if ev != nil || err != nil {
			return ev, err
		}
	}
}

// record is the next record that is there already.
func (a *assembler) record() []byte {
	for {
		if len(a.slabs) == 0 {
			if a.q == nil {
				return nil
			}
			s, _, _ := a.q.try()
			if s == nil {
				return nil
			}
			a.slabs = append(a.slabs, s)
		}
		s := a.slabs[0]
		if rec := s.next(); rec != nil {
			return rec
		}
		a.slabs = a.slabs[1:]
		a.q.done(s)
	}
}

// unread makes the record that was taken last the next one again.
func (a *assembler) unread(rec []byte) { a.slabs[0].read -= 4 + len(rec) }

// wait receives more.
func (a *assembler) wait(ctx context.Context) error {
	s, err := a.q.get(ctx)
	if err != nil {
		return err
	}
	a.slabs = append(a.slabs, s)
	return nil
}

// broken is an error in what the server sends.
func (a *assembler) broken(format string, args ...any) error {
	where := "after " + string(a.at.position())
	if a.tx != nil {
		where = fmt.Sprintf("in the transaction %d that commits at %s", a.tx.xid, a.tx.final)
	}
	return fmt.Errorf("%w: %w %s", source.ErrCannotServe, fmt.Errorf(format, args...), where)
}

// take handles a record. It returns an event if there is one to hand out now.
func (a *assembler) take(ctx context.Context, rec []byte) (*source.Event, error) {
	if rec[0] == tagKeepalive {
		a.kept = lsn(binary.BigEndian.Uint64(rec[1:]))
		return nil, nil
	}
	kind, body := rec[1], rec[2:]
	switch kind {
	case 'I', 'U', 'D':
		return a.row(ctx, kind, body, rec)
	case 'B':
		return nil, a.begin(body)
	}
	if a.batch.Rows > 0 && (kind == 'C' || kind == 'T' || kind == 'R') {
		a.unread(rec)
		return a.flush(), nil
	}
	switch kind {
	case 'C':
		return a.commit(body)
	case 'R':
		return nil, a.described(ctx, body)
	case 'T':
		return nil, a.truncate(ctx, body)
	case 'O', 'Y', 'M': // origin, type: the catalog knows better; a message to somebody
		return nil, nil
	}
	return nil, a.broken("message %q of pgoutput is not known", kind)
}

func (a *assembler) begin(body []byte) error {
	if a.tx != nil {
		return a.broken("a transaction begins inside of another")
	}
	m, err := parseBegin(body)
	if err != nil {
		return a.broken("read the begin of a transaction: %w", err)
	}
	t := &transaction{beginMessage: m}
	// The commit record of what was handed out begins before the place where
	// its transaction ends.
	t.skipped = m.final < a.at
	t.looked = t.skipped
	if r := a.resume; r != nil && !t.skipped {
		if m.final != r.final || m.xid != r.xid {
			return fmt.Errorf("%w: the connection was lost inside of the transaction %d that commits at %s, and after it the server sends %d, which commits at %s", source.ErrRestart, r.xid, r.final, m.xid, m.final)
		}
		t.again = r.handed
	}
	a.tx = t
	return nil
}

func (a *assembler) commit(body []byte) (*source.Event, error) {
	m, err := parseCommit(body)
	if err != nil {
		return nil, a.broken("read the commit of a transaction: %w", err)
	}
	t := a.tx
	if t == nil || m.commit != t.final {
		return nil, a.broken("a commit at %s where none belongs", m.commit)
	}
	if t.again > 0 {
		return nil, fmt.Errorf("%w: the transaction %d that commits at %s has fewer rows than before the connection was lost", source.ErrRestart, t.xid, t.final)
	}
	a.tx = nil
	if t.skipped {
		return nil, nil
	}
	a.resume = nil
	a.at = m.end
	if a.before != nil && t.final >= a.beforeFinal {
		a.before, a.beforeText, a.dirty = nil, nil, true
	}
	a.ev = source.Event{Kind: source.Commit, Position: m.end.position(), Time: m.time}
	return &a.ev, nil
}

// look looks through what is there of the transaction for changes of shape, and
// hands them out as a group of their own before it.
func (a *assembler) look(ctx context.Context) error {
	found, used, err := a.ahead(ctx)
	if err != nil {
		return err
	}
	a.tx.looked = true
	if len(found) == 0 {
		return nil
	}
	return a.changed(ctx, found, func(oid uint32) bool { return used[oid] }, func(l *layout) { a.scanned = append(a.scanned, l) })
}

// ahead takes slabs until the transaction is there to its end, or half of the
// memory is used, and returns its relation messages, and which relations have rows.
func (a *assembler) ahead(ctx context.Context) (found [][]byte, used map[uint32]bool, err error) {
	used = map[uint32]bool{}
	var last uint32
	held := 0
	for i := 0; ; i++ {
		if i == len(a.slabs) {
			if int64(held) >= a.o.Memory/2 {
				return found, used, nil
			}
			s, err := a.q.ahead(ctx)
			if s == nil || err != nil {
				return found, used, err
			}
			a.slabs = append(a.slabs, s)
		}
		s := a.slabs[i]
		held += len(s.buf)
		for at := s.read; ; {
			rec := s.peek(at)
			if rec == nil {
				break
			}
			at += 4 + len(rec)
			if rec[0] != tagMessage {
				continue
			}
			switch rec[1] {
			case 'C':
				return found, used, nil
			case 'R':
				found = append(found, rec[2:])
			case 'I', 'U', 'D':
				if len(rec) >= 6 {
					if oid := binary.BigEndian.Uint32(rec[2:]); oid != last || len(used) == 0 {
						used[oid], last = true, oid
					}
				}
			}
		}
	}
}

// described takes the description of a relation.
func (a *assembler) described(ctx context.Context, body []byte) error {
	m, err := parseRelation(body)
	if err != nil {
		return a.broken("read the description of a relation: %w", err)
	}
	switch {
	case len(a.scanned) > 0:
		a.layouts[m.OID] = a.scanned[0]
		a.scanned = a.scanned[1:]
		return nil
	case a.tx != nil && a.tx.skipped, a.shapes.get(m.OID) == nil:
		a.layouts[m.OID] = &layout{late: bytes.Clone(body)}
		return nil
	}
	return a.changed(ctx, [][]byte{body}, all, func(l *layout) { a.layouts[m.OID] = l })
}

func all(uint32) bool { return true }

// changed resolves descriptions of relations and hands out what they change. One
// of a relation that is not known and has no rows is kept for later: a partition
// is described even if its rows come as those of its root.
func (a *assembler) changed(ctx context.Context, found [][]byte, used func(oid uint32) bool, take func(*layout)) error {
	shapes, known := a.shapes, false
	if a.before != nil && a.tx != nil && a.tx.final == a.beforeFinal {
		shapes, known = a.before, true
	}
	before, err := shapes.encode()
	if err != nil {
		return fmt.Errorf("write the shapes: %w", err)
	}
	var events []source.Event
	for _, body := range found {
		m, err := parseRelation(body)
		if err != nil {
			return a.broken("read the description of a relation: %w", err)
		}
		if shapes.get(m.OID) == nil && !used(m.OID) {
			take(&layout{late: bytes.Clone(body)})
			continue
		}
		l, changes, err := a.resolve(ctx, shapes, m)
		if err != nil {
			return err
		}
		take(l)
		for _, c := range changes {
			events = append(events, source.Event{Kind: source.Schema, Relation: l.shape.Rel, Change: c})
		}
	}
	if len(events) == 0 || known {
		return nil
	}
	if t := a.tx; t != nil && t.handed > 0 {
		return a.broken("the shape of %s changed inside of a transaction of which more than %d MiB came before: raise memory, and start again", events[0].Relation.FullName(), a.o.Memory>>21)
	}
	if a.before, err = decodeShapes(before); err != nil {
		return fmt.Errorf("read the shapes: %w", err)
	}
	a.beforeText, a.dirty = before, true
	if a.tx != nil {
		a.beforeFinal = a.tx.final
	}
	// The change is complete where the last transaction ended: whoever begins
	// there gets the rows that follow, in shapes up to the new one.
	a.pending = append(events, source.Event{Kind: source.Commit, Position: a.at.position()})
	return nil
}

// resolve finds the shape of a description, nil if the relation is not captured.
func (a *assembler) resolve(ctx context.Context, shapes *shapes, m *relationMessage) (*layout, []*source.Change, error) {
	full := m.Namespace + "." + m.Name
	if shapes.get(m.OID) == nil {
		if !a.o.Match(m.Namespace, m.Name) {
			return nil, nil, nil
		}
		for _, sh := range shapes.all() {
			if sh.Rel.FullName() == full {
				return nil, nil, a.broken("the relation %s was dropped and made again: leave it out (\"!%s\" in relations), or %s;", full, full, copyAnew)
			}
		}
		if a.others[m.OID] {
			return nil, nil, a.broken("the relation %s was not captured when the pipeline began and has not been copied: leave it out (\"!%s\" in relations);", full, full)
		}
	}
	if shapes.get(m.OID) == nil && !a.covers.has(m.Namespace) {
		return nil, nil, a.broken("the relation %s came into the publication after the pipeline began, so its earlier rows are missing: leave it out (\"!%s\" in relations), or capture it by a pipeline of another name;", full, full)
	}
	sh, changes, err := shapes.relation(m, func() (*shape, error) {
		// A change of shape is rare, and half of one can't be taken back.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		return a.catalog(ctx, m.OID)
	})
	switch {
	case err == nil:
	case errors.Is(err, source.ErrCannotServe):
		return nil, nil, a.broken("%w;", stripped(err))
	default:
		return nil, nil, fmt.Errorf("%w: look up %s in the catalog: %w", source.ErrRestart, full, err)
	}
	dec, err := sh.decoder(m)
	if err != nil {
		return nil, nil, a.broken("%s: %w", full, stripped(err))
	}
	return &layout{shape: sh, dec: dec}, changes, nil
}

// stripped is err without the words of source.ErrCannotServe, which broken says.
func stripped(err error) error {
	const prefix = "the source cannot serve this pipeline: "
	if t := err.Error(); len(t) > len(prefix) && t[:len(prefix)] == prefix {
		return errors.New(t[len(prefix):])
	}
	return err
}

// layout finds how rows of a relation come; nil if it is not captured.
func (a *assembler) layout(ctx context.Context, oid uint32) (*layout, error) {
	l, ok := a.layouts[oid]
	if !ok {
		return nil, a.broken("a change of the relation with OID %d, which was not described", oid)
	}
	if l == nil || l.late == nil {
		return l, nil
	}
	err := a.changed(ctx, [][]byte{l.late}, all, func(now *layout) { l = now })
	if err != nil {
		return nil, err
	}
	a.layouts[oid] = l
	return l, nil
}

func (a *assembler) row(ctx context.Context, kind byte, body, rec []byte) (*source.Event, error) {
	t := a.tx
	if t == nil {
		return nil, a.broken("a row outside of a transaction")
	}
	if t.skipped {
		return nil, nil
	}
	m, err := parseRow(kind, body)
	if err != nil {
		return nil, a.broken("read a row: %w", err)
	}
	l, err := a.layout(ctx, m.oid)
	if l == nil || err != nil {
		return nil, err
	}
	if len(a.pending) > 0 { // the relation is new
		a.unread(rec)
		return nil, nil
	}
	if t.again > 0 {
		t.again--
		t.handed++
		return nil, nil
	}
	op := source.Insert
	switch kind {
	case 'U':
		op = source.Update
	case 'D':
		op = source.Delete
	}
	full := m.oldKind == 'O'
	if a.batch.Rows > 0 && (a.lay != l || a.batch.Op != op || a.full != full) {
		a.unread(rec)
		return a.flush(), nil
	}
	if a.batch.Rows == 0 {
		l.dec.reset(op, m.oldKind, &a.batch)
		a.lay, a.full, a.size = l, full, 0
		a.batch.Position, a.batch.Ordinal, a.batch.Time = t.final.position(), t.handed, t.time
	}
	if err := l.dec.decode(m.oldKind, m.old, m.new, &a.batch); err != nil {
		if errors.Is(err, source.ErrCannotServe) {
			return nil, a.broken("%w;", stripped(err))
		}
		return nil, a.broken("%s: %w", l.shape.Rel.FullName(), err)
	}
	t.handed++
	if a.size += len(rec); a.size >= a.limit {
		return a.flush(), nil
	}
	return nil, nil
}

// flush hands out the batch, nil if it is empty.
func (a *assembler) flush() *source.Event {
	if a.batch.Rows == 0 {
		return nil
	}
	a.flushed = true
	b := &a.batch
	if now := a.shapes.get(a.lay.shape.OID); now != nil && now.Rel != a.lay.shape.Rel {
		a.widen(now.Rel)
		b = &a.wide
	}
	a.ev = source.Event{Kind: source.Rows, Batch: b}
	return &a.ev
}

func (a *assembler) truncate(ctx context.Context, body []byte) error {
	t := a.tx
	if t == nil {
		return a.broken("a truncation outside of a transaction")
	}
	oids, err := parseTruncate(body)
	if err != nil {
		return a.broken("read a truncation: %w", err)
	}
	if t.skipped {
		return nil
	}
	for _, oid := range oids {
		if l := a.layouts[oid]; l != nil && l.late != nil && a.shapes.get(oid) == nil {
			continue // new: it had no rows yet
		}
		l, err := a.layout(ctx, oid)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if t.again > 0 {
			t.again--
			t.handed++
			continue
		}
		rel := l.shape.Rel
		if now := a.shapes.get(oid); now != nil {
			rel = now.Rel
		}
		a.pending = append(a.pending, source.Event{Kind: source.Truncate, Relation: rel, Position: t.final.position(), Time: t.time})
		t.handed++
	}
	return nil
}
