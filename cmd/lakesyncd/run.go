package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
)

// pipelineEnv is what the program hands to the pipeline.
type pipelineEnv struct {
	Log      *slog.Logger
	Registry prometheus.Registerer
	Board    *statusBoard
	Progress *progress
	Writer   string // host and process
}

func runFlags(fs *flag.FlagSet) action {
	path := configFlag(fs)
	return func(ctx context.Context, c *cli, _ []string) error {
		cfg, err := load(*path)
		if err != nil {
			return err
		}
		return runDaemon(ctx, c, cfg, runPipeline)
	}
}

// runDaemon surrounds a pipeline with what a daemon has: log, metrics, HTTP,
// signals, systemd.
func runDaemon(ctx context.Context, c *cli, cfg *config.Config, pipeline func(context.Context, *config.Config, pipelineEnv) error) (err error) {
	var (
		out io.Writer = c.stderr
		bar *screen
	)
	if c.terminal {
		bar = &screen{w: c.stderr}
		out = bar
	}
	log := newLogger(cfg.Log, out, c.terminal).With("pipeline", cfg.Pipeline)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	labelled := prometheus.WrapRegistererWith(prometheus.Labels{"pipeline": cfg.Pipeline}, registry)
	board := newStatusBoard(cfg.Pipeline, labelled, log, time.Now)
	env := pipelineEnv{Log: log, Registry: labelled, Board: board, Progress: newProgress(log, bar, time.Now), Writer: writerName()}

	limit := limitMemory(cfg.Memory)
	log.Info("starting", "version", programVersion(), "config", cfg.File, "memory_limit", limit)
	defer func() {
		board.Stop(err)
		if code := exitCode(err); code != exitOK {
			log.Error("stopped", "err", err, "exit_code", code)
		} else {
			log.Info("stopped as asked")
		}
		c.logged = true
	}()

	stopHTTP, err := serveHTTP(ctx, cfg.HTTP, endpoints(board, registry), log)
	if err != nil {
		if r, aerr := askDaemon(ctx, cfg); aerr == nil {
			return fmt.Errorf("process %d answers at %s for the same pipeline: %w", r.PID, cfg.HTTP, checkpoint.ErrFenced)
		}
		return err
	}
	defer stopHTTP()

	ctx, stopping, release := onSignal(ctx, log)
	defer release()

	// The notifier outlives the end of ctx: the last checkpoint is still to come.
	notifying, stopNotifier := context.WithCancel(context.Background())
	var notifier sync.WaitGroup
	// stopNotifier ends it.
	notifier.Go(func() { newNotifier(os.Getenv, log).run(notifying, board, stopping) })
	defer notifier.Wait()
	defer stopNotifier()

	err = pipeline(ctx, cfg, env)
	env.Progress.End()
	if err != nil && errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil // asked to stop before anything had begun
	}
	return err
}

// onSignal ends the context at the first SIGTERM or SIGINT, for a stop with a
// last checkpoint. At the second the process ends at once: whatever is half done
// then is finished by the next start.
func onSignal(ctx context.Context, log *slog.Logger) (_ context.Context, stopping <-chan struct{}, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	asked, done := make(chan struct{}), make(chan struct{})
	// release ends it.
	go func() {
		select {
		case s := <-signals:
			log.Info("stopping with a last checkpoint; a second signal stops at once", "signal", s.String())
			close(asked)
			cancel()
		case <-done:
			return
		}
		select {
		case s := <-signals:
			log.Warn("stopping at once", "signal", s.String())
			os.Exit(exitFailure)
		case <-done:
		}
	}()
	return ctx, asked, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// printf writes a line of a report for people.
func (c *cli) printf(format string, args ...any) { fmt.Fprintf(c.stdout, format+"\n", args...) }
