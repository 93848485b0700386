package checkpoint

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table/fileio"
	"github.com/lakesyncd/lakesyncd/table/fileio/faultfs"
)

var (
	modelSeed   = flag.Uint64("model.seed", 0, "seed of the model test; 0: a new one")
	modelRounds = flag.Int("model.rounds", 0, "rounds of the model test; 0: 12 with -short, else 60")
)

// model is what the tables must hold: per relation, key to value.
type model struct {
	r    *rand.Rand
	w    *world
	rows map[string]map[string][]string
	log  []string
}

// TestModel runs random transactions, random checkpoints, crashes at every step
// and a store that fails, lies about outcomes and is slow; after each round the
// tables must equal a plain map that was fed the same changes. Half of the
// tables are partitioned, one of them by a column outside of the key.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	rounds := *modelRounds
	if rounds == 0 {
		rounds = 60
		if testing.Short() {
			rounds = 12
		}
	}
	t.Logf("run again with -model.seed=%d -model.rounds=%d", seed, rounds)
	m := &model{r: rand.New(rand.NewPCG(seed, 7)), w: &world{t: t}, rows: map[string]map[string][]string{}}
	t.Cleanup(func() { m.w.stop() })
	names := []string{"shop.flat", "shop.buckets", "shop.moves"}
	m.w.db = newScripted(names...)
	m.w.folder = t.TempDir()
	m.w.tables = []config.Table{
		{Match: "shop.buckets", PartitionBy: []string{"bucket(3, id)"}},
		{Match: "shop.moves", PartitionBy: []string{"truncate(1, v)"}},
	}
	fs, err := fileio.Open(context.Background(), "file://"+m.w.folder, config.Storage{}, fileio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if m.w.fs, err = faultfs.New(fs); err != nil {
		t.Fatal(err)
	}
	m.w.fs.Seed(seed)
	for _, n := range names {
		m.rows[n] = map[string][]string{}
	}
	m.copy(names)
	for round := range rounds {
		for range 1 + m.r.IntN(6) {
			m.transaction(names)
		}
		if err := m.proceed(round); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, strings.Join(m.log, "\n"))
		}
		for _, n := range names {
			if err := m.compare(n); err != nil {
				t.Fatalf("round %d, %s: %v\n%s", round, n, err, strings.Join(m.log, "\n"))
			}
		}
	}
}

func (m *model) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
	if len(m.log) > 60 {
		m.log = m.log[1:]
	}
}

func (m *model) value() string { return string(rune('a'+m.r.IntN(4))) + strconv.Itoa(m.r.IntN(1000)) }

// copy writes the initial snapshot.
func (m *model) copy(names []string) {
	var t tx
	for _, n := range names {
		for id := range m.r.IntN(12) {
			row := []string{strconv.Itoa(id), m.value()}
			m.rows[n][row[0]] = row
			t.events = append(t.events, m.w.db.row(n, source.Read, nil, row))
		}
		t.copied = append(t.copied, m.w.db.relations[n])
	}
	t.barrier = true
	m.w.db.append(t)
}

// transaction writes one: mostly rows, often of few keys, sometimes none, now and
// then a statement.
func (m *model) transaction(names []string) {
	n := names[m.r.IntN(len(names))]
	switch {
	case m.r.IntN(40) == 0:
		m.note("truncate %s", n)
		clear(m.rows[n])
		m.w.db.append(tx{events: []source.Event{{Kind: source.Truncate, Relation: m.w.db.relations[n]}}})
		return
	case m.r.IntN(60) == 0 && len(m.w.db.relations[n].Columns) < 6:
		name := "c" + strconv.Itoa(len(m.w.db.relations[n].Columns))
		m.note("add column %s to %s", name, n)
		for k, row := range m.rows[n] {
			m.rows[n][k] = append(slices.Clone(row), "NULL")
		}
		m.w.db.append(tx{events: []source.Event{m.w.db.addColumn(n, name)}})
		return
	}
	var t tx
	for range m.r.IntN(8) {
		n := names[m.r.IntN(len(names))]
		t.events = append(t.events, m.change(n))
	}
	m.w.db.append(t)
}

// change makes one row change that the database would allow, and does it.
func (m *model) change(n string) source.Event {
	rows := m.rows[n]
	width := len(m.w.db.relations[n].Columns)
	fresh := func(id string) []string {
		row := []string{id}
		for range width - 1 {
			row = append(row, m.value())
		}
		return row
	}
	id := strconv.Itoa(m.r.IntN(15))
	old, there := rows[id]
	if !there {
		row := fresh(id)
		rows[id] = row
		m.note("insert %s %v", n, row)
		return m.w.db.row(n, source.Insert, nil, row)
	}
	switch m.r.IntN(4) {
	case 0:
		delete(rows, id)
		m.note("delete %s %v", n, old)
		return m.w.db.row(n, source.Delete, old, nil)
	case 1: // the key moves, if its new place is free
		to := strconv.Itoa(m.r.IntN(15))
		if _, taken := rows[to]; !taken {
			row := fresh(to)
			delete(rows, id)
			rows[to] = row
			m.note("update %s %v => %v", n, old, row)
			return m.w.db.row(n, source.Update, old, row)
		}
	}
	row := fresh(id)
	rows[id] = row
	m.note("update %s %v => %v", n, old, row)
	return m.w.db.row(n, source.Update, old, row)
}

// storeFaults are rules of faultfs that a pipeline must get over by itself.
var storeFaults = []string{
	"* *: fail times=2",
	"exclusive v*.metadata.json: fail-after",
	"exclusive v*.metadata.json: fail times=2",
	"exclusive v*.metadata.json: fail-after err=unavailable times=2",
	"exclusive */records/*.json: fail-after",
	"exclusive */records/*.json: fail times=3",
	"put version-hint.text: fail-after times=2",
	"put version-hint.text: fail",
	"create *: fail times=2",
	"create *.parquet: enospc times=2",
	"write *.parquet: partial",
	"close *.parquet: fail",
	"close *.avro: fail-after",
	"read version-hint.text: stale times=2",
	"* *: slow delay=3ms times=40",
	"* *: fail p=0.1 times=6",
	"* *: fail-after p=0.1 times=4",
}

// proceed lets the daemon come to the end of the log, one way or another.
func (m *model) proceed(round int) error {
	w := m.w
	switch m.r.IntN(5) {
	case 0: // dies at a step, perhaps several times
		for range 1 + m.r.IntN(2) {
			steps := []string{"before:flush", "after:flush", "before:save", "after:save", "before:commit:shop.flat", "after:commit:shop.flat",
				"before:commit:shop.moves", "after:commit:shop.moves", "after:commit:shop.buckets", "before:ack", "after:ack"}
			step := steps[m.r.IntN(len(steps))]
			m.note("crash %s", step)
			w.start()
			d := w.daemon
			d.mu.Lock()
			d.crashAt = step
			d.mu.Unlock()
			end := w.db.feed(true)
			if err := d.reachOrCrash(end); err != nil && !errors.Is(err, errCrash) {
				return err
			} else if err != nil {
				w.daemon = nil
			} else {
				d.mu.Lock()
				d.crashAt = "" // the step did not come: nothing to commit there
				d.mu.Unlock()
			}
			m.transaction([]string{"shop.flat", "shop.buckets", "shop.moves"})
		}
	case 1: // is stopped, started
		m.note("stop")
		if err := w.stop(); err != nil {
			return err
		}
	case 2, 3: // the store misbehaves
		rule := storeFaults[m.r.IntN(len(storeFaults))]
		if m.r.IntN(2) == 0 {
			m.note("stop")
			if err := w.stop(); err != nil {
				return err
			}
		}
		m.note("fault %s", rule)
		if err := w.fs.Add(rule); err != nil {
			return err
		}
		defer w.fs.Clear()
	}
	m.note("checkpoint %d", round)
	w.start()
	end := w.db.feed(true)
	err := w.daemon.reachOrCrash(end)
	if errors.Is(err, errCrash) { // at its last step, after the commit was seen
		w.daemon = nil
		w.start()
		err = w.daemon.reachOrCrash(w.db.feed(true))
	}
	if err != nil {
		w.daemon = nil
	}
	return err
}

// reachOrCrash waits until a record at p is committed, or the daemon has ended.
func (d *daemon) reachOrCrash(p source.Position) error {
	late := time.After(60 * time.Second)
	for {
		d.mu.Lock()
		got, more := d.committed, d.more
		d.mu.Unlock()
		if got == p {
			return nil
		}
		select {
		case <-more:
		case <-d.done:
			return d.err
		case <-late:
			d.cancel()
			return fmt.Errorf("not at %s after 60 s, but at %q", p, got)
		}
	}
}

// compare reads a table back.
func (m *model) compare(n string) error {
	m.w.fs.Clear()
	got, err := m.w.rows(n)
	if err != nil {
		return err
	}
	columns := m.w.db.relations[n].Columns
	var want []string
	for _, k := range slices.Sorted(maps.Keys(m.rows[n])) {
		var b strings.Builder
		for i, v := range m.rows[n][k] {
			switch {
			case i == 0:
				fmt.Fprintf(&b, `{"id":%s`, v)
			case v == "NULL":
				fmt.Fprintf(&b, `,"%s":null`, columns[i].Name)
			default:
				fmt.Fprintf(&b, `,"%s":"%s"`, columns[i].Name, v)
			}
		}
		want = append(want, b.String()+"}\n")
	}
	slices.Sort(want)
	text := strings.Join(want, "")
	if text == "" {
		text = "none\n"
	}
	if got != text {
		if dir := os.Getenv("LAKESYNCD_KEEP"); dir != "" {
			_ = os.CopyFS(dir, os.DirFS(m.w.folder))
		}
		return fmt.Errorf("table differs\ngot:\n%swant:\n%s", got, text)
	}
	return nil
}
