// Package statusmanager has the API server say of each pod what the store says of it: it patches the status of a pod
// when that has changed, and deletes the pod's object when nothing of a pod that is to end is left here.
//
// The store reports, and waits for nothing. What the API server has is known from three places: the pod as configmux's
// watch brings it, the answer to each patch, and, for a static pod, its mirror pod, which package mirrorpods finds.
// What is newest of these is compared with what was reported last, and only the difference is sent, so a status that
// somebody else has made wrong is put right as one that has changed here is sent. How the two are joined, and what
// belongs to whom, is in merge.go, without a clock or a network.
//
// A pod has one request under way at most, and one report that waits, the newest. Pods take turns in the order in which
// they have changed. What fails is tried again for as long as the pod is there.
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
)

const (
	// senders is how many pods have a request under way at a time: an API server answers some hundred patches a second to
	// as many, and one that hangs has no more than these hanging on it. BenchmarkReadyAtTheAPIServer tells what it comes
	// to.
	senders = 8
	// requestTimeout bounds one request, the wait for its turn by kubeAPIQPS included.
	requestTimeout = 10 * time.Second
	// recheckPeriod is how often all that was reported is compared with what the API server is known to have: the
	// kubelet's.
	recheckPeriod = 10 * time.Second
)

// Report is what there is to say of a pod.
type Report struct {
	// Pod is the pod as its source has it. It is known here by its UID. What the API server has of one of its own is its
	// Status.
	Pod *v1.Pod
	// Static is true for a pod that is not from the API server; that has a mirror pod of it at most, which SetMirror
	// tells.
	Static bool
	// Status is what was computed for the pod.
	Status v1.PodStatus
	// MayRun is true while something of the pod may run or come to run: it is not said to have ended then.
	MayRun bool
	// Released is true when nothing of the pod runs and it has given back what it held of the machine.
	Released bool
	// Traceparent is the trace of what has changed the status last.
	Traceparent string
}

// Config is what a Manager needs.
type Config struct {
	// API makes the requests; see FromAPIServer.
	API    API
	Clock  clock.WithTicker
	Tracer trace.Tracer
	Logger *slog.Logger
	// Metrics is told of each request and of how long a change took; nil counts nothing.
	Metrics *Metrics
}

// Manager keeps the statuses of the API server's pods. Make it with New, and Run it once. Its other methods wait for
// nothing.
type Manager struct {
	cfg Config

	mu sync.Mutex
	// queue has the pods that are to be looked at; nil before Run.
	queue workqueue.TypedDelayingInterface[types.UID]
	pods  map[types.UID]*record
}

// record is one pod.
type record struct {
	report Report
	// object is what the API server is known to have of the pod; nil when it has nothing, or nothing is known.
	object *object
	// version counts the reports, sent is that of the one that the API server has.
	version, sent uint64
	// since is when the first report came that the API server does not have; zero when it has all of them.
	since time.Time
	// failures counts the requests that failed in a row, or that changed nothing of what they should have changed.
	failures int
	// until is when the next request may be made after one that failed; zero when any may.
	until time.Time
	// left is the patch that the API server has refused last, or taken and left out; nil when the last one was taken.
	left []byte
	// complaint is what the log was told of the failure.
	complaint string
	// gone is the UID of an object that the API server has deleted, or has another one in the place of.
	gone types.UID
}

// New returns a Manager that sends nothing yet.
func New(cfg Config) *Manager {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	m := &Manager{cfg: cfg, pods: map[types.UID]*record{}}
	cfg.Metrics.Expose(m.Unsent)
	return m
}

// Report takes in what there is to say of a pod. What it is given must not be changed afterwards.
func (m *Manager) Report(report Report) {
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
		r.know(objectOf(report.Pod), m.cfg.Clock.Now())
	}
	m.look(uid)
}

// look has a pod looked at. Called with mu held.
func (m *Manager) look(uid types.UID) {
	if m.queue != nil {
		m.queue.Add(uid)
	}
}

// SetMirror takes in the mirror pod that the API server has of the static pod with a UID; nil when it has none.
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
	r.know(objectOf(mirror), m.cfg.Clock.Now())
	m.look(uid)
}

// Forget drops a pod: its source names it no longer, and nothing is left of it.
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

// isUnsent tells whether the API server has an object for the pod and not what was reported last.
func (r *record) isUnsent() bool {
	return r.sent < r.version && r.object != nil && r.object.uid != r.gone
}

// Run sends until ctx ends. It returns when no request is under way any more.
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

// recheck has every pod looked at: one whose status is right costs a comparison.
func (m *Manager) recheck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		m.look(uid)
	}
}
