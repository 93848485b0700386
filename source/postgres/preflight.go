package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lakesyncd/lakesyncd/source"
)

// Severity of a Problem.
type Severity string

const (
	// SeverityError keeps the pipeline from running.
	SeverityError Severity = "error"
	// SeverityWarning is worth knowing.
	SeverityWarning Severity = "warning"
)

// Problem is something at the server that a person should change.
type Problem struct {
	Severity Severity
	Key      string // the key of the configuration, or the server's setting, or the relation
	Message  string
	Fix      string // a statement, or what to change; "" if there is none
}

func (p Problem) String() string {
	s := p.Key + ": " + p.Message
	if p.Fix != "" {
		s += "; " + p.Fix
	}
	return s
}

// Report is what Check found.
type Report struct {
	Problems []Problem
	Server   string // name and version
	// Relations are the captured ones as they are now; empty if they could not
	// be read.
	Relations []*source.Relation
}

type problems struct {
	all []Problem
}

func (p *problems) fail(key, fix, format string, args ...any) {
	p.all = append(p.all, Problem{SeverityError, key, fmt.Sprintf(format, args...), fix})
}

func (p *problems) warn(key, fix, format string, args ...any) {
	p.all = append(p.all, Problem{SeverityWarning, key, fmt.Sprintf(format, args...), fix})
}

// err joins the errors among the problems.
func (p *problems) err() error {
	var errs []error
	for _, x := range p.all {
		if x.Severity == SeverityError {
			errs = append(errs, errors.New(x.String()))
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", source.ErrCannotServe, errors.Join(errs...))
}

// facts is what preflight learned of the database.
type facts struct {
	publication *publication
	tables      []tableInfo
	begun       bool // the slot is there: a copy was made, or was begun
}

// oldest is the first version that is served, as server_version_num.
const oldest = 130000

// preflight looks at every setting and right that the pipeline needs. Its error
// is a lost connection; what is wrong at the server is in the problems.
func preflight(ctx context.Context, o *Options, c *conn) (facts, *problems, error) {
	p := &problems{}
	var f facts
	if c.version < oldest {
		p.fail("source.postgres", "use PostgreSQL 13 or later", "the server at %s is PostgreSQL %s", address(o.Config), c.release)
		return f, p, nil
	}
	if err := settings(ctx, p, o, c, &f); err != nil {
		return f, p, err
	}
	if err := replicationRight(ctx, p, o); err != nil {
		return f, p, err
	}
	var err error
	if f.publication, err = readPublication(ctx, c, c.version, o.Config.Publication); err != nil {
		return f, p, err
	}
	viaRoot := f.publication.viaRoot || !f.publication.exists
	if f.tables, err = listTables(ctx, c, o.Match, viaRoot); err != nil {
		return f, p, err
	}
	tablesFit(p, o, c, f)
	return f, p, publicationFits(ctx, p, o, c, f)
}

func settings(ctx context.Context, p *problems, o *Options, c *conn, f *facts) error {
	r, err := c.query(ctx, `SELECT name, setting FROM pg_catalog.pg_settings`)
	if err != nil {
		return fmt.Errorf("read the server's settings: %w", err)
	}
	v := map[string]string{}
	for i := range r {
		v[r.text(i, 0)] = r.text(i, 1)
	}
	r, err = c.query(ctx, `SELECT pg_catalog.pg_is_in_recovery(), (SELECT count(*) FROM pg_catalog.pg_replication_slots), (SELECT count(*) FROM pg_catalog.pg_stat_replication)`)
	if err != nil {
		return err
	}
	slots, _ := strconv.Atoi(r.text(0, 1))
	senders, _ := strconv.Atoi(r.text(0, 2))
	if r.text(0, 0) == "t" {
		p.fail("host", "name the primary", "the server is a standby")
	}
	if v["wal_level"] != "logical" {
		p.fail("wal_level", "run: ALTER SYSTEM SET wal_level = 'logical' and restart the server", "is %q, so the server does not write what logical replication needs", v["wal_level"])
	}
	if v["server_encoding"] == "SQL_ASCII" {
		p.fail("server_encoding", "", "is SQL_ASCII, so nobody knows what the bytes of its text mean")
	}
	s, err := readSlot(ctx, c, o.Config.Slot)
	if err != nil {
		return err
	}
	f.begun = s.exists && s.usable(o) == ""
	if limit, err := strconv.Atoi(v["max_replication_slots"]); err == nil && !s.exists && slots >= limit {
		p.fail("max_replication_slots", "raise it and restart the server, or drop a slot that nobody needs (pg_replication_slots)", "is %d, and all are in use", limit)
	}
	if limit, err := strconv.Atoi(v["max_wal_senders"]); err == nil && !s.active && senders >= limit {
		p.fail("max_wal_senders", "raise it and restart the server", "is %d, and all are in use", limit)
	}
	if !slotName.MatchString(o.Config.Slot) {
		p.fail("slot", "use 1 to 63 of a-z, 0-9 and _", "%q is not a slot's name", o.Config.Slot)
	}
	if n := len(o.Config.Publication); n > 63 {
		p.fail("publication", "use a shorter name", "the name has %d bytes, the server cuts it at 63", n)
	}
	if s.exists {
		if why := s.usable(o); why != "" {
			p.fail("slot", "name another slot", "%s", why)
		}
		if s.status == "unreserved" {
			p.warn("slot", "let the pipeline catch up", "%s is about to lose the log that it keeps", o.Config.Slot)
		}
	}
	if v["fsync"] == "off" || v["full_page_writes"] == "off" {
		p.warn("fsync", "", "the server may lose committed transactions in a crash that the lake has already; fsync is %s, full_page_writes is %s", v["fsync"], v["full_page_writes"])
	}
	if have := v["max_slot_wal_keep_size"]; have != "-1" && have != "" {
		p.warn("max_slot_wal_keep_size", "", "is %s MB: a pipeline that stands still while more than that is written must copy everything anew", have)
	}
	if have := v["idle_replication_slot_timeout"]; have != "0" && have != "" {
		p.warn("idle_replication_slot_timeout", "run: ALTER SYSTEM SET idle_replication_slot_timeout = 0", "is %s s: a pipeline that stands still for longer must copy everything anew", have)
	}
	return nil
}

// replicationRight tries a replication session, which says more than the
// attributes of the role: managed servers give the right by other means.
func replicationRight(ctx context.Context, p *problems, o *Options) error {
	rc, err := connect(ctx, o, replicationSession)
	if err == nil {
		rc.close()
		return nil
	}
	switch code := errorCode(err); {
	case code == "42501", code == "28000" && strings.Contains(err.Error(), "replication"):
		p.fail("user", fmt.Sprintf("run: ALTER ROLE %s REPLICATION (managed servers: GRANT their replication role)", ident(o.Config.User)), "%s may not replicate: %v", o.Config.User, asPgError(err))
	case code == "28000":
		p.fail("user", "allow it in pg_hba.conf", "%s may not open a replication session: %v", o.Config.User, asPgError(err))
	case code == "53300":
		p.fail("max_wal_senders", "raise it and restart the server", "no replication session is left: %v", asPgError(err))
	case code == "08P01":
		p.fail("host", "name the server itself", "the server does not know replication sessions: %v; is it a pooler?", asPgError(err))
	case errors.Is(err, source.ErrCannotServe):
		p.fail("host", "", "%s", strings.TrimPrefix(err.Error(), source.ErrCannotServe.Error()+": "))
	default:
		return err
	}
	return nil
}

func tablesFit(p *problems, o *Options, c *conn, f facts) {
	none := true
	for _, t := range f.tables {
		if t.extension != "" && o.Match(t.schema, t.name) && t.extension != "timescaledb" {
			p.warn(t.full(), "", "belongs to the extension %s and is not captured", t.extension)
		}
		if !t.captured {
			continue
		}
		none = false
		leaveOut := "leave it out: \"!" + t.full() + "\" in relations"
		switch {
		case strings.HasPrefix(t.schema, "_timescaledb"):
			p.fail(t.full(), leaveOut, "is part of a TimescaleDB hypertable, whose changes come under names that change")
		case t.persistence == 'u':
			p.fail(t.full(), leaveOut+", or run: ALTER TABLE "+t.qualified()+" SET LOGGED", "is UNLOGGED, so its changes are in no log")
		case !t.readable:
			p.fail(t.full(), fmt.Sprintf("run: GRANT USAGE ON SCHEMA %s TO %s; GRANT SELECT ON %s TO %s", ident(t.schema), ident(o.Config.User), t.qualified(), ident(o.Config.User)), "cannot be read by %s", o.Config.User)
		case t.filtered:
			p.fail(t.full(), fmt.Sprintf("run: ALTER ROLE %s BYPASSRLS", ident(o.Config.User)), "has row level security, which hides rows from %s", o.Config.User)
		}
		if t.partitioned {
			p.warn(t.full(), "", "is partitioned: TRUNCATE of one partition, ATTACH and DETACH are in no log, so the table does not follow them")
		}
		if t.identity == 'f' && t.generated && c.version >= 180000 {
			p.fail(t.full(), leaveOut+", or run: ALTER TABLE "+t.qualified()+" REPLICA IDENTITY DEFAULT", "has REPLICA IDENTITY FULL and a generated column: published like that, the server would refuse its UPDATE and DELETE")
		}
	}
	if none {
		p.warn("relations", "", "no table of the database matches")
	}
}

func publicationFits(ctx context.Context, p *problems, o *Options, c *conn, f facts) error {
	pub, name := f.publication, o.Config.Publication
	if pub.exists && pub.generated {
		p.fail("publication", "run: ALTER PUBLICATION "+ident(name)+" SET (publish_generated_columns = none)", "%s publishes generated columns, which the copy leaves out", name)
	}
	updates := !pub.exists || pub.update || pub.delete_
	for _, t := range f.tables {
		if !t.captured {
			continue
		}
		appended := o.Append != nil && o.Append(t.schema, t.name)
		if pub.exists && !pub.whole() && !appended {
			p.fail(t.full(), "run: ALTER PUBLICATION "+ident(name)+" SET (publish = 'insert, update, delete, truncate'), or write the relation in append mode", "is mirrored, but the publication %s leaves kinds of changes out", name)
		}
		if odd := pub.tables[t.full()]; odd != "" {
			p.fail(t.full(), "run: ALTER PUBLICATION "+ident(name)+" DROP TABLE "+t.qualified()+"; ALTER PUBLICATION "+ident(name)+" ADD TABLE "+t.qualified(), "has %s in the publication %s", odd, name)
		}
		if !t.hasIdentity && updates && !t.partitioned {
			fix := "run: ALTER TABLE " + t.qualified() + " ADD PRIMARY KEY (…)"
			if appended {
				fix = "run: ALTER TABLE " + t.qualified() + " REPLICA IDENTITY FULL"
			} else if t.identity != 'd' {
				fix = "run: ALTER TABLE " + t.qualified() + " REPLICA IDENTITY DEFAULT"
			}
			p.fail(t.full(), fix, "has no replica identity that its UPDATE and DELETE could be published with: once published, the server would refuse them")
		}
	}
	if o.Resume != nil {
		return nil // located and watch look at what is there
	}
	missing := missingFrom(pub, f.tables)
	if pub.exists && len(missing) == 0 {
		return nil
	}
	if pub.exists && f.begun && !o.opening {
		// A start without a record adds them, or asks for that.
		for _, t := range missing {
			p.warn(t.full(), "leave it out, or capture it by a pipeline of another name", "is not in the publication %s; if it was created after the pipeline began it is not captured", name)
		}
		return nil
	}
	statement := createPublication(name, f.tables)
	if pub.exists {
		statement = addTables(name, missing)
	}
	var foreign []string
	for _, t := range missing {
		if !t.owned {
			foreign = append(foreign, t.full())
		}
	}
	r, err := c.query(ctx, "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')")
	if err != nil {
		return err
	}
	may := r.text(0, 0) == "t"
	if pub.exists {
		may = pub.owned
	}
	if may && len(foreign) == 0 {
		return nil // it is made at the start
	}
	why := fmt.Sprintf("%s may not create it in this database", o.Config.User)
	if pub.exists {
		why = fmt.Sprintf("it belongs to another role and lacks %s", joinFull(missing))
	}
	if len(foreign) > 0 {
		why = fmt.Sprintf("%s may not publish tables of another owner (%s)", o.Config.User, joinSome(foreign, 5))
	}
	what := "does not exist"
	if pub.exists {
		what = "does not have every relation"
	}
	p.fail("publication", "run as their owner, or as a superuser: "+statement, "%s %s, and %s", name, what, why)
	return nil
}

// lacksOldRows says why changes of a relation can't be applied to its table, and
// the way out: a row that leaves a partition is deleted there, so the server must
// tell what the partition was.
func (o *Options) lacksOldRows(sh *shape, t tableInfo) (why, fix string) {
	if o.Partitioned == nil || t.identity == 'f' || o.Append != nil && o.Append(t.schema, t.name) {
		return "", ""
	}
	key := map[string]bool{}
	for _, k := range sh.Rel.Key {
		key[sh.Rel.Columns[k].Name] = true
	}
	for _, c := range o.Partitioned(t.schema, t.name) {
		if !key[c] {
			return fmt.Sprintf("is partitioned by %s, which is not part of its key and does not come with deletes and updates", c),
				"run: ALTER TABLE " + t.qualified() + " REPLICA IDENTITY FULL"
		}
	}
	return "", ""
}

func joinFull(tables []tableInfo) string {
	var names []string
	for _, t := range tables {
		names = append(names, t.full())
	}
	return joinSome(names, 5)
}

// joinSome joins names for a message, the first n of them.
func joinSome(names []string, n int) string {
	if len(names) > n {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
	}
	return strings.Join(names, ", ")
}

// Check looks at the server as Open does and reports everything at once. Its
// error is a server that could not be asked: source.ErrUnavailable, or
// source.ErrCannotServe for a password or certificate that is refused.
func Check(ctx context.Context, o Options) (*Report, error) {
	o.defaults()
	c, err := connect(ctx, &o, sideSession)
	if err != nil {
		if refused(err) || errors.Is(err, source.ErrCannotServe) {
			return nil, fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		}
		return nil, fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	defer c.close()
	r := &Report{Server: "postgres " + c.release}
	f, p, err := preflight(ctx, &o, c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	for _, t := range f.tables {
		if !t.captured || !t.readable {
			continue
		}
		sh, err := loadShape(ctx, c, t.oid)
		switch {
		case errors.Is(err, source.ErrCannotServe):
			p.fail(t.full(), "", "%s", strings.TrimPrefix(err.Error(), source.ErrCannotServe.Error()+": "))
		case err != nil:
			return nil, fmt.Errorf("%w: %w", source.ErrUnavailable, err)
		case sh != nil && sh.Refuse != "":
			p.fail(t.full(), "", "%s", sh.Refuse)
		case sh != nil:
			if why, fix := o.lacksOldRows(sh, t); why != "" {
				p.fail(t.full(), fix, "%s", why)
			}
			r.Relations = append(r.Relations, sh.Rel)
		}
	}
	r.Problems = p.all
	return r, nil
}
