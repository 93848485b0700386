package config

import (
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Defaults that the reference page names.
const (
	DefaultHTTP           = "127.0.0.1:9187"
	DefaultMemory         = Size(256 << 20)
	DefaultTargetFileSize = Size(128 << 20)
)

// Default is a configuration with every default that doesn't depend on another
// key.
func Default() *Config {
	return &Config{
		Startup: Startup{Mode: StartupInitial},
		Checkpoint: Checkpoint{
			Interval: Duration(10 * time.Second),
			IdleMark: Duration(time.Hour),
		},
		Snapshots:   Snapshots{Keep: Duration(24 * time.Hour), Min: 20, Max: 500},
		Memory:      DefaultMemory,
		RetryBudget: Duration(5 * time.Minute),
		HTTP:        DefaultHTTP,
		Log:         Log{Level: "info", Format: "auto"},
	}
}

// defaulter is a section that fills itself before its keys are read.
type defaulter interface{ setDefaults() }

func (m *MySQL) setDefaults() {
	m.Port = 3306
	m.TLS.Mode = TLSPreferred
	m.Heartbeat = Duration(10 * time.Second)
}

func (p *Postgres) setDefaults() {
	p.Port = 5432
	p.TLS.Mode = TLSPreferred
	p.Heartbeat = Duration(10 * time.Second)
}

// fill sets what a table entry leaves open. It works on an entry that was not
// loaded from a file as well.
func (t *Table) fill() {
	set := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	set(&t.Mode, ModeUpsert)
	set(&t.Inserts, InsertsProven)
	set(&t.OnDropColumn, "drop")
	set(&t.Misfit, MisfitNull)
	if t.Mode == ModeAppend {
		set(&t.OnTruncate, TruncateStop)
	} else {
		set(&t.OnTruncate, TruncateApply)
	}
	if t.TargetFileSize == 0 {
		t.TargetFileSize = DefaultTargetFileSize
	}
}

// derive fills the defaults that depend on other keys. It comes after the
// checks, on a configuration that has what it needs.
func (c *Config) derive() {
	if c.Catalog.Filesystem != nil {
		c.Catalog.Filesystem.Warehouse = strings.TrimRight(c.Catalog.Filesystem.Warehouse, "/")
		if c.Checkpoint.Store == "" {
			c.Checkpoint.Store = c.Catalog.Filesystem.Warehouse + "/.lakesyncd/" + c.Pipeline
		}
	}
	c.Checkpoint.Store = strings.TrimRight(c.Checkpoint.Store, "/")
	if c.SpillDir == "" {
		c.SpillDir = filepath.Join(os.TempDir(), "lakesyncd-"+c.Pipeline)
	}
	if m := c.Server(); m != nil && m.ServerID == (IDRange{}) {
		m.ServerID = serverIDs(c.Pipeline)
	}
	if p := c.Source.Postgres; p != nil {
		if p.Slot == "" {
			p.Slot = "lakesync_" + c.Pipeline
		}
		if p.Publication == "" {
			p.Publication = "lakesync_" + c.Pipeline
		}
	}
	for i := range c.Tables {
		c.Tables[i].fill()
	}
}

// serverIDs gives a pipeline four ids of its own between 2^30 and 2^31, far from
// the small numbers that people give their servers.
func serverIDs(pipeline string) IDRange {
	h := fnv.New32a()
	h.Write([]byte(pipeline))
	first := 1<<30 | h.Sum32()&(1<<30-1)&^3
	return IDRange{First: first, Last: first + 3}
}

// Server is the configured MySQL or MariaDB server, nil if there is none.
func (c *Config) Server() *MySQL {
	if c.Source.MySQL != nil {
		return c.Source.MySQL
	}
	return c.Source.MariaDB
}
