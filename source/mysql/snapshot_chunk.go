package mysql

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/lakesyncd/lakesyncd/source"
)

// chunkBytes is about how much one SELECT of the copy reads. Between two of them
// metadata locks are let go, and a sink that has to wait holds up no statement.
const chunkBytes int64 = 4 << 20

// param is a value of a key, as the server sent it in a row: the type, whether
// it is unsigned, and the bytes, which the protocol has alike in both directions.
type param struct {
	typ      byte
	unsigned bool
	value    []byte
}

// readTable reads a table by its key in chunks; one whose key does not sort like
// its values in a comparison is read by one SELECT.
func (k *copier) readTable(ctx context.Context, p *packets, t *copyTable) error {
	c := k.cut.view
	sel := "SELECT " + t.dec.selectList() + " FROM " + ident(t.def.Schema) + "." + ident(t.def.Name)
	keys := chunkKey(t.def)
	var order []string
	for _, i := range keys {
		order = append(order, ident(t.def.Columns[i].Name))
	}
	if keys != nil && t.def.KeyName != "" {
		// The order by a unique key would be made by sorting the table for
		// each chunk.
		sel += " FORCE INDEX (" + ident(t.def.KeyName) + ")"
	}
	// The server's statistics may be old, so the first chunk is a small one.
	rowBytes := max(t.info.rowBytes, 4096)
	chunkBytes := min(chunkBytes, k.o.Memory/4)
	var after []param
	for {
		limit := int64(0)
		sql := sel
		var args []param
		if keys != nil {
			limit = min(max(chunkBytes/rowBytes, 1), 1<<20)
			if after != nil {
				sql += " WHERE " + beyond(order, t.keyText(keys))
				for i := range after {
					args = append(args, after[:i+1]...)
				}
			}
			sql += fmt.Sprintf(" ORDER BY %s LIMIT %d", strings.Join(order, ","), limit)
		}
		if keys != nil && !k.q.room(chunkBytes) {
			return errClosed
		}
		n, size, last, err := k.selectChunk(ctx, p, t, sql, args, keys, limit)
		if err != nil {
			return err
		}
		if err := k.unchanged(ctx, t); err != nil {
			return err
		}
		if err := c.exec(ctx, "ROLLBACK TO SAVEPOINT chunk"); err != nil {
			return err
		}
		if n < limit || limit == 0 {
			return nil
		}
		after = last
		rowBytes = max(size/n, rowBytes/8, 1)
	}
}

// beyond is the condition for keys after one: not a comparison of rows, which
// MySQL does not look up in an index.
func beyond(cols, values []string) string {
	var or []string
	for i := range cols {
		var and []string
		for j := range i {
			and = append(and, cols[j]+" = "+values[j])
		}
		or = append(or, strings.Join(append(and, cols[i]+" > "+values[i]), " AND "))
	}
	return "(" + strings.Join(or, ") OR (") + ")"
}

// chunkKey is the key to read chunks by; nil if there is none that the server
// compares as it sorts, with its index in that order: a sort for each chunk would
// be slow, and heeds only the first max_sort_length bytes of a text.
func chunkKey(def *tableDef) []int {
	for _, ix := range def.Indexes {
		if ix.Unordered && strings.EqualFold(ix.Name, def.KeyName) {
			return nil
		}
	}
	for _, i := range def.Key {
		// The last key of a chunk goes back to the server as UTF-8, which must
		// stand for it alone.
		if c := &def.Columns[i]; c.isText() && !lookupCharset(c.Charset).injective() {
			return nil
		}
		switch keyKind(def.Rel.Columns[i].Native) {
		case "tinyint", "smallint", "mediumint", "int", "integer", "bigint", "decimal", "numeric",
			"char", "varchar", "binary", "varbinary", "date", "datetime", "timestamp", "year":
		default:
			return nil
		}
	}
	return def.Key
}

// keyKind is the first word of a declared type.
func keyKind(native string) string {
	native = strings.ToLower(native)
	if i := strings.IndexFunc(native, func(r rune) bool { return r < 'a' || r > 'z' }); i >= 0 {
		native = native[:i]
	}
	return native
}

// keyText is the placeholder of each key column.
func (t *copyTable) keyText(keys []int) []string {
	out := make([]string, len(keys))
	for i := range keys {
		out[i] = "?"
	}
	return out
}

// unchanged makes sure that the rows just read have the shape of the cut. The
// SELECT's metadata lock is still held, so the answer is of that moment.
func (k *copier) unchanged(ctx context.Context, t *copyTable) error {
	text, err := showCreate(ctx, k.cut.view, t.info)
	if err != nil {
		return err
	}
	if !sameTable(text, k.cut.create[t.info.full()]) {
		return fmt.Errorf("%w: its definition changed during the copy", source.ErrRestart)
	}
	return nil
}

var errChunkEnd = errors.New("the result ends")

// selectChunk runs one SELECT as a prepared statement and passes its rows on as
// they come. It returns how many there were, their bytes, and the key of the
// limit-th.
func (k *copier) selectChunk(ctx context.Context, p *packets, t *copyTable, sql string, args []param, keys []int, limit int64) (n, size int64, last []param, err error) {
	c := k.cut.view
	st, err := c.Prepare(sql)
	if err != nil {
		return 0, 0, nil, plain(err)
	}
	if err := c.command(executeCommand(st.ID, args)); err != nil {
		return 0, 0, nil, err
	}
	p.seq = 1
	fields, err := c.resultFields(p)
	if err != nil {
		return 0, 0, nil, err
	}
	types := make([]byte, len(fields))
	for i, f := range fields {
		types[i] = f.Type
	}
	if err := t.dec.check(types); err != nil {
		return 0, 0, nil, err
	}
	var lastRow []byte
	stop := func(b []byte) error {
		switch {
		case len(b) > 0 && b[0] == gomysql.ERR_HEADER:
			return plain(c.HandleErrorPacket(b))
		case len(b) > 0 && len(b) < 9 && b[0] == gomysql.EOF_HEADER:
			return errChunkEnd
		case len(b) == 0 || b[0] != gomysql.OK_HEADER:
			return errors.New("the server sent something else than a row")
		}
		n++
		size += int64(len(b))
		if n == limit {
			lastRow = append(lastRow[:0], b...)
		}
		return nil
	}
	if err := k.q.feed(p, feedOptions{stop: stop}); err != errChunkEnd {
		return 0, 0, nil, err
	}
	if err := st.Close(); err != nil {
		return 0, 0, nil, plain(err)
	}
	if lastRow != nil {
		last, err = keyOf(lastRow, fields, keys)
	}
	return n, size, last, err
}

// executeCommand is COM_STMT_EXECUTE.
func executeCommand(id uint32, args []param) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{gomysql.COM_STMT_EXECUTE}, id)
	b = append(b, gomysql.CURSOR_TYPE_NO_CURSOR, 1, 0, 0, 0)
	if len(args) == 0 {
		return b
	}
	b = append(b, make([]byte, (len(args)+7)/8)...) // no NULL in a key
	b = append(b, 1)
	for _, a := range args {
		u := byte(0)
		if a.unsigned {
			u = 0x80
		}
		b = append(b, a.typ, u)
	}
	for _, a := range args {
		b = append(b, a.value...)
	}
	return b
}

// resultFields reads what comes before the rows of a result.
func (c *conn) resultFields(p *packets) ([]*gomysql.Field, error) {
	b, err := p.next(nil)
	if err != nil {
		return nil, err
	}
	if len(b) > 0 && b[0] == gomysql.ERR_HEADER {
		return nil, plain(c.HandleErrorPacket(b))
	}
	n, _, err := lenenc(b)
	if err != nil || n == 0 {
		return nil, errors.New("the server sent no result")
	}
	fields := make([]*gomysql.Field, n)
	for i := range fields {
		if b, err = p.next(nil); err != nil {
			return nil, err
		}
		fields[i] = &gomysql.Field{}
		if err := fields[i].Parse(b); err != nil {
			return nil, fmt.Errorf("read column %d of a result: %w", i, err)
		}
	}
	if b, err = p.next(nil); err != nil {
		return nil, err
	}
	if len(b) == 0 || b[0] != gomysql.EOF_HEADER {
		return nil, errors.New("the columns of a result do not end")
	}
	return fields, nil
}

// keyOf takes the key's values out of a row, as parameters.
func keyOf(row []byte, fields []*gomysql.Field, keys []int) ([]param, error) {
	bad := fmt.Errorf("a row of %d bytes is cut short", len(row))
	nulls := (len(fields) + 7 + 2) / 8
	if len(row) < 1+nulls {
		return nil, bad
	}
	bitmap, b := row[1:1+nulls], row[1+nulls:]
	values := make([][]byte, len(fields))
	for i, f := range fields {
		if bitmap[(i+2)/8]&(1<<((i+2)%8)) != 0 {
			continue
		}
		n := 0
		switch f.Type {
		case gomysql.MYSQL_TYPE_TINY:
			n = 1
		case gomysql.MYSQL_TYPE_SHORT, gomysql.MYSQL_TYPE_YEAR:
			n = 2
		case gomysql.MYSQL_TYPE_LONG, gomysql.MYSQL_TYPE_INT24, gomysql.MYSQL_TYPE_FLOAT:
			n = 4
		case gomysql.MYSQL_TYPE_LONGLONG, gomysql.MYSQL_TYPE_DOUBLE:
			n = 8
		case gomysql.MYSQL_TYPE_DATE, gomysql.MYSQL_TYPE_DATETIME, gomysql.MYSQL_TYPE_TIMESTAMP, gomysql.MYSQL_TYPE_TIME:
			if len(b) == 0 {
				return nil, bad
			}
			n = 1 + int(b[0])
		default:
			l, rest, err := lenenc(b)
			if err != nil || l > uint64(len(rest)) {
				return nil, bad
			}
			n = len(b) - len(rest) + int(l)
		}
		if n > len(b) {
			return nil, bad
		}
		values[i], b = b[:n], b[n:]
	}
	out := make([]param, len(keys))
	for i, k := range keys {
		if values[k] == nil {
			return nil, fmt.Errorf("key column %s is NULL", fields[k].Name)
		}
		typ := fields[k].Type
		switch typ {
		case gomysql.MYSQL_TYPE_YEAR:
			typ = gomysql.MYSQL_TYPE_SHORT
		case gomysql.MYSQL_TYPE_INT24:
			typ = gomysql.MYSQL_TYPE_LONG
		case gomysql.MYSQL_TYPE_STRING, gomysql.MYSQL_TYPE_VAR_STRING, gomysql.MYSQL_TYPE_VARCHAR:
			if fields[k].Charset == binaryCharset {
				typ = gomysql.MYSQL_TYPE_BLOB
			}
		}
		out[i] = param{typ: typ, unsigned: fields[k].Flag&gomysql.UNSIGNED_FLAG != 0, value: values[k]}
	}
	return out, nil
}

const binaryCharset = 63
