package mysql

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

// slabSize is how much of the log travels from the reading to the decoding
// goroutine at once; larger events travel alone.
const slabSize = 256 << 10

const maxPayload = 1<<24 - 1

// packets reads the packets of the protocol straight off a socket. The library's
// own reader copies each packet three times; this one copies it once.
type packets struct {
	r   *bufio.Reader
	seq byte
}

func newPackets(r io.Reader) *packets { return &packets{r: bufio.NewReaderSize(r, 64<<10)} }

func (p *packets) header() (int, error) {
	h, err := p.r.Peek(4)
	if err != nil {
		return 0, err
	}
	n, seq := int(h[0])|int(h[1])<<8|int(h[2])<<16, h[3]
	if seq != p.seq {
		return 0, fmt.Errorf("packet %d of the server came in place of %d", seq, p.seq)
	}
	p.seq++
	p.r.Discard(4)
	return n, nil
}

// rest reads what follows a packet of the largest size: the parts that make one
// packet with it. size, if known, is the length of the whole.
func (p *packets) rest(b []byte, size int) ([]byte, error) {
	if size > cap(b) {
		b = append(make([]byte, 0, size), b...)
	}
	for {
		n, err := p.header()
		if err != nil {
			return nil, err
		}
		at := len(b)
		b = append(b, make([]byte, n)...)
		if _, err := io.ReadFull(p.r, b[at:]); err != nil {
			return nil, err
		}
		if n < maxPayload {
			return b, nil
		}
	}
}

// part reads one more part of such a packet. After the last one, which is shorter
// than the largest, it must not be called.
func (p *packets) part() ([]byte, error) {
	n, err := p.header()
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(p.r, b)
	return b, err
}

// next reads a packet into buf's memory, or into new memory if it is too small.
func (p *packets) next(buf []byte) ([]byte, error) {
	n, err := p.header()
	if err != nil {
		return nil, err
	}
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(p.r, buf); err != nil {
		return nil, err
	}
	if n == maxPayload {
		return p.rest(buf, 0)
	}
	return buf, nil
}

// impatient gives each read of a socket its own deadline.
type impatient struct {
	net.Conn
	timeout time.Duration
}

func (c impatient) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// slab is a run of packets, each after its length in four bytes.
type slab struct {
	buf  []byte
	read int
	file string     // where the body of the only packet is, if it's too large for memory
	of   *copyTable // of the initial snapshot: the table that the rows are of
	last bool       // nothing of that table comes after this
}

func (s *slab) next() []byte {
	if s == nil || s.read >= len(s.buf) {
		return nil
	}
	n := int(binary.LittleEndian.Uint32(s.buf[s.read:]))
	p := s.buf[s.read+4 : s.read+4+n : s.read+4+n]
	s.read += 4 + n
	return p
}

// fifo hands slabs from one goroutine to another and holds at most max bytes,
// or one slab if that is larger.
type fifo struct {
	max int64

	mu              sync.Mutex
	slabs           []*slab
	free            []*slab
	of              *copyTable // what is put now
	bytes           int64
	err             error // what comes after the slabs
	closed          bool
	filled, emptied chan struct{} // one token each, which says: look again
}

func newFIFO(limit int64) *fifo {
	return &fifo{max: limit, filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put waits for room. It returns false when nobody wants more.
func (q *fifo) put(s *slab) bool {
	for {
		q.mu.Lock()
		switch {
		case q.closed:
			q.mu.Unlock()
			return false
		case q.bytes == 0 || q.bytes+int64(cap(s.buf)) <= q.max:
			q.slabs = append(q.slabs, s)
			q.bytes += int64(cap(s.buf))
			q.mu.Unlock()
			poke(q.filled)
			return true
		}
		q.mu.Unlock()
		<-q.emptied
	}
}

// room waits until n more bytes fit, or all was taken. It returns false when
// nobody wants more.
func (q *fifo) room(n int64) bool {
	for {
		q.mu.Lock()
		closed, fits := q.closed, q.bytes == 0 || q.bytes+n <= q.max
		q.mu.Unlock()
		if closed || fits {
			return !closed
		}
		<-q.emptied
	}
}

// end says that nothing comes after what was put.
func (q *fifo) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	poke(q.filled)
}

// get waits for a slab. After the last one it returns what end was given.
func (q *fifo) get(ctx context.Context) (*slab, error) {
	for {
		q.mu.Lock()
		if len(q.slabs) > 0 {
			s := q.slabs[0]
			q.slabs[0] = nil
			q.slabs = q.slabs[1:]
			q.mu.Unlock()
			return s, nil
		}
		err := q.err
		q.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.filled:
		}
	}
}

// done gives a slab's memory back.
func (q *fifo) done(s *slab) {
	q.mu.Lock()
	q.bytes -= int64(cap(s.buf))
	if cap(s.buf) == slabSize && len(q.free) < 8 {
		*s = slab{buf: s.buf[:0]}
		q.free = append(q.free, s)
	}
	q.mu.Unlock()
	poke(q.emptied)
}

func (q *fifo) slab(size int) *slab {
	if size <= slabSize {
		q.mu.Lock()
		defer q.mu.Unlock()
		if n := len(q.free); n > 0 {
			s := q.free[n-1]
			q.free = q.free[:n-1]
			s.of = q.of
			return s
		}
		size = slabSize
	}
	return &slab{buf: make([]byte, 0, size), of: q.of}
}

func (q *fifo) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	poke(q.emptied)
}

// feedOptions says what feed does with packets.
type feedOptions struct {
	// stop tells the packet that is the last one by an error; it is not put.
	stop func(packet []byte) error
	// length tells the whole length of a packet from its first part, or 0.
	length func(first []byte) int
	// spill writes a packet away that memory is too small for, and returns what
	// stays of it and the file; nil if the packet is not of that kind.
	spill func(first []byte, rest func() ([]byte, error)) (head []byte, file string, err error)
}

// feed reads packets off p into q until one is the last, a read fails, or q is
// closed.
func (q *fifo) feed(p *packets, o feedOptions) error {
	s := q.slab(0)
	for {
		if len(s.buf) > 0 && p.r.Buffered() < 4 {
			if !q.put(s) {
				return errClosed
			}
			s = q.slab(0)
		}
		n, err := p.header()
		if err != nil {
			return err
		}
		if len(s.buf)+4+n > cap(s.buf) {
			if len(s.buf) > 0 && !q.put(s) {
				return errClosed
			}
			s = q.slab(4 + n)
		}
		at := len(s.buf)
		s.buf = s.buf[:at+4+n]
		if _, err := io.ReadFull(p.r, s.buf[at+4:]); err != nil {
			return err
		}
		if n == maxPayload {
			// Such a packet began a slab of its own, since it's larger than one.
			if o.spill != nil {
				head, file, err := o.spill(s.buf[at+4:], p.part)
				if err != nil {
					return err
				}
				if head != nil {
					t := q.slab(0)
					t.buf, t.file = append(binary.LittleEndian.AppendUint32(t.buf, uint32(len(head))), head...), file
					if !q.put(t) {
						return errClosed
					}
					s = q.slab(0)
					continue
				}
			}
			size := 0
			if o.length != nil {
				size = 4 + o.length(s.buf[at+4:])
			}
			if s.buf, err = p.rest(s.buf, size); err != nil {
				return err
			}
			n = len(s.buf) - at - 4
		}
		if err := o.stop(s.buf[at+4:]); err != nil {
			s.buf = s.buf[:at]
			if at > 0 && !q.put(s) {
				return errClosed
			}
			return err
		}
		binary.LittleEndian.PutUint32(s.buf[at:], uint32(n))
	}
}

var errClosed = errors.New("the connection was closed by us")

// dump is a connection that the server sends its log to.
type dump struct {
	conn  *conn
	q     *fifo
	cur   *slab
	ended chan struct{}
}

// dumpOptions says where a dump starts and as whom.
type dumpOptions struct {
	cfg       config.MySQL
	flavor    Flavor
	at        place
	serverID  uint32
	host      string // how we appear in the server's list of replicas
	uuid      string
	heartbeat time.Duration
	memory    int64
	spill     func() (*os.File, error) // makes a file for a transaction that is larger than memory
}

// startDump connects, registers and asks for the log from o.at on.
func startDump(ctx context.Context, o dumpOptions) (*dump, error) {
	c, err := connect(ctx, o.cfg, 3*o.heartbeat+dialTimeout)
	if err != nil {
		return nil, err
	}
	if err := c.requestDump(ctx, o); err != nil {
		c.Close()
		return nil, fmt.Errorf("ask for the log from %s: %w", o.at.position(), err)
	}
	d := &dump{conn: c, q: newFIFO(o.memory), ended: make(chan struct{})}
	p := newPackets(impatient{c.socket, 3 * o.heartbeat})
	p.seq = 1
	// It ends when the socket is closed or fails, or q is closed: see close.
	go func() {
		defer close(d.ended)
		d.q.end(d.q.feed(p, feedOptions{stop: c.dumpEnd, length: eventLength, spill: o.spillPayload}))
	}()
	return d, nil
}

// eventLength is the length of a packet whose event's header is in its first part.
func eventLength(b []byte) int {
	if len(b) < 1+eventHeader {
		return 0
	}
	return 1 + int(binary.LittleEndian.Uint32(b[10:]))
}

// spillPayload writes a compressed transaction to a file if memory is too small
// for it.
func (o dumpOptions) spillPayload(first []byte, part func() ([]byte, error)) (head []byte, file string, err error) {
	const typeAt = 1 + 4
	if o.spill == nil || first[0] != gomysql.OK_HEADER || replication.EventType(first[typeAt]) != replication.TRANSACTION_PAYLOAD_EVENT || int64(eventLength(first)) <= o.memory {
		return nil, "", nil
	}
	f, err := o.spill()
	if err != nil {
		return nil, "", err
	}
	fail := func(err error) ([]byte, string, error) {
		f.Close()
		os.Remove(f.Name())
		return nil, "", err
	}
	b := first[1+eventHeader:]
	for last := false; ; {
		if _, err := f.Write(b); err != nil {
			return fail(fmt.Errorf("%w: spill a transaction of %d bytes: %w", source.ErrCannotServe, eventLength(first), err))
		}
		if last {
			break
		}
		if b, err = part(); err != nil {
			return fail(err)
		}
		last = len(b) < maxPayload
	}
	if err := f.Close(); err != nil {
		return fail(fmt.Errorf("%w: spill a transaction: %w", source.ErrCannotServe, err))
	}
	return first[:1+eventHeader], f.Name(), nil
}

// dumpEnd tells a packet that holds no event from one that does.
func (c *conn) dumpEnd(b []byte) error {
	switch {
	case len(b) == 0:
		return errors.New("the server sent an empty packet in place of an event")
	case b[0] == gomysql.OK_HEADER:
		return nil
	case b[0] == gomysql.ERR_HEADER:
		return plain(c.HandleErrorPacket(b))
	case b[0] == gomysql.EOF_HEADER:
		return errors.New("the server ended the log")
	}
	return fmt.Errorf("the server sent packet type %d in place of an event", b[0])
}

func (c *conn) requestDump(ctx context.Context, o dumpOptions) error {
	period := o.heartbeat.Nanoseconds()
	set := []string{
		"SET @master_binlog_checksum='NONE', @source_binlog_checksum='NONE'",
		fmt.Sprintf("SET @master_heartbeat_period=%d, @source_heartbeat_period=%d", period, period),
		fmt.Sprintf("SET @slave_uuid=%s, @replica_uuid=%s", quote(o.uuid), quote(o.uuid)),
	}
	if o.flavor == FlavorMariaDB {
		set = append(set, "SET @mariadb_slave_capability=4")
		if !o.at.isFile() {
			set = append(set, "SET @slave_connect_state="+quote(o.at.domains.String()),
				"SET @slave_gtid_strict_mode=1", "SET @slave_gtid_ignore_duplicates=0")
		}
	}
	for _, s := range set {
		if err := c.exec(ctx, s); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { c.socket.Close() })
	defer stop()
	if err := c.command(registerCommand(o)); err != nil {
		return err
	}
	if _, err := c.ReadOKPacket(); err != nil {
		return plain(err)
	}
	return c.command(dumpCommand(o))
}

func (c *conn) command(b []byte) error {
	c.ResetSequence()
	if err := c.WritePacket(append(make([]byte, 4, 4+len(b)), b...)); err != nil {
		return plain(err)
	}
	return nil
}

func registerCommand(o dumpOptions) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{gomysql.COM_REGISTER_SLAVE}, o.serverID)
	host := o.host[:min(len(o.host), 60)]
	b = append(append(b, byte(len(host))), host...)
	b = append(b, 0, 0) // no user, no password: the list is public
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint32(b, 0)
}

func dumpCommand(o dumpOptions) []byte {
	switch {
	case o.at.isFile():
		// The command has 32 bits for the offset. Beyond them the file is read
		// from its start and what is before the offset is skipped.
		off := o.at.offset
		if off > 1<<32-1 {
			off = 4
		}
		b := binary.LittleEndian.AppendUint32([]byte{gomysql.COM_BINLOG_DUMP}, uint32(off))
		b = binary.LittleEndian.AppendUint16(b, 0)
		b = binary.LittleEndian.AppendUint32(b, o.serverID)
		return append(b, o.at.file...)
	case o.flavor == FlavorMariaDB:
		b := binary.LittleEndian.AppendUint32([]byte{gomysql.COM_BINLOG_DUMP}, 4)
		b = binary.LittleEndian.AppendUint16(b, 0)
		return binary.LittleEndian.AppendUint32(b, o.serverID)
	}
	set := o.at.set.encode()
	b := binary.LittleEndian.AppendUint16([]byte{gomysql.COM_BINLOG_DUMP_GTID}, 0)
	b = binary.LittleEndian.AppendUint32(b, o.serverID)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 4)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(set)))
	return append(b, set...)
}

// next is the next event, whole, with its header; or the header and the file of
// the body. It is valid until the call after. The error, once there is one, stays.
func (d *dump) next(ctx context.Context) (b []byte, file string, err error) {
	for {
		if p := d.cur.next(); p != nil {
			file, d.cur.file = d.cur.file, ""
			return p[1:], file, nil
		}
		if d.cur != nil {
			d.q.done(d.cur)
			d.cur = nil
		}
		s, err := d.q.get(ctx)
		if err != nil {
			return nil, "", err
		}
		d.cur = s
	}
}

// close ends the connection. The server notices the closed socket and ends its
// side: killing a connection by its number could hit somebody else's on a
// server that has taken this one's place.
func (d *dump) close() {
	if d == nil {
		return
	}
	d.q.close()
	d.conn.socket.Close()
	<-d.ended
	for _, s := range append(d.q.slabs, d.cur) {
		if s != nil && s.file != "" {
			os.Remove(s.file)
		}
	}
}
