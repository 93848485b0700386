package mysql

import "github.com/lakesyncd/lakesyncd/source"

// rowDecoder turns the rows of one table map into typed columns.
type rowDecoder struct{ def *tableDef }

// decoderFor returns the decoder of a captured table and nil for others.
func (h *history) decoderFor(tm *tableMap) (*rowDecoder, error) { panic("not yet") }

// reset empties dst for rows of this decoder's relation and op.
func (d *rowDecoder) reset(dst *source.Batch, op source.Op) { panic("not yet") }

// decode appends whole rows from rows to dst, which reset has prepared, until
// they end or dst holds about maxBytes. present1 and present2 are the bitmaps
// of columns in the image; present2 only for updates. It returns how many bytes
// and rows it took.
func (d *rowDecoder) decode(op source.Op, present1, present2, rows []byte, dst *source.Batch, maxBytes int) (consumed, n int, err error) {
	panic("not yet")
}
