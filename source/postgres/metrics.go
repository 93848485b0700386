package postgres

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of reading one server. Those that source/mysql has too bear the same
// names.
type metrics struct {
	events     *prometheus.CounterVec // kind
	rows       *prometheus.CounterVec // op
	bytes      prometheus.Counter
	reconnects prometheus.Counter
	timestamp  prometheus.Gauge
	kept       prometheus.Gauge
	behind     prometheus.Gauge
	safe       prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lakesyncd_source_events_total",
			Help: "Events handed out by the source."}, []string{"kind"}),
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lakesyncd_source_rows_total",
			Help: "Rows handed out by the source; read is a row of the initial snapshot."}, []string{"op"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "lakesyncd_source_log_bytes_total",
			Help: "Bytes of the source's log that were read, those read again after a reconnect included."}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{Name: "lakesyncd_source_reconnects_total",
			Help: "How often the connection that reads the log was opened again."}),
		timestamp: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_source_timestamp_seconds",
			Help: "Commit time of the last transaction read, or the server's time at the last heartbeat."}),
		kept: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_source_slot_kept_bytes",
			Help: "Log that the replication slot keeps the server from removing (PostgreSQL)."}),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_source_slot_behind_bytes",
			Help: "Log between what was confirmed to the server and its end (PostgreSQL)."}),
		safe: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_source_slot_safe_bytes",
			Help: "Log that may be written before the slot loses what it keeps; -1: no limit (PostgreSQL)."}),
	}
	if reg == nil {
		return m, nil
	}
	// A source that is opened again after an error goes on counting.
	var err error
	if m.events, err = register(reg, m.events); err != nil {
		return nil, err
	}
	if m.rows, err = register(reg, m.rows); err != nil {
		return nil, err
	}
	for _, c := range []*prometheus.Counter{&m.bytes, &m.reconnects} {
		if *c, err = register(reg, *c); err != nil {
			return nil, err
		}
	}
	for _, g := range []*prometheus.Gauge{&m.timestamp, &m.kept, &m.behind, &m.safe} {
		if *g, err = register(reg, *g); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	if err := reg.Register(c); err != nil {
		var have prometheus.AlreadyRegisteredError
		if errors.As(err, &have) {
			if old, ok := have.ExistingCollector.(C); ok {
				return old, nil
			}
		}
		return c, err
	}
	return c, nil
}
