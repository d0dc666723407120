// Package podcgroups gives each pod a cgroup of its own, below that of its QoS class, below that of all pods:
//
//	kubepods                 what the machine has less what is reserved
//	├── podUID               a guaranteed pod
//	├── burstable            weighed by what burstable pods ask for together
//	│   └── podUID
//	└── besteffort           the least weight there is
//	    └── podUID
//
// A pod's containers are put into its cgroup by the container runtime, which executor tells its name. So a pod as a
// whole has the weight and the limits of its spec, whatever its containers do, and the classes have theirs among each
// other.
//
// [Names] says what the cgroups are called and package resources what they are given: they are pure, and agree with the
// kubelet's. [Tree] keeps the tree, [Machine] acts on the machine, and reads what each of them uses.
package podcgroups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

const (
	// updatePeriod is how often the cgroups above the pods' are brought up to date: the kubelet's number.
	updatePeriod = time.Minute
	// firstPeriod is how often that is tried before it has gone well once with the Node known.
	firstPeriod = 5 * time.Second
	// nodeTimeout bounds the question for the Node.
	nodeTimeout = 5 * time.Second
	// waitingName is what the health calls the cgroups when they cannot be made.
	waitingName = "cgroups"
)

// Reasons of events, as the kubelet has them.
const (
	eventEnforced = "NodeAllocatableEnforced"
	eventFailed   = "FailedNodeAllocatableEnforcement"
)

// Events is told whether all pods together are held to what they may use; *podevents.Recorder keeps it.
type Events interface {
	// NodeNormal and NodeWarning tell something of the node: a reason in one word, and a sentence.
	NodeNormal(ctx context.Context, reason, message string)
	NodeWarning(ctx context.Context, reason, message string)
}

// noopEvents is an Events that discards events.
type noopEvents struct{}

// NodeNormal implements Events.
func (noopEvents) NodeNormal(context.Context, string, string) {}

// NodeWarning implements Events.
func (noopEvents) NodeWarning(context.Context, string, string) {}

// Cgroups makes and removes cgroups by their names; *Machine does.
type Cgroups interface {
	// Has tells whether a cgroup is there.
	Has(name string) bool
	// Set makes a cgroup and those above it unless they are there, and gives it resources.
	Set(name string, r resources.Resources) error
	// Limit gives resources to a cgroup that is there.
	Limit(name string, r resources.Resources) error
	// Usage reads what a cgroup uses, Given what it has been given of processors and memory.
	Usage(name string) (Usage, error)
	Given(name string) (resources.Resources, error)
	// Remove kills what runs in a cgroup and below it, and removes them. One that is not there is fine.
	Remove(ctx context.Context, name string) error
}

// Config is what a Tree needs.
type Config struct {
	// Cgroups are where the tree is. Required.
	Cgroups Cgroups
	// Names says what they are called, Limits how pods are limited.
	Names  Names
	Limits resources.Limits
	// Pods returns the pods that are to run, with their phases, or fails when it is not known yet which these are.
	// Required.
	Pods func() ([]*v1.Pod, error)
	// Node asks for the Node: its capacity is what the machine has. Required.
	Node func(context.Context) (*v1.Node, error)
	// PIDs is how many processes and threads the machine can have; 0 when that is not known. Nil never knows.
	PIDs func() int64
	// Reserved is what of the machine is not for pods; empty when pods may use it all the same.
	Reserved []v1.ResourceList
	// NotForPods is what of the machine is reserved, whether pods may use it or not.
	NotForPods []v1.ResourceList
	// Existing are the cgroups of daemons that are limited to what is reserved for these.
	Existing []Existing
	// MemoryPercent is how much of the memory that pods request is kept from pods of lower classes; 0 sets no limits of
	// classes.
	MemoryPercent int64
	// Waiting is told why the cgroups cannot be made, and nothing when they can: (*rpc.Health).Set. Nil tells nobody.
	Waiting func(what, why string)
	// Events is told when all pods together have their limits, and when those cannot be written; nobody is when nil.
	Events Events
	// Clock is the time. Required.
	Clock   clock.WithTicker
	Logger  *slog.Logger
	Metrics *Metrics
}

// Tree is the cgroups of a node's pods. Its methods may be called at any time by anyone, for one pod by one at a time.
type Tree struct {
	cfg Config

	// classes is held while the cgroups above the pods' are written: the sum that is written last has to be the newest.
	classes sync.Mutex
	// all is what all pods may use together, zero until the Node is known; guarded by classes.
	all resources.Resources
	// allocatable is how many bytes of memory all pods may use together, 0 until the Node is known; guarded by classes.
	allocatable int64

	// told is what was told of the cgroups of daemons, by name. It is Run's.
	told map[string]enforced

	mu sync.Mutex // guards what follows
	// given is what the cgroups were given that this process has made.
	given map[string]resources.Resources
}

// New returns a tree. It makes nothing yet.
func New(cfg Config) *Tree {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Waiting == nil {
		cfg.Waiting = func(string, string) {}
	}
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.PIDs == nil {
		cfg.PIDs = func() int64 { return 0 }
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Tree{cfg: cfg, given: map[string]resources.Resources{}, told: map[string]enforced{}}
}

// Ensure makes the cgroup of a pod that is about to start something, or brings it up to date, and returns its name. The
// error names the controller and the file. A pod does not have to wait for the cgroups above its own to have the right
// values: Run tries those again.
func (t *Tree) Ensure(ctx context.Context, pod *v1.Pod) (name string, err error) {
	name, err = t.cfg.Names.Pod(pod)
	if err != nil {
		return "", err
	}
	if all, classes := t.setClasses(); errors.Join(all, classes) != nil {
		t.cfg.Logger.WarnContext(ctx, "the cgroups of all pods and of their classes are not up to date, it is tried again", telemetry.KeyError, errors.Join(all, classes))
	}
	return name, t.set(name, resources.ForPod(pod, t.cfg.Limits))
}

// Remove removes a pod's cgroup, with all that still runs in it. A pod without one is fine.
func (t *Tree) Remove(ctx context.Context, uid types.UID) error {
	var errs []error
	for _, name := range t.cfg.Names.Places(uid) {
		t.mu.Lock()
		delete(t.given, name)
		t.mu.Unlock()
		begun, there := t.cfg.Clock.Now(), t.cfg.Cgroups.Has(name)
		errs = append(errs, t.cfg.Cgroups.Remove(ctx, name))
		if there {
			t.cfg.Metrics.done(operationDestroy, t.cfg.Clock.Since(begun))
		}
	}
	return errors.Join(errs...)
}

// Run keeps the cgroups above the pods' up to date until ctx ends. What it cannot do it says in the health and once in
// the log, and tries again.
func (t *Tree) Run(ctx context.Context) error {
	var said string
	var limits enforced
	period := firstPeriod
	for {
		known, all, classes := t.update(ctx)
		limits = t.tell(ctx, limits, known, all)
		err := errors.Join(all, classes, t.enforceReservations(ctx))
		why := ""
		if err != nil {
			why = err.Error()
		}
		t.cfg.Waiting(waitingName, why)
		if why != "" && why != said {
			t.cfg.Logger.ErrorContext(ctx, "the cgroups of the node cannot be kept: a pod whose cgroup cannot be made does not start; "+
				"to run pods without, set cgroupsPerQOS: false and enforceNodeAllocatable: [none]", telemetry.KeyError, err)
		}
		said = why
		if known && err == nil {
			period = updatePeriod
		}
		timer := t.cfg.Clock.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C():
		}
	}
}

// enforced is what was told of the limits of all pods together.
type enforced int

const (
	enforcedUntold enforced = iota
	enforcedYes
	enforcedNo
)

// tell tells whether all pods together have their limits, when that is not what was told before. It returns what is
// told now. Before the Node is known there are none.
func (t *Tree) tell(ctx context.Context, before enforced, known bool, err error) enforced {
	switch {
	case err != nil && before != enforcedNo:
		t.cfg.Events.NodeWarning(ctx, eventFailed, fmt.Sprintf("Failed to update Node Allocatable Limits %q: %v", t.cfg.Names.Pods(), err))
		return enforcedNo
	case err == nil && known && before != enforcedYes:
		t.cfg.Events.NodeNormal(ctx, eventEnforced, "Updated Node Allocatable limit across pods")
		return enforcedYes
	}
	return before
}

// update asks what the machine has, and writes the cgroups above the pods'. It returns whether the Node is known, and
// why the cgroup of all pods and those of the classes could not be written.
func (t *Tree) update(ctx context.Context) (known bool, all, classes error) {
	asked, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	if node, err := t.cfg.Node(asked); err == nil {
		known = true
		capacity := node.Status.Capacity.DeepCopy()
		if pids := t.cfg.PIDs(); pids > 0 && capacity != nil {
			capacity[resources.ResourcePIDs] = *resource.NewQuantity(pids, resource.DecimalSI)
		}
		t.classes.Lock()
		t.all = resources.ForAllPods(capacity, t.cfg.Reserved...)
		t.allocatable = resources.ForAllPods(capacity, t.cfg.NotForPods...).Memory
		t.classes.Unlock()
	}
	all, classes = t.setClasses()
	return known, all, classes
}

// setClasses writes the cgroup of all pods and those of the classes. It returns what of the one and of the others could
// not be.
func (t *Tree) setClasses() (all, classes error) {
	t.classes.Lock() // over writes to files of the kernel's, see there
	defer t.classes.Unlock()
	burstable, bestEffort := resources.Resources{}, resources.Resources{CPUShares: resources.MinShares}
	if pods, err := t.cfg.Pods(); err == nil {
		burstable.CPUShares = resources.BurstableShares(pods)
		if t.cfg.MemoryPercent > 0 && t.allocatable > 0 {
			burstable.Memory, bestEffort.Memory = resources.MemoryLimits(t.allocatable, t.cfg.MemoryPercent, pods)
		}
	}
	return t.set(t.cfg.Names.Pods(), t.all), errors.Join(t.setClass(v1.PodQOSBurstable, burstable), t.setClass(v1.PodQOSBestEffort, bestEffort))
}

// set gives a cgroup resources, unless it has them from this process.
func (t *Tree) set(name string, r resources.Resources) error {
	t.mu.Lock()
	last, known := t.given[name]
	t.mu.Unlock()
	there := t.cfg.Cgroups.Has(name)
	if known && there && reflect.DeepEqual(last, r) {
		return nil
	}
	operation := operationCreate
	if there {
		operation = operationUpdate
	}
	begun := t.cfg.Clock.Now()
	err := t.cfg.Cgroups.Set(name, r)
	t.cfg.Metrics.done(operation, t.cfg.Clock.Since(begun))
	if err != nil {
		return fmt.Errorf("cgroupsPerQOS: %w", err)
	}
	t.mu.Lock()
	t.given[name] = r
	t.mu.Unlock()
	return nil
}
