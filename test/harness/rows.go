package harness

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// A column as the server's catalogue describes it.
type column struct {
	name, dataType, columnType string
	key                        bool
}

// columns of a relation in the source's order, invisible ones included.
func (s *Server) columns(t T, schema, relation string) []column {
	t.Helper()
	rows, err := s.DB.QueryContext(t.Context(), `SELECT column_name, data_type, column_type, column_key
		FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position`, schema, relation)
	if err != nil {
		t.Fatalf("columns of %s.%s: %v", schema, relation, err)
	}
	defer rows.Close() //nolint:errcheck // read to its end below
	var out []column
	for rows.Next() {
		var c column
		var key string
		if err := rows.Scan(&c.name, &c.dataType, &c.columnType, &key); err != nil {
			t.Fatalf("columns of %s.%s: %v", schema, relation, err)
		}
		c.dataType, c.columnType, c.key = strings.ToLower(c.dataType), strings.ToLower(c.columnType), key == "PRI"
		out = append(out, c)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("columns of %s.%s: %v", schema, relation, err)
	}
	if len(out) == 0 {
		t.Fatalf("no relation %s.%s", schema, relation)
	}
	return out
}

// Rows are the relation's rows as the source has them now, as canonical JSON
// lines (test/readers/README.md) sorted bytewise: what a reader of its table
// must see. Values come over the binary protocol and are converted by the
// column's declared type alone.
func (s *Server) Rows(t T, schema, relation string) []string {
	t.Helper()
	var out []string
	s.each(t, schema, relation, func(line []byte) { out = append(out, string(line)) })
	slices.Sort(out)
	return out
}

// Digest of the relation's rows as the java reader gives it for a table that is
// too large to sort: their number, and the sum of the first half of each line's
// SHA-256, modulo 2^128.
func (s *Server) Digest(t T, schema, relation string) string {
	t.Helper()
	n, sum, one := 0, new(big.Int), new(big.Int)
	s.each(t, schema, relation, func(line []byte) {
		h := sha256.Sum256(append(line, '\n'))
		n++
		sum.Add(sum, one.SetBytes(h[:16]))
	})
	sum.Mod(sum, one.Lsh(big.NewInt(1), 128))
	return fmt.Sprintf(`{"rows":%d,"sum":"%s"}`, n, sum.Text(16))
}

// each calls f for every row's line, which is valid until f returns.
func (s *Server) each(t T, schema, relation string, f func(line []byte)) {
	t.Helper()
	if s.isPostgres() {
		s.pgEach(t, schema, relation, f)
		return
	}
	cols := s.columns(t, schema, relation)
	names := make([]string, len(cols))
	for i, c := range cols {
		names[i] = Quote(c.name)
	}
	q := fmt.Sprintf("SELECT %s FROM %s.%s WHERE 1 = ?", strings.Join(names, ","), Quote(schema), Quote(relation))
	stmt, err := s.DB.PrepareContext(t.Context(), q)
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	defer stmt.Close() //nolint:errcheck // the connection lives on
	rows, err := stmt.QueryContext(t.Context(), 1)
	if err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	defer rows.Close() //nolint:errcheck // read to its end below
	vals, ptrs := make([]any, len(cols)), make([]any, len(cols))
	for i := range vals {
		ptrs[i] = &vals[i]
	}
	var line []byte
	for rows.Next() {
		if err := rows.Scan(ptrs...); err != nil {
			t.Fatalf("%s.%s: %v", schema, relation, err)
		}
		line = append(line[:0], '{')
		for i, c := range cols {
			if i > 0 {
				line = append(line, ',')
			}
			line = appendString(line, c.name)
			line = append(line, ':')
			if line, err = appendValue(line, c, vals[i]); err != nil {
				t.Fatalf("%s.%s.%s: %v", schema, relation, c.name, err)
			}
		}
		line = append(line, '}')
		f(line)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s.%s: %v", schema, relation, err)
	}
}

func appendValue(b []byte, c column, v any) ([]byte, error) {
	if v == nil {
		return append(b, "null"...), nil
	}
	text := fmt.Sprint(v)
	raw, isBytes := v.([]byte)
	if isBytes {
		text = string(raw)
	}
	unsigned := strings.Contains(c.columnType, "unsigned") || strings.Contains(c.columnType, "zerofill")
	switch c.dataType {
	case "tinyint", "smallint", "mediumint", "int", "year":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		return strconv.AppendInt(b, n, 10), nil
	case "bigint":
		if unsigned {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return nil, err
			}
			return fmt.Appendf(b, `"%d"`, n), nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		return strconv.AppendInt(b, n, 10), nil
	case "bit":
		var n uint64
		for _, x := range raw {
			n = n<<8 | uint64(x)
		}
		switch c.columnType {
		case "bit(1)":
			return strconv.AppendBool(b, n == 1), nil
		case "bit(64)":
			return fmt.Appendf(b, `"%d"`, n), nil
		}
		return strconv.AppendUint(b, n, 10), nil
	case "decimal":
		neg := strings.TrimPrefix(text, "-")
		if strings.Trim(neg, "0.") == "" {
			text = neg // no decimal has a negative zero
		}
		return appendString(b, text), nil
	case "float":
		f, err := strconv.ParseFloat(text, 32)
		if err != nil {
			return nil, err
		}
		return appendFloat(b, f, 32), nil
	case "double":
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		return appendFloat(b, f, 64), nil
	case "date":
		if partialDate(text) {
			return append(b, "null"...), nil
		}
		return appendString(b, text), nil
	case "datetime", "timestamp":
		date, clock, _ := strings.Cut(text, " ")
		if partialDate(date) {
			return append(b, "null"...), nil
		}
		zone := ""
		if c.dataType == "timestamp" {
			zone = "Z"
		}
		return appendString(b, date+"T"+micros(clock)+zone), nil
	case "time":
		n, err := timeMicros(text)
		if err != nil {
			return nil, err
		}
		return strconv.AppendInt(b, n, 10), nil
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "uuid", "inet4", "inet6":
		return appendString(b, text), nil
	case "vector":
		if len(raw)%4 != 0 {
			return nil, fmt.Errorf("a vector of %d bytes", len(raw))
		}
		b = append(b, '[')
		for i := 0; i < len(raw); i += 4 {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendFloat(b, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[i:]))), 32)
		}
		return append(b, ']'), nil
	default: // binary and spatial types
		if !isBytes {
			return nil, fmt.Errorf("unexpected %T for type %s", v, c.columnType)
		}
		b = append(b, '"')
		b = hex.AppendEncode(b, raw)
		return append(b, '"'), nil
	}
}

// partialDate says whether a date has a zero part, which no Iceberg date can hold.
func partialDate(date string) bool {
	return strings.HasSuffix(date, "-00") || strings.Contains(date, "-00-")
}

// micros pads the fraction of a clock time to six digits.
func micros(clock string) string {
	whole, frac, _ := strings.Cut(clock, ".")
	return whole + "." + (frac + "000000")[:6]
}

func timeMicros(text string) (int64, error) {
	rest, neg := strings.CutPrefix(text, "-")
	parts := strings.Split(micros(rest), ":")
	if len(parts) != 3 {
		return 0, fmt.Errorf("time %q", text)
	}
	var n [4]int64
	sec, frac, _ := strings.Cut(parts[2], ".")
	for i, p := range []string{parts[0], parts[1], sec, frac} {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("time %q: %w", text, err)
		}
		n[i] = v
	}
	us := ((n[0]*60+n[1])*60+n[2])*1_000_000 + n[3]
	if neg {
		us = -us
	}
	return us, nil
}

// appendFloat writes the fewest digits that read back the same: positional from
// 1e-4 up to below 1e16, else with an exponent of two digits at least.
func appendFloat(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	case f == 0 && math.Signbit(f):
		return append(b, "-0.0"...)
	case f == 0:
		return append(b, "0.0"...)
	}
	if a := math.Abs(f); a >= 1e-4 && a < 1e16 {
		s := strconv.AppendFloat(nil, f, 'f', -1, bits)
		if !bytes.ContainsRune(s, '.') {
			s = append(s, ".0"...)
		}
		return append(b, s...)
	}
	return strconv.AppendFloat(b, f, 'e', -1, bits)
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			if c < 0x20 {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}

// Diff says how the lines of got differ from want, both sorted: the counts of
// lost and surplus lines and the first few of each; empty if they are equal.
// A line that is there twice and wanted once is one surplus.
func Diff(want, got []string) string {
	var lost, surplus []string
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case j == len(got) || i < len(want) && want[i] < got[j]:
			lost = append(lost, want[i])
			i++
		case i == len(want) || got[j] < want[i]:
			surplus = append(surplus, got[j])
			j++
		default:
			i++
			j++
		}
	}
	if len(lost)+len(surplus) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d rows wanted, %d read: %d lost, %d surplus", len(want), len(got), len(lost), len(surplus))
	for _, part := range []struct {
		sign  string
		lines []string
	}{{"-", lost}, {"+", surplus}} {
		for k, l := range part.lines {
			if k == 5 {
				fmt.Fprintf(&b, "\n%s … and %d more", part.sign, len(part.lines)-k)
				break
			}
			fmt.Fprintf(&b, "\n%s %.600s", part.sign, l)
		}
	}
	return b.String()
}
