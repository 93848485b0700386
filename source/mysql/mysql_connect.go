package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"

	"github.com/lakesyncd/lakesyncd/source"
)

// reconnect opens the log behind the last whole transaction, however long it
// takes.
func (s *Stream) reconnect(ctx context.Context) error {
	for {
		err := s.openDump(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := s.classify(err); err != nil {
			return err
		}
		s.state(true, err.Error())
		if err := s.backoff(ctx, err, 0); err != nil {
			return err
		}
	}
}

func (s *Stream) openDump(ctx context.Context) error {
	side, err := connect(ctx, s.o.Config, sideTimeout)
	if err != nil {
		return err
	}
	defer side.Close()
	same, err := s.located(ctx, side)
	if err != nil {
		return err
	}
	if r := s.as.resume; r != nil && !same {
		return fmt.Errorf("%w: the connection was lost inside of %s and another server answers now", source.ErrRestart, r.name)
	}
	id, taken := s.ids.pick(ctx, side)
	if taken != "" {
		s.o.Log.Warn("every server_id of the range is in use", "server_id", id, "err", taken)
	}
	d, err := startDump(ctx, dumpOptions{
		cfg: s.o.Config, flavor: s.o.Flavor, at: s.as.at, serverID: id, host: s.ids.self, uuid: s.uuid,
		heartbeat: s.o.Config.Heartbeat.D(), memory: s.o.Memory, spill: s.o.payloadFile,
	})
	if err != nil {
		return err
	}
	s.dump = d
	s.o.Log.Info("reading the log", "server", side.version, "server_id", id, "position", brief(s.as.at.position()))
	return nil
}

// brief shortens a position for a log line.
func brief(p source.Position) string {
	if len(p) > 200 {
		return string(p[:200]) + "…"
	}
	return string(p)
}

// classify is nil for an error that waiting can mend while the pipeline runs.
func (s *Stream) classify(err error) error {
	code := errorCode(err)
	switch {
	case errors.Is(err, source.ErrCannotServe), errors.Is(err, source.ErrRestart):
		return err
	case code == gomysql.ER_MASTER_FATAL_ERROR_READING_BINLOG && strings.Contains(err.Error(), "same server_uuid/server_id"), code == mariaSlaveSameID:
		return s.clashed()
	case code == gomysql.ER_MASTER_FATAL_ERROR_READING_BINLOG:
		return fmt.Errorf("%w: the server does not send its log from %s on: %w; %s", source.ErrCannotServe, brief(s.as.at.position()), err, copyAnew)
	case code == gomysql.ER_ACCESS_DENIED_ERROR, code == gomysql.ER_HOST_NOT_PRIVILEGED, code == gomysql.ER_MUST_CHANGE_PASSWORD,
		code == gomysql.ER_MUST_CHANGE_PASSWORD_LOGIN, code == 1698, code == 3118, code == 4151:
		return nil // passwords are changed in two places, one after the other
	case transport(err):
		return nil
	}
	return fmt.Errorf("%w: %w", source.ErrCannotServe, err)
}

// mariaSlaveSameID is how MariaDB from 11 on says that another replica has our id.
const mariaSlaveSameID = 4052

const copyAnew = "to go on, copy the tables anew under another pipeline name, or set a position by hand"

// clashed goes to the next server id. When all of the range were tried, the one
// who has them is given a minute: two replicas that throw each other out for
// ever help nobody.
func (s *Stream) clashed() error {
	now := time.Now()
	if now.Sub(s.lastClash) > 10*time.Minute {
		s.clash = 0
	}
	s.lastClash = now
	s.clash++
	s.o.Log.Warn("another replica uses our server_id", "server_id", s.ids.next)
	s.ids.skip()
	if s.clash > int(s.ids.last-s.ids.first) {
		s.hold = time.Minute
	}
	return nil
}

// located checks that the server at the other end has what follows our position.
// It reports whether it surely is the server that the position is of.
func (s *Stream) located(ctx context.Context, c *conn) (same bool, err error) {
	if c.mariaDB != (s.o.Flavor == FlavorMariaDB) {
		return false, fmt.Errorf("%w: %s is %s, the configuration says %s", source.ErrCannotServe, address(s.o.Config), c.version, s.o.Flavor)
	}
	if s.skew, err = clockSkew(ctx, c); err != nil {
		return false, err
	}
	id, err := c.identity(ctx)
	if err != nil {
		return false, err
	}
	if c.mariaDB {
		same, err = s.locatedMariaDB(ctx, c, id)
	} else if s.as.at.isFile() {
		same, err = s.locatedFile(ctx, c, id)
	} else {
		same, err = s.locatedGTID(ctx, c, id)
	}
	if err != nil {
		return false, err
	}
	old := &s.as.state.server
	if !same {
		s.o.Log.Warn("another server answers, whose log contains the position", "server", id.Host, "uuid", id.UUID)
		if s.as.state.overlay.until.isFile() {
			if s.as.state.overlay.until, err = c.logEnd(ctx); err != nil {
				return false, err
			}
		}
	}
	if old.UUID != id.UUID {
		// Places in the former server's log mean nothing here.
		old.Known, old.KnownAt, old.Set, s.as.state.known = "", "", "", ""
	}
	if old.UUID != id.UUID || old.ServerID != id.ServerID || old.Host != id.Host {
		old.UUID, old.ServerID, old.Host = id.UUID, id.ServerID, id.Host
		s.as.state.dirty = true
	}
	return same, nil
}

// clockSkew is the server's clock minus ours, to within a round trip.
func clockSkew(ctx context.Context, c *conn) (time.Duration, error) {
	t0 := time.Now()
	text, err := c.one(ctx, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")
	if err != nil {
		return 0, err
	}
	us, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the server's clock: %w", err)
	}
	// The earlier end of what is possible: a heartbeat must not promise more
	// than the server has logged.
	return time.UnixMicro(us).Sub(t0) - time.Since(t0), nil
}

func (c *conn) identity(ctx context.Context) (identity, error) {
	id := identity{Flavor: "mysql"}
	q := "SELECT @@GLOBAL.server_id, @@hostname, @@port, @@GLOBAL.server_uuid"
	if c.mariaDB {
		id.Flavor, q = "mariadb", "SELECT @@GLOBAL.server_id, @@hostname, @@port"
	}
	r, err := c.query(ctx, q)
	if err != nil {
		return id, fmt.Errorf("ask the server who it is: %w", err)
	}
	row := r.rows[0]
	id.ServerID, id.Host = row[0], row[1]+":"+row[2]
	if !c.mariaDB {
		id.UUID = row[3]
	}
	return id, nil
}

func (s *Stream) locatedGTID(ctx context.Context, c *conn, id identity) (bool, error) {
	same := s.as.state.server.UUID == id.UUID
	for attempt := 0; ; attempt++ {
		r, err := c.query(ctx, "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_purged, @@GLOBAL.gtid_executed")
		if err != nil {
			return false, err
		}
		row := r.rows[0]
		if row[0] != "ON" {
			return false, fmt.Errorf("%w: gtid_mode is %s and the position is a set of GTIDs; set gtid_mode=ON again", source.ErrCannotServe, row[0])
		}
		purged, err := parseGTIDSet(row[1])
		if err != nil {
			return false, fmt.Errorf("read gtid_purged: %w", err)
		}
		executed, err := parseGTIDSet(row[2])
		if err != nil {
			return false, fmt.Errorf("read gtid_executed: %w", err)
		}
		ahead := s.as.at.set.minus(executed)
		if len(ahead.runs) > 0 && same && attempt < 20 {
			// A transaction reaches us before the server counts it as executed.
			if err := pause(ctx, 250*time.Millisecond); err != nil {
				return false, err
			}
			continue
		}
		switch {
		case len(ahead.runs) > 0 && same:
			return false, fmt.Errorf("%w: the position is ahead of the server by %s: its log was reset, or it lost transactions in a crash (sync_binlog, innodb_flush_log_at_trx_commit); %s", source.ErrCannotServe, ahead, copyAnew)
		case len(ahead.runs) > 0:
			return false, fmt.Errorf("%w: another server (%s, server_uuid %s) answers at %s, and it lacks %s; let it catch up or bring back the former one, or %s", source.ErrCannotServe, id.Host, id.UUID, address(s.o.Config), ahead, copyAnew)
		}
		if gone := purged.minus(s.as.at.set); len(gone.runs) > 0 {
			return false, fmt.Errorf("%w: the server's log no longer holds %s, which follows the position (it was purged: binlog_expire_logs_seconds); %s", source.ErrCannotServe, gone, copyAnew)
		}
		if same {
			return true, s.sameLog(ctx, c)
		}
		return false, nil
	}
}

// sameLog looks at the place in MySQL's log that the state knows. A server whose
// log and GTIDs were reset counts from 1 again: once it has passed our numbers, its
// set contains ours and means other transactions.
func (s *Stream) sameLog(ctx context.Context, c *conn) error {
	was := s.as.state.server
	known := place{file: was.File, offset: was.Offset}
	if was.Known != "" {
		p, err := parsePlace(FlavorMySQL, was.KnownAt)
		if err != nil {
			return fmt.Errorf("%w: read the source's state in the record: %w", source.ErrCannotServe, err)
		}
		known = p
	} else if was.Set == "" {
		return nil
	}
	if !known.isFile() || known.offset == 0 {
		return nil
	}
	files, err := c.query(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return fmt.Errorf("list the files of the log: %w", err)
	}
	if len(files.rows) == 0 {
		return nil
	}
	reset := func(found string) error {
		return fmt.Errorf("%w: the server's log is not the one that the position is of: at %s there is %s: it was reset (RESET BINARY LOGS AND GTIDS), and the same GTIDs may mean other transactions now; %s", source.ErrCannotServe, known.position(), found, copyAnew)
	}
	i := slices.IndexFunc(files.rows, func(r []string) bool { return r[0] == known.file })
	if i < 0 {
		// Purged, or by another base name, or not written yet.
		last := files.rows[len(files.rows)-1][0]
		if n, err := compareFiles(known, place{file: last}); err == nil && n > 0 && strings.TrimRight(known.file, "0123456789") == strings.TrimRight(last, "0123456789") {
			return reset("no file yet, the newest is " + last)
		}
		return nil
	}
	if size, err := strconv.ParseUint(files.rows[i][1], 10, 64); err == nil && size < known.offset {
		return reset(fmt.Sprintf("nothing, the file has %d bytes", size))
	}
	r, err := c.query(ctx, fmt.Sprintf("SHOW BINLOG EVENTS IN %s FROM %d LIMIT 1", quote(known.file), known.offset))
	switch {
	case errorCode(err) == gomysql.ER_ERROR_WHEN_EXECUTING_COMMAND:
		return reset("no event")
	case err != nil && errorCode(err) == 0:
		return err
	case err != nil:
		return nil // we may not look
	}
	next := r.gtidOf(0)
	switch {
	case was.Known != "":
		if "gtid:"+next != string(was.Known) {
			return reset(fmt.Sprintf("%q, not %s", next, was.Known))
		}
	case was.Set != "" && next != "":
		set, err := parseGTIDSet(was.Set)
		if err != nil {
			return nil
		}
		if one, err := parseGTIDSet(next); err == nil && len(one.minus(set).runs) == 0 {
			return reset(next)
		}
	}
	return nil
}

// gtidOf is the GTID in row i of SHOW BINLOG EVENTS, which prints
// SET @@SESSION.GTID_NEXT= 'uuid:number'; "" if it is another event.
func (r *rows) gtidOf(i int) string {
	_, after, ok := strings.Cut(r.at(i, "Info"), "GTID_NEXT= '")
	gtid, _, closed := strings.Cut(after, "'")
	if !ok || !closed || gtid == "ANONYMOUS" {
		return ""
	}
	return strings.ToLower(gtid)
}

func (s *Stream) locatedFile(ctx context.Context, c *conn, id identity) (bool, error) {
	at := s.as.at
	if have := s.as.state.server.UUID; have != "" && have != id.UUID {
		return false, fmt.Errorf("%w: another server (server_uuid %s) answers at %s in place of %s, and a position by file means nothing to it; %s", source.ErrCannotServe, id.UUID, address(s.o.Config), have, copyAnew)
	}
	size, err := c.logSize(ctx, at)
	if err != nil {
		return false, err
	}
	if at.offset > size {
		return false, fmt.Errorf("%w: %s is behind the end of that file, which has %d bytes: the log was reset, or the server lost transactions in a crash; %s", source.ErrCannotServe, at.position(), size, copyAnew)
	}
	_, err = c.query(ctx, fmt.Sprintf("SHOW BINLOG EVENTS IN %s FROM %d LIMIT 1", quote(at.file), at.offset))
	if errorCode(err) == gomysql.ER_ERROR_WHEN_EXECUTING_COMMAND {
		return false, fmt.Errorf("%w: the offset of %s is not an event boundary: %w", source.ErrCannotServe, at.position(), err)
	}
	if err != nil && errorCode(err) == 0 {
		return false, err
	}
	return true, nil
}

// logSize is the size of the file of a place; an error if the server no longer
// has it.
func (c *conn) logSize(ctx context.Context, at place) (uint64, error) {
	files, err := c.query(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return 0, fmt.Errorf("list the files of the log: %w", err)
	}
	i := slices.IndexFunc(files.rows, func(r []string) bool { return r[0] == at.file })
	if i < 0 {
		first := "none"
		if len(files.rows) > 0 {
			first = files.rows[0][0]
		}
		return 0, fmt.Errorf("%w: the server no longer has %s, the oldest file of its log is %s (purged, or the log was reset); %s", source.ErrCannotServe, at.position(), first, copyAnew)
	}
	return strconv.ParseUint(files.rows[i][1], 10, 64)
}

func (s *Stream) locatedMariaDB(ctx context.Context, c *conn, id identity) (bool, error) {
	if at := s.as.at; at.isFile() {
		size, err := c.logSize(ctx, at)
		if err == nil && size < at.offset {
			err = fmt.Errorf("%w: %s is behind the end of that file; %s", source.ErrCannotServe, at.position(), copyAnew)
		}
		if err != nil {
			return false, err
		}
	}
	was := s.as.state.server
	known := place{file: was.File, offset: was.Offset}
	if !known.isFile() {
		return false, nil
	}
	sameHost := was.Host == id.Host && was.ServerID == id.ServerID
	files, err := c.query(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return false, fmt.Errorf("list the files of the log: %w", err)
	}
	reset := fmt.Errorf("%w: the server's log is not the one that the position is of: at %s it was at GTID %q: it was reset or set up anew; %s", source.ErrCannotServe, known.position(), was.GTID, copyAnew)
	for _, f := range files.rows {
		if f[0] != known.file {
			continue
		}
		if size, err := strconv.ParseUint(f[1], 10, 64); err != nil || size < known.offset {
			if sameHost {
				return false, reset
			}
			return false, nil
		}
		text, err := gtidAt(ctx, c, known.file, known.offset)
		if err != nil && !errors.Is(err, source.ErrCannotServe) {
			return false, err
		}
		a, err1 := parseDomains(text)
		b, err2 := parseDomains(was.GTID)
		if err == nil && err1 == nil && err2 == nil && slices.Equal(a, b) {
			return true, nil
		}
		if sameHost {
			return false, reset
		}
		return false, nil
	}
	if !sameHost || len(files.rows) == 0 {
		return false, nil
	}
	c1, err := compareFiles(known, place{file: files.rows[len(files.rows)-1][0]})
	if err != nil || c1 > 0 {
		return false, reset
	}
	// The file was purged; whether what follows is still there the server says
	// when it is asked for the log.
	return true, nil
}

// joinSome joins names for a message, the first n of them.
func joinSome(names []string, n int) string {
	if len(names) > n {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
	}
	return strings.Join(names, ", ")
}
