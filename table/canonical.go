package table

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/iceberg-go"
)

// printer writes rows as canonical JSON: no spaces, columns in schema order,
// decimals as strings with their full scale, times in UTC with microseconds,
// bytes as lower-case hex, floats with the fewest digits that read back the same.
type printer struct {
	schema  *iceberg.Schema
	names   [][]byte // quoted, with the colon
	columns []arrow.Array
	buf     []byte
}

func newPrinter(schema *iceberg.Schema) *printer {
	p := &printer{schema: schema}
	for _, f := range schema.Fields() {
		p.names = append(p.names, append(appendString(nil, f.Name), ':'))
	}
	return p
}

func (p *printer) bind(batch arrow.RecordBatch) error {
	fields := p.schema.Fields()
	if int(batch.NumCols()) != len(fields) {
		return fmt.Errorf("the scan gave %d columns for %d of the schema", batch.NumCols(), len(fields))
	}
	p.columns = p.columns[:0]
	for i, f := range fields {
		if name := batch.ColumnName(i); name != f.Name {
			return fmt.Errorf("the scan gave column %q where the schema has %q", name, f.Name)
		}
		p.columns = append(p.columns, batch.Column(i))
	}
	return nil
}

func (p *printer) row(row int) ([]byte, error) {
	b := append(p.buf[:0], '{')
	for i, f := range p.schema.Fields() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, p.names[i]...)
		var err error
		if b, err = appendValue(b, f.Type, p.columns[i], row); err != nil {
			return nil, fmt.Errorf("column %s: %w", f.Name, err)
		}
	}
	p.buf = append(b, '}')
	return p.buf, nil
}

func appendValue(b []byte, typ iceberg.Type, a arrow.Array, i int) ([]byte, error) {
	if a.IsNull(i) {
		return append(b, "null"...), nil
	}
	if d, ok := a.(*array.Dictionary); ok {
		return appendValue(b, typ, d.Dictionary(), d.GetValueIndex(i))
	}
	switch a := a.(type) {
	case *array.Boolean:
		return strconv.AppendBool(b, a.Value(i)), nil
	case *array.Int32:
		return strconv.AppendInt(b, int64(a.Value(i)), 10), nil
	case *array.Int64:
		return strconv.AppendInt(b, a.Value(i), 10), nil
	case *array.Float32:
		return appendFloat(b, float64(a.Value(i)), 32), nil
	case *array.Float64:
		return appendFloat(b, a.Value(i), 64), nil
	case *array.Decimal128:
		t := a.DataType().(*arrow.Decimal128Type)
		return appendDecimal(b, a.Value(i).BigInt(), int(t.Scale)), nil
	case *array.Decimal64:
		t := a.DataType().(*arrow.Decimal64Type)
		return appendDecimal(b, big.NewInt(int64(a.Value(i))), int(t.Scale)), nil
	case *array.Decimal32:
		t := a.DataType().(*arrow.Decimal32Type)
		return appendDecimal(b, big.NewInt(int64(a.Value(i))), int(t.Scale)), nil
	case *array.String:
		return appendString(b, a.Value(i)), nil
	case *array.LargeString:
		return appendString(b, a.Value(i)), nil
	case *array.StringView:
		return appendString(b, a.Value(i)), nil
	case *extensions.UUIDArray:
		return append(append(append(b, '"'), a.Value(i).String()...), '"'), nil
	case *array.FixedSizeBinary:
		if _, ok := typ.(iceberg.UUIDType); ok {
			h := hex.EncodeToString(a.Value(i))
			return append(b, `"`+h[:8]+"-"+h[8:12]+"-"+h[12:16]+"-"+h[16:20]+"-"+h[20:]+`"`...), nil
		}
		return appendHex(b, a.Value(i)), nil
	case *array.Binary:
		return appendHex(b, a.Value(i)), nil
	case *array.LargeBinary:
		return appendHex(b, a.Value(i)), nil
	case *array.BinaryView:
		return appendHex(b, a.Value(i)), nil
	case *array.Date32:
		return append(appendDay(append(b, '"'), int64(a.Value(i))), '"'), nil
	case *array.Time64:
		return append(appendClock(append(b, '"'), int64(a.Value(i))), '"'), nil
	case *array.Timestamp:
		t := a.DataType().(*arrow.TimestampType)
		us := int64(a.Value(i))
		if t.Unit != arrow.Microsecond {
			return nil, fmt.Errorf("timestamps in %s cannot be printed", t.Unit)
		}
		day := floorDiv(us, 86_400_000_000)
		b = append(appendDay(append(b, '"'), day), 'T')
		b = appendClock(b, us-day*86_400_000_000)
		if _, zoned := typ.(iceberg.TimestampTzType); zoned {
			b = append(b, 'Z')
		}
		return append(b, '"'), nil
	case array.ListLike:
		list, ok := typ.(*iceberg.ListType)
		if _, isMap := a.(*array.Map); isMap || !ok {
			break
		}
		from, to := a.ValueOffsets(i)
		b = append(b, '[')
		for j := from; j < to; j++ {
			if j > from {
				b = append(b, ',')
			}
			var err error
			if b, err = appendValue(b, list.Element, a.ListValues(), int(j)); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case *array.Struct:
		st, ok := typ.(*iceberg.StructType)
		if !ok {
			break
		}
		b = append(b, '{')
		for j, f := range st.FieldList {
			if j > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, f.Name), ':')
			var err error
			if b, err = appendValue(b, f.Type, a.Field(j), i); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("values of type %s (%s) cannot be printed", typ, a.DataType())
}

// appendFloat writes positionally for 1e-4 <= |x| < 1e16, else with an exponent
// of at least two digits; always with a point or an exponent.
func appendFloat(b []byte, x float64, bits int) []byte {
	switch {
	case math.IsNaN(x):
		return append(b, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(b, `"-Infinity"`...)
	}
	if size := math.Abs(x); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.AppendFloat(b, x, 'e', -1, bits)
	}
	start := len(b)
	b = strconv.AppendFloat(b, x, 'f', -1, bits)
	for _, c := range b[start:] {
		if c == '.' {
			return b
		}
	}
	return append(b, ".0"...)
}

func appendDecimal(b []byte, unscaled *big.Int, scale int) []byte {
	b = append(b, '"')
	digits := unscaled.Text(10)
	if digits[0] == '-' {
		b, digits = append(b, '-'), digits[1:]
	}
	for len(digits) <= scale {
		digits = "0" + digits
	}
	b = append(b, digits[:len(digits)-scale]...)
	if scale > 0 {
		b = append(append(b, '.'), digits[len(digits)-scale:]...)
	}
	return append(b, '"')
}

func appendHex(b, value []byte) []byte {
	return append(hex.AppendEncode(append(b, '"'), value), '"')
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// appendDay writes a day since 1970. Years past 9999 get a plus sign, those
// before 0 a minus sign.
func appendDay(b []byte, day int64) []byte {
	year, month, dayOfMonth := time.Unix(day*86400, 0).UTC().Date()
	switch {
	case year > 9999:
		b = append(b, '+')
	case year < 0:
		b, year = append(b, '-'), -year
	}
	b = appendPadded(b, int64(year), 4)
	b = appendPadded(append(b, '-'), int64(month), 2)
	return appendPadded(append(b, '-'), int64(dayOfMonth), 2)
}

// appendClock writes microseconds since midnight.
func appendClock(b []byte, us int64) []byte {
	b = appendPadded(b, us/3_600_000_000, 2)
	b = appendPadded(append(b, ':'), us/60_000_000%60, 2)
	b = appendPadded(append(b, ':'), us/1_000_000%60, 2)
	return appendPadded(append(b, '.'), us%1_000_000, 6)
}

func appendPadded(b []byte, n int64, width int) []byte {
	text := strconv.FormatInt(n, 10)
	for range width - len(text) {
		b = append(b, '0')
	}
	return append(b, text...)
}

// appendString quotes a string. Only the quote, the backslash and what is below
// a space is escaped; encoding/json would escape more.
func appendString(b []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"', c == '\\':
			b = append(b, '\\', c)
		case c == '\b':
			b = append(b, `\b`...)
		case c == '\f':
			b = append(b, `\f`...)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < 0x20:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
