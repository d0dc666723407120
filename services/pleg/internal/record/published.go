package record

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Published is the published state of a pod: the part that must outlive this process, so that the next one publishes
// the changes in between. It is never changed.
type Published struct {
	// Status holds the sandboxes and containers without their labels and annotations, except the annotations that their
	// events need after their removal, and without the messages of containers.
	Status *lifecyclev1.PodStatus
	// Phases maps the IDs of containers to the names of their phases; nil if the pod was never inspected.
	Phases map[string]string
	// Whole reports whether Status lacks nothing of the last observation that a list of the runtime does not have, see
	// Confirm. It is false if the last inspection has failed, or if a container has a message.
	Whole bool
}

// phaseNames are the names of phases in Published. It omits removed containers.
var phaseNames = map[phase]string{phaseCreated: "created", phaseStarted: "started", phaseDied: "died"}

// phasesByName returns the names of phases; nil for nil.
func phasesByName(phases map[string]phase) map[string]string {
	if phases == nil {
		return nil
	}
	names := make(map[string]string, len(phases))
	for id, phase := range phases {
		names[id] = phaseNames[phase]
	}
	return names
}

// phasesOf returns the phases with names; nil for nil. A phase with an unknown name counts as unseen.
func phasesOf(names map[string]string) map[string]phase {
	if names == nil {
		return nil
	}
	phases := make(map[string]phase, len(names))
	for id, name := range names {
		for phase, known := range phaseNames {
			if name == known {
				phases[id] = phase
			}
		}
	}
	return phases
}

// Published returns the published state of the pod after every change that Observe and Fail have returned; zero if
// nothing was published.
func (p Pod) Published() Published {
	switch {
	case p.phases != nil:
		return Published{Status: brief(p.Status), Phases: phasesByName(p.phases), Whole: isWhole(p.Status)}
	case p.previous != nil && p.previous.Status != nil && p.Status != nil:
		// It was only listed, so only the failed inspection and its present containers were published.
		t := Published{Status: withListed(p.previous.Status, p.Status), Phases: p.previous.Phases}
		t.Status.InspectError, t.Status.UnknownSince = p.Status.GetInspectError(), p.Status.GetUnknownSince()
		return t
	case p.previous != nil && p.Status == nil:
		return *p.previous
	case p.Status == nil:
		return Published{}
	default:
		return Published{Status: brief(p.Status)}
	}
}

// Restore returns a pod with only its published state; zero if it did not exist. Its first observation is compared with
// that state.
func Restore(t Published) Pod { return Pod{previous: &t} }

// Confirm returns the last observation of the previous process, if the runtime's lists show the same sandboxes and
// containers in the same states: then an inspection would return the same. It returns nil if the pod has to be
// inspected. l and listed are of the same lists, and the labels and annotations are from listed.
func (p Pod) Confirm(l Listing, listed *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	if !p.Restored() || p.Status != nil || !p.previous.Whole || !matches(p.previous.Status, l) {
		return nil
	}
	whole := proto.CloneOf(p.previous.Status)
	for _, s := range whole.GetSandboxes() {
		from := inspection.FindSandbox(listed, s.GetId())
		s.Labels, s.Annotations = from.GetLabels(), from.GetAnnotations()
	}
	for _, c := range whole.GetContainers() {
		from := inspection.FindContainer(listed, c.GetId())
		c.Labels, c.Annotations = from.GetLabels(), from.GetAnnotations()
	}
	return whole
}

// Restored reports whether only the pod's state from the previous process is known.
func (p Pod) Restored() bool { return p.previous != nil && p.phases == nil }

// Moved reports whether the published state of next differs from that of p.
func (p Pod) Moved(next Pod) bool {
	return p.Inspected() != next.Inspected() || !maps.Equal(p.phases, next.phases) ||
		p.Status.GetInspectError() != next.Status.GetInspectError()
}

// Shares reports whether next, which Observe has returned, has the sandboxes, containers and addresses of p.
func (p Pod) Shares(next Pod) bool {
	return slices.Equal(p.Status.GetSandboxes(), next.Status.GetSandboxes()) &&
		slices.Equal(p.Status.GetContainers(), next.Status.GetContainers()) &&
		slices.Equal(p.Status.GetIps(), next.Status.GetIps())
}

// known is the state that an observation is compared with.
type known struct {
	status *lifecyclev1.PodStatus
	phases map[string]phase
	// brief is true if the status is that of a Published.
	brief bool
	// failed is true if the failed inspection was published.
	failed bool
}

// known returns the last observation, or else the published state of the previous process.
func (p Pod) known() known {
	failed := p.Status.GetInspectError() != ""
	if !p.Restored() {
		return known{status: p.Status, phases: p.phases, failed: failed}
	}
	k := known{
		status: withListed(p.previous.Status, p.Status),
		brief:  true,
		failed: failed || p.previous.Status.GetInspectError() != "",
	}
	k.phases = phasesOf(p.previous.Phases)
	return k
}

// withListed adds containers that were listed since to the published status; both may be nil.
func withListed(published, listed *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	if listed == nil {
		return published
	}
	both := proto.CloneOf(published)
	if both == nil {
		both = &lifecyclev1.PodStatus{Uid: listed.GetUid()}
	}
	for _, c := range brief(listed).GetContainers() {
		if inspection.FindContainer(both, c.GetId()) == nil {
			both.Containers = append(both.Containers, c)
		}
	}
	return both
}

// sameSandbox reports whether a sandbox is unchanged.
func (k known) sameSandbox(seen *lifecyclev1.Sandbox) bool {
	if k.brief {
		seen = briefSandbox(seen)
	}
	return proto.Equal(seen, inspection.FindSandbox(k.status, seen.GetId()))
}

// unseenStart returns the start of a container that has started and ended since its last published state. During
// observation, a container that has ended at its first observation has no start event, because it does not run; in a
// history of past changes, the start is included.
func (k known) unseenStart(before phase, c *lifecyclev1.Container) (Change, bool) {
	if !k.brief || before >= phaseStarted || c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_EXITED ||
		c.GetStartedAt() == nil {
		return Change{}, false
	}
	return Change{
		Type:       lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED,
		Container:  c,
		OccurredAt: timeOf(c.GetStartedAt()),
	}, true
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
		ObservedBoottimeNs: s.GetObservedBoottimeNs(), ObservedAt: s.GetObservedAt(),
		InspectError: s.GetInspectError(), UnknownSince: s.GetUnknownSince(),
	}
	for _, sandbox := range s.GetSandboxes() {
		b.Sandboxes = append(b.Sandboxes, briefSandbox(sandbox))
	}
	for _, c := range s.GetContainers() {
		b.Containers = append(b.Containers, &lifecyclev1.Container{
			Id: c.GetId(), SandboxId: c.GetSandboxId(), Name: c.GetName(), Attempt: c.GetAttempt(), State: c.GetState(),
			CreatedAt: c.GetCreatedAt(), StartedAt: c.GetStartedAt(), FinishedAt: c.GetFinishedAt(),
			ExitCode: c.GetExitCode(), Reason: c.GetReason(),
			Image: c.GetImage(), ImageRef: c.GetImageRef(), ImageId: c.GetImageId(), LogPath: c.GetLogPath(),
			User: c.GetUser(), Resources: c.GetResources(), Annotations: briefAnnotations(c.GetAnnotations()),
		})
	}
	return b
}

// isWhole reports whether brief omits only labels and annotations of an inspected status.
func isWhole(s *lifecyclev1.PodStatus) bool {
	return s.GetInspectError() == "" &&
		!slices.ContainsFunc(s.GetContainers(), func(c *lifecyclev1.Container) bool { return c.GetMessage() != "" })
}

func briefSandbox(s *lifecyclev1.Sandbox) *lifecyclev1.Sandbox {
	return &lifecyclev1.Sandbox{
		Id:             s.GetId(),
		State:          s.GetState(),
		Attempt:        s.GetAttempt(),
		CreatedAt:      s.GetCreatedAt(),
		Ips:            s.GetIps(),
		HostNetwork:    s.GetHostNetwork(),
		RuntimeHandler: s.GetRuntimeHandler(),
		Annotations:    briefAnnotations(s.GetAnnotations()),
	}
}

// briefAnnotations keeps the annotations that the span of an event needs; nil if there are none.
func briefAnnotations(all map[string]string) map[string]string {
	var kept map[string]string
	for _, key := range []string{telemetry.AnnotationTraceparent, podlabels.RestartCount, podlabels.InitContainer} {
		value, found := all[key]
		if !found {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}
