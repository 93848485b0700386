package postgres

import (
	"context"
	"fmt"
	"strings"
)

// tableInfo is a line of the catalog: a table that could be captured.
type tableInfo struct {
	oid             uint32
	schema, name    string
	partitioned     bool // has no rows of its own
	root            uint32
	identity        byte // replica identity: d, n, f, i
	persistence     byte // p, u: unlogged
	hasIdentity     bool // what UPDATE and DELETE need to be published
	readable, owned bool
	filtered        bool // row level security would hide rows from us
	generated       bool // has a stored generated column
	extension       string
	captured        bool
}

func (t tableInfo) full() string { return t.schema + "." + t.name }

func (t tableInfo) qualified() string { return qualified(t.schema, t.name) }

// listTables lists the tables of the database and says which are captured. Of a
// partitioned table it is the topmost one that matches if viaRoot is set, and
// then none of its partitions; else the partitions that have rows.
func listTables(ctx context.Context, q querier, match func(ns, name string) bool, viaRoot bool) ([]tableInfo, error) {
	r, err := q.query(ctx, `
		SELECT c.oid, n.nspname, c.relname, c.relkind = 'p', coalesce(i.inhparent, 0), c.relreplident, c.relpersistence,
			CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false
				WHEN 'i' THEN EXISTS (SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = c.oid AND x.indisreplident AND x.indisvalid)
				ELSE EXISTS (SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = c.oid AND x.indisprimary AND x.indimmediate AND x.indisvalid) END,
			pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT'),
			pg_catalog.pg_has_role(c.relowner, 'USAGE'),
			c.relrowsecurity AND NOT (SELECT rolsuper OR rolbypassrls FROM pg_catalog.pg_roles WHERE rolname = current_user)
				AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')),
			EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 's' AND NOT a.attisdropped),
			coalesce((SELECT e.extname FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
				WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_catalog.pg_extension'::regclass AND d.deptype = 'e' LIMIT 1), '')
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND c.relispartition
		WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
		ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"`)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	all := make([]tableInfo, len(r))
	byOID := map[uint32]*tableInfo{}
	for i := range r {
		t := func(j int) bool { return r.text(i, j) == "t" }
		oid, err1 := parseOID(r.text(i, 0))
		root, err2 := parseOID(r.text(i, 4))
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("list the tables: %q is no OID", r.text(i, 0)+" "+r.text(i, 4))
		}
		all[i] = tableInfo{
			oid: oid, schema: r.text(i, 1), name: r.text(i, 2), partitioned: t(3), root: root, identity: r[i][5][0], persistence: r[i][6][0],
			hasIdentity: t(7), readable: t(8), owned: t(9), filtered: t(10), generated: t(11), extension: r.text(i, 12),
		}
		byOID[oid] = &all[i]
	}
	for i := range all {
		t := &all[i]
		t.captured = match(t.schema, t.name) && t.extension == ""
		if t.captured && !viaRoot {
			t.captured = !t.partitioned
			continue
		}
		for up := byOID[t.root]; t.captured && up != nil; up = byOID[up.root] {
			t.captured = !match(up.schema, up.name)
		}
	}
	return all, nil
}

func parseOID(s string) (uint32, error) {
	var n uint32
	_, err := fmt.Sscanf(s, "%d", &n)
	return n, err
}

// publication is what the server's catalog says of ours.
type publication struct {
	exists, owned, all                bool
	insert, update, delete_, truncate bool
	viaRoot                           bool
	generated                         bool              // publishes generated columns
	tables                            map[string]string // published, by full name: "", or what is odd about it
	schemas                           []string          // published with all their tables, also later ones
}

func (p *publication) whole() bool { return p.insert && p.update && p.delete_ && p.truncate }

// readPublication looks the publication up, as it is now.
func readPublication(ctx context.Context, q querier, version int, name string) (*publication, error) {
	// Columns that older servers lack are read through JSON.
	r, err := q.query(ctx, `
		SELECT pg_catalog.pg_has_role(pubowner, 'USAGE'), puballtables, pubinsert, pubupdate, pubdelete, pubtruncate,
			pg_catalog.to_jsonb(p)->>'pubviaroot', pg_catalog.to_jsonb(p)->>'pubgencols'
		FROM pg_catalog.pg_publication p WHERE pubname = $1`, name)
	if err != nil {
		return nil, fmt.Errorf("look up the publication: %w", err)
	}
	p := &publication{tables: map[string]string{}}
	if len(r) == 0 {
		return p, nil
	}
	t := func(j int) bool { return strings.HasPrefix(r.text(0, j), "t") }
	p.exists, p.owned, p.all, p.insert, p.update, p.delete_, p.truncate, p.viaRoot = true, t(0), t(1), t(2), t(3), t(4), t(5), t(6)
	p.generated = r.text(0, 7) != "" && r.text(0, 7) != "n"
	if version >= 150000 {
		r, err := q.query(ctx, `SELECT n.nspname FROM pg_catalog.pg_publication_namespace pn JOIN pg_catalog.pg_publication p ON p.oid = pn.pnpubid
			JOIN pg_catalog.pg_namespace n ON n.oid = pn.pnnspid WHERE p.pubname = $1 ORDER BY n.nspname COLLATE "C"`, name)
		if err != nil {
			return nil, fmt.Errorf("list the schemas of the publication: %w", err)
		}
		for i := range r {
			p.schemas = append(p.schemas, r.text(i, 0))
		}
	}
	list := "SELECT schemaname, tablename, '' FROM pg_catalog.pg_publication_tables WHERE pubname = $1"
	if version >= 150000 {
		list = `SELECT t.schemaname, t.tablename,
				CASE WHEN r.prattrs IS NOT NULL THEN 'a list of columns' WHEN r.prqual IS NOT NULL THEN 'a filter of rows' ELSE '' END
			FROM pg_catalog.pg_publication_tables t
				JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
				JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
				JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
				LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
			WHERE t.pubname = $1`
	}
	r, err = q.query(ctx, list, name)
	if err != nil {
		return nil, fmt.Errorf("list the tables of the publication: %w", err)
	}
	for i := range r {
		p.tables[r.text(i, 0)+"."+r.text(i, 1)] = r.text(i, 2)
	}
	return p, nil
}

// createPublication is the statement that makes the publication.
func createPublication(name string, tables []tableInfo) string {
	var list []string
	for _, t := range tables {
		if t.captured {
			list = append(list, t.qualified())
		}
	}
	s := "CREATE PUBLICATION " + ident(name)
	if len(list) > 0 {
		s += " FOR TABLE " + strings.Join(list, ", ")
	}
	return s + " WITH (publish_via_partition_root = true)"
}

// missingFrom are the captured tables that a publication lacks.
func missingFrom(p *publication, tables []tableInfo) []tableInfo {
	var out []tableInfo
	for _, t := range tables {
		if _, ok := p.tables[t.full()]; t.captured && !ok {
			out = append(out, t)
		}
	}
	return out
}

func addTables(name string, tables []tableInfo) string {
	var list []string
	for _, t := range tables {
		list = append(list, t.qualified())
	}
	return "ALTER PUBLICATION " + ident(name) + " ADD TABLE " + strings.Join(list, ", ")
}

// ensurePublication makes the publication or adds what it lacks. It comes before
// the slot: a slot that is older than its publication never gets past its first
// change.
func ensurePublication(ctx context.Context, o *Options, c *conn, p *publication, tables []tableInfo) error {
	switch missing := missingFrom(p, tables); {
	case !p.exists:
		if _, err := c.query(ctx, createPublication(o.Config.Publication, tables)); err != nil {
			return fmt.Errorf("create the publication: %w", err)
		}
		o.Log.Info("created the publication", "publication", o.Config.Publication)
	case len(missing) > 0:
		if _, err := c.query(ctx, addTables(o.Config.Publication, missing)); err != nil {
			return fmt.Errorf("add to the publication: %w", err)
		}
		o.Log.Info("added relations to the publication", "publication", o.Config.Publication, "relations", len(missing))
	}
	return nil
}
