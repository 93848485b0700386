package postgres

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/lakesyncd/lakesyncd/source"
)

// Tags of the records of a feed.
const (
	tagMessage   = 'w' // a message of pgoutput
	tagKeepalive = 'k' // the place up to which the server has sent everything
)

// feed is a connection that the server sends its changes to. One goroutine reads
// the socket, another writes it: a reader that waits for room in the queue must
// not keep the server from hearing that we live.
type feed struct {
	sock    net.Conn
	in      *stepper // reads sock, and has what was read of it already
	q       *fifo
	log     *slog.Logger
	every   time.Duration // between two status updates
	patient time.Duration // the longest that the server may be silent
	count   func(int)

	confirmed   atomic.Uint64 // what may be forgotten
	due         chan struct{} // a token says: send a status update now
	wantReply   atomic.Bool   // and ask for an answer
	stop        chan struct{}
	read, wrote chan struct{} // closed when the goroutine has ended
}

// feedOptions says where a feed starts.
type feedOptions struct {
	at        lsn
	confirmed lsn // what the server may forget, or has already
	memory    int64
	heartbeat time.Duration
	patience  time.Duration
	count     func(int)
}

// startFeed asks for the changes from f.at on. The connection is the feed's from
// here on, also after an error.
func startFeed(ctx context.Context, o *Options, c *conn, f feedOptions) (*feed, error) {
	r, err := c.simple(ctx, "SELECT extract(epoch from current_setting('wal_sender_timeout')::interval)::text")
	if err != nil {
		c.close()
		return nil, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	seconds, err := strconv.ParseFloat(r.text(0, 0), 64)
	if err != nil {
		c.close()
		return nil, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	timeout := time.Duration(seconds * float64(time.Second))
	every := min(f.heartbeat, 10*time.Second)
	if timeout > 0 {
		every = min(every, max(timeout/3, 100*time.Millisecond))
	}
	if err := startReplication(ctx, o, c, f.at); err != nil {
		c.close()
		return nil, fmt.Errorf("ask for the changes from %s: %w", f.at, err)
	}
	hc, err := c.Hijack()
	if err != nil {
		c.close()
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	d := &feed{
		sock: hc.Conn, in: c.in, q: newFIFO(f.memory), log: o.Log, every: every, count: f.count,
		patient: max(f.patience, 3*f.heartbeat, timeout),
		due:     make(chan struct{}, 1), stop: make(chan struct{}), read: make(chan struct{}), wrote: make(chan struct{}),
	}
	if n := hc.Frontend.ReadBufferLen(); n != 0 {
		d.sock.Close()
		return nil, fmt.Errorf("%d bytes of the changes were read by somebody else", n)
	}
	d.confirmed.Store(uint64(f.confirmed))
	// Ends when the socket fails or close stops it.
	go func() {
		defer close(d.read)
		d.q.end(d.receive())
	}()
	// Ends with stop, or when the socket fails.
	go func() {
		defer close(d.wrote)
		d.answer()
	}()
	return d, nil
}

// startReplication begins the changes. The deadline is for the answer alone.
func startReplication(ctx context.Context, o *Options, c *conn, at lsn) error {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	return pglogrepl.StartReplication(ctx, c.PgConn, ident(o.Config.Slot), pglogrepl.LSN(at), pglogrepl.StartReplicationOptions{PluginArgs: pluginArgs(o)})
}

// pluginArgs are the options of pgoutput.
func pluginArgs(o *Options) []string {
	return []string{`"proto_version" '1'`, `"publication_names" '` + doubled(ident(o.Config.Publication)) + "'"}
}

func doubled(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if s[i] == '\'' {
			out = append(out, '\'')
		}
		out = append(out, s[i])
	}
	return string(out)
}

// header reads type and length of a message.
func header(br *bufio.Reader) (kind byte, n int, err error) {
	h, err := br.Peek(5)
	if err != nil {
		return 0, 0, err
	}
	kind, n = h[0], int(int32(binary.BigEndian.Uint32(h[1:])))-4
	if n < 0 {
		return 0, 0, fmt.Errorf("a message %q of the server with a length of %d", kind, n+4)
	}
	_, err = br.Discard(5)
	return kind, n, err
}

// whole reads a message that is small or rare.
func whole(br *bufio.Reader, n int) ([]byte, error) {
	if n > 1<<20 {
		return nil, fmt.Errorf("a message of %d bytes where a small one belongs", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(br, b)
	return b, err
}

// aside handles what the server says beside the changes.
func (d *feed) aside(kind byte, body []byte) error {
	switch kind {
	case 'E':
		var m pgproto3.ErrorResponse
		if err := m.Decode(body); err != nil {
			return err
		}
		return serverError(&m)
	case 'N':
		var m pgproto3.NoticeResponse
		if err := m.Decode(body); err != nil {
			return err
		}
		if m.Code == "55000" {
			// PostgreSQL 18 goes on without the publication's changes.
			return fmt.Errorf("%w: the server leaves changes out: %s; %s", source.ErrCannotServe, m.Message, copyAnew)
		}
		d.log.Warn("notice of the server", "code", m.Code, "text", m.Message)
	}
	return nil
}

// slow gives each read of a socket its own deadline.
type slow struct {
	sock    net.Conn
	r       io.Reader // reads sock
	timeout time.Duration
}

func (c slow) Read(b []byte) (int, error) {
	if err := c.sock.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

var errSilent = errors.New("the server was silent for too long")

// receive reads messages into the queue until the connection ends.
func (d *feed) receive() error {
	// What is buffered already is read first.
	head, err := d.in.br.Peek(d.in.br.Buffered())
	if err != nil {
		return err
	}
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(head), slow{d.sock, d.in.raw, d.patient}), 64<<10)
	for {
		kind, n, err := header(r)
		if err != nil {
			return d.silence(err)
		}
		d.count(5 + n)
		if kind == 'd' && n > 0 {
			if err := d.data(r, n); err != nil {
				return d.silence(err)
			}
			continue
		}
		body, err := whole(r, n)
		if err != nil {
			return d.silence(err)
		}
		if kind == 'c' {
			return errors.New("the server ended the changes")
		}
		if err := d.aside(kind, body); err != nil {
			return err
		}
	}
}

func (d *feed) silence(err error) error {
	var t net.Error
	if errors.As(err, &t) && t.Timeout() {
		return fmt.Errorf("%w: %v", errSilent, d.patient)
	}
	return err
}

// data takes one CopyData message of n bytes.
func (d *feed) data(r *bufio.Reader, n int) error {
	const walHeader = 1 + 8 + 8 + 8
	h, err := r.Peek(min(n, walHeader))
	if err != nil {
		return err
	}
	switch {
	case h[0] == 'w' && n > walHeader:
		if _, err := r.Discard(walHeader); err != nil {
			return err
		}
		n -= walHeader
		if n <= r.Size() {
			b, err := r.Peek(n)
			if err != nil {
				return err
			}
			if !d.q.add(nil, tagMessage, b) {
				return errClosed
			}
			_, err = r.Discard(n)
			return err
		}
		return d.q.addLarge(nil, tagMessage, n, func(b []byte) error {
			_, err := io.ReadFull(r, b)
			return err
		})
	case h[0] == 'k' && n == 1+8+8+1:
		if h[17] != 0 {
			poke(d.due)
		}
		if !d.q.add(nil, tagKeepalive, h[1:9]) {
			return errClosed
		}
		_, err := r.Discard(n)
		return err
	}
	return fmt.Errorf("data %q of %d bytes that pgoutput does not have", h[0], n)
}

// answer sends status updates: regularly, when the server asks, and when
// something was confirmed. A write that fails ends the connection.
func (d *feed) answer() {
	t := time.NewTicker(d.every)
	defer t.Stop()
	for {
		if _, err := d.sock.Write(d.status()); err != nil {
			d.log.Debug("could not answer the server", "err", err)
			d.sock.Close()
			return
		}
		select {
		case <-d.stop:
			return
		case <-t.C:
		case <-d.due:
		}
	}
}

// status makes a status update. All three places are the confirmed one: a zero,
// or the received one in place of the flushed, would let the server forget what
// nobody has stored.
func (d *feed) status() []byte {
	if err := d.sock.SetWriteDeadline(time.Now().Add(sideTimeout)); err != nil {
		d.log.Debug("could not set a deadline", "err", err)
	}
	at := d.confirmed.Load()
	b := binary.BigEndian.AppendUint32([]byte{'d'}, 4+34)
	b = append(b, 'r')
	for range 3 {
		b = binary.BigEndian.AppendUint64(b, at)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixMicro()-epoch))
	reply := byte(0)
	if d.wantReply.Swap(false) {
		reply = 1
	}
	return append(b, reply)
}

// confirm tells the server that it may forget everything up to at.
func (d *feed) confirm(at lsn) {
	if uint64(at) > d.confirmed.Load() {
		d.confirmed.Store(uint64(at))
		poke(d.due)
	}
}

// ask makes the server say how far it has sent.
func (d *feed) ask() {
	d.wantReply.Store(true)
	poke(d.due)
}

// close tells the server what was confirmed last, says good-bye and waits a
// moment for it to have heard that.
func (d *feed) close() {
	close(d.stop)
	d.q.close()
	// The reader's next read fails at once; it may have begun one meanwhile,
	// which is why this is repeated.
	for ended := false; !ended; {
		d.sock.SetReadDeadline(time.Unix(1, 0))
		select {
		case <-d.read:
			ended = true
		case <-time.After(20 * time.Millisecond):
			poke(d.q.emptied)
		}
	}
	<-d.wrote
	b := d.status()
	b = append(b, 'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4)
	d.sock.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := d.sock.Write(b); err == nil {
		d.sock.SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.Copy(io.Discard, d.sock)
	}
	d.sock.Close()
}

// asPgError is the server's error in err, if it has one.
func asPgError(err error) *pgconn.PgError {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg
	}
	return nil
}
