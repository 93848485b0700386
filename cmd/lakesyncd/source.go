package main

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source/mysql"
)

// sourceOptions is what the configuration says of the source. Who streams adds
// where to resume, memory and hooks.
func sourceOptions(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) mysql.Options {
	o := mysql.Options{
		Flavor:   mysql.FlavorMySQL,
		Pipeline: cfg.Pipeline,
		Match:    cfg.Captures,
		Append: func(namespace, name string) bool {
			return cfg.TableFor(namespace, name).Mode == config.ModeAppend
		},
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

// sourceKey is the path of the source's section in the file.
func sourceKey(cfg *config.Config) string {
	if cfg.Source.MariaDB != nil {
		return "source.mariadb"
	}
	return "source.mysql"
}
