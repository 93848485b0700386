// Package config is the reference of every key of a pipeline's file: plain data
// that other packages take their own section of. Load reads strictly, fills the
// defaults and reports every problem at once, with file, line, key and the way
// out. It imports nothing of ours.
package config

import "time"

// Config is one pipeline.
type Config struct {
	Pipeline   string     `yaml:"pipeline"` // [a-z0-9_]{1,40}
	Source     Source     `yaml:"source"`
	Relations  []string   `yaml:"relations"` // globs on namespace.name, "!" leaves out, later entries win
	Startup    Startup    `yaml:"startup"`
	Catalog    Catalog    `yaml:"catalog"`
	Storage    Storage    `yaml:"storage"`
	Tables     []Table    `yaml:"tables,omitempty"`
	Checkpoint Checkpoint `yaml:"checkpoint"`
	Snapshots  Snapshots  `yaml:"snapshots"`
	Memory     Size       `yaml:"memory"`    // default 256MiB
	SpillDir   string     `yaml:"spill_dir"` // default: a folder of the pipeline below the system's temporary folder
	// RetryBudget is how long a start waits for a source or store that is down.
	RetryBudget Duration `yaml:"retry_budget"` // default 5m
	HTTP        string   `yaml:"http"`         // default 127.0.0.1:9187
	Log         Log      `yaml:"log"`

	// File is where this was loaded from.
	File string `yaml:"-"`

	origins map[string]origin // by key path; nil if not loaded
}

// Source names exactly one database.
type Source struct {
	MySQL   *MySQL `yaml:"mysql,omitempty"`
	MariaDB *MySQL `yaml:"mariadb,omitempty"`
	// Postgres is one database of a PostgreSQL server.
	Postgres *Postgres `yaml:"postgres,omitempty"`
}

// MySQL is a MySQL or MariaDB server.
type MySQL struct {
	Host      string   `yaml:"host"`
	Port      int      `yaml:"port"` // default 3306
	User      string   `yaml:"user"`
	Password  Secret   `yaml:"password,omitempty"`
	TLS       TLS      `yaml:"tls"`
	ServerID  IDRange  `yaml:"server_id"` // a range such as 5400-5403
	Heartbeat Duration `yaml:"heartbeat"` // default 10s
}

// Postgres is one database of a PostgreSQL server.
type Postgres struct {
	Host     string `yaml:"host"`
	Port     int    `yaml:"port"` // default 5432
	User     string `yaml:"user"`
	Password Secret `yaml:"password,omitempty"`
	TLS      TLS    `yaml:"tls"`
	Database string `yaml:"database"`
	// Slot and Publication are made if they do not exist.
	Slot        string   `yaml:"slot"`        // default lakesync_PIPELINE
	Publication string   `yaml:"publication"` // default lakesync_PIPELINE
	Heartbeat   Duration `yaml:"heartbeat"`   // default 10s
}

// TLS modes, in the words of MySQL.
const (
	TLSDisabled   = "disabled"
	TLSPreferred  = "preferred"
	TLSRequired   = "required"
	TLSVerifyCA   = "verify_ca"
	TLSVerifyFull = "verify_full"
)

// TLS of a connection to a database.
type TLS struct {
	Mode string `yaml:"mode"` // default preferred
	CA   string `yaml:"ca,omitempty"`
	Cert string `yaml:"cert,omitempty"`
	Key  string `yaml:"key,omitempty"`
}

// Startup modes.
const (
	StartupInitial = "initial"
)

// Startup says where a pipeline without a saved record begins.
type Startup struct {
	Mode      string    `yaml:"mode"` // default initial
	Position  string    `yaml:"position,omitempty"`
	Timestamp time.Time `yaml:"timestamp,omitempty"`
}

// Catalog names exactly one catalog.
type Catalog struct {
	Filesystem *FilesystemCatalog `yaml:"filesystem,omitempty"`
}

// FilesystemCatalog keeps WAREHOUSE/NAMESPACE/NAME/{metadata,data}.
type FilesystemCatalog struct {
	Warehouse string `yaml:"warehouse"` // file:///…, s3://bucket/prefix
}

// Storage holds the access to the stores that warehouse and checkpoint store name.
type Storage struct {
	S3 S3 `yaml:"s3"`
}

// S3 access. Without keys the SDK's default chain is used.
type S3 struct {
	Endpoint  string `yaml:"endpoint,omitempty"`
	Region    string `yaml:"region,omitempty"`
	PathStyle bool   `yaml:"path_style"`
	AccessKey string `yaml:"access_key,omitempty"`
	SecretKey Secret `yaml:"secret_key,omitempty"`
}

// Table says how the relations that Match matches are written. First match wins.
type Table struct {
	Match          string            `yaml:"match"`
	Table          string            `yaml:"table,omitempty"`        // default: the relation's namespace.name
	Mode           string            `yaml:"mode"`                   // upsert | append; default upsert
	Key            []string          `yaml:"key,omitempty"`          // default: the relation's key
	PartitionBy    []string          `yaml:"partition_by,omitempty"` // day(created_at), bucket(16, id), …
	SortBy         []string          `yaml:"sort_by,omitempty"`      // "column [asc|desc]"
	TargetFileSize Size              `yaml:"target_file_size"`       // default 128MiB
	Columns        map[string]Column `yaml:"columns,omitempty"`
	Properties     map[string]string `yaml:"properties,omitempty"`
	Inserts        string            `yaml:"inserts"`        // proven | upsert; default proven
	OnDropColumn   string            `yaml:"on_drop_column"` // drop | keep | stop; default drop
	OnTruncate     string            `yaml:"on_truncate"`    // apply | stop | keep; default apply, in append mode stop
	Misfit         string            `yaml:"misfit"`         // null | stop; default null
}

// Column overrides of one column.
type Column struct {
	As string `yaml:"as,omitempty"` // boolean, int, long, decimal(p,s), string, time, uuid, binary
}

// Modes of a table.
const (
	ModeUpsert = "upsert"
	ModeAppend = "append"
)

// Values of Table.Inserts, Table.OnTruncate and Table.Misfit.
const (
	InsertsProven = "proven" // an insert the log proves new writes no equality delete
	InsertsUpsert = "upsert" // every insert also deletes its key

	TruncateApply = "apply"
	TruncateStop  = "stop"
	TruncateKeep  = "keep"

	MisfitNull = "null"
	MisfitStop = "stop"
)

// Checkpoint timing and place.
type Checkpoint struct {
	Interval Duration `yaml:"interval"`  // default 10s
	MinPause Duration `yaml:"min_pause"` // default 0s
	IdleMark Duration `yaml:"idle_mark"` // default 1h
	Store    string   `yaml:"store"`     // default WAREHOUSE/.lakesyncd/PIPELINE/
}

// Snapshots is the expiry of our own snapshots.
type Snapshots struct {
	Keep Duration `yaml:"keep"` // default 24h
	Min  int      `yaml:"min"`  // default 20
	Max  int      `yaml:"max"`  // default 500
}

// Log of the daemon.
type Log struct {
	Level  string `yaml:"level"`  // debug | info | warn | error; default info
	Format string `yaml:"format"` // auto | json | text; default auto
}

// Duration is a time.Duration that reads "30s".
type Duration time.Duration

// D is the plain value.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Size is a number of bytes that reads "128MiB".
type Size int64

// IDRange is an inclusive range of server ids, "5400-5403" or "5400".
type IDRange struct{ First, Last uint32 }
