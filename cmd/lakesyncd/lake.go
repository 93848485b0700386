package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// lake is the warehouse and the checkpoint store of a pipeline.
type lake struct {
	warehouse fileio.FS
	catalog   *table.Catalog
	records   fileio.FS
	store     *checkpoint.Store
}

// lakeMode says what a command does with the lake.
type lakeMode bool

const (
	looking lakeMode = true  // only reads
	writing lakeMode = false // tests at once that the warehouse can be written
)

// openLake opens both; reg may be nil.
func openLake(ctx context.Context, cfg *config.Config, mode lakeMode, log *slog.Logger, reg prometheus.Registerer) (*lake, error) {
	var l lake
	var err error
	opts := fileio.Options{Log: log, Registerer: reg}
	if l.warehouse, err = fileio.Open(ctx, cfg.Catalog.Filesystem.Warehouse, cfg.Storage, opts); err != nil {
		return nil, err
	}
	if l.records, err = fileio.Open(ctx, cfg.Checkpoint.Store, cfg.Storage, opts); err != nil {
		return nil, err
	}
	l.store = checkpoint.OpenStore(l.records, cfg.Checkpoint.Store, cfg.Pipeline, nil)
	l.catalog, err = table.OpenCatalog(ctx, table.CatalogOptions{
		Warehouse: cfg.Catalog.Filesystem.Warehouse, FS: l.warehouse, Snapshots: cfg.Snapshots,
		ReadOnly: bool(mode), Log: log, Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	return &l, nil
}

// hint is the version that readers of a table begin with.
func (l *lake) hint(ctx context.Context, t *table.Table) (int, error) {
	path := t.Location() + "/metadata/version-hint.text"
	data, _, err := l.warehouse.Read(ctx, path)
	if err != nil {
		return 0, err
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("read %s: not a version", path)
	}
	return v, nil
}

// quietLog is the logger of commands that answer and end: their errors are
// returned, what remains are warnings of retries.
func (c *cli) quietLog(cfg *config.Config) *slog.Logger {
	return newLogger(config.Log{Level: "warn", Format: cfg.Log.Format}, c.stderr, c.terminal)
}
