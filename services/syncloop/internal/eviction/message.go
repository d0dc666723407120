package eviction

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

// message says why a pod is ended, in the kubelet's words: what the node was low on, and which containers use more of it than they ask
// for.
func message(signal *nodev1.EvictionSignal, pod *v1.Pod, stats *statsv1alpha1.PodStats) string {
	name := resourceOf(signal.GetSignal())
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ",
		name, quantity(name, signal.GetThreshold()), quantity(name, signal.GetAvailable()))
	if stats == nil {
		return text.String()
	}
	for i := range stats.Containers {
		c := &stats.Containers[i]
		bytes, known := usedBy(c, name)
		request, found := requestOf(pod, c.Name, name)
		if amount := resource.NewQuantity(bytes, resource.BinarySI); known && found && amount.Cmp(request) > 0 {
			fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name, amount, &request, name)
		}
	}
	return text.String()
}

// quantity writes bytes in binary units and counts in decimal ones.
func quantity(name v1.ResourceName, n int64) string {
	format := resource.BinarySI
	if name == resourceInodes || name == resourcePIDs {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(n, format).String()
}

// usedBy is how many bytes of a resource a container uses, if that is known.
func usedBy(c *statsv1alpha1.ContainerStats, name v1.ResourceName) (bytes int64, known bool) {
	if name == v1.ResourceMemory && c.Memory != nil && c.Memory.WorkingSetBytes != nil {
		return int64(*c.Memory.WorkingSetBytes), true //nolint:gosec // less than 8 EiB
	}
	if name == v1.ResourceEphemeralStorage && c.Rootfs != nil && c.Rootfs.UsedBytes != nil && c.Logs != nil && c.Logs.UsedBytes != nil {
		return int64(*c.Rootfs.UsedBytes + *c.Logs.UsedBytes), true //nolint:gosec // as above
	}
	return 0, false
}

// requestOf is what a container asks for, and whether the pod has a container of that name that can ask for something.
func requestOf(pod *v1.Pod, container string, name v1.ResourceName) (resource.Quantity, bool) {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if c.Name == container {
			return c.Resources.Requests[name], true
		}
	}
	return resource.Quantity{}, false
}
