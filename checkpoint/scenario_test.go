package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	icetable "github.com/apache/iceberg-go/table"
	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
	"github.com/lakesyncd/lakesyncd/table/fileio/faultfs"
)

// TestScenarios runs testdata/*.txt: each is a small history of a database, a
// daemon and what befalls it, and what the tables hold afterwards. The expected
// output is written down from the rules, and a run with -rewrite may only be
// committed if every difference is understood.
//
//	database NAMESPACE.NAME…     a new database and an empty lake
//	write [copy]                 one transaction a paragraph: insert|update|delete|truncate|add-column TABLE …
//	run                          start a daemon if none runs
//	checkpoint                   let the daemon read all that was written and take one checkpoint
//	crash WHEN:STEP              the same, but the daemon dies before|after flush|save|commit:TABLE|ack
//	stop                         the daemon is asked to stop
//	second-instance              what a second daemon says
//	rows TABLE                   the live rows
//	snapshots TABLE              our snapshots: checkpoint, operation
//	records                      the records in the store
//	acked                        what the source was told
//	fault RULE                   the store misbehaves by a rule of faultfs from now on; "fault none" ends it
//	foreign-commit TABLE         somebody else commits a snapshot
//	rollback TABLE               somebody sets the table back to its snapshot before
//	replace TABLE                somebody puts another table in its place
//	remove-records               the store of records is gone
//	lose-records N               the newest N records are gone, as after a restore of an old copy
//	stopped                      waits for a daemon that gives up, and shows why
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "fuzz") || strings.Contains(path, "golden") {
			return
		}
		w := &world{t: t}
		t.Cleanup(func() { w.stop() })
		datadriven.RunTest(t, path, w.command)
	})
}

// world is a database, a lake and at most one daemon.
type world struct {
	t      *testing.T
	db     *scripted
	folder string
	fs     *faultfs.FS
	daemon *daemon
	tables []config.Table
}

type daemon struct {
	c      *Coordinator
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu        sync.Mutex
	committed source.Position
	more      chan struct{}
	crashAt   string
}

var errCrash = errors.New("crash")

func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	out, err := w.execute(d)
	if err != nil {
		return out + "error: " + w.plain(err.Error()) + "\n"
	}
	if out == "" {
		return "ok\n"
	}
	return out
}

// plain takes out what differs from run to run.
func (w *world) plain(s string) string { return strings.ReplaceAll(s, w.folder, "LAKE") }

func (w *world) execute(d *datadriven.TestData) (string, error) {
	switch d.Cmd {
	case "database":
		var names []string
		for _, a := range d.CmdArgs {
			names = append(names, a.Key)
		}
		w.db = newScripted(names...)
		w.folder = w.t.TempDir()
		fs, err := fileio.Open(context.Background(), "file://"+w.folder, config.Storage{}, fileio.Options{})
		if err != nil {
			return "", err
		}
		w.fs, err = faultfs.New(fs)
		return "", err
	case "write":
		return "", w.write(d.Input, d.HasArg("copy"))
	case "run":
		w.start()
		return "", nil
	case "checkpoint":
		w.start()
		return "", w.daemon.reach(w.db.feed(true))
	case "crash":
		w.start()
		w.daemon.mu.Lock()
		w.daemon.crashAt = d.CmdArgs[0].String()
		w.daemon.mu.Unlock()
		err := w.daemon.reach(w.db.feed(true))
		w.daemon = nil
		if !errors.Is(err, errCrash) {
			return "", fmt.Errorf("did not crash but: %v", err)
		}
		return "", nil
	case "stop":
		return "", w.stop()
	case "fault":
		w.fs.Clear()
		if d.Input == "none" {
			return "", nil
		}
		return "", w.fs.Add(strings.Split(d.Input, "\n")...)
	case "foreign-commit":
		return "", w.tamper(d.CmdArgs[0].Key, foreignCommit)
	case "rollback":
		return "", w.tamper(d.CmdArgs[0].Key, rollback)
	case "replace":
		folder := w.folder + "/lake/" + strings.ReplaceAll(d.CmdArgs[0].Key, ".", "/")
		if err := os.RemoveAll(folder); err != nil {
			return "", err
		}
		cat, err := w.catalog(context.Background())
		if err != nil {
			return "", err
		}
		_, err = cat.Create(context.Background(), d.CmdArgs[0].Key, table.Definition{Schema: iceberg.NewSchemaWithIdentifiers(0, []int{1},
			iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true},
			iceberg.NestedField{ID: 2, Name: "v", Type: iceberg.PrimitiveTypes.String})})
		return "", err
	case "remove-records":
		return "", os.RemoveAll(w.folder + "/records")
	case "lose-records":
		ids, err := filepath.Glob(w.folder + "/records/*[0-9].json")
		if err != nil {
			return "", err
		}
		n, err := strconv.Atoi(d.CmdArgs[0].Key)
		if err != nil || n > len(ids) {
			return "", fmt.Errorf("%d records: %w", len(ids), err)
		}
		for _, f := range ids[len(ids)-n:] {
			if err := os.Remove(f); err != nil {
				return "", err
			}
		}
		return "", nil
	case "stopped":
		w.start()
		w.db.feed(true)
		d := w.daemon
		w.daemon = nil
		select {
		case <-d.done:
		case <-time.After(30 * time.Second):
			d.cancel()
			<-d.done
			return "", errors.New("it went on")
		}
		for _, class := range classes {
			if errors.Is(d.err, class.err) {
				return class.name + "\n", nil
			}
		}
		return "", d.err
	case "second-instance":
		second := w.newDaemon()
		<-second.done
		if errors.Is(second.err, ErrFenced) {
			return "fenced\n", nil
		}
		return "", second.err
	case "rows":
		return w.rows(d.CmdArgs[0].Key)
	case "snapshots":
		return w.snapshots(d.CmdArgs[0].Key)
	case "records":
		return w.records()
	case "acked":
		return string(w.db.acked) + "\n", nil
	}
	return "", fmt.Errorf("no command %s", d.Cmd)
}

// write adds transactions to the database's log.
func (w *world) write(text string, copied bool) error {
	for _, para := range strings.Split(strings.TrimSpace(text), "\n\n") {
		var t tx
		for line := range strings.Lines(para) {
			f := strings.Fields(line)
			if len(f) == 0 || f[0] == "-" {
				continue
			}
			rel, args := "", []string(nil)
			if len(f) > 1 {
				rel, args = f[1], f[2:]
			}
			switch f[0] {
			case "insert":
				op := source.Insert
				if copied {
					op = source.Read
				}
				t.events = append(t.events, w.db.row(rel, op, nil, args))
			case "update": // before => after
				i := slices.Index(args, "=>")
				t.events = append(t.events, w.db.row(rel, source.Update, args[:i], args[i+1:]))
			case "delete":
				t.events = append(t.events, w.db.row(rel, source.Delete, args, nil))
			case "truncate":
				t.events = append(t.events, source.Event{Kind: source.Truncate, Relation: w.db.relations[rel]})
			case "unknown": // a statement that the source refuses
				t.refuse = true
			case "add-column":
				t.events = append(t.events, w.db.addColumn(rel, args[0]))
			default:
				return fmt.Errorf("no change %q", f[0])
			}
		}
		if copied {
			t.barrier = true
			for _, r := range w.db.relations {
				t.copied = append(t.copied, r)
			}
		}
		w.db.append(t)
	}
	return nil
}

func (w *world) start() {
	if w.daemon == nil {
		w.daemon = w.newDaemon()
	}
}

func (w *world) stop() error {
	d := w.daemon
	if d == nil {
		return nil
	}
	w.daemon = nil
	d.cancel()
	<-d.done
	return d.err
}

func (w *world) catalog(ctx context.Context) (*table.Catalog, error) {
	return table.OpenCatalog(ctx, table.CatalogOptions{
		Warehouse: "file://" + w.folder + "/lake", FS: w.fs,
		Snapshots: config.Snapshots{Keep: config.Duration(time.Hour), Min: 100, Max: 1000},
		Now:       time.Now, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
}

func (w *world) store() *Store {
	return OpenStore(w.fs, "file://"+w.folder+"/records", "shop", time.Now)
}

// newDaemon runs a coordinator the way the program does, with the store's lock.
func (w *world) newDaemon() *daemon {
	ctx, cancel := context.WithCancel(context.Background())
	d := &daemon{cancel: cancel, done: make(chan struct{}), more: make(chan struct{})}
	log := slog.New(slog.DiscardHandler)
	d.c = New(Options{
		Pipeline: "shop", Store: w.store(), Interval: time.Hour, IdleMark: time.Hour, RetryBudget: 10 * time.Second, Writer: "test", Log: log,
		OpenSource: func(_ context.Context, at *Record, _ bool) (Stream, error) { return w.db.open(at.Position) },
		OpenSink: func(ctx context.Context) (*sink.Sink, error) {
			cat, err := w.catalog(ctx)
			if err != nil {
				return nil, err
			}
			return sink.Open(ctx, sink.Options{
				Config:  &config.Config{Pipeline: "shop", Tables: w.tables, Catalog: config.Catalog{Filesystem: &config.FilesystemCatalog{Warehouse: "file://" + w.folder + "/lake"}}},
				Catalog: cat, FS: w.fs, Memory: 32 << 20, Log: log, Registerer: prometheus.NewRegistry(), Now: time.Now,
			})
		},
		Observer: Observer{Committed: func(r *Record, _ map[string]table.Result) { d.at(r.Position) }},
	})
	d.c.step = func(when, what string) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.crashAt == when+":"+what {
			return errCrash
		}
		return nil
	}
	go func() {
		defer close(d.done)
		defer cancel()
		lock, err := Acquire(ctx, w.fs, "file://"+w.folder+"/records", "test", LeaseOptions{})
		if err != nil {
			d.err = err
			return
		}
		defer lock.Release(context.Background())
		d.err = d.c.Run(ctx)
	}()
	return d
}

func (d *daemon) at(p source.Position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.committed = p
	close(d.more)
	d.more = make(chan struct{})
}

// reach waits until a record at p is committed, or the daemon has ended. With a
// crash asked for it waits for the end.
func (d *daemon) reach(p source.Position) error {
	for {
		d.mu.Lock()
		got, more, crash := d.committed, d.more, d.crashAt
		d.mu.Unlock()
		if got == p && crash == "" {
			return nil
		}
		select {
		case <-more:
		case <-d.done:
			return d.err
		case <-time.After(30 * time.Second):
			return fmt.Errorf("not at %s after 30 s, but at %q", p, got)
		}
	}
}

func (w *world) rows(name string) (string, error) {
	ctx := context.Background()
	cat, err := w.catalog(ctx)
	if err != nil {
		return "", err
	}
	tbl, err := cat.Load(ctx, name)
	if err != nil {
		return "", err
	}
	var lines []string
	for row, err := range tbl.Rows(ctx, table.RowsOptions{}) {
		if err != nil {
			return "", err
		}
		lines = append(lines, string(row)+"\n")
	}
	if len(lines) == 0 {
		return "none\n", nil
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

func (w *world) snapshots(name string) (string, error) {
	ctx := context.Background()
	cat, err := w.catalog(ctx)
	if err != nil {
		return "", err
	}
	tbl, err := cat.Load(ctx, name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, s := range tbl.Iceberg().Metadata().Snapshots() {
		p := s.Summary.Properties
		fmt.Fprintf(&b, "checkpoint=%s epoch=%s %s position=%s complete=%s data=%s equality=%s position-deletes=%s\n",
			p["lakesync.checkpoint"], p["lakesync.epoch"], s.Summary.Operation, p["lakesync.position"], p["lakesync.complete"],
			or0(p["added-data-files"]), or0(p["added-equality-deletes"]), or0(p["added-position-deletes"]))
	}
	if b.Len() == 0 {
		return "none\n", nil
	}
	return b.String(), nil
}

func or0(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

func (w *world) records() (string, error) {
	ctx := context.Background()
	ids, err := w.store().IDs(ctx)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, id := range ids {
		r, err := w.store().Get(ctx, id)
		if err != nil {
			return "", err
		}
		var changed []string
		for _, d := range r.Deltas {
			changed = append(changed, d.Table)
		}
		slices.Sort(changed)
		fmt.Fprintf(&b, "%d epoch=%d position=%s changed=%s\n", r.ID, r.Epoch, r.Position, strings.Join(changed, ","))
	}
	return b.String(), nil
}

// classes are the words for errors that stop a pipeline.
var classes = []struct {
	name string
	err  error
}{
	{"fenced", ErrFenced}, {"fenced by a mark", table.ErrFenced}, {"rolled back", table.ErrRolledBack}, {"foreign", table.ErrForeign},
	{"replaced", table.ErrReplaced}, {"does not fit", table.ErrUnfit}, {"cannot serve", source.ErrCannotServe},
}

// tamper commits metadata as another program would: version N+1 and the hint.
func (w *world) tamper(name string, change func(*icetable.MetadataBuilder, icetable.Metadata) error) error {
	ctx := context.Background()
	cat, err := w.catalog(ctx)
	if err != nil {
		return err
	}
	tbl, err := cat.Load(ctx, name)
	if err != nil {
		return err
	}
	old := tbl.Iceberg().Metadata()
	b, err := icetable.MetadataBuilderFromBase(old, tbl.Iceberg().MetadataLocation())
	if err != nil {
		return err
	}
	if err := change(b, old); err != nil {
		return err
	}
	meta, err := b.Build()
	if err != nil {
		return err
	}
	data, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	folder := tbl.Location() + "/metadata/"
	next := tbl.MetadataVersion() + 1
	if err := w.fs.CreateExclusive(ctx, fmt.Sprintf("%sv%d.metadata.json", folder, next), data); err != nil {
		return err
	}
	return w.fs.Put(ctx, folder+"version-hint.text", []byte(strconv.Itoa(next)))
}

func foreignCommit(b *icetable.MetadataBuilder, old icetable.Metadata) error {
	head := *old.CurrentSnapshot()
	parent := head.SnapshotID
	head.SnapshotID, head.ParentSnapshotID = parent+1, &parent
	head.SequenceNumber = old.LastSequenceNumber() + 1
	head.TimestampMs++
	head.Summary = &icetable.Summary{Operation: icetable.OpAppend, Properties: iceberg.Properties{"engine": "another"}}
	if err := b.AddSnapshot(&head); err != nil {
		return err
	}
	return b.SetSnapshotRef(icetable.MainBranch, head.SnapshotID, icetable.BranchRef)
}

func rollback(b *icetable.MetadataBuilder, old icetable.Metadata) error {
	return b.SetSnapshotRef(icetable.MainBranch, *old.CurrentSnapshot().ParentSnapshotID, icetable.BranchRef)
}
