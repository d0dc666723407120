package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// fields maps the names of the status fields that this node owns to their values in strategic merge patches. It
// excludes conditions, because some of them belong to others.
type fields map[string]any

// fieldsOf returns the owned fields of a status.
func fieldsOf(s v1.NodeStatus) fields {
	return fields{
		"capacity":         s.Capacity,
		"allocatable":      s.Allocatable,
		"addresses":        s.Addresses,
		"nodeInfo":         s.NodeInfo,
		"images":           s.Images,
		"daemonEndpoints":  s.DaemonEndpoints,
		"runtimeHandlers":  s.RuntimeHandlers,
		"features":         s.Features,
		"volumesInUse":     s.VolumesInUse,
		"declaredFeatures": s.DeclaredFeatures,
	}
}

// wanted returns the desired status in the API server, from the computed one and the present one. It changes neither.
func wanted(stored, computed v1.NodeStatus, now time.Time) v1.NodeStatus {
	out := *computed.DeepCopy()
	nodeobject.AddForeign(&out, stored)
	for i := range out.Conditions {
		settle(&out.Conditions[i], stored.Conditions, now)
	}
	return out
}

// settle sets the times of a condition as the kubelet does: the transition time according to the API server, and the
// heartbeat time.
func settle(condition *v1.NodeCondition, stored []v1.NodeCondition, now time.Time) {
	condition.LastHeartbeatTime = metav1.NewTime(now).Rfc3339Copy()
	before := find(stored, condition.Type)
	switch {
	case before == nil:
	case before.Status == condition.Status:
		condition.LastTransitionTime = before.LastTransitionTime
	case !condition.LastTransitionTime.After(before.LastTransitionTime.Time):
		// Another client has changed it since, such as a node controller that has not heard from the node.
		condition.LastTransitionTime = condition.LastHeartbeatTime
	}
}

func find(conditions []v1.NodeCondition, kind v1.NodeConditionType) *v1.NodeCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// refusals maps fields that an API server did not store as sent, for example because an older version does not know
// them, to the sent and the stored value. They are not sent again while both are unchanged.
type refusals map[string]struct{ sent, kept any }

// note compares the sent fields with the response of the API server.
func (r refusals) note(answer, sent v1.NodeStatus, names []string) {
	kept, desired := fieldsOf(answer), fieldsOf(sent)
	for _, name := range names {
		if equality.Semantic.DeepEqual(kept[name], desired[name]) {
			delete(r, name)
			continue
		}
		r[name] = struct{ sent, kept any }{desired[name], kept[name]}
	}
}

func (r refusals) still(name string, current, desired any) bool {
	before, ok := r[name]
	return ok && equality.Semantic.DeepEqual(before.sent, desired) && equality.Semantic.DeepEqual(before.kept, current)
}

// differing returns the sorted names of the owned fields that differ from the desired status.
func differing(stored, want v1.NodeStatus, refused refusals) []string {
	current, desired := fieldsOf(stored), fieldsOf(want)
	var names []string
	for _, name := range slices.Sorted(maps.Keys(desired)) {
		if !equality.Semantic.DeepEqual(current[name], desired[name]) && !refused.still(name, current[name], desired[name]) {
			names = append(names, name)
		}
	}
	for _, condition := range want.Conditions {
		before := find(stored.Conditions, condition.Type)
		if before == nil {
			return append(names, conditionsField)
		}
		same := *before
		same.LastHeartbeatTime = condition.LastHeartbeatTime
		if !equality.Semantic.DeepEqual(same, condition) {
			return append(names, conditionsField)
		}
	}
	return names
}

const conditionsField = "conditions"

func isConditions(name string) bool { return name == conditionsField }

// patchOf returns the strategic merge patch that changes the named fields, and all own conditions with new times. Parts
// of others stay: their conditions, and the volumes that a controller has attached.
func patchOf(stored, want v1.NodeStatus, names []string) ([]byte, error) {
	desired := fieldsOf(want)
	status := map[string]any{conditionsField: want.Conditions}
	for _, name := range names {
		switch name {
		case conditionsField:
		case "capacity":
			status[name] = resources(stored.Capacity, want.Capacity)
		case "allocatable":
			status[name] = resources(stored.Allocatable, want.Allocatable)
		case "addresses":
			status[name] = replaced(want.Addresses)
		case "nodeInfo":
			status[name] = wholeNodeInfo{"replace", want.NodeInfo}
		default:
			// Null removes a field that the node does not have any more.
			status[name] = desired[name]
		}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return nil, fmt.Errorf("encoding the status of the Node: %w", err)
	}
	return patch, nil
}

// resources returns a map in which null removes undesired resources.
func resources(stored, want v1.ResourceList) map[v1.ResourceName]any {
	out := make(map[v1.ResourceName]any, len(want))
	for name := range stored {
		out[name] = nil
	}
	for name, amount := range want {
		out[name] = amount
	}
	return out
}

// replaced returns a patch that replaces the list of addresses. They would be merged by type, and there may be two of
// one type.
func replaced(addresses []v1.NodeAddress) []any {
	out := []any{map[string]string{"$patch": "replace"}}
	for _, address := range addresses {
		out = append(out, address)
	}
	return out
}

// wholeNodeInfo replaces the present value, so that missing parts are removed.
type wholeNodeInfo struct {
	Patch string `json:"$patch"`
	v1.NodeSystemInfo
}
