// Package podcgroups keeps a cgroup for each pod, below the cgroup of its QoS class, below the cgroup of all pods:
//
//	kubepods                 the machine's resources without the reserved ones
//	├── podUID               a guaranteed pod
//	├── burstable            the weight is the sum of the burstable pods' requests
//	│   └── podUID
//	└── besteffort           the lowest weight
//	    └── podUID
//
// The container runtime puts a pod's containers into its cgroup, whose name executor passes to it. So a pod as a whole
// has the weight and the limits of its spec, whatever its containers do, and the classes are weighted against each
// other.
//
// [Names] returns the names of the cgroups, and package resources their values: both are pure, and agree with the
// kubelet's. [Tree] maintains the tree. [Machine] changes the cgroups of the machine, and reads their usage.
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
	// updatePeriod is the time between two updates of the cgroups above the pods'. It is the kubelet's.
	updatePeriod = time.Minute
	// firstPeriod is that time until the first successful update with a known Node.
	firstPeriod = 5 * time.Second
	// nodeTimeout is the time limit of a request for the Node.
	nodeTimeout = 5 * time.Second
	// waitingName is the name of the cgroups in the health status when they cannot be created.
	waitingName = "cgroups"
)

// Reasons of events, as in the kubelet.
const (
	eventEnforced = "NodeAllocatableEnforced"
	eventFailed   = "FailedNodeAllocatableEnforcement"
)

// Events records events about the limits of all pods; *podevents.Recorder implements it.
type Events interface {
	// NodeNormal and NodeWarning record an event of the node. The reason is one word, the message a sentence.
	NodeNormal(ctx context.Context, reason, message string)
	NodeWarning(ctx context.Context, reason, message string)
}

// noopEvents is an Events that discards events.
type noopEvents struct{}

// NodeNormal implements Events.
func (noopEvents) NodeNormal(context.Context, string, string) {}

// NodeWarning implements Events.
func (noopEvents) NodeWarning(context.Context, string, string) {}

// Cgroups creates and removes cgroups by their names; *Machine implements it.
type Cgroups interface {
	// Has reports whether a cgroup exists.
	Has(name string) bool
	// Set creates a cgroup and its parents if they do not exist, and sets its resources.
	Set(name string, r resources.Resources) error
	// Limit sets resources of an existing cgroup.
	Limit(name string, r resources.Resources) error
	// Usage reads the usage of a cgroup, Given its cpu and memory limits.
	Usage(name string) (Usage, error)
	Given(name string) (resources.Resources, error)
	// Remove kills the processes in a cgroup and below it, and removes them. It succeeds if the cgroup does not exist.
	Remove(ctx context.Context, name string) error
}

// Config holds the dependencies and settings of a Tree.
type Config struct {
	// Cgroups manages the cgroups of the machine. Required.
	Cgroups Cgroups
	// Names returns the names of the cgroups, Limits decides how pods are limited.
	Names  Names
	Limits resources.Limits
	// HasCPUs reports whether a container of a pod has CPUs for itself. Then no quota limits the pod. Nil is never.
	HasCPUs func(pod *v1.Pod) bool
	// Pods returns the pods that are to run, with their phases, or an error while they are not known. Required.
	Pods func() ([]*v1.Pod, error)
	// Node returns the Node, whose capacity is the machine's. Required.
	Node func(context.Context) (*v1.Node, error)
	// PIDs returns how many processes and threads the machine can have; 0 if that is not known. Nil returns 0.
	PIDs func() int64
	// Reserved is what pods may not use of the machine; empty if pods may use the reserved resources, too.
	Reserved []v1.ResourceList
	// NotForPods is what is reserved on the machine, even if pods may use it.
	NotForPods []v1.ResourceList
	// Existing lists the cgroups of daemons that are limited to their reservation.
	Existing []Existing
	// MemoryPercent is the share of the memory requests of pods that pods of lower classes cannot use, in percent; 0 sets
	// no limits for classes.
	MemoryPercent int64
	// Waiting receives the reason why the cgroups cannot be created, or an empty text if they can: (*rpc.Health).Set. Nil
	// is a no-op.
	Waiting func(part, reason string)
	// Events records when the limits of all pods are set, and when they cannot be set; nil discards the events.
	Events Events
	// Clock is the time. Required.
	Clock   clock.WithTicker
	Logger  *slog.Logger
	Metrics *Metrics
}

// Tree maintains the cgroups of a node's pods. Its methods may be called from any goroutine, but for one pod from one
// goroutine at a time.
type Tree struct {
	cfg Config

	// classes is held while the cgroups above the pods' are written, so that the newest sum is written last.
	classes sync.Mutex
	// all is the resources of all pods, zero until the Node is known; guarded by classes.
	all resources.Resources
	// allocatable is the memory in bytes that all pods may use, 0 until the Node is known; guarded by classes.
	allocatable int64

	// reported holds the last events about the cgroups of daemons, by name. Only Run uses it.
	reported map[string]enforced

	mu sync.Mutex // guards the following fields
	// given holds the resources that this process has set, by cgroup.
	given map[string]resources.Resources
}

// New returns a tree. It creates no cgroup.
func New(cfg Config) *Tree {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Waiting == nil {
		cfg.Waiting = func(string, string) {}
	}
	if cfg.HasCPUs == nil {
		cfg.HasCPUs = func(*v1.Pod) bool { return false }
	}
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.PIDs == nil {
		cfg.PIDs = func() int64 { return 0 }
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Tree{cfg: cfg, given: map[string]resources.Resources{}, reported: map[string]enforced{}}
}

// Ensure creates or updates the cgroup of a pod that is about to start a container, and returns its name. The error
// names the controller and the file. If the cgroups above the pod's cannot be updated, Ensure only logs it: Run retries
// them.
func (t *Tree) Ensure(ctx context.Context, pod *v1.Pod) (name string, err error) {
	name, err = t.cfg.Names.Pod(pod)
	if err != nil {
		return "", err
	}
	if all, classes := t.setClasses(); errors.Join(all, classes) != nil {
		t.cfg.Logger.WarnContext(ctx, "cannot update the cgroups above the pods'; retrying", telemetry.KeyError, errors.Join(all, classes))
	}
	return name, t.set(name, t.limits(pod))
}

// limits returns the limits of a pod's cgroup. As in the kubelet, there is no quota on CPUs that a container has for
// itself.
func (t *Tree) limits(pod *v1.Pod) resources.Resources {
	limits := t.cfg.Limits
	limits.CPUQuota = limits.CPUQuota && !t.cfg.HasCPUs(pod)
	return resources.ForPod(pod, limits)
}

// Remove removes a pod's cgroup and kills the processes in it. It succeeds if the pod has none.
func (t *Tree) Remove(ctx context.Context, uid types.UID) error {
	var errs []error
	for _, name := range t.cfg.Names.Places(uid) {
		t.mu.Lock()
		delete(t.given, name)
		t.mu.Unlock()
		begun, exists := t.cfg.Clock.Now(), t.cfg.Cgroups.Has(name)
		errs = append(errs, t.cfg.Cgroups.Remove(ctx, name))
		if exists {
			t.cfg.Metrics.done(operationDestroy, t.cfg.Clock.Since(begun))
		}
	}
	return errors.Join(errs...)
}

// Run keeps the cgroups above the pods' up to date until ctx ends. It retries failures and reports them in the health
// status, and each new one in the log.
func (t *Tree) Run(ctx context.Context) error {
	var logged string
	var limits enforced
	period := firstPeriod
	for {
		known, all, classes := t.update(ctx)
		limits = t.report(ctx, limits, known, all)
		err := errors.Join(all, classes, t.enforceReservations(ctx))
		reason := ""
		if err != nil {
			reason = err.Error()
		}
		t.cfg.Waiting(waitingName, reason)
		if reason != "" && reason != logged {
			t.cfg.Logger.ErrorContext(ctx, "cannot update the cgroups of the node: pods whose cgroup cannot be created do not start; "+
				"to run pods without cgroups of their own, set cgroupsPerQOS: false and enforceNodeAllocatable: [none]", telemetry.KeyError, err)
		}
		logged = reason
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

// enforced is the last event about a limit.
type enforced int

const (
	enforcedUnknown enforced = iota
	enforcedYes
	enforcedNo
)

// report records an event if the limits of all pods change between set and not set. It returns the last event. Before
// the Node is known, the limits do not exist.
func (t *Tree) report(ctx context.Context, before enforced, known bool, err error) enforced {
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

// update reads the Node and writes the cgroups above the pods'. It returns whether the Node is known, and the errors of
// the cgroup of all pods and of those of the classes.
func (t *Tree) update(ctx context.Context) (known bool, all, classes error) {
	nodeCtx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	if node, err := t.cfg.Node(nodeCtx); err == nil {
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

// setClasses writes the cgroup of all pods and those of the classes. It returns the error of the former and the errors
// of the latter.
func (t *Tree) setClasses() (all, classes error) {
	t.classes.Lock() // held over writes to kernel files, see classes
	defer t.classes.Unlock()
	whole, burstable, bestEffort := t.all, resources.Resources{}, resources.Resources{CPUShares: resources.MinShares}
	pods, err := t.cfg.Pods()
	whole.Unified, burstable.Unified = t.protect(pods, err == nil)
	if err == nil {
		burstable.CPUShares = resources.BurstableShares(pods)
		if t.cfg.MemoryPercent > 0 && t.allocatable > 0 {
			burstable.Memory, bestEffort.Memory = resources.MemoryLimits(t.allocatable, t.cfg.MemoryPercent, pods)
		}
	}
	all = t.set(t.cfg.Names.Pods(), whole)
	classes = errors.Join(t.setClass(v1.PodQOSBurstable, burstable), t.setClass(v1.PodQOSBestEffort, bestEffort))
	return all, classes
}

// set sets the resources of a cgroup unless this process has set them already.
func (t *Tree) set(name string, r resources.Resources) error {
	t.mu.Lock()
	last, known := t.given[name]
	t.mu.Unlock()
	exists := t.cfg.Cgroups.Has(name)
	if known && exists && reflect.DeepEqual(last, r) {
		return nil
	}
	operation := operationCreate
	if exists {
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
