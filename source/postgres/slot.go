package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/lakesyncd/lakesyncd/source"
)

// slotInfo is what the server says of our replication slot.
type slotInfo struct {
	exists               bool
	plugin, database     string
	temporary, active    bool
	pid                  string
	restart, confirmed   lsn
	hasRestart           bool
	status, invalidation string
	twoPhase, failover   bool
	kept                 int64 // bytes of log that the slot holds back
	safe                 int64 // bytes until it may be lost; -1: no limit
	behind               int64 // bytes between what we confirmed and the end of the log
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// readSlot looks the slot up. The server's clock of the log must be running: it
// is no standby.
func readSlot(ctx context.Context, q querier, name string) (slotInfo, error) {
	r, err := q.query(ctx, `
		SELECT plugin, database, temporary, active, active_pid, restart_lsn, confirmed_flush_lsn,
			j->>'wal_status', j->>'invalidation_reason', j->>'two_phase', j->>'failover', coalesce(j->>'safe_wal_size', '-1'),
			coalesce(pg_catalog.pg_wal_lsn_diff(now, restart_lsn), 0), coalesce(pg_catalog.pg_wal_lsn_diff(now, confirmed_flush_lsn), 0)
		FROM (SELECT s.*, pg_catalog.to_jsonb(s) AS j,
				CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END AS now
			FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1) x`, name)
	if err != nil {
		return slotInfo{}, fmt.Errorf("look up the replication slot: %w", err)
	}
	if len(r) == 0 {
		return slotInfo{}, nil
	}
	s := slotInfo{
		exists: true, plugin: r.text(0, 0), database: r.text(0, 1), temporary: r.text(0, 2) == "t", active: r.text(0, 3) == "t",
		pid: r.text(0, 4), hasRestart: r[0][5] != nil, status: r.text(0, 7), invalidation: r.text(0, 8),
		twoPhase: r.text(0, 9) == "true", failover: r.text(0, 10) == "true",
	}
	for _, x := range []struct {
		text string
		to   *lsn
	}{{r.text(0, 5), &s.restart}, {r.text(0, 6), &s.confirmed}} {
		if x.text == "" {
			continue
		}
		if *x.to, err = parseLSN(x.text); err != nil {
			return s, fmt.Errorf("look up the replication slot: %w", err)
		}
	}
	for i, to := range []*int64{&s.safe, &s.kept, &s.behind} {
		if _, err := fmt.Sscanf(r.text(0, 11+i), "%d", to); err != nil {
			return s, fmt.Errorf("look up the replication slot: size %q: %w", r.text(0, 11+i), err)
		}
	}
	return s, nil
}

// usable says why a slot that exists can't serve, "" if it can.
func (s *slotInfo) usable(o *Options) string {
	name := o.Config.Slot
	switch {
	case s.plugin != "pgoutput":
		if s.plugin == "" {
			return fmt.Sprintf("%s is a slot for physical replication, of somebody else", name)
		}
		return fmt.Sprintf("%s uses the plugin %s, so it is somebody else's", name, s.plugin)
	case s.database != o.Config.Database:
		return fmt.Sprintf("%s belongs to the database %s", name, s.database)
	case s.temporary:
		return fmt.Sprintf("%s is a temporary slot of another session (pid %s)", name, s.pid)
	case s.twoPhase:
		return fmt.Sprintf("%s was made with two_phase, which hands out transactions before they are decided", name)
	}
	return ""
}

// lost says that the server no longer has what the slot should have kept.
func (s *slotInfo) lost() string {
	switch {
	case s.invalidation != "":
		return "it was invalidated: " + s.invalidation
	case s.status == "lost":
		return "the server removed log that it needed (max_slot_wal_keep_size)"
	case !s.hasRestart:
		return "it keeps no log any more"
	}
	return ""
}

// readiedSlot removes what a copy that broke off left behind. Only a slot that
// bears our prefix, serves our database through our plugin, is used by nobody and
// has no record that continues it is ours to drop: nothing can be lost with it,
// since without a record everything is copied anyway.
func readiedSlot(ctx context.Context, o *Options, c, rc *conn) error {
	s, err := readSlot(ctx, c, o.Config.Slot)
	if err != nil || !s.exists {
		return err
	}
	drop := fmt.Sprintf("SELECT pg_drop_replication_slot(%s)", literal(o.Config.Slot))
	if why := s.usable(o); why != "" {
		return fmt.Errorf("%w: slot: %s; name another slot", source.ErrCannotServe, why)
	}
	if s.active {
		return inUse(ctx, o, c, s.pid)
	}
	if !strings.HasPrefix(o.Config.Slot, namePrefix) {
		return fmt.Errorf("%w: slot: %s exists, but no record of this pipeline continues it; if nobody else needs it, run: %s", source.ErrCannotServe, o.Config.Slot, drop)
	}
	o.Log.Warn("dropping the replication slot of a copy that was not completed", "slot", o.Config.Slot, "confirmed", s.confirmed.String())
	if err := dropSlot(ctx, o, rc); err != nil {
		return fmt.Errorf("drop the replication slot of a copy that was not completed: %w", err)
	}
	return nil
}

// dropSlot fails, and does not wait, while somebody reads the slot.
func dropSlot(ctx context.Context, o *Options, rc *conn) error {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	return pglogrepl.DropReplicationSlot(ctx, rc.PgConn, ident(o.Config.Slot), pglogrepl.DropReplicationSlotOptions{})
}

// errInUse: somebody reads the slot. It may be a connection of our own that the
// server has not noticed the end of.
var errInUse = errors.New("the replication slot is in use")

func inUse(ctx context.Context, o *Options, c *conn, pid string) error {
	who := ""
	r, err := c.query(ctx, "SELECT coalesce(host(client_addr), 'a local socket'), application_name FROM pg_catalog.pg_stat_replication WHERE pid = $1::int", pid)
	if err == nil && len(r) == 1 {
		who = fmt.Sprintf(" from %s (%s)", r.text(0, 0), r.text(0, 1))
	}
	return fmt.Errorf("%w: %s by pid %s%s; if that is no other lakesyncd, it ends by wal_sender_timeout", errInUse, o.Config.Slot, pid, who)
}

// createSlot makes the slot. The snapshot that belongs to its consistent point is
// there until the next command on rc.
func createSlot(ctx context.Context, o *Options, rc *conn) (at lsn, snapshot string, err error) {
	// The package writes it at the end of the command, where all options go.
	options := "EXPORT_SNAPSHOT"
	switch {
	case rc.version >= 170000:
		options = "(SNAPSHOT 'export', FAILOVER true)"
	case rc.version >= 150000:
		options = "(SNAPSHOT 'export')"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*sideTimeout)
	defer cancel()
	r, err := pglogrepl.CreateReplicationSlot(ctx, rc.PgConn, ident(o.Config.Slot), "pgoutput", pglogrepl.CreateReplicationSlotOptions{SnapshotAction: options})
	if err != nil {
		return 0, "", fmt.Errorf("create the replication slot: %w", err)
	}
	if at, err = parseLSN(r.ConsistentPoint); err != nil {
		return 0, "", fmt.Errorf("create the replication slot: %w", err)
	}
	return at, r.SnapshotName, nil
}

// blockers names the transactions that a new slot waits for.
func blockers(ctx context.Context, q querier) string {
	r, err := q.query(ctx, `
		SELECT 'pid ' || pid || ' of ' || coalesce(usename, '-') || ' since ' || xact_start::timestamp(0) FROM pg_catalog.pg_stat_activity
			WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid() AND xact_start < pg_catalog.now() - interval '30 seconds'
		UNION ALL SELECT 'prepared transaction ' || gid || ' since ' || prepared::timestamp(0) FROM pg_catalog.pg_prepared_xacts LIMIT 5`)
	if err != nil || len(r) == 0 {
		return ""
	}
	var out []string
	for i := range r {
		out = append(out, r.text(i, 0))
	}
	return strings.Join(out, ", ")
}
