package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	iceio "github.com/apache/iceberg-go/io"
	icetable "github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// CatalogOptions configure OpenCatalog. Warehouse and FS are required.
type CatalogOptions struct {
	Warehouse string // URI, file:///srv/lake or s3://bucket/prefix
	FS        fileio.FS
	// Snapshots bounds the history that commits keep. A Min of 0 keeps
	// everything.
	Snapshots config.Snapshots
	// ReadOnly spares the self-test, which writes: for commands that only look.
	ReadOnly   bool
	Now        func() time.Time      // default time.Now
	Log        *slog.Logger          // default: nothing is logged
	Registerer prometheus.Registerer // default: no metrics
}

// Catalog is the filesystem catalog: WAREHOUSE/NAMESPACE/NAME/{metadata,data},
// readable by path and as a Hadoop catalog. It is safe for concurrent use.
type Catalog struct {
	fs        fileio.FS
	warehouse string
	snapshots config.Snapshots
	now       func() time.Time
	log       *slog.Logger
	metrics   *metrics
	blobs     *blobs
}

// OpenCatalog checks the warehouse and, unless ReadOnly, proves on the store
// itself that an exclusive create is one: everything rests on it. A store that
// does not honour it gives fileio.ErrDenied.
func OpenCatalog(ctx context.Context, o CatalogOptions) (*Catalog, error) {
	warehouse := strings.TrimRight(o.Warehouse, "/")
	_, rest, ok := strings.Cut(warehouse, "://")
	if !ok || rest == "" || strings.Contains(rest, "//") {
		return nil, fmt.Errorf("open warehouse %q: not a URI such as file:///srv/lake or s3://bucket/prefix, without doubled slashes", o.Warehouse)
	}
	c := &Catalog{fs: o.FS, warehouse: warehouse, snapshots: o.Snapshots, now: o.Now, log: o.Log, metrics: newMetrics(o.Registerer), blobs: newBlobs(blobBytes)}
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if !o.ReadOnly {
		if err := c.selfTest(ctx); err != nil {
			return nil, fmt.Errorf("test warehouse %s: %w", c.warehouse, err)
		}
	}
	return c, nil
}

// Warehouse is the URI of the warehouse, without a trailing slash.
func (c *Catalog) Warehouse() string { return c.warehouse }

func (c *Catalog) selfTest(ctx context.Context) (err error) {
	path := c.warehouse + "/.lakesyncd/probe-" + uuid.NewString()
	defer func() { err = errors.Join(err, c.fs.Remove(context.WithoutCancel(ctx), path)) }()
	first, second := []byte("first"), []byte("second")
	if err := c.fs.CreateExclusive(ctx, path, first); err != nil {
		return err
	}
	if err := c.fs.CreateExclusive(ctx, path, second); !errors.Is(err, fileio.ErrExists) {
		if err == nil {
			return fmt.Errorf("%w: creating a file that exists succeeded: the store does not honour conditional writes (If-None-Match), so two writers could overwrite each other", fileio.ErrDenied)
		}
		return fmt.Errorf("create a file that exists: %w", err)
	}
	have, version, err := c.fs.Read(ctx, path)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, first) {
		return fmt.Errorf("%w: a refused create changed the file", fileio.ErrDenied)
	}
	if _, err := c.fs.Replace(ctx, path, second, version); err != nil {
		return err
	}
	if _, err := c.fs.Replace(ctx, path, first, version); !errors.Is(err, fileio.ErrChanged) {
		if err == nil {
			return fmt.Errorf("%w: replacing an outdated version succeeded: the store does not honour conditional writes (If-Match)", fileio.ErrDenied)
		}
		return fmt.Errorf("replace an outdated version: %w", err)
	}
	return nil
}

// locate gives the folder of a table. Names are kept as they are, so what paths
// or readers would take for something else is refused.
func (c *Catalog) locate(name string) (string, error) {
	namespace, local, ok := strings.Cut(name, ".")
	if !ok {
		return "", fmt.Errorf("table name %q: not of the form namespace.name", name)
	}
	for _, part := range []string{namespace, local} {
		switch {
		case part == "", part != strings.TrimSpace(part), strings.HasPrefix(part, "."), part == "metadata" && part == local:
			return "", fmt.Errorf("table name %q: %q cannot be a folder's name here: choose another with tables: [{match: …, table: …}]", name, part)
		}
		if i := strings.IndexFunc(part, func(r rune) bool { return r < 0x20 || r == 0x7f || strings.ContainsRune(`/\?#%*:"<>|`, r) }); i >= 0 {
			return "", fmt.Errorf("table name %q: %q cannot be in a path: choose another with tables: [{match: …, table: …}]", name, part[i:i+1])
		}
	}
	return c.warehouse + "/" + namespace + "/" + local, nil
}

// Location is the folder of a table, whether it exists or not.
func (c *Catalog) Location(name string) (string, error) { return c.locate(name) }

// Load reads a table's newest metadata. ErrNotFound: there is none.
func (c *Catalog) Load(ctx context.Context, name string) (*Table, error) {
	location, err := c.locate(name)
	if err != nil {
		return nil, err
	}
	t := &Table{cat: c, name: name, location: location, log: c.log.With("table", name)}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.reload(ctx); err != nil {
		return nil, err
	}
	c.metrics.describe(name, t.state.Load())
	return t, nil
}

// reload replaces the state by the newest metadata. t.mu is held.
func (t *Table) reload(ctx context.Context) error {
	st, hint, hintVersion, err := readNewest(ctx, t.fs(), t.location)
	if errors.Is(err, ErrNotFound) && t.state.Load() != nil {
		return fmt.Errorf("load table %s: %w: its metadata is gone", t.name, ErrReplaced)
	}
	if err != nil {
		return fmt.Errorf("load table %s: %w", t.name, err)
	}
	if have := t.state.Load(); have != nil {
		switch {
		case have.meta.TableUUID() != st.meta.TableUUID():
			return fmt.Errorf("load table %s: %w: its UUID is %s, it was %s", t.name, ErrReplaced, st.meta.TableUUID(), have.meta.TableUUID())
		case st.version < have.version:
			return fmt.Errorf("load table %s: %w: its metadata is at version %d, it was at %d", t.name, ErrRolledBack, st.version, have.version)
		case st.version == have.version && bytesEqual(st.meta, have.meta):
			st = have // keeps what is known of its manifests
		}
	}
	if loc := st.meta.Location(); !samePlace(loc, t.location) {
		return fmt.Errorf("load table %s: %w: its metadata says that it lies in %s, but it was found in %s: it was copied or moved", t.name, ErrUnfit, loc, t.location)
	}
	t.state.Store(st)
	t.hint, t.hintVersion, t.stale = hint, hintVersion, false
	return nil
}

// samePlace compares locations as different engines write them: file:/a, /a and
// file:///a, s3a and s3.
func samePlace(a, b string) bool { return plainLocation(a) == plainLocation(b) }

func plainLocation(l string) string {
	l = strings.TrimRight(l, "/")
	for _, scheme := range []string{"s3a://", "s3n://"} {
		if rest, ok := strings.CutPrefix(l, scheme); ok {
			return "s3://" + rest
		}
	}
	if rest, ok := strings.CutPrefix(l, "file:"); ok {
		return "/" + strings.TrimLeft(rest, "/")
	}
	return l
}

func bytesEqual(a, b icetable.Metadata) bool {
	return a.LastUpdatedMillis() == b.LastUpdatedMillis() && a.LastSequenceNumber() == b.LastSequenceNumber() && a.Equals(b)
}

// Definition is what a new table is made of. Field ids are given anew in the
// order of the schema, from 1; read them back from Schema.
type Definition struct {
	Schema     *iceberg.Schema
	Spec       iceberg.PartitionSpec // the zero value: unpartitioned
	Order      icetable.SortOrder    // the zero value: unsorted
	Properties map[string]string     // over the defaults
}

// defaultProperties of a new table. They bind other engines that write to it
// later; our own commits follow the configuration.
func (c *Catalog) defaultProperties() map[string]string {
	p := map[string]string{
		icetable.PropertyFormatVersion:               "2",
		"write.delete.isolation-level":               "snapshot",
		"write.update.isolation-level":               "snapshot",
		"write.merge.isolation-level":                "snapshot",
		icetable.MetadataDeleteAfterCommitEnabledKey: "true",
		icetable.MetadataPreviousVersionsMaxKey:      "20",
		icetable.MetadataCompressionKey:              "none",
		icetable.CommitNumRetriesKey:                 "4",
		versionProperty:                              "1",
	}
	if c.snapshots.Keep > 0 {
		p[icetable.MaxSnapshotAgeMsKey] = strconv.FormatInt(c.snapshots.Keep.D().Milliseconds(), 10)
	}
	if c.snapshots.Min > 0 {
		p[icetable.MinSnapshotsToKeepKey] = strconv.Itoa(c.snapshots.Min)
	}
	return p
}

// Create makes a table. If one of the same definition exists and has no
// snapshot yet (a crash came between its creation and the first commit) it is
// taken. One of another definition is made anew if it is Untouched by the
// pipeline that def names as its maker: the relation changed its shape while
// nothing was committed. Any other is ErrUnfit.
func (c *Catalog) Create(ctx context.Context, name string, def Definition) (*Table, error) {
	location, err := c.locate(name)
	if err != nil {
		return nil, err
	}
	properties := c.defaultProperties()
	maps.Copy(properties, def.Properties)
	properties[icetable.PropertyFormatVersion] = "2"
	properties[icetable.MetadataCompressionKey] = "none" // the layout that readers by path expect
	spec, order := def.Spec, def.Order
	if spec.NumFields() == 0 {
		spec = *iceberg.UnpartitionedSpec
	}
	if order.Len() == 0 {
		order = icetable.UnsortedSortOrder
	}
	meta, err := icetable.NewMetadata(def.Schema, &spec, order, location, properties)
	if err != nil {
		return nil, fmt.Errorf("define table %s: %w", name, err)
	}
	if err := checkNames(meta.CurrentSchema(), meta.PartitionSpecs()); err != nil {
		return nil, fmt.Errorf("define table %s: %w", name, err)
	}
	data, meta, err := encodeMetadata(meta, c.now().UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("define table %s: %w", name, err)
	}
	// Not by v1 alone: an old table's v1 is gone.
	t, err := c.Load(ctx, name)
	if errors.Is(err, ErrNotFound) {
		err = swap(ctx, c.fs, location, 1, data, 0)
		if err == nil {
			t = &Table{cat: c, name: name, location: location, log: c.log.With("table", name), checked: true}
			t.state.Store(&state{version: 1, size: int64(len(data)), meta: meta, listed: true})
			if t.hint, t.hintVersion, err = raiseHint(ctx, c.fs, location, 1, 0, ""); err != nil {
				return nil, fmt.Errorf("create table %s: %w", name, err)
			}
			c.metrics.describe(name, t.state.Load())
			t.log.Info("table created", "location", location, "uuid", t.UUID())
			return t, nil
		}
		if !errors.Is(err, errTaken) {
			return nil, fmt.Errorf("create table %s: %w", name, err)
		}
		t, err = c.Load(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w", name, err)
	}
	have := t.meta()
	maker := def.Properties[CreatedByProperty]
	same := have.CurrentSchema().Equals(meta.CurrentSchema()) && slices.Equal(have.CurrentSchema().IdentifierFieldIDs, meta.CurrentSchema().IdentifierFieldIDs) &&
		sameSpec(have.PartitionSpec(), meta.PartitionSpec()) && have.SortOrder().Equals(meta.SortOrder())
	if !same && maker != "" && t.Untouched(maker) {
		if err := t.redefine(ctx, def.Schema, spec, order, properties); err != nil {
			return nil, fmt.Errorf("create table %s: %w", name, err)
		}
		return t, nil
	}
	switch {
	case have.CurrentSnapshot() != nil:
		return nil, fmt.Errorf("create table %s: %w: it exists and has rows", name, ErrUnfit)
	case !have.CurrentSchema().Equals(meta.CurrentSchema()), !slices.Equal(have.CurrentSchema().IdentifierFieldIDs, meta.CurrentSchema().IdentifierFieldIDs):
		return nil, fmt.Errorf("create table %s: %w: it exists with another schema", name, ErrUnfit)
	case !sameSpec(have.PartitionSpec(), meta.PartitionSpec()):
		return nil, fmt.Errorf("create table %s: %w: it exists with another partition spec", name, ErrUnfit)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.settle(ctx); err != nil {
		return nil, fmt.Errorf("create table %s: %w", name, err)
	}
	return t, nil
}

// Untouched: the pipeline made the table, and nobody committed to it since.
func (t *Table) Untouched(pipeline string) bool {
	meta := t.meta()
	if meta.Properties()[CreatedByProperty] != pipeline || meta.LastSequenceNumber() != 0 || len(meta.Snapshots()) > 0 {
		return false
	}
	for key := range meta.Properties() {
		if strings.HasPrefix(key, markProperty) {
			return false
		}
	}
	return true
}

// redefine makes an untouched table anew, as its next version. It gets another
// UUID, so that nothing which was written for the definition before can be
// committed to it.
func (t *Table) redefine(ctx context.Context, schema *iceberg.Schema, spec iceberg.PartitionSpec, order icetable.SortOrder, properties map[string]string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	version := t.state.Load().version + 1
	properties[versionProperty] = strconv.Itoa(version)
	meta, err := icetable.NewMetadata(schema, &spec, order, t.location, properties)
	if err != nil {
		return err
	}
	data, meta, err := encodeMetadata(meta, t.cat.now().UnixMilli())
	if err != nil {
		return err
	}
	err = swap(ctx, t.fs(), t.location, version, data, 0)
	if errors.Is(err, errTaken) {
		return fmt.Errorf("%w: %w", fileio.ErrUnavailable, err)
	}
	if err != nil {
		return err
	}
	t.state.Store(&state{version: version, size: int64(len(data)), meta: meta, listed: true})
	t.cat.metrics.describe(t.name, t.state.Load())
	t.log.Info("table made anew: its definition changed before anything was committed to it", "uuid", t.UUID())
	return t.settle(ctx)
}

func sameSpec(a, b iceberg.PartitionSpec) bool {
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i, x := range a.Fields() {
		y := b.Field(i)
		if x.Name != y.Name || !slices.Equal(x.SourceIDs, y.SourceIDs) || !x.Transform.Equals(y.Transform) {
			return false
		}
	}
	return true
}

// settle makes the hint say what is there. t.mu is held.
func (t *Table) settle(ctx context.Context) (err error) {
	t.hint, t.hintVersion, err = raiseHint(ctx, t.fs(), t.location, t.state.Load().version, t.hint, t.hintVersion)
	return err
}

// List names the tables of the warehouse, in order. It lists every file of the
// warehouse: for people, not for the data path.
func (c *Catalog) List(ctx context.Context) ([]string, error) {
	found := map[string]bool{}
	err := c.fs.List(ctx, c.warehouse, func(info fileio.Info) error {
		parts := strings.Split(strings.TrimPrefix(info.Path, c.warehouse+"/"), "/")
		if len(parts) == 4 && parts[2] == "metadata" && versionedName.MatchString(parts[3]) && !strings.HasPrefix(parts[0], ".") {
			found[parts[0]+"."+parts[1]] = true
		}
		return nil
	})
	if err != nil && !errors.Is(err, fileio.ErrNotExist) {
		return nil, fmt.Errorf("list warehouse %s: %w", c.warehouse, err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

func (c *Catalog) icebergFS(ctx context.Context) (iceio.IO, error) {
	return fileio.IOContext(ctx, c.fs), nil
}
