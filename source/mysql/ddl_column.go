package mysql

import (
	"strconv"
	"strings"
)

// columnExtra is what a column's definition says beyond the column itself.
type columnExtra struct {
	primary, unique bool
	foreign         *foreignDef
	binary          bool // CHARACTER SET binary
	sized           bool // TEXT(n): Len is n until the character set is known
	// hasDefault: existing rows of a table that the column is added to hold
	// something else than NULL.
	hasDefault bool
	autoInc    bool
	versioned  bool // GENERATED ALWAYS AS ROW START or END
	unread     string
}

// typeAliases gives the names that servers accept for a type their own.
var typeAliases = map[string]string{
	"INTEGER": "int", "INT4": "int", "INT1": "tinyint", "INT2": "smallint", "INT3": "mediumint", "MIDDLEINT": "mediumint",
	"INT8": "bigint", "DEC": "decimal", "NUMERIC": "decimal", "FIXED": "decimal", "FLOAT4": "float", "FLOAT8": "double",
	"CHARACTER": "char", "NCHAR": "char", "NVARCHAR": "varchar", "VARCHARACTER": "varchar",
	"POINT": "geometry", "LINESTRING": "geometry", "POLYGON": "geometry", "MULTIPOINT": "geometry",
	"MULTILINESTRING": "geometry", "MULTIPOLYGON": "geometry", "GEOMETRYCOLLECTION": "geometry", "GEOMCOLLECTION": "geometry",
	// MariaDB's names for those who come from Oracle.
	"VARCHAR2": "varchar", "CLOB": "longtext", "RAW": "varbinary", "NUMBER": "decimal",
}

// column reads a column: name, type, attributes.
func (p *tableParser) column() (columnDef, columnExtra, error) {
	name := p.next()
	if !name.name() && name.kind != tokenNumber {
		return columnDef{}, columnExtra{}, p.syntaxError("the name of a column was expected")
	}
	c := columnDef{Name: name.text}
	var x columnExtra
	if err := p.columnType(&c, &x); err != nil {
		return c, x, err
	}
	if err := p.columnAttributes(&c, &x); err != nil {
		return c, x, err
	}
	return c, x, nil
}

// lengths reads (a) or (a,b) after a type.
func (p *parser) lengths() (a, b int, n int, err error) {
	if !p.acceptPunct('(') {
		return 0, 0, 0, nil
	}
	for {
		t := p.next()
		v, e := strconv.Atoi(t.text)
		if t.punct('*') && n == 0 { // Oracle's NUMBER(*,s)
			v, e = 38, nil
		}
		if e != nil {
			return 0, 0, 0, p.syntaxError("a length was expected")
		}
		if n == 0 {
			a = v
		} else {
			b = v
		}
		n++
		p.acceptAny("CHAR", "BYTE") // Oracle's VARCHAR2(10 CHAR)
		if p.acceptPunct(')') {
			return a, b, n, nil
		}
		if !p.acceptPunct(',') || n == 2 {
			return 0, 0, 0, p.syntaxError("a closing parenthesis was expected")
		}
	}
}

func (p *tableParser) columnType(c *columnDef, x *columnExtra) error {
	t := p.next()
	if t.kind != tokenWord {
		return p.syntaxError("a type was expected")
	}
	oracle := p.mode&modeMariaDBOracle != 0 && p.h.flavor == FlavorMariaDB
	if t.is("NATIONAL") {
		t = p.next()
		c.Charset = "utf8mb3"
	}
	if t.is("NCHAR") || t.is("NVARCHAR") {
		c.Charset = "utf8mb3"
	}
	base := strings.ToLower(t.text)
	if a, ok := typeAliases[t.upper]; ok {
		base = a
	}
	var err error
	var a, b, n int
	switch base {
	case "bool", "boolean":
		c.Base, c.Len = "tinyint", 0
	case "serial":
		c.Base, c.Unsigned, c.NotNull = "bigint", true, true
		x.unique, x.autoInc = true, true
	case "tinyint", "smallint", "mediumint", "int", "bigint":
		c.Base = base
		_, _, _, err = p.lengths()
	case "year":
		c.Base = base
		if a, _, n, err = p.lengths(); n > 0 && a == 2 {
			x.unread = "year(2)"
		}
	case "date":
		if c.Base = base; oracle {
			c.Base = "datetime"
		}
	case "time", "datetime", "timestamp":
		c.Base = base
		c.Len, _, _, err = p.lengths()
	case "decimal":
		c.Base = base
		a, b, n, err = p.lengths()
		switch {
		case t.upper == "NUMBER" && n == 0:
			c.Base = "double"
		case n == 0 || a == 0:
			c.Len, c.Scale = 10, b
		default:
			c.Len, c.Scale = a, b
		}
	case "float":
		c.Base = base
		if a, _, n, err = p.lengths(); n == 1 && a > 24 {
			c.Base = "double"
		}
	case "double", "real":
		c.Base = "double"
		if base == "real" && p.mode&modeRealAsFloat != 0 {
			c.Base = "float"
		}
		p.accept("PRECISION")
		_, _, _, err = p.lengths()
	case "bit":
		c.Base = base
		if c.Len, _, _, err = p.lengths(); c.Len == 0 {
			c.Len = 1
		}
	case "char", "varchar":
		if p.acceptAny("VARYING", "VARCHARACTER", "VARCHAR") != "" {
			base = "varchar"
		}
		c.Base = base
		if c.Len, _, n, err = p.lengths(); n == 0 && base == "char" {
			c.Len = 1
		}
	case "binary", "varbinary":
		c.Base = base
		if c.Len, _, n, err = p.lengths(); n == 0 && base == "binary" {
			c.Len = 1
		}
	case "text", "blob":
		c.Base = base
		a, _, n, err = p.lengths()
		switch {
		case n == 0 && oracle && base == "blob":
			c.Base = "longblob"
		case a == 0 && p.h.flavor == FlavorMariaDB: // as without a length
		case n > 0 && base == "blob":
			c.Base = sizedBlob("blob", a)
		case n > 0:
			c.Len, x.sized = a, true
		}
	case "tinytext", "mediumtext", "longtext", "tinyblob", "mediumblob", "longblob":
		c.Base = base
		_, _, _, err = p.lengths()
	case "long":
		switch {
		case p.accept("VARBINARY"):
			c.Base = "mediumblob"
		default:
			if p.acceptAny("VARCHAR", "VARCHARACTER") == "" && p.acceptAny("CHAR", "CHARACTER") != "" {
				p.accept("VARYING")
			}
			c.Base = "mediumtext"
		}
	case "enum", "set":
		c.Base = base
		err = p.labels(c)
	case "json":
		if c.Base = "json"; p.h.flavor == FlavorMariaDB {
			c.Base, c.Charset = "longtext", "utf8mb4"
		}
	case "vector":
		c.Base = base
		if c.Len, _, n, err = p.lengths(); n == 0 {
			c.Len = 2048
		}
	case "geometry", "uuid", "inet4", "inet6":
		c.Base = base
	default:
		// A type that is not known is kept by name: only a captured table cannot
		// do without knowing it.
		c.Base = base
		if p.peek(0).punct('(') {
			p.skipParens()
		}
	}
	return err
}

// labels reads the values of an enum or a set.
func (p *tableParser) labels(c *columnDef) error {
	if !p.acceptPunct('(') {
		return p.syntaxError("a list of values was expected")
	}
	for {
		t := p.next()
		if t.kind != tokenString {
			return p.syntaxError("a value of " + c.Base + " was expected before")
		}
		c.Labels = append(c.Labels, t.text)
		if p.acceptPunct(')') {
			return nil
		}
		if !p.acceptPunct(',') {
			return p.syntaxError("a comma was expected")
		}
	}
}

func (p *tableParser) columnAttributes(c *columnDef, x *columnExtra) error {
	null := false // NULL was said
	for {
		t := p.peek(0)
		if t.kind == tokenEnd || t.punct(',') || t.punct(')') {
			break
		}
		if t.kind != tokenWord {
			return p.syntaxError("an attribute of column " + c.Name + " was expected")
		}
		// FIRST and AFTER belong to ALTER TABLE.
		if t.upper == "FIRST" || t.upper == "AFTER" {
			break
		}
		p.next()
		switch t.upper {
		case "UNSIGNED":
			c.Unsigned = true
		case "ZEROFILL":
			c.Unsigned = true
		case "SIGNED":
		case "NOT":
			if !p.accept("NULL") {
				return p.syntaxError("NULL was expected")
			}
			c.NotNull = true
		case "NULL":
			null = true
			c.NotNull = false
		case "CHARACTER", "CHARSET", "CHAR":
			if t.upper != "CHARSET" && !p.accept("SET") {
				return p.syntaxError("SET was expected")
			}
			p.acceptPunct('=')
			if set := canonicalCharset(p.next().text); set == "binary" {
				x.binary = true
			} else {
				c.Charset = set
			}
		case "COLLATE":
			p.acceptPunct('=')
			if set := charsetOfCollation(p.next().text); c.Charset == "" && !x.binary {
				if set == "binary" {
					x.binary = true
				} else {
					c.Charset = set
				}
			}
		case "ASCII":
			c.Charset = "latin1"
		case "UNICODE":
			c.Charset = "ucs2"
		case "BYTE":
			x.binary = true
		case "BINARY": // the collation that compares bytes
		case "DEFAULT":
			if err := p.columnDefault(x); err != nil {
				return err
			}
		case "ON":
			if !p.accept("UPDATE") {
				return p.syntaxError("ON UPDATE was expected")
			}
			p.now()
		case "AUTO_INCREMENT":
			x.autoInc = true
		case "SERIAL":
			if !p.accept("DEFAULT", "VALUE") {
				return p.syntaxError("SERIAL DEFAULT VALUE was expected")
			}
			c.NotNull, x.autoInc, x.unique = true, true, true
		case "PRIMARY":
			p.accept("KEY")
			x.primary, c.NotNull = true, true
		case "KEY":
			x.primary, c.NotNull = true, true
		case "UNIQUE":
			p.accept("KEY")
			x.unique = true
		case "COMMENT", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE":
			p.acceptPunct('=')
			p.next()
		case "COLUMN_FORMAT", "STORAGE", "SRID", "REF_SYSTEM_ID":
			p.acceptPunct('=')
			p.next()
		case "VISIBLE":
			c.Invisible = false
		case "INVISIBLE":
			c.Invisible = true
		case "COMPRESSED":
			p.acceptPunct('=')
			if p.peek(0).is("ZLIB") {
				p.next()
			}
			c.Compressed = true
		case "GENERATED":
			if !p.accept("ALWAYS") {
				return p.syntaxError("GENERATED ALWAYS was expected")
			}
		case "AS":
			if p.accept("ROW") {
				p.next()
				x.versioned, c.Generated, c.NotNull = true, true, true
				continue
			}
			if !p.skipParens() {
				return p.syntaxError("the expression of a generated column was expected")
			}
			c.Generated = true
		case "VIRTUAL", "STORED", "PERSISTENT":
		case "REFERENCES":
			p.buf = append([]token{t}, p.buf...)
			f, err := p.references()
			if err != nil {
				return err
			}
			x.foreign = &f
		case "CONSTRAINT":
			if p.peek(0).name() && !p.peek(0).is("CHECK") {
				p.next()
			}
		case "CHECK":
			if !p.skipParens() {
				return p.syntaxError("a condition in parentheses was expected")
			}
			p.accept("NOT")
			p.accept("ENFORCED")
		case "ENFORCED":
		case "WITHOUT", "WITH":
			if !p.accept("SYSTEM", "VERSIONING") {
				return p.syntaxError("SYSTEM VERSIONING was expected")
			}
			x.versioned = x.versioned || t.upper == "WITH"
		default:
			return p.syntaxError("attribute " + t.upper + " of column " + c.Name + " is not known, before what stands")
		}
	}
	if c.Base == "timestamp" && !null && !c.Generated && !p.explicitTimestamps() {
		c.NotNull = true
	}
	return nil
}

func (p *tableParser) explicitTimestamps() bool {
	return p.h.facts.ExplicitTimestamps && !p.ddl.ImplicitTimestamps
}

// now reads CURRENT_TIMESTAMP and its other names, with or without parentheses.
func (p *parser) now() {
	p.next()
	if p.peek(0).punct('(') {
		p.skipParens()
	}
}

// columnDefault reads what comes after DEFAULT.
func (p *tableParser) columnDefault(x *columnExtra) error {
	if p.accept("NULL") {
		return nil
	}
	x.hasDefault = true
	t := p.peek(0)
	if t.punct('(') {
		if !p.skipParens() {
			return p.syntaxError("a closing parenthesis was expected")
		}
		return nil
	}
	if t.punct('-') || t.punct('+') {
		p.next()
	}
	t = p.next()
	if t.kind == tokenEnd {
		return p.syntaxError("a default was expected")
	}
	// Numbers with a fraction or an exponent, x'00', _utf8mb4'x', b'1', function
	// calls, NEXT VALUE FOR s, and sums of such as MariaDB prints them.
	for {
		n := p.peek(0)
		switch {
		case n.punct('('):
			if !p.skipParens() {
				return p.syntaxError("a closing parenthesis was expected")
			}
			n = token{}
		case n.kind == tokenString, n.kind == tokenNumber, n.punct('.'), n.punct('+'), n.punct('-'), n.punct('*'), n.punct('/'),
			n.punct('%'), n.punct('|'), n.punct('&'), n.punct('^'):
			p.next()
		case n.kind == tokenName:
			p.next()
		case n.kind == tokenWord && (t.kind == tokenPunct || t.is("VALUE") || t.is("NEXT") || t.is("FOR")):
			p.next()
		default:
			return nil
		}
		t = n
	}
}
