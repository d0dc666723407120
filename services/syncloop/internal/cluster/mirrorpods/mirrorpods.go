// Package mirrorpods shows the node's static pods in the API server: for each of them it creates a mirror pod, which is
// not run, and whose status is that of the static pod. The scheduler counts the resources of a mirror pod. Anybody can
// delete a mirror pod: this ends no container, and the mirror pod is created again.
//
// The loop passes in the static pods, the mirror pods that configmux's watch of the API server has, whether that list
// is complete, and the UID of the Node, which owns the mirror pods. [decide] decides what to do for a name, without a
// clock or a network. A failed request is retried as long as it is needed, and blocks nothing on the node.
package mirrorpods

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/rounds"
)

const (
	// makers is how many requests run at a time: a node has few static pods.
	makers = 2
	// requestTimeout bounds one request, including the wait for kubeAPIQPS.
	requestTimeout = 10 * time.Second
	// recheckPeriod is how often all names are checked: the kubelet's housekeeping period. A correct name costs no
	// request.
	recheckPeriod = 2 * time.Second
	// unseenFor is how long a created mirror pod is assumed to exist although the watch has not delivered it.
	unseenFor = 30 * time.Second
)

// Statuses writes the status of static pods to their mirror pods; it is implemented by *statusmanager.Manager.
type Statuses interface {
	// SetMirror sets the mirror pod of a static pod, nil for none.
	SetMirror(uid types.UID, mirror *v1.Pod)
}

// Events records failures; it is implemented by *podevents.Recorder.
type Events interface {
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// Config configures a Manager.
type Config struct {
	// NodeName is the name of the node.
	NodeName string
	// API sends the requests; see FromAPIServer.
	API      API
	Statuses Statuses
	// Ending reports whether a pod of a name other than the one with a UID is not gone yet. No source names that pod any
	// more, and its mirror pod stays until it has ended.
	Ending func(name types.NamespacedName, except types.UID) bool
	Events Events
	Clock  clock.WithTicker
	Logger *slog.Logger
	// Metrics counts the requests; nil discards the counts.
	Metrics *Metrics
}

// Manager manages the mirror pods. Create it with New, and call Run once. Its other methods do not block.
type Manager struct {
	cfg Config

	mu    sync.Mutex
	queue workqueue.TypedDelayingInterface[types.NamespacedName]
	names map[types.NamespacedName]*record
	// static maps static pods to their names, mirror maps mirror pods to theirs.
	static, mirror map[types.UID]types.NamespacedName
	// deleted are the mirror pods that the API server has deleted and whose deletion the watch has not delivered yet.
	deleted map[types.UID]bool
	node    types.UID
	// known is true while all mirror pods are known, complete while all static pods are known, too.
	known, complete bool
}

// record is the state of a name.
type record struct {
	// pods are the static pods of the name; the first one is mirrored. There is more than one if several sources name the
	// same pod.
	pods []*v1.Pod
	// mirror is the mirror pod in the API server; nil if there is none.
	mirror *v1.Pod
	// made is when the mirror pod was created here; zero once the watch has delivered it.
	made time.Time
	// notified is the static pod for which SetMirror was called with mirror.
	notified types.UID
	// failures counts consecutive failed requests; until is the time of the next try.
	failures  int
	until     time.Time
	complaint string
}

// New returns a Manager that creates nothing until Run.
func New(cfg Config) *Manager {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	m := &Manager{
		cfg: cfg, names: map[types.NamespacedName]*record{}, static: map[types.UID]types.NamespacedName{},
		mirror: map[types.UID]types.NamespacedName{}, deleted: map[types.UID]bool{},
	}
	cfg.Metrics.Expose(m.Len)
	return m
}

// Want adds or updates a static pod that a source names. The pod must not be changed afterwards.
func (m *Manager) Want(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := nameOf(pod)
	m.drop(pod.UID, name)
	r := m.recordOf(name)
	m.static[pod.UID] = name
	for i := range r.pods {
		if r.pods[i].UID == pod.UID {
			r.pods[i] = pod
			m.look(name)
			return
		}
	}
	r.pods = append(r.pods, pod)
	m.look(name)
}

// Unwant removes a static pod that no source names any more.
func (m *Manager) Unwant(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(uid, types.NamespacedName{})
}

// drop removes a static pod from its name, unless that equals except. The caller holds mu.
func (m *Manager) drop(uid types.UID, except types.NamespacedName) {
	name, has := m.static[uid]
	if !has || name == except {
		return
	}
	delete(m.static, uid)
	r := m.recordOf(name)
	kept := make([]*v1.Pod, 0, len(r.pods))
	for _, pod := range r.pods {
		if pod.UID != uid {
			kept = append(kept, pod)
		}
	}
	r.pods, r.failures, r.until = kept, 0, time.Time{}
	m.look(name)
}

// Seen adds or updates a mirror pod that the API server has. It must not be changed afterwards.
func (m *Manager) Seen(mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deleted[mirror.UID] {
		return
	}
	name := nameOf(mirror)
	r := m.recordOf(name)
	if r.mirror != nil && r.mirror.UID != mirror.UID {
		delete(m.mirror, r.mirror.UID)
	}
	r.mirror, r.made = mirror, time.Time{}
	m.mirror[mirror.UID] = name
	m.look(name)
}

// Gone removes a mirror pod that the API server does not have any more.
func (m *Manager) Gone(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.deleted, uid)
	m.forget(uid)
}

// forget removes a mirror pod. The caller holds mu.
func (m *Manager) forget(uid types.UID) {
	name, has := m.mirror[uid]
	if !has {
		return
	}
	delete(m.mirror, uid)
	if r := m.recordOf(name); r.mirror != nil && r.mirror.UID == uid {
		r.mirror, r.made = nil, time.Time{}
	}
	m.look(name)
}

// SetNode sets the UID of the Node in the API server.
func (m *Manager) SetNode(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != uid {
		m.node = uid
		m.lookAtAll()
	}
}

// SetKnown sets whether all mirror pods are known, because the API server has listed its pods, and whether all static
// pods are known, too. Without the first nothing is created, and without the second no mirror pod is treated as
// orphaned.
func (m *Manager) SetKnown(mirrors, statics bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirrors && !m.known {
		m.deleted = map[types.UID]bool{} // The pods of the list exist.
	}
	if m.known != mirrors || m.complete != statics {
		m.known, m.complete = mirrors, statics
		m.lookAtAll()
	}
}

// Len returns how many static pods have or get a mirror pod.
func (m *Manager) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.static)
}

// recordOf returns the record of a name. The caller holds mu.
func (m *Manager) recordOf(name types.NamespacedName) *record {
	r := m.names[name]
	if r == nil {
		r = &record{}
		m.names[name] = r
	}
	return r
}

// look enqueues a name, lookAtAll enqueues all of them. The caller holds mu.
func (m *Manager) look(name types.NamespacedName) {
	if m.queue != nil {
		m.queue.Add(name)
	}
}

func (m *Manager) lookAtAll() {
	for name := range m.names {
		m.look(name)
	}
}

// Run creates and deletes mirror pods until ctx ends. It returns when all requests have ended.
func (m *Manager) Run(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{
		Clock: m.cfg.Clock,
	})
	m.mu.Lock()
	m.queue = queue
	m.lookAtAll()
	m.mu.Unlock()
	return rounds.Run(ctx, rounds.Config[types.NamespacedName]{
		Queue: queue, Workers: makers, Settle: m.settle, Recheck: m.recheck, Period: recheckPeriod, Clock: m.cfg.Clock,
	})
}

// recheck enqueues every name.
func (m *Manager) recheck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookAtAll()
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
