package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// A workload is the writers of a round. Every transaction leaves its number in
// the ledger, so that after a crash of the server in the middle of a commit the
// writer learns whether it counts.
type workload struct {
	s    *harness.Server
	pace time.Duration

	gate sync.RWMutex // held for writing while nothing may be written
	stop atomic.Bool
	// copied: no copy will begin any more. One that meets a prepared transaction
	// is refused, since no log would have its rows.
	copied atomic.Bool
	wg     sync.WaitGroup
	err    atomic.Pointer[error]

	tx   atomic.Int64
	done atomic.Int64 // transactions that the server confirmed

	mu    sync.Mutex
	rels  []*relation
	lates int

	history history
}

// writers is how many write at once. The first one alone writes to the append
// table, so that the order of its changes is known.
const writers = 3

// begin starts the writers; they end with end.
func (w *workload) begin(seed uint64) {
	for i := range writers {
		rnd := rand.New(rand.NewPCG(seed, 100+uint64(i)))
		// It ends when stop is set.
		w.wg.Go(func() {
			if err := w.write(i, rnd); err != nil {
				err = fmt.Errorf("writer %d: %w", i, err)
				w.err.CompareAndSwap(nil, &err)
			}
		})
	}
}

func (w *workload) end() {
	w.stop.Store(true)
	w.wg.Wait()
}

// failed is what ended a writer early.
func (w *workload) failed() error {
	if p := w.err.Load(); p != nil {
		return *p
	}
	return nil
}

// relations that are there now.
func (w *workload) relations() []*relation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.rels)
}

type session struct {
	w   *workload
	c   *sql.Conn
	rnd *rand.Rand
	// focus: the tables that it writes to for a while, so that checkpoints differ
	// in their tables, and no table gets files at each.
	focus []*relation
}

func (w *workload) write(id int, rnd *rand.Rand) error {
	s := &session{w: w, rnd: rnd}
	defer s.drop()
	for !w.stop.Load() {
		w.gate.RLock()
		err := s.step(id)
		w.gate.RUnlock()
		if err != nil {
			return err
		}
		// Bursts and lulls, so that checkpoints hold one transaction or many.
		pause := time.Duration(rnd.ExpFloat64() * float64(w.pace))
		if rnd.IntN(150) == 0 {
			pause = time.Second
		}
		time.Sleep(min(pause, time.Second))
	}
	return nil
}

func (s *session) drop() {
	if s.c != nil {
		s.c.Raw(func(any) error { return sql.ErrConnDone }) //nolint:errcheck // it throws the connection away
		s.c.Close()                                         //nolint:errcheck // it is thrown away
		s.c = nil
	}
}

// exec runs a text of one or more statements. Errors leave no open transaction.
func (s *session) exec(q string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if s.c == nil {
		c, err := s.w.s.DB.Conn(ctx)
		if err != nil {
			return err
		}
		s.c = c
	}
	_, err := s.c.ExecContext(ctx, q)
	if err != nil {
		var known *mysql.MySQLError
		if !errors.As(err, &known) || known.Number == 1053 || known.Number == 1927 || known.Number == 1317 {
			s.drop()
		} else if _, rerr := s.c.ExecContext(ctx, "ROLLBACK"); rerr != nil {
			s.drop()
		}
	}
	return err
}

// value is the first value of a query, asked until the server answers.
func (s *session) value(q string) (string, error) {
	end := time.Now().Add(2 * time.Minute)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		var v string
		err := s.w.s.DB.QueryRowContext(ctx, q).Scan(&v)
		cancel()
		if err == nil {
			return v, nil
		}
		var known *mysql.MySQLError
		if errors.As(err, &known) && known.Number != 1053 && known.Number != 1927 && known.Number != 1317 || time.Now().After(end) {
			return "", fmt.Errorf("%s: %w", q, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// transaction runs statements as one transaction and says whether it counts.
func (s *session) transaction(tx int64, statements []string) (bool, error) {
	// The ledger is written first, last or in between.
	at := s.rnd.IntN(len(statements) + 1)
	all := slices.Insert(slices.Clone(statements), at, fmt.Sprintf(
		"INSERT INTO %s.ledger(id,tx,u,region,a) VALUES(%d,%d,0,'',%d)", captured, tx, tx, len(statements)))
	err := s.exec("BEGIN;" + strings.Join(all, ";") + ";COMMIT")
	if err == nil {
		s.w.done.Add(1)
		return true, nil
	}
	return s.counts(tx, err)
}

// counts asks the ledger whether a transaction that ended with cause counts.
func (s *session) counts(tx int64, cause error) (bool, error) {
	v, err := s.value(fmt.Sprintf("SELECT COUNT(*) FROM %s.ledger WHERE id=%d", captured, tx))
	if err != nil {
		return false, err
	}
	var known *mysql.MySQLError
	if errors.As(cause, &known) {
		switch known.Number {
		case 1213, 1205, 1053, 1927, 1317, 1180, 1062, 1020, 1402, 1105, 1399, 1397:
		default:
			return false, fmt.Errorf("transaction %d: %w", tx, cause)
		}
	}
	if v == "1" {
		s.w.done.Add(1)
	}
	return v == "1", nil
}

// step does one thing.
func (s *session) step(id int) error {
	w, rnd := s.w, s.rnd
	if id == 0 {
		switch rnd.IntN(400) {
		case 0, 1, 2, 3:
			return s.addColumn()
		case 4, 5:
			return s.clear()
		case 6:
			return s.createLate()
		}
		if rnd.IntN(3) == 0 {
			return s.appendChanges()
		}
	}
	tx := w.tx.Add(1)
	rels := w.relations()
	if len(s.focus) == 0 || rnd.IntN(50) == 0 {
		s.focus = nil
		for len(s.focus) < 3 {
			if r := rels[rnd.IntN(len(rels))]; r.space > 0 && r.name != "changes" {
				s.focus = append(s.focus, r)
			}
		}
	}
	any := func() *relation { return s.focus[rnd.IntN(len(s.focus))] }
	var q []string
	switch roll := rnd.IntN(100); {
	case roll < 2: // not captured
		return s.quiet(fmt.Sprintf("REPLACE INTO %s.other VALUES(%d,REPEAT('x',%d))", foreign, rnd.IntN(100), rnd.IntN(2000)))
	case roll < 3:
		return s.quiet("BEGIN", "COMMIT")
	case roll < 4 && w.s.Source == "mysql": // a transaction with nothing in it but its name
		return s.quiet(fmt.Sprintf("SET gtid_next='aaaaaaaa-0000-0000-0000-%012d:%d'", id, tx), "BEGIN", "COMMIT", "SET gtid_next='AUTOMATIC'")
	case roll < 4:
		return s.quiet("FLUSH BINARY LOGS")
	case roll < 5:
		return s.quiet(append(append([]string{"BEGIN"}, any().statements(rnd, tx)...), "ROLLBACK")...)
	case roll < 8 && w.copied.Load():
		return s.xa(tx, any(), any())
	case roll < 10:
		big := rels[slices.IndexFunc(rels, func(r *relation) bool { return r.name == "big" })]
		if q = big.large(rnd, tx); rnd.IntN(15) == 0 {
			q = big.huge(rnd, tx)
		}
	default:
		r := any()
		for range 1 + int(rnd.ExpFloat64()*4) {
			if rnd.IntN(3) == 0 {
				r = any()
			}
			part := r.statements(rnd, tx)
			switch rnd.IntN(12) {
			case 0:
				part = append(append([]string{"SAVEPOINT sp"}, part...), "ROLLBACK TO SAVEPOINT sp")
			case 1:
				part = append(append([]string{"SAVEPOINT sp"}, part...), "RELEASE SAVEPOINT sp")
			case 2:
				part = append(part, fmt.Sprintf("REPLACE INTO %s.other VALUES(%d,'both')", foreign, rnd.IntN(100)))
			}
			q = append(q, part...)
		}
	}
	_, err := s.transaction(tx, q)
	return err
}

// quiet runs statements that change nothing that is captured.
func (s *session) quiet(statements ...string) error {
	for _, q := range statements {
		if err := s.exec(q); err != nil {
			s.drop() // with its settings
			_, err := s.value("SELECT 1")
			return err
		}
	}
	return nil
}

// xa prepares a transaction, lets others write, and decides.
func (s *session) xa(tx int64, a, b *relation) error {
	xid := fmt.Sprintf("'t%d'", tx)
	q := append([]string{"XA START " + xid,
		fmt.Sprintf("INSERT INTO %s.ledger(id,tx,u,region) VALUES(%d,%d,0,'xa')", captured, tx, tx)}, a.statements(s.rnd, tx)...)
	q = append(append(q, b.statements(s.rnd, tx)...), "XA END "+xid, "XA PREPARE "+xid)
	if err := s.exec(strings.Join(q, ";")); err != nil {
		s.drop() // a transaction that is not prepared ends with its session
		return s.decide(tx, xid, "XA ROLLBACK ")
	}
	time.Sleep(time.Duration(s.rnd.IntN(1500)) * time.Millisecond)
	verb := "XA COMMIT "
	if s.rnd.IntN(4) == 0 {
		verb = "XA ROLLBACK "
	}
	if err := s.exec(verb + xid); err == nil {
		s.w.done.Add(1)
		return nil
	}
	s.drop()
	return s.decide(tx, xid, verb)
}

// decide ends a transaction that may be prepared, after an error left that open.
func (s *session) decide(tx int64, xid, verb string) error {
	end := time.Now().Add(2 * time.Minute)
	for {
		if _, err := s.value("SELECT 1"); err != nil {
			return err
		}
		err := s.exec(verb + xid)
		var known *mysql.MySQLError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &known) && known.Number == 1397: // XAER_NOTA: it is decided, or never was prepared
			return nil
		case time.Now().After(end):
			return fmt.Errorf("decide xa %d: %w", tx, err)
		}
		s.drop()
		time.Sleep(200 * time.Millisecond)
	}
}

func (s *session) addColumn() error {
	rels := s.w.relations()
	r := rels[s.rnd.IntN(len(rels))]
	if r.name == "ledger" || r.adds >= 6 {
		return nil
	}
	r.adds++
	name := fmt.Sprintf("c%d", r.adds)
	q := fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s INT", r.full(), name)
	if s.rnd.IntN(3) == 0 {
		q += " AFTER note"
	}
	if err := s.exec(q); err != nil {
		there, verr := s.value(fmt.Sprintf("SELECT COUNT(*) FROM information_schema.columns WHERE table_schema='%s' AND table_name='%s' AND column_name='%s'",
			captured, r.name, name))
		if verr != nil {
			return verr
		}
		if there != "1" {
			return nil
		}
	}
	r.mu.Lock()
	r.extra = append(r.extra, name)
	r.mu.Unlock()
	return nil
}

// clear truncates a relation; one of the append table's changes is then known
// by its rows.
func (s *session) clear() error {
	rels := s.w.relations()
	r := rels[s.rnd.IntN(len(rels))]
	if r.name == "ledger" || r.name == "changes" && len(s.w.history.live) == 0 {
		return nil
	}
	err := s.exec("TRUNCATE TABLE " + r.full())
	if r.name != "changes" {
		if err != nil {
			_, err = s.value("SELECT 1")
		}
		return err
	}
	if err != nil {
		left, verr := s.value("SELECT COUNT(*) FROM " + r.full())
		if verr != nil {
			return verr
		}
		if left != "0" {
			return nil
		}
	}
	s.w.history.truncate()
	return nil
}

func (s *session) createLate() error {
	w := s.w
	if w.lates >= 2 {
		return nil
	}
	w.lates++
	r := late(w.lates)
	if err := s.exec(r.create()); err != nil {
		there, verr := s.value(fmt.Sprintf("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema='%s' AND table_name='%s'", captured, r.name))
		if verr != nil {
			return verr
		}
		if there != "1" {
			return nil
		}
	}
	w.mu.Lock()
	w.rels = append(w.rels, r)
	w.mu.Unlock()
	return nil
}

// appendChanges is a transaction on the append table alone or among others, each
// change of which is noted.
func (s *session) appendChanges() error {
	w := s.w
	tx := w.tx.Add(1)
	rels := w.relations()
	r := rels[slices.IndexFunc(rels, func(r *relation) bool { return r.name == "changes" })]
	plan := w.history.plan(tx)
	var q []string
	for i := range 1 + int(s.rnd.ExpFloat64()*5) {
		switch s.rnd.IntN(10) {
		case 0: // what is rolled back leaves no trace
			try := *plan
			try.live, try.changes = plan.cloned(), nil
			q = append(q, "SAVEPOINT sp", try.next(s.rnd, r, 1000+i), "ROLLBACK TO SAVEPOINT sp")
		case 1:
			other := rels[s.rnd.IntN(len(rels))]
			if other.space > 0 && other.name != "changes" {
				q = append(q, other.statements(s.rnd, tx)...)
			}
		}
		q = append(q, plan.next(s.rnd, r, i))
	}
	counts, err := s.transaction(tx, q)
	if err != nil {
		return err
	}
	if counts {
		w.history.commit(plan)
	}
	return nil
}
