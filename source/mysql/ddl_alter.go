package mysql

import (
	"fmt"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// alteration is what the clauses of an ALTER TABLE do.
type alteration struct {
	steps  []source.Step
	rename *tableName
	// refuse says what a captured table cannot follow yet; the definition is
	// altered all the same, for tables that are not captured.
	refuse string
	// unsure says what makes the definition unknown.
	unsure string
}

func (a *alteration) cannot(format string, args ...any) {
	if a.refuse == "" {
		a.refuse = fmt.Sprintf(format, args...)
	}
}

// alter reads the clauses of ALTER TABLE and applies them to p.def.
func (p *tableParser) alter() (*alteration, error) {
	a := &alteration{}
	p.newDefault()
	for !p.end() {
		if err := p.clause(a); err != nil {
			return a, err
		}
		p.acceptPunct(',')
	}
	if p.bad {
		return a, p.syntaxError("a quote or comment has no end")
	}
	return a, nil
}

// newDefault looks ahead for a new default character set: it holds for columns
// that the same statement adds before it is named.
func (p *tableParser) newDefault() {
	parser := *p.parser
	parser.buf = append([]token(nil), p.buf...)
	ahead := *p
	ahead.parser = &parser
	for !ahead.end() {
		switch t := ahead.peek(0); {
		case t.is("DEFAULT"), t.is("CHARACTER"), t.is("CHARSET"), t.is("COLLATE"):
			if ahead.charsetOption() != nil {
				return
			}
		default:
			ahead.skipToComma()
		}
		if t := ahead.peek(0); t.punct(')') || t.punct(',') {
			ahead.next()
		}
	}
}

func (p *tableParser) clause(a *alteration) error {
	t := p.peek(0)
	if t.kind != tokenWord {
		return p.syntaxError("a clause of ALTER TABLE was expected")
	}
	switch t.upper {
	case "ADD":
		p.next()
		return p.addClause(a)
	case "DROP":
		p.next()
		return p.dropClause(a)
	case "MODIFY", "CHANGE":
		p.next()
		return p.changeClause(a, t.upper == "CHANGE")
	case "RENAME":
		p.next()
		return p.renameClause(a)
	case "CONVERT":
		p.next()
		a.cannot("CONVERT TO CHARACTER SET changes how its text is stored")
		a.unsure = "it was converted to another character set"
		p.skipToComma()
	case "ALTER":
		p.next()
		return p.alterClause()
	case "ENGINE", "TYPE":
		p.next()
		p.acceptPunct('=')
		if p.def.Engine = p.next().text; strings.EqualFold(p.def.Engine, "BLACKHOLE") {
			a.cannot("ENGINE=BLACKHOLE removes its rows without a word in the log")
		}
	case "DISCARD", "IMPORT", "EXCHANGE":
		a.cannot("%s changes its rows without a word in the log", t.upper)
		p.rest()
	case "TRUNCATE", "REPAIR", "CONVERT_PARTITION", "COALESCE", "REORGANIZE", "REMOVE", "PARTITION":
		if t.upper == "REMOVE" {
			p.def.Partitioned = false
		} else {
			p.def.Partitioned = true
		}
		a.cannot("%s PARTITION is not followed: it may change rows without a word about them in the log", t.upper)
		p.rest()
	case "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD":
		p.rest() // of partitions: rows stay
	case "WITH":
		p.next()
		if !p.accept("VALIDATION") {
			return p.syntaxError("VALIDATION was expected")
		}
	case "WITHOUT":
		p.next()
		if !p.accept("VALIDATION") {
			return p.syntaxError("VALIDATION was expected")
		}
	case "ORDER":
		p.rest()
	case "FORCE", "ENABLE", "DISABLE", "NOWAIT":
		p.next()
		p.accept("KEYS")
	case "WAIT":
		p.next()
		p.next()
	case "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "CHAR":
		return p.charsetOption()
	case "ALGORITHM", "LOCK", "AUTO_INCREMENT", "COMMENT", "ROW_FORMAT", "KEY_BLOCK_SIZE", "COMPRESSION", "ENCRYPTION", "ENCRYPTED",
		"ENCRYPTION_KEY_ID", "AVG_ROW_LENGTH", "CHECKSUM", "TABLE_CHECKSUM", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL",
		"TRANSACTIONAL", "DELAY_KEY_WRITE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PASSWORD", "STATS_PERSISTENT", "STATS_AUTO_RECALC",
		"STATS_SAMPLE_PAGES", "TABLESPACE", "INSERT_METHOD", "AUTOEXTEND_SIZE", "SECONDARY_ENGINE", "SECONDARY_LOAD", "SECONDARY_UNLOAD",
		"ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "DATA", "INDEX", "CONNECTION", "STORAGE", "IETF_QUOTES":
		p.option()
	default:
		return p.syntaxError("the clause " + t.upper + " of ALTER TABLE is not known, it stands")
	}
	return nil
}

// rest takes everything that is left.
func (p *parser) rest() {
	for p.peek(0).kind != tokenEnd {
		p.next()
	}
}

// option takes a table option whose value does not matter.
func (p *parser) option() {
	p.next()
	p.accept("DIRECTORY")
	if p.acceptPunct('=') || p.peek(0).kind == tokenString || p.peek(0).kind == tokenNumber {
		p.next()
	} else if t := p.peek(0); t.kind == tokenWord || t.kind == tokenName {
		p.next() // ALGORITHM INPLACE, TABLESPACE ts
		p.acceptAny("DISK", "MEMORY")
	}
}

func (p *tableParser) charsetOption() error {
	p.accept("DEFAULT")
	switch {
	case p.accept("CHARACTER", "SET"), p.accept("CHAR", "SET"), p.accept("CHARSET"):
		p.acceptPunct('=')
		p.def.Charset = canonicalCharset(p.next().text)
	case p.accept("COLLATE"):
		p.acceptPunct('=')
		if set := charsetOfCollation(p.next().text); set != "" {
			p.def.Charset = set
		}
	default:
		return p.syntaxError("a character set was expected")
	}
	return nil
}

func (p *tableParser) addClause(a *alteration) error {
	switch t := p.peek(0); {
	case t.is("PARTITION"):
		if !p.def.Partitioned {
			a.cannot("ADD PARTITION is not followed on a table that is not known as partitioned")
		}
		p.rest() // a new partition is empty
		return nil
	case t.is("SYSTEM"), t.is("PERIOD"):
		a.cannot("ADD %s changes what its rows in the log mean", t.upper)
		if p.accept("SYSTEM", "VERSIONING") {
			p.def.Versioned = true
		}
		p.skipToComma()
		return nil
	}
	foreign, indexes := len(p.def.Foreign), len(p.def.Indexes)
	if done, err := p.constraint(); err != nil {
		return err
	} else if done {
		for _, ix := range p.def.Indexes[indexes:] {
			if ix.Primary {
				a.cannot("ADD PRIMARY KEY gives it another key")
				p.notNull(ix.Columns)
			}
		}
		p.refuseForeign(a, foreign)
		return nil
	}
	p.accept("COLUMN")
	absent := p.accept("IF", "NOT", "EXISTS")
	if p.acceptPunct('(') {
		for {
			if done, err := p.constraint(); err != nil {
				return err
			} else if !done {
				if err := p.addColumn(a, absent, false); err != nil {
					return err
				}
			}
			if p.acceptPunct(')') {
				break
			}
			if !p.acceptPunct(',') {
				return p.syntaxError("a comma was expected")
			}
		}
		for _, ix := range p.def.Indexes[indexes:] {
			if ix.Primary {
				a.cannot("ADD PRIMARY KEY gives it another key")
				p.notNull(ix.Columns)
			}
		}
		p.refuseForeign(a, foreign)
		return nil
	}
	if err := p.addColumn(a, absent, true); err != nil {
		return err
	}
	p.refuseForeign(a, foreign)
	return nil
}

func (p *tableParser) notNull(columns []string) {
	for _, n := range columns {
		if i := p.def.column(n); i >= 0 {
			p.def.Columns[i].NotNull = true
		}
	}
}

func (p *tableParser) refuseForeign(a *alteration, from int) {
	for _, f := range p.def.Foreign[from:] {
		if f.Acts && !p.h.facts.CascadesLogged {
			a.cannot("its new foreign key to %s changes rows by CASCADE or SET NULL, which this server does not log", f.Parent)
		}
	}
}

// addColumn adds one column, with FIRST or AFTER if place allows it.
func (p *tableParser) addColumn(a *alteration, absent, place bool) error {
	c, x, err := p.column()
	if err != nil {
		return err
	}
	at, after, err := p.place(place)
	if err != nil {
		return err
	}
	if p.def.column(c.Name) >= 0 {
		if absent {
			return nil
		}
		return fmt.Errorf("column %s is there already", c.Name)
	}
	p.settleCharset(&c, x)
	p.def.Columns = append(p.def.Columns[:at:at], append([]columnDef{c}, p.def.Columns[at:]...)...)
	p.inline(c.Name, x)
	switch {
	case x.primary:
		a.cannot("column %s is a new primary key", c.Name)
	case x.autoInc:
		a.cannot("the new column %s is AUTO_INCREMENT, so that the rows that are there get values which are not in the log", c.Name)
	case c.Generated:
		a.cannot("the new column %s is generated, so that the rows that are there get values which are not in the log", c.Name)
	case c.NotNull:
		a.cannot("the new column %s is NOT NULL, so that the rows that are there get values which are not in the log", c.Name)
	case x.hasDefault:
		a.cannot("the new column %s has a DEFAULT, so that the rows that are there get values which are not in the log", c.Name)
	}
	t, _ := c.sourceType()
	a.steps = append(a.steps, source.Step{Kind: source.AddColumn, After: after,
		Column: source.Column{Name: c.Name, Type: t, Native: c.native(), Nullable: !c.NotNull}})
	return nil
}

// place reads FIRST or AFTER and returns the index of the column and the name of
// the one before it.
func (p *tableParser) place(allowed bool) (int, string, error) {
	switch {
	case allowed && p.accept("FIRST"):
		return 0, "", nil
	case allowed && p.accept("AFTER"):
		n := p.next()
		i := p.def.column(n.text)
		if i < 0 {
			return 0, "", fmt.Errorf("column %s, after which a column comes, is not known", n.text)
		}
		return i + 1, p.def.Columns[i].Name, nil
	}
	if n := len(p.def.Columns); n > 0 {
		return n, p.def.Columns[n-1].Name, nil
	}
	return 0, "", nil
}

func (p *tableParser) dropClause(a *alteration) error {
	d := p.def
	switch t := p.peek(0); {
	case p.accept("PRIMARY", "KEY"):
		a.cannot("DROP PRIMARY KEY takes its key away")
		p.dropIndex("PRIMARY")
	case t.is("INDEX"), t.is("KEY"):
		p.next()
		exists := p.accept("IF", "EXISTS")
		n := p.next().text
		if strings.EqualFold(n, d.KeyName) {
			a.cannot("index %s, which its key comes from, is dropped", n)
		}
		if !p.dropIndex(n) && !exists {
			a.unsure = "an index was dropped that is not known"
		}
	case p.accept("FOREIGN", "KEY"):
		p.accept("IF", "EXISTS")
		p.dropForeign(p.next().text)
	case p.accept("CHECK"):
		p.next()
	case p.accept("CONSTRAINT"):
		p.accept("IF", "EXISTS")
		n := p.next().text
		if strings.EqualFold(n, d.KeyName) {
			a.cannot("constraint %s, which its key comes from, is dropped", n)
		}
		p.dropForeign(n)
		p.dropIndex(n)
	case t.is("PARTITION"):
		a.cannot("DROP PARTITION removes rows without a word about them in the log")
		p.rest()
	case p.accept("SYSTEM", "VERSIONING"):
		d.Versioned = false
		a.cannot("DROP SYSTEM VERSIONING removes rows without a word about them in the log")
	case t.is("PERIOD"):
		p.skipToComma()
		a.unsure = "a period was dropped"
	default:
		p.accept("COLUMN")
		exists := p.accept("IF", "EXISTS")
		n := p.next()
		p.acceptAny("RESTRICT", "CASCADE")
		i := d.column(n.text)
		if i < 0 {
			if exists {
				return nil
			}
			return fmt.Errorf("column %s, which is dropped, is not known", n.text)
		}
		a.cannot("column %s is dropped", d.Columns[i].Name)
		p.dropColumn(i)
	}
	return nil
}

func (p *tableParser) dropColumn(i int) {
	d := p.def
	name := d.Columns[i].Name
	d.Columns = append(d.Columns[:i:i], d.Columns[i+1:]...)
	kept := d.Indexes[:0:0]
	for _, ix := range d.Indexes {
		parts := ix.Columns[:0:0]
		for _, n := range ix.Columns {
			if !strings.EqualFold(n, name) {
				parts = append(parts, n)
			}
		}
		if len(parts) > 0 || ix.Odd {
			ix.Columns = parts
			kept = append(kept, ix)
		}
	}
	d.Indexes = kept
}

func (p *tableParser) dropIndex(name string) bool {
	for i, ix := range p.def.Indexes {
		if strings.EqualFold(ix.Name, name) {
			p.def.Indexes = append(p.def.Indexes[:i:i], p.def.Indexes[i+1:]...)
			return true
		}
	}
	return false
}

// dropForeign drops a foreign key by name. The names that servers make up are
// not kept, so one without a name may be meant as well: it stays, which at worst
// refuses a table that could be served.
func (p *tableParser) dropForeign(name string) {
	for i, f := range p.def.Foreign {
		if strings.EqualFold(f.Name, name) {
			p.def.Foreign = append(p.def.Foreign[:i:i], p.def.Foreign[i+1:]...)
			return
		}
	}
}

// changeClause is MODIFY and CHANGE. One that leaves the column's values as they
// are (another comment or default) passes.
func (p *tableParser) changeClause(a *alteration, named bool) error {
	d := p.def
	p.accept("COLUMN")
	exists := p.accept("IF", "EXISTS")
	old := p.peek(0).text
	if named {
		p.next()
	}
	c, x, err := p.column()
	if err != nil {
		return err
	}
	i := d.column(old)
	moved := p.peek(0).is("FIRST") || p.peek(0).is("AFTER")
	if i < 0 {
		if _, _, err := p.place(true); err != nil || exists {
			return err
		}
		return fmt.Errorf("column %s, which is changed, is not known", old)
	}
	p.settleCharset(&c, x)
	was := d.Columns[i]
	for _, ix := range d.Indexes {
		if ix.Primary && ix.has(was.Name) {
			c.NotNull = true
		}
	}
	verb := "MODIFY"
	if named {
		verb = "CHANGE"
	}
	switch {
	case x.primary:
		a.cannot("column %s becomes its primary key", c.Name)
	case moved:
		a.cannot("%s moves column %s", verb, was.Name)
	case !was.sameValues(&c):
		a.cannot("%s gives column %s another definition (%s)", verb, was.Name, c.native())
	}
	d.Columns = append(d.Columns[:i:i], d.Columns[i+1:]...)
	if moved {
		if i, _, err = p.place(true); err != nil {
			return err
		}
	}
	d.Columns = append(d.Columns[:i:i], append([]columnDef{c}, d.Columns[i:]...)...)
	p.renameInIndexes(was.Name, c.Name)
	p.inline(c.Name, x)
	return nil
}

func (ix *indexDef) has(column string) bool {
	for _, n := range ix.Columns {
		if strings.EqualFold(n, column) {
			return true
		}
	}
	return false
}

func (p *tableParser) renameInIndexes(from, to string) {
	if from == to {
		return
	}
	for i := range p.def.Indexes {
		ix := &p.def.Indexes[i]
		parts := append([]string(nil), ix.Columns...)
		for j, n := range parts {
			if strings.EqualFold(n, from) {
				parts[j] = to
			}
		}
		ix.Columns = parts
	}
}

func (p *tableParser) renameClause(a *alteration) error {
	switch {
	case p.accept("COLUMN"):
		exists := p.accept("IF", "EXISTS")
		from := p.next().text
		p.accept("TO")
		to := p.next().text
		i := p.def.column(from)
		if i < 0 {
			if exists {
				return nil
			}
			return fmt.Errorf("column %s, which is renamed, is not known", from)
		}
		a.cannot("column %s is renamed", from)
		// Names may be swapped in one statement, which one by one they cannot.
		a.unsure = "columns were renamed"
		p.def.Columns[i].Name = to
		p.renameInIndexes(from, to)
		return nil
	case p.peek(0).is("INDEX"), p.peek(0).is("KEY"):
		p.next()
		p.accept("IF", "EXISTS")
		from := p.next().text
		p.accept("TO")
		to := p.next().text
		for i := range p.def.Indexes {
			if strings.EqualFold(p.def.Indexes[i].Name, from) {
				p.def.Indexes[i].Name = to
			}
		}
		if p.def.KeyName != "" && strings.EqualFold(p.def.KeyName, from) {
			p.def.KeyName = to
		}
		return nil
	}
	p.acceptAny("TO", "AS")
	p.acceptPunct('=')
	n, ok := p.qualified(p.def.Schema)
	if !ok {
		return p.syntaxError("the new name of the table was expected")
	}
	a.rename = &n
	return nil
}

// alterClause is ALTER COLUMN, INDEX, CHECK or CONSTRAINT inside ALTER TABLE:
// defaults and visibility, which change no row.
func (p *tableParser) alterClause() error {
	switch {
	case p.acceptAny("INDEX", "KEY", "CHECK", "CONSTRAINT") != "":
		p.skipToComma()
		return nil
	}
	p.accept("COLUMN")
	p.accept("IF", "EXISTS")
	n := p.next()
	switch {
	case p.accept("SET", "DEFAULT"):
		p.skipToComma()
	case p.accept("DROP", "DEFAULT"):
	case p.accept("SET", "INVISIBLE"):
		p.setInvisible(n.text, true)
	case p.accept("SET", "VISIBLE"):
		p.setInvisible(n.text, false)
	default:
		return p.syntaxError("what happens to column " + n.text + " is not known, it stands")
	}
	return nil
}

func (p *tableParser) setInvisible(column string, invisible bool) {
	if i := p.def.column(column); i >= 0 {
		p.def.Columns[i].Invisible = invisible
	}
}
