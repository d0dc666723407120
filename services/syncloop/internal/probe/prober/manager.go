package prober

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// changesCapacity lets the probes of several pods that become ready together continue before the loop has received
// their results.
const changesCapacity = 64

// Config holds the parameters of a Manager.
type Config struct {
	// Probe makes a call: (*probecalls.Caller).Probe. It returns soon after its context ends.
	Probe func(context.Context, probecalls.Target) probecalls.Answer
	// Forget is called for each probe whose pod is gone, or does not have it any more: (*probecalls.Caller).Forget. It may
	// be nil.
	Forget func(probecalls.Target)
	// Book stores the results across a restart.
	Book   *Book
	Clock  clock.WithTicker
	Tracer trace.Tracer
	Logger *slog.Logger
	// Spread returns a random number between 0 and 1; the default source is used if it is nil.
	Spread func() float64
}

// Change is a changed result of a probe.
type Change struct {
	// Pod is the pod's UID.
	Pod types.UID
	// Kind is the kind of the probe, and Container and ContainerID its container.
	Kind                   probecalls.Kind
	Container, ContainerID string
	// Result is Success or Failure.
	Result decide.ProbeResult
	// Traceparent is the trace of the change: that of the container's start for its first success, and otherwise a new
	// one.
	Traceparent string
}

// Manager runs the probes. Its methods are safe for concurrent use, and do not block.
type Manager struct {
	cfg Config
	// begun is the start of probing in this process.
	begun   time.Time
	changes chan Change
	// wake has capacity one: the earliest time has changed. untidy has capacity one: there is something to drop.
	wake, untidy chan struct{}

	mu    sync.Mutex
	queue queue
	pods  map[types.UID]*pod
	// published holds the published results by container ID.
	published map[string]results
	// drop is the set of pods whose files may contain containers that are gone.
	drop map[types.UID]bool
	// forgotten are the pending targets of Config.Forget.
	forgotten []probecalls.Target
}

// pod is a pod with probes, or with stored results.
type pod struct {
	uid types.UID
	// ids is the set of containers with results.
	ids map[string]bool
	// containers are the running ones with probes, by name.
	containers map[string]*container
	// targets holds every probe that was ever started, for Config.Forget.
	targets map[probeKey]probecalls.Target
	ending  bool
}

// probeKey identifies a probe of a pod.
type probeKey struct {
	container string
	kind      probecalls.Kind
}

// container is a running container.
type container struct {
	id     string
	probes map[probecalls.Kind]*probe
}

// probe is one probe of a running container.
type probe struct {
	machine machine
	target  probecalls.Target
	// startedBy is the traceparent of the container's creation; empty if unknown.
	startedBy string
	// startedAt is the start of the container by the runtime's clock.
	startedAt time.Time
	// since is the start of the result; zero for the initial one.
	since time.Time
	// calledAt is the start of the last completed call, and answer its result; zero and nil before the first. calling is
	// the start of the running call.
	calledAt time.Time
	answer   *probecalls.Answer
	calling  time.Time
	// cancel cancels the running call; nil if there is none.
	cancel context.CancelFunc
	// stopped is true when no further calls are needed.
	stopped bool
	// place is its index in the heap; negative if it is not in the heap.
	place int
}

// New returns a manager with the results of the previous process. It makes no call before Run.
func New(cfg Config) *Manager {
	if cfg.Forget == nil {
		cfg.Forget = func(probecalls.Target) {}
	}
	if cfg.Spread == nil {
		cfg.Spread = rand.Float64
	}
	m := &Manager{
		cfg: cfg, begun: cfg.Clock.Now(), changes: make(chan Change, changesCapacity), wake: make(chan struct{}, 1),
		untidy: make(chan struct{}, 1),
		pods:   map[types.UID]*pod{}, published: map[string]results{}, drop: map[types.UID]bool{},
	}
	for uid, containers := range cfg.Book.all() {
		p := newPod(uid)
		for id, kept := range containers {
			p.ids[id], m.published[id] = true, kept
		}
		m.pods[uid] = p
	}
	return m
}

func newPod(uid types.UID) *pod {
	return &pod{
		uid: uid, ids: map[string]bool{}, containers: map[string]*container{}, targets: map[probeKey]probecalls.Target{},
	}
}

// Changes returns the changed results, without a guaranteed order between probes. A slow receiver delays only the
// probes with changed results.
func (m *Manager) Changes() <-chan Change { return m.changes }

// Ready reports whether the readiness probe of a container has succeeded.
func (m *Manager) Ready(containerID string) bool {
	return m.result(containerID, probecalls.Readiness) == decide.Success
}

// Started reports whether the startup probe of a container has succeeded.
func (m *Manager) Started(containerID string) bool {
	return m.result(containerID, probecalls.Startup) == decide.Success
}

// Liveness returns the result of a container's liveness probe; Unknown before its first change.
func (m *Manager) Liveness(containerID string) decide.ProbeResult {
	return m.result(containerID, probecalls.Liveness)
}

// Startup returns the result of a container's startup probe; Unknown before its first result.
func (m *Manager) Startup(containerID string) decide.ProbeResult {
	return m.result(containerID, probecalls.Startup)
}

// Unhealthy reports whether the liveness or the startup probe of a container has failed, so that it is killed.
func (m *Manager) Unhealthy(containerID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	published := m.published[containerID]
	return published[probecalls.Liveness].Result == decide.Failure ||
		published[probecalls.Startup].Result == decide.Failure
}

// Since returns when the last probe that a container needs for readiness succeeded; zero if none has.
func (m *Manager) Since(containerID string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	var last time.Time
	for _, kind := range []probecalls.Kind{probecalls.Readiness, probecalls.Startup} {
		if kept := m.published[containerID][kind]; kept.Result == decide.Success && kept.Since.After(last) {
			last = kept.Since
		}
	}
	return last
}

func (m *Manager) result(containerID string, kind probecalls.Kind) decide.ProbeResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.published[containerID][kind].Result
}

// UIDs returns the known pods.
func (m *Manager) UIDs() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.pods))
}

// Forget stops the probes of a pod and drops its results. Its file is removed later.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil {
		return
	}
	for name := range p.containers {
		m.end(p, name)
	}
	for id := range p.ids {
		delete(m.published, id)
	}
	delete(m.pods, uid)
	m.forgotten = slices.AppendSeq(m.forgotten, maps.Values(p.targets))
	m.tidyLater(uid)
}

// tidyLater makes Run clean up a pod's file. The caller holds mu.
func (m *Manager) tidyLater(uid types.UID) {
	m.drop[uid] = true
	signal(m.untidy)
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// kinds returns the kinds of probes in the order of their first calls.
func kinds() []probecalls.Kind {
	return []probecalls.Kind{probecalls.Startup, probecalls.Liveness, probecalls.Readiness}
}

// specOf returns a container's probe of a kind; nil for none.
func specOf(c *v1.Container, kind probecalls.Kind) *v1.Probe {
	switch kind {
	case probecalls.Liveness:
		return c.LivenessProbe
	case probecalls.Readiness:
		return c.ReadinessProbe
	case probecalls.Startup:
		return c.StartupProbe
	}
	return nil
}

// probed returns the containers of a pod with probes: ordinary ones and sidecars.
func probed(pod *v1.Pod) []*v1.Container {
	var all []*v1.Container
	has := func(c *v1.Container) bool {
		return c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podset.IsSidecar(c) && has(c) {
			all = append(all, c)
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; has(c) {
			all = append(all, c)
		}
	}
	return all
}
