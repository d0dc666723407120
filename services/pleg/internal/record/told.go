package record

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Told is what was last told of a pod: what of it has to outlive this process, so that the next one tells what has happened
// in between. It is never changed.
type Told struct {
	// Status has of sandboxes and containers what tells whether something has happened to them, and what names them and the
	// trace that they belong to when they are gone. The rest, as most labels and annotations, is left out.
	Status *lifecyclev1.PodStatus
	// Phases says how far the containers are by their ids, as String does; nil when the pod was never inspected.
	Phases map[string]string
}

// phaseNames are the phases as Told has them. A container that is removed is not in it any more.
var phaseNames = map[phase]string{phaseCreated: "created", phaseStarted: "started", phaseDied: "died"}

// Told returns what was told of the pod when every change that Observe and Fail have returned is told; the zero value when
// nothing was.
func (p Pod) Told() Told {
	switch {
	case p.phases != nil:
		t := Told{Status: brief(p.Status), Phases: make(map[string]string, len(p.phases))}
		for id, phase := range p.phases {
			t.Phases[id] = phaseNames[phase]
		}
		return t
	case p.told != nil && p.told.Status != nil && p.Status != nil:
		// It was listed only, and so nothing was told but that it cannot be inspected, and what containers it has now.
		t := Told{Status: withListed(p.told.Status, p.Status), Phases: p.told.Phases}
		t.Status.InspectError, t.Status.UnknownSince = p.Status.GetInspectError(), p.Status.GetUnknownSince()
		return t
	case p.told != nil && p.Status == nil:
		return *p.told
	case p.Status == nil:
		return Told{}
	default:
		return Told{Status: brief(p.Status)}
	}
}

// Restore returns a pod of which nothing is known but what was told of it, the zero value when it was not there yet. Its first
// observation is compared with that.
// A phase with a name that is not known is that of a container which was not seen yet.
func Restore(t Told) Pod { return Pod{told: &t} }

// Restored tells whether all that is known of the pod is what was told of it before this process.
func (p Pod) Restored() bool { return p.told != nil && p.phases == nil }

// Moved tells whether what was told of the pod differs from what was told when it was p.
func (p Pod) Moved(next Pod) bool {
	return p.Inspected() != next.Inspected() || !maps.Equal(p.phases, next.phases) ||
		p.Status.GetInspectError() != next.Status.GetInspectError()
}

// known is what an observation is compared with.
type known struct {
	status *lifecyclev1.PodStatus
	phases map[string]phase
	// brief is true when the status is that of a Told.
	brief bool
	// failed is true when it was told that the pod cannot be inspected.
	failed bool
}

// known returns the last observation, or what was told before this process while there is none.
func (p Pod) known() known {
	failed := p.Status.GetInspectError() != ""
	if !p.Restored() {
		return known{status: p.Status, phases: p.phases, failed: failed}
	}
	k := known{status: withListed(p.told.Status, p.Status), brief: true, failed: failed || p.told.Status.GetInspectError() != ""}
	if p.told.Phases == nil {
		return k
	}
	k.phases = make(map[string]phase, len(p.told.Phases))
	for id, name := range p.told.Phases {
		for phase, known := range phaseNames {
			if name == known {
				k.phases[id] = phase
			}
		}
	}
	return k
}

// withListed adds the containers that were listed since to what was told; both may be nil.
func withListed(told, listed *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	if listed == nil {
		return told
	}
	both := proto.CloneOf(told)
	if both == nil {
		both = &lifecyclev1.PodStatus{Uid: listed.GetUid()}
	}
	for _, c := range brief(listed).GetContainers() {
		if FindContainer(both, c.GetId()) == nil {
			both.Containers = append(both.Containers, c)
		}
	}
	return both
}

// sameSandbox tells whether nothing has changed about a sandbox.
func (k known) sameSandbox(seen *lifecyclev1.Sandbox) bool {
	if k.brief {
		seen = briefSandbox(seen)
	}
	return proto.Equal(seen, FindSandbox(k.status, seen.GetId()))
}

// unseenStart returns the start of a container that has started and ended since it was told of. When pleg looks on, what
// has ended by the first look makes no start, since it does not run; but for whoever reads later what happened meanwhile,
// the start is a part of it.
func (k known) unseenStart(before phase, c *lifecyclev1.Container) (Change, bool) {
	if !k.brief || before >= phaseStarted || c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_EXITED || c.GetStartedAt() == nil {
		return Change{}, false
	}
	return Change{Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, Container: c, OccurredAt: timeOf(c.GetStartedAt())}, true
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func brief(s *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	b := &lifecyclev1.PodStatus{
		Uid: s.GetUid(), Name: s.GetName(), Namespace: s.GetNamespace(), Ips: s.GetIps(),
		InspectError: s.GetInspectError(), UnknownSince: s.GetUnknownSince(),
	}
	for _, sandbox := range s.GetSandboxes() {
		b.Sandboxes = append(b.Sandboxes, briefSandbox(sandbox))
	}
	for _, c := range s.GetContainers() {
		b.Containers = append(b.Containers, &lifecyclev1.Container{
			Id: c.GetId(), SandboxId: c.GetSandboxId(), Name: c.GetName(), Attempt: c.GetAttempt(), State: c.GetState(),
			ExitCode: c.GetExitCode(), Reason: c.GetReason(), Annotations: briefAnnotations(c.GetAnnotations()),
		})
	}
	return b
}

func briefSandbox(s *lifecyclev1.Sandbox) *lifecyclev1.Sandbox {
	return &lifecyclev1.Sandbox{
		Id: s.GetId(), State: s.GetState(), Attempt: s.GetAttempt(), CreatedAt: s.GetCreatedAt(), Ips: s.GetIps(), HostNetwork: s.GetHostNetwork(),
		RuntimeHandler: s.GetRuntimeHandler(), Annotations: briefAnnotations(s.GetAnnotations()),
	}
}

// briefAnnotations keeps what the span of an event needs; nil when there is nothing of it.
func briefAnnotations(all map[string]string) map[string]string {
	var kept map[string]string
	for _, key := range []string{telemetry.AnnotationTraceparent, podlabels.RestartCount, podlabels.InitContainer} {
		value, there := all[key]
		if !there {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}
