package show

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/kubectl/pkg/util/qos"
)

// print prints the description on a page, in the order of kubectl.
func (d nodeDescription) print(p *page, now time.Time) {
	node := d.node
	p.field(0, "Name", node.Name)
	p.field(0, "Cluster", d.cluster)
	p.field(0, "Labels", pairs(node.Labels, "=")...)
	p.field(0, "Annotations", pairs(node.Annotations, ": ")...)
	p.field(0, "CreationTimestamp", formatTime(node.CreationTimestamp))
	var taints []string
	for _, taint := range node.Spec.Taints {
		taints = append(taints, taint.ToString())
	}
	p.field(0, "Taints", taints...)
	p.field(0, "Unschedulable", strconv.FormatBool(node.Spec.Unschedulable))
	p.fieldIf(0, "PodCIDR", node.Spec.PodCIDR)
	p.fieldIf(0, "ProviderID", node.Spec.ProviderID)
	p.field(0, "Declared Features", node.Status.DeclaredFeatures...)
	d.printConditions(p, now)
	p.section(0, "Addresses")
	for _, address := range node.Status.Addresses {
		p.field(1, string(address.Type), address.Address)
	}
	printAmounts(p, "Capacity", node.Status.Capacity)
	printAmounts(p, "Allocatable", node.Status.Allocatable)
	d.printSystem(p)
	d.printPods(p, now)
	d.printAllocated(p)
	d.printHeld(p)
	d.printEvents(p, now)
}

func (d nodeDescription) printConditions(p *page, now time.Time) {
	var rows [][]string
	for _, c := range d.node.Status.Conditions {
		rows = append(rows, []string{
			string(c.Type), string(c.Status), age(c.LastTransitionTime.Time, now), c.Reason, oneLine(c.Message),
		})
	}
	p.table("Conditions", []string{"Type", "Status", "Since", "Reason", "Message"}, rows)
}

func printAmounts(p *page, name string, amounts v1.ResourceList) {
	if len(amounts) == 0 {
		p.empty(name)
		return
	}
	p.section(0, name)
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		amount := amounts[name]
		p.field(1, string(name), amount.String())
	}
}

func (d nodeDescription) printSystem(p *page) {
	info := d.node.Status.NodeInfo
	p.section(0, "System Info")
	for _, one := range [][2]string{
		{"Machine ID", info.MachineID},
		{"System UUID", info.SystemUUID},
		{"Boot ID", info.BootID},
		{"Kernel Version", info.KernelVersion},
		{"OS Image", info.OSImage},
		{"Operating System", info.OperatingSystem},
		{"Architecture", info.Architecture},
		{"Container Runtime Version", info.ContainerRuntimeVersion},
		{"Kubelet Version", info.KubeletVersion},
	} {
		p.field(1, one[0], orNone(one[1]))
	}
}

// total is the node's amount that percentages are of.
func (d nodeDescription) total() v1.ResourceList {
	if len(d.node.Status.Allocatable) > 0 {
		return d.node.Status.Allocatable
	}
	return d.node.Status.Capacity
}

// share formats an amount with its percentage of the node, as kubectl does.
func (d nodeDescription) share(name v1.ResourceName, of v1.ResourceList) string {
	amount, total := of[name], d.total()[name]
	percent := int64(0)
	if !total.IsZero() {
		percent = int64(amount.AsApproximateFloat64() / total.AsApproximateFloat64() * 100)
	}
	return fmt.Sprintf("%s (%d%%)", amount.String(), percent)
}

func (d nodeDescription) printPods(p *page, now time.Time) {
	var rows [][]string
	for _, v := range d.pods {
		requests := resourcehelper.PodRequests(v.pod, resourcehelper.PodResourcesOptions{})
		limits := resourcehelper.PodLimits(v.pod, resourcehelper.PodResourcesOptions{})
		rows = append(rows, []string{
			v.pod.Namespace, v.pod.Name,
			d.share(v1.ResourceCPU, requests), d.share(v1.ResourceCPU, limits),
			d.share(v1.ResourceMemory, requests), d.share(v1.ResourceMemory, limits),
			string(qos.GetPodQOS(v.pod)), age(v.pod.CreationTimestamp.Time, now),
		})
	}
	p.table(fmt.Sprintf("Non-terminated Pods (%d in total)", len(rows)), []string{
		"Namespace", "Name", "CPU Requests", "CPU Limits", "Memory Requests", "Memory Limits", "QoS Class", "Age",
	}, rows)
}

// printAllocated prints the sums of all pods: cpu, memory and ephemeral storage, and the other resources of the node.
func (d nodeDescription) printAllocated(p *page) {
	requests, limits := v1.ResourceList{}, v1.ResourceList{}
	for _, v := range d.pods {
		addTo(requests, resourcehelper.PodRequests(v.pod, resourcehelper.PodResourcesOptions{}))
		addTo(limits, resourcehelper.PodLimits(v.pod, resourcehelper.PodResourcesOptions{}))
	}
	names := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	for _, name := range slices.Sorted(maps.Keys(d.total())) {
		if name != v1.ResourcePods && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	var rows [][]string
	for _, name := range names {
		rows = append(rows, []string{string(name), d.share(name, requests), d.share(name, limits)})
	}
	p.table("Allocated Resources", []string{"Resource", "Requests", "Limits"}, rows)
}

func addTo(sum, amounts v1.ResourceList) {
	for name, amount := range amounts {
		total := sum[name]
		total.Add(amount)
		sum[name] = total
	}
}

func (d nodeDescription) printEvents(p *page, now time.Time) {
	var rows [][]string
	for _, e := range d.events {
		rows = append(rows, []string{e.Type, e.Reason, e.seen(now), oneLine(e.Message)})
	}
	p.table("Events", []string{"Type", "Reason", "Age", "Message"}, rows)
}

// bytesOf formats a number of bytes as a quantity.
func bytesOf(n uint64) string {
	return resource.NewQuantity(int64(n), resource.BinarySI).String() //nolint:gosec // less than the memory of a machine
}

// numbers formats numbers as a list of ranges, such as 0-3,8.
func numbers(all []int64) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(all)))
	var parts []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		part := strconv.FormatInt(sorted[i], 10)
		if j > i {
			part += "-" + strconv.FormatInt(sorted[j], 10)
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}
