package sink

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// overrides is what the configuration says of the shape of one table.
type overrides struct {
	Key    []string          // names of the key columns; nil: the relation's own key
	As     map[string]string // column name → type, as in "decimal(20,0)"
	Append bool              // mode append: no key, and the columns of appendColumns at the end
}

// columnType resolves the type that a column becomes. timeOfDay says that a Time
// is Iceberg's time and not a long.
func (o overrides) columnType(c source.Column) (t source.Type, timeOfDay bool, err error) {
	as, ok := o.As[c.Name]
	if !ok {
		return c.Type, false, nil
	}
	t, timeOfDay, err = parseAs(as)
	if err != nil {
		return t, false, fmt.Errorf("column %s: %w", c.Name, err)
	}
	if !convertible(c.Type, t, timeOfDay) {
		return t, false, fmt.Errorf("column %s: %s (%s) cannot be written as %s", c.Name, c.Native, c.Type, as)
	}
	return t, timeOfDay, nil
}

// parseAs reads the type names that `as:` takes.
func parseAs(s string) (t source.Type, timeOfDay bool, err error) {
	n := strings.ToLower(strings.ReplaceAll(s, " ", ""))
	switch n {
	case "boolean":
		return source.Type{Kind: source.Bool}, false, nil
	case "int":
		return source.Type{Kind: source.Int}, false, nil
	case "long":
		return source.Type{Kind: source.Long}, false, nil
	case "string":
		return source.Type{Kind: source.String}, false, nil
	case "time":
		return source.Type{Kind: source.Time}, true, nil
	case "uuid":
		return source.Type{Kind: source.UUID}, false, nil
	case "binary":
		return source.Type{Kind: source.Binary}, false, nil
	}
	if args, ok := strings.CutPrefix(n, "decimal("); ok {
		if args, ok = strings.CutSuffix(args, ")"); ok {
			p, sc, two := strings.Cut(args, ",")
			precision, err1 := strconv.Atoi(p)
			scale, err2 := 0, error(nil)
			if two {
				scale, err2 = strconv.Atoi(sc)
			}
			if err1 == nil && err2 == nil && precision >= 1 && precision <= 38 && scale >= 0 && scale <= precision {
				return source.Type{Kind: source.Decimal, Precision: precision, Scale: scale}, false, nil
			}
		}
	}
	return t, false, fmt.Errorf("type %q: use boolean, int, long, decimal(p,s), string, time, uuid or binary", s)
}

// icebergType is the type of the lake for values of t; elementID is the field id
// of the elements of a list. It is nil for no type at all.
func icebergType(t source.Type, timeOfDay bool, elementID int) iceberg.Type {
	p := iceberg.PrimitiveTypes
	switch t.Kind {
	case source.Bool:
		return p.Bool
	case source.Int:
		return p.Int32
	case source.Long:
		return p.Int64
	case source.Float:
		return p.Float32
	case source.Double:
		return p.Float64
	case source.Decimal:
		return iceberg.DecimalTypeOf(t.Precision, t.Scale)
	case source.String:
		return p.String
	case source.Binary:
		return p.Binary
	case source.Date:
		return p.Date
	case source.Time:
		if timeOfDay {
			return p.Time
		}
		return p.Int64
	case source.Timestamp:
		return p.Timestamp
	case source.TimestampTZ:
		return p.TimestampTz
	case source.UUID:
		return p.UUID
	case source.FloatList:
		return &iceberg.ListType{ElementID: elementID, Element: p.Float32, ElementRequired: true}
	case source.List:
		e := t.Element()
		if e.IsList() {
			return nil
		}
		if el := icebergType(e, false, 0); el != nil {
			return &iceberg.ListType{ElementID: elementID, Element: el}
		}
	}
	return nil
}

// vectorType is the type of the vectors that fill a column of the lake's type.
// An Iceberg long takes Long and Time vectors alike; it is called Long here.
func vectorType(t iceberg.Type) (vt source.Type, timeOfDay bool, elementID int, err error) {
	switch t := t.(type) {
	case iceberg.BooleanType:
		vt.Kind = source.Bool
	case iceberg.Int32Type:
		vt.Kind = source.Int
	case iceberg.Int64Type:
		vt.Kind = source.Long
	case iceberg.Float32Type:
		vt.Kind = source.Float
	case iceberg.Float64Type:
		vt.Kind = source.Double
	case iceberg.DecimalType:
		vt = source.Type{Kind: source.Decimal, Precision: t.Precision(), Scale: t.Scale()}
	case iceberg.StringType:
		vt.Kind = source.String
	case iceberg.BinaryType:
		vt.Kind = source.Binary
	case iceberg.DateType:
		vt.Kind = source.Date
	case iceberg.TimeType:
		vt.Kind, timeOfDay = source.Time, true
	case iceberg.TimestampType:
		vt.Kind = source.Timestamp
	case iceberg.TimestampTzType:
		vt.Kind = source.TimestampTZ
	case iceberg.UUIDType:
		vt.Kind = source.UUID
	case *iceberg.ListType:
		if _, ok := t.Element.(iceberg.Float32Type); ok && t.ElementRequired {
			return source.Type{Kind: source.FloatList}, false, t.ElementID, nil
		}
		e, timeOfDay, _, err := vectorType(t.Element)
		if err != nil || timeOfDay || e.IsList() || t.ElementRequired {
			return vt, false, 0, fmt.Errorf("no values for %s", t)
		}
		return source.ListOf(e), false, t.ElementID, nil
	default:
		return vt, false, 0, fmt.Errorf("no values for %s", t)
	}
	return vt, timeOfDay, 0, nil
}
