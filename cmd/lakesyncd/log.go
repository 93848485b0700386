package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/lakesyncd/lakesyncd/config"
)

// newLogger writes JSON, one object a line, durations in seconds, unless a person
// is watching.
func newLogger(c config.Log, w io.Writer, terminal bool) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	if c.Format == "text" || c.Format == "auto" && terminal {
		h = slog.NewTextHandler(w, o)
	} else {
		// The handler would write durations as nanoseconds.
		o.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration {
				a.Value = slog.Float64Value(a.Value.Duration().Seconds())
			}
			return a
		}
		h = slog.NewJSONHandler(w, o)
	}
	return slog.New(&quiet{Handler: h, past: &past{seen: map[string]repeat{}}})
}

// isTerminal reports whether a person may be watching f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && f.Name() != os.DevNull
}

// quiet lets a warning or error that says the same as before through at most
// every quietFor, with the number of those that it held back: an outage of
// hours must not bury what came before it.
type quiet struct {
	slog.Handler
	*past
}

const quietFor = 30 * time.Second

type past struct {
	mu   sync.Mutex
	seen map[string]repeat
}

type repeat struct {
	at   time.Time
	held int
}

func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return q.Handler.Handle(ctx, r)
	}
	key := r.Message
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "err", "reason", "table", "relation", "column", "state":
			key += "\x00" + a.Value.String()
		}
		return true
	})
	held, let := q.let(key, r.Time)
	if !let {
		return nil
	}
	if held > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("repeated", held))
	}
	return q.Handler.Handle(ctx, r)
}

func (p *past) let(key string, at time.Time) (held int, let bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.seen[key]
	if ok && at.Sub(last.at) < quietFor {
		last.held++
		p.seen[key] = last
		return 0, false
	}
	if len(p.seen) > 1000 { // texts may differ without end
		clear(p.seen)
	}
	p.seen[key] = repeat{at: at}
	return last.held, true
}

func (q *quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quiet{Handler: q.Handler.WithAttrs(attrs), past: q.past}
}

func (q *quiet) WithGroup(name string) slog.Handler {
	return &quiet{Handler: q.Handler.WithGroup(name), past: q.past}
}

// writerName tells people which process wrote something.
func writerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
