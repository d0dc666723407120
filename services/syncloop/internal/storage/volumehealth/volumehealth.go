// Package volumehealth asks CSI drivers periodically for the health of the volumes of pods, which package podstatus
// writes into the status of the pods, and for the health of their storage, which nodestatus writes into the CSINode.
package volumehealth

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// defaultPeriod is the kubelet's period if volumeStatsAggPeriod is not positive.
const defaultPeriod = time.Minute

// Config holds the parameters of Run. All fields are required.
type Config struct {
	// Period is the time between two questions about a volume: volumeStatsAggPeriod, as in the kubelet.
	Period time.Duration
	// Pods returns the pods whose volumes are in use.
	Pods func() ([]*v1.Pod, error)
	// Driver returns the CSI driver of a volume; empty for a volume without one: (*volumes.Manager).Driver.
	Driver func(pod *v1.Pod, v *v1.Volume) string
	// Health asks the driver: (*volumes.Manager).Health. It may hang until its context ends.
	Health func(ctx context.Context, pod *v1.Pod, v *v1.Volume) ([]v1.VolumeHealthCondition, error)
	// Changed is called when the result of Of has changed.
	Changed func(pod types.UID)
	// Drivers returns the names of the registered drivers.
	Drivers func() []string
	// Storage asks a driver for the health of its storage: (*csi.Plugin).StorageHealth. It may hang until ctx ends.
	Storage func(ctx context.Context, driver string) ([]storagev1.StorageHealthCondition, error)
	// StorageChanged is called when the result of Storage has changed. It must not block.
	StorageChanged func()
	Clock          clock.Clock
	Logger         *slog.Logger
}

// Monitor has the last answers of the drivers. Create it with New. Its methods are safe for concurrent use.
type Monitor struct {
	mu sync.Mutex
	// known has the conditions by pod and volume. A volume without conditions is healthy.
	known map[types.UID]map[string][]v1.VolumeHealthCondition
	// storage has the conditions of the drivers' storage. One without conditions is healthy.
	storage map[string][]storagev1.StorageHealthCondition
	// busy has the drivers that have not answered all questions of an earlier round.
	busy map[string]bool
}

// New returns a Monitor that knows nothing until Run.
func New() *Monitor {
	return &Monitor{
		known: map[types.UID]map[string][]v1.VolumeHealthCondition{}, busy: map[string]bool{},
		storage: map[string][]storagev1.StorageHealthCondition{},
	}
}

// Of returns the conditions of the volumes of a pod whose drivers have answered, by the names in the pod's spec. The
// conditions must not be changed.
func (m *Monitor) Of(pod types.UID) map[string][]v1.VolumeHealthCondition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.known[pod])
}

// Storage returns the conditions of the storage of the drivers that have answered, by their names. The conditions must
// not be changed.
func (m *Monitor) Storage() map[string][]storagev1.StorageHealthCondition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.storage)
}

// question is a volume that its driver is asked about.
type question struct {
	pod    *v1.Pod
	volume *v1.Volume
}

// Run asks all drivers in each period until ctx ends, whose error it returns. A driver is asked about one volume at a
// time, and one that hangs delays no other.
func (m *Monitor) Run(ctx context.Context, cfg Config) error {
	if cfg.Period <= 0 {
		cfg.Period = defaultPeriod
	}
	var running sync.WaitGroup
	defer running.Wait()
	timer := cfg.Clock.NewTimer(cfg.Period)
	defer timer.Stop()
	for {
		for driver, questions := range m.begin(cfg) {
			running.Go(func() { m.ask(ctx, cfg, driver, questions) })
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
			timer.Reset(cfg.Period)
		}
	}
}

// begin forgets pods and drivers that are gone, and returns the questions about volumes for each driver that is not
// busy.
func (m *Monitor) begin(cfg Config) map[string][]question {
	pods, err := cfg.Pods()
	if err != nil { // they are not known yet
		return nil
	}
	questions, there := map[string][]question{}, map[types.UID]bool{}
	drivers := cfg.Drivers()
	for _, driver := range drivers {
		questions[driver] = nil
	}
	for _, pod := range pods {
		there[pod.UID] = true
		for i := range pod.Spec.Volumes {
			if driver := cfg.Driver(pod, &pod.Spec.Volumes[i]); driver != "" {
				questions[driver] = append(questions[driver], question{pod, &pod.Spec.Volumes[i]})
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.known, func(pod types.UID, _ map[string][]v1.VolumeHealthCondition) bool { return !there[pod] })
	maps.DeleteFunc(m.storage, func(driver string, _ []storagev1.StorageHealthCondition) bool {
		return !slices.Contains(drivers, driver)
	})
	maps.DeleteFunc(questions, func(driver string, _ []question) bool { return m.busy[driver] })
	for driver := range questions {
		m.busy[driver] = true
	}
	return questions
}

// ask asks a driver about its storage and its volumes. As in the kubelet, the last answer stays after a failure.
func (m *Monitor) ask(ctx context.Context, cfg Config, driver string, questions []question) {
	conditions, err := cfg.Storage(ctx, driver)
	if err == nil {
		m.noteStorage(cfg, driver, conditions)
	} else if !errors.Is(err, volumes.ErrNotExamined) && ctx.Err() == nil {
		cfg.Logger.DebugContext(ctx, "the health of a driver's storage is not known", telemetry.KeyDriver, driver,
			telemetry.KeyError, err)
	}
	for _, q := range questions {
		conditions, err := cfg.Health(ctx, q.pod, q.volume)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			m.note(cfg, q, conditions)
		} else if !errors.Is(err, volumes.ErrNotExamined) && !errors.Is(err, fs.ErrNotExist) {
			cfg.Logger.DebugContext(ctx, "the health of a volume is not known", telemetry.KeyDriver, driver,
				telemetry.KeyPod, q.pod.Namespace+"/"+q.pod.Name, telemetry.KeyVolume, q.volume.Name, telemetry.KeyError, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.busy, driver)
}

// note records the answer of a driver.
func (m *Monitor) note(cfg Config, q question, conditions []v1.VolumeHealthCondition) {
	m.mu.Lock()
	before, answered := m.known[q.pod.UID][q.volume.Name]
	same := answered && equality.Semantic.DeepEqual(before, conditions)
	if !same {
		if m.known[q.pod.UID] == nil {
			m.known[q.pod.UID] = map[string][]v1.VolumeHealthCondition{}
		}
		m.known[q.pod.UID][q.volume.Name] = slices.Clone(conditions)
	}
	m.mu.Unlock()
	if !same {
		cfg.Changed(q.pod.UID)
	}
}

// noteStorage records the answer of a driver about its storage.
func (m *Monitor) noteStorage(cfg Config, driver string, conditions []storagev1.StorageHealthCondition) {
	m.mu.Lock()
	before, answered := m.storage[driver]
	same := answered && equality.Semantic.DeepEqual(before, conditions)
	if !same {
		m.storage[driver] = conditions
	}
	m.mu.Unlock()
	if !same {
		cfg.StorageChanged()
	}
}
