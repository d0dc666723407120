package record

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// Listing is the result of the runtime's list calls for one pod.
type Listing struct {
	// Sandboxes has the state of each sandbox, by id.
	Sandboxes map[string]lifecyclev1.SandboxState
	// Containers has the state of each container, by id.
	Containers map[string]lifecyclev1.ContainerState
}

// Matches reports whether a listing equals the record: the same sandboxes and containers in the same states.
func (p Pod) Matches(l Listing) bool { return matches(p.Status, l) }

func matches(status *lifecyclev1.PodStatus, l Listing) bool {
	if len(status.GetSandboxes()) != len(l.Sandboxes) || len(status.GetContainers()) != len(l.Containers) {
		return false
	}
	for _, s := range status.GetSandboxes() {
		if state, ok := l.Sandboxes[s.GetId()]; !ok || state != s.GetState() {
			return false
		}
	}
	for _, c := range status.GetContainers() {
		if state, ok := l.Containers[c.GetId()]; !ok || state != c.GetState() {
			return false
		}
	}
	return true
}

func timeOf(ts *timestamppb.Timestamp) time.Time {
	if ts == nil {
		return time.Time{}
	}
	return ts.AsTime()
}
