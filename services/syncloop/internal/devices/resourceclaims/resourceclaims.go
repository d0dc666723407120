// Package resourceclaims prepares the resource claims of pods (DRA): it registers the DRA drivers of the node, API
// versions v1 and v1beta1, and asks them to prepare a claim before its first pod is started and to unprepare it after
// its last pod has ended. Package claimbook decides who must be asked.
//
// A checkpoint has each claim before a driver is asked for it, and until the driver has unprepared it. A kill of this
// process at any time therefore loses no claim: a call that may not have been answered is repeated. Calls about one
// claim never overlap. A driver that hangs delays only the pods that use its claims.
package resourceclaims

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimcheckpoint"
)

// keyDriver is the key of a driver in the log.
const keyDriver = "driver"

// errNotRecovered is the error of a write before Recover. The checkpoint would lack the claims of running pods.
var errNotRecovered = errors.New("it is not known yet which resource claims the pods in the runtime use")

// API is what the API server has of resource claims.
type API interface {
	// Claim returns a claim.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// SliceDrivers returns the drivers that have published devices of this node.
	SliceDrivers(ctx context.Context) ([]string, error)
	// DeleteSlices deletes the devices of this node that a driver has published; those of all drivers if it is empty.
	DeleteSlices(ctx context.Context, driver string) error
}

// Config holds the parameters of a Manager. All fields are required, except as noted.
type Config struct {
	// Root is the kubelet's root directory.
	Root string
	// API is the API server.
	API API
	// Boot identifies the boot of the machine. BootFile is the path of a file that keeps it for the next process.
	Boot, BootFile string
	// PodChanged is called for a pod that should try again, and for one of whose devices the health has changed. It must
	// not block.
	PodChanged func(uid types.UID)
	// Health is true if drivers are asked for the health of devices, and Messages if pods get the messages with it.
	Health, Messages bool
	// Clock is the clock.
	Clock clock.Clock
	// Metrics times calls; nil measures nothing.
	Metrics *Metrics
	// Logger logs drivers and their problems; slog.Default if nil.
	Logger *slog.Logger
}

// Manager owns the claims of the node's pods. Create it with New. Its methods are safe for concurrent use.
type Manager struct {
	cfg Config
	// locks serialize the calls about a claim.
	locks locks

	mu   sync.Mutex
	book *claimbook.Book
	// drivers are the registered plugins of each driver, the last registered one at the end.
	drivers map[string][]*driver
	// waiting are the pods that wait for a driver to be registered, by driver.
	waiting map[string]map[types.UID]bool
	// wipes are the removals of published devices that are due, by driver.
	wipes map[string]wipe
	// cleared is true once this process has removed the devices of all drivers.
	cleared atomic.Bool
	// health has the health of devices, as each plugin has reported it.
	health map[*driver]map[deviceKey]deviceHealth
	// rebuild is true without a usable checkpoint, until Recover was called; dirty asks Run to write the checkpoint.
	rebuild, dirty bool
	// ctx is the context of Run, and group has its goroutines; ctx is nil before Run.
	ctx   context.Context //nolint:containedctx // it lives as long as Run
	group sync.WaitGroup

	// saving serializes writes of the checkpoint.
	saving sync.Mutex
	// wake has capacity one, because one look covers every change.
	wake chan struct{}
}

// New returns a manager with the claims of the checkpoint. A damaged checkpoint is set aside and logged. Without one,
// the claims are read from the sandboxes of pods later. A process that was killed before it had written what it read
// from them has left none.
func New(cfg Config) (*Manager, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	m := &Manager{
		cfg: cfg, locks: locks{held: map[types.NamespacedName]*lock{}}, book: claimbook.New(),
		drivers: map[string][]*driver{}, waiting: map[string]map[types.UID]bool{}, wipes: map[string]wipe{},
		health: map[*driver]map[deviceKey]deviceHealth{}, wake: make(chan struct{}, 1),
	}
	entries, err := claimcheckpoint.Read(cfg.Root)
	damaged := (*statedir.DamagedError)(nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		m.rebuild = true
	case errors.As(err, &damaged):
		cfg.Logger.Error("the resource claims of running pods are read from their sandboxes, because the checkpoint is damaged",
			telemetry.KeyFile, damaged.Path, "set_aside", damaged.Aside, telemetry.KeyError, damaged)
		m.rebuild = true
	case err != nil:
		return nil, err
	}
	for _, entry := range entries {
		m.book.Load(entry)
	}
	cfg.Metrics.expose(m.inUse)
	return m, nil
}

// Run follows the drivers, and removes the published devices of those that have left, until ctx ends, whose error it
// returns. Pods keep their claims.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.group.Wait()
	defer cancel()
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	m.begin()
	timer := m.cfg.Clock.NewTimer(m.wipe(ctx))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
		case <-m.wake:
			m.saveIfDirty()
		}
		next := m.wipe(ctx)
		timer.Stop()
		timer.Reset(next)
	}
}

// Pods returns the pods that use claims.
func (m *Manager) Pods() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Pods()
}

// Uses reports whether a pod uses a claim that is not unprepared yet.
func (m *Manager) Uses(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.book.Of(pod)) > 0
}

func (m *Manager) inUse() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.InUse()
}

// save writes the checkpoint. It fails before Recover.
func (m *Manager) save() error {
	m.saving.Lock() // the writes must be in the order of the snapshots
	defer m.saving.Unlock()
	m.mu.Lock()
	entries, rebuild := m.book.All(), m.rebuild
	m.mu.Unlock()
	if rebuild {
		return errNotRecovered
	}
	return claimcheckpoint.Write(m.cfg.Root, entries)
}

func (m *Manager) saveIfDirty() {
	m.mu.Lock()
	dirty := m.dirty
	m.dirty = false
	m.mu.Unlock()
	if !dirty {
		return
	}
	if err := m.save(); err != nil {
		m.cfg.Logger.Warn("cannot write the checkpoint of resource claims: check the disk of the root directory",
			telemetry.KeyError, err)
	}
}

// look makes Run look at what is due.
func (m *Manager) look() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// timed measures an operation for a pod, which has the kubelet's name.
func (m *Manager) timed(operation string) func(*error) {
	begun := m.cfg.Clock.Now()
	return func(err *error) { m.cfg.Metrics.operated(operation, *err != nil, m.cfg.Clock.Since(begun)) }
}

// within returns a context with the kubelet's limit for a call of a driver.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	const callTimeout = 45 * time.Second
	return context.WithTimeout(ctx, callTimeout)
}
