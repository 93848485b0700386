package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

func readFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	asOf := fs.String("as-of", "", "the snapshot that was current at this `TIME`, such as 2026-01-01T00:00:00Z")
	snapshot := fs.Int64("snapshot", 0, "the snapshot with this `ID`")
	ref := fs.String("ref", "", "the branch or tag `NAME`")
	follow := fs.Bool("follow", false, "go on with new rows (not in this version)")
	return func(ctx context.Context, c *cli, args []string) error {
		if len(args) != 1 {
			return usagef("read: name one table, as NAMESPACE.NAME with -config, or as the URI of its folder")
		}
		if *follow {
			return usagef("read: -follow is not in this version")
		}
		o := table.RowsOptions{SnapshotID: *snapshot, Ref: *ref}
		chosen := 0
		for _, is := range []bool{*snapshot != 0, *ref != "", *asOf != ""} {
			if is {
				chosen++
			}
		}
		if chosen > 1 {
			return usagef("read: give one of -as-of, -snapshot and -ref")
		}
		if *asOf != "" {
			t, err := time.Parse(time.RFC3339Nano, *asOf)
			if err != nil {
				return usagef("read: -as-of %q: write it like 2026-01-01T00:00:00Z", *asOf)
			}
			o.AsOf = t
		}
		t, err := findTable(ctx, c, *path, args[0])
		if err != nil {
			return err
		}
		out := bufio.NewWriterSize(c.stdout, 1<<16)
		for row, err := range t.Rows(ctx, o) {
			if err != nil {
				_ = out.Flush() // the error tells more
				return err
			}
			_, err = out.Write(append(row, '\n'))
			if err != nil {
				return closedPipe(err)
			}
		}
		return closedPipe(out.Flush())
	}
}

// closedPipe forgives a reader such as head that has seen enough.
func closedPipe(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// findTable opens a table by its name in a pipeline's catalog, or by the URI or
// path of its folder.
func findTable(ctx context.Context, c *cli, configPath, name string) (*table.Table, error) {
	cfg := config.Default()
	if configPath != "" {
		var err error
		if cfg, err = load(configPath); err != nil {
			return nil, err
		}
	}
	warehouse := ""
	switch {
	case strings.HasPrefix(name, "/"):
		name = "file://" + name
		fallthrough
	case strings.Contains(name, "://"):
		parts := strings.Split(strings.TrimRight(name, "/"), "/")
		if len(parts) < 6 {
			return nil, usagef("read: %s is not the folder of a table, WAREHOUSE/NAMESPACE/NAME", name)
		}
		n := len(parts)
		warehouse, name = strings.Join(parts[:n-2], "/"), parts[n-2]+"."+parts[n-1]
	case cfg.Catalog.Filesystem == nil:
		return nil, usagef("read: -config FILE is missing, or the table's folder as a URI")
	default:
		warehouse = cfg.Catalog.Filesystem.Warehouse
	}
	log := c.quietLog(cfg)
	fs, err := fileio.Open(ctx, warehouse, cfg.Storage, fileio.Options{Log: log})
	if err != nil {
		return nil, err
	}
	cat, err := table.OpenCatalog(ctx, table.CatalogOptions{Warehouse: warehouse, FS: fs, ReadOnly: true, Log: log})
	if err != nil {
		return nil, err
	}
	t, err := cat.Load(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read %s in %s: %w", name, warehouse, err)
	}
	return t, nil
}
