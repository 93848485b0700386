package table

import (
	"strconv"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
)

// Totals of a snapshot, as its summary has them. Records counts the rows of all
// data files; those that deletes remove are among them.
type Totals struct {
	Records         int64
	DataFiles       int64
	DeleteFiles     int64
	EqualityDeletes int64 // records in equality delete files
	PositionDeletes int64 // records in position delete files
	Bytes           int64 // data and delete files together
}

func totalsOf(s *icetable.Snapshot) Totals {
	if s == nil || s.Summary == nil {
		return Totals{}
	}
	p := s.Summary.Properties
	return Totals{
		Records:         p.GetInt64("total-records", 0),
		DataFiles:       p.GetInt64("total-data-files", 0),
		DeleteFiles:     p.GetInt64("total-delete-files", 0),
		EqualityDeletes: p.GetInt64("total-equality-deletes", 0),
		PositionDeletes: p.GetInt64("total-position-deletes", 0),
		Bytes:           p.GetInt64("total-files-size", 0),
	}
}

// counts of files that came or went with a snapshot.
type counts struct {
	bytes, data, equality, position             int64
	records, equalityDeletes, positionDeletions int64
}

func (c *counts) count(content iceberg.ManifestEntryContent, rows, bytes int64) {
	c.bytes += bytes
	switch content {
	case iceberg.EntryContentData:
		c.data++
		c.records += rows
	case iceberg.EntryContentEqDeletes:
		c.equality++
		c.equalityDeletes += rows
	case iceberg.EntryContentPosDeletes:
		c.position++
		c.positionDeletions += rows
	}
}

// summary collects what a snapshot changes.
type summary struct{ added, removed counts }

var contents = map[Content]iceberg.ManifestEntryContent{
	Data:            iceberg.EntryContentData,
	EqualityDeletes: iceberg.EntryContentEqDeletes,
	PositionDeletes: iceberg.EntryContentPosDeletes,
}

func (s *summary) add(f File) { s.added.count(contents[f.Content], f.Rows, f.Bytes) }

func (s *summary) remove(f iceberg.DataFile) {
	s.removed.count(f.ContentType(), f.Count(), f.FileSizeBytes())
}

// operation in the words of the specification. A snapshot that only adds data
// files is an append; one that adds none is a delete.
func (s *summary) operation() icetable.Operation {
	switch {
	case s.added.data == 0:
		return icetable.OpDelete
	case s.added.equality+s.added.position+s.removed.data+s.removed.equality+s.removed.position > 0:
		return icetable.OpOverwrite
	}
	return icetable.OpAppend
}

// properties of the snapshot that follows parent (nil: the first one). A total
// that the parent does not know stays unknown.
func (s *summary) properties(parent *icetable.Snapshot) iceberg.Properties {
	out := iceberg.Properties{}
	set := func(key string, n int64) {
		if n > 0 {
			out[key] = strconv.FormatInt(n, 10)
		}
	}
	a, r := s.added, s.removed
	set("added-data-files", a.data)
	set("added-delete-files", a.equality+a.position)
	set("added-equality-delete-files", a.equality)
	set("added-position-delete-files", a.position)
	set("added-records", a.records)
	set("added-equality-deletes", a.equalityDeletes)
	set("added-position-deletes", a.positionDeletions)
	set("added-files-size", a.bytes)
	set("deleted-data-files", r.data)
	set("deleted-records", r.records)
	set("removed-delete-files", r.equality+r.position)
	set("removed-equality-delete-files", r.equality)
	set("removed-position-delete-files", r.position)
	set("removed-equality-deletes", r.equalityDeletes)
	set("removed-position-deletes", r.positionDeletions)
	set("removed-files-size", r.bytes)
	total := func(key string, change int64) {
		before := int64(0)
		if parent != nil {
			if parent.Summary == nil {
				return
			}
			text, ok := parent.Summary.Properties[key]
			if !ok {
				return
			}
			var err error
			if before, err = strconv.ParseInt(text, 10, 64); err != nil {
				return
			}
		}
		if n := before + change; n >= 0 {
			out[key] = strconv.FormatInt(n, 10)
		}
	}
	total("total-records", a.records-r.records)
	total("total-data-files", a.data-r.data)
	total("total-delete-files", a.equality+a.position-r.equality-r.position)
	total("total-equality-deletes", a.equalityDeletes-r.equalityDeletes)
	total("total-position-deletes", a.positionDeletions-r.positionDeletions)
	total("total-files-size", a.bytes-r.bytes)
	return out
}
