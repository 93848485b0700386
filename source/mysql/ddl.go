package mysql

import (
	"fmt"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// ddlEvent is the text of a statement as the log has it, with what decides its
// meaning. Zero collations mean that the event did not say.
type ddlEvent struct {
	Schema           string // the session's default database
	SQL              string // in the character set of ClientCollation
	SQLMode          uint64
	ClientCollation  uint16 // of Q_CHARSET_CODE
	ServerCollation  uint16 // of Q_CHARSET_CODE: collation_server of the session
	UTF8MB4Collation uint16 // of Q_DEFAULT_COLLATION_FOR_UTF8MB4
	// ImplicitTimestamps: the session had explicit_defaults_for_timestamp=OFF.
	ImplicitTimestamps bool
}

// ddlEffect is what a statement does to one captured relation.
type ddlEffect struct {
	Event  source.EventKind // source.Schema or source.Truncate
	Def    *tableDef
	Change *source.Change // of a Schema event
}

// statement applies one statement to a copy of what it touches.
type statement struct {
	h       *history
	p       *parser
	ddl     ddlEvent
	tables  map[tableName]*tableDef // nil: gone
	schemas map[string]*string      // nil: gone
	effects []ddlEffect
}

// apply brings the history past a statement and says what it does to captured
// relations. An error wraps source.ErrCannotServe and leaves the history as it
// was. Decoders made before are void afterwards.
//
// The leading words decide. What cannot change rows or the shape of a table is
// let pass without being read further, whatever its syntax; what may is read
// whole or refused.
func (h *history) apply(d ddlEvent) ([]ddlEffect, error) {
	if set := charsetOfID(uint64(d.ClientCollation)); d.ClientCollation != 0 && set != "" {
		if cs := lookupCharset(set); cs != nil && !cs.UTF8 && cs.Append != nil {
			if sql, ok := cs.Append(nil, []byte(d.SQL)); ok {
				d.SQL = string(sql)
			}
		}
	}
	s := &statement{h: h, p: h.newParser(d.SQL, d.SQLMode), ddl: d, tables: map[tableName]*tableDef{}, schemas: map[string]*string{}}
	if err := s.run(); err != nil {
		return nil, err
	}
	for id, t := range s.tables {
		if t == nil {
			delete(h.tables, id)
		} else {
			h.tables[id] = t
		}
	}
	for n, set := range s.schemas {
		if set == nil {
			delete(h.schemas, n)
		} else {
			h.schemas[n] = *set
		}
	}
	return s.effects, nil
}

// table is a table as the statement has left it so far.
func (s *statement) table(n tableName) *tableDef {
	id := s.h.id(n.Schema, n.Name)
	if t, ok := s.tables[id]; ok {
		return t
	}
	return s.h.tables[id]
}

func (s *statement) put(n tableName, t *tableDef) { s.tables[s.h.id(n.Schema, n.Name)] = t }

// captures reports whether a name is, or would be, a captured table.
func (s *statement) captures(n tableName) bool {
	if t := s.table(n); t != nil {
		return t.Captured
	}
	n = s.h.stored(n)
	return s.h.match(n.Schema, n.Name)
}

// refuse is the error for a captured table.
func (s *statement) refuse(n tableName, why, out string) error {
	return fmt.Errorf("statement %q on table %s cannot be followed: %s; %s: %w", shorten(oneLine(s.ddl.SQL), 200), n, why, out, source.ErrCannotServe)
}

const (
	outNewCopy = "start again with a new pipeline name and table for another initial snapshot, or leave the table out of relations"
	outRowLog  = "make sessions log rows (binlog_format=ROW), then start again with a new pipeline name and table for another initial snapshot"
)

func oneLine(sql string) string { return strings.Join(strings.Fields(sql), " ") }

func (s *statement) run() error {
	p := s.p
	for p.acceptPunct('(') {
	}
	t := p.next()
	if t.kind == tokenEnd && !p.bad {
		return nil // a comment
	}
	if t.kind != tokenWord {
		return s.unread()
	}
	switch t.upper {
	case "CREATE":
		return s.create()
	case "ALTER":
		return s.alter()
	case "DROP":
		return s.drop()
	case "RENAME":
		return s.rename()
	case "TRUNCATE":
		return s.truncate()
	case "INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "LOAD", "CALL", "SELECT", "VALUES", "TABLE", "DO", "HANDLER", "EXECUTE", "MERGE":
		return s.rows(t.upper)
	case "REPAIR":
		return s.repair()
	case "IMPORT":
		return s.refuseAny("it brings a table in without a word about its rows")
	case "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "START", "STOP", "XA", "SET", "GRANT", "REVOKE", "FLUSH", "ANALYZE",
		"OPTIMIZE", "CHECK", "CHECKSUM", "USE", "SHOW", "EXPLAIN", "DESCRIBE", "DESC", "INSTALL", "UNINSTALL", "KILL", "RESET", "PURGE",
		"CHANGE", "LOCK", "UNLOCK", "PREPARE", "DEALLOCATE", "BINLOG", "CACHE", "HELP", "SIGNAL", "RESIGNAL", "GET", "SHUTDOWN", "RESTART",
		"CLONE", "BACKUP":
		return nil
	}
	return s.unread()
}

// unread is a statement that is not known: it passes unless it names a captured
// table.
func (s *statement) unread() error {
	if n, ok := s.mentions(); ok {
		return s.refuse(n, "the statement is not understood", outNewCopy)
	}
	if s.p.bad && len(s.h.captured()) > 0 {
		return s.refuseAny("the statement is not understood: a quote or comment has no end")
	}
	return nil
}

// refuseAny is the error when any captured table may be meant.
func (s *statement) refuseAny(why string) error {
	all := s.h.captured()
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("statement %q cannot be followed: %s, and it may concern %s; %s: %w",
		shorten(oneLine(s.ddl.SQL), 200), why, all[0].fullName(), outNewCopy, source.ErrCannotServe)
}

// mentions finds the first name in the statement that is a
// captured table's: with its schema before it, or alone in the default schema.
func (s *statement) mentions() (tableName, bool) {
	p := s.h.newParser(s.ddl.SQL, s.ddl.SQLMode)
	p.lex.whole = true
	var before token // what stands before the dot
	for {
		t := p.next()
		if t.kind == tokenEnd {
			s.p.bad = s.p.bad || p.bad
			return tableName{}, false
		}
		if !t.name() {
			continue
		}
		n := tableName{s.ddl.Schema, t.text}
		if before.kind != tokenEnd {
			n.Schema = before.text
		}
		before = token{}
		if p.peek(0).punct('.') {
			before = t
			if d := s.table(n); d == nil || !d.Captured {
				p.next()
				continue
			}
		}
		if d := s.table(n); d != nil && d.Captured {
			return tableName{d.Schema, d.Name}, true
		}
	}
}

// rows is a statement that changes rows and that the log has as text, which a
// session without binlog_format=ROW writes. Rows of captured tables that it
// changed are not in the log.
func (s *statement) rows(verb string) error {
	const why = "it changed rows, but the log has only its text"
	p := s.p
	switch verb {
	case "INSERT", "REPLACE":
		for p.acceptAny("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO") != "" {
		}
		return s.target(why)
	case "LOAD":
		for p.peek(0).kind != tokenEnd && !p.accept("INTO", "TABLE") {
			p.next()
		}
		return s.target(why)
	case "UPDATE", "DELETE", "WITH", "MERGE", "HANDLER":
		if n, ok := s.mentions(); ok {
			return s.refuse(n, why, outRowLog)
		}
		if verb == "WITH" || verb == "MERGE" {
			return nil
		}
		for p.acceptAny("LOW_PRIORITY", "QUICK", "IGNORE", "FROM") != "" {
		}
		return s.target(why)
	}
	return s.refuseAny("it may have changed rows, but the log has only its text")
}

// target reads the table that rows go to. A name that is no table may be a view
// on a captured one.
func (s *statement) target(why string) error {
	n, ok := s.p.qualified(s.ddl.Schema)
	if !ok {
		return s.unread()
	}
	d := s.table(n)
	switch {
	case d == nil && systemSchema(n.Schema):
		return nil
	case d == nil && len(s.h.captured()) > 0:
		return s.refuse(n, why+", and the table is not known, so that it may be a view", outRowLog)
	case d != nil && d.Captured:
		return s.refuse(n, why, outRowLog)
	}
	return nil
}

// systemSchema tells the schemas whose tables are the server's own and are not
// defined in the history.
func systemSchema(schema string) bool {
	switch strings.ToLower(schema) {
	case "mysql", "sys", "performance_schema", "information_schema":
		return true
	}
	return false
}

func (s *statement) repair() error {
	s.p.acceptAny("NO_WRITE_TO_BINLOG", "LOCAL")
	if !s.p.accept("TABLE") {
		return nil
	}
	for {
		n, ok := s.p.qualified(s.ddl.Schema)
		if !ok {
			return nil
		}
		if d := s.table(n); d != nil && d.Captured && !strings.EqualFold(d.Engine, "InnoDB") {
			return s.refuse(n, "REPAIR may remove rows without a word about them in the log", outNewCopy)
		}
		if !s.p.acceptPunct(',') {
			return nil
		}
	}
}

func (s *statement) truncate() error {
	p := s.p
	p.accept("TABLE")
	n, ok := p.qualified(s.ddl.Schema)
	if !ok {
		return s.unread()
	}
	d := s.table(n)
	if d == nil {
		if s.captures(n) {
			return s.refuse(n, "the table is not known", outNewCopy)
		}
		return nil
	}
	if !d.Captured {
		return nil
	}
	if err := d.problem(); err != nil {
		return err
	}
	s.effects = append(s.effects, ddlEffect{Event: source.Truncate, Def: d})
	return nil
}

// change is the source.Change of this statement.
func (s *statement) change(created bool, steps []source.Step) *source.Change {
	return &source.Change{Statement: shorten(strings.TrimSpace(s.ddl.SQL), 1000), Created: created, Steps: steps}
}
