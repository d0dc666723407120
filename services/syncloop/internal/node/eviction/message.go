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

// The annotations of the event of a pod that is ended, as the kubelet has them: which containers use more than they ask
// for and how much, the pod when it asks for something as a whole, and of what the node has too little.
const (
	annotationContainers      = "offending_containers"
	annotationContainersUsage = "offending_containers_usage"
	annotationPod             = "offending_pod"
	annotationPodUsage        = "offending_pod_usage"
	annotationResource        = "starved_resource"
)

// larger is what is said of a container, and of a pod as a whole.
const larger = "%s %s was using %s, request is %s, has larger consumption of %s. "

// message says why a pod is ended, in the kubelet's words: what the node was low on, and which containers use more of
// it than they ask for. The annotations say it to programs; there are none when it is not known what the pod uses.
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
		if request, asked := pod.Spec.Resources.Requests[name]; asked {
			used := resource.NewQuantity(int64(ptr.Deref(stats.Memory.WorkingSetBytes, 0)), resource.BinarySI) //nolint:gosec // less than 8 EiB
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
	annotations[annotationContainers], annotations[annotationContainersUsage] = strings.Join(containers, ","), strings.Join(amounts, ",")
	return text.String(), annotations
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
