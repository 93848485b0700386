package mysql

import (
	"fmt"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// create is CREATE anything, after the word CREATE.
func (s *statement) create() error {
	p := s.p
	replace := p.accept("OR", "REPLACE")
	if p.accept("TEMPORARY") {
		return nil // only its session sees it
	}
	switch {
	case p.accept("TABLE"):
		return s.createTable(replace)
	case p.accept("SEQUENCE"):
		p.accept("IF", "NOT", "EXISTS")
		n, ok := p.qualified(s.ddl.Schema)
		if !ok {
			return s.unread()
		}
		if d := s.table(n); d != nil && !d.Sequence {
			if !replace {
				return nil // IF NOT EXISTS, and a table has the name
			}
			if d.Captured {
				return s.refuse(n, "it puts a sequence in the table's place", outNewCopy)
			}
		}
		n = s.h.stored(n)
		s.put(n, &tableDef{Schema: n.Schema, Name: n.Name, Sequence: true})
		return nil
	case p.acceptAny("DATABASE", "SCHEMA") != "":
		return s.createSchema(replace)
	}
	for p.acceptAny("ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR") != "" {
		if p.peek(0).is("REFERENCE") {
			return nil // SPATIAL REFERENCE SYSTEM
		}
	}
	if p.accept("INDEX") {
		return s.createIndex()
	}
	// VIEW, TRIGGER, PROCEDURE, FUNCTION, EVENT, USER, ROLE, SERVER and the like,
	// with ALGORITHM, DEFINER and SQL SECURITY before.
	return nil
}

func (s *statement) createTable(replace bool) error {
	p := s.p
	absent := p.accept("IF", "NOT", "EXISTS")
	n, ok := p.qualified(s.ddl.Schema)
	if !ok {
		return s.unread()
	}
	n = s.h.stored(n)
	before := s.table(n)
	switch {
	case before != nil && replace:
		if before.Captured {
			return s.refuse(n, "CREATE OR REPLACE drops the table", outNewCopy)
		}
		before = nil
	case before != nil && absent:
		return nil
	case before != nil:
		// The server made it, so that what we know is wrong.
		if before.Captured {
			return s.refuse(n, "the table is created, but was known before: a statement is missing in the log", outNewCopy)
		}
	}
	d := &tableDef{Schema: n.Schema, Name: n.Name, Captured: s.h.match(n.Schema, n.Name)}
	err := s.createDefinition(d)
	if err != nil {
		if d.Captured {
			return s.refuse(n, "the statement is not understood: "+err.Error(), outNewCopy)
		}
		d.Columns, d.Indexes, d.Foreign, d.Unknown = nil, nil, nil, err.Error()
	}
	d.chooseKey()
	s.h.settle(d, nil)
	s.put(n, d)
	if !d.Captured {
		return nil
	}
	if err := d.problem(); err != nil {
		return fmt.Errorf("statement %q: %w", shorten(oneLine(s.ddl.SQL), 200), err)
	}
	s.effects = append(s.effects, ddlEffect{Event: source.Schema, Def: d, Change: s.change(true, nil)})
	return nil
}

// createDefinition reads the shape of a new table, which may be another's.
func (s *statement) createDefinition(d *tableDef) error {
	p := s.p
	like := p.accept("LIKE")
	if !like && p.peek(0).punct('(') && p.peek(1).is("LIKE") {
		p.next()
		p.next()
		like = true
	}
	if like {
		n, ok := p.qualified(s.ddl.Schema)
		if !ok {
			return p.syntaxError("the name of a table was expected")
		}
		o := s.table(n)
		switch {
		case o == nil:
			return fmt.Errorf("table %s, which it is made like, is not known", n)
		case o.Unknown != "":
			return fmt.Errorf("the definition of table %s, which it is made like, is not known: %s", n, o.Unknown)
		}
		c := o.clone()
		d.Columns, d.Indexes, d.Engine, d.Charset = c.Columns, c.Indexes, c.Engine, c.Charset
		d.Partitioned, d.Versioned, d.Sequence = c.Partitioned, c.Versioned, c.Sequence
		return nil
	}
	tp := &tableParser{parser: p, h: s.h, ddl: s.ddl, def: d}
	if err := tp.createBody(); err != nil {
		return err
	}
	if tp.statement {
		return fmt.Errorf("its rows come from a query whose text alone is in the log (binlog_format is not ROW)")
	}
	if p.bad {
		return p.syntaxError("a quote or comment has no end")
	}
	return nil
}

func (s *statement) createSchema(replace bool) error {
	p := s.p
	absent := p.accept("IF", "NOT", "EXISTS")
	t := p.next()
	if !t.name() && t.kind != tokenNumber {
		return s.unread()
	}
	if replace {
		if err := s.dropTablesOf(t.text); err != nil {
			return err
		}
	}
	name := s.h.id(t.text, "").Schema
	if _, known := s.h.schemas[name]; known && absent {
		return nil
	}
	set := s.schemaOptions()
	if set == "" {
		set = s.h.serverCharset(s.ddl)
	}
	s.schemas[name] = &set
	return nil
}

// schemaOptions reads CHARACTER SET and COLLATE of a schema.
func (s *statement) schemaOptions() string {
	p, set := s.p, ""
	for !p.end() {
		switch {
		case p.accept("CHARACTER", "SET"), p.accept("CHARSET"), p.accept("CHAR", "SET"):
			p.acceptPunct('=')
			set = canonicalCharset(p.next().text)
		case p.accept("COLLATE"):
			p.acceptPunct('=')
			if c := charsetOfCollation(p.next().text); set == "" {
				set = c
			}
		default:
			p.next()
		}
	}
	return set
}

// dropTablesOf forgets the tables of a schema.
func (s *statement) dropTablesOf(schema string) error {
	id := s.h.id(schema, "").Schema
	for _, d := range s.h.captured() {
		if s.h.id(d.Schema, d.Name).Schema == id {
			return s.refuse(tableName{d.Schema, d.Name}, "its schema is dropped", outNewCopy)
		}
	}
	for n := range s.h.tables {
		if n.Schema == id {
			s.tables[n] = nil
		}
	}
	return nil
}

// alter is ALTER anything, after the word ALTER.
func (s *statement) alter() error {
	p := s.p
	p.accept("ONLINE")
	ignore := p.accept("IGNORE")
	p.accept("ONLINE")
	switch {
	case p.accept("TABLE"):
		return s.alterTable(ignore)
	case p.acceptAny("DATABASE", "SCHEMA") != "":
		name := s.ddl.Schema
		if t := p.peek(0); t.kind == tokenName || t.name() && !t.is("CHARACTER") && !t.is("CHARSET") && !t.is("COLLATE") &&
			!t.is("DEFAULT") && !t.is("UPGRADE") {
			name = p.next().text
		}
		if set := s.schemaOptions(); set != "" {
			s.schemas[s.h.id(name, "").Schema] = &set
		}
	}
	return nil // VIEW, USER, EVENT, FUNCTION, SEQUENCE, INSTANCE, TABLESPACE, …
}

// altering prepares the definition of a table for a change, nil when there is
// nothing to follow.
func (s *statement) altering(n tableName) (*tableDef, error) {
	d := s.table(n)
	switch {
	case d == nil && s.captures(n):
		return nil, s.refuse(n, "the table is not known", outNewCopy)
	case d == nil || d.Sequence:
		return nil, nil
	case d.Captured:
		if err := d.problem(); err != nil {
			return nil, fmt.Errorf("statement %q: %w", shorten(oneLine(s.ddl.SQL), 200), err)
		}
	case d.Unknown != "":
		return nil, nil
	}
	return d.clone(), nil
}

func (s *statement) alterTable(ignore bool) error {
	p := s.p
	p.accept("IF", "EXISTS")
	n, ok := p.qualified(s.ddl.Schema)
	if !ok {
		return s.unread()
	}
	if !p.accept("NOWAIT") && p.accept("WAIT") {
		p.next()
	}
	before := s.table(n)
	if before != nil && before.Unknown != "" && !before.Captured {
		return s.alterUnknown(n, before)
	}
	d, err := s.altering(n)
	if err != nil || d == nil {
		return err
	}
	tp := &tableParser{parser: p, h: s.h, ddl: s.ddl, def: d}
	a, err := tp.alter()
	if other, ok := s.exchanged(); ok {
		return s.refuse(other, "EXCHANGE PARTITION changes its rows without a word in the log", outNewCopy)
	}
	if d.Captured {
		if err != nil {
			return s.refuse(n, "the statement is not understood: "+err.Error(), outNewCopy)
		}
		if ignore {
			a.cannot("ALTER IGNORE may remove rows without a word about them in the log")
		}
		if a.rename != nil {
			a.cannot("the table is renamed to %s", *a.rename)
		}
		if a.refuse != "" {
			return s.refuse(n, a.refuse, outNewCopy)
		}
		return s.altered(n, d, before, a.steps)
	}
	if err != nil {
		d.Unknown = fmt.Sprintf("%q is not understood: %v", shorten(oneLine(s.ddl.SQL), 200), err)
	} else if a.unsure != "" {
		d.Unknown = fmt.Sprintf("%q: %s", shorten(oneLine(s.ddl.SQL), 200), a.unsure)
	}
	d.chooseKey()
	s.h.settle(d, nil)
	s.put(n, d)
	if a.rename != nil {
		return s.move(n, *a.rename)
	}
	return nil
}

// alterUnknown follows what can be followed of a table whose shape is lost: its
// name.
func (s *statement) alterUnknown(n tableName, d *tableDef) error {
	tp := &tableParser{parser: s.p, h: s.h, ddl: s.ddl, def: d.clone()}
	for !tp.end() {
		if tp.accept("RENAME") && !tp.peek(0).is("COLUMN") && !tp.peek(0).is("INDEX") && !tp.peek(0).is("KEY") {
			a := &alteration{}
			if err := tp.renameClause(a); err == nil && a.rename != nil {
				return s.move(n, *a.rename)
			}
		}
		tp.skipToComma()
		if tp.peek(0).kind != tokenEnd {
			tp.next()
		}
	}
	return nil
}

// exchanged finds the table that EXCHANGE PARTITION … WITH TABLE names, if it is
// captured.
func (s *statement) exchanged() (tableName, bool) {
	p := s.h.newParser(s.ddl.SQL, s.ddl.SQLMode)
	exchange := false
	for {
		t := p.next()
		switch {
		case t.kind == tokenEnd:
			return tableName{}, false
		case t.is("EXCHANGE") || t.is("CONVERT"):
			exchange = true
		case exchange && t.is("TABLE"):
			n, ok := p.qualified(s.ddl.Schema)
			if d := s.table(n); ok && d != nil && d.Captured {
				return n, true
			}
		}
	}
}

// altered puts the new definition of a captured table in place.
func (s *statement) altered(n tableName, d, before *tableDef, steps []source.Step) error {
	if !d.keepKey() {
		return s.refuse(n, "the index that its key comes from is changed", outNewCopy)
	}
	s.h.settle(d, before)
	if err := d.problem(); err != nil {
		return fmt.Errorf("statement %q: %w", shorten(oneLine(s.ddl.SQL), 200), err)
	}
	s.put(n, d)
	if d.Rel == before.Rel {
		return nil
	}
	if len(steps) == 0 {
		return s.refuse(n, "its shape changes in a way that is not understood", outNewCopy)
	}
	s.effects = append(s.effects, ddlEffect{Event: source.Schema, Def: d, Change: s.change(false, steps)})
	return nil
}

// createIndex is CREATE INDEX, after the word INDEX.
func (s *statement) createIndex() error {
	p := s.p
	p.accept("IF", "NOT", "EXISTS")
	var ix indexDef
	if t := p.peek(0); t.name() && !t.is("ON") {
		ix.Name = p.next().text
	}
	if p.acceptAny("USING", "TYPE") != "" {
		p.next()
	}
	if !p.accept("ON") {
		return s.unread()
	}
	n, ok := p.qualified(s.ddl.Schema)
	if !ok {
		return s.unread()
	}
	before := s.table(n)
	d, err := s.altering(n)
	if err != nil || d == nil {
		return err
	}
	tp := &tableParser{parser: p, h: s.h, ddl: s.ddl, def: d}
	if !p.peek(0).punct('(') || tp.indexParts(&ix) != nil {
		if d.Captured {
			return s.refuse(n, "the statement is not understood", outNewCopy)
		}
		return nil
	}
	// Whether it is unique matters only to tables that are made like this one.
	ix.Unique = s.saysUnique()
	d.Indexes = append(d.Indexes, ix)
	if d.Captured {
		return s.altered(n, d, before, nil)
	}
	d.chooseKey()
	s.put(n, d)
	return nil
}

func (s *statement) saysUnique() bool {
	p := s.h.newParser(s.ddl.SQL, s.ddl.SQLMode)
	for t := p.next(); t.kind != tokenEnd && !t.is("INDEX"); t = p.next() {
		if t.is("UNIQUE") {
			return true
		}
	}
	return false
}

// drop is DROP anything, after the word DROP.
func (s *statement) drop() error {
	p := s.p
	if p.accept("TEMPORARY") {
		return nil
	}
	switch {
	case p.acceptAny("TABLE", "TABLES", "SEQUENCE") != "":
		p.accept("IF", "EXISTS")
		for {
			n, ok := p.qualified(s.ddl.Schema)
			if !ok {
				return s.unread()
			}
			if d := s.table(n); d != nil {
				if d.Captured {
					return s.refuse(n, "the table is dropped", outNewCopy)
				}
				s.put(n, nil)
			}
			if !p.acceptPunct(',') {
				return nil
			}
		}
	case p.acceptAny("DATABASE", "SCHEMA") != "":
		p.accept("IF", "EXISTS")
		t := p.next()
		if !t.name() && t.kind != tokenNumber {
			return s.unread()
		}
		if err := s.dropTablesOf(t.text); err != nil {
			return err
		}
		s.schemas[s.h.id(t.text, "").Schema] = nil
	case p.accept("INDEX"):
		return s.dropIndex()
	}
	return nil // VIEW, TRIGGER, USER, …
}

func (s *statement) dropIndex() error {
	p := s.p
	p.accept("IF", "EXISTS")
	name := p.next()
	if !p.accept("ON") {
		return s.unread()
	}
	n, ok := p.qualified(s.ddl.Schema)
	if !ok {
		return s.unread()
	}
	before := s.table(n)
	d, err := s.altering(n)
	if err != nil || d == nil {
		return err
	}
	if d.Captured && strings.EqualFold(name.text, d.KeyName) {
		return s.refuse(n, "index "+name.text+", which its key comes from, is dropped", outNewCopy)
	}
	tp := &tableParser{parser: p, h: s.h, ddl: s.ddl, def: d}
	tp.dropIndex(name.text)
	if d.Captured {
		return s.altered(n, d, before, nil)
	}
	d.chooseKey()
	s.put(n, d)
	return nil
}

// rename is RENAME TABLE, pair by pair from left to right.
func (s *statement) rename() error {
	p := s.p
	if p.acceptAny("TABLE", "TABLES") == "" {
		return nil // RENAME USER
	}
	p.accept("IF", "EXISTS")
	for {
		from, ok := p.qualified(s.ddl.Schema)
		if !p.accept("NOWAIT") && p.accept("WAIT") {
			p.next()
		}
		ok = ok && p.accept("TO")
		to, ok2 := p.qualified(s.ddl.Schema)
		if !ok || !ok2 {
			return s.unread()
		}
		if err := s.move(from, to); err != nil {
			return err
		}
		if !p.acceptPunct(',') {
			return nil
		}
	}
}

// move gives a table another name.
func (s *statement) move(from, to tableName) error {
	d := s.table(from)
	if d == nil {
		// A view, or a table that is not known.
		if s.captures(to) && s.table(to) == nil {
			return s.refuse(to, fmt.Sprintf("what is renamed to it, %s, is not known", from), outNewCopy)
		}
		return nil
	}
	if d.Captured {
		return s.refuse(from, fmt.Sprintf("the table is renamed to %s", to), outNewCopy)
	}
	to = s.h.stored(to)
	if s.h.match(to.Schema, to.Name) && !d.Sequence {
		return s.refuse(to, fmt.Sprintf("table %s is renamed to it, whose rows are not in the lake", from), outNewCopy)
	}
	c := d.clone()
	c.Schema, c.Name = to.Schema, to.Name
	s.put(from, nil)
	s.put(to, c)
	return nil
}
