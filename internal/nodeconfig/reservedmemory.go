package nodeconfig

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// validateReservedMemory refuses what the kubelet refuses in reservedMemory: other resources than memory and huge
// pages, an amount of zero, and two amounts of a resource for one NUMA node.
func validateReservedMemory(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	type key struct {
		node     int32
		resource v1.ResourceName
	}
	seen := sets.New[key]()
	for i, reserved := range cfg.ReservedMemory {
		for resource, amount := range reserved.Limits {
			field := fmt.Sprintf("reservedMemory[%d].limits.%s", i, resource)
			if resource != v1.ResourceMemory && !strings.HasPrefix(string(resource), v1.ResourceHugePagesPrefix) {
				errs.add(field, "cannot be reserved: must be memory or hugepages-SIZE")
			}
			if amount.IsZero() {
				errs.add(field, "must be greater than 0")
			}
			if seen.Has(key{reserved.NumaNode, resource}) {
				errs.add(field, fmt.Sprintf("is there twice for the NUMA node %d", reserved.NumaNode))
			}
			seen.Insert(key{reserved.NumaNode, resource})
		}
	}
}
