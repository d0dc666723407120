package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// drawOptions returns options that the kubelet accepts together, except for the machine.
func drawOptions(r *rand.Rand) map[string]string {
	options := map[string]string{}
	set := func(name string, odds int) {
		if r.IntN(odds) == 0 {
			options[name] = "true"
		}
	}
	set("strict-cpu-reservation", 4)
	set("align-by-socket", 6)
	switch r.IntN(5) {
	case 0:
		set("distribute-cpus-across-cores", 1)
	case 1:
		set("distribute-cpus-across-numa", 1)
		set("full-pcpus-only", 2)
	case 2:
		set("prefer-align-cpus-by-uncorecache", 1)
		set("full-pcpus-only", 2)
	default:
		set("full-pcpus-only", 2)
	}
	return options
}

// drawReserved reserves some CPU time, or some CPUs. With distribute-cpus-across-numa and full-pcpus-only whole cores
// are reserved: the kubelet does not end for some requests if a core is reserved in part.
func (w *world) drawReserved() {
	all := cpusOf(w.machine)
	w.milli = int64(1+w.rand.IntN(3)) * 500
	if w.rand.IntN(3) > 0 && w.options["distribute-cpus-across-numa"] == "" {
		return
	}
	threads := len(w.machine.Topology[0].Cores[0].Threads)
	if w.options["distribute-cpus-across-numa"] != "" {
		w.reserved = cpuset.New(w.machine.Topology[0].Cores[0].Threads...)
		w.milli = int64(threads) * 1000
		return
	}
	w.reserved = cpuset.New(all[w.rand.IntN(len(all))], all[w.rand.IntN(len(all))])
	w.milli = int64(w.reserved.Size()) * 1000
}

func (w *world) draw() *v1.Pod {
	w.next++
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop",
		UID: types.UID(fmt.Sprint("pod", w.next))}}
	free := w.ours.Free().Size()
	guaranteed := w.rand.IntN(5) > 0
	add := func(list *[]v1.Container, name string, most int) {
		cpu := resource.NewQuantity(int64(1+w.rand.IntN(max(most, 1))), resource.DecimalSI)
		switch w.rand.IntN(8) {
		case 0:
			cpu = resource.NewMilliQuantity(1500, resource.DecimalSI)
		case 1:
			cpu = resource.NewQuantity(int64(w.machine.NumCores/len(w.machine.Topology)), resource.DecimalSI)
		}
		has := v1.ResourceList{v1.ResourceCPU: *cpu, v1.ResourceMemory: resource.MustParse("1Mi")}
		c := v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: has, Limits: has}}
		if !guaranteed {
			c.Resources.Limits = nil
		}
		*list = append(*list, c)
	}
	for i := range w.rand.IntN(3) {
		add(&pod.Spec.InitContainers, fmt.Sprint("init", i), free/2+1)
		if w.rand.IntN(3) == 0 {
			pod.Spec.InitContainers[i].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
	}
	for i := range 1 + w.rand.IntN(2) {
		add(&pod.Spec.Containers, fmt.Sprint("main", i), free/2+1)
	}
	if w.rand.IntN(10) == 0 {
		pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}
	}
	w.drawHints(pod)
	return pod
}

// drawHints draws the hints of the other owner for a pod and its containers.
func (w *world) drawHints(pod *v1.Pod) {
	draw := func() numa.Hints {
		hints := numa.Hints{}
		for i := range w.rand.IntN(3) {
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
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		w.other.hints[string(pod.UID)+"/"+c.Name] = draw()
	}
}

func describe(pod *v1.Pod) string {
	var all []string
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		all = append(all, fmt.Sprintf("%s=%s,sidecar=%v,limit=%v", c.Name, c.Resources.Requests.Cpu(), c.RestartPolicy != nil,
			c.Resources.Limits != nil))
	}
	return strings.Join(all, " ")
}
