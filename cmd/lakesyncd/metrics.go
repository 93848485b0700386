package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/table"
)

// metrics of the pipeline as a whole. Moments are exported, not ages: a rule's
// time() - x goes on ageing when the process hangs.
type metrics struct {
	state      *prometheus.GaugeVec
	sourceTime prometheus.Gauge
	checkpoint prometheus.Gauge
	finished   prometheus.Gauge
	position   prometheus.Gauge
	phases     *prometheus.HistogramVec
	retries    *prometheus.CounterVec
	files      *prometheus.CounterVec
	rows       *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	ready      *prometheus.GaugeVec
	copied     *prometheus.GaugeVec
	estimated  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	build := gauge("lakesyncd_build_info", "Always 1; the label is the program's version.", "version")
	build.WithLabelValues(programVersion()).Set(1)
	m := &metrics{
		state: gauge("lakesyncd_state", "1 for the state that the pipeline is in, 0 for the others.", "state"),
		sourceTime: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_complete_timestamp_seconds",
			Help: "Commit time at the source up to which every table is complete. time() minus it is the commit lag."}),
		checkpoint: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_checkpoint",
			Help: "Number of the newest checkpoint that is committed in all tables."}),
		finished: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_checkpoint_timestamp_seconds",
			Help: "When the newest checkpoint was committed in all tables, by the daemon's clock."}),
		position: prometheus.NewGauge(prometheus.GaugeOpts{Name: "lakesyncd_saved_timestamp_seconds",
			Help: "When the newest record was saved, by the daemon's clock."}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "lakesyncd_checkpoint_duration_seconds",
			Help:    "Time that the steps of a checkpoint took: flush, save, commit, ack.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"phase"}),
		retries:   counter("lakesyncd_retries_total", "Waits for the lake or the source before another try.", "target"),
		files:     counter("lakesyncd_committed_files_total", "Files committed, by table and content: data, equality_deletes, position_deletes.", "table", "content"),
		rows:      counter("lakesyncd_committed_rows_total", "Rows in committed files, by table and content.", "table", "content"),
		bytes:     counter("lakesyncd_committed_bytes_total", "Size of committed files, by table and content.", "table", "content"),
		ready:     gauge("lakesyncd_table_complete", "1 once the initial snapshot of the table's relation is in.", "table"),
		copied:    gauge("lakesyncd_copy_rows", "Rows of the relation that the initial snapshot has read.", "relation"),
		estimated: gauge("lakesyncd_copy_estimated_rows", "The server's guess of the rows that the initial snapshot has to read.", "relation"),
	}
	reg.MustRegister(build, m.state, m.sourceTime, m.checkpoint, m.finished, m.position, m.phases, m.retries,
		m.files, m.rows, m.bytes, m.ready, m.copied, m.estimated)
	return m
}

func (m *metrics) setState(now checkpoint.State) {
	for _, s := range states {
		v := 0.0
		if s == now {
			v = 1
		}
		m.state.WithLabelValues(string(s)).Set(v)
	}
}

func (m *metrics) saved(r *checkpoint.Record) {
	m.position.Set(float64(r.SavedAt.UnixMicro()) / 1e6)
}

func (m *metrics) phase(phase string, took time.Duration) {
	m.phases.WithLabelValues(phase).Observe(took.Seconds())
}

func (m *metrics) complete(table string, complete bool) {
	v := 0.0
	if complete {
		v = 1
	}
	m.ready.WithLabelValues(table).Set(v)
}

func (m *metrics) committed(r *checkpoint.Record, now time.Time) {
	m.checkpoint.Set(float64(r.ID))
	m.finished.Set(float64(now.UnixMicro()) / 1e6)
	for i := range r.Deltas {
		d := &r.Deltas[i]
		for _, l := range d.Layers {
			for j := range l.Files {
				m.file(d.Table, &l.Files[j])
			}
		}
	}
}

func (m *metrics) file(name string, f *table.File) {
	content := string(f.Content)
	m.files.WithLabelValues(name, content).Inc()
	m.rows.WithLabelValues(name, content).Add(float64(f.Rows))
	m.bytes.WithLabelValues(name, content).Add(float64(f.Bytes))
}
