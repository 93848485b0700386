package mysql

import (
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
	Key          []int  // indexes into Columns; empty: no usable key
	KeyName      string // the index that Key comes from; PRIMARY for the primary key
	Rel          *source.Relation
	Captured     bool

	Engine      string
	Charset     string // default of columns added later
	Collation   string
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
