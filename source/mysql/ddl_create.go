package mysql

import (
	"fmt"
	"strconv"
	"strings"
)

// tableName names a table; the two parts are never joined, since both may hold
// dots.
type tableName struct{ Schema, Name string }

func (n tableName) String() string { return n.Schema + "." + n.Name }

// indexDef is one index of a table.
type indexDef struct {
	Name    string   `json:"name"`
	Unique  bool     `json:"unique,omitempty"`
	Primary bool     `json:"primary,omitempty"`
	Columns []string `json:"columns"`
	// Odd: a part is an expression or a period, so that the columns do not tell
	// what is unique.
	Odd bool `json:"odd,omitempty"`
	// Unordered: a part is a prefix or descending, so that the index is not in
	// the order of its columns' values.
	Unordered bool `json:"unordered,omitempty"`
}

// foreignDef is a foreign key of a table.
type foreignDef struct {
	Name   string `json:"name,omitempty"`
	Parent string `json:"parent"`
	// Acts: ON DELETE or ON UPDATE changes rows of this table (CASCADE, SET NULL
	// or SET DEFAULT).
	Acts bool `json:"acts,omitempty"`
}

// tableParser reads the definition of one table.
type tableParser struct {
	*parser
	h   *history
	ddl ddlEvent
	def *tableDef

	// What a column says about its character set waits until the table's default
	// is known.
	extras    []columnExtra // of the columns of a new table
	periods   []string      // columns of periods, which are not null
	statement bool          // CREATE … SELECT as text
}

// syntaxError says that a statement is not understood, and where.
func (p *parser) syntaxError(what string) error {
	t := p.peek(0)
	near := strings.TrimSpace(p.sql[min(t.start, len(p.sql)):])
	if near == "" {
		near = "its end"
	} else {
		near = strconv.Quote(shorten(near, 40))
	}
	return fmt.Errorf("%s at %s", what, near)
}

// shorten cuts a statement for a message.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// createBody reads what comes after the name in CREATE TABLE: columns, indexes,
// options.
func (p *tableParser) createBody() error {
	if !p.acceptPunct('(') {
		return p.syntaxError("a list of columns was expected")
	}
	for {
		if err := p.element(); err != nil {
			return err
		}
		if p.acceptPunct(')') {
			break
		}
		if !p.acceptPunct(',') {
			return p.syntaxError("a comma was expected")
		}
	}
	if err := p.tableOptions(); err != nil {
		return err
	}
	p.finish()
	return nil
}

// element is a column, an index or a constraint.
func (p *tableParser) element() error {
	if p.peek(0).kind == tokenWord {
		if done, err := p.constraint(); done || err != nil {
			return err
		}
		if p.peek(0).is("PERIOD") && p.peek(1).is("FOR") {
			p.next()
			p.next()
			if p.next().is("SYSTEM_TIME") {
				p.def.Versioned = true
			}
			if p.peek(0).punct('(') {
				var period indexDef
				if err := p.indexParts(&period); err != nil {
					return err
				}
				p.periods = append(p.periods, period.Columns...)
			}
			p.skipToComma()
			return nil
		}
	}
	c, extra, err := p.column()
	if err != nil {
		return err
	}
	p.def.Columns = append(p.def.Columns, c)
	p.extras = append(p.extras, extra)
	p.inline(c.Name, extra)
	return nil
}

// inline adds the indexes and foreign keys that a column's own definition names.
func (p *tableParser) inline(column string, extra columnExtra) {
	if extra.primary {
		p.def.Indexes = append(p.def.Indexes, indexDef{Name: "PRIMARY", Unique: true, Primary: true, Columns: []string{column}})
	}
	if extra.unique {
		p.def.Indexes = append(p.def.Indexes, indexDef{Name: column, Unique: true, Columns: []string{column}})
	}
	if extra.foreign != nil {
		p.def.Foreign = append(p.def.Foreign, *extra.foreign)
	}
	if extra.versioned {
		p.def.Versioned = true
	}
}

// constraint reads an index, a key or a check and reports whether there was one.
func (p *tableParser) constraint() (bool, error) {
	t := p.peek(0)
	if t.kind != tokenWord {
		return false, nil
	}
	name := ""
	switch t.upper {
	case "CONSTRAINT":
		p.next()
		p.accept("IF", "NOT", "EXISTS")
		if n := p.peek(0); n.kind == tokenName || n.kind == tokenWord && n.upper != "PRIMARY" && n.upper != "UNIQUE" && n.upper != "FOREIGN" && n.upper != "CHECK" {
			name = p.next().text
		}
	case "PRIMARY", "UNIQUE", "FOREIGN", "CHECK", "KEY", "INDEX", "FULLTEXT", "SPATIAL":
	case "VECTOR":
		// A column may be called vector; an index says INDEX, KEY or its column
		// list next.
		if n := p.peek(1); !n.is("INDEX") && !n.is("KEY") {
			return false, nil
		}
	default:
		return false, nil
	}
	switch {
	case p.accept("PRIMARY"):
		p.accept("KEY")
		return true, p.index(indexDef{Name: "PRIMARY", Unique: true, Primary: true})
	case p.accept("UNIQUE"):
		p.acceptAny("INDEX", "KEY")
		p.accept("IF", "NOT", "EXISTS")
		return true, p.index(indexDef{Name: name, Unique: true})
	case p.acceptAny("FULLTEXT", "SPATIAL", "VECTOR") != "":
		p.acceptAny("INDEX", "KEY")
		p.accept("IF", "NOT", "EXISTS")
		return true, p.index(indexDef{Odd: true})
	case p.acceptAny("INDEX", "KEY") != "":
		p.accept("IF", "NOT", "EXISTS")
		return true, p.index(indexDef{})
	case p.accept("FOREIGN", "KEY"):
		p.accept("IF", "NOT", "EXISTS")
		if p.peek(0).name() {
			p.next()
		}
		if !p.skipParens() {
			return true, p.syntaxError("the columns of a foreign key were expected")
		}
		f, err := p.references()
		if err != nil {
			return true, err
		}
		f.Name = name
		p.def.Foreign = append(p.def.Foreign, f)
		return true, nil
	case p.accept("CHECK"):
		if !p.skipParens() {
			return true, p.syntaxError("a condition in parentheses was expected")
		}
		p.skipToComma()
		return true, nil
	}
	return true, p.syntaxError("a constraint was expected")
}

// index reads an index from its name on.
func (p *tableParser) index(ix indexDef) error {
	if p.peek(0).name() && !p.peek(0).is("USING") && !p.peek(0).is("TYPE") {
		if n := p.next().text; ix.Name == "" {
			ix.Name = n
		} else if !ix.Primary {
			ix.Name = n
		}
	}
	if p.acceptAny("USING", "TYPE") != "" {
		p.next()
	}
	if !p.peek(0).punct('(') {
		return p.syntaxError("the columns of an index were expected")
	}
	if err := p.indexParts(&ix); err != nil {
		return err
	}
	p.skipToComma() // USING, COMMENT, KEY_BLOCK_SIZE, VISIBLE, …
	if ix.Name == "" && len(ix.Columns) > 0 {
		ix.Name = p.freeIndexName(ix.Columns[0])
	}
	p.def.Indexes = append(p.def.Indexes, ix)
	return nil
}

func (p *tableParser) indexParts(ix *indexDef) error {
	p.next()
	for {
		t := p.peek(0)
		switch {
		case t.punct('('):
			ix.Odd = true
			if !p.skipParens() {
				return p.syntaxError("an expression was expected")
			}
		case t.name():
			p.next()
			ix.Columns = append(ix.Columns, t.text)
			if p.peek(0).punct('(') {
				p.skipParens() // a prefix: what is unique by it is unique as a whole
				ix.Unordered = true
			}
			if p.accept("WITHOUT", "OVERLAPS") {
				ix.Odd = true
			}
		default:
			return p.syntaxError("a column of an index was expected")
		}
		if p.acceptAny("ASC", "DESC") == "DESC" {
			ix.Unordered = true
		}
		if p.acceptPunct(')') {
			return nil
		}
		if !p.acceptPunct(',') {
			return p.syntaxError("a comma was expected")
		}
	}
}

// freeIndexName is the name that the server gives an index without one.
func (p *tableParser) freeIndexName(column string) string {
	taken := func(n string) bool {
		for _, ix := range p.def.Indexes {
			if strings.EqualFold(ix.Name, n) {
				return true
			}
		}
		return false
	}
	name := column
	for i := 2; taken(name); i++ {
		name = column + "_" + strconv.Itoa(i)
	}
	return name
}

func (p *tableParser) references() (foreignDef, error) {
	if !p.accept("REFERENCES") {
		return foreignDef{}, p.syntaxError("REFERENCES was expected")
	}
	parent, ok := p.qualified(p.def.Schema)
	if !ok {
		return foreignDef{}, p.syntaxError("the name of a table was expected")
	}
	f := foreignDef{Parent: parent.String()}
	if p.peek(0).punct('(') {
		p.skipParens()
	}
	for {
		switch {
		case p.accept("MATCH"):
			p.next()
		case p.accept("ON"):
			p.next() // DELETE or UPDATE
			switch {
			case p.accept("CASCADE"), p.accept("SET", "NULL"), p.accept("SET", "DEFAULT"):
				f.Acts = true
			case p.accept("NO", "ACTION"), p.accept("RESTRICT"):
			default:
				return f, p.syntaxError("the action of a foreign key was expected")
			}
		default:
			return f, nil
		}
	}
}

// tableOptions reads everything after the list of columns.
func (p *tableParser) tableOptions() error {
	value := func() string {
		p.acceptPunct('=')
		return p.next().text
	}
	for !p.end() {
		t := p.next()
		if t.punct('(') {
			p.buf = append([]token{t}, p.buf...)
			if !p.skipParens() {
				return p.syntaxError("a closing parenthesis was expected")
			}
			continue
		}
		if t.kind != tokenWord {
			continue
		}
		switch t.upper {
		case "CHARACTER", "CHAR":
			if p.accept("SET") {
				p.def.Charset = canonicalCharset(value())
			}
		case "CHARSET":
			p.def.Charset = canonicalCharset(value())
		case "COLLATE":
			if set := charsetOfCollation(value()); p.def.Charset == "" {
				p.def.Charset = set
			}
		case "ENGINE", "TYPE":
			p.def.Engine = value()
		case "SEQUENCE":
			p.def.Sequence = value() != "0"
		case "UNION":
			p.acceptPunct('=')
			p.skipParens()
		case "WITH":
			if p.accept("SYSTEM", "VERSIONING") {
				p.def.Versioned = true
			} else {
				p.statement = true
			}
		case "PARTITION":
			p.def.Partitioned = true
		case "START":
			p.accept("TRANSACTION")
		case "SELECT", "AS", "VALUES", "TABLE":
			p.statement = true
		case "COMMENT", "CONNECTION", "DATA", "INDEX", "PASSWORD", "COMPRESSION", "ENCRYPTION", "TABLESPACE":
			p.acceptAny("DIRECTORY")
			if p.peek(0).punct('=') || p.peek(0).kind == tokenString {
				value()
			}
		}
	}
	return nil
}

// finish settles what depends on the whole definition: character sets, and the
// columns of the primary key, which are not null.
func (p *tableParser) finish() {
	d := p.def
	if d.Charset == "" {
		d.Charset = p.h.schemaCharset(d.Schema, p.ddl)
	}
	for i := range d.Columns {
		p.settleCharset(&d.Columns[i], p.extras[i])
	}
	for _, ix := range d.Indexes {
		if !ix.Primary {
			continue
		}
		p.notNull(ix.Columns)
	}
	p.notNull(p.periods)
	if d.Engine == "" {
		d.Engine = "InnoDB"
	}
}

// settleCharset gives a text column without a character set the table's, and
// turns text of the binary set into bytes, as the server does.
func (p *tableParser) settleCharset(c *columnDef, x columnExtra) {
	if !c.isText() {
		return
	}
	if c.Charset == "" {
		c.Charset = p.def.Charset
	}
	if x.binary {
		c.Charset = "binary"
	}
	set := lookupCharset(c.Charset)
	if c.Charset == "binary" {
		switch c.Base {
		case "char":
			c.Base, c.Charset = "binary", ""
		case "varchar":
			c.Base, c.Charset = "varbinary", ""
		case "tinytext", "text", "mediumtext", "longtext":
			c.Base, c.Charset = strings.TrimSuffix(c.Base, "text")+"blob", ""
		}
	}
	maxLen := 1
	if set != nil {
		maxLen = set.MaxLen
	}
	switch c.Base {
	case "text", "blob":
		if x.sized { // TEXT(n) is the smallest type that holds n characters
			c.Base = sizedBlob(c.Base, c.Len*maxLen)
			c.Len = 0
		}
	case "varchar":
		if c.Len*maxLen > 65535 { // without strict mode the server makes it a TEXT
			c.Base = sizedBlob("text", c.Len*maxLen)
			c.Len = 0
		}
	case "enum", "set":
		if c.Charset != "binary" {
			for i, l := range c.Labels {
				c.Labels[i] = strings.TrimRight(l, " ")
			}
		}
	}
}

func sizedBlob(base string, bytes int) string {
	switch {
	case bytes < 1<<8:
		return "tiny" + base
	case bytes < 1<<16:
		return base
	case bytes < 1<<24:
		return "medium" + base
	}
	return "long" + base
}
