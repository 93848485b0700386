package source

import "fmt"

// Kind is a type of value that every source maps its own types to. Each has one
// Iceberg type; sink/types.go holds that table.
type Kind uint8

const (
	Bool        Kind = iota + 1
	Int              // 32 bits, signed
	Long             // 64 bits, signed
	Float            // IEEE binary32
	Double           // IEEE binary64
	Decimal          // Precision 1 to 38, Scale 0 to Precision
	String           // valid UTF-8
	Binary           // bytes
	Date             // days since 1970-01-01
	Time             // signed microseconds; not a time of day (MySQL's TIME reaches ±838 hours)
	Timestamp        // microseconds since 1970-01-01T00:00:00, without a zone
	TimestampTZ      // microseconds since 1970-01-01T00:00:00Z
	UUID             // 16 bytes
	FloatList        // a list of binary32 (MySQL's VECTOR)
	List             // a list of values of Elem, which may be NULL (PostgreSQL's arrays)
)

var kindNames = [...]string{"", "boolean", "int", "long", "float", "double", "decimal", "string", "binary", "date", "time", "timestamp", "timestamptz", "uuid", "list<float>", "list"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Type is a Kind with its parameters.
type Type struct {
	Kind      Kind `json:"kind"`
	Precision int  `json:"precision,omitempty"` // Decimal: digits in all
	Scale     int  `json:"scale,omitempty"`     // Decimal: digits after the point
	// Elem is the kind of a List's elements, which are no lists; of decimals
	// Precision and Scale are theirs.
	Elem Kind `json:"elem,omitempty"`
}

// IsList reports whether values are lists.
func (t Type) IsList() bool { return t.Kind == List || t.Kind == FloatList }

// Element is the type of a List's elements.
func (t Type) Element() Type { return Type{Kind: t.Elem, Precision: t.Precision, Scale: t.Scale} }

// ListOf is the type of lists of t.
func ListOf(t Type) Type {
	return Type{Kind: List, Elem: t.Kind, Precision: t.Precision, Scale: t.Scale}
}

func (t Type) String() string {
	switch t.Kind {
	case List:
		return "list<" + t.Element().String() + ">"
	case Decimal:
		return fmt.Sprintf("decimal(%d,%d)", t.Precision, t.Scale)
	}
	return t.Kind.String()
}

// Column is one column of a relation at some moment.
type Column struct {
	Name     string
	Type     Type
	Native   string // the declared type as the server writes it, for plan and messages
	Nullable bool
}

// Relation is the shape of a source table between two schema changes. It is
// never changed: a schema change makes a new one, so a pointer to it names a
// shape and can be compared.
type Relation struct {
	Namespace, Name string
	Columns         []Column
	// Key holds indexes into Columns: the primary key, else a unique key of
	// columns that are not null. Empty: no usable key.
	Key []int
	// KeyProven: the server guarantees that a logged INSERT's key did not
	// exist before and that every removal of a row is in the log. Only then
	// may an insert go without an equality delete.
	KeyProven bool
	// Note says why KeyProven is false, in the user's words.
	Note string
	// EstimatedRows is the server's guess, for plan and progress; -1: unknown.
	EstimatedRows int64
}

// FullName is namespace.name, for messages, config matching and status.
func (r *Relation) FullName() string { return r.Namespace + "." + r.Name }
