// Package deviceplugins serves the device plugins of the node, API version v1beta1: it registers them, follows their
// devices, and gives containers what package allocation decides. Plugins register on the kubelet's socket
// device-plugins/kubelet.sock, or with a socket in the folder of the plugin manager.
//
// A checkpoint has each allocation before the container of it is created. What a container has, it keeps: neither the
// end of a plugin nor a restart of this process takes a device away. A call that hangs delays its own pod only.
package deviceplugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/checkpoint"
)

const (
	// Folder is the kubelet's folder below the root directory, with the sockets of plugins and the checkpoint.
	Folder = "device-plugins"
	// folderMode is the kubelet's mode of the folder.
	folderMode = 0o750
	// stopGrace is the kubelet's time after which a resource without a plugin is removed from the node.
	stopGrace = 5 * time.Minute
	// maxResources bounds the number of resources, and maxPlugins that of connected plugins. A node has a few.
	maxResources, maxPlugins = 256, 256
)

// Config holds the parameters of a Manager. All fields are required, except as noted.
type Config struct {
	// Root is the kubelet's root directory.
	Root string
	// Nodes are the NUMA nodes of the machine; nil if nothing is aligned to them.
	Nodes []int
	// Changed is called when the amounts of a resource have changed. It must not block.
	Changed func()
	// PodChanged is called for a pod one of whose devices has another health. It must not block.
	PodChanged func(uid types.UID)
	// Clock is the clock.
	Clock clock.Clock
	// Metrics counts registrations and times allocations; nil counts nothing.
	Metrics *Metrics
	// Logger logs plugins and their problems; slog.Default if nil.
	Logger *slog.Logger
}

// Manager owns the devices of the node. Create it with New. Its methods are safe for concurrent use.
type Manager struct {
	cfg Config
	dir string

	mu   sync.Mutex
	book *allocation.Book
	// plugins are the connected plugins of each resource, the last connected one at the end: it gets the calls.
	plugins map[string][]*endpoint
	// lost is the time at which the last plugin of a resource has gone, and removed are the resources whose grace period
	// is over. Their capacity is 0, which tells them from resources that never were on the node.
	lost    map[string]time.Time
	removed map[string]bool
	// options are those of the plugin that got the calls last, for resources whose plugins have all gone.
	options map[string]*pluginapi.DevicePluginOptions
	// calls end the allocations under way of a pod that is released.
	calls map[types.UID]context.CancelFunc
	// rebuild is true without a usable checkpoint, until Recover was called; dirty asks Run to write the checkpoint.
	rebuild, dirty bool
	// started is the time of New.
	started time.Time
	// ctx is the context of Run, and group has its goroutines; ctx is nil before Run.
	ctx   context.Context //nolint:containedctx // it lives as long as Run
	group sync.WaitGroup

	// saving serializes writes of the checkpoint, and guards written, its last content; nil if it is not known.
	saving  sync.Mutex
	written *checkpoint.Content
	// wake has capacity one, because one look at the grace periods covers every change.
	wake chan struct{}
}

// New returns a manager with the allocations of the checkpoint. It removes the sockets in the folder, as the kubelet
// does: their plugins register again when they see that. A damaged checkpoint is set aside and logged.
func New(cfg Config) (*Manager, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	m := &Manager{
		cfg: cfg, dir: filepath.Join(cfg.Root, Folder), book: allocation.New(), plugins: map[string][]*endpoint{},
		lost: map[string]time.Time{}, removed: map[string]bool{}, calls: map[types.UID]context.CancelFunc{},
		options: map[string]*pluginapi.DevicePluginOptions{}, wake: make(chan struct{}, 1), started: cfg.Clock.Now(),
	}
	if err := os.MkdirAll(m.dir, folderMode); err != nil {
		return nil, fmt.Errorf("make the folder of device plugins: %w", err)
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	// A node whose disk keeps the sockets still runs pods, because few of them need a device.
	if err := statedir.Inform(m.removeSockets); err != nil {
		cfg.Logger.Warn("the sockets in the folder of device plugins cannot be removed; fix the cause and restart syncloop",
			telemetry.KeyFile, m.dir, telemetry.KeyError, err)
	}
	return m, nil
}

// removeSockets removes the sockets of an earlier process and its plugins.
func (m *Manager) removeSockets() error {
	entries, err := os.ReadDir(m.dir)
	var errs []error
	for _, entry := range entries {
		if entry.Type() == os.ModeSocket {
			errs = append(errs, os.Remove(filepath.Join(m.dir, entry.Name())))
		}
	}
	return errors.Join(append(errs, err)...)
}

// Run serves registrations and follows plugins until ctx ends, whose error it returns. Containers keep their devices.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.group.Wait()
	defer func() { // with the lock, so that a plugin that is being added is in the group before it is waited for
		m.mu.Lock()
		cancel()
		m.mu.Unlock()
	}()
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	m.group.Go(func() {
		// A node without the socket still runs pods, because few of them need a device.
		if err := m.serve(ctx); err != nil {
			m.cfg.Logger.Warn("device plugins cannot register on their socket; fix the cause and restart syncloop",
				telemetry.KeyFile, m.socket(), telemetry.KeyError, err)
		}
	})
	timer := m.cfg.Clock.NewTimer(m.expire())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
		case <-m.wake:
			m.saveIfDirty()
		}
		timer.Stop()
		timer.Reset(m.expire())
	}
}

// expire removes the resources whose grace period is over, and returns the time until the next one is.
func (m *Manager) expire() time.Duration {
	next, expired := stopGrace, []string(nil)
	m.mu.Lock()
	for name, since := range m.lost {
		left := stopGrace - m.cfg.Clock.Since(since)
		if left >= 0 { // the kubelet waits for more than the grace period
			next = min(next, left+time.Millisecond)
			continue
		}
		expired = append(expired, name)
		delete(m.lost, name)
		delete(m.options, name)
		m.book.Remove(name)
		m.removed[name] = true
	}
	m.mu.Unlock()
	if len(expired) == 0 {
		return next
	}
	m.cfg.Logger.Info("removed the resources of device plugins that have not come back", keyResources, expired,
		"grace_period", stopGrace)
	m.cfg.Changed()
	m.saveOrWarn()
	return next
}

// Amounts returns the capacity and the allocatable amount of each resource. Both are 0 for a resource that was removed.
func (m *Manager) Amounts() map[string]allocation.Amounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.book.Amounts()
	for name := range m.removed {
		if _, again := all[name]; !again {
			all[name] = allocation.Amounts{}
		}
	}
	return all
}

// Usable returns the healthy devices of each resource.
func (m *Manager) Usable() map[string][]allocation.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Usable()
}

// Held returns the devices of a container by resource, with their last reported health.
func (m *Manager) Held(pod types.UID, container string) map[string][]allocation.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Health(allocation.Container{Pod: pod, Name: container})
}

// Pods returns the pods that have devices.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Pods()
}

// report records the devices of a plugin.
func (m *Manager) report(e *endpoint, reported []*pluginapi.Device) {
	devices := make([]allocation.Device, 0, len(reported))
	healthy := 0
	for _, d := range reported {
		device := allocation.Device{ID: d.GetID(), Healthy: d.GetHealth() == pluginapi.Healthy}
		for _, node := range d.GetTopology().GetNodes() {
			device.NUMANodes = append(device.NUMANodes, node.GetID())
		}
		if device.Healthy {
			healthy++
		}
		devices = append(devices, device)
	}
	m.mu.Lock()
	if e.ended {
		m.mu.Unlock()
		return
	}
	changed := m.book.Update(e.resource, devices)
	delete(m.lost, e.resource)
	delete(m.removed, e.resource)
	m.mu.Unlock()
	m.cfg.Logger.Debug("a device plugin has reported its devices", keyResource, e.resource, "devices", len(devices),
		"healthy", healthy)
	m.cfg.Changed()
	for _, uid := range changed {
		m.cfg.PodChanged(uid)
	}
	m.saveOrWarn()
}

func (m *Manager) saveIfDirty() {
	m.mu.Lock()
	dirty := m.dirty
	m.dirty = false
	m.mu.Unlock()
	if dirty {
		m.saveOrWarn()
	}
}

// look makes Run look at the grace periods.
func (m *Manager) look() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
