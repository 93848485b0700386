package mysql

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/source"
)

// metrics of reading one server.
type metrics struct {
	events     *prometheus.CounterVec // kind
	rows       *prometheus.CounterVec // op
	bytes      prometheus.Counter
	reconnects prometheus.Counter
	timestamp  prometheus.Gauge
	xa         prometheus.Gauge

	kinds [source.Heartbeat + 1]prometheus.Counter
	ops   [source.Delete + 1]prometheus.Counter
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
		xa: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_source_prepared_xa",
			Help: "XA transactions whose rows wait for the decision."}),
	}
	if reg == nil {
		m.resolve()
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
	if m.bytes, err = register(reg, m.bytes); err != nil {
		return nil, err
	}
	if m.reconnects, err = register(reg, m.reconnects); err != nil {
		return nil, err
	}
	if m.timestamp, err = register(reg, m.timestamp); err != nil {
		return nil, err
	}
	m.xa, err = register(reg, m.xa)
	m.resolve()
	return m, err
}

// resolve looks up the counters of the hot path.
func (m *metrics) resolve() {
	for k, name := range map[source.EventKind]string{source.Rows: "rows", source.Truncate: "truncate", source.Schema: "schema", source.Commit: "commit", source.Heartbeat: "heartbeat"} {
		m.kinds[k] = m.events.WithLabelValues(name)
	}
	for op, name := range map[source.Op]string{source.Read: "read", source.Insert: "insert", source.Update: "update", source.Delete: "delete"} {
		m.ops[op] = m.rows.WithLabelValues(name)
	}
}

// count counts an event that is handed out.
func (m *metrics) count(ev *source.Event) {
	m.kinds[ev.Kind].Inc()
	switch ev.Kind {
	case source.Rows:
		m.ops[ev.Batch.Op].Add(float64(ev.Batch.Rows))
	case source.Commit, source.Heartbeat:
		m.timestamp.Set(float64(ev.Time.UnixMicro()) / 1e6)
	}
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
