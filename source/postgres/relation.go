package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// shape is one captured table between two changes of its definition: what the
// catalogs said of it, and the relation that it is to the rest of the program.
// It is never changed; shapes.relation makes another one.
type shape struct {
	OID         uint32        `json:"oid"`
	Namespace   string        `json:"namespace"`
	Name        string        `json:"name"`
	Columns     []shapeColumn `json:"columns"`
	Key         []int         `json:"key,omitempty"` // indexes into Columns
	Identity    string        `json:"identity"`      // replica identity: d default, n nothing, f full, i index
	Partitioned bool          `json:"partitioned,omitempty"`
	// Files names the files with the rows; a statement that rewrites the table
	// changes it. "": not known.
	Files string `json:"files,omitempty"`
	// Last is the greatest number that a column has had.
	Last int `json:"last"`
	// Refuse says why the table cannot be served, and the way out.
	Refuse string `json:"refuse,omitempty"`
	// KeyNote says why there is no key.
	KeyNote string `json:"key_note,omitempty"`

	Rel *source.Relation `json:"-"`

	// left are the generated columns, which are in no row of ours.
	left map[string]bool
}

// shapeColumn is a column as the catalogs have it. A column is the same as long
// as it has the same number, whatever its name.
type shapeColumn struct {
	Name    string `json:"name"`
	Number  int    `json:"number"`
	Type    uint32 `json:"type"` // as declared
	Typmod  int32  `json:"typmod"`
	Base    uint32 `json:"base"` // under all domains and arrays
	BaseMod int32  `json:"base_typmod"`
	Arrays  int    `json:"arrays,omitempty"`
	Native  string `json:"native"`
	NotNull bool   `json:"not_null,omitempty"`

	hasMissing bool // older rows read as a constant that is not stored in them
}

func (s *shape) fullName() string { return s.Namespace + "." + s.Name }

func (s *shape) column(name string) int {
	for i := range s.Columns {
		if s.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// problem is what keeps the table from being served.
func (s *shape) problem() error {
	if s.Refuse != "" {
		return fmt.Errorf("table %s: %s: %w", s.fullName(), s.Refuse, source.ErrCannotServe)
	}
	return nil
}

// finish makes Rel of what is known.
func (s *shape) finish(estimated int64) {
	r := &source.Relation{Namespace: s.Namespace, Name: s.Name, Key: s.Key, EstimatedRows: estimated}
	for i := range s.Columns {
		c := &s.Columns[i]
		r.Columns = append(r.Columns, source.Column{Name: c.Name, Type: c.sourceType(), Native: c.Native, Nullable: !c.NotNull})
	}
	switch {
	case len(s.Key) == 0:
		r.Note = s.KeyNote
	case s.Partitioned:
		r.Note = "rows of a partitioned table can go without a trace in the log: by DETACH PARTITION, or TRUNCATE of a partition"
	default:
		r.KeyProven = true
	}
	s.Rel = r
}

// loadShape reads the definition of a table, as the session of q sees it. It is
// nil if there is no such table.
func loadShape(ctx context.Context, q querier, oid uint32) (*shape, error) {
	id := strconv.FormatUint(uint64(oid), 10)
	r, err := q.query(ctx, `
		SELECT n.nspname, c.relname, c.relkind, c.relreplident, CASE c.relkind WHEN 'p' THEN (SELECT md5(coalesce(string_agg(coalesce(pg_catalog.pg_relation_filenode(t.relid), 0)::text, ',' ORDER BY t.relid), ''))
				FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf) ELSE pg_catalog.pg_relation_filenode(c.oid)::text END,
			c.reltuples::bigint,
			pg_catalog.current_setting('server_encoding'),
			CASE c.relkind WHEN 'p' THEN coalesce((SELECT min(l.oid::regclass::text) FROM pg_catalog.pg_partition_tree(c.oid) t
				JOIN pg_catalog.pg_class l ON l.oid = t.relid WHERE t.isleaf AND l.relkind = 'r' AND l.relreplident <> c.relreplident), '') ELSE '' END,
			c.relnatts
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = $1::oid AND c.relkind IN ('r', 'p')`, id)
	if err != nil {
		return nil, fmt.Errorf("read the definition of table %d: %w", oid, err)
	}
	if len(r) == 0 {
		return nil, nil
	}
	s := &shape{OID: oid, Namespace: r.text(0, 0), Name: r.text(0, 1), Partitioned: r.text(0, 2) == "p", Identity: r.text(0, 3), left: map[string]bool{}}
	var n numbers
	s.Files, s.Last = r.text(0, 4), int(n.parse(r.text(0, 8)))
	estimated := n.parse(r.text(0, 5))
	if r.text(0, 6) == "SQL_ASCII" {
		s.Refuse = "its database has the encoding SQL_ASCII, in which the server does not know what its text means; move it to a database with another encoding"
	}
	if leaf := r.text(0, 7); leaf != "" {
		s.Refuse = fmt.Sprintf("partition %s has another replica identity than the table; run ALTER TABLE … REPLICA IDENTITY with the same identity on both", leaf)
	}
	if err := s.loadColumns(ctx, q, id, &n); err != nil {
		return nil, fmt.Errorf("read the columns of table %s: %w", s.fullName(), err)
	}
	if err := s.loadKey(ctx, q, id, &n); err != nil {
		return nil, fmt.Errorf("read the indexes of table %s: %w", s.fullName(), err)
	}
	if n.err != nil {
		return nil, fmt.Errorf("read the definition of table %s: %w", s.fullName(), n.err)
	}
	s.finish(max(estimated, -1))
	return s, nil
}

// numbers parses and remembers the first error.
type numbers struct{ err error }

func (n *numbers) parse(s string) int64 {
	x, err := strconv.ParseInt(s, 10, 64)
	if err != nil && n.err == nil {
		n.err = err
	}
	return x
}

func (s *shape) loadColumns(ctx context.Context, q querier, id string, n *numbers) error {
	r, err := q.query(ctx, `
		WITH RECURSIVE chain(num, typ, mod, arrays, step) AS (
			SELECT a.attnum, a.atttypid, a.atttypmod, 0, 0
			FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL
			SELECT c.num,
				CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE e.oid END,
				CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE c.mod END,
				c.arrays + CASE WHEN t.typtype = 'd' THEN 0 ELSE 1 END, c.step + 1
			FROM chain c JOIN pg_catalog.pg_type t ON t.oid = c.typ
				LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
			WHERE t.typtype = 'd' OR e.oid IS NOT NULL)
		SELECT a.attname, a.attnum, a.atttypid, a.atttypmod, c.typ, c.mod, c.arrays, pg_catalog.format_type(a.atttypid, a.atttypmod),
			a.attnotnull, a.attgenerated <> '',
			a.atthasmissing OR EXISTS (SELECT FROM pg_catalog.pg_partition_tree(a.attrelid) t JOIN pg_catalog.pg_attribute l
				ON l.attrelid = t.relid AND l.attname = a.attname AND l.attnum > 0 AND l.atthasmissing)
		FROM pg_catalog.pg_attribute a JOIN LATERAL (SELECT * FROM chain c WHERE c.num = a.attnum ORDER BY c.step DESC LIMIT 1) c ON true
		WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, id)
	if err != nil {
		return err
	}
	for i := range r {
		if r.text(i, 9) == "t" {
			s.left[r.text(i, 0)] = true
			continue
		}
		c := shapeColumn{
			Name: r.text(i, 0), Number: int(n.parse(r.text(i, 1))), Type: uint32(n.parse(r.text(i, 2))), Typmod: int32(n.parse(r.text(i, 3))),
			Base: uint32(n.parse(r.text(i, 4))), BaseMod: int32(n.parse(r.text(i, 5))), Arrays: int(n.parse(r.text(i, 6))), Native: r.text(i, 7),
			NotNull: r.text(i, 8) == "t", hasMissing: r.text(i, 10) == "t",
		}
		if c.Base == oidMoney && s.Refuse == "" {
			m, err := q.query(ctx, "SELECT pg_catalog.scale(1::pg_catalog.money::pg_catalog.numeric)")
			if err != nil {
				return err
			}
			if got := m.text(0, 0); got != "2" {
				s.Refuse = fmt.Sprintf("column %s: the setting lc_monetary gives %s %s fraction digits, and 2 are expected; change the column to numeric", c.Name, c.Native, got)
			}
		}
		if why := c.unserved(); why != "" && s.Refuse == "" {
			s.Refuse = fmt.Sprintf("column %s (%s): %s", c.Name, c.Native, why)
		}
		s.Columns = append(s.Columns, c)
	}
	if len(s.Columns) == 0 && s.Refuse == "" {
		s.Refuse = "it has no columns, or only generated ones; leave it out of relations"
	}
	return nil
}

// loadKey finds the columns that name a row: those of the index that is the
// replica identity, since old rows come with these alone; under FULL and NOTHING
// those of the primary key, else of another unique index without gaps.
func (s *shape) loadKey(ctx context.Context, q querier, id string, n *numbers) error {
	r, err := q.query(ctx, `
		SELECT x.indisprimary, x.indisreplident, x.indkey::text, x.indnkeyatts,
			x.indisunique AND x.indimmediate AND x.indisvalid AND x.indpred IS NULL AND x.indexprs IS NULL
		FROM pg_catalog.pg_index x WHERE x.indrelid = $1::oid AND x.indisunique
		ORDER BY x.indisprimary DESC, x.indexrelid`, id)
	if err != nil {
		return err
	}
	s.KeyNote = "it has no primary key"
	for i := range r {
		primary, identity := r.text(i, 0) == "t", r.text(i, 1) == "t"
		switch s.Identity {
		case "i":
			if !identity {
				continue
			}
		case "d":
			if !primary {
				continue
			}
		}
		if r.text(i, 4) != "t" {
			if primary {
				s.KeyNote = "its primary key is DEFERRABLE, which is not enough to tell rows apart"
			}
			continue
		}
		fields := strings.Fields(r.text(i, 2))
		want := int(n.parse(r.text(i, 3)))
		var key []int
		for _, f := range fields[:min(want, len(fields))] {
			num := int(n.parse(f))
			for k := range s.Columns {
				if c := &s.Columns[k]; c.Number == num && c.NotNull {
					key = append(key, k)
				}
			}
		}
		if len(key) != want {
			if primary {
				s.KeyNote = "its primary key has a generated column, which is not in the log"
			}
			continue
		}
		s.Key, s.KeyNote = key, ""
		return nil
	}
	if s.Identity == "d" && len(r) > 0 && s.KeyNote == "it has no primary key" {
		s.KeyNote += "; to use another unique index run ALTER TABLE … REPLICA IDENTITY USING INDEX"
	}
	return nil
}
