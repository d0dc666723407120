package eviction

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

// The annotations of an eviction's event, as with the kubelet: the containers that exceed their requests and their
// usage, the pod and its usage if it has a request of its own, and the resource that is short.
const (
	annotationContainers      = "offending_containers"
	annotationContainersUsage = "offending_containers_usage"
	annotationPod             = "offending_pod"
	annotationPodUsage        = "offending_pod_usage"
	annotationResource        = "starved_resource"
)

// larger is the sentence about a container or a pod that exceeds its request.
const larger = "%s %s was using %s, request is %s, has larger consumption of %s. "

// message returns the reason of an eviction in the kubelet's words: the resource that is short, and the containers that
// exceed their request for it. The annotations have the same in a form for programs; they are nil without statistics of
// the pod.
func message(signal *nodev1.EvictionSignal, pod *v1.Pod, stats *statsv1alpha1.PodStats) (string, map[string]string) {
	name := resourceOf(signal.GetSignal())
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ",
		name, quantity(name, signal.GetThreshold()), quantity(name, signal.GetAvailable()))
	if stats == nil {
		return text.String(), nil
	}
	annotations := map[string]string{annotationResource: string(name)}
	if name == v1.ResourceMemory && resourcehelper.IsPodLevelResourcesSet(pod) && stats.Memory != nil {
		if request, found := pod.Spec.Resources.Requests[name]; found {
			bytes := int64(ptr.Deref(stats.Memory.WorkingSetBytes, 0)) //nolint:gosec // less than 8 EiB
			used := resource.NewQuantity(bytes, resource.BinarySI)
			fmt.Fprintf(&text, larger, "Pod", pod.Name, used, &request, name)
			annotations[annotationPod], annotations[annotationPodUsage] = pod.Name, used.String()
		}
	}
	var containers, amounts []string
	for i := range stats.Containers {
		c := &stats.Containers[i]
		bytes, known := usedBy(c, name)
		request, found := requestOf(pod, c.Name, name)
		if used := resource.NewQuantity(bytes, resource.BinarySI); known && found && used.Cmp(request) > 0 {
			fmt.Fprintf(&text, larger, "Container", c.Name, used, &request, name)
			containers, amounts = append(containers, c.Name), append(amounts, used.String())
		}
	}
	annotations[annotationContainers] = strings.Join(containers, ",")
	annotations[annotationContainersUsage] = strings.Join(amounts, ",")
	return text.String(), annotations
}

// quantity formats bytes in binary units and counts in decimal ones.
func quantity(name v1.ResourceName, n int64) string {
	format := resource.BinarySI
	if name == resourceInodes || name == resourcePIDs {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(n, format).String()
}

// usedBy returns the bytes of a resource that a container uses. known is false if they were not measured.
func usedBy(c *statsv1alpha1.ContainerStats, name v1.ResourceName) (bytes int64, known bool) {
	if name == v1.ResourceMemory && c.Memory != nil && c.Memory.WorkingSetBytes != nil {
		return int64(*c.Memory.WorkingSetBytes), true //nolint:gosec // less than 8 EiB
	}
	if name != v1.ResourceEphemeralStorage || c.Rootfs == nil || c.Logs == nil {
		return 0, false
	}
	if c.Rootfs.UsedBytes == nil || c.Logs.UsedBytes == nil {
		return 0, false
	}
	return int64(*c.Rootfs.UsedBytes + *c.Logs.UsedBytes), true //nolint:gosec // as above
}

// requestOf returns the request of a container, and whether the pod has a regular or init container of that name.
func requestOf(pod *v1.Pod, container string, name v1.ResourceName) (resource.Quantity, bool) {
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if c.Name == container {
			return c.Resources.Requests[name], true
		}
	}
	return resource.Quantity{}, false
}
