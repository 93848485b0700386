package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// validator checks the values that decoded, without asking any server.
type validator struct {
	c        *Config
	dir      string
	seen     map[string]bool // keys with a problem already
	problems Problems
}

// bad adds a problem, unless the key or a section around it has one already,
// which this one would only follow from.
func (v *validator) bad(key, what, fix string) {
	for k, ok := key, true; ok; k, ok = parent(k) {
		if v.seen[k] {
			return
		}
	}
	v.problems = append(v.problems, v.c.At(key, what, fix))
}

// shown is the value of a key as the file has it, for messages.
func (v *validator) shown(key string) string {
	return strconv.Quote(v.c.origins[key].raw)
}

func (v *validator) oneOf(key, value string, allowed ...string) bool {
	if slices.Contains(allowed, value) {
		return true
	}
	v.bad(key, v.shown(key)+" is not known", "use "+strings.Join(allowed, ", "))
	return false
}

// required reports whether a text is there.
func (v *validator) required(key, value, fix string) bool {
	if value == "" {
		v.bad(key, "missing", fix)
	}
	return value != ""
}

func (v *validator) all() {
	c := v.c
	if v.required("pipeline", c.Pipeline, "name the pipeline with 1 to 40 of a-z, 0-9 and _") && !pipelineName.MatchString(c.Pipeline) {
		v.bad("pipeline", v.shown("pipeline")+" is not a pipeline's name", "use 1 to 40 of a-z, 0-9 and _")
	}
	v.source()
	v.relations()
	v.startup()
	v.catalog()
	v.s3()
	for i := range c.Tables {
		v.table(index("tables", i), &c.Tables[i])
	}
	v.checkpoint()
	if c.Memory < 64<<20 {
		v.bad("memory", v.shown("memory")+" is too little to work in", "give at least 64MiB")
	}
	v.path("spill_dir", &c.SpillDir)
	v.http()
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "auto", "json", "text")
}

var pipelineName = regexp.MustCompile(`^[a-z0-9_]{1,40}$`)

func (v *validator) source() {
	s := v.c.Source
	later := v.seen["source.kafka"]
	switch {
	case s.MySQL != nil && s.MariaDB != nil:
		v.bad("source.mariadb", "a second source", "keep one of mysql, mariadb and postgres; another source is another pipeline")
	case s.Postgres != nil && (s.MySQL != nil || s.MariaDB != nil):
		v.bad("source.postgres", "a second source", "keep one of mysql, mariadb and postgres; another source is another pipeline")
	case s.MySQL != nil:
		v.mysql("source.mysql", s.MySQL)
	case s.MariaDB != nil:
		v.mysql("source.mariadb", s.MariaDB)
	case s.Postgres != nil:
		v.postgres("source.postgres", s.Postgres)
	case !later && !v.seen["source"]:
		v.bad("source", "missing", "add a section mysql, mariadb or postgres with host, user and password")
	}
}

func (v *validator) mysql(key string, m *MySQL) {
	if v.seen[key] {
		return
	}
	v.server(key, m.Host, m.Port, "3306", m.Heartbeat, &m.TLS)
	v.required(key+".user", m.User, "name a user with REPLICATION SLAVE, REPLICATION CLIENT and SELECT")
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

func (v *validator) postgres(key string, p *Postgres) {
	if v.seen[key] {
		return
	}
	v.server(key, p.Host, p.Port, "5432", p.Heartbeat, &p.TLS)
	v.required(key+".user", p.User, "name a role with REPLICATION, and SELECT on the relations")
	v.required(key+".database", p.Database, "name the database; another one is another pipeline")
	if p.Slot != "" && !slotName.MatchString(p.Slot) {
		v.bad(key+".slot", v.shown(key+".slot")+" is not a slot's name", "use 1 to 63 of a-z, 0-9 and _")
	}
	if len(p.Publication) > 63 {
		v.bad(key+".publication", v.shown(key+".publication")+" is too long", "use at most 63 bytes")
	}
}

// server checks what all databases share.
func (v *validator) server(key, host string, port int, usual string, heartbeat Duration, t *TLS) {
	v.required(key+".host", host, "name the server")
	if port < 1 || port > 65535 {
		v.bad(key+".port", v.shown(key+".port")+" is not a port", "use 1 to 65535; "+usual+" is usual")
	}
	if h := heartbeat.D(); h < 100*time.Millisecond || h > time.Hour {
		v.bad(key+".heartbeat", v.shown(key+".heartbeat")+" is out of range", "use 100ms to 1h; 10s is usual")
	}
	v.oneOf(key+".tls.mode", t.Mode, TLSDisabled, TLSPreferred, TLSRequired, TLSVerifyCA, TLSVerifyFull)
	v.readable(key+".tls.ca", &t.CA)
	v.readable(key+".tls.cert", &t.Cert)
	v.readable(key+".tls.key", &t.Key)
	if (t.Cert == "") != (t.Key == "") {
		v.bad(key+".tls", "cert and key belong together", "give both or neither")
	}
	if t.CA != "" && t.Mode != TLSVerifyCA && t.Mode != TLSVerifyFull {
		v.bad(key+".tls.ca", "has no effect in this mode", "set tls.mode to verify_ca or verify_full, or remove ca")
	}
}

// path makes a path absolute from the folder of the file.
func (v *validator) path(key string, p *string) {
	if *p == "" || filepath.IsAbs(*p) {
		return
	}
	abs, err := filepath.Abs(filepath.Join(v.dir, *p))
	if err != nil {
		v.bad(key, err.Error(), "write an absolute path")
		return
	}
	*p = abs
}

func (v *validator) readable(key string, p *string) {
	v.path(key, p)
	if *p == "" {
		return
	}
	f, err := os.Open(*p)
	if err != nil {
		v.bad(key, v.shown(key)+" can't be read: "+cause(err), "name a file that this user may read")
		return
	}
	f.Close()
}

func (v *validator) relations() {
	if len(v.c.Relations) == 0 {
		v.bad("relations", "missing", `list what to replicate, such as ["shop.*"]`)
		return
	}
	positive := false
	for i, p := range v.c.Relations {
		plain, out := strings.CutPrefix(p, "!")
		positive = positive || !out
		v.pattern(index("relations", i), plain)
	}
	if !positive {
		v.bad("relations", "only leaves out", `begin with what to take, such as "shop.*"`)
	}
}

func (v *validator) pattern(key, p string) {
	if err := checkPattern(p); err != nil {
		v.bad(key, v.shown(key)+": "+err.Error(), `write NAMESPACE.NAME; * stands for any characters, ? for one`)
	}
}

func (v *validator) startup() {
	s := v.c.Startup
	switch s.Mode {
	case StartupInitial:
	case "snapshot_only", "earliest", "latest_offset", "specific_offset", "timestamp":
		v.bad("startup.mode", s.Mode+" is not in this version", "use initial")
		return
	default:
		v.bad("startup.mode", v.shown("startup.mode")+" is not known", "use initial")
		return
	}
	if s.Position != "" {
		v.bad("startup.position", "has no meaning in mode initial", "remove it; lakesyncd checkpoint set moves a pipeline by hand")
	}
	if !s.Timestamp.IsZero() {
		v.bad("startup.timestamp", "has no meaning in mode initial", "remove it")
	}
}

func (v *validator) catalog() {
	fs := v.c.Catalog.Filesystem
	if fs == nil {
		for _, name := range []string{"rest", "hive", "glue", "sql"} {
			if v.seen["catalog."+name] {
				return
			}
		}
		v.bad("catalog", "missing", `add filesystem: {warehouse: "file:///srv/lake"}`)
		return
	}
	if v.required("catalog.filesystem.warehouse", fs.Warehouse, "name the root folder of the tables, file:///… or s3://BUCKET/PREFIX") {
		v.store("catalog.filesystem.warehouse", fs.Warehouse)
	}
}

// store checks the URI of a folder.
func (v *validator) store(key, uri string) {
	if v.seen[key] {
		return
	}
	scheme, rest, ok := strings.Cut(uri, "://")
	switch {
	case ok && scheme == "hdfs":
		v.bad(key, "hdfs is not in this version", "use file:// or s3://")
	case !ok || scheme != "file" && scheme != "s3":
		v.bad(key, v.shown(key)+" is not a place that we know", "write file:///FOLDER or s3://BUCKET/PREFIX")
	case strings.ContainsAny(rest, "?#") || strings.Contains("/"+rest+"/", "/../"):
		v.bad(key, v.shown(key)+" is not a plain folder", "leave out .., ? and #")
	case scheme == "file" && strings.Trim(rest, "/") == "":
		v.bad(key, v.shown(key)+" is not a folder of its own", "name a folder, such as file:///srv/lake")
	case scheme == "file" && !strings.HasPrefix(rest, "/"):
		v.bad(key, v.shown(key)+" has no absolute path", "write three slashes: file:///FOLDER")
	case scheme == "s3" && !bucketName.MatchString(rest):
		v.bad(key, v.shown(key)+" names no bucket", "write s3://BUCKET/PREFIX")
	}
}

var bucketName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*(/.*)?$`)

func (v *validator) s3() {
	s := v.c.Storage.S3
	if s.Endpoint != "" {
		u, err := url.Parse(s.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			v.bad("storage.s3.endpoint", "is not an address", "write http://HOST:PORT or https://HOST")
		} else if u.User != nil {
			v.bad("storage.s3.endpoint", "holds a user or password", "use access_key and secret_key")
		}
	}
	if (s.AccessKey == "") != (s.SecretKey == "") {
		v.bad("storage.s3", "access_key and secret_key belong together", "give both, or neither for the credentials of the environment")
	}
}

var (
	transform = regexp.MustCompile(`^\s*([a-z]+)\s*\((.*)\)\s*$`)
	sized     = regexp.MustCompile(`^\s*(\d+)\s*,\s*\S.*$`)
	castType  = regexp.MustCompile(`^(boolean|int|long|string|time|uuid|binary|decimal\(\s*\d{1,2}\s*,\s*\d{1,2}\s*\))$`)
)

func (v *validator) table(key string, t *Table) {
	if v.required(key+".match", t.Match, "say which relations the entry is for, such as shop.orders or shop.*") {
		v.pattern(key+".match", t.Match)
	}
	if t.Table != "" && !TableName(t.Table) {
		v.bad(key+".table", v.shown(key+".table")+" is not a table's name",
			"write NAMESPACE.NAME, without / and not beginning with a dot")
	}
	switch t.Mode {
	case "", ModeUpsert, ModeAppend:
	case "overwrite":
		v.bad(key+".mode", "overwrite is not in this version", "use upsert or append")
	default:
		v.oneOf(key+".mode", t.Mode, ModeUpsert, ModeAppend)
	}
	for i, k := range t.Key {
		v.required(index(key+".key", i), k, "name a column")
		if slices.Contains(t.Key[:i], k) {
			v.bad(index(key+".key", i), "named twice", "name each column once")
		}
	}
	if t.Mode == ModeAppend && len(t.Key) > 0 {
		v.bad(key+".key", "has no meaning in mode append", "remove it, or use mode: upsert")
	}
	for i, p := range t.PartitionBy {
		v.transform(index(key+".partition_by", i), p)
	}
	for i, s := range t.SortBy {
		if f := strings.Fields(s); len(f) == 0 {
			v.bad(index(key+".sort_by", i), "empty", "name a column, with asc or desc after it if you like")
		}
	}
	if t.TargetFileSize != 0 && (t.TargetFileSize < 1<<10 || t.TargetFileSize > 4<<30) {
		v.bad(key+".target_file_size", v.shown(key+".target_file_size")+" is out of range", "use 1KiB to 4GiB; 128MiB is usual")
	}
	for _, name := range sortedKeys(t.Columns) {
		at := join(key+".columns", name)
		if as := t.Columns[name].As; as != "" && !castType.MatchString(as) {
			v.bad(at+".as", v.shown(at+".as")+" is not a type to choose",
				"use boolean, int, long, decimal(p,s), string, time, uuid or binary")
		}
	}
	for _, name := range sortedKeys(t.Properties) {
		at := join(key+".properties", name)
		switch {
		case strings.HasPrefix(name, "lakesync."):
			v.bad(at, "belongs to lakesyncd", "remove it")
		case name == "format-version" && t.Properties[name] != "2":
			v.bad(at, "only format version 2 is written", "remove it")
		}
	}
	opt := func(name, value string, allowed ...string) {
		if value != "" {
			v.oneOf(key+"."+name, value, allowed...)
		}
	}
	opt("inserts", t.Inserts, InsertsProven, InsertsUpsert)
	opt("on_drop_column", t.OnDropColumn, "drop", "keep", "stop")
	opt("on_truncate", t.OnTruncate, TruncateApply, TruncateStop, TruncateKeep)
	if t.Misfit == "dead_letter" {
		v.bad(key+".misfit", "dead_letter is not in this version", "use null or stop")
	} else {
		opt("misfit", t.Misfit, MisfitNull, MisfitStop)
	}
}

// transform checks the function and its number; which columns it may take is
// known only when the relation is.
func (v *validator) transform(key, p string) {
	if strings.TrimSpace(p) == "" {
		v.bad(key, "empty", "write a column or day(column), bucket(16, column), …")
		return
	}
	m := transform.FindStringSubmatch(p)
	if m == nil {
		return // a column by itself
	}
	switch m[1] {
	case "identity", "void", "year", "month", "day", "hour", "years", "months", "days", "hours":
	case "bucket", "truncate":
		n := sized.FindStringSubmatch(m[2])
		if n == nil {
			v.bad(key, v.shown(key)+" lacks its number", fmt.Sprintf("write %s(16, COLUMN)", m[1]))
			return
		}
		if w, err := strconv.ParseInt(n[1], 10, 32); err != nil || w == 0 {
			v.bad(key, v.shown(key)+" has a number out of range", "use 1 to 2147483647")
		}
	default:
		v.bad(key, v.shown(key)+": no such transform", "use identity, year, month, day, hour, bucket(N, …), truncate(N, …) or void")
	}
}

// TableName reports whether name can be a table: NAMESPACE.NAME, each a folder
// below the warehouse. Folders that begin with a dot are hidden from readers,
// and one of them is ours.
func TableName(name string) bool {
	namespace, rest, ok := strings.Cut(name, ".")
	for _, part := range []string{namespace, rest} {
		bad := part == "" || part[0] == '.' || strings.ContainsFunc(part, func(r rune) bool {
			return r == '/' || r == '\\' || r < 0x20 || r == 0x7f || r == 0xfffd
		})
		if bad {
			return false
		}
	}
	return ok
}

func (v *validator) checkpoint() {
	c := v.c.Checkpoint
	if c.Interval.D() < 100*time.Millisecond {
		v.bad("checkpoint.interval", v.shown("checkpoint.interval")+" is too short", "use at least 100ms; 10s is usual")
	}
	if c.IdleMark.D() < time.Second {
		v.bad("checkpoint.idle_mark", v.shown("checkpoint.idle_mark")+" is too short", "use at least 1s; 1h is usual")
	}
	if c.Store != "" {
		v.store("checkpoint.store", c.Store)
	}
	s := v.c.Snapshots
	if s.Min < 1 {
		v.bad("snapshots.min", v.shown("snapshots.min")+" is too few", "keep at least 1")
	}
	if s.Max < s.Min {
		v.bad("snapshots.max", "is less than min", "raise max or lower min")
	}
}

func (v *validator) http() {
	switch v.c.HTTP {
	case "", "off":
		v.c.HTTP = ""
		return
	}
	_, port, err := net.SplitHostPort(v.c.HTTP)
	n, perr := strconv.Atoi(port)
	if err != nil || perr != nil || n < 0 || n > 65535 {
		v.bad("http", v.shown("http")+" is not an address to listen on", "write HOST:PORT, such as "+DefaultHTTP+", or off")
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
