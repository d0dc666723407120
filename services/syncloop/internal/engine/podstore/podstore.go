// Package podstore holds every pod of this node with its status. The loop puts in the desired pods and pleg's
// observations, and the workers their progress. Each of these computes the status again at once, so that a container
// start shows immediately. Changes are published to the watchers of EngineService.
//
// Nothing is computed before [Store.Open], because a status without the observations, or without the pods, would be
// wrong, and a restart must never publish a wrong status.
package podstore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	seen "github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// Config has the dependencies of a Store.
type Config struct {
	// Generate computes a status; nil is podstatus.Generate.
	Generate func(pod *v1.Pod, observed *lifecyclev1.PodStatus, in podstatus.Inputs) v1.PodStatus
	// Messages reads the termination messages of ended containers, by container ID; nil reads none. It is called without a
	// lock and once for each ended container.
	Messages func(pod *v1.Pod, ended []*lifecyclev1.Container) map[string]string
	// Replaced is the Replaced of podstatus.Inputs, with the pod of the container. It does not block; nil if there is
	// none.
	Replaced func(pod types.UID, containerID string) bool
	// Probes has the results of probes and runs them for the containers of each status; nil on a node without a prober.
	Probes Probes
	Clock  clock.WithTicker
	Tracer trace.Tracer
	Logger *slog.Logger
	// Metrics measures the starts of pods; nil measures nothing.
	Metrics *Metrics
	// Devices returns the devices of a container for its status, and HoldsClaims reports whether a pod has resource claims
	// that are not unprepared yet: its final phase is not reported before, because the cluster then gives them to others.
	// Both must not call the store; nil is a node without devices or claims.
	Devices     func(pod *v1.Pod, container string) []v1.ResourceStatus
	HoldsClaims func(pod types.UID) bool
	// VolumeHealth returns the conditions of the volumes of a pod, by name, for its status. It must not call the store;
	// nil does not report them.
	VolumeHealth func(pod types.UID) map[string][]v1.VolumeHealthCondition
	// Resizes has the records of resized pods; nil resizes no pod.
	Resizes Resizes
	// Phases records the last phases of a pod's start; nil records nothing.
	Phases *phases.Book
	// API reports the statuses to an API server. Required.
	API API
	// StreamMetrics counts the operations of the stream of pods; nil counts nothing.
	StreamMetrics *stream.ServedMetrics
}

// Probes runs the probes of containers; *prober.Manager implements it. Its methods are called with the store's lock
// held, so they must neither block nor call the store.
type Probes interface {
	// Observe sets the desired and the observed state of a pod, its first address, and whether it is being terminated.
	Observe(pod *v1.Pod, observed *lifecyclev1.PodStatus, ip string, ending bool)
	// Forget drops a pod.
	Forget(uid types.UID)
	// Ready, Started and Unhealthy are those of podstatus.Inputs; Since is its ProbedSince.
	Ready(containerID string) bool
	Started(containerID string) bool
	Unhealthy(containerID string) bool
	Since(containerID string) time.Time
}

// NotReadyError is the error of a call before the pods are known.
type NotReadyError struct {
	// Reason is the dependency or step that is waited for.
	Reason string
}

// Error implements error.
func (e *NotReadyError) Error() string { return "the pods are not known yet: " + e.Reason }

// ErrNotFound is the error for a pod that is not in the store.
var ErrNotFound = errors.New("there is no such pod")

// Store has the pods. A pod is never changed once it is in the store, and callers must not change a pod that they get.
type Store struct {
	cfg   Config
	level *stream.Level[*enginev1.Pod]

	mu sync.Mutex
	// open is true once statuses are computed.
	open bool
	// waiting is the reason why the pods are not known yet; empty if they are.
	waiting string
	// known is closed when the pods are known for the first time.
	known     chan struct{}
	knownOnce sync.Once
	// runtimeName is the scheme of container IDs; empty until the runtime has reported it.
	runtimeName string
	// hostIPs are the addresses of the node, the primary one first.
	hostIPs []string
	entries map[types.UID]*entry
	// observed has the newest observation of every pod in the runtime, including pods without an entry.
	observed map[types.UID]*lifecyclev1.PodStatus
}

// entry is one pod.
type entry struct {
	pod         *v1.Pod
	source      string
	traceparent string
	// cause is the trace of the newest change of the pod.
	cause string
	// desired is true while a source names the pod.
	desired bool
	state   podworkers.State
	// worked is true once the pod has had a worker; released once the worker has released the resources of the pod.
	worked, released bool
	reasons          map[string]podstatus.Reason
	// whole is the reason why the pod as a whole waits, and wholeIn the sandbox that the pod had at that report; both are
	// empty if there is none.
	whole    podstatus.Reason
	wholeIn  string
	messages map[string]string
	// undecided is true while the resize of this version of the pod is not decided.
	undecided bool
	// cgroup has the limits of the pod's cgroup; nil if they are not known.
	cgroup   *resources.Resources
	eviction *Eviction
	// last is the last status of a pod whose ended containers are removed; nil for other pods.
	last   *v1.PodStatus
	status v1.PodStatus
	// published is the encoded pod in the last message; nil if there was none.
	published []byte
	// readyTraced is true while the pod is ready and a trace has ended with that.
	readyTraced bool
	start       start
}

// New returns an empty store.
func New(cfg Config) *Store {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	if cfg.Generate == nil {
		cfg.Generate = podstatus.Generate
	}
	s := &Store{
		cfg: cfg, level: stream.NewLevel[*enginev1.Pod](stream.Config{Clock: cfg.Clock, Metrics: cfg.StreamMetrics}),
		waiting: "syncloop is starting", known: make(chan struct{}), entries: map[types.UID]*entry{},
		observed: map[types.UID]*lifecyclev1.PodStatus{},
	}
	cfg.Metrics.Expose(s.Census)
	return s
}

// Close ends the watches.
func (s *Store) Close() { s.level.Close() }

// Open starts to compute statuses. It is called once both the desired pods and the observations are known.
func (s *Store) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		return
	}
	s.open = true
	for uid := range s.entries {
		s.compute(uid, true)
	}
}

// SetWaiting sets the reason why the pods are not known yet; an empty reason means that they are.
func (s *Store) SetWaiting(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = reason
	if reason == "" {
		s.knownOnce.Do(func() { close(s.known) })
	}
}

// Known returns a channel that is closed when the pods are known for the first time.
func (s *Store) Known() <-chan struct{} { return s.known }

// SetRuntimeName sets the name of the runtime, which is the scheme of container IDs in the statuses.
func (s *Store) SetRuntimeName(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runtimeName == name {
		return
	}
	s.runtimeName = name
	for uid := range s.entries {
		s.compute(uid, false)
	}
}

// SetHostIPs sets the addresses of the node, the primary one first.
func (s *Store) SetHostIPs(ips []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.hostIPs, ips) {
		return
	}
	s.hostIPs = ips
	for uid := range s.entries {
		s.compute(uid, false)
	}
}

// SetPod adds or updates a pod. Source is empty for a pod that is only in the runtime.
func (s *Store) SetPod(pod *v1.Pod, source, traceparent string) {
	s.setPod(pod, source, traceparent, false)
}

func (s *Store) setPod(pod *v1.Pod, source, traceparent string, undecided bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[pod.UID]
	if e == nil {
		e = &entry{state: podworkers.Syncing}
		s.entries[pod.UID] = e
	}
	// A change of only the status in the API server is not published.
	wanted := e.pod == nil || e.source != source || podset.Compare(e.pod, pod) != podset.Reconcile
	if wanted {
		e.traceparent, e.cause = traceparent, traceparent
	}
	e.pod, e.source, e.desired, e.undecided = pod, source, source != "", undecided
	if !s.compute(pod.UID, wanted) {
		s.report(e)
	}
}

// Unwant records that no source names a pod any more.
func (s *Store) Unwant(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil {
		e.desired = false
		if !podset.IsStaticSource(e.source) { // the API server has no object of it any more
			s.unreport(uid)
		}
	}
}

// Evict sets the phase of a pod to Failed with a reason. It fails with ErrNotFound.
func (s *Store) Evict(uid types.UID, eviction Eviction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	if e == nil {
		return fmt.Errorf("pod %s: %w", uid, ErrNotFound)
	}
	if e.eviction == nil {
		e.eviction, e.last = &eviction, eviction.Last
	}
	s.compute(uid, false)
	return nil
}

// Synced implements podworkers.Statuses.
func (s *Store) Synced(uid types.UID, report podworkers.SyncReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	if e == nil {
		return
	}
	moved := report.Cgroup != nil && !reflect.DeepEqual(e.cgroup, report.Cgroup)
	if moved {
		e.cgroup = report.Cgroup
	}
	if report.ReasonsKnown {
		e.reasons, e.whole, e.wholeIn = report.Reasons, report.Wait, seen.Sandbox(s.observed[uid]).GetId()
	}
	if moved || report.ReasonsKnown {
		s.compute(uid, false)
	}
}

// SetState implements podworkers.Statuses.
func (s *Store) SetState(uid types.UID, state podworkers.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	if e == nil || (e.state == state && e.worked) {
		return
	}
	changed := e.state != state
	e.state, e.worked = state, true
	if changed || e.endedBefore() {
		s.compute(uid, changed)
	}
}

// SetReleased implements podworkers.Statuses.
func (s *Store) SetReleased(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil && !e.released {
		e.released = true
		s.report(e)
	}
}

// Phase implements podworkers.Statuses.
func (s *Store) Phase(uid types.UID) v1.PodPhase {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil {
		return e.status.Phase
	}
	return ""
}

// ActiveSince returns the status.startTime of a pod that is active on the node; zero for a pod that is unknown, has no
// start time yet, or has ended.
func (s *Store) ActiveSince(uid types.UID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	if e == nil || e.status.StartTime == nil || e.status.Phase == v1.PodSucceeded || e.status.Phase == v1.PodFailed {
		return time.Time{}
	}
	return e.status.StartTime.Time
}

// Forget implements podworkers.Statuses.
func (s *Store) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.observed, uid)
	if s.cfg.Probes != nil {
		s.cfg.Probes.Forget(uid)
	}
	s.cfg.Phases.Forget(uid)
	e := s.entries[uid]
	if e == nil {
		return
	}
	s.unreport(uid)
	if e.desired {
		s.entries[uid] = &entry{
			pod: e.pod, source: e.source, traceparent: e.traceparent, desired: true, state: podworkers.Syncing,
		}
		s.compute(uid, true)
		return
	}
	delete(s.entries, uid)
	s.level.Delete(string(uid))
}

// Pods returns the pods that a source names, with their status, in the order of namespace and name. It fails with
// NotReadyError.
func (s *Store) Pods() ([]*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		return nil, &NotReadyError{Reason: s.waiting}
	}
	pods := make([]*v1.Pod, 0, len(s.entries))
	for _, e := range s.entries {
		if e.desired {
			pods = append(pods, withStatus(e, e.status))
		}
	}
	slices.SortFunc(pods, byName)
	return pods, nil
}

func byName(a, b *v1.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}

// List returns every pod as it is published, including orphans, in the order of namespace and name. It fails with
// NotReadyError.
func (s *Store) List() ([]*enginev1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		return nil, &NotReadyError{Reason: s.waiting}
	}
	all := make([]*v1.Pod, 0, len(s.entries))
	for _, e := range s.entries {
		all = append(all, e.pod)
	}
	slices.SortFunc(all, byName)
	list := make([]*enginev1.Pod, 0, len(all))
	for _, pod := range all {
		if one, ok := s.level.Get(string(pod.UID)); ok {
			list = append(list, one)
		}
	}
	return list, nil
}

// Source returns the stream that EngineService.WatchPods serves. It fails with NotReadyError, because an empty snapshot
// would mean that there are no pods.
func (s *Store) Source() (stream.Source[*enginev1.Pod], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != "" {
		return nil, &NotReadyError{Reason: s.waiting}
	}
	return s.level, nil
}

// Len returns the number of pods.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Pod returns the desired version of a pod, without the computed status; nil if the store does not have the pod.
func (s *Store) Pod(uid types.UID) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil {
		return e.pod
	}
	return nil
}

// Has reports whether the store has a pod.
func (s *Store) Has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[uid] != nil
}
