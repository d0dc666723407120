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

// fields are the parts of a status that this node owns, by their names, as strategic merge patches have them. Conditions are
// not among them: of those some are others'.
type fields map[string]any

// fieldsOf takes the owned parts out of a status.
func fieldsOf(s v1.NodeStatus) fields {
	return fields{
		"capacity": s.Capacity, "allocatable": s.Allocatable, "addresses": s.Addresses, "nodeInfo": s.NodeInfo, "images": s.Images,
		"daemonEndpoints": s.DaemonEndpoints, "runtimeHandlers": s.RuntimeHandlers, "features": s.Features,
		"volumesInUse": s.VolumesInUse, "declaredFeatures": s.DeclaredFeatures,
	}
}

// wanted makes the status that the API server should have, of the one that was computed here and of what is there. It
// changes neither.
func wanted(there, computed v1.NodeStatus, now time.Time) v1.NodeStatus {
	out := *computed.DeepCopy()
	nodeobject.AddForeign(&out, there)
	for i := range out.Conditions {
		settle(&out.Conditions[i], there.Conditions, now)
	}
	return out
}

// settle gives a condition the times that a kubelet's has: since when it is as it is, by what the API server has said until
// now, and when it was last sent.
func settle(condition *v1.NodeCondition, there []v1.NodeCondition, now time.Time) {
	condition.LastHeartbeatTime = metav1.NewTime(now).Rfc3339Copy()
	before := find(there, condition.Type)
	switch {
	case before == nil:
	case before.Status == condition.Status:
		condition.LastTransitionTime = before.LastTransitionTime
	case !condition.LastTransitionTime.After(before.LastTransitionTime.Time):
		// Somebody else has said otherwise since, such as a node controller that has not heard of the node.
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

// refusals are the fields that an API server has not taken as they were sent, such as those that one of an older version does
// not know: what it was sent, and what it answered to have. They are not sent again while both are so.
type refusals map[string]struct{ sent, kept any }

// note compares the fields that an API server was sent with its answer.
func (r refusals) note(answer, sent v1.NodeStatus, names []string) {
	kept, should := fieldsOf(answer), fieldsOf(sent)
	for _, name := range names {
		if equality.Semantic.DeepEqual(kept[name], should[name]) {
			delete(r, name)
			continue
		}
		r[name] = struct{ sent, kept any }{should[name], kept[name]}
	}
}

func (r refusals) still(name string, is, should any) bool {
	before, ok := r[name]
	return ok && equality.Semantic.DeepEqual(before.sent, should) && equality.Semantic.DeepEqual(before.kept, is)
}

// differing returns the names of the owned fields that are not as they should be, in their order.
func differing(there, want v1.NodeStatus, refused refusals) []string {
	is, should := fieldsOf(there), fieldsOf(want)
	var names []string
	for _, name := range slices.Sorted(maps.Keys(should)) {
		if !equality.Semantic.DeepEqual(is[name], should[name]) && !refused.still(name, is[name], should[name]) {
			names = append(names, name)
		}
	}
	for _, condition := range want.Conditions {
		before := find(there.Conditions, condition.Type)
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

// patchOf makes the strategic merge patch of the status that changes the named fields, and all own conditions with the times
// of now. What others have put there stays: their conditions, and the volumes that a controller has attached.
func patchOf(there, want v1.NodeStatus, names []string) ([]byte, error) {
	should := fieldsOf(want)
	status := map[string]any{conditionsField: want.Conditions}
	for _, name := range names {
		switch name {
		case conditionsField:
		case "capacity":
			status[name] = resources(there.Capacity, want.Capacity)
		case "allocatable":
			status[name] = resources(there.Allocatable, want.Allocatable)
		case "addresses":
			status[name] = replaced(want.Addresses)
		case "nodeInfo":
			status[name] = wholeNodeInfo{"replace", want.NodeInfo}
		default:
			// A field that the node has no longer is null, which removes it.
			status[name] = should[name]
		}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return nil, fmt.Errorf("encoding the status of the Node: %w", err)
	}
	return patch, nil
}

// resources is a map in which null removes what is there and not wanted.
func resources(there, want v1.ResourceList) map[v1.ResourceName]any {
	out := make(map[v1.ResourceName]any, len(want))
	for name := range there {
		out[name] = nil
	}
	for name, amount := range want {
		out[name] = amount
	}
	return out
}

// replaced is the whole list of addresses. Merging them would go by their types, of which there may be two of one.
func replaced(addresses []v1.NodeAddress) []any {
	out := []any{map[string]string{"$patch": "replace"}}
	for _, address := range addresses {
		out = append(out, address)
	}
	return out
}

// wholeNodeInfo replaces what is there, so that a part that the node has no longer goes.
type wholeNodeInfo struct {
	Patch string `json:"$patch"`
	v1.NodeSystemInfo
}
