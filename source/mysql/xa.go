package mysql

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/lakesyncd/lakesyncd/source"
)

// xaInline is up to how many bytes the rows of a prepared transaction live in
// the record itself.
const xaInline = 16 << 10

// xaStore keeps the rows of XA transactions between XA PREPARE, where the log
// has them, and the decision, which is another transaction. A restart begins
// behind the prepare, so what waits is named in the state and durable before the
// state is handed out.
type xaStore struct {
	dir, prefix string
	leftovers   string // prefix of other files that a crash leaves
	log         *slog.Logger
	prepared    map[string]*xaRun
	// gone are files of decided transactions: a restart may still need them
	// until the decision's position is saved.
	gone []goneRun
}

type goneRun struct {
	path string
	at   source.Position
}

// xaRun is the captured table maps and rows events of one XA transaction, as
// the log has them.
type xaRun struct {
	store  *xaStore
	xid    string
	mem    bytes.Buffer
	file   *os.File
	w      *bufio.Writer
	path   string
	size   int64
	crc    uint32
	events int64
}

// xaState is a run in the state.
type xaState struct {
	XID  string `json:"xid"`
	Data []byte `json:"data,omitempty"`
	File string `json:"file,omitempty"` // in spill_dir
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc32"`
}

func newXAStore(o *Options) *xaStore {
	return &xaStore{dir: o.SpillDir, prefix: o.Pipeline + ".xa.", leftovers: o.payloadPrefix(), log: o.Log, prepared: map[string]*xaRun{}}
}

// restore takes over what a saved state names and removes what it doesn't.
func (s *xaStore) restore(saved []xaState) error {
	keep := map[string]bool{}
	for _, x := range saved {
		r := &xaRun{store: s, xid: x.XID, size: x.Size, crc: x.CRC}
		if x.File == "" {
			r.mem.Write(x.Data)
		} else {
			r.path = filepath.Join(s.dir, x.File)
			keep[x.File] = true
		}
		if err := r.verify(); err != nil {
			return fmt.Errorf("%w: the rows of the prepared XA transaction %s: %w; restore %s, or copy the tables anew under another pipeline name", source.ErrCannotServe, x.XID, err, s.dir)
		}
		s.prepared[x.XID] = r
	}
	var old []string
	for _, prefix := range []string{s.prefix, s.leftovers} {
		o, err := filepath.Glob(filepath.Join(s.dir, prefix+"*"))
		if err != nil {
			return fmt.Errorf("look for leftovers in spill_dir: %w", err)
		}
		old = append(old, o...)
	}
	for _, p := range old {
		if !keep[filepath.Base(p)] {
			if err := os.Remove(p); err != nil {
				return fmt.Errorf("remove the leftover %s: %w", p, err)
			}
		}
	}
	return nil
}

func (r *xaRun) verify() error {
	in, err := r.open()
	if err != nil {
		return err
	}
	defer in.Close()
	h := crc32.NewIEEE()
	n, err := io.Copy(h, in)
	switch {
	case err != nil:
		return err
	case n != r.size || h.Sum32() != r.crc:
		return fmt.Errorf("%s holds %d bytes with checksum %08x in place of %d with %08x", r.path, n, h.Sum32(), r.size, r.crc)
	}
	return nil
}

func (r *xaRun) open() (io.ReadCloser, error) {
	if r.path == "" {
		return io.NopCloser(bytes.NewReader(r.mem.Bytes())), nil
	}
	return os.Open(r.path)
}

func (s *xaStore) begin(xid string) *xaRun { return &xaRun{store: s, xid: xid} }

// add appends an event.
func (r *xaRun) add(e event) error {
	var h [5]byte
	binary.LittleEndian.PutUint32(h[:], uint32(len(e.body)))
	h[4] = byte(e.typ)
	for _, b := range [][]byte{h[:], e.body} {
		r.crc = crc32.Update(r.crc, crc32.IEEETable, b)
		r.size += int64(len(b))
		if r.file != nil {
			if _, err := r.w.Write(b); err != nil {
				return fmt.Errorf("%w: write the rows of XA transaction %s to spill_dir: %w", source.ErrRestart, r.xid, err)
			}
			continue
		}
		r.mem.Write(b)
	}
	r.events++
	if r.file == nil && r.mem.Len() > xaInline {
		return r.spill()
	}
	return nil
}

func (r *xaRun) spill() error {
	if err := os.MkdirAll(r.store.dir, 0o750); err != nil {
		return fmt.Errorf("%w: make spill_dir: %w", source.ErrCannotServe, err)
	}
	f, err := os.CreateTemp(r.store.dir, r.store.prefix+"*")
	if err != nil {
		return fmt.Errorf("%w: spill XA transaction %s: %w", source.ErrCannotServe, r.xid, err)
	}
	r.file, r.path, r.w = f, f.Name(), bufio.NewWriterSize(f, 256<<10)
	_, err = r.w.Write(r.mem.Bytes())
	r.mem = bytes.Buffer{}
	if err != nil {
		return fmt.Errorf("%w: spill XA transaction %s: %w", source.ErrCannotServe, r.xid, err)
	}
	return nil
}

// seal makes the run ready to be read, and durable if it is to outlive the
// process.
func (r *xaRun) seal(durable bool) error {
	if r.file == nil {
		return nil
	}
	err := r.w.Flush()
	if err == nil && durable {
		err = r.file.Sync()
	}
	if e := r.file.Close(); err == nil {
		err = e
	}
	r.file, r.w = nil, nil
	if err == nil && durable {
		err = syncDir(r.store.dir)
	}
	if err != nil {
		return fmt.Errorf("%w: write the rows of XA transaction %s to spill_dir: %w", source.ErrCannotServe, r.xid, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}

// drop forgets a run that no state names.
func (r *xaRun) drop() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
	if r.path != "" {
		if err := os.Remove(r.path); err != nil {
			r.store.log.Warn("could not remove spilled rows", "file", r.path, "err", err)
		}
	}
	r.mem = bytes.Buffer{}
}

// decided takes a transaction out once its decision ends with the position at.
func (s *xaStore) decided(xid string, at source.Position) {
	r := s.prepared[xid]
	delete(s.prepared, xid)
	if r != nil && r.path != "" {
		s.gone = append(s.gone, goneRun{r.path, at})
	}
}

// acked removes the files that no restart needs any more.
func (s *xaStore) acked(pos source.Position) {
	for len(s.gone) > 0 {
		past, err := Reached(pos, s.gone[0].at)
		if err != nil || !past {
			return
		}
		if err := os.Remove(s.gone[0].path); err != nil {
			s.log.Warn("could not remove spilled rows", "file", s.gone[0].path, "err", err)
		}
		s.gone = s.gone[1:]
	}
}

func (s *xaStore) saved() []xaState {
	var out []xaState
	for _, r := range s.prepared {
		x := xaState{XID: r.xid, Size: r.size, CRC: r.crc}
		if r.path == "" {
			x.Data = r.mem.Bytes()
		} else {
			x.File = filepath.Base(r.path)
		}
		out = append(out, x)
	}
	return out
}

// replay reads a run's events; then its group ends.
type replay struct {
	in  io.ReadCloser
	r   *bufio.Reader
	buf []byte
	run *xaRun
	one bool // decided in the transaction that prepared it
}

func (r *xaRun) replay(one bool) (*replay, error) {
	in, err := r.open()
	if err != nil {
		return nil, fmt.Errorf("read the rows of XA transaction %s: %w", r.xid, err)
	}
	return &replay{in: in, r: bufio.NewReaderSize(in, 64<<10), run: r, one: one}, nil
}

func (p *replay) next() (event, error) {
	var h [5]byte
	if _, err := io.ReadFull(p.r, h[:]); err != nil {
		return event{}, err
	}
	n := int(binary.LittleEndian.Uint32(h[:]))
	if cap(p.buf) < n {
		p.buf = make([]byte, n)
	}
	p.buf = p.buf[:n]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return event{}, fmt.Errorf("read the rows of XA transaction %s: %w", p.run.xid, io.ErrUnexpectedEOF)
	}
	return event{typ: replication.EventType(h[4]), body: p.buf}, nil
}

func (p *replay) finish(a *assembler) error {
	return a.commit()
}

func (p *replay) close() {
	p.in.Close()
	if p.one {
		p.run.drop()
	}
}

// xaStatement handles XA START, END, COMMIT and ROLLBACK.
func (a *assembler) xaStatement(rest string) error {
	word, rest := firstWord(rest)
	xid := strings.TrimSpace(rest)
	switch word {
	case "START", "BEGIN":
		a.group.xid, a.group.transaction = xid, true
		a.group.park = a.xa.begin(xid)
		return nil
	case "END":
		return nil
	case "COMMIT":
		xid = strings.TrimSpace(strings.TrimSuffix(xid, "ONE PHASE"))
		run := a.xa.prepared[xid]
		if run == nil {
			return a.stop("the XA transaction %s is committed, whose rows were logged before this pipeline began; copy the tables anew under another pipeline name", xid)
		}
		return a.decide(run)
	case "ROLLBACK":
		if a.xa.prepared[xid] != nil {
			a.group.decided = xid
		}
		return a.commit()
	}
	return a.stop("statement XA %s is unknown", word)
}

// decide hands out the rows of a prepared transaction.
func (a *assembler) decide(run *xaRun) error {
	if a.nested != nil {
		return a.stop("XA COMMIT inside of a compressed transaction")
	}
	n, err := run.replay(false)
	if err != nil {
		return a.stop("%w", err)
	}
	a.group.decided, a.nested = run.xid, n
	return nil
}

// xaPrepare ends the group of an XA transaction: at once if it is committed in
// one phase, else when it is decided.
func (a *assembler) xaPrepare(e event) error {
	if len(e.body) < 13 {
		return a.stop("an XA prepare event of %d bytes", len(e.body))
	}
	run := a.group.park
	if !a.group.open || run == nil {
		return a.stop("XA PREPARE outside of an XA transaction")
	}
	b := e.body[1:]
	format, n, m := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	if n > 64 || m > 64 || int(n+m) > len(b)-12 {
		return a.stop("an XA prepare event is cut short")
	}
	xid := xidText(format, b[12:12+n], b[12+n:12+n+m])
	if xid != a.group.xid {
		return a.stop("XA transaction %s is prepared as %s", a.group.xid, xid)
	}
	onePhase := e.body[0] != 0
	if err := run.seal(!onePhase); err != nil {
		return a.located(err)
	}
	a.group.park = nil
	if onePhase {
		if a.nested != nil {
			return a.stop("an XA transaction inside of a compressed one")
		}
		p, err := run.replay(true)
		if err != nil {
			return a.stop("%w", err)
		}
		a.nested = p
		return nil
	}
	a.xa.prepared[xid] = run
	a.state.dirty = true
	return a.commit()
}

// xidText is how the statements in the log write an XA transaction's name.
func xidText(format uint32, gtrid, bqual []byte) string {
	return fmt.Sprintf("X'%x',X'%x',%d", gtrid, bqual, format)
}

// binaryXID reads the name in MariaDB's GTID event.
func binaryXID(b []byte) (string, error) {
	if len(b) < 6 || len(b) < 6+int(b[4])+int(b[5]) {
		return "", io.ErrUnexpectedEOF
	}
	n, m := int(b[4]), int(b[5])
	return xidText(binary.LittleEndian.Uint32(b), b[6:6+n], b[6+n:6+n+m]), nil
}
