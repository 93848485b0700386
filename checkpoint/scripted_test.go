package checkpoint

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

// scripted is a database in memory: a log of transactions, positions "at:N" for
// the first N of them, and a connection that shows as much as it was fed.
type scripted struct {
	mu   sync.Mutex
	more chan struct{} // closed and renewed when something was fed

	relations map[string]*source.Relation
	log       []tx
	shown     int // transactions that a reader may see
	acked     source.Position
	opened    int
}

type tx struct {
	events  []source.Event // rows, truncate, schema
	barrier bool
	refuse  bool // the source can't serve from here on
	copied  []*source.Relation
}

func newScripted(names ...string) *scripted {
	s := &scripted{relations: map[string]*source.Relation{}, more: make(chan struct{})}
	for _, n := range names {
		ns, name, _ := strings.Cut(n, ".")
		s.relations[n] = &source.Relation{Namespace: ns, Name: name, Key: []int{0}, KeyProven: true, Columns: []source.Column{
			{Name: "id", Type: source.Type{Kind: source.Long}, Native: "bigint"},
			{Name: "v", Type: source.Type{Kind: source.String}, Native: "text", Nullable: true},
		}}
	}
	return s
}

// row makes a batch of one row; nil stands for no image.
func (s *scripted) row(rel string, op source.Op, before, after []string) source.Event {
	r := s.relations[rel]
	if r == nil {
		panic("no relation " + rel)
	}
	image := func(values []string) []source.Vector {
		vs := make([]source.Vector, len(r.Columns))
		for i := range vs {
			vs[i].Reset(r.Columns[i].Type)
			switch {
			case values == nil:
			case i >= len(values) || values[i] == "NULL":
				vs[i].AppendNull()
			case r.Columns[i].Type.Kind == source.Long:
				n, err := strconv.ParseInt(values[i], 10, 64)
				if err != nil {
					panic(err)
				}
				vs[i].AppendLong(n)
			default:
				vs[i].AppendBytes([]byte(values[i]))
			}
		}
		return vs
	}
	return source.Event{Kind: source.Rows, Batch: &source.Batch{Relation: r, Op: op, Rows: 1, Before: image(before), After: image(after)}}
}

// addColumn gives a relation a new last column.
func (s *scripted) addColumn(rel, name string) source.Event {
	old := s.relations[rel]
	r := *old
	c := source.Column{Name: name, Type: source.Type{Kind: source.String}, Native: "text", Nullable: true}
	r.Columns = append(append([]source.Column{}, old.Columns...), c)
	s.relations[rel] = &r
	return source.Event{Kind: source.Schema, Relation: &r, Change: &source.Change{
		Statement: "ALTER TABLE " + rel + " ADD COLUMN " + name + " text",
		Steps:     []source.Step{{Kind: source.AddColumn, Column: c, After: old.Columns[len(old.Columns)-1].Name}},
	}}
}

func (s *scripted) append(t tx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, t)
}

// feed shows the whole log; with barrier a checkpoint is asked for at its end.
func (s *scripted) feed(barrier bool) source.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	if barrier && len(s.log) > 0 {
		s.log[len(s.log)-1].barrier = true
	}
	s.shown = len(s.log)
	close(s.more)
	s.more = make(chan struct{})
	return at(s.shown)
}

func at(n int) source.Position { return source.Position("at:" + strconv.Itoa(n)) }

var epoch = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// open resumes behind a position; before the first one the log begins with the
// initial snapshot.
func (s *scripted) open(pos source.Position) (*scriptedStream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	n := 0
	if pos != "" {
		var err error
		if n, err = strconv.Atoi(strings.TrimPrefix(string(pos), "at:")); err != nil || n > len(s.log) {
			return nil, fmt.Errorf("position %s: %w", pos, source.ErrCannotServe)
		}
	}
	// The shapes at that place: those of now, less the columns added later.
	rels := map[string]*source.Relation{}
	for k, r := range s.relations {
		rels[k] = r
	}
	for i := len(s.log) - 1; i >= n; i-- {
		for _, e := range s.log[i].events {
			if e.Kind == source.Schema {
				r := *e.Relation
				r.Columns = r.Columns[:len(r.Columns)-1]
				rels[r.FullName()] = &r
			}
		}
	}
	st := &scriptedStream{db: s, tx: n}
	for _, r := range rels {
		st.rels = append(st.rels, r)
	}
	return st, nil
}

type scriptedStream struct {
	db    *scripted
	rels  []*source.Relation
	tx, i int // next event
	ev    source.Event
}

func (s *scriptedStream) Relations() []*source.Relation { return s.rels }
func (s *scriptedStream) Close() error                  { return nil }

func (s *scriptedStream) Ack(_ context.Context, pos source.Position) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.acked = pos
	return nil
}

func (s *scriptedStream) Next(ctx context.Context) (*source.Event, error) {
	for {
		s.db.mu.Lock()
		more := s.db.more
		if s.tx < s.db.shown {
			t := s.db.log[s.tx]
			if t.refuse {
				s.db.mu.Unlock()
				return nil, fmt.Errorf("ALTER TABLE … at %s: %w", at(s.tx+1), source.ErrCannotServe)
			}
			if s.i < len(t.events) {
				s.ev = t.events[s.i]
				s.i++
				if b := s.ev.Batch; b != nil {
					b.Position, b.Time = at(s.tx+1), epoch.Add(time.Duration(s.tx+1)*time.Second)
				}
			} else {
				s.tx, s.i = s.tx+1, 0
				s.ev = source.Event{Kind: source.Commit, Position: at(s.tx), Time: epoch.Add(time.Duration(s.tx) * time.Second), Barrier: t.barrier, Copied: t.copied}
			}
			s.db.mu.Unlock()
			return &s.ev, nil
		}
		s.db.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
