package table

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	commits   *prometheus.CounterVec
	seconds   prometheus.Histogram
	expired   *prometheus.CounterVec
	removed   prometheus.Counter
	snapshots *prometheus.GaugeVec
	manifests *prometheus.GaugeVec
	bytes     *prometheus.GaugeVec
	files     *prometheus.GaugeVec
	deletes   *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	byTable := func(name, help string) *prometheus.GaugeVec {
		return register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"table"}))
	}
	return &metrics{
		commits: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lakesyncd_table_commits_total",
			Help: "Metadata commits by table and result: committed, skipped (was there already), conflict, refused, error.",
		}, []string{"table", "result"})),
		seconds: register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "lakesyncd_table_commit_seconds",
			Help:    "Time that one table's commit took.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		})),
		expired: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lakesyncd_table_expired_snapshots_total",
			Help: "Snapshots of ours that were expired.",
		}, []string{"table"})),
		removed: register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lakesyncd_table_removed_files_total",
			Help: "Files removed because nothing refers to them any more.",
		})),
		snapshots: byTable("lakesyncd_table_snapshots", "Snapshots in the table's metadata."),
		manifests: byTable("lakesyncd_table_manifests", "Manifests of the current snapshot."),
		bytes:     byTable("lakesyncd_table_metadata_bytes", "Size of the current metadata file in bytes."),
		files:     byTable("lakesyncd_table_data_files", "Data files of the current snapshot."),
		deletes:   byTable("lakesyncd_table_delete_files", "Delete files of the current snapshot, which readers must apply."),
	}
}

// register hands back the collector that is there already, so that two catalogs
// may share a registry.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	var already prometheus.AlreadyRegisteredError
	if err := reg.Register(c); errors.As(err, &already) {
		if have, ok := already.ExistingCollector.(C); ok {
			return have
		}
	}
	return c
}

func (m *metrics) committed(table, result string, took time.Duration) {
	m.commits.WithLabelValues(table, result).Inc()
	if result != "skipped" {
		m.seconds.Observe(took.Seconds())
	}
}

func (m *metrics) describe(table string, st *state) {
	totals := totalsOf(st.meta.CurrentSnapshot())
	m.snapshots.WithLabelValues(table).Set(float64(len(st.meta.Snapshots())))
	m.bytes.WithLabelValues(table).Set(float64(st.size))
	m.files.WithLabelValues(table).Set(float64(totals.DataFiles))
	m.deletes.WithLabelValues(table).Set(float64(totals.DeleteFiles))
	if st.listed {
		m.manifests.WithLabelValues(table).Set(float64(len(st.manifests)))
	}
}

// resultOf is the label of an error.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "committed"
	case errors.Is(err, ErrFenced), errors.Is(err, ErrForeign), errors.Is(err, ErrRolledBack), errors.Is(err, ErrReplaced), errors.Is(err, ErrUnfit):
		return "refused"
	}
	return "error"
}
