package mysql

import (
	"encoding/binary"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/lakesyncd/lakesyncd/source"
)

// query handles the text of a statement: the marks of a transaction, DDL, and
// what somebody logged as a statement although rows were asked for.
func (a *assembler) query(e event) error {
	if a.group.open && isBegin(e) {
		a.group.transaction = true
		return nil
	}
	d, err := parseQuery(e, a.flavor == FlavorMariaDB, a.inner)
	if err != nil {
		return a.stop("read a statement: %w", err)
	}
	if !a.group.open {
		return a.stop("a statement outside of a transaction: %s", briefSQL(d.SQL))
	}
	word, rest := firstWord(d.SQL)
	switch word {
	case "BEGIN":
		a.group.transaction = true
		return nil
	case "COMMIT":
		return a.commit()
	case "ROLLBACK":
		return a.rollback(rest)
	case "SAVEPOINT":
		if a.group.savepoints == nil {
			a.group.savepoints = map[string]int64{}
		}
		a.group.savepoints[strings.TrimSpace(rest)] = a.group.written()
		return nil
	case "XA":
		return a.xaStatement(rest)
	}
	if !a.group.void {
		if err := a.applyStatement(word, d); err != nil {
			return err
		}
	}
	if a.group.standalone || a.flavor == FlavorMySQL && !a.group.transaction {
		return a.commit()
	}
	return nil
}

// isBegin tells the statement that most transactions of MySQL begin with.
func isBegin(e event) bool {
	if e.typ != replication.QUERY_EVENT || len(e.body) < 13 {
		return false
	}
	at := 13 + int(binary.LittleEndian.Uint16(e.body[11:])) + int(e.body[8]) + 1
	return at <= len(e.body) && string(e.body[at:]) == "BEGIN"
}

func (a *assembler) applyStatement(word string, d ddlEvent) error {
	effects, err := a.hist.apply(d)
	if err != nil {
		return a.located(err)
	}
	switch word {
	case "CREATE", "ALTER", "DROP", "RENAME", "/*":
		// The history may have changed even without an effect on what is
		// captured: tables change their names.
		a.changed()
	}
	for _, f := range effects {
		a.changed()
		if a.group.park != nil {
			return a.stop("a change of %s.%s inside of an XA transaction", f.Def.Schema, f.Def.Name)
		}
		ev := source.Event{Kind: f.Event, Relation: a.state.overlay.of(f.Def.Rel), Change: f.Change}
		if f.Event == source.Truncate {
			ev.Position, ev.Time = a.group.name, a.group.time
		}
		a.out = append(a.out, ev)
	}
	return nil
}

// changed notes that the history is another one than before.
func (a *assembler) changed() {
	a.group.schema, a.state.dirty, a.state.history = true, true, nil
	a.version++
	clear(a.tables)
}

// rollback is the end of a transaction that was undone, or a step back inside of
// one. Servers leave the rows that were undone out of the log where they can;
// where they can't, rows that we have handed out would have to be taken back.
func (a *assembler) rollback(rest string) error {
	word, name := firstWord(rest)
	if word == "WORK" {
		word, name = firstWord(name)
	}
	if word == "TO" {
		if w, n := firstWord(name); w == "SAVEPOINT" {
			name = n
		}
		before, known := a.group.savepoints[strings.TrimSpace(name)]
		if now := a.group.written(); now > 0 && (!known || before != now) {
			return a.stop("ROLLBACK TO %s undoes rows that were logged", strings.TrimSpace(name))
		}
		return nil
	}
	if a.group.written() > 0 {
		return a.stop("ROLLBACK undoes rows that were logged; the transaction mixes tables of engines with and without transactions")
	}
	return a.commit()
}

// written is how many rows, or parked events, the group has so far.
func (g *group) written() int64 {
	if g.park != nil {
		return g.park.events
	}
	return g.ordinal
}

// firstWord is the first keyword of a statement in capitals, behind white space
// and comments, and what follows it. A comment that servers execute is "/*".
func firstWord(s string) (word, rest string) {
	for {
		s = strings.TrimLeft(s, " \t\r\n\f\v;")
		switch {
		case strings.HasPrefix(s, "/*!"), strings.HasPrefix(s, "/*M!"):
			return "/*", s
		case strings.HasPrefix(s, "/*"):
			_, after, ok := strings.Cut(s[2:], "*/")
			if !ok {
				return "", ""
			}
			s = after
			continue
		case strings.HasPrefix(s, "#"), strings.HasPrefix(s, "--") && (len(s) == 2 || s[2] <= ' '):
			_, after, ok := strings.Cut(s, "\n")
			if !ok {
				return "", ""
			}
			s = after
			continue
		}
		n := strings.IndexFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
		if n < 0 {
			n = len(s)
		}
		return strings.ToUpper(s[:n]), s[n:]
	}
}

// briefSQL makes a statement fit for a message.
func briefSQL(sql string) string {
	sql = strings.Join(strings.Fields(sql), " ")
	if len(sql) > 120 {
		return strings.ToValidUTF8(sql[:117], "") + "..."
	}
	return sql
}

// parseQuery takes a query event apart.
func parseQuery(e event, maria bool, limit int64) (ddlEvent, error) {
	b := e.body
	head := 13
	if e.typ == replication.EXECUTE_LOAD_QUERY_EVENT {
		head += 13
	}
	if len(b) < head {
		return ddlEvent{}, errCutShort
	}
	schema, vars := int(b[8]), int(binary.LittleEndian.Uint16(b[11:]))
	if len(b) < head+vars+schema+1 {
		return ddlEvent{}, errCutShort
	}
	d := ddlEvent{Schema: string(b[head+vars : head+vars+schema])}
	if flags2 := statusVars(b[head:head+vars], &d); maria {
		d.ImplicitTimestamps = flags2&mariaExplicitTimestamps == 0
	}
	text := b[head+vars+schema+1:]
	if e.typ == replication.MARIADB_QUERY_COMPRESSED_EVENT {
		var err error
		if text, err = mariaInflate(text, limit); err != nil {
			return ddlEvent{}, err
		}
	}
	d.SQL = string(text)
	return d, nil
}

// Bit of MariaDB's flags2: the session had explicit_defaults_for_timestamp=ON.
const mariaExplicitTimestamps = 1 << 24

// statusVars reads the variables that a statement ran under. Servers order them
// by age, so one that is not known ends what can be read and had to be.
func statusVars(b []byte, d *ddlEvent) (flags2 uint32) {
	for len(b) > 0 {
		code := b[0]
		b = b[1:]
		n := 0
		switch code {
		case 0, 10: // flags, bytes written
			n = 4
		case 1, 9, 17, 129: // sql_mode, map for update, XIDs
			n = 8
		case 2: // catalog, with a zero behind it
			if len(b) > 0 {
				n = 1 + int(b[0]) + 1
			}
		case 3: // auto_increment
			n = 4
		case 4: // charset
			n = 6
		case 5, 6: // time zone, catalog
			if len(b) > 0 {
				n = 1 + int(b[0])
			}
		case 7, 8, 18: // names of days, charset of the database, default of utf8mb4
			n = 2
		case 11: // invoker: two strings
			if len(b) > 0 {
				n = 1 + int(b[0])
			}
			if len(b) > n {
				n += 1 + int(b[n])
			}
		case 12: // schemas in use: the most significant information is not ours
			if len(b) > 0 {
				count := int(b[0])
				n = 1
				for ; count > 0 && count < 254 && n < len(b); count-- {
					for n < len(b) && b[n] != 0 {
						n++
					}
					n++
				}
			}
		case 13, 128: // microseconds
			n = 3
		case 16, 19, 20: // explicit timestamps, primary key required, encryption
			n = 1
		default:
			return flags2
		}
		if n > len(b) {
			return flags2
		}
		switch code {
		case 0:
			flags2 = binary.LittleEndian.Uint32(b)
		case 1:
			d.SQLMode = binary.LittleEndian.Uint64(b)
		case 4:
			d.ClientCollation, d.ServerCollation = binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[4:])
		case 16:
			d.ImplicitTimestamps = b[0] == 0
		case 18:
			d.UTF8MB4Collation = binary.LittleEndian.Uint16(b)
		}
		b = b[n:]
	}
	return flags2
}
