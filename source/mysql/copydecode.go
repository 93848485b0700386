package mysql

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// copyDecoder turns rows of a prepared SELECT into the same typed columns, with
// the same bytes, as rowDecoder makes of the log. It is used by one goroutine.
type copyDecoder struct {
	def     *tableDef
	columns []columnDecoder // one for each expression
	into    []int           // the column that an expression's value goes to
	exprs   []string
	nulls   int
	skipped source.Vector // what has no column; nothing is added to it
}

// newCopyDecoder fails, wrapping source.ErrCannotServe, for a table that cannot
// be served.
func newCopyDecoder(def *tableDef) (*copyDecoder, error) {
	if err := def.problem(); err != nil {
		return nil, err
	}
	if def.Rel == nil {
		return nil, fmt.Errorf("table %s is not captured", def.fullName())
	}
	d := &copyDecoder{def: def}
	add := func(c columnDecoder, into int, expr string) {
		d.columns, d.into, d.exprs = append(d.columns, c), append(d.into, into), append(d.exprs, expr)
	}
	var raw []int // key columns that are there twice
	for i := range def.Columns {
		c := columnDecoder{name: def.Columns[i].Name, inKey: slices.Contains(def.Key, i)}
		expr, err := c.chooseCopy(&def.Columns[i])
		if err != nil {
			return nil, fmt.Errorf("table %s, column %s: %w: %w", def.fullName(), c.name, err, source.ErrCannotServe)
		}
		switch bytes := def.Columns[i].transcoded(); {
		case bytes && c.inKey:
			add(columnDecoder{name: c.name, inKey: true, decode: decodePacked, inner: innerNothing}, -1, expr)
			raw = append(raw, i)
		case bytes:
			add(c, i, storedBytes(expr))
		default:
			add(c, i, expr)
		}
	}
	for _, i := range raw {
		c := columnDecoder{name: def.Columns[i].Name, inKey: true}
		expr, err := c.chooseCopy(&def.Columns[i])
		if err != nil {
			return nil, err
		}
		add(c, i, storedBytes(expr))
	}
	d.nulls = (len(d.columns) + 7 + 2) / 8 // the two first bits are not used
	return d, nil
}

// transcoded tells text whose character set is not UTF-8. The server would
// convert it to UTF-8 when it sends it, with a question mark for what has no
// character. We ask for the stored bytes and convert them as those of the log, so
// that both come out alike or both fail.
func (c *columnDef) transcoded() bool {
	if !c.isText() || c.Base == "enum" || c.Base == "set" {
		return false
	}
	set := lookupCharset(c.Charset)
	return set == nil || !set.UTF8
}

// storedBytes is the bytes of a text column. CAST AS BINARY would do, but makes
// NULL of what is longer than max_allowed_packet.
func storedBytes(expr string) string { return "CONVERT(" + expr + " USING binary)" }

func innerNothing(*columnDecoder, []byte, *source.Vector) error { return nil }

func quoteName(n string) string { return "`" + strings.ReplaceAll(n, "`", "``") + "`" }

// selectList is the list of expressions to SELECT: one for each column, in their
// order, that a later SELECT may compare key columns with; then the stored bytes
// of those key columns whose text is not UTF-8.
func (d *copyDecoder) selectList() string { return strings.Join(d.exprs, ", ") }

// chooseCopy picks the function for a column and gives the expression to select.
func (c *columnDecoder) chooseCopy(def *columnDef) (string, error) {
	if def.isText() {
		set := lookupCharset(def.Charset)
		if set == nil {
			return "", fmt.Errorf("the character set %q is not supported", def.Charset)
		}
		c.text = set.appendTo(c.inKey)
		c.twice = c.inKey && !set.injective()
	}
	c.labels = def.Labels
	expr := quoteName(def.Name)
	switch def.Base {
	case "tinyint":
		c.decode = pick(def.Unsigned, decodeUint8, decodeInt8)
	case "smallint":
		c.decode = pick(def.Unsigned, decodeUint16, decodeInt16)
	case "mediumint", "int":
		c.decode = decodeInt32
		if def.Unsigned && def.Base == "int" {
			c.decode = decodeUint32
		}
	case "bigint":
		c.decode = pick(def.Unsigned, decodeUint64, decodeInt64)
	case "float":
		c.decode = decodeFloat
	case "double":
		c.decode = decodeDouble
	case "year":
		c.decode = decodeUint16
	case "decimal":
		c.digits, c.scale, c.decode = def.Len, def.Scale, decodePacked
		switch {
		case def.Len <= 18:
			c.inner = copyDecimalLong
		case def.Len <= 38:
			c.inner = copyDecimalWide
		default:
			c.inner = copyDecimalText
		}
	case "bit":
		c.decode = decodePacked
		switch {
		case def.Len == 1:
			c.inner = copyBool
		case def.Len < 64:
			c.inner = copyBits
		default:
			c.inner = copyBits64
		}
	case "date":
		c.decode = copyDate
	case "time":
		c.decode = copyTime
	case "datetime", "timestamp":
		c.decode = copyMoment
	case "enum":
		// The number, as the log has it, so that labels come from one place. The OR
		// makes it a BIGINT on MariaDB too.
		expr, c.decode = "CAST("+expr+" AS UNSIGNED)|0", copyEnum
	case "set":
		expr, c.decode = "CAST("+expr+" AS UNSIGNED)|0", copySet
	case "char":
		c.decode, c.inner = decodePacked, innerChar
	case "varchar", "tinytext", "text", "mediumtext", "longtext":
		c.decode, c.inner = decodePacked, innerText
	case "json", "uuid", "inet4", "inet6":
		c.text = appendUTF8
		c.decode, c.inner = decodePacked, innerText
	case "binary":
		c.pad, c.decode, c.inner = def.Len, decodePacked, innerBinary
	case "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry":
		c.decode, c.inner = decodePacked, innerBytes
	case "vector":
		c.decode, c.inner = decodePacked, innerVector
	default:
		return "", fmt.Errorf("the type %s is not supported", def.Base)
	}
	return expr, nil
}

// check compares the types that the server announces for the result with what
// decode expects.
func (d *copyDecoder) check(types []byte) error {
	if len(types) != len(d.columns) {
		return fmt.Errorf("copy table %s: the result has %d columns, not %d: %w", d.def.fullName(), len(types), len(d.columns), source.ErrCannotServe)
	}
	for i, typ := range types {
		if i >= len(d.def.Columns) {
			break // bytes
		}
		if c := &d.def.Columns[i]; !c.fitsResult(typ) {
			return fmt.Errorf("copy table %s, column %s: the result has type %d for %s: was the table altered?: %w",
				d.def.fullName(), c.Name, typ, c.native(), source.ErrCannotServe)
		}
	}
	return nil
}

func (c *columnDef) fitsResult(typ byte) bool {
	switch c.Base {
	case "tinyint":
		return typ == typeTiny
	case "smallint":
		return typ == typeShort
	case "mediumint", "int":
		return typ == typeInt24 || typ == typeLong
	case "bigint", "enum", "set":
		return typ == typeLongLong
	case "float":
		return typ == typeFloat
	case "double":
		return typ == typeDouble
	case "year":
		return typ == typeYear || typ == typeShort
	case "date":
		return typ == typeDate || typ == typeNewDate
	case "time":
		return typ == typeTime || typ == typeOldTime
	case "datetime":
		return typ == typeDatetime || typ == typeOldDatetime
	case "timestamp":
		return typ == typeTimestamp || typ == typeOldTimestamp
	case "decimal":
		return typ == typeNewDecimal
	case "bit":
		return typ == typeBit
	}
	switch typ {
	case typeVarchar, typeVarString, typeString, typeBlob, typeTinyBlob, typeMediumBlob, typeLongBlob, typeGeometry, typeJSON, typeVector:
		return true
	}
	return false
}

// reset empties dst for rows of the initial snapshot.
func (d *copyDecoder) reset(dst *source.Batch) { resetBatch(dst, d.def.Rel, source.Read) }

// decode appends one row: the payload of a binary protocol row packet.
func (d *copyDecoder) decode(row []byte, dst *source.Batch) error {
	if len(row) < 1+d.nulls || row[0] != 0 {
		return fmt.Errorf("copy table %s: a row of the result is damaged", d.def.fullName())
	}
	nulls, pos := row[1:1+d.nulls], 1+d.nulls
	for i := range d.columns {
		c, to := &d.columns[i], d.into[i]
		v := &d.skipped
		if to >= 0 {
			v = &dst.After[to]
		}
		if bit := i + 2; nulls[bit>>3]&(1<<(bit&7)) != 0 {
			if c.inKey {
				return d.wrap(c, errNullKey)
			}
			v.AppendNull()
			continue
		}
		n, err := c.decode(c, row[pos:], v)
		if err != nil {
			return d.wrap(c, err)
		}
		if c.inKey && v.Misfits > 0 {
			return d.wrap(c, misfitInKey(v))
		}
		pos += n
	}
	if pos != len(row) {
		return fmt.Errorf("copy table %s: a row of the result is %d bytes longer than its columns", d.def.fullName(), len(row)-pos)
	}
	dst.Rows++
	return nil
}

func (d *copyDecoder) wrap(c *columnDecoder, err error) error {
	return fmt.Errorf("copy table %s, column %s: %w: %w", d.def.fullName(), c.name, err, source.ErrCannotServe)
}

// decodePacked is any value with the protocol's packed length before it.
func decodePacked(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	n, size, ok := packedLength(b)
	if !ok || n > uint64(len(b)-size) {
		return 0, errValueShort
	}
	end := size + int(n)
	return end, c.inner(c, b[size:end], v)
}

func copyDecimalLong(c *columnDecoder, b []byte, v *source.Vector) error {
	_, lo, negative, err := parseDecimal(b, c.digits, c.scale)
	if err != nil {
		return err
	}
	if negative {
		v.AppendLong(-int64(lo))
	} else {
		v.AppendLong(int64(lo))
	}
	return nil
}

func copyDecimalWide(c *columnDecoder, b []byte, v *source.Vector) error {
	hi, lo, negative, err := parseDecimal(b, c.digits, c.scale)
	if err != nil {
		return err
	}
	v.AppendWide(int128(hi, lo, negative))
	return nil
}

func copyDecimalText(c *columnDecoder, b []byte, v *source.Vector) error {
	out, err := appendCanonicalDecimal(v.Bytes, b, c.scale)
	if err != nil {
		return err
	}
	v.Bytes = out
	endBytes(v)
	return nil
}

func copyBool(_ *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) != 1 {
		return fmt.Errorf("a bit of %d bytes", len(b))
	}
	v.AppendBool(b[0] != 0)
	return nil
}

func copyBits(_ *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) > 8 {
		return fmt.Errorf("a bit value of %d bytes", len(b))
	}
	x := bigEndian(b, len(b))
	if x > math.MaxInt64 {
		return fmt.Errorf("a bit value with too many bits")
	}
	v.AppendLong(int64(x))
	return nil
}

func copyBits64(_ *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) > 8 {
		return fmt.Errorf("a bit value of %d bytes", len(b))
	}
	v.AppendWide(source.Int128{Lo: bigEndian(b, len(b))})
	return nil
}

func copyEnum(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 8 {
		return 0, errValueShort
	}
	return 8, appendEnum(v, c.labels, binary.LittleEndian.Uint64(b))
}

func copySet(c *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 8 {
		return 0, errValueShort
	}
	return 8, appendSet(v, c.labels, binary.LittleEndian.Uint64(b))
}

// Dates and times leave out what is zero at their end; their length comes first.

func copyDate(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 || len(b) < 1+int(b[0]) {
		return 0, errValueShort
	}
	switch n := b[0]; n {
	case 0:
		appendDate(v, 0, 0, 0)
	case 4, 7, 11:
		appendDate(v, int(binary.LittleEndian.Uint16(b[1:])), int(b[3]), int(b[4]))
	default:
		return 0, fmt.Errorf("a date of %d bytes", n)
	}
	return 1 + int(b[0]), nil
}

func copyMoment(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 || len(b) < 1+int(b[0]) {
		return 0, errValueShort
	}
	n := int(b[0])
	var x [11]byte
	switch n {
	case 0, 4, 7, 11:
		copy(x[:], b[1:1+n])
	default:
		return 0, fmt.Errorf("a date and time of %d bytes", n)
	}
	appendMoment(v, int(binary.LittleEndian.Uint16(x[:])), int(x[2]), int(x[3]), int(x[4]), int(x[5]), int(x[6]),
		int(binary.LittleEndian.Uint32(x[7:])))
	return 1 + n, nil
}

func copyTime(_ *columnDecoder, b []byte, v *source.Vector) (int, error) {
	if len(b) < 1 || len(b) < 1+int(b[0]) {
		return 0, errValueShort
	}
	n := int(b[0])
	var x [12]byte // sign, days, hour, minute, second, microseconds
	switch n {
	case 0, 8, 12:
		copy(x[:], b[1:1+n])
	default:
		return 0, fmt.Errorf("a time of %d bytes", n)
	}
	us := (int64(binary.LittleEndian.Uint32(x[1:]))*86400+int64(x[5])*3600+int64(x[6])*60+int64(x[7]))*microsPerSecond +
		int64(binary.LittleEndian.Uint32(x[8:]))
	if x[0] != 0 {
		us = -us
	}
	v.AppendLong(us)
	return 1 + n, nil
}
