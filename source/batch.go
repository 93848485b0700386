package source

import (
	"math"
	"time"
)

// Op is what happened to the rows of a batch.
type Op uint8

const (
	Read   Op = iota + 1 // a row of the initial snapshot
	Insert               // After
	Update               // Before and After, row by row
	Delete               // Before
)

// Batch is a run of rows of one relation with one operation, in log order, all
// of one transaction. A MySQL rows event becomes one batch.
type Batch struct {
	Relation *Relation
	Op       Op
	Rows     int
	// Before and After have a vector for each column of Relation, in its
	// order; one that Op does not use is empty. Before may hold only the key
	// columns when KeyOnly is set: the other vectors are then of length 0.
	Before, After []Vector
	KeyOnly       bool
	// Position names the transaction (not a place to resume at), Ordinal is
	// the number of the first row within it, Time its commit time.
	Position Position
	Ordinal  int64
	Time     time.Time
}

// Int128 is a signed 128-bit integer, the unscaled value of a wide decimal.
type Int128 struct {
	Hi int64
	Lo uint64
}

// Vector holds the values of one column of a batch: one byte of validity for
// each row and, by the type, one slice of fixed width or an arena of bytes.
// A null holds a zero slot, so that row n is at index n everywhere.
type Vector struct {
	Type  Type
	Valid []byte // 1: a value, 0: NULL; it is the definition level as Parquet wants it

	Bools   []byte    // Bool: 0 or 1
	Ints    []int32   // Int, Date
	Longs   []int64   // Long, Time, Timestamp, TimestampTZ, Decimal up to 18 digits (unscaled)
	Wides   []Int128  // Decimal of 19 to 38 digits (unscaled)
	Floats  []float32 // Float
	Doubles []float64 // Double
	Ends    []uint32  // String, Binary, UUID, FloatList, List: row i is Bytes[Ends[i-1]:Ends[i]]
	Bytes   []byte    // FloatList: little-endian binary32 one after the other; List: see list.go

	// Misfits counts values of this vector that the lake cannot hold and that
	// therefore became NULL (a zero date, for example); Misfit describes the
	// first of them.
	Misfits int
	Misfit  string

	// Unchanged lists the rows of an Update's After whose value is what it was
	// before and was not sent (PostgreSQL does so with values that it stores out
	// of line). They look like NULL here, and must not be written as such.
	Unchanged []uint32
}

// Store says which slice of a Vector a type uses.
type Store uint8

const (
	StoreBools Store = iota + 1
	StoreInts
	StoreLongs
	StoreWides
	StoreFloats
	StoreDoubles
	StoreBytes
)

// Store returns the slice that holds values of t.
func (t Type) Store() Store {
	switch t.Kind {
	case Bool:
		return StoreBools
	case Int, Date:
		return StoreInts
	case Long, Time, Timestamp, TimestampTZ:
		return StoreLongs
	case Decimal:
		if t.Precision > 18 {
			return StoreWides
		}
		return StoreLongs
	case Float:
		return StoreFloats
	case Double:
		return StoreDoubles
	}
	return StoreBytes
}

// Len is the number of rows.
func (v *Vector) Len() int { return len(v.Valid) }

// Null reports whether row i is NULL.
func (v *Vector) Null(i int) bool { return v.Valid[i] == 0 }

// At returns the bytes of row i of a vector that stores bytes; they are the
// vector's own.
func (v *Vector) At(i int) []byte {
	if i == 0 {
		return v.Bytes[:v.Ends[0]:v.Ends[0]]
	}
	return v.Bytes[v.Ends[i-1]:v.Ends[i]:v.Ends[i]]
}

// Reset empties the vector for values of t and keeps its memory.
func (v *Vector) Reset(t Type) {
	v.Type, v.Misfits, v.Misfit = t, 0, ""
	v.Valid, v.Bools, v.Ints, v.Longs = v.Valid[:0], v.Bools[:0], v.Ints[:0], v.Longs[:0]
	v.Wides, v.Floats, v.Doubles = v.Wides[:0], v.Floats[:0], v.Doubles[:0]
	v.Ends, v.Bytes = v.Ends[:0], v.Bytes[:0]
	v.Unchanged = v.Unchanged[:0]
}

// AppendNull adds a row without a value.
func (v *Vector) AppendNull() {
	v.Valid = append(v.Valid, 0)
	switch v.Type.Store() {
	case StoreBools:
		v.Bools = append(v.Bools, 0)
	case StoreInts:
		v.Ints = append(v.Ints, 0)
	case StoreLongs:
		v.Longs = append(v.Longs, 0)
	case StoreWides:
		v.Wides = append(v.Wides, Int128{})
	case StoreFloats:
		v.Floats = append(v.Floats, 0)
	case StoreDoubles:
		v.Doubles = append(v.Doubles, 0)
	default:
		v.Ends = append(v.Ends, uint32(len(v.Bytes)))
	}
}

// AppendMisfit adds a NULL in place of a value that the lake cannot hold.
// why is kept for the first one.
func (v *Vector) AppendMisfit(why string) {
	v.AppendNull()
	if v.Misfits++; v.Misfits == 1 {
		v.Misfit = why
	}
}

// AppendUnchanged adds a row whose value is not known but what it was before.
func (v *Vector) AppendUnchanged() {
	v.Unchanged = append(v.Unchanged, uint32(v.Len()))
	v.AppendNull()
}

func (v *Vector) AppendBool(b bool) {
	v.Valid = append(v.Valid, 1)
	x := byte(0)
	if b {
		x = 1
	}
	v.Bools = append(v.Bools, x)
}

func (v *Vector) AppendInt(x int32) {
	v.Valid = append(v.Valid, 1)
	v.Ints = append(v.Ints, x)
}

func (v *Vector) AppendLong(x int64) {
	v.Valid = append(v.Valid, 1)
	v.Longs = append(v.Longs, x)
}

func (v *Vector) AppendWide(x Int128) {
	v.Valid = append(v.Valid, 1)
	v.Wides = append(v.Wides, x)
}

func (v *Vector) AppendFloat(x float32) {
	v.Valid = append(v.Valid, 1)
	v.Floats = append(v.Floats, x)
}

func (v *Vector) AppendDouble(x float64) {
	v.Valid = append(v.Valid, 1)
	v.Doubles = append(v.Doubles, x)
}

// AppendBytes copies b.
func (v *Vector) AppendBytes(b []byte) {
	v.Valid = append(v.Valid, 1)
	v.Bytes = append(v.Bytes, b...)
	v.Ends = append(v.Ends, uint32(len(v.Bytes)))
}

// AppendRow copies row i of o, which must have the same type.
func (v *Vector) AppendRow(o *Vector, i int) {
	v.Valid = append(v.Valid, o.Valid[i])
	switch v.Type.Store() {
	case StoreBools:
		v.Bools = append(v.Bools, o.Bools[i])
	case StoreInts:
		v.Ints = append(v.Ints, o.Ints[i])
	case StoreLongs:
		v.Longs = append(v.Longs, o.Longs[i])
	case StoreWides:
		v.Wides = append(v.Wides, o.Wides[i])
	case StoreFloats:
		v.Floats = append(v.Floats, o.Floats[i])
	case StoreDoubles:
		v.Doubles = append(v.Doubles, o.Doubles[i])
	default:
		v.Bytes = append(v.Bytes, o.At(i)...)
		v.Ends = append(v.Ends, uint32(len(v.Bytes)))
	}
}

// Size is the memory that the values take, in bytes.
func (v *Vector) Size() int {
	return len(v.Valid) + len(v.Bools) + 4*len(v.Ints) + 8*len(v.Longs) + 16*len(v.Wides) +
		4*len(v.Floats) + 8*len(v.Doubles) + 4*len(v.Ends) + len(v.Bytes)
}

// MaxArena is the largest number of bytes that one vector's arena may hold; a
// source cuts a batch before it is reached.
const MaxArena = math.MaxUint32 / 2
