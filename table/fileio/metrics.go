package fileio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// What may be asked of a store, as the label op and in Requests.
const (
	opPut    = "put"    // a whole file; on local disk also one that is written piece by piece
	opStart  = "start"  // of an upload in parts
	opPart   = "part"   // of such an upload
	opFinish = "finish" // of such an upload
	opAbort  = "abort"  // of such an upload
	opGet    = "get"    // a whole file or a range
	opHead   = "head"
	opList   = "list" // a page
	opDelete = "delete"
)

// Requests counts what is asked of a store: put, start, part, finish, abort
// (the last four are of uploads in parts), get, head, list, delete. On S3 each
// request on the wire counts, repeated ones too. It is safe for concurrent use.
type Requests struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *Requests) add(op string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = map[string]int{}
	}
	r.n[op]++
}

// Get is the number of requests of one kind.
func (r *Requests) Get(op string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[op]
}

// Total is the number of all requests.
func (r *Requests) Total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sum int
	for _, n := range r.n {
		sum += n
	}
	return sum
}

// All gives the numbers by kind.
func (r *Requests) All() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.n)
}

// Reset begins again at zero.
func (r *Requests) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n = nil
}

type metrics struct {
	requests *prometheus.CounterVec
}

// newMetrics shares the collector between stores of one program: warehouse and
// checkpoint store may be opened apart.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lakesyncd_store_requests_total",
		Help: "Requests to the stores of the lake and of the records, by kind of store, operation and result.",
	}, []string{"store", "op", "result"})}
	if reg == nil {
		return m
	}
	if err := reg.Register(m.requests); err != nil {
		var already prometheus.AlreadyRegisteredError
		if errors.As(err, &already) {
			if have, ok := already.ExistingCollector.(*prometheus.CounterVec); ok {
				m.requests = have
			}
		}
	}
	return m
}

// observer counts the requests of one store.
type observer struct {
	store    string
	metrics  *metrics
	requests *Requests
}

func newObserver(store string, opts Options) observer {
	return observer{store: store, metrics: newMetrics(opts.Registerer), requests: opts.Requests}
}

// count is to be deferred with the address of the named result.
func (o *observer) count(op string, err *error) {
	o.metrics.requests.WithLabelValues(o.store, op, resultOf(*err)).Inc()
	if o.requests != nil {
		o.requests.add(op)
	}
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case errors.Is(err, ErrExists):
		return "exists"
	case errors.Is(err, ErrNotExist):
		return "not_exist"
	case errors.Is(err, ErrChanged):
		return "changed"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrDenied):
		return "denied"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	default:
		return "error"
	}
}

var _ fmt.Stringer = (*Requests)(nil)

// String is for failure messages of tests.
func (r *Requests) String() string { return fmt.Sprint(r.All()) }
