package nodeobject

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// AddForeign adds to a status the resources that somebody else advertises on the Node in the API server, as a cluster's
// administrators do with extended resources: as much of each is allocatable as there is. What is there of sizes of huge pages
// that this machine does not have is not added.
func AddForeign(to *v1.NodeStatus, there v1.NodeStatus) {
	for name, amount := range there.Capacity {
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
		if left, ok := there.Allocatable[name]; ok && name == v1.ResourceEphemeralStorage {
			// It is this node's own, and could not be read just now.
			to.Allocatable[name] = left
		}
	}
}
