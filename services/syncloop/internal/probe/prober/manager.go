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

// changesCapacity lets the probes of some pods that become ready together go on before the loop has taken what they found.
const changesCapacity = 64

// Config is what a Manager needs.
type Config struct {
	// Probe makes a call: (*probecalls.Caller).Probe. It returns soon after its context ends.
	Probe func(context.Context, probecalls.Target) probecalls.Answer
	// Forget is told of each probe whose pod is gone, or does not ask for it any more: (*probecalls.Caller).Forget. It may be nil.
	Forget func(probecalls.Target)
	// Book keeps the results over a restart.
	Book   *Book
	Clock  clock.WithTicker
	Tracer trace.Tracer
	Logger *slog.Logger
	// Spread returns a number between 0 and 1, another each time; a random one when nil.
	Spread func() float64
}

// Change is another result of a probe.
type Change struct {
	// Pod is the pod's UID.
	Pod types.UID
	// Kind is the probe, Container and ContainerID whose it is.
	Kind                   probecalls.Kind
	Container, ContainerID string
	// Result is Success or Failure.
	Result decide.ProbeResult
	// Traceparent is the trace of the change: that of the container's start for its first success, else one of its own.
	Traceparent string
}

// Manager runs the probes. Its methods may be called by anyone, and wait for nothing.
type Manager struct {
	cfg Config
	// begun is when this process began to probe.
	begun   time.Time
	changes chan Change
	// wake has room for one signal: the earliest time has changed. untidy has room for one: there is something to be dropped.
	wake, untidy chan struct{}

	mu    sync.Mutex
	queue queue
	pods  map[types.UID]*pod
	// told has the results that others may see, by container ID.
	told map[string]results
	// drop has the pods whose files may have containers that are gone.
	drop map[types.UID]bool
	// forgotten has the probes that Config.Forget is to be told of.
	forgotten []probecalls.Target
}

// pod is a pod with probes, or with kept results.
type pod struct {
	uid types.UID
	// ids are the containers that there are results of.
	ids map[string]bool
	// containers are those that run and have probes, by name.
	containers map[string]*container
	// targets has every probe that was ever begun, for Config.Forget.
	targets map[probeKey]probecalls.Target
	ending  bool
}

// probeKey names a probe of a pod.
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
	// startedBy is the traceparent of what made the container; empty when that is not known.
	startedBy string
	// startedAt is when the container was started, by the runtime's clock.
	startedAt time.Time
	// since is when the result came to be as it is; zero for the initial one.
	since time.Time
	// asked is when the last call that has ended began, and answer how it went; zero and nil before the first. calling is when the running
	// call began.
	asked   time.Time
	answer  *probecalls.Answer
	calling time.Time
	// cancel ends the running call; nil while none runs.
	cancel context.CancelFunc
	// stopped is true once nothing is to be asked any more.
	stopped bool
	// place is where it is in the heap; negative when it is not.
	place int
}

// New returns a manager that asks nobody yet, and has the results of the process before it.
func New(cfg Config) *Manager {
	if cfg.Forget == nil {
		cfg.Forget = func(probecalls.Target) {}
	}
	if cfg.Spread == nil {
		cfg.Spread = rand.Float64
	}
	m := &Manager{
		cfg: cfg, begun: cfg.Clock.Now(), changes: make(chan Change, changesCapacity), wake: make(chan struct{}, 1), untidy: make(chan struct{}, 1),
		pods: map[types.UID]*pod{}, told: map[string]results{}, drop: map[types.UID]bool{},
	}
	for uid, containers := range cfg.Book.all() {
		p := newPod(uid)
		for id, kept := range containers {
			p.ids[id], m.told[id] = true, kept
		}
		m.pods[uid] = p
	}
	return m
}

func newPod(uid types.UID) *pod {
	return &pod{uid: uid, ids: map[string]bool{}, containers: map[string]*container{}, targets: map[probeKey]probecalls.Target{}}
}

// Changes has the results that change, in no promised order between probes. Whoever does not take them holds up the probes that
// have found them, and no others.
func (m *Manager) Changes() <-chan Change { return m.changes }

// Ready tells whether the readiness probe of a container has succeeded.
func (m *Manager) Ready(containerID string) bool {
	return m.result(containerID, probecalls.Readiness) == decide.Success
}

// Started tells whether the startup probe of a container has succeeded.
func (m *Manager) Started(containerID string) bool {
	return m.result(containerID, probecalls.Startup) == decide.Success
}

// Liveness returns what the liveness probe of a container has come to, Unknown when it has never changed.
func (m *Manager) Liveness(containerID string) decide.ProbeResult {
	return m.result(containerID, probecalls.Liveness)
}

// Startup returns what the startup probe of a container has come to, Unknown before its first result.
func (m *Manager) Startup(containerID string) decide.ProbeResult {
	return m.result(containerID, probecalls.Startup)
}

// Unhealthy tells whether the liveness or the startup probe of a container has failed: it is to be killed, or was.
func (m *Manager) Unhealthy(containerID string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	told := m.told[containerID]
	return told[probecalls.Liveness].Result == decide.Failure || told[probecalls.Startup].Result == decide.Failure
}

// Since returns when the last probe of a container succeeded that had to for it to be ready; zero when none has.
func (m *Manager) Since(containerID string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	var last time.Time
	for _, kind := range []probecalls.Kind{probecalls.Readiness, probecalls.Startup} {
		if kept := m.told[containerID][kind]; kept.Result == decide.Success && kept.Since.After(last) {
			last = kept.Since
		}
	}
	return last
}

func (m *Manager) result(containerID string, kind probecalls.Kind) decide.ProbeResult {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[containerID][kind].Result
}

// UIDs returns the pods that something is known of.
func (m *Manager) UIDs() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.pods))
}

// Forget stops the probes of a pod and drops what is known of it. Its file goes later.
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
		delete(m.told, id)
	}
	delete(m.pods, uid)
	m.forgotten = slices.AppendSeq(m.forgotten, maps.Values(p.targets))
	m.tidyLater(uid)
}

// tidyLater has Run look through a pod's file. Called with mu held.
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

// kinds are the kinds of probes, in the order in which a container comes to be asked them.
func kinds() []probecalls.Kind {
	return []probecalls.Kind{probecalls.Startup, probecalls.Liveness, probecalls.Readiness}
}

// specOf returns the probe of a kind that a container asks for; nil for none.
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

// probed returns the containers of a pod that have probes: ordinary ones and sidecars.
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
