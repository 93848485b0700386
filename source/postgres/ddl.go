package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// relation takes in what the log says of a table before its next rows. There is
// a change if the relation has another shape than before, or is new.
//
// catalog reads the table's definition as it is now, which may be later than
// this place in the log; nil is a table that is gone. It is asked each time, since
// a column that was dropped and added again under its name looks the same in the
// log.
//
// A change that the lake would not show right wraps source.ErrCannotServe.
func (s *shapes) relation(msg *relationMessage, catalog func() (*shape, error)) (*shape, []*source.Change, error) {
	now, err := catalog()
	if err != nil {
		return nil, nil, err
	}
	old := s.get(msg.OID)
	if old == nil {
		return s.created(msg, now)
	}
	if err := old.problem(); err != nil {
		return nil, nil, err
	}
	if msg.Namespace != old.Namespace || msg.Name != old.Name {
		return nil, nil, old.cannot("it was renamed to %s.%s", msg.Namespace, msg.Name)
	}
	sh, err := old.compare(msg, now)
	if err != nil {
		return nil, nil, err
	}
	if sh == old {
		return old, nil, nil
	}
	s.set(sh)
	if sh.Rel == old.Rel {
		return sh, nil, nil
	}
	ch := &source.Change{}
	var added []string
	for i := len(old.Columns); i < len(sh.Columns); i++ {
		c := sh.Rel.Columns[i]
		ch.Steps = append(ch.Steps, source.Step{Kind: source.AddColumn, Column: c, After: sh.Rel.Columns[i-1].Name})
		added = append(added, "ADD COLUMN "+ident(c.Name)+" "+c.Native)
	}
	ch.Statement = "ALTER TABLE " + qualified(sh.Namespace, sh.Name) + " " + strings.Join(added, ", ")
	return sh, []*source.Change{ch}, nil
}

// cannot says why the log cannot be followed, and the ways out.
func (s *shape) cannot(format string, args ...any) error {
	return fmt.Errorf("table %s: %s; leave it out of relations, or start with a new pipeline name for another initial snapshot: %w",
		s.fullName(), fmt.Sprintf(format, args...), source.ErrCannotServe)
}

// created takes in a table that was not there when the pipeline began.
func (s *shapes) created(msg *relationMessage, now *shape) (*shape, []*source.Change, error) {
	name := msg.Namespace + "." + msg.Name
	for _, sh := range s.byOID {
		if sh.Namespace == msg.Namespace && sh.Name == msg.Name {
			return nil, nil, sh.cannot("it was dropped and made again, or another table has its name now")
		}
	}
	if now == nil {
		return nil, nil, fmt.Errorf("table %s is gone, and what it looked like is not known; leave it out of relations: %w", name, source.ErrCannotServe)
	}
	if err := now.problem(); err != nil {
		return nil, nil, err
	}
	// What the log says is older than what the catalogs say: a column may have
	// been added since, and will be told of in its turn.
	then := *now
	then.Namespace, then.Name, then.Identity = msg.Namespace, msg.Name, string(msg.Identity)
	then.Columns, then.Key = nil, nil
	for _, c := range now.Columns {
		if slices.ContainsFunc(msg.Columns, func(m relationColumn) bool { return m.Name == c.Name }) {
			continue
		}
		then.Last = min(then.Last, c.Number-1)
		// A file that is named after the table is its first one.
		if now.Files != strconv.FormatUint(uint64(now.OID), 10) {
			then.Files = ""
		}
	}
	for _, m := range msg.Columns {
		i := now.column(m.Name)
		switch {
		case i < 0 && now.left[m.Name]:
			continue
		case i < 0 || now.Columns[i].Type != m.Type || now.Columns[i].Typmod != m.Typmod:
			return nil, nil, then.cannot("its column %s was changed while the log of then is still being read", m.Name)
		}
		if slices.Contains(now.Key, i) {
			then.Key = append(then.Key, len(then.Columns))
		}
		then.Columns = append(then.Columns, now.Columns[i])
	}
	if len(then.Key) != len(now.Key) {
		return nil, nil, then.cannot("its key was changed while the log of then is still being read")
	}
	then.sortKey(now)
	if err := then.checkKey(msg); err != nil {
		return nil, nil, err
	}
	then.finish(-1)
	s.set(&then)
	return &then, []*source.Change{{Statement: "CREATE TABLE " + qualified(then.Namespace, then.Name), Created: true}}, nil
}

// sortKey puts the key into the order of the index, which like has.
func (s *shape) sortKey(like *shape) {
	key := s.Key[:0:0]
	for _, k := range like.Key {
		if i := s.column(like.Columns[k].Name); i >= 0 {
			key = append(key, i)
		}
	}
	s.Key = key
}

// compare finds the shape that msg describes, s itself if nothing differs. Its
// Rel is that of s unless there are more columns.
func (s *shape) compare(msg *relationMessage, now *shape) (*shape, error) {
	next := *s
	next.Identity = string(msg.Identity)
	changed := next.Identity != s.Identity
	seen, last := 0, -1
	for _, m := range msg.Columns {
		i := s.column(m.Name)
		if i < 0 {
			if now != nil && now.left[m.Name] {
				continue
			}
			c, err := s.added(m, now)
			if err != nil {
				return nil, err
			}
			next.Columns, next.Last = append(slices.Clip(next.Columns), c), c.Number
			continue
		}
		c := &s.Columns[i]
		if now != nil {
			k := now.column(m.Name)
			if k >= 0 && now.Columns[k].Number != c.Number || k < 0 && now.left[m.Name] {
				return nil, s.cannot("its column %s was dropped, and there is another one of that name", m.Name)
			}
		}
		if c.Type != m.Type || c.Typmod != m.Typmod {
			if err := s.retyped(c, m, now); err != nil {
				return nil, err
			}
			next.Columns = slices.Clone(next.Columns)
			n := &next.Columns[i]
			n.Type, n.Typmod, n.Base, n.BaseMod, n.Native = m.Type, m.Typmod, m.Type, m.Typmod, "text"
			if m.Type == oidVarchar {
				n.Native = "character varying"
				if m.Typmod >= 4 {
					n.Native = fmt.Sprintf("character varying(%d)", m.Typmod-4)
				}
			}
			changed = true
		}
		if i < last {
			return nil, s.cannot("its columns come in another order than before, so some were dropped and added again")
		}
		seen, last = seen+1, i
	}
	if seen < len(s.Columns) {
		return nil, s.missing(msg, now)
	}
	if err := next.checkKey(msg); err != nil {
		return nil, err
	}
	if now != nil && (next.Identity == "f" || next.Identity == "n") && !now.sameKey(&next) {
		return nil, s.cannot("its key was changed: it is (%s) now, and was (%s)", now.keyNames(), next.keyNames())
	}
	if len(next.Columns) > len(s.Columns) {
		next.finish(-1)
		next.Rel.EstimatedRows = s.Rel.EstimatedRows
		changed = true
	}
	// The file with the rows as of now is as good as that of then if there was no
	// other change since.
	if now != nil && (now.Files != next.Files || now.Last != next.Last) && now.sameColumns(&next) {
		next.Files, next.Last = now.Files, now.Last
		changed = true
	}
	if !changed {
		return s, nil
	}
	return &next, nil
}

func (s *shape) sameColumns(o *shape) bool {
	return slices.EqualFunc(s.Columns, o.Columns, func(a, b shapeColumn) bool {
		return a.Number == b.Number && a.Name == b.Name && a.Type == b.Type && a.Typmod == b.Typmod
	})
}

// sameKey compares the columns of the keys, as a set.
func (s *shape) sameKey(o *shape) bool {
	in := func(a, b *shape) bool {
		for _, k := range a.Key {
			if !slices.ContainsFunc(b.Key, func(j int) bool { return b.Columns[j].Number == a.Columns[k].Number }) {
				return false
			}
		}
		return true
	}
	return in(s, o) && in(o, s)
}

func (s *shape) keyNames() string {
	var names []string
	for _, k := range s.Key {
		names = append(names, s.Columns[k].Name)
	}
	return strings.Join(names, ", ")
}

func (s *shape) byNumber(number int) string {
	for i := range s.Columns {
		if s.Columns[i].Number == number {
			return s.Columns[i].Name
		}
	}
	return ""
}

// missing says what became of the columns that the log no longer has.
func (s *shape) missing(msg *relationMessage, now *shape) error {
	for _, c := range s.Columns {
		if slices.ContainsFunc(msg.Columns, func(m relationColumn) bool { return m.Name == c.Name }) {
			continue
		}
		if now != nil {
			for _, n := range now.Columns {
				if n.Number == c.Number && n.Name != c.Name {
					return s.cannot("its column %s was renamed to %s", c.Name, n.Name)
				}
				if n.Number == c.Number {
					return s.cannot("its column %s is not in the log any more: the publication has a list of columns", c.Name)
				}
			}
		}
		return s.cannot("its column %s was dropped", c.Name)
	}
	return s.cannot("the log has a column of it twice")
}

// added decides on a column that came after the others. The log brings no rows
// for what it put into the older ones, so they must hold NULL in it.
func (s *shape) added(m relationColumn, now *shape) (c shapeColumn, err error) {
	k := -1
	if now != nil {
		k = now.column(m.Name)
	}
	if k < 0 || now.Columns[k].Type != m.Type || now.Columns[k].Typmod != m.Typmod {
		return c, s.cannot("its column %s was added, and changed or dropped while the log of then is still being read", m.Name)
	}
	c = now.Columns[k]
	if why := c.unserved(); why != "" {
		return c, s.cannot("its column %s (%s) was added: %s", c.Name, c.Native, why)
	}
	switch {
	case c.Number > s.Last:
	case s.byNumber(c.Number) != "":
		return c, s.cannot("its column %s was renamed to %s", s.byNumber(c.Number), c.Name)
	default:
		return c, s.cannot("its column %s was a generated one, which was not written", c.Name)
	}
	// A constant default is kept in the catalog. Any other has rewritten the table,
	// and whatever rewrites it makes constants vanish from the catalog.
	if c.hasMissing {
		return c, s.cannot("its column %s was added with a default, and the log does not tell what the rows from before hold in it", c.Name)
	}
	if now.Files == "" || now.Files != s.Files {
		return c, s.cannot("its column %s was added and the table was rewritten, because the column has a default, or by VACUUM FULL, CLUSTER or TRUNCATE; the log does not tell what the rows from before hold in it", c.Name)
	}
	return c, nil
}

// retyped decides on a column whose type is another one. Only text that became
// longer without its table being rewritten has the same values as before.
func (s *shape) retyped(c *shapeColumn, m relationColumn, now *shape) error {
	k := -1
	if now != nil {
		k = now.column(m.Name)
	}
	if k < 0 {
		return s.cannot("the type of its column %s was changed from %s, and the column is gone by now", c.Name, c.Native)
	}
	n := &now.Columns[k]
	if longer(c.Type, c.Typmod, m.Type, m.Typmod) && longer(m.Type, m.Typmod, n.Type, n.Typmod) && now.Files != "" && now.Files == s.Files {
		return nil
	}
	return s.cannot("the type of its column %s was changed from %s (now %s), and the log does not bring the rows from before again", c.Name, c.Native, n.Native)
}

// longer reports whether the second type holds all values of the first, both being
// text or varchar.
func longer(a uint32, amod int32, b uint32, bmod int32) bool {
	unbound := b == oidText || b == oidVarchar && bmod < 0
	return (a == oidText || a == oidVarchar) && (unbound || a == oidVarchar && b == oidVarchar && amod >= 0 && amod <= bmod)
}

// checkKey compares the key with the columns that the log marks as the replica
// identity: all under FULL, none under NOTHING.
func (s *shape) checkKey(msg *relationMessage) error {
	if s.Identity == "f" || s.Identity == "n" {
		return nil
	}
	marked := 0
	for _, m := range msg.Columns {
		if !m.Key {
			continue
		}
		marked++
		if i := s.column(m.Name); i < 0 || !slices.Contains(s.Key, i) {
			return s.cannot("its key was changed: column %s belongs to it now", m.Name)
		}
	}
	if marked != len(s.Key) {
		return s.cannot("its key was changed: the replica identity has %d of the %d key columns", marked, len(s.Key))
	}
	return nil
}
