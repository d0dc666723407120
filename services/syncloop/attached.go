package syncloop

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

const (
	// reportTimeout bounds the wait for a volume in the Node's status, and reportInterval is that of looks at it.
	reportTimeout, reportInterval = 10 * time.Second, 100 * time.Millisecond
)

// attachedVolumes waits until the Node's status has volumes both as in use by this node and, unless the cluster's
// controller does not attach volumes, as attached to it. As in the kubelet, a volume is not mounted before. One status
// with both excludes a detachment: the controller removes a volume from volumesAttached first, and then detaches it
// only if it is not in volumesInUse.
//
// All that wait share one look at the Node.
type attachedVolumes struct {
	askNode    func(context.Context) (*v1.Node, error)
	controller bool
	clock      clock.Clock
	// wake has capacity one, because one look is for everybody that waits.
	wake chan struct{}

	mu      sync.Mutex
	waiting map[*awaited]bool
}

// awaited is a volume that a caller waits for.
type awaited struct {
	name  v1.UniqueVolumeName
	since time.Time
	// result has capacity one, so that it can be given to a caller that has left.
	result chan error
}

// newAttachedVolumes returns one that looks at nothing until Run.
func newAttachedVolumes(
	askNode func(context.Context) (*v1.Node, error), controller bool, now clock.Clock,
) *attachedVolumes {
	return &attachedVolumes{
		askNode: askNode, controller: controller, clock: now, wake: make(chan struct{}, 1), waiting: map[*awaited]bool{},
	}
}

// Await waits for a volume. It fails with the kubelet's words after reportTimeout, and at once if the Node is not
// known.
func (a *attachedVolumes) Await(ctx context.Context, name string) error {
	w := &awaited{name: v1.UniqueVolumeName(name), since: a.clock.Now(), result: make(chan error, 1)}
	a.mu.Lock()
	a.waiting[w] = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, w)
	}()
	select {
	case a.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-w.result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run looks at the Node while somebody waits, until ctx ends, whose error it returns.
func (a *attachedVolumes) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		}
		for a.look(ctx) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-a.clock.After(reportInterval):
			}
		}
	}
}

// look gives their results to those that have waited long enough, and reports whether somebody waits on.
func (a *attachedVolumes) look(ctx context.Context) bool {
	a.mu.Lock()
	nobody := len(a.waiting) == 0
	a.mu.Unlock()
	if nobody {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	node, err := a.askNode(ctx)
	if err != nil {
		err = fmt.Errorf("whether the volume is in use by this node: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.waiting {
		result := err
		if err == nil {
			result = notUsable(&node.Status, w.name, a.controller)
			if result != nil && a.clock.Since(w.since) <= reportTimeout {
				continue
			}
		}
		w.result <- result
		delete(a.waiting, w)
	}
	return len(a.waiting) > 0
}

// routineError is an error of a volume that the cluster is attaching.
type routineError string

// Error implements error.
func (e routineError) Error() string { return string(e) }

// IsRoutine tells the volume manager that it is not worth an event yet.
func (routineError) IsRoutine() bool { return true }

// notUsable returns why a volume must not be mounted yet, in the kubelet's words; nil if it may be.
func notUsable(status *v1.NodeStatus, name v1.UniqueVolumeName, controller bool) error {
	if !slices.Contains(status.VolumesInUse, name) {
		return routineError("Volume has not been added to the list of VolumesInUse in the node's volume status")
	}
	isIt := func(a v1.AttachedVolume) bool { return a.Name == name }
	if controller && !slices.ContainsFunc(status.VolumesAttached, isIt) {
		return routineError("Volume not attached according to node status")
	}
	return nil
}
