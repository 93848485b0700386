package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

func statusFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	asJSON := fs.Bool("json", false, "print JSON, as /status does")
	return func(ctx context.Context, c *cli, _ []string) error {
		cfg, err := load(*path)
		if err != nil {
			return err
		}
		r, err := findReport(ctx, c, cfg)
		if err != nil {
			return err
		}
		if *asJSON {
			e := json.NewEncoder(c.stdout)
			e.SetIndent("", "  ")
			return e.Encode(r)
		}
		return r.print(c.stdout)
	}
}

// findReport asks the daemon, or, if it does not answer, takes what is beside
// the records.
func findReport(ctx context.Context, c *cli, cfg *config.Config) (statusReport, error) {
	r, err := askDaemon(ctx, cfg)
	if err == nil {
		return r, nil
	}
	l, lerr := openLake(ctx, cfg, looking, c.quietLog(cfg), nil)
	if lerr != nil {
		return statusReport{}, lerr
	}
	saved, lerr := savedReport(ctx, l.store)
	switch {
	case errors.Is(lerr, fileio.ErrNotExist):
		saved = statusReport{Pipeline: cfg.Pipeline, State: checkpoint.Stopped, Reason: "never ran", Tables: map[string]tableReport{}}
	case lerr != nil:
		return statusReport{}, lerr
	}
	saved.Running = false
	if saved.State != checkpoint.Stopped && cfg.HTTP != "" {
		saved.Reason = fmt.Sprintf("%v; its last state was %s since %s", err, saved.State, saved.Since.Format(time.RFC3339))
		saved.State = checkpoint.Stopped
	}
	return saved, nil
}

func askDaemon(ctx context.Context, cfg *config.Config) (r statusReport, err error) {
	if cfg.HTTP == "" {
		return r, errors.New("http is off")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable(cfg.HTTP)+"/status", nil)
	if err != nil {
		return r, err
	}
	silent := fmt.Errorf("the daemon does not answer at %s", cfg.HTTP)
	// A proxy of the environment would be asked for our own address.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return r, silent
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&r); err != nil || resp.StatusCode != http.StatusOK {
		return r, silent
	}
	if r.Pipeline != cfg.Pipeline {
		return r, fmt.Errorf("pipeline %q answers at %s", r.Pipeline, cfg.HTTP)
	}
	return r, nil
}

// reachable turns an address to listen on into one to connect to.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// savedReport is the last status beside the records, with the lag of now.
func savedReport(ctx context.Context, s *checkpoint.Store) (statusReport, error) {
	data, _, err := s.LoadStatus(ctx)
	if err != nil {
		return statusReport{}, err
	}
	var r statusReport
	if err := json.Unmarshal(data, &r); err != nil {
		return statusReport{}, fmt.Errorf("read the saved status in %s: %w", s, err)
	}
	r.age(time.Now())
	return r, nil
}

func (r statusReport) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(t, key+"\t"+format+"\n", args...) }
	line("pipeline", "%s", r.Pipeline)
	state := string(r.State)
	if !r.Since.IsZero() {
		state += " since " + r.Since.Format(time.RFC3339)
	}
	line("state", "%s", state)
	if r.Reason != "" {
		line("reason", "%s", r.Reason)
	}
	line("checkpoint", "%d", r.Checkpoint)
	line("position", "%s", r.Position)
	if r.SourceTime != nil {
		line("complete up to", "%s", r.SourceTime.Format(time.RFC3339Nano))
	}
	if r.LagSeconds != nil {
		line("lag", "%s", (time.Duration(*r.LagSeconds * float64(time.Second))).Round(time.Millisecond))
	}
	for _, name := range keys(r.Copy) {
		c := r.Copy[name]
		switch {
		case c.Done:
			line("copied", "%s: %s rows", name, thousands(c.Rows))
		case c.Estimated > 0:
			line("copying", "%s: %s of about %s rows", name, thousands(c.Rows), thousands(c.Estimated))
		default:
			line("copying", "%s: %s rows", name, thousands(c.Rows))
		}
	}
	if len(r.Tables) > 0 {
		fmt.Fprint(t, "\nTABLE\tROWS\tFILES\tDELETE FILES\tSNAPSHOT\tCOMPLETE\tINSERTS\n")
	}
	for _, name := range keys(r.Tables) {
		x := r.Tables[name]
		snapshot := "-"
		if x.SnapshotID != 0 {
			snapshot = fmt.Sprint(x.SnapshotID)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%t\t%s\n", name, thousands(x.Rows), x.Files, x.DeleteFiles, snapshot, x.Complete, x.Inserts)
	}
	return t.Flush()
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
