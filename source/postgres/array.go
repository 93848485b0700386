package postgres

import "github.com/lakesyncd/lakesyncd/source"

// unserved says why values of the column's type cannot be written, "" if they
// can.
func (c *shapeColumn) unserved() string {
	if c.Arrays > 0 {
		return "arrays are not in this version; leave the table out of relations, or the column out of it"
	}
	return ""
}

func (c *shapeColumn) sourceType() source.Type { return scalarType(c.Base, c.BaseMod) }

func (c *shapeColumn) decoder() columnDecoder {
	d := scalarDecoder(c.Base, c.BaseMod)
	d.name = c.Name
	return d
}
