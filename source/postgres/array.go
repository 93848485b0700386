package postgres

import (
	"errors"
	"fmt"

	"github.com/lakesyncd/lakesyncd/source"
)

// unserved says why values of the column's type cannot be written, "" if they
// can.
func (c *shapeColumn) unserved() string {
	if c.Arrays > 1 {
		return "arrays of a domain over arrays are not served; leave the table out of relations, or change the type"
	}
	return ""
}

func (c *shapeColumn) sourceType() source.Type {
	t := scalarType(c.Base, c.BaseMod)
	if c.Arrays > 0 {
		return source.ListOf(t)
	}
	return t
}

func (c *shapeColumn) decoder() columnDecoder {
	d := scalarDecoder(c.Base, c.BaseMod)
	if c.Arrays > 0 {
		e := d
		d = columnDecoder{append: appendArray, element: &e, delim: ','}
		d.scratch.Reset(scalarType(c.Base, c.BaseMod))
		if c.Base == oidBox {
			d.delim = ';'
		}
	}
	d.name = c.Name
	return d
}

var (
	errDepth = errors.New("an array of more than one dimension, which is no list; leave the table out of relations, or change the value")
	errArray = errors.New("the server sent a text that is no array")
)

// appendArray reads an array of one dimension:
//
//	{1,NULL,"a \"b\" \\"}   {}   [3:5]={7,8,9}
//
// A lower bound other than 1 is left out. An element that the lake cannot hold
// becomes NULL and counts as a misfit of the column.
func appendArray(c *columnDecoder, b []byte, v *source.Vector) error {
	if len(b) > 0 && b[0] == '[' {
		at := 0
		for at < len(b) && b[at] != '=' {
			if at++; at < len(b) && b[at] == '[' {
				return errDepth
			}
		}
		b = b[min(at+1, len(b)):]
	}
	if len(b) < 2 || b[0] != '{' || b[len(b)-1] != '}' {
		return errArray
	}
	b = b[1 : len(b)-1]
	e := &c.scratch
	e.Reset(e.Type)
	for more := len(b) > 0; more; {
		var value []byte
		null := false
		if len(b) > 0 && b[0] == '{' {
			return errDepth
		}
		if len(b) > 0 && b[0] == '"' {
			n, ok := c.quoted(b)
			if !ok {
				return errArray
			}
			value, b = c.buf, b[n:]
		} else {
			n := 0
			for n < len(b) && b[n] != c.delim {
				if x := b[n]; x == '"' || x == '\\' || x == '{' || x == '}' {
					return errArray
				}
				n++
			}
			value, b = b[:n], b[n:]
			if n == 0 {
				return errArray
			}
			null = string(value) == "NULL"
		}
		if more = len(b) > 0; more {
			if b[0] != c.delim {
				return errArray
			}
			b = b[1:]
		}
		if null {
			e.AppendNull()
			continue
		}
		if err := c.element.append(c.element, value, e); err != nil {
			return fmt.Errorf("element %d: %w", e.Len()+1, err)
		}
	}
	v.AppendList(e)
	if e.Misfits > 0 {
		if v.Misfits == 0 {
			v.Misfit = e.Misfit
		}
		v.Misfits += e.Misfits
	}
	return nil
}

// quoted puts the element in double quotes at the beginning of b into buf and
// returns its length in b.
func (c *columnDecoder) quoted(b []byte) (int, bool) {
	c.buf = c.buf[:0]
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i + 1, true
		case '\\':
			if i++; i == len(b) {
				return 0, false
			}
		}
		c.buf = append(c.buf, b[i])
	}
	return 0, false
}
