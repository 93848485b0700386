package mysql

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// fits says whether a type of the log is one that a column of this definition
// has, with that metadata.
func (c *columnDef) fits(typ byte, meta uint16, flavor Flavor) bool {
	maxLen := 1
	if set := lookupCharset(c.Charset); c.isText() && set != nil {
		maxLen = set.MaxLen
	}
	real := byte(meta >> 8)
	switch c.Base {
	case "tinyint":
		return typ == typeTiny
	case "smallint":
		return typ == typeShort
	case "mediumint":
		return typ == typeInt24
	case "int":
		return typ == typeLong
	case "bigint":
		return typ == typeLongLong
	case "float":
		return typ == typeFloat && meta == 4
	case "double":
		return typ == typeDouble && meta == 8
	case "year":
		return typ == typeYear
	case "decimal":
		return typ == typeNewDecimal && meta == uint16(c.Len)<<8|uint16(c.Scale)
	case "bit":
		return typ == typeBit && meta == uint16(c.Len/8)<<8|uint16(c.Len%8)
	case "date":
		return typ == typeDate
	case "time":
		return typ == typeTime && meta == uint16(c.Len)
	case "datetime":
		return typ == typeDatetime && meta == uint16(c.Len)
	case "timestamp":
		return typ == typeTimestamp && meta == uint16(c.Len)
	case "enum":
		want := 1
		if len(c.Labels) > 255 {
			want = 2
		}
		return typ == typeString && real == typeEnum && int(meta&0xFF) == want
	case "set":
		want := (len(c.Labels) + 7) / 8
		if want > 4 {
			want = 8
		}
		return typ == typeString && real == typeSet && int(meta&0xFF) == want
	case "char", "binary":
		return typ == typeString && real|0x30 == typeString && charBytes(meta) == c.Len*maxLen
	case "uuid", "inet6":
		return typ == typeString && real|0x30 == typeString && charBytes(meta) == 16
	case "inet4":
		return typ == typeString && real|0x30 == typeString && charBytes(meta) == 4
	case "varchar", "varbinary":
		if c.Compressed { // one byte more says how
			return typ == typeVarCompressed && int(meta) == c.Len*maxLen+1
		}
		return typ == typeVarchar && int(meta) == c.Len*maxLen
	case "tinytext", "tinyblob":
		return c.fitsBlob(typ, meta, 1)
	case "text", "blob":
		return c.fitsBlob(typ, meta, 2)
	case "mediumtext", "mediumblob":
		return c.fitsBlob(typ, meta, 3)
	case "longtext", "longblob":
		return c.fitsBlob(typ, meta, 4)
	case "json":
		return typ == typeJSON && meta == 4
	case "geometry":
		return typ == typeGeometry && meta == 4
	case "vector":
		if flavor == FlavorMariaDB {
			return typ == typeVarchar && int(meta) == 4*c.Len
		}
		return typ == typeVector && meta == 4
	}
	return false
}

func (c *columnDef) fitsBlob(typ byte, meta uint16, prefix uint16) bool {
	if c.Compressed {
		return typ == typeBlobCompressed && meta == prefix
	}
	return typ == typeBlob && meta == prefix
}

var errNotFull = errors.New("the log has no column names: a session or the server set binlog_row_metadata to something else than FULL; set it to FULL everywhere, then start again with a new pipeline name for another initial snapshot")

// hiddenBytes is the length of a hidden column's value.
const hiddenBytes = 8

// hiddenColumns counts the columns behind the first n that MariaDB adds for a
// unique index of a BLOB, whose hash they hold. No definition shows them.
func (t *tableMap) hiddenColumns(n int, flavor Flavor) int {
	if flavor != FlavorMariaDB || len(t.names) != len(t.types) {
		return 0
	}
	hidden := 0
	for i := n; i < len(t.types); i++ {
		if t.types[i] != typeLongLong || !strings.HasPrefix(t.names[i], "DB_ROW_HASH_") {
			return 0
		}
		hidden++
	}
	return hidden
}

// check compares what the log says of a table with its definition. Each
// difference means that rows would be read by a definition that is not theirs.
func (t *tableMap) check(def *tableDef, flavor Flavor) error {
	const other = "the log says another thing of the table than its history: "
	if !t.full {
		return errNotFull
	}
	if len(t.types) != len(def.Columns)+t.hiddenColumns(len(def.Columns), flavor) {
		return fmt.Errorf(other+"it has %d columns there and %d here", len(t.types), len(def.Columns))
	}
	if len(t.names) != len(t.types) {
		return fmt.Errorf(other+"it has %d names for %d columns", len(t.names), len(t.types))
	}
	m := metaReader{t: t, flavor: flavor, vectors: t.countsVectors(def)}
	for i := range def.Columns {
		c := &def.Columns[i]
		if t.names[i] != c.Name {
			return fmt.Errorf(other+"column %d is %s there and %s here", i+1, t.names[i], c.Name)
		}
		if t.types[i] == typeOldTime || t.types[i] == typeOldDatetime || t.types[i] == typeOldTimestamp {
			return fmt.Errorf("column %s has the storage format of MariaDB before 10.1.2 (mysql56_temporal_format=OFF), which is not supported; set it to ON and run ALTER TABLE … FORCE, then start again with a new pipeline name for another initial snapshot", c.Name)
		}
		if !c.fits(t.types[i], t.meta[i], flavor) {
			return fmt.Errorf(other+"column %s is %s here and has type %d with metadata %#x there", c.Name, c.native(), t.types[i], t.meta[i])
		}
		if t.notNull[i] != c.NotNull {
			return fmt.Errorf(other+"column %s may be NULL in one of them only", c.Name)
		}
		if err := m.column(c); err != nil {
			return fmt.Errorf(other+"%w", err)
		}
	}
	return t.checkKey(def)
}

func (t *tableMap) checkKey(def *tableDef) error {
	var want []string
	for _, ix := range def.Indexes {
		if ix.Primary && !ix.Odd {
			want = ix.Columns
		}
		if ix.Primary && ix.Odd {
			return nil
		}
	}
	var have []string
	for _, k := range t.key {
		if k >= uint64(len(t.names)) {
			return errTableMap
		}
		have = append(have, t.names[k])
	}
	if want == nil && def.uniqueBy(have) {
		return nil // MySQL takes it for the primary key where the engine wants one
	}
	if len(have) != len(want) {
		return fmt.Errorf("the log says another thing of the table than its history: its primary key is (%s) there and (%s) here",
			strings.Join(have, ", "), strings.Join(want, ", "))
	}
	for i := range want {
		if !strings.EqualFold(want[i], have[i]) {
			return fmt.Errorf("the log says another thing of the table than its history: its primary key is (%s) there and (%s) here",
				strings.Join(have, ", "), strings.Join(want, ", "))
		}
	}
	return nil
}

// uniqueBy reports whether these columns, in this order, are those of a unique
// index without NULL.
func (d *tableDef) uniqueBy(columns []string) bool {
	for _, ix := range d.Indexes {
		if ix.Unique && !ix.Odd && slices.EqualFunc(ix.Columns, columns, strings.EqualFold) && !slices.ContainsFunc(columns, func(n string) bool {
			i := d.column(n)
			return i < 0 || !d.Columns[i].NotNull
		}) {
			return true
		}
	}
	return false
}

// metaReader walks over the lists of the full metadata, which have entries for
// the columns of some types only.
type metaReader struct {
	t                                *tableMap
	flavor                           Flavor
	vectors                          bool
	numeric, text, labels, enum, set int
}

func (m *metaReader) column(c *columnDef) error {
	switch c.Base {
	case "tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "year":
		if m.numeric >= len(m.t.unsigned) {
			return fmt.Errorf("the sign of column %s is not told", c.Name)
		}
		unsigned := m.t.unsigned[m.numeric]
		m.numeric++
		if unsigned != c.Unsigned && c.Base != "year" {
			return fmt.Errorf("column %s is unsigned in one of them only", c.Name)
		}
	case "enum", "set":
		if err := m.charset(c, &m.t.enums, &m.labels); err != nil {
			return err
		}
		return m.labelsOf(c)
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext":
		return m.charset(c, &m.t.collations, &m.text)
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		b := *c
		b.Charset = "binary"
		return m.charset(&b, &m.t.collations, &m.text)
	case "uuid", "inet4", "inet6":
		m.text++
	case "geometry":
		if m.flavor == FlavorMariaDB {
			m.text++
		}
	case "vector":
		if m.vectors {
			m.text++
		}
	}
	return nil
}

// countsVectors reports whether vectors have a character set in the log's list.
// MySQL 9.7 and MariaDB give them one; a list that is shorter by just them
// doesn't.
func (t *tableMap) countsVectors(def *tableDef) bool {
	texts := 0
	for i := range def.Columns {
		switch def.Columns[i].Base {
		case "char", "varchar", "tinytext", "text", "mediumtext", "longtext",
			"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
			texts++
		}
	}
	return t.collations.byOrder == nil || len(t.collations.byOrder) != texts
}

func (m *metaReader) charset(c *columnDef, list *collationMeta, at *int) error {
	id, ok := list.of(*at)
	*at++
	if !ok {
		return fmt.Errorf("the character set of column %s is not told", c.Name)
	}
	if set := charsetOfID(id); set != c.Charset {
		return fmt.Errorf("column %s has the collation %d (%s) there and the character set %s here", c.Name, id, set, c.Charset)
	}
	return nil
}

func (m *metaReader) labelsOf(c *columnDef) error {
	lists, at := m.t.labels, &m.enum
	if c.Base == "set" {
		lists, at = m.t.setLabels, &m.set
	}
	if *at >= len(lists) {
		return fmt.Errorf("the values of column %s are not told", c.Name)
	}
	have := lists[*at]
	*at++
	if len(have) != len(c.Labels) {
		return fmt.Errorf("column %s has %d values there and %d here", c.Name, len(have), len(c.Labels))
	}
	set := lookupCharset(c.Charset)
	for i, l := range have {
		text, ok := l, true
		if set != nil && set.Append != nil && !set.UTF8 {
			text, ok = set.Append(nil, l)
		}
		if !ok || string(text) != c.Labels[i] {
			return fmt.Errorf("value %d of column %s differs", i+1, c.Name)
		}
	}
	return nil
}
