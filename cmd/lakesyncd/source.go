package main

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/source/mysql"
	"github.com/lakesyncd/lakesyncd/source/postgres"
)

// sourceHooks is what who streams adds to the configuration.
type sourceHooks struct {
	memory      int64
	position    source.Position // where to resume; "": an initial snapshot
	state       []byte
	retryBudget time.Duration
	onState     func(waiting bool, reason string)
	onProgress  func(relation string, rows, estimated int64, done bool)
}

// openSource opens the database that the configuration names.
func openSource(ctx context.Context, cfg *config.Config, log *slog.Logger, reg prometheus.Registerer, h sourceHooks) (checkpoint.Stream, error) {
	if cfg.Source.Postgres != nil {
		o := postgresOptions(cfg, log, reg)
		o.Memory, o.RetryBudget, o.OnState = h.memory, h.retryBudget, h.onState
		if h.position != "" {
			o.Resume = &postgres.Resume{Position: h.position, State: h.state}
		}
		o.OnProgress = func(p postgres.Progress) { h.onProgress(p.Relation, p.Rows, p.Estimated, p.Done) }
		s, err := postgres.Open(ctx, o)
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	o := mysqlOptions(cfg, log, reg)
	o.Memory, o.RetryBudget, o.OnState = h.memory, h.retryBudget, h.onState
	if h.position != "" {
		o.Resume = &mysql.Resume{Position: h.position, State: h.state}
	}
	o.OnProgress = func(p mysql.Progress) { h.onProgress(p.Relation, p.Rows, p.Estimated, p.Done) }
	s, err := mysql.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// sourceProblem is something at the server that a person should change.
type sourceProblem struct {
	warning           bool
	key, message, fix string
}

// sourceReport is what a look at the source found.
type sourceReport struct {
	server    string
	problems  []sourceProblem
	relations []*source.Relation
}

// checkSource looks at the source without changing it.
func checkSource(ctx context.Context, cfg *config.Config, log *slog.Logger) (*sourceReport, error) {
	out := &sourceReport{}
	if cfg.Source.Postgres != nil {
		r, err := postgres.Check(ctx, postgresOptions(cfg, log, nil))
		if err != nil {
			return nil, err
		}
		out.server, out.relations = r.Server, r.Relations
		for _, p := range r.Problems {
			out.problems = append(out.problems, sourceProblem{p.Severity == postgres.SeverityWarning, p.Key, p.Message, p.Fix})
		}
		return out, nil
	}
	r, err := mysql.Check(ctx, mysqlOptions(cfg, log, nil))
	if err != nil {
		return nil, err
	}
	out.server, out.relations = r.Server, r.Relations
	for _, p := range r.Problems {
		out.problems = append(out.problems, sourceProblem{p.Severity == mysql.SeverityWarning, p.Key, p.Message, p.Fix})
	}
	return out, nil
}

// currentPosition is where the source stands.
func currentPosition(ctx context.Context, cfg *config.Config, log *slog.Logger) (source.Position, error) {
	if cfg.Source.Postgres != nil {
		return postgres.Current(ctx, postgresOptions(cfg, log, nil))
	}
	return mysql.Current(ctx, mysqlOptions(cfg, log, nil))
}

// reached reports whether have contains everything up to want.
func reached(have, want source.Position) (bool, error) {
	lsn := func(p source.Position) bool { return strings.HasPrefix(strings.TrimSpace(string(p)), "lsn:") }
	if lsn(have) || lsn(want) {
		return postgres.Reached(have, want)
	}
	return mysql.Reached(have, want)
}

func appendMode(cfg *config.Config) func(namespace, name string) bool {
	return func(namespace, name string) bool {
		return cfg.TableFor(namespace, name).Mode == config.ModeAppend
	}
}

func mysqlOptions(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) mysql.Options {
	o := mysql.Options{
		Flavor:      mysql.FlavorMySQL,
		Pipeline:    cfg.Pipeline,
		Match:       cfg.Captures,
		Append:      appendMode(cfg),
		Startup:     cfg.Startup,
		SpillDir:    cfg.SpillDir,
		RetryBudget: cfg.RetryBudget.D(),
		Log:         log,
		Registerer:  reg,
	}
	if cfg.Source.MariaDB != nil {
		o.Flavor = mysql.FlavorMariaDB
	}
	if s := cfg.Server(); s != nil {
		o.Config = *s
	}
	return o
}

func postgresOptions(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) postgres.Options {
	return postgres.Options{
		Config:      *cfg.Source.Postgres,
		Pipeline:    cfg.Pipeline,
		Match:       cfg.Captures,
		Append:      appendMode(cfg),
		Partitioned: partitionColumns(cfg),
		Startup:     cfg.Startup,
		RetryBudget: cfg.RetryBudget.D(),
		Log:         log,
		Registerer:  reg,
	}
}

// partitionColumns names the columns in the partition fields of a relation's
// table, such as "bucket(16, id)".
func partitionColumns(cfg *config.Config) func(namespace, name string) []string {
	return func(namespace, name string) []string {
		var out []string
		for _, field := range cfg.TableFor(namespace, name).PartitionBy {
			c := strings.TrimSpace(field)
			if i := strings.IndexByte(c, '('); i > 0 && strings.HasSuffix(c, ")") {
				c = c[i+1 : len(c)-1]
				c = strings.TrimSpace(c[strings.IndexByte(c, ',')+1:])
			}
			out = append(out, c)
		}
		return out
	}
}

// sourceKey is the path of the source's section in the file.
func sourceKey(cfg *config.Config) string {
	switch {
	case cfg.Source.Postgres != nil:
		return "source.postgres"
	case cfg.Source.MariaDB != nil:
		return "source.mariadb"
	}
	return "source.mysql"
}

// sourceAddress is where the source is, for people.
func sourceAddress(cfg *config.Config) string {
	if p := cfg.Source.Postgres; p != nil {
		return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) + ", database " + p.Database
	}
	s := cfg.Server()
	return net.JoinHostPort(s.Host, strconv.Itoa(s.Port))
}
