package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/lakesyncd/lakesyncd/source"
)

// cut is one consistent view of the server and the place in the log that
// belongs to it. Until it is closed, its connection holds the view open.
type cut struct {
	view   *conn
	at     place
	file   string // the same place by file
	offset uint64
	time   time.Time // by the server's clock
	hist   *history
	tables []tableInfo
	create map[string]string // SHOW CREATE TABLE of the captured ones, by full name
	// until is set when the view was taken without a lock: transactions up to
	// there may be in the view and in the log.
	until place
}

// tableInfo is a line of information_schema.tables.
type tableInfo struct {
	schema, name, kind, engine string
	rows, rowBytes             int64
	captured                   bool
}

func (t tableInfo) full() string { return t.schema + "." + t.name }

var errAgain = errors.New("a table was created or dropped meanwhile")

// takeCut opens a view. Tables can't change their shape while it is taken, since
// a second connection holds their metadata locks; rows go on changing but for
// the moment in which MySQL needs its global read lock.
func takeCut(ctx context.Context, o *Options, facts serverFacts) (*cut, error) {
	for attempt := 1; ; attempt++ {
		c, err := tryCut(ctx, o, facts)
		code := errorCode(err)
		if err == nil || !errors.Is(err, errAgain) && code != gomysql.ER_LOCK_WAIT_TIMEOUT && code != gomysql.ER_NO_SUCH_TABLE || attempt >= 100 {
			return c, err
		}
		o.Log.Warn("the initial snapshot cannot begin yet", "attempt", attempt, "err", err)
		if err := pause(ctx, time.Second+rand.N(time.Second)); err != nil {
			return nil, err
		}
	}
}

func tryCut(ctx context.Context, o *Options, facts serverFacts) (*cut, error) {
	guard, err := connect(ctx, o.Config, sideTimeout)
	if err != nil {
		return nil, err
	}
	defer guard.Close()
	c := &cut{hist: newHistory(o.Flavor, o.Match), create: map[string]string{}}
	c.hist.setServer(facts)
	if err := c.define(ctx, o, guard); err != nil {
		return nil, err
	}
	c.view, err = connect(ctx, o.Config, sideTimeout)
	if err != nil {
		return nil, err
	}
	if o.Flavor == FlavorMariaDB {
		err = c.openMariaDB(ctx, o)
	} else {
		err = c.openMySQL(ctx, o)
	}
	if err == nil {
		err = c.settled(ctx, o, guard)
	}
	if err != nil {
		c.view.Close()
		return nil, err
	}
	return c, nil
}

// define reads the shape of every table that matters, under metadata locks for
// the captured ones.
func (c *cut) define(ctx context.Context, o *Options, guard *conn) error {
	var err error
	if c.tables, err = listTables(ctx, guard, o.Match); err != nil {
		return err
	}
	r, err := guard.query(ctx, "SELECT SCHEMA_NAME, DEFAULT_COLLATION_NAME FROM information_schema.schemata")
	if err != nil {
		return fmt.Errorf("list the schemas: %w", err)
	}
	for _, row := range r.rows {
		c.hist.setSchemaDefault(row[0], row[1])
	}
	if err := guard.exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	schemas := map[string]bool{}
	for _, t := range c.tables {
		if t.captured {
			schemas[t.schema] = true
			if err := guard.exec(ctx, "SELECT 1 FROM "+ident(t.schema)+"."+ident(t.name)+" LIMIT 0"); err != nil {
				return fmt.Errorf("read %s: %w", t.full(), err)
			}
		}
	}
	for _, t := range c.tables {
		if !schemas[t.schema] {
			if t.kind != "SEQUENCE" {
				c.hist.defineUnknown(t.schema, t.name, farOff)
			}
			continue
		}
		text, err := showCreate(ctx, guard, t)
		if err == nil {
			err = c.hist.define(t.schema, text)
		}
		if err != nil {
			if !t.captured && (errorCode(err) != 0 || errors.Is(err, source.ErrCannotServe)) {
				c.hist.defineUnknown(t.schema, t.name, err.Error()) // if it ever matters it is refused by name
				continue
			}
			return fmt.Errorf("read the definition of %s: %w", t.full(), err)
		}
		if t.captured {
			c.create[t.full()] = text
		}
	}
	return nil
}

func showCreate(ctx context.Context, c *conn, t tableInfo) (string, error) {
	r, err := c.query(ctx, "SHOW CREATE TABLE "+ident(t.schema)+"."+ident(t.name))
	if err != nil {
		return "", err
	}
	text := r.at(0, "Create Table")
	if text == "" {
		return "", errors.New("the server shows no definition")
	}
	return text, nil
}

// listTables lists what could be captured, and what could come into it by a
// rename: base tables outside of the server's own schemas.
func listTables(ctx context.Context, c *conn, match func(ns, name string) bool) ([]tableInfo, error) {
	r, err := c.query(ctx, `SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS, AVG_ROW_LENGTH FROM information_schema.tables
		WHERE TABLE_SCHEMA NOT IN ('mysql','information_schema','performance_schema','sys') AND TABLE_TYPE IN ('BASE TABLE','SYSTEM VERSIONED','SEQUENCE')
		ORDER BY TABLE_SCHEMA, TABLE_NAME`)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	var out []tableInfo
	for _, row := range r.rows {
		t := tableInfo{schema: row[0], name: row[1], kind: row[2], engine: row[3], rows: -1}
		if n, err := strconv.ParseInt(row[4], 10, 64); err == nil {
			t.rows = n
		}
		t.rowBytes, _ = strconv.ParseInt(row[5], 10, 64)
		t.captured = t.kind != "SEQUENCE" && match(t.schema, t.name)
		out = append(out, t)
	}
	return out, nil
}

// settled checks that nothing came or went while the view was taken, and that no
// prepared XA transaction lies across it.
func (c *cut) settled(ctx context.Context, o *Options, guard *conn) error {
	now, err := listTables(ctx, guard, o.Match)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, t := range now {
		if t.captured {
			seen[t.full()] = true
		}
	}
	for _, t := range c.tables {
		if t.captured && !seen[t.full()] {
			return fmt.Errorf("%s: %w", t.full(), errAgain)
		}
		delete(seen, t.full())
	}
	for name := range seen {
		return fmt.Errorf("%s: %w", name, errAgain)
	}
	// Its rows are in the log before the view but not in the view.
	r, err := guard.query(ctx, "XA RECOVER")
	switch {
	case err != nil && errorCode(err) != 0:
		o.Log.Debug("cannot look for prepared XA transactions", "err", err)
	case err != nil:
		return err
	case len(r.rows) > 0:
		return fmt.Errorf("%w: %d XA transactions are prepared and not decided, so no consistent copy can be made; XA RECOVER lists them: run XA COMMIT or XA ROLLBACK for each", source.ErrCannotServe, len(r.rows))
	}
	return c.now(ctx)
}

func (c *cut) now(ctx context.Context) error {
	t, err := c.view.one(ctx, "SELECT UNIX_TIMESTAMP(NOW(6))")
	if err != nil {
		return err
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	c.time = time.UnixMicro(int64(f * 1e6)).UTC()
	return nil
}

func (c *cut) openMariaDB(ctx context.Context, o *Options) error {
	// MariaDB lets go of metadata locks at ROLLBACK TO SAVEPOINT only if the
	// session logs nothing. A copy logs nothing anyway.
	if err := c.view.exec(ctx, "SET SESSION sql_log_bin=0"); errorCode(err) != 0 {
		o.Log.Warn("statements that change a table which is being copied will wait until the copy ends", "fix", "GRANT BINLOG ADMIN ON *.* TO "+quote(o.Config.User), "err", err)
	} else if err != nil {
		return err
	}
	for _, s := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"} {
		if err := c.view.exec(ctx, s); err != nil {
			return fmt.Errorf("open a consistent view: %w", err)
		}
	}
	r, err := c.view.query(ctx, "SHOW STATUS LIKE 'binlog_snapshot_%'")
	if err != nil {
		return fmt.Errorf("read the view's place in the log: %w", err)
	}
	for _, row := range r.rows {
		switch strings.ToLower(row[0]) {
		case "binlog_snapshot_file":
			c.file = row[1]
		case "binlog_snapshot_position":
			c.offset, _ = strconv.ParseUint(row[1], 10, 64)
		}
	}
	if c.file == "" || c.offset == 0 {
		return fmt.Errorf("%w: the server does not say which place in the log belongs to a view (Binlog_snapshot_file is empty)", source.ErrCannotServe)
	}
	text, err := gtidAt(ctx, c.view, c.file, c.offset)
	if err != nil {
		return err
	}
	d, err := parseDomains(text)
	if err != nil {
		return fmt.Errorf("read the GTIDs at %s:%d: %w", c.file, c.offset, err)
	}
	c.at = place{domains: d}
	return nil
}

// gtidAt asks MariaDB for the GTIDs reached at a place in its log. NULL means
// that the place is no border of a transaction, or that the file is gone.
func gtidAt(ctx context.Context, c *conn, file string, offset uint64) (string, error) {
	r, err := c.query(ctx, fmt.Sprintf("SELECT BINLOG_GTID_POS(%s, %d) AS p, BINLOG_GTID_POS(%s, %d) IS NULL AS n", quote(file), offset, quote(file), offset))
	if err != nil {
		return "", fmt.Errorf("read the GTIDs at %s:%d: %w", file, offset, err)
	}
	if r.at(0, "n") != "0" {
		return "", fmt.Errorf("%w: the server knows no GTIDs at %s:%d", source.ErrCannotServe, file, offset)
	}
	return r.at(0, "p"), nil
}

func (c *cut) openMySQL(ctx context.Context, o *Options) error {
	gtids, err := c.view.one(ctx, "SELECT @@GLOBAL.gtid_mode")
	if err != nil {
		return err
	}
	for _, s := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SET SESSION lock_wait_timeout=1"} {
		if err := c.view.exec(ctx, s); err != nil {
			return err
		}
	}
	began := time.Now()
	err = c.view.exec(ctx, "FLUSH TABLES WITH READ LOCK")
	locked := err == nil
	var set string
	if errorCode(err) == gomysql.ER_SPECIFIC_ACCESS_DENIED_ERROR || errorCode(err) == gomysql.ER_ACCESS_DENIED_ERROR {
		if gtids != "ON" {
			return fmt.Errorf("%w: without GTIDs a consistent copy needs a short global read lock; run: GRANT RELOAD ON *.* TO %s", source.ErrCannotServe, o.Config.User)
		}
		if name := o.appended(c.tables); name != "" {
			return fmt.Errorf("%w: %s is written in append mode, and without the right RELOAD its first rows could come twice; run: GRANT RELOAD ON *.* TO %s", source.ErrCannotServe, name, o.Config.User)
		}
		// The position must be older than the view: what is in this set is
		// in the view, and what isn't comes by the log.
		if set, err = c.view.one(ctx, "SELECT @@GLOBAL.gtid_executed"); err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("take the global read lock: %w", err)
	}
	if err := c.view.exec(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
		return fmt.Errorf("open a consistent view: %w", err)
	}
	r, err := c.view.first(ctx, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
	if err != nil {
		return err
	}
	c.file = r.at(0, "File")
	c.offset, _ = strconv.ParseUint(r.at(0, "Position"), 10, 64)
	if c.file == "" {
		return fmt.Errorf("%w: the server writes no log (log_bin)", source.ErrCannotServe)
	}
	if locked {
		if set, err = c.view.one(ctx, "SELECT @@GLOBAL.gtid_executed"); err != nil {
			return err
		}
		if err := c.view.exec(ctx, "UNLOCK TABLES"); err != nil {
			return err
		}
		o.Log.Info("took a consistent view under a global read lock", "elapsed", time.Since(began))
	} else {
		// The end of the log, not the set of GTIDs: a transaction is in the log
		// before the view can hold it, but in the set only after.
		c.until = place{file: c.file, offset: c.offset}
		o.Log.Warn("took a view without a lock, since the right RELOAD is missing; inserts are upserts until the log is past it", "position", c.until.position())
	}
	if gtids != "ON" {
		c.at = place{file: c.file, offset: c.offset}
		return nil
	}
	s, err := parseGTIDSet(set)
	if err != nil {
		return fmt.Errorf("read gtid_executed: %w", err)
	}
	c.at = place{set: s}
	return nil
}

// appended names a captured table that is written in append mode.
func (o *Options) appended(tables []tableInfo) string {
	for _, t := range tables {
		if t.captured && o.Append != nil && o.Append(t.schema, t.name) {
			return t.full()
		}
	}
	return ""
}

var autoIncrement = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// sameTable compares two definitions, but for the next number of a counter.
func sameTable(a, b string) bool {
	return a == b || autoIncrement.ReplaceAllString(a, "") == autoIncrement.ReplaceAllString(b, "")
}

// copier reads the rows of all captured tables under one view. A goroutine reads
// chunks of packets ahead, next decodes them.
type copier struct {
	o      *Options
	cut    *cut
	tables []*copyTable
	q      *fifo
	cur    *slab
	batch  source.Batch
	ev     source.Event
	limit  int
	rows   int64
	ended  chan struct{}
	cancel context.CancelFunc
}

// copyTable is one relation of the copy.
type copyTable struct {
	def      *tableDef
	info     tableInfo
	dec      *copyDecoder
	rel      *source.Relation
	rows     int64
	progress time.Time
}

func newCopier(o *Options, c *cut, ov *overlay, limit int) (*copier, error) {
	k := &copier{o: o, cut: c, q: newFIFO(o.Memory), limit: limit, ended: make(chan struct{})}
	for _, t := range c.tables {
		if !t.captured {
			continue
		}
		def := c.hist.table(t.schema, t.name)
		if def == nil {
			return nil, fmt.Errorf("%w: the shape of %s is not known", source.ErrCannotServe, t.full())
		}
		dec, err := newCopyDecoder(def)
		if err != nil {
			return nil, err
		}
		k.tables = append(k.tables, &copyTable{def: def, info: t, dec: dec, rel: ov.of(def.Rel)})
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	// It ends when all is read, a read fails, or close ends ctx and the socket.
	go func() {
		defer close(k.ended)
		k.q.end(k.read(ctx))
	}()
	return k, nil
}

func (k *copier) close() {
	k.cancel()
	k.q.close()
	k.cut.view.socket.Close()
	<-k.ended
}

// errCopied ends the queue of a copy that is complete.
var errCopied = errors.New("the copy is complete")

// read reads all tables, one after the other.
func (k *copier) read(ctx context.Context) error {
	p := newPackets(impatient{k.cut.view.socket, 10 * time.Minute})
	if err := k.cut.view.exec(ctx, "SAVEPOINT chunk"); err != nil {
		return err
	}
	for _, t := range k.tables {
		k.q.of = t
		if err := k.readTable(ctx, p, t); err != nil {
			return fmt.Errorf("copy %s: %w", t.info.full(), err)
		}
		if !k.q.put(&slab{of: t, last: true}) {
			return errClosed
		}
	}
	if err := k.cut.view.exec(ctx, "ROLLBACK"); err != nil {
		k.o.Log.Warn("could not end the view", "err", err)
	}
	return errCopied
}

// next is the next batch. After the last one the error is errCopied.
func (k *copier) next(ctx context.Context) (*source.Event, error) {
	k.batch.Rows = 0
	var of *copyTable // whose rows the batch has
	bytes := 0
	for {
		if k.cur == nil {
			s, err := k.q.get(ctx)
			if err != nil {
				// What was decoded so far must not be lost.
				if of != nil && (err == errCopied || ctx.Err() != nil) {
					return k.event(of), nil
				}
				return nil, err
			}
			k.cur = s
		}
		t := k.cur.of
		if of != nil && of != t {
			return k.event(of), nil
		}
		for row := k.cur.next(); row != nil; row = k.cur.next() {
			if of == nil {
				t.dec.reset(&k.batch)
				of = t
			}
			if err := t.dec.decode(row, &k.batch); err != nil {
				return nil, fmt.Errorf("copy %s: %w", t.info.full(), err)
			}
			t.rows++
			k.batch.Rows = k.batch.After[0].Len()
			if bytes += len(row); bytes >= k.limit {
				return k.event(of), nil
			}
		}
		if k.cur.last {
			k.progress(t, true)
		} else if time.Since(t.progress) > time.Second {
			k.progress(t, false)
		}
		k.q.done(k.cur)
		k.cur = nil
	}
}

func (k *copier) progress(t *copyTable, done bool) {
	t.progress = time.Now()
	if done {
		k.o.Log.Info("copied a relation", slog.String("relation", t.info.full()), slog.Int64("rows", t.rows))
	}
	if k.o.OnProgress != nil {
		k.o.OnProgress(Progress{Relation: t.info.full(), Rows: t.rows, Estimated: t.info.rows, Done: done})
	}
}

func (k *copier) event(of *copyTable) *source.Event {
	k.batch.Relation = of.rel
	k.batch.Position, k.batch.Ordinal, k.batch.Time = k.cut.at.position(), k.rows, k.cut.time
	k.rows += int64(k.batch.Rows)
	k.ev = source.Event{Kind: source.Rows, Batch: &k.batch}
	return &k.ev
}
