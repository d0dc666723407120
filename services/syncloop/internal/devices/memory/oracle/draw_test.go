package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

const mebi = 1 << 20

// drawMachine returns a machine of one to six NUMA nodes of the same or of different sizes, of which some have huge
// pages.
func drawMachine(r *rand.Rand) *model.MachineInfo {
	info := &model.MachineInfo{NumCores: 8}
	same := r.IntN(2) == 0
	size, pages := uint64(100+r.IntN(100)), uint64(r.IntN(20))
	for id := range []int{1, 1, 2, 2, 2, 3, 4, 4, 5, 6}[r.IntN(10)] {
		if !same {
			size, pages = uint64(60+r.IntN(140)), uint64(r.IntN(20))
		}
		node := model.Node{Id: id, Memory: size * mebi}
		for range 6 {
			node.Distances = append(node.Distances, 10+5*uint64(r.IntN(3)))
		}
		node.HugePages = []model.HugePagesInfo{{PageSize: 2048, NumPages: pages}}
		info.Topology = append(info.Topology, node)
	}
	return info
}

// drawReserved reserves memory of some NUMA nodes. Some reservations do not fit the machine or the configuration, and
// are refused on both sides. None is more than the node has: the kubelet's arithmetic overflows then.
func (w *world) drawReserved() {
	sum := resource.NewQuantity(0, resource.BinarySI)
	for id := range w.machine.Topology {
		if id > 0 && w.rand.IntN(3) == 0 {
			continue
		}
		amount := *resource.NewQuantity(int64(1+w.rand.IntN(20))*mebi, resource.BinarySI)
		sum.Add(amount)
		if w.rand.IntN(200) == 0 {
			id = len(w.machine.Topology)
		}
		w.reserved = append(w.reserved, kubeletconfigv1beta1.MemoryReservation{
			NumaNode: int32(id), Limits: v1.ResourceList{v1.ResourceMemory: amount},
		})
	}
	if w.rand.IntN(100) == 0 {
		sum.Add(*resource.NewQuantity(1, resource.BinarySI))
	}
	w.notForPods = v1.ResourceList{v1.ResourceMemory: *sum, v1.ResourceCPU: resource.MustParse("1")}
	switch w.rand.IntN(200) {
	case 0:
		w.notForPods["hugepages-2Mi"] = resource.MustParse("2Mi")
	case 1:
		w.reserved, w.notForPods = nil, nil
	}
}

func (w *world) draw() *v1.Pod {
	w.next++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop",
		UID: types.UID(fmt.Sprint("pod", w.next))}}
	guaranteed := w.rand.IntN(8) > 0
	add := func(list *[]v1.Container, name string) {
		most := []int{20, 60, 200, 400}[w.rand.IntN(4)]
		has := v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse("1"),
			v1.ResourceMemory: *resource.NewQuantity(int64(1+w.rand.IntN(most))*mebi, resource.BinarySI),
		}
		switch w.rand.IntN(40) {
		case 0, 1, 2, 3, 4:
			has["hugepages-2Mi"] = *resource.NewQuantity(int64(1+w.rand.IntN(20))*2*mebi, resource.BinarySI)
		case 5:
			has[v1.ResourceMemory] = resource.MustParse("1048576500m")
		case 6:
			if w.rand.IntN(10) == 0 {
				has["hugepages-1Gi"] = resource.MustParse("1Gi")
			}
		}
		c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: has, Limits: has}}
		if !guaranteed {
			c.Resources.Limits = nil
		}
		*list = append(*list, c)
	}
	for i := range w.rand.IntN(4) {
		add(&pod.Spec.InitContainers, fmt.Sprint("init", i))
		if w.rand.IntN(3) == 0 {
			pod.Spec.InitContainers[i].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
	}
	for i := range 1 + w.rand.IntN(2) {
		add(&pod.Spec.Containers, fmt.Sprint("main", i))
	}
	if w.rand.IntN(12) == 0 {
		pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("2Gi")}}
	}
	w.drawHints(pod)
	return pod
}

// drawHints draws the hints of the other owner for a pod and its containers.
func (w *world) drawHints(pod *v1.Pod) {
	draw := func() numa.Hints {
		hints := numa.Hints{}
		for i := range max(0, w.rand.IntN(4)-1) {
			var list []numa.Hint
			switch w.rand.IntN(8) {
			case 0:
			case 1:
				list = []numa.Hint{}
			default:
				for range 1 + w.rand.IntN(3) {
					nodes := numa.MaskOf(w.rand.IntN(len(w.machine.Topology)), w.rand.IntN(len(w.machine.Topology)))
					list = append(list, numa.Hint{Nodes: nodes, Preferred: w.rand.IntN(2) == 0})
				}
			}
			hints[fmt.Sprint("example.com/", i)] = list
		}
		return hints
	}
	w.other.hints[string(pod.UID)] = draw()
	for _, c := range containersOf(pod) {
		w.other.hints[string(pod.UID)+"/"+c.Name] = draw()
	}
}

func containersOf(pod *v1.Pod) []v1.Container {
	return append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
}

func describe(pod *v1.Pod) string {
	var all []string
	for _, c := range containersOf(pod) {
		pages := c.Resources.Requests["hugepages-2Mi"]
		_, unknown := c.Resources.Requests["hugepages-1Gi"]
		all = append(all, fmt.Sprintf("%s=%s+%s,unknown=%v,sidecar=%v,limit=%v", c.Name, c.Resources.Requests.Memory(),
			&pages, unknown, c.RestartPolicy != nil, c.Resources.Limits != nil))
	}
	return strings.Join(all, " ")
}
