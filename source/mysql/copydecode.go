package mysql

import "github.com/lakesyncd/lakesyncd/source"

// copyDecoder turns rows of a prepared SELECT into the same typed columns.
type copyDecoder struct{ def *tableDef }

func newCopyDecoder(def *tableDef) (*copyDecoder, error) { panic("not yet") }

// selectList is the list of column expressions to SELECT.
func (d *copyDecoder) selectList() string { panic("not yet") }

// check compares the types that the server announces for the result with what
// decode expects.
func (d *copyDecoder) check(types []byte) error { panic("not yet") }

// reset empties dst for rows of the initial snapshot.
func (d *copyDecoder) reset(dst *source.Batch) { panic("not yet") }

// decode appends one row: the payload of a binary protocol row packet.
func (d *copyDecoder) decode(rowPacket []byte, dst *source.Batch) error { panic("not yet") }
