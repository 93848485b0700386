package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	// overlapping are captured relations whose engine has no transactions.
	overlapping []string
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

func (p *problems) logWarnings(log *slog.Logger) {
	for _, x := range p.all {
		if x.Severity == SeverityWarning {
			log.Warn("the server should be set up otherwise", "key", x.Key, "reason", x.Message, "fix", x.Fix)
		}
	}
}

// facts is what preflight learned of the server.
type facts struct {
	server   serverFacts
	identity identity
}

// preflight looks at every setting and right that the pipeline needs. Its error
// is a lost connection; what is wrong at the server is in the problems.
func preflight(ctx context.Context, o *Options, c *conn) (facts, *problems, error) {
	p := &problems{}
	var f facts
	if c.mariaDB != (o.Flavor == FlavorMariaDB) {
		want, have := "mysql", "mariadb"
		if o.Flavor == FlavorMariaDB {
			want, have = have, want
		}
		p.fail("source."+want, "write source."+have, "the server at %s is %s", address(o.Config), c.version)
		return f, p, nil
	}
	v, err := c.variables(ctx)
	if err != nil {
		return f, p, err
	}
	if f.identity, err = c.identity(ctx); err != nil {
		return f, p, err
	}
	f.server = serverFacts{Version: c.version, Collation: v["collation_server"], ExplicitTimestamps: on(v["explicit_defaults_for_timestamp"])}
	f.server.LowerCaseTableNames, _ = strconv.Atoi(v["lower_case_table_names"])
	f.server.CascadesLogged = !c.mariaDB && atLeast(c.version, 9, 6) && !on(v["innodb_native_foreign_keys"])
	settings(p, c, v)
	if err := rights(ctx, p, o, c); err != nil {
		return f, p, err
	}
	if err := filters(ctx, p, c); err != nil {
		return f, p, err
	}
	return f, p, tablesFit(ctx, p, o, c, f.server)
}

func (c *conn) variables(ctx context.Context) (map[string]string, error) {
	r, err := c.query(ctx, "SHOW GLOBAL VARIABLES")
	if err != nil {
		return nil, fmt.Errorf("read the server's settings: %w", err)
	}
	v := map[string]string{}
	for _, row := range r.rows {
		v[strings.ToLower(row[0])] = row[1]
	}
	return v, nil
}

func on(v string) bool { return v == "1" || strings.EqualFold(v, "ON") }

// atLeast compares a version such as "9.7.4-2" with a release.
func atLeast(version string, major, minor int) bool {
	f := strings.SplitN(version, ".", 3)
	if len(f) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(f[0])
	b, err2 := strconv.Atoi(f[1])
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// settings looks at the log's form.
func settings(p *problems, c *conn, v map[string]string) {
	persist := "SET PERSIST "
	if c.mariaDB {
		persist = "SET GLOBAL "
	}
	if !on(v["log_bin"]) {
		p.fail("log_bin", "start the server with --log-bin", "the server writes no log of changes")
	}
	want := func(name, value, why string) {
		if have, ok := v[name]; !ok || !strings.EqualFold(have, value) {
			if !ok {
				p.fail(name, "", "the server does not know this setting, %s is too old", c.version)
				return
			}
			p.fail(name, fmt.Sprintf("run: %s%s='%s'; sessions that are open keep the old value", persist, name, value), "is %q, %s", have, why)
		}
	}
	if _, ok := v["binlog_format"]; ok { // MySQL is about to know nothing but ROW
		want("binlog_format", "ROW", "so the log holds statements in place of rows")
	}
	want("binlog_row_image", "FULL", "so the log leaves columns out")
	want("binlog_row_metadata", "FULL", "so the log does not name its columns")
	if have, ok := v["binlog_row_value_options"]; ok && have != "" {
		p.fail("binlog_row_value_options", "run: "+persist+"binlog_row_value_options=''", "is %q, so JSON columns are logged as differences", have)
	}
	if !c.mariaDB && atLeast(c.version, 9, 6) && on(v["innodb_native_foreign_keys"]) {
		p.warn("innodb_native_foreign_keys", "", "is ON, so rows changed by a foreign key's CASCADE or SET NULL are not logged")
	}
	if !c.mariaDB && v["gtid_mode"] != "ON" {
		p.warn("gtid_mode", "", "is %s, so positions are offsets in the files of this server, and no other server can take its place", v["gtid_mode"])
	}
	if v["sync_binlog"] != "1" || v["innodb_flush_log_at_trx_commit"] != "1" {
		p.warn("sync_binlog", "run: "+persist+"sync_binlog=1 and "+persist+"innodb_flush_log_at_trx_commit=1", "the server may lose committed transactions in a crash that the lake has already; sync_binlog is %s, innodb_flush_log_at_trx_commit is %s", v["sync_binlog"], v["innodb_flush_log_at_trx_commit"])
	}
	retention := int64(0)
	if s, err := strconv.ParseInt(v["binlog_expire_logs_seconds"], 10, 64); err == nil {
		retention = s
	}
	if retention == 0 {
		if d, err := strconv.ParseFloat(v["expire_logs_days"], 64); err == nil {
			retention = int64(d * 86400)
		}
	}
	if retention > 0 && retention < 86400 {
		p.warn("binlog_expire_logs_seconds", "run: "+persist+"binlog_expire_logs_seconds=259200", "the server keeps its log for %d seconds; a pipeline that stands still for longer must copy everything anew", retention)
	}
}

// filters warns of what the server itself leaves out of its log.
func filters(ctx context.Context, p *problems, c *conn) error {
	r, err := c.first(ctx, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
	if c.mariaDB {
		r, err = c.first(ctx, "SHOW BINLOG STATUS", "SHOW MASTER STATUS")
	}
	if err != nil {
		if errorCode(err) != 0 {
			return nil // rights has named it
		}
		return err
	}
	for _, col := range []string{"Binlog_Do_DB", "Binlog_Ignore_DB"} {
		if have := r.at(0, col); have != "" {
			p.fail(strings.ReplaceAll(strings.ToLower(col), "_", "-"), "start the server without it", "is %q, so the server leaves changes out of its log", have)
		}
	}
	// A replica without log_replica_updates logs only its own writes.
	v, err := c.variables(ctx)
	if err != nil {
		return err
	}
	replica, err := c.first(ctx, "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
	if err == nil && len(replica.rows) > 0 && !on(v["log_replica_updates"]) && !on(v["log_slave_updates"]) {
		p.fail("log_replica_updates", "start the server with --log-replica-updates", "the server is a replica and does not log what it replicates")
	}
	return nil
}

// rights tries what the pipeline does, which says more than SHOW GRANTS.
func rights(ctx context.Context, p *problems, o *Options, c *conn) error {
	grant := func(right string) string {
		return fmt.Sprintf("run: GRANT %s ON *.* TO %s", right, quote(o.Config.User))
	}
	client, slave := "REPLICATION CLIENT", "REPLICATION SLAVE"
	status := []string{"SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"}
	if c.mariaDB {
		client, status = "BINLOG MONITOR", []string{"SHOW BINLOG STATUS", "SHOW MASTER STATUS"}
	}
	if _, err := c.first(ctx, status...); err != nil {
		if errorCode(err) == 0 {
			return err
		}
		p.fail("user", grant(client), "%s may not ask where the log ends: %v", o.Config.User, err)
	}
	g, err := c.query(ctx, "SHOW GRANTS")
	if err != nil {
		if errorCode(err) == 0 {
			return err
		}
		return nil
	}
	var has, reload bool
	for _, row := range g.rows {
		t := strings.ToUpper(row[0])
		if !strings.Contains(t, " ON *.* TO ") {
			continue
		}
		all := strings.Contains(t, "GRANT ALL PRIVILEGES ON")
		has = has || all || strings.Contains(t, "REPLICATION SLAVE,") || strings.Contains(t, "REPLICATION SLAVE ON") || strings.Contains(t, "REPLICATION REPLICA")
		reload = reload || all || strings.Contains(t, "RELOAD")
	}
	if !has {
		p.fail("user", grant(slave), "%s may not read the log", o.Config.User)
	}
	if !c.mariaDB && !reload && o.Resume == nil {
		p.warn("user", grant("RELOAD"), "%s has no right RELOAD, so the initial snapshot is taken without a lock: first inserts become upserts", o.Config.User)
	}
	return nil
}

// tablesFit looks at the captured tables: may they be read, is all that happens
// to them in the log.
func tablesFit(ctx context.Context, p *problems, o *Options, c *conn, f serverFacts) error {
	tables, err := listTables(ctx, c, o.Match)
	if err != nil {
		return err
	}
	captured := map[string]bool{}
	for _, t := range tables {
		if !t.captured {
			continue
		}
		captured[t.full()] = true
		if err := c.exec(ctx, "SELECT 1 FROM "+ident(t.schema)+"."+ident(t.name)+" LIMIT 0"); err != nil {
			if errorCode(err) == 0 {
				return err
			}
			p.fail(t.full(), fmt.Sprintf("run: GRANT SELECT ON %s.* TO %s", ident(t.schema), quote(o.Config.User)), "cannot be read: %v", err)
		}
		if t.kind == "SYSTEM VERSIONED" {
			p.fail(t.full(), "leave it out: \"!"+t.full()+"\" in relations", "is a table WITH SYSTEM VERSIONING, whose history rows the log mixes with the present ones")
		}
		if e := strings.ToLower(t.engine); e != "innodb" && e != "rocksdb" && e != "ndbcluster" && t.kind == "BASE TABLE" {
			p.overlapping = append(p.overlapping, t.full())
			if o.Append != nil && o.Append(t.schema, t.name) {
				p.fail(t.full(), fmt.Sprintf("run: ALTER TABLE %s.%s ENGINE=InnoDB", ident(t.schema), ident(t.name)), "has the engine %s without transactions, so its initial snapshot and the log overlap, and it is written in append mode", t.engine)
			} else if o.Resume == nil {
				p.warn(t.full(), fmt.Sprintf("run: ALTER TABLE %s.%s ENGINE=InnoDB", ident(t.schema), ident(t.name)), "has the engine %s without transactions, so its initial snapshot may hold later changes and its inserts are upserts", t.engine)
			}
		}
	}
	if len(captured) == 0 {
		reads, err := c.mayRead(ctx)
		switch {
		case err != nil:
			return err
		case !reads:
			p.fail("relations", "run: GRANT SELECT ON *.* TO "+quote(o.Config.User)+", or on the schemas that are captured",
				"no table of the server can be seen: the user has no right SELECT")
		default:
			p.warn("relations", "if there should be some, run: GRANT SELECT ON SCHEMA.* TO "+quote(o.Config.User),
				"no table that this user may see matches; those created later are captured")
		}
	}
	if f.CascadesLogged {
		return nil
	}
	r, err := c.query(ctx, `SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.referential_constraints
		WHERE DELETE_RULE IN ('CASCADE','SET NULL','SET DEFAULT') OR UPDATE_RULE IN ('CASCADE','SET NULL','SET DEFAULT')`)
	if err != nil {
		return fmt.Errorf("list the foreign keys: %w", err)
	}
	for _, row := range r.rows {
		name := row[0] + "." + row[1]
		if captured[name] {
			p.fail(name, fmt.Sprintf("leave it out: \"!%s\" in relations, or give the key ON DELETE RESTRICT ON UPDATE RESTRICT", name),
				"its foreign key %s has ON DELETE %s ON UPDATE %s, and this server does not log the rows that it changes by that", row[2], row[3], row[4])
		}
	}
	return nil
}

// mayRead reports whether the user has a right SELECT on anything, as far as can be
// seen; a role may give it. Without one a server shows no table at all.
func (c *conn) mayRead(ctx context.Context) (bool, error) {
	r, err := c.query(ctx, "SHOW GRANTS")
	if err != nil {
		return false, fmt.Errorf("show the user's rights: %w", err)
	}
	for _, row := range r.rows {
		what, _, privileges := strings.Cut(strings.ToUpper(row[0]), " ON ")
		if !privileges || strings.Contains(what, "SELECT") || strings.Contains(what, "ALL PRIVILEGES") {
			return true, nil
		}
	}
	return false, nil
}

// Check looks at the server as Open does and reports everything at once. Its
// error is a server that could not be asked: source.ErrUnavailable, or
// source.ErrCannotServe for a password or certificate that is refused.
func Check(ctx context.Context, o Options) (*Report, error) {
	o.defaults()
	r := &Report{}
	if _, err := newServerIDs(&o); err != nil {
		r.Problems = append(r.Problems, Problem{SeverityError, "server_id", strings.TrimPrefix(err.Error(), source.ErrCannotServe.Error()+": "), "write a range such as 5400-5403"})
	}
	c, err := connect(ctx, o.Config, sideTimeout)
	if err != nil {
		if refused(err) || errors.Is(err, source.ErrCannotServe) {
			return nil, fmt.Errorf("%w: %w", source.ErrCannotServe, err)
		}
		return nil, fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	defer c.Close()
	r.Server = o.Flavor.String() + " " + c.version
	f, p, err := preflight(ctx, &o, c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", source.ErrUnavailable, err)
	}
	defer func() { r.Problems = append(r.Problems, p.all...) }()
	if ids, err := newServerIDs(&o); err == nil {
		if _, taken := ids.pick(ctx, c); taken != "" {
			p.warn("server_id", "take another range", "%s", taken)
		}
	}
	if p.err() != nil && c.mariaDB != (o.Flavor == FlavorMariaDB) {
		return r, nil
	}
	look := &cut{hist: newHistory(o.Flavor, o.Match), create: map[string]string{}}
	look.hist.setServer(f.server)
	if err := look.define(ctx, &o, c); err != nil {
		p.fail("relations", "", "%v", err)
		return r, nil
	}
	est := map[string]int64{}
	for _, t := range look.tables {
		est[t.full()] = t.rows
	}
	for _, d := range look.hist.captured() {
		if d.Refuse != "" {
			p.fail(d.Schema+"."+d.Name, "", "%s", d.Refuse)
		}
		if d.Rel == nil {
			continue
		}
		rel := *d.Rel
		rel.EstimatedRows = -1
		if n, ok := est[rel.FullName()]; ok {
			rel.EstimatedRows = n
		}
		r.Relations = append(r.Relations, &rel)
	}
	return r, nil
}
