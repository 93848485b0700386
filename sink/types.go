package sink

import (
	"errors"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/source"
)

// overrides is what the configuration says of the shape of one table.
type overrides struct {
	Key    []string          // names of the key columns; nil: the relation's own key
	As     map[string]string // column name → type, as in "decimal(20,0)"
	Append bool              // mode append: no key, and the columns of appendColumns at the end
}

// columnType resolves the type that a column becomes.
func (o overrides) columnType(c source.Column) (t source.Type, timeOfDay bool, err error) {
	return c.Type, false, nil
}

// icebergType is the type of the lake for values of t; id is the field id of
// the elements of a list.
func icebergType(t source.Type, timeOfDay bool, id int) iceberg.Type { return nil }

// converter turns vectors of one type into another, for `as:`.
type converter struct{}

// newConverter returns nil, nil if the values need no conversion.
func newConverter(from, to source.Type, timeOfDay bool) (*converter, error) {
	return nil, errors.ErrUnsupported
}

// Convert appends rows [from, to) of src to dst, which has the target type. A
// value that does not fit is an error; it names the row, not the value.
func (c *converter) Convert(dst, src *source.Vector, from, to int) error { return errors.ErrUnsupported }
