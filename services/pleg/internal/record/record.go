// Package record computes the changes of a pod by comparing its record with an observation. It is pure: it has no clock
// and no I/O. Package relist observes, stores the record and publishes the changes.
//
// Each container goes through phases, forward only, and each step makes at most one event:
//
//	unseen ──► created ──► started ──► died ──► removed
//	                    STARTED     DIED     REMOVED
//
// A container may skip phases between two observations:
//   - A container that has ended at its first observation makes only DIED: STARTED means "is running", and it is not.
//   - A container that is gone without having been observed to end makes DIED, then REMOVED, so that deaths can be
//     counted. That includes a container that was only listed, because subscribers have seen it with its pod.
//
// The published state outlives the process as Published. The first observation of the next process is compared with it.
// Then STARTED is also published for a container that has ended, because its readers want the complete history.
//
// A container that is created and not started makes no event: nothing has to act on it, and its start follows.
package record

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
)

// phase is the phase of a container's life, in order.
type phase int

const (
	phaseUnseen phase = iota
	phaseCreated
	phaseStarted
	phaseDied
	phaseRemoved
)

// Pod is the record of one pod. The zero value is empty. It is a value: Observe returns the next one and leaves the old
// one unchanged.
type Pod struct {
	// Status is the last observation; nil before the first. It is shared and never changed.
	Status *lifecyclev1.PodStatus
	// phases holds the phases of the containers in the runtime; nil before the first complete observation.
	phases map[string]phase
	// previous is the published state at the end of the previous process; nil if there was none, and after the first
	// complete observation.
	previous *Published
}

// Change is one change of a pod, before it becomes an event on the wire.
type Change struct {
	// Type is the type of the event.
	Type lifecyclev1.EventType
	// Container is the changed container as last observed; nil on POD_SYNC.
	Container *lifecyclev1.Container
	// Sandbox is the sandbox that has become ready, on the POD_SYNC for it.
	Sandbox *lifecyclev1.Sandbox
	// OccurredAt is the time of the change according to the runtime; zero if unknown.
	OccurredAt time.Time
}

// Gone reports whether the runtime has neither sandboxes nor containers of the pod.
func (p Pod) Gone() bool {
	return len(p.Status.GetSandboxes()) == 0 && len(p.Status.GetContainers()) == 0
}

// Inspected reports whether the status comes from an inspection and not only from list calls.
func (p Pod) Inspected() bool { return p.phases != nil }

// Observe compares a complete observation with the record, and returns the new record and the changes in a plausible
// order: sandboxes that became ready, containers that are gone, changes of other containers by time, and other changes.
// It keeps the addresses when the network is torn down. The observation becomes part of the returned Pod, and must not
// be changed afterwards.
func (p Pod) Observe(seen *lifecyclev1.PodStatus) (Pod, []Change) {
	old := p.known()
	seen = keep(old.status, seen)
	next := Pod{Status: seen}
	changes := sandboxesUp(old.status, seen)
	changes = append(changes, old.removals(seen)...)
	steps, phases := old.steps(seen)
	next.phases = phases
	changes = append(changes, steps...)
	if old.otherwiseChanged(seen, len(changes) > 0) {
		changes = append(changes, Change{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC})
	}
	return next, changes
}

// steps returns the changes of the present containers, sorted by time, and their new phases.
func (k known) steps(seen *lifecyclev1.PodStatus) ([]Change, map[string]phase) {
	type step struct {
		Change

		order time.Time
	}
	var steps []step
	phases := make(map[string]phase, len(seen.GetContainers()))
	for _, c := range seen.GetContainers() {
		before := k.phases[c.GetId()]
		after := advance(before, c.GetState())
		phases[c.GetId()] = after
		start, unseen := k.unseenStart(before, c)
		if unseen {
			steps = append(steps, step{Change: start, order: start.OccurredAt})
		}
		if change, ok := stepTo(before, after, c); ok {
			// A death never precedes the start that is published with it, even if the clock was set in between.
			steps = append(steps, step{Change: change, order: later(change.OccurredAt, start.OccurredAt)})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int {
		return cmp.Or(a.order.Compare(b.order), cmp.Compare(a.Container.GetAttempt(), b.Container.GetAttempt()))
	})
	changes := make([]Change, len(steps))
	for i, s := range steps {
		changes[i] = s.Change
	}
	return changes, phases
}

// Fail records why the pod could not be inspected. The last status stays. changed reports whether the failure is new,
// so that the caller sets its time in the new status. The status of a pod that was never inspected becomes listed,
// which may be nil, without changes of its containers.
func (p Pod) Fail(listed *lifecyclev1.PodStatus, reason string) (next Pod, changed bool) {
	if p.Status == nil {
		if listed == nil {
			return p, false
		}
		listed.InspectError = reason
		return Pod{Status: listed, previous: p.previous}, true
	}
	if p.Status.GetInspectError() == reason {
		return p, false
	}
	return Pod{Status: withInspectError(p.Status, reason), phases: p.phases, previous: p.previous}, true
}

// withInspectError copies a status that others may be reading; the copy shares its parts.
func withInspectError(s *lifecyclev1.PodStatus, reason string) *lifecyclev1.PodStatus {
	return &lifecyclev1.PodStatus{
		Uid:                s.GetUid(),
		Name:               s.GetName(),
		Namespace:          s.GetNamespace(),
		Ips:                s.GetIps(),
		Sandboxes:          s.GetSandboxes(),
		Containers:         s.GetContainers(),
		ObservedBoottimeNs: s.GetObservedBoottimeNs(),
		ObservedAt:         s.GetObservedAt(),
		InspectError:       reason,
		UnknownSince:       s.GetUnknownSince(),
	}
}

// keep carries over parts that an observation does not have any more, and shares parts that are equal to those of the
// last one, so that the memory of many events is proportional to the changes.
func keep(old, seen *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	if len(seen.GetIps()) == 0 && !hostNetwork(seen) && (len(seen.GetSandboxes()) > 0 || len(seen.GetContainers()) > 0) {
		seen.Ips = old.GetIps()
	}
	if seen.GetName() == "" {
		seen.Name, seen.Namespace = old.GetName(), old.GetNamespace()
	}
	for i, c := range seen.GetContainers() {
		if known := inspection.FindContainer(old, c.GetId()); known != nil && proto.Equal(known, c) {
			seen.Containers[i] = known
		}
	}
	for i, s := range seen.GetSandboxes() {
		if known := inspection.FindSandbox(old, s.GetId()); known != nil && proto.Equal(known, s) {
			seen.Sandboxes[i] = known
		}
	}
	return seen
}

func hostNetwork(s *lifecyclev1.PodStatus) bool {
	return len(s.GetSandboxes()) > 0 && s.GetSandboxes()[0].GetHostNetwork()
}

// advance returns the next phase of a container that is observed in state. It never goes back: a dead container that
// the runtime reports as running again stays dead until it has a new ID.
func advance(before phase, state lifecyclev1.ContainerState) phase {
	switch state {
	case lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING:
		return max(before, phaseStarted)
	case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
		return max(before, phaseDied)
	case lifecyclev1.ContainerState_CONTAINER_STATE_UNSPECIFIED,
		lifecyclev1.ContainerState_CONTAINER_STATE_CREATED,
		lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN:
	}
	return max(before, phaseCreated)
}

func stepTo(before, after phase, c *lifecyclev1.Container) (Change, bool) {
	switch {
	case before == after:
	case after == phaseStarted:
		return Change{
			Type:       lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED,
			Container:  c,
			OccurredAt: timeOf(c.GetStartedAt()),
		}, true
	case after == phaseDied:
		return Change{
			Type:       lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED,
			Container:  c,
			OccurredAt: timeOf(c.GetFinishedAt()),
		}, true
	}
	return Change{}, false
}

// removals returns the changes of containers that are gone, oldest first.
func (k known) removals(seen *lifecyclev1.PodStatus) []Change {
	var changes []Change
	for _, c := range slices.Backward(k.status.GetContainers()) {
		if inspection.FindContainer(seen, c.GetId()) != nil {
			continue
		}
		if k.phases[c.GetId()] < phaseDied {
			changes = append(changes, Change{Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, Container: c})
		}
		changes = append(changes, Change{Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED, Container: c})
	}
	return changes
}

func sandboxesUp(old, seen *lifecyclev1.PodStatus) []Change {
	var changes []Change
	for _, s := range slices.Backward(seen.GetSandboxes()) {
		if ready(s) && !ready(inspection.FindSandbox(old, s.GetId())) {
			changes = append(
				changes,
				Change{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, Sandbox: s, OccurredAt: timeOf(s.GetCreatedAt())},
			)
		}
	}
	return changes
}

func ready(s *lifecyclev1.Sandbox) bool {
	return s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY
}

// otherwiseChanged reports whether something has changed that no other change covers: a sandbox that ended or was
// removed, an address, or a container that the runtime does not know any more.
func (k known) otherwiseChanged(seen *lifecyclev1.PodStatus, reported bool) bool {
	old := k.status
	for _, s := range old.GetSandboxes() {
		now := inspection.FindSandbox(seen, s.GetId())
		if now == nil || (ready(s) && !ready(now)) {
			return true
		}
	}
	switch {
	case reported:
		return false
	case old == nil:
		// Followers need an event for every pod.
		return !Pod{Status: seen}.Gone()
	}
	if !slices.Equal(old.GetIps(), seen.GetIps()) || k.failed {
		return true
	}
	for _, s := range seen.GetSandboxes() {
		if !k.sameSandbox(s) {
			return true
		}
	}
	for _, c := range seen.GetContainers() {
		known := inspection.FindContainer(old, c.GetId())
		unknown := c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
		if (known == nil && unknown) || (known != nil && known.GetState() != c.GetState()) {
			return true
		}
	}
	return false
}
