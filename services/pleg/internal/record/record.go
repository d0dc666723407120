// Package record decides what has happened to a pod, by comparing what was known of it with what was observed. It is pure:
// it reads no clock and asks nobody. Package relist observes, keeps the result and publishes it.
//
// Each container goes through phases, forward only, and each step makes at most one event:
//
//	unseen ──► created ──► started ──► died ──► removed
//	                    STARTED     DIED     REMOVED
//
// A container may skip phases when nobody looked in between:
//   - one that is seen for the first time when it has ended makes DIED alone: STARTED says "is running", and it is not;
//   - one that is gone without having been seen to end makes DIED, then REMOVED, for whoever counts deaths: also one that was
//     only listed, since it was shown with its pod.
//
// What was told outlives the process as Told. What is seen first after that is compared with it, and then STARTED is told of a
// container that has ended too: it is history, and its reader wants the whole.
//
// A container that is created and not started makes no event: nobody has to act on it, and its start follows.
package record

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// phase is how far a container is on its way. The order is that of the way.
type phase int

const (
	phaseUnseen phase = iota
	phaseCreated
	phaseStarted
	phaseDied
	phaseRemoved
)

// Pod is what is known of one pod. The zero value knows nothing. It is a value: Observe returns the next one and leaves
// the old one as it is.
type Pod struct {
	// Status is the last observation, nil before the first. It is shared by everybody and never changed.
	Status *lifecyclev1.PodStatus
	// phases has the containers that the runtime has; nil before the first complete observation.
	phases map[string]phase
	// told is what was told of the pod before this process; nil when there was nothing, and after the first complete
	// observation.
	told *Told
}

// Change is one thing that has happened, before it becomes an event on the wire.
type Change struct {
	// Type says what.
	Type lifecyclev1.EventType
	// Container is what it happened to, as it was last seen; nil on POD_SYNC.
	Container *lifecyclev1.Container
	// Sandbox has become ready; set on the POD_SYNC that says so.
	Sandbox *lifecyclev1.Sandbox
	// OccurredAt is the runtime's word for when; the zero time when it has none.
	OccurredAt time.Time
}

// Gone tells whether the runtime has nothing of the pod.
func (p Pod) Gone() bool {
	return len(p.Status.GetSandboxes()) == 0 && len(p.Status.GetContainers()) == 0
}

// Inspected tells whether the status comes from an inspection, and not only from what the list calls say.
func (p Pod) Inspected() bool { return p.phases != nil }

// Observe takes a complete observation and returns what is known after it and what has happened, in an order in which it
// may have happened: sandboxes that have come up, containers that are gone, the other containers by the time of what
// happened to them, and what else has changed. Addresses stay when the network is torn down. The observation becomes
// part of the returned Pod, and must not be changed afterwards.
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

// steps returns what has happened to the containers that are there, by the time of it, and how far they are after it.
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
			// A death never comes before the start that is told with it, whatever the clock was set to in between.
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

// Fail notes why the pod could not be inspected. What is known stays; changed tells whether the note is new, and so whether
// the status is a new one, in which the caller says since when. A pod that was never inspected is known by listed from then
// on, which may be nil, without anything having happened to its containers.
func (p Pod) Fail(listed *lifecyclev1.PodStatus, reason string) (next Pod, changed bool) {
	if p.Status == nil {
		if listed == nil {
			return p, false
		}
		listed.InspectError = reason
		return Pod{Status: listed, told: p.told}, true
	}
	if p.Status.GetInspectError() == reason {
		return p, false
	}
	return Pod{Status: withInspectError(p.Status, reason), phases: p.phases, told: p.told}, true
}

// withInspectError copies a status that others may be reading; its parts are shared.
func withInspectError(s *lifecyclev1.PodStatus, reason string) *lifecyclev1.PodStatus {
	return &lifecyclev1.PodStatus{
		Uid: s.GetUid(), Name: s.GetName(), Namespace: s.GetNamespace(), Ips: s.GetIps(), Sandboxes: s.GetSandboxes(), Containers: s.GetContainers(),
		ObservedBoottimeNs: s.GetObservedBoottimeNs(), ObservedAt: s.GetObservedAt(), InspectError: reason, UnknownSince: s.GetUnknownSince(),
	}
}

// keep carries over what an observation does not have any more, and shares what is equal with the last one, so that a
// record of many events costs what has changed.
func keep(old, seen *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	if len(seen.GetIps()) == 0 && !hostNetwork(seen) && (len(seen.GetSandboxes()) > 0 || len(seen.GetContainers()) > 0) {
		seen.Ips = old.GetIps()
	}
	if seen.GetName() == "" {
		seen.Name, seen.Namespace = old.GetName(), old.GetNamespace()
	}
	for i, c := range seen.GetContainers() {
		if known := FindContainer(old, c.GetId()); known != nil && proto.Equal(known, c) {
			seen.Containers[i] = known
		}
	}
	for i, s := range seen.GetSandboxes() {
		if known := FindSandbox(old, s.GetId()); known != nil && proto.Equal(known, s) {
			seen.Sandboxes[i] = known
		}
	}
	return seen
}

func hostNetwork(s *lifecyclev1.PodStatus) bool {
	return len(s.GetSandboxes()) > 0 && s.GetSandboxes()[0].GetHostNetwork()
}

// advance returns the phase of a container that was in before and is seen in state. It never goes back: a runtime that
// says that a dead container runs is not believed until it gives it a new id.
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
		return Change{Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, Container: c, OccurredAt: timeOf(c.GetStartedAt())}, true
	case after == phaseDied:
		return Change{Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, Container: c, OccurredAt: timeOf(c.GetFinishedAt())}, true
	}
	return Change{}, false
}

// removals returns what happened to the containers that are gone, oldest first.
func (k known) removals(seen *lifecyclev1.PodStatus) []Change {
	var changes []Change
	for _, c := range slices.Backward(k.status.GetContainers()) {
		if FindContainer(seen, c.GetId()) != nil {
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
		if ready(s) && !ready(FindSandbox(old, s.GetId())) {
			changes = append(changes, Change{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, Sandbox: s, OccurredAt: timeOf(s.GetCreatedAt())})
		}
	}
	return changes
}

func ready(s *lifecyclev1.Sandbox) bool {
	return s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY
}

// otherwiseChanged tells whether something has changed that no other change says: a sandbox that ended or went, an address,
// a container that the runtime does not know any more.
func (k known) otherwiseChanged(seen *lifecyclev1.PodStatus, told bool) bool {
	old := k.status
	for _, s := range old.GetSandboxes() {
		now := FindSandbox(seen, s.GetId())
		if now == nil || (ready(s) && !ready(now)) {
			return true
		}
	}
	switch {
	case told:
		return false
	case old == nil:
		// Whoever follows has to hear of every pod.
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
		known := FindContainer(old, c.GetId())
		unknown := c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
		if (known == nil && unknown) || (known != nil && known.GetState() != c.GetState()) {
			return true
		}
	}
	return false
}
