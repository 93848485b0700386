package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/lakesyncd/lakesyncd/source"
)

const copyAnew = "to go on, copy the tables anew under another pipeline name"

// identity says which cluster and timeline a position is of.
type identity struct {
	System   string `json:"system"` // system_identifier, made by initdb
	Timeline uint32 `json:"timeline"`
}

// savedState is the JSON form of what must be saved beside a position.
type savedState struct {
	Format int `json:"format"`
	identity
	Database    string          `json:"database"`
	Slot        string          `json:"slot"`
	Publication string          `json:"publication"`
	ViaRoot     bool            `json:"via_root"`
	Shapes      json.RawMessage `json:"shapes"`
	// Others are tables that were there when the copy was made and were not
	// captured, so that one that a changed configuration takes in is noticed.
	Others []uint32 `json:"others,omitempty"`
	coverage
	// Before is set between a change of shape and the end of the transaction that
	// brought it: rows of that transaction may still come in the shapes of then.
	Before *shapesBefore `json:"before,omitempty"`
}

// coverage says which relations the publication took in by itself when the copy
// was made. Only of these are all rows in the log if they are created later.
type coverage struct {
	All     bool     `json:"all,omitempty"`
	Schemas []string `json:"schemas,omitempty"`
}

func (c coverage) has(schema string) bool { return c.All || slices.Contains(c.Schemas, schema) }

// shapesBefore are the shapes at the beginning of one transaction.
type shapesBefore struct {
	Final  string          `json:"final"` // the transaction, by the place of its commit record
	Shapes json.RawMessage `json:"shapes"`
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

// system is the answer of IDENTIFY_SYSTEM.
type system struct {
	identity
	end lsn // of the log that is flushed
}

func identify(ctx context.Context, rc *conn) (system, error) {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	r, err := pglogrepl.IdentifySystem(ctx, rc.PgConn)
	if err != nil {
		return system{}, fmt.Errorf("ask the server who it is: %w", err)
	}
	return system{identity: identity{System: r.SystemID, Timeline: uint32(r.Timeline)}, end: lsn(r.XLogPos)}, nil
}

// errStandby: a failover is under way, or the address is that of a standby.
var errStandby = errors.New("the server is a standby")

// located checks that the server at the other end has what follows at, and that
// nothing between at and what it would send is missing. PostgreSQL checks none of
// that: it starts at whatever place it is asked for. The slot's confirmed place
// is returned.
func located(ctx context.Context, o *Options, side, rc *conn, was identity, at lsn) (system, lsn, error) {
	recovery, err := side.query(ctx, "SELECT pg_catalog.pg_is_in_recovery()")
	if err != nil {
		return system{}, 0, err
	}
	if recovery.text(0, 0) == "t" {
		return system{}, 0, fmt.Errorf("%w, %s; name the primary", errStandby, address(o.Config))
	}
	now, err := identify(ctx, rc)
	if err != nil {
		return now, 0, err
	}
	if now.System != was.System {
		return now, 0, fmt.Errorf("%w: another database cluster (system identifier %s) answers at %s in place of %s, and a position means nothing to it; bring back the former one, or %s", source.ErrCannotServe, now.System, address(o.Config), was.System, copyAnew)
	}
	if now.Timeline != was.Timeline {
		if err := sameHistory(ctx, rc, now, was.Timeline, at); err != nil {
			return now, 0, err
		}
	}
	if at > now.end {
		return now, 0, fmt.Errorf("%w: the position %s is ahead of the server, whose log ends at %s: it was restored from a backup, or lost transactions in a crash; %s", source.ErrCannotServe, at.position(), now.end, copyAnew)
	}
	s, err := readSlot(ctx, side, o.Config.Slot)
	if err != nil {
		return now, 0, err
	}
	switch {
	case !s.exists:
		return now, 0, fmt.Errorf("%w: the replication slot %s is gone, and with it the changes since %s; a new slot would begin now and leave a hole; %s", source.ErrCannotServe, o.Config.Slot, at.position(), copyAnew)
	case s.usable(o) != "":
		return now, 0, fmt.Errorf("%w: slot: %s; %s", source.ErrCannotServe, s.usable(o), copyAnew)
	case s.lost() != "":
		return now, 0, fmt.Errorf("%w: the replication slot %s has lost the changes since %s: %s; drop it (SELECT pg_drop_replication_slot(%s)) and %s", source.ErrCannotServe, o.Config.Slot, at.position(), s.lost(), literal(o.Config.Slot), copyAnew)
	case s.confirmed > at:
		return now, 0, fmt.Errorf("%w: the replication slot %s begins at %s, behind the position %s: somebody else read it, or it was dropped and made again, and the changes between are gone; %s", source.ErrCannotServe, o.Config.Slot, s.confirmed, at.position(), copyAnew)
	case s.active:
		return now, 0, inUse(ctx, o, side, s.pid)
	}
	if s.status == "unreserved" {
		o.Log.Warn("the replication slot is about to lose its log", "slot", o.Config.Slot, "kept_bytes", s.kept)
	}
	return now, s.confirmed, nil
}

// sameHistory checks that a place on an earlier timeline lies before the point
// at which the server's own timeline left that one.
func sameHistory(ctx context.Context, rc *conn, now system, was uint32, at lsn) error {
	refuse := func(why string) error {
		return fmt.Errorf("%w: the server went from timeline %d to %d (it was promoted or restored), and %s; %s", source.ErrCannotServe, was, now.Timeline, why, copyAnew)
	}
	if now.Timeline < was {
		return refuse("an older one can't continue the position")
	}
	r, err := rc.simple(ctx, fmt.Sprintf("TIMELINE_HISTORY %d", now.Timeline))
	if err != nil {
		return fmt.Errorf("read the history of timeline %d: %w", now.Timeline, err)
	}
	if len(r) != 1 || len(r[0]) < 2 {
		return fmt.Errorf("read the history of timeline %d: no answer", now.Timeline)
	}
	left, ok := leftAt(r.text(0, 1), was)
	switch {
	case !ok:
		return refuse("the former is not in its history")
	case at > left:
		return refuse(fmt.Sprintf("it left the former at %s, before the position %s: transactions that the lake has are missing there", left, at.position()))
	}
	return nil
}

// leftAt finds in the text of a timeline's history where it left an earlier one.
func leftAt(history string, timeline uint32) (lsn, bool) {
	for line := range strings.Lines(history) {
		f := strings.Fields(line)
		if len(f) < 2 || strings.HasPrefix(f[0], "#") || f[0] != strconv.FormatUint(uint64(timeline), 10) {
			continue
		}
		l, err := parseLSN(f[1])
		return l, err == nil
	}
	return 0, false
}

// watch looks at what the log does not tell: relations that were dropped or made
// again, and a publication that somebody changed.
func (s *Stream) watch(ctx context.Context, q querier, version int) error {
	p, err := readPublication(ctx, q, version, s.o.Config.Publication)
	if err != nil {
		return err
	}
	name := s.o.Config.Publication
	switch {
	case !p.exists:
		return fmt.Errorf("%w: the publication %s is gone, so the server has stopped sending changes; %s", source.ErrCannotServe, name, copyAnew)
	case p.viaRoot != s.viaRoot:
		return fmt.Errorf("%w: publish_via_partition_root of the publication %s was changed to %v while the pipeline goes on; change it back: ALTER PUBLICATION %s SET (publish_via_partition_root = %v)", source.ErrCannotServe, name, p.viaRoot, ident(name), s.viaRoot)
	case !p.whole() && s.mirrors():
		return fmt.Errorf("%w: the publication %s no longer publishes insert, update, delete and truncate; run: ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate'), and %s for what was missed", source.ErrCannotServe, name, ident(name), copyAnew)
	}
	tables, err := listTables(ctx, q, s.o.Match, s.viaRoot)
	if err != nil {
		return err
	}
	byOID := map[uint32]*tableInfo{}
	for i := range tables {
		byOID[tables[i].oid] = &tables[i]
	}
	known := s.knownTables()
	for oid, full := range known {
		t := byOID[oid]
		switch {
		case t == nil:
			return fmt.Errorf("%w: the relation %s was dropped; its table stays as it is: leave it out (\"!%s\" in relations) to go on", source.ErrCannotServe, full, full)
		case t.full() != full:
			return fmt.Errorf("%w: the relation %s was renamed to %s; rename it back, or %s", source.ErrCannotServe, full, t.full(), copyAnew)
		}
		odd, ok := p.tables[full]
		switch {
		case !ok:
			return fmt.Errorf("%w: the relation %s was taken out of the publication %s, so its changes are missing; leave it out (\"!%s\" in relations), or %s", source.ErrCannotServe, full, name, full, copyAnew)
		case odd != "":
			return fmt.Errorf("%w: the publication %s has %s for %s now; changes may be missing; %s", source.ErrCannotServe, name, odd, full, copyAnew)
		case t.partitioned && !s.viaRoot:
			return fmt.Errorf("%w: %s is partitioned and its publication does not publish via the root", source.ErrCannotServe, full)
		}
	}
	for _, t := range tables {
		if !t.captured || known[t.oid] != "" {
			continue
		}
		if slices.Contains(s.others, t.oid) {
			return fmt.Errorf("%w: relations: %s was not captured when the pipeline began and has not been copied; leave it out, or capture it by a pipeline of another name", source.ErrCannotServe, t.full())
		}
		if _, ok := p.tables[t.full()]; !ok && s.tell(t.oid) {
			s.o.Log.Warn("a relation that matches was created, but the publication does not have it, so it is not captured", "relation", t.full(), "publication", name)
		}
	}
	return nil
}
