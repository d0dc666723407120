package volumes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
)

// closeTimeout bounds the wait for running operations when the process stops. Hanging ones are left to the kernel.
const closeTimeout = 2 * time.Second

// Events receives the problems with the volumes of pods; *podevents.Recorder implements it.
type Events interface {
	// Warning records an event of a pod, as a whole if container is empty: a reason in one word, and a sentence.
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// noopEvents is an Events that discards events.
type noopEvents struct{}

// Warning implements Events.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// Config holds the parameters of a Manager.
type Config struct {
	// PodsDir is the directory of the pods' directories, by UID. Required.
	PodsDir string
	// Plugins are the supported kinds of volumes. The first one that supports a volume is used.
	Plugins []Plugin
	// SubPaths mounts sub-paths of volumes; nil means subpath.Machine.
	SubPaths subpath.Mounter
	// Clock is the clock. Required.
	Clock clock.Clock
	// Events receives problems; nil discards them.
	Events Events
	// Metrics counts and times operations; it may be nil.
	Metrics *Metrics
	// Tracer creates a span for each operation; it may be nil.
	Tracer trace.Tracer
	// Logger logs failures; slog.Default if nil.
	Logger *slog.Logger
	// Places is the maximum number of concurrent operations, except hanging ones; 0 means four for each processor.
	Places int
}

// Manager manages the volumes of all pods. Create it with New. It changes volumes only during Run; its methods are safe
// for concurrent use.
type Manager struct {
	cfg      Config
	subPaths subpath.Mounts

	// wake has capacity one, because a wake-up covers everything.
	wake chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*pod
	// specs holds the wanted pods, as last passed in, with their span.
	specs map[types.UID]spec
	// changed is closed and replaced when an operation has ended.
	changed chan struct{}
	// unread is why the volumes of an earlier process are not known, and findAgain when they are looked for again.
	unread    error
	findAgain time.Time
}

// spec is a wanted pod.
type spec struct {
	pod       *v1.Pod
	startedBy trace.SpanContext
}

// New returns a manager that knows the volumes of an earlier process below Config.PodsDir. It does not change them. If
// that directory cannot be listed, Run looks again; until then the volumes of a pod are found when it is released.
func New(cfg Config) (*Manager, error) {
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.Tracer == nil {
		cfg.Tracer = telemetry.Off()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Places == 0 {
		cfg.Places = 4 * runtime.NumCPU()
	}
	if cfg.SubPaths == nil {
		cfg.SubPaths = subpath.Machine{}
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	// The mount table has resolved paths.
	err := os.MkdirAll(cfg.PodsDir, volumesDirMode)
	if err == nil {
		cfg.PodsDir, err = filepath.EvalSymlinks(cfg.PodsDir)
	}
	if err != nil {
		return nil, fmt.Errorf("the folder of the pods: %w", err)
	}
	m := &Manager{
		cfg: cfg, subPaths: subpath.Mounts{Mounter: cfg.SubPaths}, wake: make(chan struct{}, 1), pods: map[types.UID]*pod{},
		specs:   map[types.UID]spec{},
		changed: make(chan struct{}),
	}
	m.findLeft()
	cfg.Metrics.Expose(m.Count)
	return m, nil
}

// Run executes operations on volumes until ctx ends, and waits briefly for those in progress. It returns the error of
// ctx.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			m.waitFor(&running)
			return ctx.Err()
		case <-m.wake:
		case <-timer.C():
		}
		now := m.cfg.Clock.Now()
		works, again := m.begin(now)
		for _, w := range works {
			running.Go(func() { m.do(ctx, w) })
		}
		if unread := m.lookAgain(now); !unread.IsZero() && (again.IsZero() || unread.Before(again)) {
			again = unread
		}
		timer.Stop()
		if !again.IsZero() {
			timer.Reset(again.Sub(now))
		}
	}
}

// waitFor waits for the end of operations, but not longer than closeTimeout.
func (m *Manager) waitFor(running *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { // ends with the last operation, or with the process
		running.Wait()
		close(ended)
	}()
	timer := m.cfg.Clock.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C():
		m.cfg.Logger.Warn("operations on volumes hang; syncloop ends without them, and the next one continues")
	}
}

// Want declares that a pod should run: its mounted volumes are set up, and those with changing content are updated. It
// does not block.
func (m *Manager) Want(ctx context.Context, p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[p.UID]
	if known == nil {
		known = &pod{volumes: map[key]*state{}}
		m.pods[p.UID] = known
	}
	known.intent = wanted
	m.specs[p.UID] = spec{pod: p, startedBy: trace.SpanContextFromContext(ctx)}
	inSpec := map[key]bool{}
	for _, v := range mounted(p) {
		plugin := m.pluginOf(v)
		if plugin == nil {
			continue // Supports has reported it
		}
		k := key{pod: p.UID, plugin: plugin.Name(), name: v.Name}
		if known.volumes[k] == nil {
			known.volumes[k] = &state{}
		}
		inSpec[k] = true
		known.volumes[k].block = isDevice(p, v.Name)
		if known.volumes[k].wantedSince.IsZero() {
			known.volumes[k].wantedSince = m.cfg.Clock.Now()
		}
		known.volumes[k].stale = known.volumes[k].stale || plugin.Refreshes()
	}
	for k, s := range known.volumes {
		s.inSpec = inSpec[k]
	}
	known.before = endings(known)
	m.signal()
}

// Refresh updates the volumes of a pod whose content can change, because their inputs have changed. It retries failed
// ones of every kind at once, because the change may solve the failure. It is a no-op for a pod that is not wanted.
func (m *Manager) Refresh(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[uid]
	if known == nil || known.intent != wanted {
		return
	}
	for k, s := range known.volumes {
		if plugin := m.plugin(k.plugin); plugin != nil && (plugin.Refreshes() || !s.ready) {
			s.stale, s.notBefore = true, time.Time{}
		}
	}
	m.signal()
}

// Retry retries at once the operations that wait for something, as WaitsFor of their errors says, because it has
// changed. An operation in progress that fails is retried at once, too. It returns the pods of these volumes.
func (m *Manager) Retry(changed func(waitsFor string) bool) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var pods []types.UID
	for uid, p := range m.pods {
		found := false
		for k, s := range p.volumes {
			if _, ok := m.plugin(k.plugin).(Claimed); !ok || s.wants(p.intent) == none {
				continue
			}
			if s.running != none || s.err != nil && changed(waitsFor(s.err)) {
				s.stale, s.notBefore, found = true, time.Time{}, true
			}
		}
		if found {
			pods = append(pods, uid)
		}
	}
	m.signal()
	return pods
}

// add adds volumes that were found on disk. The caller holds mu, or is New.
func (m *Manager) add(uid types.UID, found []key) {
	if len(found) == 0 {
		return
	}
	if m.pods[uid] == nil {
		m.pods[uid] = &pod{volumes: map[key]*state{}}
	}
	for _, k := range found {
		if m.isPlaceOfOther(uid, k) {
			continue
		}
		if m.pods[uid].volumes[k] == nil {
			m.pods[uid].volumes[k] = &state{}
		}
		m.pods[uid].volumes[k].exists = true
	}
}

// signal wakes Run.
func (m *Manager) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// begin records the operations that start now.
func (m *Manager) begin(now time.Time) (works []work, again time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	steps, again := decide(m.pods, now, m.cfg.Places)
	for _, s := range steps {
		if s.again {
			m.pods[s.key.pod].volumes[s.key].turn.grant(now)
			continue
		}
		w := work{step: s, plugin: m.plugin(s.key.plugin), spec: m.specs[s.key.pod]}
		state := m.pods[s.key.pod].volumes[s.key]
		w.again = s.op == settingUp && state.ready
		if !state.wantedSince.IsZero() {
			w.waited = now.Sub(state.wantedSince)
		}
		state.begin(s.op, now)
		works = append(works, w)
	}
	return works, again
}

// ended records the result of an operation, and drops volumes that are gone.
func (m *Manager) ended(k key, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[k.pod].volumes[k].end(err, m.cfg.Clock.Now())
	maps.DeleteFunc(m.pods[k.pod].volumes, func(found key, s *state) bool {
		return s.running == none && !s.inSpec && m.isPlaceOfOther(k.pod, found)
	})
	m.forget(k.pod)
	close(m.changed)
	m.changed = make(chan struct{})
	m.signal()
}

// forget drops what is not needed any more about a pod. The caller holds mu.
func (m *Manager) forget(uid types.UID) {
	p := m.pods[uid]
	if p == nil {
		return
	}
	maps.DeleteFunc(p.volumes, func(_ key, s *state) bool { return s.spent(p.intent) })
	if len(p.volumes) == 0 && p.intent != wanted {
		delete(m.pods, uid)
		delete(m.specs, uid)
	}
}

func (m *Manager) plugin(name string) Plugin {
	if i := slices.IndexFunc(m.cfg.Plugins, func(p Plugin) bool { return p.Name() == name }); i >= 0 {
		return m.cfg.Plugins[i]
	}
	return nil
}

func (m *Manager) pluginOf(v *v1.Volume) Plugin {
	if i := slices.IndexFunc(m.cfg.Plugins, func(p Plugin) bool { return p.CanSupport(v) }); i >= 0 {
		return m.cfg.Plugins[i]
	}
	return nil
}

// podDir returns the directory of a pod.
func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.cfg.PodsDir, string(uid)) }
