package oracle

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// kubelet is the kubelet's CPU manager without its loop, as an owner of hints.
type kubelet struct {
	policy cpumanager.Policy
	state  state.State
}

func (k *kubelet) GetTopologyHints(
	l klog.Logger, pod *v1.Pod, c *v1.Container, op lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return k.policy.GetTopologyHints(l, k.state, pod, c, op)
}

func (k *kubelet) GetPodTopologyHints(
	l klog.Logger, pod *v1.Pod, op lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return k.policy.GetPodTopologyHints(l, k.state, pod, op)
}

func (k *kubelet) AllocatePod(l klog.Logger, pod *v1.Pod, op lifecycle.Operation) error {
	return k.policy.AllocatePod(l, k.state, pod, op)
}

func (k *kubelet) Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, op lifecycle.Operation) error {
	return k.policy.Allocate(klog.FromContext(ctx), k.state, pod, c, op)
}

// another is an owner on both sides that gives random hints for other resources, the same ones on both.
type another struct{ hints map[string]numa.Hints }

func (a *another) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	return a.hints[string(pod.UID)+"/"+c.Name]
}
func (a *another) PodHints(pod *v1.Pod) numa.Hints { return a.hints[string(pod.UID)] }

func (*another) Reserve(*v1.Pod, *v1.Container, numa.Hint) error { return nil }

func (*another) Settle(context.Context, *v1.Pod, *v1.Container, numa.Mask) error { return nil }

// anotherOfKubelet is another for the kubelet.
type anotherOfKubelet struct{ same *another }

func (a anotherOfKubelet) GetTopologyHints(
	_ klog.Logger, pod *v1.Pod, c *v1.Container, _ lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return convert(a.same.Hints(pod, c))
}

func (a anotherOfKubelet) GetPodTopologyHints(
	_ klog.Logger, pod *v1.Pod, _ lifecycle.Operation,
) map[string][]topologymanager.TopologyHint {
	return convert(a.same.PodHints(pod))
}

func (anotherOfKubelet) AllocatePod(klog.Logger, *v1.Pod, lifecycle.Operation) error { return nil }

func (anotherOfKubelet) Allocate(context.Context, *v1.Pod, *v1.Container, lifecycle.Operation) error {
	return nil
}

func convert(hints numa.Hints) map[string][]topologymanager.TopologyHint {
	if hints == nil {
		return nil
	}
	all := map[string][]topologymanager.TopologyHint{}
	for name, list := range hints {
		var converted []topologymanager.TopologyHint
		if list != nil {
			converted = []topologymanager.TopologyHint{}
		}
		for _, h := range list {
			mask, err := bitmask.NewBitMask(h.Nodes.Nodes()...)
			if err != nil {
				panic(err)
			}
			converted = append(converted, topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: h.Preferred})
		}
		all[name] = converted
	}
	return all
}

// ours is Quartet's book as an owner.
type ours struct{ *cpus.Book }

func (o ours) Reserve(pod *v1.Pod, c *v1.Container, best numa.Hint) error {
	_, err := o.Allocate(pod, c, best.Nodes)
	return err
}

func (ours) Settle(context.Context, *v1.Pod, *v1.Container, numa.Mask) error { return nil }
