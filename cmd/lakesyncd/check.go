package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

func checkFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	effective := fs.Bool("print", false, "print the effective configuration, secrets masked")
	return func(ctx context.Context, c *cli, _ []string) error {
		cfg, err := load(*path)
		if err != nil {
			return err
		}
		if *effective {
			text, err := cfg.Masked()
			if err != nil {
				return err
			}
			if _, err := c.stdout.Write(text); err != nil {
				return err
			}
		}
		f := inspect(ctx, c, cfg, writing)
		for _, w := range f.warnings {
			c.printf("warning: %v", w)
		}
		if err := f.err(); err != nil {
			return err
		}
		c.printf("ok: %s, %s into %s", f.server, plural(len(f.tables), "relation"), cfg.Catalog.Filesystem.Warehouse)
		return nil
	}
}

func planFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON")
	return func(ctx context.Context, c *cli, _ []string) error {
		cfg, err := load(*path)
		if err != nil {
			return err
		}
		f := inspect(ctx, c, cfg, looking)
		if *asJSON {
			err = f.printJSON(c)
		} else {
			err = f.print(c)
		}
		return errors.Join(f.err(), err)
	}
}

// findings are what there is to say of a pipeline before it runs.
type findings struct {
	cfg      *config.Config
	server   string
	tables   []sink.PlanTable
	warnings []config.Problem
	problems config.Problems
	down     []error // what could not be asked
}

// inspect asks source, store and warehouse; one that fails keeps none of the
// others from being asked.
func inspect(ctx context.Context, c *cli, cfg *config.Config, mode lakeMode) *findings {
	f := &findings{cfg: cfg}
	log := c.quietLog(cfg)
	l, err := openLake(ctx, cfg, mode, log, nil)
	if err != nil {
		f.fail("catalog.filesystem.warehouse", err)
	} else {
		f.records(ctx, l, mode)
	}
	report, err := checkSource(ctx, cfg, log)
	if err != nil {
		f.fail(sourceKey(cfg), err)
		return f
	}
	f.server = report.server
	for _, p := range report.problems {
		f.source(p)
	}
	if l == nil {
		return f
	}
	out, err := sink.Open(ctx, sink.Options{Config: cfg, Catalog: l.catalog, FS: l.warehouse, Log: log})
	if err != nil {
		f.fail("catalog", err)
		return f
	}
	defer out.Close()
	tables, errs := out.Plan(ctx, report.relations)
	f.tables = tables
	for _, err := range errs {
		f.fail(f.keyOf(err, report.relations), err)
	}
	return f
}

// records checks the checkpoint store. What check writes there lies in a folder
// of its own, which a daemon that starts meanwhile does not look into.
func (f *findings) records(ctx context.Context, l *lake, mode lakeMode) {
	if _, err := l.store.Last(ctx); err != nil && !errors.Is(err, checkpoint.ErrNoRecord) {
		f.fail("checkpoint.store", err)
		return
	}
	if mode == looking {
		return
	}
	folder := fileio.Join(f.cfg.Checkpoint.Store, "probe")
	probe := fileio.Join(folder, fmt.Sprintf("check-%d", os.Getpid()))
	err := l.records.Put(ctx, probe, []byte("check\n"))
	err = errors.Join(err, l.records.Remove(context.WithoutCancel(ctx), probe))
	if dir, ok := fileio.LocalPath(folder); ok {
		_ = os.Remove(dir) // empty, or somebody else checks too
	}
	if err != nil {
		f.fail("checkpoint.store", err)
	}
}

// fail sorts an error by what mends it: time, or a person.
func (f *findings) fail(key string, err error) {
	p := f.cfg.At(key, err.Error(), "")
	if exitCode(err) == exitUnavailable {
		f.down = append(f.down, fmt.Errorf("%s%w", strings.TrimSuffix(p.Error(), p.What), err))
		return
	}
	f.problems = append(f.problems, p)
}

// source takes what the server lacks. Its key is a key of the source's section,
// a relation, or a setting of the server.
func (f *findings) source(p sourceProblem) {
	key, what := sourceKey(f.cfg), p.message
	switch {
	case p.key == "relations" || strings.HasPrefix(p.key, "source."):
		key = p.key
	case slices.Contains([]string{"host", "user", "server_id", "slot", "publication"}, p.key) || strings.HasPrefix(p.key, "tls"):
		key += "." + p.key
	case strings.Contains(p.key, "."):
		key, what = "relations", p.key+" "+p.message
	default:
		what = "server setting " + p.key + ": " + p.message
	}
	problem := f.cfg.At(key, what, p.fix)
	if p.warning {
		f.warnings = append(f.warnings, problem)
		return
	}
	f.problems = append(f.problems, problem)
}

// keyOf finds the entry of tables that an error of the sink is about.
func (f *findings) keyOf(err error, relations []*source.Relation) string {
	for _, r := range relations {
		if strings.HasPrefix(err.Error(), "relation "+r.FullName()+",") || strings.HasPrefix(err.Error(), "relation "+r.FullName()+":") {
			if key := f.cfg.TableKey(r.Namespace, r.Name); key != "tables" {
				return key
			}
		}
	}
	return "relations" // no entry of tables is for it
}

func (f *findings) err() error {
	errs := append([]error{}, f.down...)
	if len(f.problems) > 0 {
		errs = append(errs, f.problems)
	}
	return errors.Join(errs...)
}

func (f *findings) print(c *cli) error {
	t := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "pipeline\t%s\n", f.cfg.Pipeline)
	if f.server != "" {
		fmt.Fprintf(t, "source\t%s at %s\n", f.server, sourceAddress(f.cfg))
		rights := "as needed"
		if n := len(f.problems); n > 0 {
			rights = "see the problems below"
		}
		fmt.Fprintf(t, "rights, settings\t%s\n", rights)
	}
	fmt.Fprintf(t, "warehouse\t%s\n", f.cfg.Catalog.Filesystem.Warehouse)
	fmt.Fprintf(t, "relations\t%d\n", len(f.tables))
	for i := range f.tables {
		planTable(t, &f.tables[i])
	}
	if len(f.warnings) > 0 {
		fmt.Fprintln(t)
	}
	for _, w := range f.warnings {
		fmt.Fprintf(t, "warning: %v\n", w)
	}
	return t.Flush()
}

func planTable(t *tabwriter.Writer, p *sink.PlanTable) {
	state := "new"
	if p.Exists {
		state = "exists and fits"
	}
	rows := "unknown"
	if p.EstimatedRows >= 0 {
		rows = "about " + thousands(p.EstimatedRows)
	}
	fmt.Fprintf(t, "\n%s -> %s (%s)\n", p.Relation, p.Table, state)
	fmt.Fprintf(t, "  rows\t%s\n", rows)
	mode := p.Mode
	if p.Rule != p.Mode {
		mode += ", inserts " + p.Rule
	}
	if p.Why != "" {
		mode += ": " + p.Why
	}
	fmt.Fprintf(t, "  mode\t%s\n", mode)
	for _, list := range []struct {
		name   string
		values []string
	}{{"key", p.Key}, {"partition by", p.PartitionBy}, {"sort by", p.SortBy}} {
		if len(list.values) > 0 {
			fmt.Fprintf(t, "  %s\t%s\n", list.name, strings.Join(list.values, ", "))
		}
	}
	for _, c := range p.Columns {
		kind := c.Type
		if c.Required {
			kind += " required"
		}
		if c.Note != "" {
			kind += "  (" + c.Note + ")"
		}
		native := c.Native
		if native == "" {
			native = "-"
		}
		fmt.Fprintf(t, "    %s\t%s\t%s\n", c.Name, native, kind)
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(t, "  warning\t%s\n", w)
	}
}

// planJSON is the JSON of plan.
type planJSON struct {
	Pipeline  string           `json:"pipeline"`
	Source    string           `json:"source"`
	Warehouse string           `json:"warehouse"`
	Tables    []sink.PlanTable `json:"tables"`
	Warnings  []string         `json:"warnings"`
	Problems  []string         `json:"problems"`
}

func (f *findings) printJSON(c *cli) error {
	p := planJSON{
		Pipeline: f.cfg.Pipeline, Source: f.server, Warehouse: f.cfg.Catalog.Filesystem.Warehouse,
		Tables: f.tables, Warnings: []string{}, Problems: []string{},
	}
	if p.Tables == nil {
		p.Tables = []sink.PlanTable{}
	}
	for _, w := range f.warnings {
		p.Warnings = append(p.Warnings, w.Error())
	}
	for _, b := range f.problems {
		p.Problems = append(p.Problems, b.Error())
	}
	for _, err := range f.down {
		p.Problems = append(p.Problems, err.Error())
	}
	e := json.NewEncoder(c.stdout)
	e.SetIndent("", "  ")
	return e.Encode(p)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
