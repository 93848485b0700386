package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lakesyncd/lakesyncd/checkpoint"
)

// notifier speaks sd_notify(3): one datagram of lines to the socket that systemd
// names. Without one, it says nothing.
type notifier struct {
	socket   string
	watchdog time.Duration // 0: systemd does not watch
	log      *slog.Logger
}

func newNotifier(getenv func(string) string, log *slog.Logger) *notifier {
	n := &notifier{socket: getenv("NOTIFY_SOCKET"), log: log}
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if pid := getenv("WATCHDOG_PID"); err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

func (n *notifier) send(lines ...string) {
	if n.socket == "" {
		return
	}
	// Go writes an abstract socket's "@" itself.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(strings.Join(lines, "\n")))
		conn.Close()
	}
	if err != nil {
		n.log.Warn("systemd was not notified", "err", err)
	}
}

// extend is how much longer systemd is asked to wait, again and again, while a
// start waits within its retry budget or a stop writes its last checkpoint.
const extend = 30 * time.Second

// run tells systemd what the board shows until ctx ends. READY is said once the
// source has answered; the watchdog is fed only while the pipeline's loop turns,
// never by a timer alone.
func (n *notifier) run(ctx context.Context, b *statusBoard, stopping <-chan struct{}) {
	if n.socket == "" {
		return
	}
	every := extend / 3
	if n.watchdog > 0 {
		every = min(every, n.watchdog/3)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	ready, asked := false, false
	for {
		changed := b.Changed()
		r := b.Report()
		lines := []string{"STATUS=" + statusLine(r)}
		switch r.State {
		case checkpoint.Copying, checkpoint.Streaming:
			if !ready {
				ready = true
				lines = append(lines, "READY=1")
			}
		}
		select {
		case <-stopping:
			asked = true
		default:
		}
		if asked {
			lines = append(lines, "STOPPING=1")
		}
		if asked || !ready {
			lines = append(lines, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extend.Microseconds()))
		}
		if alive, _ := b.Alive(); alive && n.watchdog > 0 {
			lines = append(lines, "WATCHDOG=1")
		}
		n.send(lines...)
		wake := stopping
		if asked {
			wake = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
		case <-wake:
		}
	}
}

// statusLine is the state in one line for people.
func statusLine(r statusReport) string {
	var b strings.Builder
	b.WriteString(string(r.State))
	if r.Checkpoint > 0 {
		fmt.Fprintf(&b, ", checkpoint %d", r.Checkpoint)
	}
	if r.LagSeconds != nil {
		fmt.Fprintf(&b, ", %s behind", time.Duration(*r.LagSeconds*float64(time.Second)).Round(100*time.Millisecond))
	}
	if r.Reason != "" {
		reason, _, _ := strings.Cut(r.Reason, "\n")
		b.WriteString(": " + reason)
	}
	return b.String()
}
