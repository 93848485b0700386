package sink

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	rows     *prometheus.CounterVec // table, op
	misfits  *prometheus.CounterVec // table, column
	layers   *prometheus.CounterVec // table
	files    *prometheus.CounterVec // table, content
	bytes    *prometheus.CounterVec // table, content
	staged   *prometheus.CounterVec // table, content
	ignored  *prometheus.CounterVec // table
	buffered prometheus.Gauge
	keyMaps  prometheus.Gauge
}

// newMetrics registers the metrics of the sink, or takes those that a sink of the
// same process registered before.
func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
	}
	return &metrics{
		rows:     counter("lakesyncd_sink_rows_total", "Changed rows taken in, by table and operation.", "table", "op"),
		misfits:  counter("lakesyncd_misfits_total", "Values that the lake cannot hold and that became NULL.", "table", "column"),
		layers:   counter("lakesyncd_sink_layers_total", "Layers cut because a checkpoint outgrew memory.", "table"),
		files:    counter("lakesyncd_staged_files_total", "Files staged for a checkpoint.", "table", "content"),
		bytes:    counter("lakesyncd_staged_bytes_total", "Bytes of files staged for a checkpoint.", "table", "content"),
		staged:   counter("lakesyncd_staged_rows_total", "Rows of files staged for a checkpoint.", "table", "content"),
		ignored:  counter("lakesyncd_truncates_ignored_total", "Truncations that on_truncate: keep did not apply.", "table"),
		buffered: gauge("lakesyncd_sink_buffer_bytes", "Memory of rows on their way into files."),
		keyMaps:  gauge("lakesyncd_sink_key_map_bytes", "Memory of key maps, when one last grew."),
	}
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	var there prometheus.AlreadyRegisteredError
	if err := reg.Register(c); errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(C); ok {
			return old
		}
	}
	return c
}
