package main

import (
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// screen is the terminal that log lines and the progress bar share: a line that
// is written takes the bar away and puts it back below.
type screen struct {
	mu  sync.Mutex
	w   io.Writer
	bar string
}

const clearLine = "\r\x1b[K"

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar == "" {
		return s.w.Write(p)
	}
	if _, err := io.WriteString(s.w, clearLine); err != nil {
		return 0, err
	}
	n, err := s.w.Write(p)
	if err == nil {
		_, err = io.WriteString(s.w, s.bar)
	}
	return n, err
}

// show draws the bar anew; an empty one takes it away.
func (s *screen) show(bar string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bar == s.bar {
		return
	}
	s.bar = bar
	_, _ = io.WriteString(s.w, clearLine+bar) // a terminal that is gone is no reason to stop
}

// progress tells a person how far the initial snapshot is: a bar on a terminal,
// a log line now and then elsewhere.
type progress struct {
	log    *slog.Logger
	screen *screen // nil: no terminal
	now    func() time.Time

	mu        sync.Mutex
	began     time.Time
	shown     time.Time
	relations map[string]copyReport
	order     []string
}

func newProgress(log *slog.Logger, s *screen, now func() time.Time) *progress {
	return &progress{log: log, screen: s, now: now, relations: map[string]copyReport{}}
}

const (
	barEvery  = 200 * time.Millisecond
	lineEvery = 10 * time.Second
)

// Copy takes note of the rows of a relation that were read; estimated is the
// server's guess, -1 if it has none.
func (p *progress) Copy(relation string, rows, estimated int64, done bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if p.began.IsZero() {
		p.began, p.shown = now, now
	}
	before, known := p.relations[relation]
	if !known {
		p.order = append(p.order, relation)
	}
	p.relations[relation] = copyReport{Rows: rows, Estimated: estimated, Done: done}
	if done && !before.Done {
		p.End() // the next relation puts the bar back
		return
	}
	every := lineEvery
	if p.screen != nil {
		every = barEvery
	}
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	t := p.total(now)
	if p.screen != nil {
		p.screen.show(t.bar())
		return
	}
	p.log.Info("copying", "relation", relation, "rows", t.rows, "estimated_rows", t.estimated,
		"rows_per_second", int64(t.rate), "relations_done", t.done, "relations", t.of, "left", t.left.Round(time.Second).String())
}

// End takes the bar away.
func (p *progress) End() {
	if p.screen != nil {
		p.screen.show("")
	}
}

// total sums up all relations of a copy.
type total struct {
	rows, estimated int64 // estimated -1: unknown
	done, of        int
	rate            float64       // rows per second
	left            time.Duration // 0: unknown
}

func (p *progress) total(now time.Time) total {
	t := total{of: len(p.order)}
	unknown := false
	for _, c := range p.relations {
		t.rows += c.Rows
		switch {
		case c.Done:
			t.done++
			t.estimated += c.Rows
		case c.Estimated < 0:
			unknown = true
		default:
			t.estimated += max(c.Estimated, c.Rows)
		}
	}
	if s := now.Sub(p.began).Seconds(); s > 0 {
		t.rate = float64(t.rows) / s
	}
	switch {
	case unknown:
		t.estimated = -1
	case t.rate > 0:
		t.left = time.Duration(float64(t.estimated-t.rows) / t.rate * float64(time.Second))
	}
	return t
}

const barWidth = 24

func (t total) bar() string {
	var b strings.Builder
	b.WriteString("copying ")
	if t.estimated > 0 {
		share := float64(t.rows) / float64(t.estimated)
		full := int(share * barWidth)
		fmt.Fprintf(&b, "[%s%s] %3.0f%% ", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), share*100)
	}
	fmt.Fprintf(&b, "%s rows, %s/s", thousands(t.rows), thousands(int64(t.rate)))
	if t.left > 0 {
		fmt.Fprintf(&b, ", about %s left", t.left.Round(time.Second))
	}
	return b.String()
}

// thousands writes 1234567 as 1,234,567.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
