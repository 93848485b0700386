package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
)

// A state is what the history knows of a row of the append table: enough of its
// columns to tell every change from every other.
type state struct {
	tx, a int64
	u     int
}

// A change is one row that the append table must have, once.
type change struct {
	op string // c, u, d or t
	id int
	state
}

func (c change) String() string {
	if c.op == "t" {
		return "t"
	}
	return fmt.Sprintf("%s id=%d tx=%d u=%d a=%d", c.op, c.id, c.tx, c.u, c.a)
}

// A history is all changes of the append table that count, in the order of the
// source's log, and the rows that they leave.
type history struct {
	mu   sync.Mutex
	live map[int]state
	txs  [][]change
}

func (h *history) truncate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txs = append(h.txs, []change{{op: "t"}})
	h.live = map[int]state{}
}

// A plan is a transaction that doesn't count yet.
type plan struct {
	tx      int64
	live    map[int]state
	changes []change
}

func (h *history) plan(tx int64) *plan {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &plan{tx: tx, live: map[int]state{}}
	maps.Copy(p.live, h.live)
	return p
}

func (p *plan) cloned() map[int]state { return maps.Clone(p.live) }

func (h *history) commit(p *plan) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live = p.live
	h.txs = append(h.txs, p.changes)
}

// next is a statement that changes one row, noted as the i-th of the transaction.
func (p *plan) next(rnd *rand.Rand, r *relation, i int) string {
	id := rnd.IntN(r.space)
	if rnd.IntN(3) > 0 {
		id = rnd.IntN(10)
	}
	to := state{tx: p.tx, u: rnd.IntN(4), a: p.tx*10000 + int64(i)}
	was, there := p.live[id]
	switch {
	case !there:
		p.live[id] = to
		p.changes = append(p.changes, change{"c", id, to})
		return fmt.Sprintf("INSERT INTO %s(id,tx,u,region,a) VALUES(%d,%d,%d,'',%d)", r.full(), id, to.tx, to.u, to.a)
	case rnd.IntN(3) == 0:
		delete(p.live, id)
		p.changes = append(p.changes, change{"d", id, was})
		return fmt.Sprintf("DELETE FROM %s WHERE id=%d", r.full(), id)
	default:
		p.live[id] = to
		p.changes = append(p.changes, change{"u", id, to})
		return fmt.Sprintf("UPDATE %s SET tx=%d, u=%d, a=%d WHERE id=%d", r.full(), to.tx, to.u, to.a, id)
	}
}

// An appended row is what the table has of a change.
type appended struct {
	change
	position string
	ordinal  int64
}

func parseAppended(line string) (appended, error) {
	var v struct {
		ID, TX, U, A *int64
		Op           string `json:"_op"`
		Position     string `json:"_position"`
		Ordinal      int64  `json:"_ordinal"`
	}
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		return appended{}, fmt.Errorf("row %.300s: %w", line, err)
	}
	num := func(p *int64) int64 {
		if p == nil {
			return 0
		}
		return *p
	}
	return appended{change{v.Op, int(num(v.ID)), state{num(v.TX), num(v.A), int(num(v.U))}}, v.Position, v.Ordinal}, nil
}

// judge holds the rows of the append table against the history: the rows of the
// copy must be those after one of its transactions, and the others the changes
// since, each once, in their order within the transaction.
func (h *history) judge(lines []string) (lost, doubled, wrong []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var copied []change
	got := map[change][]appended{}
	places := map[string]change{}
	for _, l := range lines {
		r, err := parseAppended(l)
		if err != nil {
			return lost, doubled, append(wrong, err.Error())
		}
		if r.op == "r" {
			copied = append(copied, r.change)
			continue
		}
		place := fmt.Sprintf("%s#%d", r.position, r.ordinal)
		if other, taken := places[place]; taken {
			doubled = append(doubled, fmt.Sprintf("%v and %v at %s", other, r.change, place))
		}
		places[place] = r.change
		got[r.change] = append(got[r.change], r)
	}
	// The copy ends before the first transaction that the log gave. A TRUNCATE has
	// no number of its own to be found by; it belongs to what follows it.
	first := len(h.txs)
	for i, tx := range h.txs {
		if tx[0].op != "t" && slices.ContainsFunc(tx, func(c change) bool { return len(got[c]) > 0 }) {
			first = i
			break
		}
	}
	truncates := len(got[change{op: "t"}])
	cuts := []int{first}
	for first > 0 && h.txs[first-1][0].op == "t" {
		first--
		cuts = append(cuts, first)
	}
	// Of the places before and after such a TRUNCATE, the one with as many in the log.
	cut := cuts[0]
	for _, c := range cuts {
		n := 0
		for _, tx := range h.txs[c:] {
			if tx[0].op == "t" {
				n++
			}
		}
		if n == truncates {
			cut = c
		}
	}
	want := map[int]state{}
	for _, tx := range h.txs[:cut] {
		apply(want, tx)
	}
	for _, c := range copied {
		if st, ok := want[c.id]; !ok {
			doubled = append(doubled, fmt.Sprintf("copied %v, which was not there (or twice)", c))
		} else if st != c.state {
			wrong = append(wrong, fmt.Sprintf("copied %v, which was %v", c, change{"r", c.id, st}))
		}
		delete(want, c.id)
	}
	for id, st := range want {
		lost = append(lost, fmt.Sprintf("not copied: %v", change{"r", id, st}))
	}
	for _, tx := range h.txs[cut:] {
		var before *appended
		for _, c := range tx {
			rows := got[c]
			if len(rows) == 0 {
				lost = append(lost, c.String())
				continue
			}
			r := rows[0]
			got[c] = rows[1:]
			if c.op == "t" {
				continue
			}
			if before != nil && (before.position != r.position || before.ordinal >= r.ordinal) {
				wrong = append(wrong, fmt.Sprintf("order: %v at %s#%d, then %v at %s#%d", before.change, before.position, before.ordinal, c, r.position, r.ordinal))
			}
			before = &r
		}
	}
	for c, rows := range got {
		for _, r := range rows {
			doubled = append(doubled, fmt.Sprintf("%v at %s#%d, once too often", c, r.position, r.ordinal))
		}
	}
	slices.Sort(lost)
	slices.Sort(doubled)
	return lost, doubled, wrong
}

func apply(rows map[int]state, tx []change) {
	for _, c := range tx {
		switch c.op {
		case "t":
			clear(rows)
		case "d":
			delete(rows, c.id)
		default:
			rows[c.id] = c.state
		}
	}
}
