package nodeobject

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// AddForeign adds to a status the resources that others advertise on the Node in the API server, as administrators do
// with extended resources; all of their capacity is allocatable. It skips huge page sizes that this machine does not
// have.
func AddForeign(to *v1.NodeStatus, stored v1.NodeStatus) {
	for name, amount := range stored.Capacity {
		if _, own := to.Capacity[name]; own || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			continue
		}
		if to.Capacity == nil {
			to.Capacity = v1.ResourceList{}
		}
		if to.Allocatable == nil {
			to.Allocatable = v1.ResourceList{}
		}
		to.Capacity[name] = amount
		to.Allocatable[name] = amount
		if left, ok := stored.Allocatable[name]; ok && name == v1.ResourceEphemeralStorage {
			// It is this node's own, and could not be read at present.
			to.Allocatable[name] = left
		}
	}
}
