package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lakesyncd/lakesyncd/checkpoint"
)

// endpoints serves /metrics, /healthz, /readyz and /status. There is nothing to
// change through it, and no authentication.
func endpoints(b *statusBoard, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		alive, still := b.Alive()
		if !alive {
			answer(w, http.StatusServiceUnavailable, fmt.Sprintf("the loop has not turned for %s", still.Round(time.Second)))
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := b.Report()
		code := http.StatusServiceUnavailable
		if r.State == checkpoint.Streaming {
			code = http.StatusOK
		}
		answer(w, code, statusLine(r))
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(b.Report()) // the reader is gone if this fails
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "lakesyncd "+programVersion()+"\n/metrics /healthz /readyz /status")
	})
	return mux
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	fmt.Fprintln(w, text)
}

// serveHTTP listens at once, so that an address that is taken ends the start, and
// serves until stop is called.
func serveHTTP(ctx context.Context, address string, h http.Handler, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on http %s: %w: %w; choose another address with the key http, or http: off", address, errAddress, err)
	}
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	log.Info("serving http", "address", l.Addr().String())
	// stop ends it by closing the server.
	go func() { _ = s.Serve(l) }()
	return func() { _ = s.Close() }, nil
}
