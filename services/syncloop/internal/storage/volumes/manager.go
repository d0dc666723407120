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
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
)

// closeTimeout is how long the end of the process waits for operations that run. What hangs in the kernel is left to it.
const closeTimeout = 2 * time.Second

// Events is told what is wrong with the volumes of pods; *podevents.Recorder keeps it.
type Events interface {
	// Warning tells something of a pod as a whole when container is empty: a reason in one word, and a sentence.
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// untold is Events for nobody to read.
type untold struct{}

// Warning implements Events.
func (untold) Warning(context.Context, *v1.Pod, string, string, string) {}

// Config is what a Manager needs.
type Config struct {
	// PodsDir holds the folders of pods, by UID. Required.
	PodsDir string
	// Plugins are the kinds of volumes that there are. The first that supports a volume has it.
	Plugins []Plugin
	// SubPaths mounts what is below a path of a volume; nil is subpath.Machine.
	SubPaths subpath.Mounter
	// Clock is the time. Required.
	Clock clock.Clock
	// Events is told what cannot be done; nil is for nobody to read.
	Events Events
	// Metrics counts and times what is done; nil counts nothing.
	Metrics *Metrics
	// Tracer makes a span of each operation; nil traces nothing.
	Tracer trace.Tracer
	// Logger is where failures are told; nil is slog.Default.
	Logger *slog.Logger
	// Places is how many operations are done side by side, those that hang left out; 0 takes four for each processor.
	Places int
}

// Manager has the volumes of all pods. Make it with New. Nothing is done to any volume before and after Run; its methods may be
// called from any goroutine.
type Manager struct {
	cfg      Config
	subPaths subpath.Mounts

	// wake has room for one signal: who wakes looks at everything.
	wake chan struct{}

	mu   sync.Mutex
	pods map[types.UID]*pod
	// specs has the pods that want their volumes, as they were last given, with the span that they were given in.
	specs map[types.UID]spec
	// changed is closed, and made anew, when an operation has ended.
	changed chan struct{}
}

// spec is a pod that wants its volumes.
type spec struct {
	pod *v1.Pod
	in  trace.SpanContext
}

// New makes a manager that knows of the volumes which an earlier process has left below Config.PodsDir. It changes nothing of them.
func New(cfg Config) (*Manager, error) {
	if cfg.Events == nil {
		cfg.Events = untold{}
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
	// The mount table has the paths that links lead to.
	err := os.MkdirAll(cfg.PodsDir, volumesDirMode)
	if err == nil {
		cfg.PodsDir, err = filepath.EvalSymlinks(cfg.PodsDir)
	}
	if err != nil {
		return nil, fmt.Errorf("the folder of the pods: %w", err)
	}
	m := &Manager{
		cfg: cfg, subPaths: subpath.Mounts{Mounter: cfg.SubPaths}, wake: make(chan struct{}, 1), pods: map[types.UID]*pod{}, specs: map[types.UID]spec{},
		changed: make(chan struct{}),
	}
	uids, err := folders(cfg.PodsDir)
	if err != nil {
		return nil, err
	}
	for _, uid := range uids {
		found, err := m.onDisk(types.UID(uid))
		if err != nil { // it concerns that pod alone, and is said again when its volumes are to go
			cfg.Logger.Warn("the volumes that an earlier syncloop has left of a pod cannot be listed", telemetry.KeyPodUID, uid, telemetry.KeyError, err)
			continue
		}
		m.add(types.UID(uid), found)
	}
	cfg.Metrics.Expose(m.Count)
	return m, nil
}

// Run does what is to be done to volumes until ctx ends, and waits a little for what then runs. It returns the error of ctx.
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
		timer.Stop()
		if !again.IsZero() {
			timer.Reset(again.Sub(now))
		}
	}
}

// waitFor waits for operations to end, but for no longer than closeTimeout.
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
		m.cfg.Logger.Warn("operations on volumes do not end; they are left to the kernel, and looked at again by the next syncloop")
	}
}

// Want says that a pod is to run: the volumes that its containers mount are to be in place, and those whose content can get out of
// date to be brought up to date. It waits for nothing.
func (m *Manager) Want(ctx context.Context, p *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[p.UID]
	if known == nil {
		known = &pod{volumes: map[key]*state{}}
		m.pods[p.UID] = known
	}
	known.intent = wanted
	m.specs[p.UID] = spec{pod: p, in: trace.SpanContextFromContext(ctx)}
	in := map[key]bool{}
	for _, v := range mounted(p) {
		plugin := m.pluginOf(v)
		if plugin == nil {
			continue // Supports has said so
		}
		k := key{pod: p.UID, plugin: plugin.Name(), name: v.Name}
		if known.volumes[k] == nil {
			known.volumes[k] = &state{}
		}
		in[k] = true
		known.volumes[k].stale = known.volumes[k].stale || plugin.Refreshes()
	}
	for k, s := range known.volumes {
		s.in = in[k]
	}
	m.signal()
}

// Refresh has the volumes of a pod brought up to date whose content can get out of date, for what they are made from has changed. One
// that has failed is tried again at once, for it may have failed of just that. It does nothing for a pod that wants none.
func (m *Manager) Refresh(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[uid]
	if known == nil || known.intent != wanted {
		return
	}
	for k, s := range known.volumes {
		if plugin := m.plugin(k.plugin); plugin != nil && plugin.Refreshes() {
			s.stale, s.notBefore = true, time.Time{}
		}
	}
	m.signal()
}

// add takes in volumes that were found on the disk. Called with mu held, or before anybody else has the manager.
func (m *Manager) add(uid types.UID, found []key) {
	if len(found) == 0 {
		return
	}
	if m.pods[uid] == nil {
		m.pods[uid] = &pod{volumes: map[key]*state{}}
	}
	for _, k := range found {
		if m.pods[uid].volumes[k] == nil {
			m.pods[uid].volumes[k] = &state{}
		}
		m.pods[uid].volumes[k].there = true
	}
}

// signal has Run look at everything.
func (m *Manager) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// begin notes the operations that begin now.
func (m *Manager) begin(now time.Time) (works []work, again time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	steps, again := decide(m.pods, now, m.cfg.Places)
	for _, s := range steps {
		w := work{step: s, plugin: m.plugin(s.key.plugin), spec: m.specs[s.key.pod]}
		state := m.pods[s.key.pod].volumes[s.key]
		w.again = s.op == settingUp && state.ready
		state.begin(s.op, now)
		works = append(works, w)
	}
	return works, again
}

// ended notes what an operation has come to, and forgets what is gone.
func (m *Manager) ended(k key, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[k.pod].volumes[k].end(err, m.cfg.Clock.Now())
	m.forget(k.pod)
	close(m.changed)
	m.changed = make(chan struct{})
	m.signal()
}

// forget drops what needs not be known of a pod any more. Called with mu held.
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

// podDir is the folder of a pod.
func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.cfg.PodsDir, string(uid)) }

// dir is where a volume is on the disk.
func (m *Manager) dir(k key) string {
	return filepath.Join(m.podDir(k.pod), "volumes", k.plugin, k.name)
}

// said is a plugin's name as the kubelet says it to people: "kubernetes.io/empty-dir".
func said(plugin string) string { return strings.ReplaceAll(plugin, "~", "/") }
