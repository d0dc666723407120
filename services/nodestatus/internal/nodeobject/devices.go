package nodeobject

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amounts are the number of devices of a resource of device plugins, and of those that pods can have.
type Amounts struct{ Capacity, Allocatable int64 }

// addDevices adds the resources of device plugins to a status.
func addDevices(in Input, status *v1.NodeStatus) {
	for name, amounts := range in.Devices {
		status.Capacity[v1.ResourceName(name)] = *resource.NewQuantity(amounts.Capacity, resource.DecimalSI)
		status.Allocatable[v1.ResourceName(name)] = *resource.NewQuantity(amounts.Allocatable, resource.DecimalSI)
	}
	if in.Devices != nil || in.Previous.Node == nil {
		return
	}
	before := in.Previous.Node.Status
	for name, amount := range before.Capacity {
		if _, known := status.Capacity[name]; !known && strings.Contains(string(name), "/") {
			status.Capacity[name], status.Allocatable[name] = amount, before.Allocatable[name]
		}
	}
}
