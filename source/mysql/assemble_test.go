package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/source"
)

// script makes the events of a log and feeds them to an assembler. The log has a
// table d.t(id INT PRIMARY KEY) and its offsets grow by each event.
type script struct {
	t      testing.TB
	a      *assembler
	flavor Flavor
	offset uint64
	gno    int64
	got    []string
	err    error
}

func newScript(t testing.TB, f Flavor, at source.Position) *script {
	t.Helper()
	h := newHistory(f, func(ns, _ string) bool { return ns == "d" })
	version := "9.7.0"
	if f == FlavorMariaDB {
		version = "11.8.1-MariaDB"
	}
	h.setServer(serverFacts{Version: version, Collation: "utf8mb4_general_ci", CascadesLogged: true, ExplicitTimestamps: true})
	h.setSchemaDefault("d", "utf8mb4_general_ci")
	if err := h.define("d", "CREATE TABLE `t` (\n  `id` int NOT NULL,\n  PRIMARY KEY (`id`)\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"); err != nil {
		t.Fatal(err)
	}
	p, err := parsePlace(f, at)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Flavor: f, Pipeline: "test", SpillDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	o.defaults()
	s := &Stream{o: o}
	a := s.assembler(h, p, &overlay{})
	if a.torn, err = openTorn(o.SpillDir, o.Pipeline); err != nil {
		t.Fatal(err)
	}
	sc := &script{t: t, a: a, flavor: f}
	sc.rotate("binlog.000001", 4)
	return sc
}

// raw feeds one event and takes what follows.
func (s *script) raw(typ replication.EventType, flags uint16, body []byte) *script {
	s.t.Helper()
	if s.err != nil {
		return s
	}
	logPos := uint32(0)
	if flags&replication.LOG_EVENT_ARTIFICIAL_F == 0 {
		s.offset += uint64(eventHeader + len(body))
		logPos = uint32(s.offset)
	}
	s.take(s.a.feed(rawEvent(typ, flags, logPos, body)))
	return s
}

func rawEvent(typ replication.EventType, flags uint16, logPos uint32, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 1700000000)
	b = append(b, byte(typ))
	b = binary.LittleEndian.AppendUint32(b, 77)
	b = binary.LittleEndian.AppendUint32(b, uint32(eventHeader+len(body)))
	b = binary.LittleEndian.AppendUint32(b, logPos)
	b = binary.LittleEndian.AppendUint16(b, flags)
	return append(b, body...)
}

func (s *script) take(err error) {
	for err == nil {
		var ev *source.Event
		if ev, err = s.a.next(); ev == nil {
			break
		}
		switch ev.Kind {
		case source.Rows:
			b := ev.Batch
			v := b.After
			if b.Op == source.Delete {
				v = b.Before
			}
			s.got = append(s.got, fmt.Sprintf("%d %v from %d of %s", b.Op, v[0].Ints, b.Ordinal, b.Position))
		case source.Schema:
			s.got = append(s.got, "schema "+ev.Relation.FullName())
		case source.Truncate:
			s.got = append(s.got, fmt.Sprintf("truncate %s at %d of %s", ev.Relation.FullName(), ev.Time.Unix(), ev.Position))
		case source.Commit:
			s.got = append(s.got, "commit "+string(ev.Position))
		}
	}
	s.err = err
}

func (s *script) rotate(file string, offset uint64) *script {
	s.offset = offset
	return s.raw(replication.ROTATE_EVENT, replication.LOG_EVENT_ARTIFICIAL_F, append(binary.LittleEndian.AppendUint64(nil, offset), file...))
}

// gtid begins the next group.
func (s *script) gtid() *script {
	s.gno++
	if s.flavor == FlavorMariaDB {
		return s.maria(0)
	}
	id, err := parseSID(uuidA)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.raw(replication.GTID_EVENT, 0, binary.LittleEndian.AppendUint64(append([]byte{0}, id[:]...), uint64(s.gno)))
}

func (s *script) maria(flags byte) *script {
	b := binary.LittleEndian.AppendUint64(nil, uint64(s.gno))
	return s.raw(replication.MARIADB_GTID_EVENT, 0, append(binary.LittleEndian.AppendUint32(b, 0), flags, 0, 0, 0, 0, 0, 0))
}

func (s *script) query(sql string) *script {
	b := make([]byte, 13)
	b[8] = 1
	return s.raw(replication.QUERY_EVENT, 0, append(append(b, 'd', 0), sql...))
}

func tableMapBody(id uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, id)[:6]
	b = append(b, 1, 0, 1, 'd', 0, 1, 't', 0, 1, 3, 0, 0)
	return append(b, 1, 1, 0 /* signed */, 4, 3, 2, 'i', 'd' /* names */, 8, 1, 0 /* key */)
}

func rowsBody(id uint64, flags uint16, v2 bool, ids ...int32) []byte {
	b := binary.LittleEndian.AppendUint64(nil, id)[:6]
	b = binary.LittleEndian.AppendUint16(b, flags)
	if v2 {
		b = append(b, 2, 0)
	}
	b = append(b, 1, 0xff)
	for _, x := range ids {
		b = binary.LittleEndian.AppendUint32(append(b, 0xfe), uint32(x))
	}
	return b
}

// insert is a statement.
func (s *script) insert(ids ...int32) *script {
	s.raw(replication.TABLE_MAP_EVENT, 0, tableMapBody(9))
	if s.flavor == FlavorMariaDB {
		return s.raw(replication.WRITE_ROWS_EVENTv1, 0, rowsBody(9, 1, false, ids...))
	}
	return s.raw(replication.WRITE_ROWS_EVENTv2, 0, rowsBody(9, 1, true, ids...))
}

func (s *script) xid() *script { return s.raw(replication.XID_EVENT, 0, make([]byte, 8)) }

func (s *script) want(lines ...string) {
	s.t.Helper()
	if s.err != nil {
		s.t.Fatalf("%v after %q", s.err, s.got)
	}
	if d := cmp.Diff(lines, s.got); d != "" {
		s.t.Errorf("events (-want +got):\n%s", d)
	}
}

func (s *script) stops(class error, words ...string) {
	s.t.Helper()
	if !errors.Is(s.err, class) {
		s.t.Errorf("error %v after %q, want %v", s.err, s.got, class)
		return
	}
	for _, w := range words {
		if !strings.Contains(s.err.Error(), w) {
			s.t.Errorf("error %q does not say %q", s.err, w)
		}
	}
}

const startA = source.Position("gtid:" + uuidA + ":1-10")

func start(t testing.TB) *script {
	s := newScript(t, FlavorMySQL, startA)
	s.gno = 10
	return s
}

func TestPositionsAreEndsOfTransactions(t *testing.T) { // MY-001, MY-045, MY-046
	s := start(t).gtid().query("BEGIN").insert(1).insert(2, 3).xid()
	s.gtid().query("BEGIN").insert(4).query("SAVEPOINT s").query("ROLLBACK TO s").insert(5).query("COMMIT")
	s.gtid().query("CREATE TABLE u (id INT PRIMARY KEY)")
	s.gtid().query("BEGIN").query("COMMIT")
	s.gtid().query("TRUNCATE TABLE t")
	g := func(n int) string { return fmt.Sprintf("gtid:%s:%d", uuidA, n) }
	upTo := func(n int) string { return fmt.Sprintf("commit gtid:%s:1-%d", uuidA, n) }
	s.want("2 [1] from 0 of "+g(11), "2 [2 3] from 1 of "+g(11), upTo(11),
		"2 [4] from 0 of "+g(12), "2 [5] from 1 of "+g(12), upTo(12),
		"schema d.u", upTo(13), upTo(14), "truncate d.t at 1700000000 of "+g(15), upTo(15))
}

func TestPositionsOfMariaDB(t *testing.T) { // MY-008, MY-010
	s := newScript(t, FlavorMariaDB, "gtid:0-1-5,3-1-1")
	s.gno = 5
	s.gtid().insert(1).insert(2).xid()
	s.gno++
	s.maria(replication.BINLOG_MARIADB_FL_STANDALONE | replication.BINLOG_MARIADB_FL_DDL).query("CREATE TABLE u (id INT PRIMARY KEY)")
	s.gtid().insert(3).query("COMMIT")
	s.want("2 [1] from 0 of gtid:0-77-6", "2 [2] from 1 of gtid:0-77-6", "commit gtid:0-77-6,3-1-1",
		"schema d.u", "commit gtid:0-77-7,3-1-1", "2 [3] from 0 of gtid:0-77-8", "commit gtid:0-77-8,3-1-1")
}

func TestHolesAreFilledOnlyByTheirTransaction(t *testing.T) { // MY-013
	s := newScript(t, FlavorMySQL, "gtid:"+uuidA+":1-7:9-10")
	s.gno = 7
	s.gtid().query("BEGIN").insert(8).xid()
	s.want("2 [8] from 0 of gtid:"+uuidA+":8", "commit gtid:"+uuidA+":1-10")
}

func TestFilePositionsHave64Bits(t *testing.T) { // trap 20 of the library
	s := newScript(t, FlavorMySQL, "file:binlog.000001:4")
	anonymous := func() {
		s.raw(replication.ANONYMOUS_GTID_EVENT, 0, make([]byte, 25))
	}
	anonymous()
	s.query("BEGIN").insert(1)
	// A long transaction crosses 4 GiB: 32-bit positions begin again.
	for range 5 {
		s.offset += 1 << 30
		s.raw(replication.ROWS_QUERY_EVENT, 0, []byte("x"))
	}
	s.xid()
	s.want("2 [1] from 0 of file:binlog.000001:4", fmt.Sprintf("commit file:binlog.000001:%d", s.offset))
	if s.offset < 5<<30 {
		t.Fatal(s.offset)
	}
	// Asked for that place, the server begins the file again.
	at := s.a.at.position()
	again := newScript(t, FlavorMySQL, at)
	again.rotate("binlog.000001", 4)
	again.raw(replication.ANONYMOUS_GTID_EVENT, 0, make([]byte, 25)).query("BEGIN").insert(1)
	again.offset = s.offset - (eventHeader + 8)
	for n := uint64(1); n < 5; n++ {
		// The events in between carry the positions over 4 GiB.
		again.take(again.a.feed(rawEvent(replication.ROWS_QUERY_EVENT, 0, uint32(n<<30), []byte("x"))))
	}
	again.take(again.a.feed(rawEvent(replication.XID_EVENT, 0, uint32(s.offset), make([]byte, 8))))
	again.offset = s.offset
	again.raw(replication.ANONYMOUS_GTID_EVENT, 0, make([]byte, 25)).query("BEGIN").insert(2).xid()
	again.want(fmt.Sprintf("2 [2] from 0 of file:binlog.000001:%d", s.offset), fmt.Sprintf("commit file:binlog.000001:%d", again.offset))
}

func TestWhatIsNotUnderstoodStops(t *testing.T) {
	open := func() *script { return start(t).gtid().query("BEGIN") }
	for name, c := range map[string]struct {
		s     *script
		words []string
	}{
		"unknown event (MY-025)":        {open().insert(1).raw(250, 0, []byte("x")), []string{"250", "file:binlog.000001:", uuidA + ":11"}},
		"incident (MY-026)":             {start(t).raw(replication.INCIDENT_EVENT, 0, []byte{1, 0, 0}), []string{"lost"}},
		"partial JSON (MY-037)":         {open().raw(replication.PARTIAL_UPDATE_ROWS_EVENT, 0, make([]byte, 20)), []string{"39", "binlog_row_value_options"}},
		"statement (MY-038)":            {open().query("INSERT INTO t VALUES(1)"), []string{"d.t"}},
		"rows without a map (MY-006)":   {open().raw(replication.WRITE_ROWS_EVENTv2, 0, rowsBody(9, 1, true, 1)), []string{"table number 9"}},
		"map of an older statement":     {open().insert(1).raw(replication.WRITE_ROWS_EVENTv2, 0, rowsBody(9, 1, true, 1)), []string{"table number 9"}},
		"GTID inside of a transaction":  {open().insert(1).gtid(), []string{"inside"}},
		"GTID that the position has":    {newScript(t, FlavorMySQL, startA).gtid(), []string{"again"}},
		"anonymous GTID":                {start(t).raw(replication.ANONYMOUS_GTID_EVENT, 0, make([]byte, 25)), []string{"gtid_mode"}},
		"rollback of rows":              {open().insert(1).query("ROLLBACK"), []string{"ROLLBACK"}},
		"rollback to before rows":       {open().query("SAVEPOINT `s`").insert(1).query("ROLLBACK TO `s`"), []string{"ROLLBACK TO"}},
		"XID without a beginning":       {start(t).xid(), []string{"has not begun"}},
		"rows outside of a transaction": {start(t).insert(1), []string{"outside"}},
		"XA COMMIT of the unknown":      {start(t).gtid().query("XA COMMIT X'78',X'',1"), []string{"X'78'", "copy the tables anew"}},
		"unknown log format":            {start(t).raw(replication.FORMAT_DESCRIPTION_EVENT, 0, make([]byte, 100)), nil},
		"cut rows":                      {open().raw(replication.TABLE_MAP_EVENT, 0, tableMapBody(9)).raw(replication.WRITE_ROWS_EVENTv2, 0, rowsBody(9, 1, true, 1)[:13]), nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.t = t
			c.s.stops(source.ErrCannotServe, c.words...)
		})
	}
}

func TestWhatMayBeIgnoredIs(t *testing.T) {
	s := start(t).raw(250, replication.LOG_EVENT_IGNORABLE_F, nil).raw(replication.HEARTBEAT_EVENT, 0, []byte("binlog.000001"))
	s.gtid().query("BEGIN").raw(replication.ROWS_QUERY_EVENT, 0, []byte("\x00INSERT")).query("ROLLBACK")
	s.gtid().query("XA ROLLBACK X'78',X'',1")
	s.gtid().query("GRANT SELECT ON *.* TO x")
	s.want("commit gtid:"+uuidA+":1-11", "commit gtid:"+uuidA+":1-12", "commit gtid:"+uuidA+":1-13")
}

func TestChecksumsAreVerified(t *testing.T) {
	s := start(t)
	f := make([]byte, 57, 120)
	f[0] = 4
	copy(f[2:], "9.7.0")
	f[56] = eventHeader
	f = append(f, make([]byte, 41)...)
	for _, p := range postHeaders {
		f[57+int(p.typ)-1] = p.want
	}
	s.raw(replication.FORMAT_DESCRIPTION_EVENT, replication.LOG_EVENT_ARTIFICIAL_F, append(f, 1, 0, 0, 0, 0))
	sum := func(b []byte) []byte {
		binary.LittleEndian.PutUint32(b[9:], uint32(len(b)+4))
		return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	}
	s.take(s.a.feed(sum(rawEvent(replication.ROWS_QUERY_EVENT, 0, 500, []byte("hello")))))
	s.want()
	bad := sum(rawEvent(replication.ROWS_QUERY_EVENT, 0, 600, []byte("hello")))
	bad[eventHeader] ^= 1
	s.take(s.a.feed(bad))
	s.stops(source.ErrCannotServe, "checksum")
}

// MY-005: what was handed out of a transaction does not come twice.
func TestLostConnectionInsideOfATransaction(t *testing.T) {
	cut := func() *script {
		s := start(t).gtid().query("BEGIN").insert(1, 2)
		if !s.a.cut() {
			t.Fatal("cannot go on")
		}
		s.gno--
		return s.rotate("binlog.000001", 4)
	}
	cut().gtid().query("BEGIN").insert(1, 2).insert(3).xid().want(
		"2 [1 2] from 0 of gtid:"+uuidA+":11", "2 [3] from 2 of gtid:"+uuidA+":11", "commit gtid:"+uuidA+":1-11")
	again := cut().gtid().query("BEGIN")
	again.a.cut()
	again.gno--
	again.rotate("binlog.000001", 4).gtid().query("BEGIN").insert(1, 2).xid().want(
		"2 [1 2] from 0 of gtid:"+uuidA+":11", "commit gtid:"+uuidA+":1-11")
	cut().gtid().query("BEGIN").insert(1).xid().stops(source.ErrRestart, "fewer rows")
	cut().gtid().query("BEGIN").insert(1, 2, 3).stops(source.ErrRestart, "other rows")
	s := cut()
	s.gno++
	s.gtid().stops(source.ErrRestart, "goes on with")

	s = start(t).gtid().query("BEGIN").query("CREATE TABLE u (id INT PRIMARY KEY) START TRANSACTION")
	if s.a.cut() {
		t.Error("a table that was created can't be created again")
	}
}

// A crash of the server leaves a piece of a transaction in its log.
func TestUnfinishedTransactionsAreLeftOut(t *testing.T) {
	format := func(s *script) *script {
		s.rotate("binlog.000002", 4)
		b := make([]byte, 57+41)
		b[0] = 4
		copy(b[2:], "11.8.1-MariaDB")
		b[56] = eventHeader
		for _, p := range postHeaders {
			b[57+int(p.typ)-1] = p.want
		}
		return s.raw(replication.FORMAT_DESCRIPTION_EVENT, 0, append(b, 0, 0, 0, 0, 0))
	}
	s := newScript(t, FlavorMariaDB, "gtid:0-1-5")
	s.gno = 5
	format(s.gtid().insert(1)).stops(source.ErrRestart, "gtid:0-77-6")
	if len(s.got) != 1 {
		t.Errorf("%q", s.got)
	}
	again := newScript(t, FlavorMariaDB, "gtid:0-1-5")
	again.a.torn = s.a.torn
	again.gno = 5
	format(again.gtid().insert(1)).gtid().insert(2).xid()
	again.want("2 [2] from 0 of gtid:0-77-7", "commit gtid:0-77-7")

	whole := newScript(t, FlavorMariaDB, "gtid:0-1-5")
	whole.a.torn = s.a.torn
	whole.gno = 5
	whole.gtid().insert(1).xid().stops(source.ErrRestart, "whole")
	if len(whole.a.torn.known) != 0 {
		t.Error("the note stays")
	}
}

func TestTaggedGTIDs(t *testing.T) {
	// A tag of 32 bytes takes the size over one byte.
	id, err := parseSID(uuidA)
	if err != nil {
		t.Fatal(err)
	}
	uvar := func(b []byte, v uint64) []byte {
		n := 1
		for n < 9 && v >= 1<<(7*n) {
			n++
		}
		if n == 9 {
			return binary.LittleEndian.AppendUint64(append(b, 0xff), v)
		}
		return append(b, binary.LittleEndian.AppendUint64(nil, v<<n|(1<<(n-1)-1))[:n]...)
	}
	for _, want := range []mysqlGTID{
		{id, "x", 1, time.UnixMicro(1700000000123456).UTC()}, {id, "abcdefghijklmnopqrstuvwxyz_01234", 1 << 40, time.UnixMicro(1).UTC()},
		{id, "", 127, time.UnixMicro(1<<54 - 1).UTC()}, {id, "t", 1<<63 - 2, time.UnixMicro(5).UTC()},
	} {
		b := uvar(nil, taggedFlags)
		b = uvar(b, 1)
		b = uvar(b, taggedUUID)
		for _, x := range want.sid {
			b = uvar(b, uint64(x))
		}
		b = uvar(uvar(b, taggedNumber), uint64(want.gno)<<1)
		b = append(uvar(uvar(b, taggedTag), uint64(len(want.tag))), want.tag...)
		b = uvar(uvar(b, taggedLastCommitted), 6<<1)
		b = uvar(uvar(b, taggedSequence), 7<<1)
		b = uvar(uvar(b, taggedCommitted), uint64(want.committed.UnixMicro()))
		b = uvar(uvar(b, 8), 300)
		b = append(uvar(uvar(uvar(nil, 1), uint64(len(b)+3)), 5), b...)
		got, err := parseTaggedGTID(b)
		if err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		for n := range len(b) - 20 {
			if _, err := parseTaggedGTID(b[:n]); err == nil {
				t.Errorf("%d bytes of %d are read", n, len(b))
			}
		}
	}
}

func FuzzAssembler(f *testing.F) {
	for _, b := range [][]byte{tableMapBody(9), rowsBody(9, 1, true, 1, 2), rowsBody(9, 0, false, 5), make([]byte, 57)} {
		for _, typ := range []byte{2, 15, 16, 18, 19, 30, 31, 32, 33, 38, 40, 42, 162, 165, 166, 170} {
			f.Add(typ, b)
		}
	}
	f.Fuzz(func(t *testing.T, typ byte, body []byte) {
		for _, s := range []*script{start(t), newScript(t, FlavorMariaDB, "gtid:0-1-5")} {
			s.raw(replication.EventType(typ), 0, body)
			s.err = nil
			s.a.cut()
			s.gno = 20
			s.gtid().query("BEGIN").raw(replication.TABLE_MAP_EVENT, 0, tableMapBody(9)).raw(replication.EventType(typ), 0, body)
		}
	})
}
