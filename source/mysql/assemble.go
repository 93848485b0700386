package mysql

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/klauspost/compress/zstd"

	"github.com/lakesyncd/lakesyncd/source"
)

// assembler makes source events of the log's events. It knows where
// transactions begin and end, and only their ends have a position: whatever
// happens in between, a restart begins at a whole transaction.
//
// It is driven by two calls in turn: feed takes one event of the log, next hands
// out what follows from it until there is nothing left.
type assembler struct {
	flavor Flavor
	hist   *history
	state  *state
	xa     *xaStore
	limit  int // bytes in a batch
	inner  int64

	// at is the end of the last whole transaction, file and offset where the
	// log is being read.
	at     place
	file   string
	offset uint64
	// checksums: the events of this connection end in one, as its format event
	// said. What comes before that event has none.
	checksums bool
	before    uint64 // offset of where the event that was read last begins
	// skipTo leaves out what comes before an offset that the dump command
	// could not express.
	skipTo uint64

	group  group
	resume *resumeGroup
	torn   *tornGroups

	tables map[uint64]*tableRef
	// statement counts statements: a table map holds until its statement ends.
	statement uint64
	// version counts changes of the history: decoders made before are void.
	version uint64

	rows   rowsCursor
	nested eventReader // events inside of an event, or of a parked transaction
	out    []source.Event
	batch  source.Batch
	large  bool // the batch holds much more memory than most
	// unzip and its buffer serve all compressed transactions in turn.
	unzip    *zstd.Decoder
	unzipped []byte
	ev       source.Event
}

// group is the transaction, or other run of events under one GTID, being read.
type group struct {
	open        bool
	name        source.Position
	begin       place // where its first event is, by file
	placed      bool  // begin is sure, and name is a GTID of MySQL
	time        time.Time
	ordinal     int64 // rows so far
	emitted     bool  // rows were handed out
	schema      bool  // a statement changed the history
	standalone  bool  // one event, no end mark (MariaDB)
	void        bool  // its statement only begins, or failed (MariaDB)
	transaction bool  // BEGIN was seen (MySQL)
	sid         sid
	tag         string
	gno         int64
	maria       mariaGTID
	anonymous   bool
	// torn: this group is known to end with its file, without a commit.
	torn bool
	// park is set in an XA transaction: its rows wait for the decision.
	park *xaRun
	xid  string
	// decided is the XA transaction that this group commits.
	decided    string
	savepoints map[string]int64 // rows before each
}

// resumeGroup is the transaction that a lost connection cut, and how many of
// its rows were handed out before.
type resumeGroup struct {
	name source.Position
	rows int64
}

type tableRef struct {
	tm        *tableMap
	dec       *rowDecoder // nil: not captured
	statement uint64
	version   uint64
}

// rowsCursor is what is left of a rows event.
type rowsCursor struct {
	dec      *rowDecoder
	op       source.Op
	present1 []byte
	present2 []byte
	data     []byte
	end      bool // the statement ends with it
}

// eventReader reads events one after the other; io.EOF ends them.
type eventReader interface {
	next() (event, error)
	// finish is called after the last one.
	finish(a *assembler) error
	close()
}

const eventHeader = 19

// event is one event of the log: what its header says, and the body.
type event struct {
	time   uint32
	typ    replication.EventType
	server uint32 // which wrote it first
	size   uint32
	logPos uint32
	flags  uint16
	body   []byte
}

func parseEvent(b []byte) (event, error) {
	if len(b) < eventHeader {
		return event{}, fmt.Errorf("an event of %d bytes has no header", len(b))
	}
	e := event{
		time: binary.LittleEndian.Uint32(b), typ: replication.EventType(b[4]), server: binary.LittleEndian.Uint32(b[5:]), size: binary.LittleEndian.Uint32(b[9:]),
		logPos: binary.LittleEndian.Uint32(b[13:]), flags: binary.LittleEndian.Uint16(b[17:]), body: b[eventHeader:],
	}
	if int(e.size) != len(b) {
		return event{}, fmt.Errorf("an event of %d bytes says that it has %d", len(b), e.size)
	}
	return e, nil
}

// Event types that the protocol library has no names for.
const (
	mariaWriteRowsCompressed2  replication.EventType = 169
	mariaUpdateRowsCompressed2 replication.EventType = 170
	mariaDeleteRowsCompressed2 replication.EventType = 171
)

// here says where the log is read, for messages.
func (a *assembler) here() string {
	s := fmt.Sprintf("file:%s:%d", a.file, a.offset)
	if a.group.open && a.group.name != "" && !strings.HasPrefix(string(a.group.name), "file:") {
		s += " in " + string(a.group.name)
	}
	return s
}

// stop makes an error of what waiting doesn't mend.
func (a *assembler) stop(format string, args ...any) error {
	return fmt.Errorf("%w: at %s: %w", source.ErrCannotServe, a.here(), fmt.Errorf(format, args...))
}

// located adds the place in the log to an error of a decoder or the history.
func (a *assembler) located(err error) error {
	return fmt.Errorf("at %s: %w", a.here(), err)
}

// feed takes the next event of the log. next must have returned nil before.
func (a *assembler) feed(b []byte) error {
	e, err := parseEvent(b)
	if err != nil {
		return a.stop("%w", err)
	}
	if a.checksums && e.typ != replication.FORMAT_DESCRIPTION_EVENT {
		n := len(b) - 4
		if n < eventHeader || crc32.ChecksumIEEE(b[:n]) != binary.LittleEndian.Uint32(b[n:]) {
			return a.stop("an event of type %s: %w", e.typ, errChecksum)
		}
		e.body = e.body[:len(e.body)-4]
	}
	return a.handle(e)
}

var errChecksum = errors.New("it does not have the checksum that it should have: the log is damaged, or the connection")

// advance follows the offset. Header positions have 32 bits and are 0 inside of
// a transaction on newer MariaDB; both are mended by counting.
func (a *assembler) advance(e event) {
	a.before = a.offset
	if e.flags&replication.LOG_EVENT_ARTIFICIAL_F != 0 {
		return
	}
	switch {
	case e.typ == replication.FORMAT_DESCRIPTION_EVENT:
		// It comes first wherever the dump begins.
		a.offset = max(a.offset, uint64(e.logPos))
		return
	case e.logPos == 0:
		a.offset += uint64(e.size)
		return
	}
	next := a.offset&^(1<<32-1) | uint64(e.logPos)
	if next < a.offset {
		next += 1 << 32
	}
	a.offset = next
}

func (a *assembler) handle(e event) error {
	if a.nested == nil {
		switch e.typ {
		case replication.ROTATE_EVENT:
			return a.rotate(e)
		case replication.HEARTBEAT_EVENT, replication.HEARTBEAT_LOG_EVENT_V2:
			return nil // the stream looks at them, see isHeartbeat
		}
		a.advance(e)
		if a.skipTo > 0 {
			if a.offset <= a.skipTo {
				return nil
			}
			a.skipTo = 0
		}
	}
	switch e.typ {
	case replication.FORMAT_DESCRIPTION_EVENT:
		return a.format(e)
	case replication.STOP_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.IGNORABLE_EVENT, replication.ROWS_QUERY_EVENT,
		replication.TRANSACTION_CONTEXT_EVENT, replication.VIEW_CHANGE_EVENT,
		replication.MARIADB_ANNOTATE_ROWS_EVENT, replication.MARIADB_BINLOG_CHECKPOINT_EVENT, replication.MARIADB_GTID_LIST_EVENT,
		replication.MARIADB_START_ENCRYPTION_EVENT:
		return nil
	case replication.INTVAR_EVENT, replication.RAND_EVENT, replication.USER_VAR_EVENT,
		replication.BEGIN_LOAD_QUERY_EVENT, replication.APPEND_BLOCK_EVENT, replication.DELETE_FILE_EVENT:
		// They prepare a statement, which decides.
		return nil
	case replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return a.gtid(e)
	case replication.MARIADB_GTID_EVENT:
		return a.mariaGTID(e)
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT, replication.EXECUTE_LOAD_QUERY_EVENT:
		return a.query(e)
	case replication.TABLE_MAP_EVENT:
		return a.tableMap(e)
	case replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1,
		replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1,
		mariaWriteRowsCompressed2, mariaUpdateRowsCompressed2, mariaDeleteRowsCompressed2:
		return a.rowsEvent(e)
	case replication.XID_EVENT:
		if !a.group.open {
			return a.stop("a transaction ends that has not begun")
		}
		return a.commit()
	case replication.XA_PREPARE_LOG_EVENT:
		return a.xaPrepare(e)
	case replication.TRANSACTION_PAYLOAD_EVENT:
		return a.payload(bytes.NewReader(e.body), int64(len(e.body)), nil)
	case replication.PARTIAL_UPDATE_ROWS_EVENT:
		return a.stop("event type 39: JSON columns are logged as differences; run: SET PERSIST binlog_row_value_options='' and set it so in every session that writes")
	case replication.INCIDENT_EVENT:
		return a.stop("event type 26: the server says that events were lost; the tables must be copied anew")
	}
	if e.flags&replication.LOG_EVENT_IGNORABLE_F != 0 {
		return nil
	}
	return a.stop("event type %d is unknown and may not be ignored", e.typ)
}

// rotate begins a file. The server also sends one, made up, to say where the
// dump begins.
func (a *assembler) rotate(e event) error {
	if len(e.body) < 8 {
		return a.stop("a rotate event of %d bytes", len(e.body))
	}
	if a.group.open && e.flags&replication.LOG_EVENT_ARTIFICIAL_F == 0 && e.time != 0 {
		return a.stop("the file ends inside of a transaction")
	}
	name := string(bytes.TrimRight(e.body[8:], "\x00"))
	off := binary.LittleEndian.Uint64(e.body)
	a.file, a.offset = name, off
	if a.at.isFile() && !a.group.open {
		// A start beyond 32 bits is not where the server believes it is.
		if a.at.file == name && a.at.offset > off {
			a.skipTo = a.at.offset
		}
	}
	a.state.rotated = true
	return nil
}

// Lengths of the fixed part of the events that we read, as every server since
// MySQL 5.6 and MariaDB 10.0 writes them.
var postHeaders = []struct {
	typ  replication.EventType
	want byte
}{
	{replication.QUERY_EVENT, 13}, {replication.ROTATE_EVENT, 8}, {replication.TABLE_MAP_EVENT, 8},
	{replication.WRITE_ROWS_EVENTv1, 8}, {replication.UPDATE_ROWS_EVENTv1, 8}, {replication.DELETE_ROWS_EVENTv1, 8},
	{replication.WRITE_ROWS_EVENTv2, 10}, {replication.UPDATE_ROWS_EVENTv2, 10}, {replication.DELETE_ROWS_EVENTv2, 10},
}

func (a *assembler) format(e event) error {
	if len(e.body) < 57+5 {
		return a.stop("a format event of %d bytes", len(e.body))
	}
	f := &replication.FormatDescriptionEvent{}
	if err := f.Decode(e.body); err != nil {
		return a.stop("%w", err)
	}
	if f.Version != 4 {
		return a.stop("log format %d is unknown", f.Version)
	}
	a.checksums = f.ChecksumAlgorithm == replication.BINLOG_CHECKSUM_ALG_CRC32
	for _, p := range postHeaders {
		if i := int(p.typ) - 1; i < len(f.EventTypeHeaderLengths) && f.EventTypeHeaderLengths[i] != 0 && f.EventTypeHeaderLengths[i] != p.want {
			return a.stop("events of type %s have a fixed part of %d bytes, not %d: written by %s", p.typ, f.EventTypeHeaderLengths[i], p.want, f.ServerVersion)
		}
	}
	if a.group.open && e.flags&replication.LOG_EVENT_ARTIFICIAL_F == 0 && e.logPos != 0 {
		return a.tornEnd()
	}
	return nil
}

// begin opens a group. time is when it was committed.
func (a *assembler) begin(g group) error {
	if a.group.open {
		return a.stop("a transaction begins inside of another one")
	}
	g.open = true
	a.group = g
	if g.name == "" {
		a.group.name = g.begin.position()
	}
	a.group.torn = a.torn.is(&a.group)
	if r := a.resume; r != nil && r.name != a.group.name {
		return fmt.Errorf("%w: the connection was lost inside of %s and the log goes on with %s", source.ErrRestart, r.name, a.group.name)
	}
	return nil
}

// eventBegin is where the event that was just read begins.
func (a *assembler) eventBegin() place { return place{file: a.file, offset: a.before} }

func (a *assembler) gtid(e event) error {
	if a.flavor == FlavorMariaDB {
		return a.stop("a GTID of MySQL in a log of MariaDB")
	}
	parse := parseGTID
	if e.typ == replication.GTID_TAGGED_LOG_EVENT {
		parse = parseTaggedGTID
	}
	g, err := parse(e.body)
	if err != nil {
		return a.stop("read a GTID: %w", err)
	}
	n := group{begin: a.eventBegin(), time: g.committed, anonymous: e.typ == replication.ANONYMOUS_GTID_EVENT}
	if n.time.IsZero() {
		n.time = time.Unix(int64(e.time), 0).UTC()
	}
	// The server leaves out what we have already; then it does not begin where the
	// event that was read before ends. A checksum is not sent but has its place.
	length := e.logPos - uint32(n.begin.offset)
	n.placed = !n.anonymous && (length == e.size || length == e.size+4)
	if !n.anonymous {
		n.sid, n.tag, n.gno = g.sid, g.tag, g.gno
		b := n.sid.append(append(make([]byte, 0, 64), "gtid:"...))
		if n.tag != "" {
			b = append(append(b, ':'), n.tag...)
		}
		n.name = source.Position(strconv.AppendInt(append(b, ':'), n.gno, 10))
		if n.gno < 1 {
			return a.stop("%s is no GTID", n.name)
		}
	}
	if !a.at.isFile() {
		if n.anonymous {
			return a.stop("a transaction without a GTID was logged and the position is a set of GTIDs; gtid_mode must stay ON")
		}
		if a.at.set.has(n.sid, n.tag, n.gno) {
			return a.stop("%s was sent again although the position holds it", n.name)
		}
	}
	return a.begin(n)
}

// Flags of MariaDB's GTID event that the protocol library has no names for.
const (
	mariaPreparedXA  = 64
	mariaCompletedXA = 128
)

// Flags of MariaDB's GTID event in a byte of their own, from 10.8 on. With
// binlog_alter_two_phase=ON an ALTER TABLE is logged when it begins and again when
// it ends, with changes of the old shape in between.
const (
	mariaStartAlter    = 2
	mariaRollbackAlter = 8
)

func (a *assembler) mariaGTID(e event) error {
	if a.flavor != FlavorMariaDB {
		return a.stop("a GTID of MariaDB in a log of MySQL")
	}
	if len(e.body) < 13 {
		return a.stop("a GTID event of %d bytes", len(e.body))
	}
	flags := e.body[12]
	n := group{begin: a.eventBegin(), time: time.Unix(int64(e.time), 0).UTC(), standalone: flags&replication.BINLOG_MARIADB_FL_STANDALONE != 0}
	n.maria.seq = binary.LittleEndian.Uint64(e.body)
	n.maria.domain = binary.LittleEndian.Uint32(e.body[8:])
	n.maria.server = e.server
	n.name = source.Position(n.maria.append([]byte("gtid:")))
	rest := e.body[13:]
	if flags&replication.BINLOG_MARIADB_FL_GROUP_COMMIT_ID != 0 {
		if len(rest) < 8 {
			return a.stop("a GTID event of %d bytes", len(e.body))
		}
		rest = rest[8:]
	}
	if flags&(mariaPreparedXA|mariaCompletedXA) == 0 {
		n.void = n.standalone && len(rest) > 0 && rest[0]&(mariaStartAlter|mariaRollbackAlter) != 0
	} else {
		xid, err := binaryXID(rest)
		if err != nil {
			return a.stop("read a GTID of an XA transaction: %w", err)
		}
		n.xid = xid
		if flags&mariaPreparedXA != 0 {
			n.park = a.xa.begin(xid)
		}
	}
	return a.begin(n)
}

// next is the next thing to hand out; nil, nil asks for feed. It is valid until
// the call after.
func (a *assembler) next() (*source.Event, error) {
	for {
		if len(a.out) > 0 {
			a.ev = a.out[0]
			a.out = a.out[1:]
			return &a.ev, nil
		}
		if a.rows.dec != nil {
			ev, err := a.decodeRows()
			if ev != nil || err != nil {
				return ev, err
			}
			continue
		}
		if a.nested == nil {
			return nil, nil
		}
		e, err := a.nested.next()
		if err == io.EOF {
			n := a.nested
			a.nested = nil
			n.close()
			err = n.finish(a)
		} else if err == nil {
			err = a.handle(e)
		} else {
			err = a.stop("%w", err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// commit ends the group: everything up to here has been handed out.
func (a *assembler) commit() error {
	g := &a.group
	if g.torn {
		return a.tornWhole()
	}
	if r := a.resume; r != nil {
		if g.ordinal < r.rows {
			return fmt.Errorf("%w: %s has fewer rows than before the connection was lost", source.ErrRestart, r.name)
		}
		a.resume = nil
	}
	if a.flavor == FlavorMariaDB && !a.at.isFile() {
		a.at.domains = a.at.domains.with(g.maria)
	} else if a.at.isFile() {
		a.at.file, a.at.offset = a.file, a.offset
	} else {
		a.at.set.add(g.sid, g.tag, g.gno)
	}
	ev := source.Event{Kind: source.Commit, Position: a.at.position(), Time: g.time}
	if g.decided != "" {
		a.xa.decided(g.decided, ev.Position)
		a.state.dirty = true
	}
	a.state.file, a.state.offset = a.file, a.offset
	if g.placed {
		a.state.known, a.state.knownAt = g.name, g.begin
	}
	if a.state.overlay.reached(place{file: a.file, offset: a.offset}) {
		a.state.dirty = true
	}
	if a.state.dirty || a.state.rotated {
		b, err := a.state.encode(a)
		if err != nil {
			return a.located(err)
		}
		ev.State = b
	}
	a.out = append(a.out, ev)
	a.group = group{}
	return nil
}

// cut forgets a transaction that the connection was lost in. What was handed out
// of it is remembered, to be left out when it comes again. It reports whether
// that is possible.
func (a *assembler) cut() bool {
	a.rows, a.checksums = rowsCursor{}, false
	if a.nested != nil {
		a.nested.close()
		a.nested = nil
	}
	a.statement++
	clear(a.tables)
	g := a.group
	a.group = group{}
	if g.park != nil {
		g.park.drop()
	}
	if !g.open {
		return true
	}
	if g.schema {
		return false
	}
	if g.emitted {
		a.resume = &resumeGroup{name: g.name, rows: g.ordinal}
	}
	return true
}
