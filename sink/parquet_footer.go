package sink

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

const (
	magic = "PAR1"
	// createdBy has the form that readers take apart to know about the bugs of
	// writers. It changes when the layout does.
	createdBy = "lakesyncd version 1 (build 1)"
)

// Reserved field ids of position-delete files, from the Iceberg specification.
const (
	deletePathID = 2147483546
	deletePosID  = 2147483545
)

// positionDeleteColumns are the columns of a position-delete file: vectors of
// String and Long. The bounds of the path are whole, so that a reader sees that
// the file is of one data file only.
func positionDeleteColumns() []fileColumn {
	full := metricsMode{kind: metricsFull}
	return []fileColumn{
		{ID: deletePathID, Name: "file_path", Type: source.Type{Kind: source.String}, Required: true, Metrics: full},
		{ID: deletePosID, Name: "pos", Type: source.Type{Kind: source.Long}, Required: true, Metrics: full},
	}
}

// footer is what is remembered of finished row groups.
type footer struct {
	groups        []rowGroup
	rows          int64
	packed, plain int64
}

type rowGroup struct {
	start, rows int64
	chunks      []chunkFooter
}

// chunkFooter is what the footer and the page index say of a column chunk.
type chunkFooter struct {
	dictionary, data      int64 // offsets; dictionary 0: none
	packed, plain         int64
	values, nulls         int64
	dictPages, plainPages int
	lo, hi                []byte
	bounded               bool
	index                 format.ColumnIndex
	noIndex               bool
	offsets               format.OffsetIndex
}

// take fills k, whose offsets are known, from the finished chunk of c.
func (k *chunkFooter) take(c *column) {
	at, row := k.data, int64(0)
	for _, p := range c.pages {
		k.offsets.PageLocations = append(k.offsets.PageLocations, format.PageLocation{
			Offset: at, CompressedPageSize: int32(len(p.data)), FirstRowIndex: row,
		})
		at += int64(len(p.data))
		row += p.rows
		k.packed += int64(len(p.data))
		k.plain += int64(p.plain)
		k.values += p.values
		k.nulls += p.nulls
		if p.encoding == format.RLEDictionary {
			k.dictPages++
		} else {
			k.plainPages++
		}
		lo, hi := p.lo, p.hi
		if !p.bounded {
			lo, hi = []byte{}, []byte{}
		}
		k.index.NullPages = append(k.index.NullPages, p.nulls == p.values)
		k.index.MinValues = append(k.index.MinValues, lo)
		k.index.MaxValues = append(k.index.MaxValues, hi)
		k.index.NullCounts = append(k.index.NullCounts, p.nulls)
	}
	// The specification wants no index of a chunk in which a page has values
	// but no bounds.
	if k.noIndex = c.noIndex; k.noIndex {
		k.index = format.ColumnIndex{}
	}
	k.lo, k.hi, k.bounded = c.parquetBounds(&c.chunk)

	c.total.size += k.packed
	c.total.values += k.values
	c.total.nulls += k.nulls
	c.total.bounds.merge(&c.chunk, c.store)
}

// stat is what the manifest says of the column.
func (c *column) stat() (id int, s table.ColumnStat, ok bool) {
	if c.Metrics.kind == metricsNone {
		return 0, s, false
	}
	id = c.ID
	s = table.ColumnStat{Size: c.total.size, Values: c.total.values, Nulls: c.total.nulls}
	if c.maxRep > 0 {
		return c.ElementID, s, true
	}
	if c.store == source.StoreFloats || c.store == source.StoreDoubles {
		s.NaNs, s.CountsNaN = c.total.nans, true
	}
	s.Lower, s.Upper = c.manifestBounds(&c.total.bounds)
	return id, s, true
}

// elements describes the column in the footer's schema, and its path.
func (c *column) elements() (list []format.SchemaElement, path []string) {
	rep := format.Optional
	if c.Required {
		rep = format.Required
	}
	leaf := format.SchemaElement{
		Type: thrift.New(c.phys), RepetitionType: thrift.New(rep), Name: c.Name, FieldID: int32(c.ID),
	}
	if c.phys == format.FixedLenByteArray {
		leaf.TypeLength = thrift.New(int32(c.width))
	}
	micros := format.TimeUnit{Value: &format.MicroSeconds{}}
	t := c.Type
	if t.Kind == source.List {
		t = t.Element()
	}
	switch t.Kind {
	case source.String:
		leaf.ConvertedType = thrift.New(deprecated.UTF8)
		leaf.LogicalType.Value = &format.StringType{}
	case source.Decimal:
		leaf.ConvertedType = thrift.New(deprecated.Decimal)
		leaf.Scale, leaf.Precision = thrift.New(int32(t.Scale)), thrift.New(int32(t.Precision))
		leaf.LogicalType.Value = &format.DecimalType{Scale: int32(t.Scale), Precision: int32(t.Precision)}
	case source.Date:
		leaf.ConvertedType = thrift.New(deprecated.Date)
		leaf.LogicalType.Value = &format.DateType{}
	case source.Time:
		if c.TimeOfDay {
			leaf.LogicalType.Value = &format.TimeType{Unit: micros}
		}
	case source.Timestamp:
		leaf.LogicalType.Value = &format.TimestampType{Unit: micros}
	case source.TimestampTZ:
		leaf.ConvertedType = thrift.New(deprecated.TimestampMicros)
		leaf.LogicalType.Value = &format.TimestampType{IsAdjustedToUTC: true, Unit: micros}
	case source.UUID:
		leaf.LogicalType.Value = &format.UUIDType{}
	}
	if c.maxRep > 0 {
		leaf.Name, leaf.FieldID, leaf.RepetitionType = "element", int32(c.ElementID), thrift.New(format.Required)
		if c.Type.Kind == source.List {
			leaf.RepetitionType = thrift.New(format.Optional)
		}
		outer := format.SchemaElement{
			RepetitionType: thrift.New(rep), Name: c.Name, NumChildren: thrift.New(int32(1)), FieldID: int32(c.ID),
			ConvertedType: thrift.New(deprecated.List),
		}
		outer.LogicalType.Value = &format.ListType{}
		inner := format.SchemaElement{
			RepetitionType: thrift.New(format.Repeated), Name: "list", NumChildren: thrift.New(int32(1)),
		}
		return []format.SchemaElement{outer, inner, leaf}, []string{c.Name, "list", "element"}
	}
	return []format.SchemaElement{leaf}, []string{c.Name}
}

// metadata is the column chunk in the footer.
func (k *chunkFooter) metadata(c *column, path []string) format.ColumnMetaData {
	m := format.ColumnMetaData{
		Type: c.phys, PathInSchema: path, Codec: c.codec.format, NumValues: k.values,
		TotalUncompressedSize: k.plain, TotalCompressedSize: k.packed,
		DataPageOffset: k.data, DictionaryPageOffset: k.dictionary,
	}
	m.Statistics.NullCount = k.nulls
	if k.bounded {
		m.Statistics.MinValue, m.Statistics.MaxValue = k.lo, k.hi
	}
	if c.maxDef > 0 {
		m.Encoding = append(m.Encoding, format.RLE)
	}
	m.Encoding = append(m.Encoding, format.Plain)
	if k.dictionary != 0 {
		m.Encoding = append(m.Encoding, format.RLEDictionary)
		m.EncodingStats = append(m.EncodingStats, format.PageEncodingStats{PageType: format.DictionaryPage, Encoding: format.Plain, Count: 1})
	}
	if k.dictPages > 0 {
		m.EncodingStats = append(m.EncodingStats, format.PageEncodingStats{PageType: format.DataPage, Encoding: format.RLEDictionary, Count: int32(k.dictPages)})
	}
	if k.plainPages > 0 {
		m.EncodingStats = append(m.EncodingStats, format.PageEncodingStats{PageType: format.DataPage, Encoding: format.Plain, Count: int32(k.plainPages)})
	}
	return m
}

// writeFooter writes page index and footer and returns their size.
func (f *fileWriter) writeFooter() (int64, error) {
	var (
		out   bytes.Buffer
		proto thrift.CompactProtocol
		enc   = thrift.NewEncoder(proto.NewWriter(&out))
		start = f.offset
	)
	if start == 0 {
		out.WriteString(magic)
	}
	meta := format.FileMetaData{Version: 1, NumRows: f.footer.rows, CreatedBy: createdBy, RowGroups: []format.RowGroup{}}
	meta.Schema = append(meta.Schema, format.SchemaElement{Name: "table", NumChildren: thrift.New(int32(len(f.columns)))})
	paths := make([][]string, len(f.columns))
	for i, c := range f.columns {
		e, path := c.elements()
		meta.Schema = append(meta.Schema, e...)
		meta.ColumnOrders = append(meta.ColumnOrders, format.ColumnOrder{Value: &format.TypeDefinedOrder{}})
		paths[i] = path
	}
	for i, g := range f.footer.groups {
		r := format.RowGroup{NumRows: g.rows, FileOffset: g.start, Ordinal: int16(i)}
		for j := range g.chunks {
			k := &g.chunks[j]
			r.Columns = append(r.Columns, format.ColumnChunk{MetaData: k.metadata(f.columns[j], paths[j])})
			r.TotalByteSize += k.plain
			r.TotalCompressedSize += k.packed
		}
		meta.RowGroups = append(meta.RowGroups, r)
	}
	for i, g := range f.footer.groups {
		for j := range g.chunks {
			if g.chunks[j].noIndex {
				continue
			}
			at := out.Len()
			if err := enc.Encode(&g.chunks[j].index); err != nil {
				return 0, fmt.Errorf("encode column index: %w", err)
			}
			c := &meta.RowGroups[i].Columns[j]
			c.ColumnIndexOffset, c.ColumnIndexLength = start+int64(at), int32(out.Len()-at)
		}
	}
	for i, g := range f.footer.groups {
		for j := range g.chunks {
			at := out.Len()
			if err := enc.Encode(&g.chunks[j].offsets); err != nil {
				return 0, fmt.Errorf("encode offset index: %w", err)
			}
			c := &meta.RowGroups[i].Columns[j]
			c.OffsetIndexOffset, c.OffsetIndexLength = start+int64(at), int32(out.Len()-at)
		}
	}
	at := out.Len()
	if err := enc.Encode(&meta); err != nil {
		return 0, fmt.Errorf("encode metadata: %w", err)
	}
	var tail [8]byte
	binary.LittleEndian.PutUint32(tail[:], uint32(out.Len()-at))
	copy(tail[4:], magic)
	out.Write(tail[:])
	if _, err := f.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return int64(out.Len()), nil
}
