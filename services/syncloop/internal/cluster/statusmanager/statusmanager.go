// Package statusmanager writes the pod statuses of the store to the API server: it patches the status of a pod when it
// has changed, and deletes the pod's object when a terminating pod has left nothing on the node.
//
// The store reports without blocking. The state in the API server is known from three places: the pod from configmux's
// watch, the answer to each patch, and, for a static pod, its mirror pod, which package mirrorpods finds. The newest of
// these is compared with the last report, and only the difference is sent. So a status that somebody else has
// overwritten is corrected in the same way as a local change is sent. The rules for merging the two, and for who owns
// which field, are in merge.go, without a clock or a network.
//
// At any time a pod has at most one request in flight and one waiting report, the newest. Pods take turns in the order
// of their changes. Failed requests are retried for as long as the pod exists.
package statusmanager

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/rounds"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

const (
	// senders is how many pods have a request in flight at a time: an API server answers some hundred patches a second to
	// as many, and no more than these hang if it does. BenchmarkReadyAtTheAPIServer measures the effect.
	senders = 8
	// requestTimeout bounds one request, including the wait for kubeAPIQPS.
	requestTimeout = 10 * time.Second
	// recheckPeriod is how often every report is compared with the known state of the API server. It is the kubelet's
	// number.
	recheckPeriod = 10 * time.Second
)

// Config configures a Manager.
type Config struct {
	// API sends the requests; see FromAPIServer.
	API    API
	Clock  clock.WithTicker
	Tracer trace.Tracer
	Logger *slog.Logger
	// Metrics counts the requests and times the changes; nil discards them.
	Metrics *Metrics
}

// Manager manages the statuses of pods in the API server. Create it with New, and call Run once. Its other methods do
// not block.
type Manager struct {
	cfg Config

	mu sync.Mutex
	// queue contains the pods to be checked; nil before Run.
	queue workqueue.TypedDelayingInterface[types.UID]
	pods  map[types.UID]*record
}

// record is the state of one pod.
type record struct {
	report podstatus.Report
	// object is the known object of the pod in the API server; nil if there is none or it is unknown.
	object *object
	// version counts the reports; sent is the version that the API server has.
	version, sent uint64
	// since is the time of the first report that the API server does not have; zero if it has all of them.
	since time.Time
	// failures counts consecutive requests that failed or had no effect.
	failures int
	// until is the time of the next try after a failure; zero if there is no delay.
	until time.Time
	// left is the last patch, if the API server rejected or ignored it; nil if the last patch had its effect.
	left []byte
	// complaint is the last failure that was logged.
	complaint string
	// gone is the UID of an object that the API server has deleted or replaced.
	gone types.UID
}

// New returns a Manager that sends nothing until Run.
func New(cfg Config) *Manager {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	m := &Manager{cfg: cfg, pods: map[types.UID]*record{}}
	cfg.Metrics.Expose(m.Unsent)
	return m
}

// Report sets the state of a pod to be reported. It must not be changed afterwards.
func (m *Manager) Report(report podstatus.Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid := report.Pod.UID
	r := m.pods[uid]
	if r == nil {
		r = &record{}
		m.pods[uid] = r
	}
	if report.Traceparent == "" {
		report.Traceparent = r.report.Traceparent
	}
	r.report = report
	r.version++
	if r.since.IsZero() {
		r.since = m.cfg.Clock.Now()
	}
	if !report.Static {
		r.observe(objectOf(report.Pod), m.cfg.Clock.Now())
	}
	m.look(uid)
}

// look enqueues a pod. The caller holds mu.
func (m *Manager) look(uid types.UID) {
	if m.queue != nil {
		m.queue.Add(uid)
	}
}

// SetMirror sets the mirror pod of the static pod with a UID; nil if there is none.
func (m *Manager) SetMirror(uid types.UID, mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.pods[uid]
	if r == nil {
		if mirror == nil {
			return
		}
		r = &record{}
		m.pods[uid] = r
	}
	if mirror == nil {
		r.object = nil
		return
	}
	r.observe(objectOf(mirror), m.cfg.Clock.Now())
	m.look(uid)
}

// Forget removes a pod that no source names any more and of which nothing is left.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

// Unsent returns how many pods have a status that the API server does not have.
func (m *Manager) Unsent() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	unsent := 0
	for _, r := range m.pods {
		if r.isUnsent() {
			unsent++
		}
	}
	return unsent
}

// isUnsent reports whether the API server has an object for the pod, but not the last report.
func (r *record) isUnsent() bool {
	return r.sent < r.version && r.object != nil && r.object.uid != r.gone
}

// Run sends requests until ctx ends. It returns when all requests have ended.
func (m *Manager) Run(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.UID]{Clock: m.cfg.Clock})
	m.mu.Lock()
	m.queue = queue
	m.mu.Unlock()
	m.recheck()
	return rounds.Run(ctx, rounds.Config[types.UID]{
		Queue: queue, Workers: senders, Settle: m.settle, Recheck: m.recheck, Period: recheckPeriod, Clock: m.cfg.Clock,
	})
}

// recheck enqueues every pod: one with a correct status costs a comparison.
func (m *Manager) recheck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		m.look(uid)
	}
}
