package mysql

import "github.com/lakesyncd/lakesyncd/source"

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

// apply brings the history past a statement and says what it does to captured
// relations. An error wraps source.ErrCannotServe and leaves the history as it
// was.
func (h *history) apply(d ddlEvent) ([]ddlEffect, error) { panic("not yet") }
