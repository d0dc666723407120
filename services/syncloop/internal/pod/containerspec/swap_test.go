package containerspec_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// TestSwapOfContainers compares memory.swap.max with the kubelet's formula: SWAP * REQUEST / MEMORY.
func TestSwapOfContainers(t *testing.T) {
	limited := containerspec.Node{
		CgroupV2: true, SwapLimit: true, LimitedSwap: true, SwapCapacity: 4 << 30,
		Capacity: v1.ResourceList{v1.ResourceMemory: resource.MustParse("16Gi")},
	}
	with := func(change func(*containerspec.Node)) containerspec.Node {
		node := limited
		change(&node)
		return node
	}
	burstable := resources("", "", "1Gi", "2Gi")
	static := func(pod *v1.Pod) { pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }
	for _, test := range []struct {
		name      string
		node      containerspec.Node
		resources v1.ResourceRequirements
		change    func(*v1.Pod)
		want      string
	}{
		{name: "burstable", node: limited, resources: burstable, want: "268435456"},
		{name: "burstable without a limit", node: limited, resources: resources("", "", "4Gi", ""), want: "1073741824"},
		{name: "of the API server", node: limited, resources: burstable, want: "268435456", change: func(pod *v1.Pod) {
			pod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		}},
		{name: "no swap", node: with(func(n *containerspec.Node) { n.LimitedSwap = false }), resources: burstable, want: "0"},
		{name: "guaranteed", node: limited, resources: resources("1", "1", "1Gi", "1Gi"), want: "0"},
		{name: "best effort", node: limited, want: "0"},
		{name: "request and limit equal", node: limited, resources: resources("1", "", "1Gi", "1Gi"), want: "0"},
		{name: "no memory", node: limited, resources: resources("1", "", "", ""), want: "0"},
		{name: "static", node: limited, resources: burstable, change: static, want: "0"},
		{name: "critical", node: limited, resources: burstable, want: "0", change: func(pod *v1.Pod) { pod.Spec.Priority = new(int32(2_000_000_000)) }},
		{name: "more than the machine has", node: limited, resources: resources("", "", "17Gi", ""), want: "0"},
		{name: "unknown memory", node: with(func(n *containerspec.Node) { n.Capacity = nil }), resources: burstable, want: "0"},
		{name: "a machine that cannot limit swap", node: with(func(n *containerspec.Node) { n.SwapLimit = false }), resources: burstable},
		{name: "cgroup v1", node: with(func(n *containerspec.Node) { n.CgroupV2 = false }), resources: burstable},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a", Resources: test.resources})
			if test.change != nil {
				test.change(pod)
			}
			config, err := containerspec.Container(pod, &pod.Spec.Containers[0], test.node, containerspec.Inputs{})
			if err != nil {
				t.Fatal(err)
			}
			if got := config.GetLinux().GetResources().GetUnified()["memory.swap.max"]; got != test.want {
				t.Errorf("memory.swap.max is %q, want %q", got, test.want)
			}
		})
	}
}
