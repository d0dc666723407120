// Package mirrorpods has the API server show the pods that this node runs for other sources: for each of them there is a mirror pod, which
// is no pod to run, and whose status is that of the static pod. It says what runs here, takes its share of the node in the eyes of the
// scheduler, and can be deleted by anybody: that ends nothing, and another one is made.
//
// The loop tells which static pods there are, which mirror pods configmux's watch of the API server has, whether those are all, and the
// UID of the Node, which owns the mirror pods. What is to be done for a name is decided by [decide], without a clock or a network. What
// fails is tried again for as long as it is wanted, and holds up nothing on the node.
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
	// makers is how many requests are under way at a time: a node has a handful of static pods.
	makers = 2
	// requestTimeout bounds one request, the wait for its turn by kubeAPIQPS included.
	requestTimeout = 10 * time.Second
	// recheckPeriod is how often all names are looked at: the kubelet's housekeeping. One that is right costs no request.
	recheckPeriod = 2 * time.Second
	// unseenFor is how long a mirror pod that was made is believed to be there although the watch has not brought it.
	unseenFor = 30 * time.Second
)

// Statuses writes the status of static pods to their mirror pods; *statusmanager.Manager does it.
type Statuses interface {
	// SetMirror says which mirror pod a static pod has, nil for none.
	SetMirror(uid types.UID, mirror *v1.Pod)
}

// Events is told what cannot be done for pods; *podevents.Recorder keeps it.
type Events interface {
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// Config is what a Manager needs.
type Config struct {
	// NodeName is the name of the node.
	NodeName string
	// API makes the requests; see FromAPIServer.
	API      API
	Statuses Statuses
	// Ending tells whether another pod of a name than the one with a UID is not gone yet. No source names it any more, and its
	// mirror pod stays until it has ended.
	Ending func(name types.NamespacedName, but types.UID) bool
	Events Events
	Clock  clock.WithTicker
	Logger *slog.Logger
	// Metrics counts the requests; nil counts nothing.
	Metrics *Metrics
}

// Manager keeps the mirror pods. Make it with New, and Run it once. Its other methods wait for nothing.
type Manager struct {
	cfg Config

	mu    sync.Mutex
	queue workqueue.TypedDelayingInterface[types.NamespacedName]
	names map[types.NamespacedName]*record
	// static has the name of each static pod, mirror that of each mirror pod.
	static, mirror map[types.UID]types.NamespacedName
	// deleted are the mirror pods that the API server has deleted, until its watch has told so.
	deleted map[types.UID]bool
	node    types.UID
	// known is true while all mirror pods are known, complete while all static pods are, too.
	known, complete bool
}

// record is what there is of a name.
type record struct {
	// pods are the static pods of the name, the one that came first is mirrored. There is more than one when sources give the same.
	pods []*v1.Pod
	// mirror is the mirror pod in the API server; nil when there is none.
	mirror *v1.Pod
	// made is when the mirror was made here, zero once the watch has brought it.
	made time.Time
	// told is the static pod that mirror was told to be the mirror of.
	told types.UID
	// failures counts the requests that failed in a row, until is when the next may be made.
	failures  int
	until     time.Time
	complaint string
}

// New returns a Manager that makes nothing yet.
func New(cfg Config) *Manager {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	m := &Manager{
		cfg: cfg, names: map[types.NamespacedName]*record{}, static: map[types.UID]types.NamespacedName{},
		mirror: map[types.UID]types.NamespacedName{}, deleted: map[types.UID]bool{},
	}
	cfg.Metrics.Expose(m.Len)
	return m
}

// Want takes in a static pod that a source names, or what is new of it. It must not be changed afterwards.
func (m *Manager) Want(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := nameOf(pod)
	m.drop(pod.UID, name)
	r := m.of(name)
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

// Unwant takes in that no source names a static pod any more.
func (m *Manager) Unwant(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(uid, types.NamespacedName{})
}

// drop takes a static pod out of the name that it has, unless that is the one it is to have. Called with mu held.
func (m *Manager) drop(uid types.UID, but types.NamespacedName) {
	name, has := m.static[uid]
	if !has || name == but {
		return
	}
	delete(m.static, uid)
	r := m.of(name)
	kept := make([]*v1.Pod, 0, len(r.pods))
	for _, pod := range r.pods {
		if pod.UID != uid {
			kept = append(kept, pod)
		}
	}
	r.pods, r.failures, r.until = kept, 0, time.Time{}
	m.look(name)
}

// Seen takes in a mirror pod that the API server has. It must not be changed afterwards.
func (m *Manager) Seen(mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deleted[mirror.UID] {
		return
	}
	name := nameOf(mirror)
	r := m.of(name)
	if r.mirror != nil && r.mirror.UID != mirror.UID {
		delete(m.mirror, r.mirror.UID)
	}
	r.mirror, r.made = mirror, time.Time{}
	m.mirror[mirror.UID] = name
	m.look(name)
}

// Gone takes in that the API server does not have a pod any more.
func (m *Manager) Gone(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.deleted, uid)
	m.forget(uid)
}

// forget drops a mirror pod. Called with mu held.
func (m *Manager) forget(uid types.UID) {
	name, has := m.mirror[uid]
	if !has {
		return
	}
	delete(m.mirror, uid)
	if r := m.of(name); r.mirror != nil && r.mirror.UID == uid {
		r.mirror, r.made = nil, time.Time{}
	}
	m.look(name)
}

// SetNode takes in the UID that the Node has in the API server.
func (m *Manager) SetNode(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != uid {
		m.node = uid
		m.lookAtAll()
	}
}

// SetKnown says whether all mirror pods were seen, since the API server has listed its pods, and whether all static pods are known, too.
// Nothing is made before the first, and no mirror pod is thought to have lost its pod before the second.
func (m *Manager) SetKnown(mirrors, statics bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirrors && !m.known {
		m.deleted = map[types.UID]bool{} // what the list has is there
	}
	if m.known != mirrors || m.complete != statics {
		m.known, m.complete = mirrors, statics
		m.lookAtAll()
	}
}

// Len returns how many static pods have, or are to have, a mirror pod.
func (m *Manager) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.static)
}

// of returns the record of a name. Called with mu held.
func (m *Manager) of(name types.NamespacedName) *record {
	r := m.names[name]
	if r == nil {
		r = &record{}
		m.names[name] = r
	}
	return r
}

// look has a name looked at, lookAtAll all of them. Called with mu held.
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

// Run makes and deletes mirror pods until ctx ends. It returns when no request is under way any more.
func (m *Manager) Run(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: m.cfg.Clock})
	m.mu.Lock()
	m.queue = queue
	m.lookAtAll()
	m.mu.Unlock()
	return rounds.Run(ctx, rounds.Config[types.NamespacedName]{
		Queue: queue, Workers: makers, Settle: m.settle, Recheck: m.recheck, Period: recheckPeriod, Clock: m.cfg.Clock,
	})
}

// recheck has every mirror pod looked at.
func (m *Manager) recheck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookAtAll()
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
