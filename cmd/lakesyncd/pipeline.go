package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/sink"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// runPipeline builds one pipeline from its configuration and runs it until ctx
// ends or something stops it. It closes in reverse order.
func runPipeline(ctx context.Context, cfg *config.Config, env pipelineEnv) (err error) {
	var l *lake
	if err := untilLake(ctx, cfg, env, func() (err error) {
		l, err = openLake(ctx, cfg, writing, env.Log, env.Registry)
		return err
	}); err != nil {
		return err
	}
	var lease *checkpoint.Lease
	if err := untilLake(ctx, cfg, env, func() (err error) {
		lease, err = checkpoint.Acquire(ctx, l.records, cfg.Checkpoint.Store, env.Writer, checkpoint.LeaseOptions{Log: env.Log})
		return err
	}); err != nil {
		return err
	}
	defer func() {
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, lease.Release(release))
	}()
	finish := env.Board.Persist(l.store.SaveStatus)
	defer func() { finish(err) }()

	ctx, fence := context.WithCancelCause(ctx)
	defer fence(nil)
	done := make(chan struct{})
	defer close(done)
	// Ends with runPipeline.
	go func() {
		select {
		case <-lease.Lost():
			fence(lease.Err())
		case <-done:
		}
	}()

	metrics := &attemptMetrics{Registerer: env.Registry}
	c := checkpoint.New(checkpoint.Options{
		Pipeline: cfg.Pipeline,
		Store:    l.store,
		OpenSink: func(ctx context.Context) (*sink.Sink, error) {
			metrics.reset()
			s, err := sink.Open(ctx, sink.Options{
				Config: cfg, Catalog: l.catalog, FS: l.warehouse, Memory: sinkMemory(cfg.Memory),
				Log: env.Log, Registerer: metrics, Now: time.Now,
			})
			if err != nil {
				return nil, err
			}
			env.Board.TablesOf(s.Status)
			return s, nil
		},
		OpenSource: func(ctx context.Context, at *checkpoint.Record, patient bool) (checkpoint.Stream, error) {
			h := sourceHooks{
				memory: int64(cfg.Memory) / 16, position: at.Position, state: at.Source,
				retryBudget: cfg.RetryBudget.D(), onState: env.Board.SourceWaits,
				onProgress: func(relation string, rows, estimated int64, done bool) {
					env.Board.SetCopy(relation, rows, estimated, done)
					env.Progress.Copy(relation, rows, estimated, done)
				},
			}
			if at.Position != "" {
				env.Board.Resumed(at)
			}
			if patient {
				h.retryBudget = math.MaxInt64
			}
			return openSource(ctx, cfg, env.Log, metrics, h)
		},
		Interval: cfg.Checkpoint.Interval.D(), MinPause: cfg.Checkpoint.MinPause.D(), IdleMark: cfg.Checkpoint.IdleMark.D(),
		RetryBudget: cfg.RetryBudget.D(), Writer: env.Writer,
		Log: env.Log, Observer: env.Board.Observer(),
	})
	err = c.Run(ctx)
	if lost := lease.Err(); lost != nil {
		return lost
	}
	return err
}

// untilLake tries a step of the start until the lake answers or the retry budget
// is spent.
func untilLake(ctx context.Context, cfg *config.Config, env pipelineEnv, step func() error) error {
	end := time.Now().Add(cfg.RetryBudget.D())
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := step()
		if err == nil || !errors.Is(err, fileio.ErrUnavailable) && !errors.Is(err, fileio.ErrUnknown) {
			return err
		}
		if time.Now().Add(wait).After(end) {
			return fmt.Errorf("gave up after %v: %w", cfg.RetryBudget.D(), err)
		}
		env.Board.Set(checkpoint.WaitingLake, err.Error())
		env.Board.Tick()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// sinkMemory is the sink's part of the process's memory: buffers, key maps and
// encoders. The rest is for the source's queue, commits and the runtime, whose
// garbage comes on top of what is alive.
func sinkMemory(all config.Size) int64 { return int64(all) * 3 / 8 }

// attemptMetrics registers what belongs to one attempt of the coordinator, and
// takes it out again before the next.
type attemptMetrics struct {
	prometheus.Registerer
	mine []prometheus.Collector
}

func (a *attemptMetrics) Register(c prometheus.Collector) error {
	if err := a.Registerer.Register(c); err != nil {
		return err
	}
	a.mine = append(a.mine, c)
	return nil
}

func (a *attemptMetrics) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := a.Register(c); err != nil {
			panic(err)
		}
	}
}

func (a *attemptMetrics) reset() {
	for _, c := range a.mine {
		a.Unregister(c)
	}
	a.mine = nil
}
