package mysql

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lakesyncd/lakesyncd/source"
)

// identity says which server a position is of, and which log of it. MySQL has a
// UUID, which outlives RESET BINARY LOGS AND GTIDS; MariaDB has none. A place in
// the log and what was there must still belong together.
type identity struct {
	Flavor   string `json:"flavor"`
	UUID     string `json:"uuid,omitempty"`
	ServerID string `json:"server_id,omitempty"`
	Host     string `json:"host,omitempty"` // as the server names itself
	File     string `json:"file,omitempty"`
	Offset   uint64 `json:"offset,omitempty"`
	GTID     string `json:"gtid,omitempty"` // MariaDB: reached at File, Offset
	// MySQL with GTIDs: a transaction and the place where it begins; as long as none
	// is known, the set of the initial snapshot, which was taken at File, Offset.
	Known   source.Position `json:"known,omitempty"`
	KnownAt source.Position `json:"known_at,omitempty"`
	Set     string          `json:"set,omitempty"`
}

// state is the source's memory beside the position.
type state struct {
	server  identity
	history []byte // encoded; nil: to be made again
	dirty   bool   // differs from what was handed out last
	rotated bool   // a file began: the place in identity is brought up to date
	file    string // of the last commit
	offset  uint64
	// known is the newest transaction of MySQL whose place is sure, if there was one
	// since the start.
	known   source.Position
	knownAt place

	overlay *overlay
}

// savedState is the JSON form.
type savedState struct {
	Format  int             `json:"format"`
	Server  identity        `json:"server"`
	History json.RawMessage `json:"history"`
	XA      []xaState       `json:"xa,omitempty"`
	// UpsertsUntil is where the overlap of an initial snapshot without a lock
	// ends, "file:NAME:OFFSET".
	UpsertsUntil source.Position `json:"upserts_until,omitempty"`
	// Overlapping are relations whose initial snapshot may hold later changes
	// for good, since their engine has no transactions.
	Overlapping []string `json:"overlapping,omitempty"`
}

func (s *state) encode(a *assembler) ([]byte, error) {
	if s.history == nil {
		h, err := a.hist.encode()
		if err != nil {
			return nil, fmt.Errorf("write the schema history: %w", err)
		}
		s.history = h
	}
	s.server.File, s.server.Offset = s.file, s.offset
	if a.flavor == FlavorMariaDB && !a.at.isFile() {
		s.server.GTID = a.at.domains.String()
	}
	if s.known != "" {
		s.server.Known, s.server.KnownAt, s.server.Set = s.known, s.knownAt.position(), ""
	}
	v := savedState{Format: 1, Server: s.server, History: s.history, XA: a.xa.saved()}
	s.overlay.save(&v)
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write the source's state: %w", err)
	}
	s.dirty, s.rotated = false, false
	return b, nil
}

func parseState(b []byte) (savedState, error) {
	var v savedState
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%w: read the source's state in the record: %w", source.ErrCannotServe, err)
	}
	if v.Format != 1 {
		return v, fmt.Errorf("%w: the source's state in the record has format %d, which this version does not know", source.ErrCannotServe, v.Format)
	}
	return v, nil
}

// overlay replaces relations by ones whose inserts aren't proven, where an
// initial snapshot and the log overlap.
type overlay struct {
	until       place // by file; zero: no overlap
	overlapping []string
	made        map[*source.Relation]*source.Relation
}

func (o *overlay) of(r *source.Relation) *source.Relation {
	if o == nil || r == nil || !r.KeyProven {
		return r
	}
	note := ""
	switch {
	case o.until.isFile():
		note = "the initial snapshot was taken without a lock; inserts are upserts until the log is past " + string(o.until.position())
	case slices.Contains(o.overlapping, r.FullName()):
		note = "its engine has no transactions, so the initial snapshot may hold later changes"
	default:
		return r
	}
	if m := o.made[r]; m != nil {
		return m
	}
	c := *r
	c.KeyProven, c.Note = false, note
	if o.made == nil {
		o.made = map[*source.Relation]*source.Relation{}
	}
	o.made[r] = &c
	return &c
}

// reached ends the overlap once the log is past it, and reports that.
func (o *overlay) reached(at place) bool {
	if o == nil || !o.until.isFile() {
		return false
	}
	if c, err := compareFiles(at, o.until); err != nil || c < 0 {
		return false
	}
	o.until = place{}
	clear(o.made)
	return true
}

func (o *overlay) save(v *savedState) {
	if o == nil {
		return
	}
	if o.until.isFile() {
		v.UpsertsUntil = o.until.position()
	}
	v.Overlapping = o.overlapping
}

func restoreOverlay(v savedState) (*overlay, error) {
	o := &overlay{overlapping: v.Overlapping}
	if v.UpsertsUntil != "" {
		p, err := parsePlace(FlavorMySQL, v.UpsertsUntil)
		if err != nil {
			return nil, fmt.Errorf("%w: read the source's state in the record: %w", source.ErrCannotServe, err)
		}
		o.until = p
	}
	return o, nil
}
