package oracle

import (
	"reflect"
	"slices"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// nodes are the NUMA nodes of the machine, as cAdvisor has them in machine.
var (
	nodes   = []int{0, 1, 2}
	machine = []cadvisorapi.Node{{Id: 0}, {Id: 1}, {Id: 2}}
)

// store returns a topology manager that has chosen the affinity.
func (w *world) store() topologymanager.Manager {
	if w.affinity == 0 {
		return topologymanager.NewFakeManager(klog.Background())
	}
	mask, err := bitmask.NewBitMask(w.affinity.Nodes()...)
	if err != nil {
		w.t.Fatal(err)
	}
	return topologymanager.NewFakeManagerWithHint(klog.Background(), &topologymanager.TopologyHint{NUMANodeAffinity: mask})
}

// hinted compares the hints for a new pod and for its first container: what later containers can reuse is not known.
func (w *world) hinted(pod *v1.Pod) {
	logger, first := klog.Background(), &append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)[0]
	for _, hints := range []struct {
		theirs map[string][]topologymanager.TopologyHint
		ours   numa.Hints
	}{
		{w.theirs.GetTopologyHints(logger, pod, first, lifecycle.AddOperation), w.ours.Hints(pod, first, nodes)},
		{w.theirs.GetPodTopologyHints(logger, pod, lifecycle.AddOperation), w.ours.PodHints(pod, nodes)},
	} {
		theirs := numa.Hints{}
		for name, list := range hints.theirs {
			var converted []numa.Hint
			if list != nil {
				converted = []numa.Hint{}
			}
			for _, h := range list {
				nodes := numa.MaskOf(h.NUMANodeAffinity.GetBits()...)
				converted = append(converted, numa.Hint{Nodes: nodes, Preferred: h.Preferred})
			}
			theirs[name] = converted
		}
		if !reflect.DeepEqual(theirs, hints.ours) {
			w.fatalf("%s: the kubelet gives the hints %v, Quartet %v", pod.UID, theirs, hints.ours)
		}
	}
}
