package mysql

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// Flavor tells the two families of servers apart.
type Flavor uint8

const (
	FlavorMySQL Flavor = iota + 1
	FlavorMariaDB
)

func (f Flavor) String() string {
	if f == FlavorMariaDB {
		return "MariaDB"
	}
	return "MySQL"
}

// tableDef is one table of the server between two statements that change it.
// It is never changed after it was put into a history.
type tableDef struct {
	Schema, Name string
	Columns      []columnDef
	Key          []int            // indexes into Columns; empty: no usable key
	KeyName      string           // the index that Key comes from; PRIMARY for the primary key
	Rel          *source.Relation // nil unless captured and served
	Captured     bool

	Engine      string
	Charset     string // default of columns added later
	Partitioned bool
	Versioned   bool // MariaDB's WITH SYSTEM VERSIONING
	Sequence    bool // MariaDB's SEQUENCE, which the log shows as a table
	Indexes     []indexDef
	Foreign     []foreignDef
	// Unknown says why the shape is not known; such a table cannot be read.
	Unknown string
	// Refuse says why a captured table cannot be served, and the way out.
	Refuse string
}

func (d *tableDef) fullName() string { return d.Schema + "." + d.Name }

// column is the index of a column by name, which servers compare without regard
// to case; -1 if there is none.
func (d *tableDef) column(name string) int {
	for i := range d.Columns {
		if strings.EqualFold(d.Columns[i].Name, name) {
			return i
		}
	}
	return -1
}

func (d *tableDef) clone() *tableDef {
	c := *d
	c.Columns = append([]columnDef(nil), d.Columns...)
	c.Indexes = append([]indexDef(nil), d.Indexes...)
	c.Foreign = append([]foreignDef(nil), d.Foreign...)
	c.Key = append([]int(nil), d.Key...)
	return &c
}

// problem is what keeps a captured table from being served.
func (d *tableDef) problem() error {
	switch {
	case d.Unknown != "":
		return fmt.Errorf("table %s: its definition is not known: %s; leave it out of relations, or start with a new pipeline name for another initial snapshot: %w",
			d.fullName(), d.Unknown, source.ErrCannotServe)
	case d.Refuse != "":
		return fmt.Errorf("table %s: %s: %w", d.fullName(), d.Refuse, source.ErrCannotServe)
	}
	return nil
}

// chooseKey finds the columns that identify a row: those of the primary key,
// else of the first unique index without a nullable column. A prefix of a column
// is as good as the column, since what is unique by it is unique as a whole.
func (d *tableDef) chooseKey() {
	d.Key, d.KeyName = nil, ""
	for _, primary := range []bool{true, false} {
		for _, ix := range d.Indexes {
			if ix.Primary != primary || !ix.Unique {
				continue
			}
			if key := d.keyOf(ix); key != nil {
				d.Key, d.KeyName = key, ix.Name
				return
			}
		}
	}
}

// keyOf is the columns of an index, nil if they cannot be a key.
func (d *tableDef) keyOf(ix indexDef) []int {
	if ix.Odd {
		return nil
	}
	var key []int
	for _, n := range ix.Columns {
		i := d.column(n)
		if i < 0 || !d.Columns[i].NotNull {
			return nil
		}
		switch t, ok := d.Columns[i].sourceType(); {
		case !ok, t.Kind == source.Float, t.Kind == source.Double, t.Kind == source.FloatList:
			return nil
		}
		key = append(key, i)
	}
	return key
}

// keepKey points Key to the same columns after the table changed; false if the
// index is gone.
func (d *tableDef) keepKey() bool {
	if d.KeyName == "" {
		d.Key = nil
		return true
	}
	for _, ix := range d.Indexes {
		if strings.EqualFold(ix.Name, d.KeyName) {
			if key := d.keyOf(ix); key != nil {
				d.Key = key
				return true
			}
		}
	}
	return false
}

// relation makes the shape that the rest of the program sees.
func (d *tableDef) relation() *source.Relation {
	r := &source.Relation{Namespace: d.Schema, Name: d.Name, Key: append([]int(nil), d.Key...), EstimatedRows: -1}
	for i := range d.Columns {
		c := &d.Columns[i]
		t, _ := c.sourceType()
		r.Columns = append(r.Columns, source.Column{Name: c.Name, Type: t, Native: c.native(), Nullable: !c.NotNull})
	}
	switch {
	case len(d.Key) == 0:
		r.Note = "it has no primary key and no unique index of columns that are all NOT NULL and neither FLOAT nor DOUBLE"
	case d.Partitioned:
		r.Note = "it is partitioned, and partitions can be dropped or exchanged without a word about their rows in the log"
	default:
		r.KeyProven = true
	}
	return r
}

// settle ends the making of a definition: it decides whether a captured table can
// be served and gives it its relation. before is the definition that it
// replaces; its relation is kept if the shape is the same.
func (h *history) settle(d, before *tableDef) {
	if d.Sequence {
		d.Captured = false
	}
	d.Rel, d.Refuse = nil, ""
	if !d.Captured || d.Unknown != "" {
		return
	}
	if d.Refuse = h.refusal(d); d.Refuse != "" {
		return
	}
	d.Rel = d.relation()
	if before != nil && before.Rel != nil && sameRelation(before.Rel, d.Rel) {
		d.Rel = before.Rel
	}
}

func (h *history) refusal(d *tableDef) string {
	if d.Versioned {
		return "it is a table WITH SYSTEM VERSIONING, whose log mixes old versions of rows with new ones; leave it out of relations or run ALTER TABLE … DROP SYSTEM VERSIONING before the initial snapshot"
	}
	if why := elsewhere(d.Engine); why != "" {
		return fmt.Sprintf("its engine %s %s; leave the table out of relations or change its engine to InnoDB", d.Engine, why)
	}
	if !h.facts.CascadesLogged {
		for _, f := range d.Foreign {
			if f.Acts {
				return fmt.Sprintf("its foreign key to %s changes rows by CASCADE or SET NULL, which this server does not log; leave the table out of relations or make the foreign key RESTRICT", f.Parent)
			}
		}
	}
	seen := map[string]bool{}
	for i := range d.Columns {
		c := &d.Columns[i]
		if _, ok := c.sourceType(); !ok {
			return fmt.Sprintf("column %s has the type %s, which is not supported; leave the table out of relations or change the column", c.Name, c.Base)
		}
		if c.isText() && lookupCharset(c.Charset) == nil {
			return fmt.Sprintf("column %s has the character set %q, which is not supported; convert the column to utf8mb4", c.Name, c.Charset)
		}
		if c.Generated && h.flavor == FlavorMariaDB && commentVersion(h.facts.Version) >= 110000 {
			return fmt.Sprintf("column %s is generated, and MariaDB from 11 on leaves generated columns out of what it logs of UPDATE and DELETE; leave the table out of relations or drop the column", c.Name)
		}
		if slices.Contains(d.Key, i) && c.ambiguous() {
			return fmt.Sprintf("key column %s has two values with one name, so that two rows could become one; give each value a name of its own or leave the table out of relations", c.Name)
		}
		if seen[c.Name] {
			return fmt.Sprintf("column %s is there twice", c.Name)
		}
		seen[c.Name] = true
	}
	if len(d.Columns) == 0 {
		return "it has no columns"
	}
	return ""
}

// elsewhere tells the engines whose tables have rows that come and go without a
// word in the log, or whose log tells of rows that are not there.
func elsewhere(engine string) string {
	switch strings.ToUpper(engine) {
	case "MRG_MYISAM", "MERGE":
		return "shows rows of other tables, whose changes are logged under their own names"
	case "BLACKHOLE":
		return "keeps no rows"
	case "FEDERATED", "CONNECT", "SPIDER", "SPHINX", "S3", "OQGRAPH":
		return "shows rows that others may change"
	}
	return ""
}

// ambiguous reports whether two values of an enum or a set print alike: equal
// labels, which servers take without strict mode, or an empty one beside the value
// that stands for none.
func (c *columnDef) ambiguous() bool {
	if c.Base != "enum" && c.Base != "set" {
		return false
	}
	seen := map[string]bool{"": true}
	for _, l := range c.Labels {
		if seen[l] {
			return true
		}
		seen[l] = true
	}
	return false
}

func sameRelation(a, b *source.Relation) bool {
	if len(a.Columns) != len(b.Columns) || len(a.Key) != len(b.Key) || a.KeyProven != b.KeyProven || a.Note != b.Note ||
		a.Name != b.Name || a.Namespace != b.Namespace {
		return false
	}
	for i := range a.Columns {
		if a.Columns[i] != b.Columns[i] {
			return false
		}
	}
	for i := range a.Key {
		if a.Key[i] != b.Key[i] {
			return false
		}
	}
	return true
}
