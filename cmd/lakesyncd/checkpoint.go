package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

func showFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print the record as it is saved")
	id := fs.Int64("id", 0, "the record with this `NUMBER`; the newest ten are kept")
	return func(ctx context.Context, c *cli, _ []string) error {
		cfg, err := load(*path)
		if err != nil {
			return err
		}
		l, err := openLake(ctx, cfg, looking, c.quietLog(cfg), nil)
		if err != nil {
			return err
		}
		var rec *checkpoint.Record
		if *id != 0 {
			rec, err = l.store.Get(ctx, *id)
		} else {
			rec, err = l.store.Last(ctx)
		}
		if errors.Is(err, checkpoint.ErrNoRecord) {
			return fmt.Errorf("%w: %w", errConfig, err)
		}
		if err != nil {
			return err
		}
		if *asJSON {
			e := json.NewEncoder(c.stdout)
			e.SetIndent("", "  ")
			return e.Encode(rec)
		}
		missing, _, err := l.uncommitted(ctx, cfg.Pipeline, rec)
		if err != nil {
			return err
		}
		return printRecord(c, rec, missing)
	}
}

func printRecord(c *cli, r *checkpoint.Record, missing []string) error {
	t := tabwriter.NewWriter(c.stdout, 0, 8, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(t, key+"\t"+format+"\n", args...) }
	line("pipeline", "%s", r.Pipeline)
	line("checkpoint", "%d", r.ID)
	line("epoch", "%d", r.Epoch)
	position := string(r.Position)
	if position == "" {
		position = "none: the initial snapshot is not complete"
	}
	line("position", "%s", position)
	if !r.SourceTime.IsZero() {
		line("complete up to", "%s", r.SourceTime.Format(time.RFC3339Nano))
	}
	line("saved", "%s by %s", r.SavedAt.Format(time.RFC3339Nano), r.Writer)
	for i := range r.Deltas {
		d := &r.Deltas[i]
		files := 0
		for _, l := range d.Layers {
			files += len(l.Files)
		}
		line("changes", "%s: %d files in %d layers", d.Table, files, len(d.Layers))
	}
	for _, name := range missing {
		line("not committed", "%s", name)
	}
	if len(r.Tables) > 0 {
		fmt.Fprint(t, "\nTABLE\tRELATION\tCOMPLETE\tCHANGED BY\tINSERTS\n")
	}
	for _, name := range keys(r.Tables) {
		x := r.Tables[name]
		inserts := "by the log"
		if x.Upsert {
			inserts = "upsert"
		}
		fmt.Fprintf(t, "%s\t%s\t%t\t%d\t%s\n", name, x.Relation, x.Complete, x.Checkpoint, inserts)
	}
	return t.Flush()
}

// edit holds the pipeline's lease while a record is written by hand, so that no
// daemon runs meanwhile.
func edit(ctx context.Context, c *cli, path string, fn func(ctx context.Context, cfg *config.Config, l *lake) (*checkpoint.Record, error)) error {
	cfg, err := load(path)
	if err != nil {
		return err
	}
	log := c.quietLog(cfg)
	l, err := openLake(ctx, cfg, looking, log, nil)
	if err != nil {
		return err
	}
	lease, err := checkpoint.Acquire(ctx, l.records, cfg.Checkpoint.Store, writerName(), checkpoint.LeaseOptions{Log: log})
	if err != nil {
		return fmt.Errorf("stop the daemon first: %w", err)
	}
	// The record is written by then; a lease that is not given up expires.
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
	rec, err := fn(ctx, cfg, l)
	if err != nil {
		return err
	}
	rec.Format, rec.Pipeline, rec.Deltas = 1, cfg.Pipeline, nil
	rec.SavedAt, rec.Writer = time.Now().UTC(), writerName()
	if err := l.put(ctx, rec); err != nil {
		return err
	}
	if rec.Position == "" {
		c.printf("saved record %d: the next start begins the initial snapshot", rec.ID)
		return nil
	}
	c.printf("saved record %d: the next start reads on at %s", rec.ID, rec.Position)
	return nil
}

// put saves a record whose number may lie far above the newest, because it must
// lie above the tables' marks. The store takes a gap among its newest records for
// a loss, so copies of the record fill it.
func (l *lake) put(ctx context.Context, rec *checkpoint.Record) error {
	ids, err := l.store.IDs(ctx)
	if err != nil {
		return err
	}
	const window = 10 // in which the store looks for gaps
	first := rec.ID
	if n := len(ids); n > 0 {
		first = ids[n-1] + 1
		if rec.ID-first > 2*window {
			first = rec.ID - window + 1
		}
	}
	for id := min(first, rec.ID); id <= rec.ID; id++ {
		filler := *rec
		filler.ID = id
		if err := l.store.Put(ctx, &filler); err != nil {
			return err
		}
	}
	return nil
}

func setFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	position := fs.String("position", "", "`POSITION` to read on from: gtid:…, file:NAME:OFFSET or lsn:X/Y")
	fromTables := fs.Bool("from-tables", false, "take the oldest position that the tables' marks name")
	force := fs.Bool("force", false, "also with tables in mode append, which may lack or repeat changes then")
	return func(ctx context.Context, c *cli, _ []string) error {
		if (*position == "") != *fromTables {
			return usagef("checkpoint set: give one of -position and -from-tables")
		}
		want := source.Position(*position)
		if want != "" {
			if _, err := reached(want, want); err != nil {
				return usagef("checkpoint set: -position: %v", err)
			}
		}
		return edit(ctx, c, *path, func(ctx context.Context, cfg *config.Config, l *lake) (*checkpoint.Record, error) {
			last, err := l.store.Last(ctx)
			switch {
			case errors.Is(err, checkpoint.ErrNoRecord):
				return nil, fmt.Errorf("%w: %w: the schema history that belongs to a position is gone with the records; "+
					"point checkpoint.store at them, or move the tables away and start for a new initial snapshot", errConfig, err)
			case err != nil:
				return nil, err
			case last.Position == "" || len(last.Source) == 0:
				return nil, fmt.Errorf("%w: record %d is from before the end of the initial snapshot: start the daemon to complete it", errConfig, last.ID)
			}
			missing, _, err := l.uncommitted(ctx, cfg.Pipeline, last)
			if err != nil {
				return nil, err
			}
			if len(missing) > 0 {
				return nil, fmt.Errorf("%w: record %d is not committed in %s: start the daemon to finish it, or give it up with lakesyncd checkpoint abandon",
					errConfig, last.ID, strings.Join(missing, ", "))
			}
			s := &setter{cfg: cfg, lake: l, last: last, want: want, force: *force}
			return s.record(ctx, c)
		})
	}
}

// setter makes a record at another position. Nothing proves then that an
// inserted key is new, so every table's inserts delete their keys from now on.
type setter struct {
	cfg   *config.Config
	lake  *lake
	last  *checkpoint.Record
	want  source.Position // "": the oldest mark
	force bool
}

func (s *setter) record(ctx context.Context, c *cli) (*checkpoint.Record, error) {
	rec := *s.last
	rec.Tables = maps.Clone(s.last.Tables)
	marks, err := s.marks(ctx, &rec)
	if err != nil {
		return nil, err
	}
	if s.want == "" {
		if s.want, err = oldest(marks); err != nil {
			return nil, err
		}
	}
	var appended []string
	for _, name := range keys(marks) {
		m := marks[name]
		rec.ID, rec.Epoch = max(rec.ID, m.Checkpoint), max(rec.Epoch, m.Epoch)
		if source.Position(m.Position) == s.want {
			rec.SourceTime = m.SourceTime
		}
		t := rec.Tables[name]
		ns, rel, _ := strings.Cut(t.Relation, ".")
		if s.cfg.TableFor(ns, rel).Mode == config.ModeAppend {
			appended = append(appended, name)
			continue
		}
		t.Upsert = true
		rec.Tables[name] = t
	}
	if len(appended) > 0 && !s.force && s.want != s.last.Position {
		return nil, fmt.Errorf("%w: tables in mode append would lack or repeat the changes in between: %s; -force does it anyway", errConfig, strings.Join(appended, ", "))
	}
	s.warn(c)
	rec.ID, rec.Epoch, rec.Position = rec.ID+1, rec.Epoch+1, s.want
	return &rec, nil
}

// warn tells which changes are skipped or read again.
func (s *setter) warn(c *cli) {
	ahead, err := reached(s.want, s.last.Position)
	switch {
	case s.want == s.last.Position:
	case err != nil:
		fmt.Fprintf(c.stderr, "lakesyncd: the new position can't be compared with the old one, %s\n", s.last.Position)
	case ahead:
		fmt.Fprintf(c.stderr, "lakesyncd: the changes after %s up to the new position are never read\n", s.last.Position)
	default:
		fmt.Fprintf(c.stderr, "lakesyncd: the changes from the new position up to %s are read again\n", s.last.Position)
	}
}

// marks reads the mark of each table of the record. A table that was moved away
// is left out.
func (s *setter) marks(ctx context.Context, rec *checkpoint.Record) (map[string]table.Mark, error) {
	marks := map[string]table.Mark{}
	for name := range s.last.Tables {
		t, err := s.lake.catalog.Load(ctx, name)
		if errors.Is(err, table.ErrNotFound) {
			delete(rec.Tables, name)
			continue
		}
		if err != nil {
			return nil, err
		}
		m, ok, err := t.Mark(s.cfg.Pipeline)
		if err != nil {
			return nil, err
		}
		if ok {
			marks[name] = m
		}
	}
	if len(marks) == 0 {
		return nil, fmt.Errorf("%w: no table carries a mark of pipeline %s", errConfig, s.cfg.Pipeline)
	}
	return marks, nil
}

// oldest is the position that no other mark is behind.
func oldest(marks map[string]table.Mark) (source.Position, error) {
	var pos source.Position
	for _, name := range keys(marks) {
		p := source.Position(marks[name].Position)
		if pos == "" {
			pos = p
			continue
		}
		behind, err := reached(pos, p) // p is at pos or before it
		if err != nil {
			return "", fmt.Errorf("%w: compare the mark of table %s with the others: %w; choose with -position", errConfig, name, err)
		}
		if behind {
			pos = p
			continue
		}
		if ahead, err := reached(p, pos); err != nil || !ahead {
			return "", fmt.Errorf("%w: the marks name positions of which none is the oldest (%s, %s): choose with -position", errConfig, pos, p)
		}
	}
	return pos, nil
}

func abandonFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	return func(ctx context.Context, c *cli, _ []string) error {
		return edit(ctx, c, *path, func(ctx context.Context, cfg *config.Config, l *lake) (*checkpoint.Record, error) {
			last, err := l.store.Last(ctx)
			if errors.Is(err, checkpoint.ErrNoRecord) {
				return nil, fmt.Errorf("%w: %w", errConfig, err)
			}
			if err != nil {
				return nil, err
			}
			missing, committed, err := l.uncommitted(ctx, cfg.Pipeline, last)
			if err != nil {
				return nil, err
			}
			return abandoned(ctx, cfg, l.store, last, missing, committed)
		})
	}
}

// abandoned is the record that reads the range of last again. A table that has
// last's changes already gets them a second time, as upserts.
func abandoned(ctx context.Context, cfg *config.Config, store *checkpoint.Store, last *checkpoint.Record, missing, committed []string) (*checkpoint.Record, error) {
	if len(missing) == 0 {
		return nil, fmt.Errorf("%w: record %d is committed in all tables: there is nothing to give up", errConfig, last.ID)
	}
	before := &checkpoint.Record{}
	if last.ID > 1 {
		var err error
		if before, err = store.Get(ctx, last.ID-1); err != nil {
			return nil, fmt.Errorf("%w: the range of record %d begins at record %d: %w", errConfig, last.ID, last.ID-1, err)
		}
	}
	rec := *before
	rec.Tables = maps.Clone(before.Tables)
	if rec.Tables == nil {
		rec.Tables = map[string]sink.TableState{}
	}
	for _, name := range committed {
		var d *table.Delta
		for i := range last.Deltas {
			if last.Deltas[i].Table == name {
				d = &last.Deltas[i]
			}
		}
		t := last.Tables[name]
		ns, rel, _ := strings.Cut(t.Relation, ".")
		switch {
		case before.Position == "":
			return nil, fmt.Errorf("%w: table %s has its initial snapshot, which would be copied again: move the table away first", errConfig, name)
		case d.Step != nil:
			return nil, fmt.Errorf("%w: table %s has the record's schema change already, which can't be made twice: mend the other tables instead", errConfig, name)
		case cfg.TableFor(ns, rel).Mode == config.ModeAppend:
			return nil, fmt.Errorf("%w: table %s is in mode append and has the record's changes already: they would be written twice", errConfig, name)
		}
		t.Upsert, t.Checkpoint = true, last.ID
		rec.Tables[name] = t
	}
	rec.ID, rec.Epoch = last.ID+1, last.Epoch+1
	return &rec, nil
}
