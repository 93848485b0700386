package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

// waitLimit is how long the tables may take to hold everything, once all faults
// are over. A start may wait for a lease of 30 s, and budgets are 15 s.
const waitLimit = 3 * time.Minute

// audit lets the writers pause and holds every table against the source. The
// last one of a round asks DuckDB too, and holds metadata against files.
func (r *round) audit(last bool) {
	r.toxi.mend()
	r.w.gate.Lock()
	defer r.w.gate.Unlock()
	r.settle()
	began := time.Now()
	if !r.caughtUp() {
		return
	}
	waited := time.Since(began)
	rows := 0
	for _, rel := range r.w.relations() {
		rows += r.compare(rel, last)
	}
	r.count.rows += rows
	c := r.count
	if c.bad() {
		r.t.Logf("faults since the audit before:\n%s\nwindow of the log:\n%s", strings.Join(r.recent, "\n"), r.window())
		return
	}
	r.t.Logf("      audit: %d tables with %d rows are right (%.1f s to catch up, %.1f s to read)",
		len(r.w.relations()), rows, waited.Seconds(), (time.Since(began) - waited).Seconds())
	r.logFrom = int64(len(r.p.Log()))
	r.recent = nil
}

// settle ends what the writers left undecided at the server: a prepared
// transaction whose session died while its outcome was asked for.
func (r *round) settle() {
	for _, xid := range r.xids() {
		if _, err := r.s.DB.ExecContext(r.t.Context(), "XA ROLLBACK '"+xid+"'"); err != nil {
			r.t.Logf("XA ROLLBACK '%s': %v", xid, err)
		}
	}
}

func (r *round) xids() []string {
	rows, err := r.s.DB.QueryContext(r.t.Context(), "XA RECOVER")
	if err != nil {
		r.t.Fatalf("XA RECOVER: %v", err)
	}
	defer rows.Close() //nolint:errcheck // read to its end
	var out []string
	for rows.Next() {
		var format, gtrid, bqual int
		var data string
		if err := rows.Scan(&format, &gtrid, &bqual, &data); err != nil {
			r.t.Fatalf("XA RECOVER: %v", err)
		}
		out = append(out, data)
	}
	if err := rows.Err(); err != nil {
		r.t.Fatalf("XA RECOVER: %v", err)
	}
	return out
}

// caughtUp waits until the tables hold all that the source has.
func (r *round) caughtUp() bool {
	type answer struct {
		out  string
		code int
	}
	done := make(chan answer, 1)
	// It ends with the command, which has a limit.
	go func() {
		out, code := r.p.Command("wait", "-config", r.p.File, "-timeout", waitLimit.String())
		done <- answer{out, code}
	}()
	for {
		select {
		case a := <-done:
			if a.code != harness.ExitOK {
				r.count.failures++
				r.t.Errorf("seed %d: the tables do not catch up: wait ended with %d: %s\nfaults since the audit before:\n%s\nlog:\n%s",
					r.seed, a.code, strings.TrimSpace(a.out), strings.Join(r.recent, "\n"), r.p.LogTail(30))
				return false
			}
			return true
		case <-time.After(50 * time.Millisecond):
			r.tend()
		}
	}
}

// compare holds one table against its relation, and returns how many rows it has.
func (r *round) compare(rel *relation, last bool) int {
	table := r.p.Table(captured, rel.name)
	want := r.s.Rows(r.t, captured, rel.name)
	readers := []*harness.Reader{r.java}
	if last && rel.duckdb {
		readers = append(readers, r.duckdb)
	}
	r.snapshots(rel, harness.LoadMetadata(r.t, r.local+"/"+captured+"/"+rel.name))
	var rows int
	for _, reader := range readers {
		got, end, err := reader.Ask("rows", table)
		if err != nil || end != "0" {
			r.count.corrupt++
			r.t.Errorf("seed %d: %s cannot read %s: %s %v", r.seed, reader.Name, rel.full(), end, err)
			continue
		}
		rows = len(got)
		if rel.name == "changes" {
			lost, doubled, wrong := r.w.history.judge(got)
			r.report(rel, reader.Name, lost, doubled, wrong)
		} else if harness.Diff(want, got) != "" {
			lost, doubled, wrong := differ(rel, want, got)
			r.report(rel, reader.Name, lost, doubled, wrong)
		}
	}
	if !last { // dear, and as good later
		return rows
	}
	lines, end, err := r.java.Ask("check", table)
	if err != nil || end != "0" {
		r.count.corrupt++
		var bad []string
		for _, l := range lines {
			if strings.HasPrefix(l, "bad ") && len(bad) < 10 {
				bad = append(bad, l)
			}
		}
		r.t.Errorf("seed %d: audit of %s: %s %v\n%s", r.seed, rel.full(), end, err, strings.Join(bad, "\n"))
	}
	return rows
}

// snapshots checks that no checkpoint was committed twice to a table.
func (r *round) snapshots(rel *relation, m *harness.Metadata) {
	if m == nil {
		r.count.corrupt++
		r.t.Errorf("seed %d: no metadata of %s", r.seed, rel.full())
		return
	}
	seen := r.seen[rel.name]
	if seen == nil {
		seen = map[string]int64{}
		r.seen[rel.name] = seen
	}
	for _, s := range m.Snapshots {
		if s.Summary["lakesync.partial"] == "true" || s.Summary["lakesync.checkpoint"] == "" {
			continue
		}
		// A checkpoint's number is never used again, whatever the epoch.
		k := s.Summary["lakesync.checkpoint"]
		if other, there := seen[k]; there && other != s.ID {
			r.count.doubled++
			r.t.Errorf("seed %d: %s: checkpoint %s is in the snapshots %d and %d", r.seed, rel.full(), k, other, s.ID)
		}
		seen[k] = s.ID
	}
}

func (r *round) report(rel *relation, reader string, lost, doubled, wrong []string) {
	if len(lost)+len(doubled)+len(wrong) == 0 {
		return
	}
	r.count.lost += len(lost)
	r.count.doubled += len(doubled)
	r.count.wrong += len(wrong)
	var b strings.Builder
	for _, part := range []struct {
		name string
		all  []string
	}{{"lost", lost}, {"doubled", doubled}, {"wrong", wrong}} {
		for i, l := range part.all {
			if i == 6 {
				fmt.Fprintf(&b, "\n%s … and %d more", part.name, len(part.all)-i)
				break
			}
			fmt.Fprintf(&b, "\n%s %s", part.name, l)
		}
	}
	r.t.Errorf("seed %d: %s as %s sees it: %d lost, %d doubled, %d wrong%s", r.seed, rel.full(), reader, len(lost), len(doubled), len(wrong), b.String())
}

// differ names the keys that a table lacks, has more than once, and has with
// other values or though the source deleted them.
func differ(rel *relation, want, got []string) (lost, doubled, wrong []string) {
	byKey := func(lines []string) map[string][]string {
		m := map[string][]string{}
		for _, l := range lines {
			k := rel.keyOf(l)
			m[k] = append(m[k], l)
		}
		return m
	}
	there, here := byKey(want), byKey(got)
	for k, w := range there {
		g := here[k]
		switch {
		case len(g) == 0:
			lost = append(lost, k+": "+w[0])
		case len(g) > 1:
			doubled = append(doubled, fmt.Sprintf("%s: %d times: %s", k, len(g), strings.Join(g, " and ")))
		case g[0] != w[0]:
			wrong = append(wrong, fmt.Sprintf("%s: %s, not %s", k, g[0], w[0]))
		}
	}
	for k, g := range here {
		if len(there[k]) == 0 {
			wrong = append(wrong, k+": not at the source: "+g[0])
		}
	}
	slices.Sort(lost)
	slices.Sort(doubled)
	slices.Sort(wrong)
	return lost, doubled, wrong
}

// keyOf is the key of a canonical row.
func (r *relation) keyOf(line string) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		return line
	}
	parts := make([]string, len(r.key))
	for i, k := range r.key {
		parts[i] = string(m[k.name])
	}
	return strings.Join(parts, ",")
}
