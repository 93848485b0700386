package mysql

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// serverFacts are the settings of a server that decide what its statements
// mean. They are part of the history, since the log is read later than written.
type serverFacts struct {
	Version string `json:"version"`
	// LowerCaseTableNames is @@lower_case_table_names.
	LowerCaseTableNames int `json:"lower_case_table_names,omitempty"`
	// Collation is @@collation_server, the default of schemas.
	Collation string `json:"collation"`
	// CascadesLogged: rows changed by a foreign key's CASCADE or SET NULL are in
	// the log (MySQL 9.6 and later with innodb_native_foreign_keys=OFF).
	CascadesLogged bool `json:"cascades_logged,omitempty"`
	// ExplicitTimestamps is @@explicit_defaults_for_timestamp.
	ExplicitTimestamps bool `json:"explicit_timestamps,omitempty"`
}

// history knows every table of the server as it was at the place in the log
// where reading stands: the captured ones to read their rows, the others because
// statements copy and rename them into captured ones. The live catalogue says
// nothing about the rows of a log that was written before.
//
// It is used by one goroutine.
type history struct {
	flavor  Flavor
	match   func(ns, name string) bool
	facts   serverFacts
	tables  map[tableName]*tableDef
	schemas map[string]string // default character sets
	newly   []string
}

// newHistory returns an empty history. match says which tables are captured; the
// server's own never are.
func newHistory(f Flavor, match func(ns, name string) bool) *history {
	users := func(ns, name string) bool { return !systemSchema(ns) && match(ns, name) }
	return &history{flavor: f, match: users, tables: map[tableName]*tableDef{}, schemas: map[string]string{},
		facts: serverFacts{ExplicitTimestamps: true}}
}

// setServer tells the settings; before any table is defined.
func (h *history) setServer(f serverFacts) { h.facts = f }

// id folds a name as the server compares it.
func (h *history) id(schema, name string) tableName {
	if h.facts.LowerCaseTableNames != 0 {
		return tableName{strings.ToLower(schema), strings.ToLower(name)}
	}
	return tableName{schema, name}
}

// stored is a name as the server stores it.
func (h *history) stored(n tableName) tableName {
	if h.facts.LowerCaseTableNames == 1 {
		return tableName{strings.ToLower(n.Schema), strings.ToLower(n.Name)}
	}
	return n
}

// define adds a table from what SHOW CREATE TABLE prints in a session without
// SQL mode. A captured table that cannot be served is kept in the history and
// told by an error wrapping source.ErrCannotServe; a table that is not captured
// never fails.
func (h *history) define(schema, createTable string) error {
	p := h.newParser(createTable, 0)
	d := &tableDef{Schema: schema}
	err := h.readCreate(p, d, ddlEvent{Schema: schema, SQL: createTable})
	if d.Name == "" {
		return fmt.Errorf("read the definition of a table of %s: %w: %w", schema, err, source.ErrCannotServe)
	}
	d.Captured = h.match(d.Schema, d.Name)
	if err != nil {
		d.Unknown = err.Error()
	}
	d.chooseKey()
	h.settle(d, nil)
	h.tables[h.id(d.Schema, d.Name)] = d
	if !d.Captured {
		return nil
	}
	return d.problem()
}

// readCreate reads CREATE TABLE name (…) options.
func (h *history) readCreate(p *parser, d *tableDef, ddl ddlEvent) error {
	p.accept("CREATE")
	p.accept("TEMPORARY")
	if !p.accept("TABLE") {
		return p.syntaxError("CREATE TABLE was expected")
	}
	n, ok := p.qualified(d.Schema)
	if !ok {
		return p.syntaxError("the name of a table was expected")
	}
	d.Name = n.Name
	tp := &tableParser{parser: p, h: h, ddl: ddl, def: d}
	if err := tp.createBody(); err != nil {
		return err
	}
	if p.bad {
		return p.syntaxError("a quote or comment has no end")
	}
	return nil
}

// defineUnknown adds a table that is only known to be there, and why.
func (h *history) defineUnknown(schema, name, why string) {
	h.tables[h.id(schema, name)] = &tableDef{Schema: schema, Name: name, Unknown: why}
}

// farOff is why the tables of schemas without a captured table are not known: only
// their names matter, to tell them from views.
const farOff = "no table of its schema was captured when the initial snapshot was taken"

// setSchemaDefault tells the default collation of a schema.
func (h *history) setSchemaDefault(schema, collation string) {
	if set := charsetOfCollation(collation); set != "" {
		h.schemas[h.id(schema, "").Schema] = set
	}
}

// schemaCharset is the character set of a table that does not name one.
func (h *history) schemaCharset(schema string, ddl ddlEvent) string {
	if set := h.schemas[h.id(schema, "").Schema]; set != "" {
		return set
	}
	return h.serverCharset(ddl)
}

func (h *history) serverCharset(ddl ddlEvent) string {
	if set := charsetOfID(uint64(ddl.ServerCollation)); set != "" {
		return set
	}
	if set := charsetOfCollation(h.facts.Collation); set != "" {
		return set
	}
	return "utf8mb4"
}

// table returns the definition of a table, nil if there is none.
func (h *history) table(schema, name string) *tableDef { return h.tables[h.id(schema, name)] }

// captured returns the captured tables, by name.
func (h *history) captured() []*tableDef {
	var all []*tableDef
	for _, d := range h.tables {
		if d.Captured {
			all = append(all, d)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return a.Schema < b.Schema || a.Schema == b.Schema && a.Name < b.Name
	})
	return all
}

// newlyMatched names the tables that the configuration captures now and did not
// when the history was saved: their rows before this place are not in the lake.
func (h *history) newlyMatched() []string { return h.newly }

// savedHistory is the form of a history in a checkpoint record.
type savedHistory struct {
	Version int               `json:"v"`
	Flavor  Flavor            `json:"flavor"`
	Facts   serverFacts       `json:"server"`
	Schemas map[string]string `json:"schemas,omitempty"`
	Tables  []savedTable      `json:"tables,omitempty"`
	// Far are the names, by schema, of tables of which nothing else is known.
	Far map[string][]string `json:"far,omitempty"`
}

type savedTable struct {
	Schema      string       `json:"schema"`
	Name        string       `json:"name"`
	Captured    bool         `json:"captured,omitempty"`
	Columns     []columnDef  `json:"columns,omitempty"`
	KeyName     string       `json:"key,omitempty"`
	Engine      string       `json:"engine,omitempty"`
	Charset     string       `json:"charset,omitempty"`
	Partitioned bool         `json:"partitioned,omitempty"`
	Versioned   bool         `json:"versioned,omitempty"`
	Sequence    bool         `json:"sequence,omitempty"`
	Indexes     []indexDef   `json:"indexes,omitempty"`
	Foreign     []foreignDef `json:"foreign,omitempty"`
	Unknown     string       `json:"unknown,omitempty"`
}

// encode writes the history as JSON; equal histories give equal bytes.
func (h *history) encode() ([]byte, error) {
	s := savedHistory{Version: 1, Flavor: h.flavor, Facts: h.facts, Schemas: h.schemas}
	for _, d := range h.tables {
		if d.Unknown == farOff && !d.Captured {
			if s.Far == nil {
				s.Far = map[string][]string{}
			}
			s.Far[d.Schema] = append(s.Far[d.Schema], d.Name)
			continue
		}
		s.Tables = append(s.Tables, savedTable{d.Schema, d.Name, d.Captured, d.Columns, d.KeyName, d.Engine, d.Charset,
			d.Partitioned, d.Versioned, d.Sequence, d.Indexes, d.Foreign, d.Unknown})
	}
	sort.Slice(s.Tables, func(i, j int) bool {
		a, b := s.Tables[i], s.Tables[j]
		return a.Schema < b.Schema || a.Schema == b.Schema && a.Name < b.Name
	})
	for _, names := range s.Far {
		sort.Strings(names)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write the schema history: %w", err)
	}
	return b, nil
}

// decodeHistory reads what encode wrote. A table that was captured and that the
// configuration no longer matches stays in the history only.
func decodeHistory(b []byte, match func(ns, name string) bool) (*history, error) {
	var s savedHistory
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read the schema history: %w", err)
	}
	if s.Version != 1 || s.Flavor != FlavorMySQL && s.Flavor != FlavorMariaDB {
		return nil, fmt.Errorf("read the schema history: it has version %d and flavor %d, which this program does not know: %w", s.Version, s.Flavor, source.ErrCannotServe)
	}
	h := newHistory(s.Flavor, match)
	h.facts = s.Facts
	if s.Schemas != nil {
		h.schemas = s.Schemas
	}
	for schema, names := range s.Far {
		for _, name := range names {
			h.defineUnknown(schema, name, farOff)
			if h.match(schema, name) {
				h.newly = append(h.newly, schema+"."+name)
			}
		}
	}
	for _, t := range s.Tables {
		d := &tableDef{Schema: t.Schema, Name: t.Name, Captured: t.Captured, Columns: t.Columns, KeyName: t.KeyName, Engine: t.Engine,
			Charset: t.Charset, Partitioned: t.Partitioned, Versioned: t.Versioned, Sequence: t.Sequence, Indexes: t.Indexes,
			Foreign: t.Foreign, Unknown: t.Unknown}
		matches := h.match(t.Schema, t.Name) && !t.Sequence
		if matches && !t.Captured {
			h.newly = append(h.newly, d.fullName())
		}
		d.Captured = matches && t.Captured
		if !d.keepKey() {
			return nil, fmt.Errorf("read the schema history: table %s has no index %q, which its key comes from", d.fullName(), t.KeyName)
		}
		h.settle(d, nil)
		h.tables[h.id(d.Schema, d.Name)] = d
	}
	return h, nil
}
