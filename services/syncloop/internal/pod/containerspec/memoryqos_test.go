package containerspec_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	podresources "github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// TestMemoryQoSOfContainers has the values of the kubelet for cgroup v2.
func TestMemoryQoSOfContainers(t *testing.T) {
	none := map[string]string{"memory.min": "0", "memory.low": "0"}
	with := func(settings map[string]string, more ...string) map[string]string {
		all := map[string]string{more[0]: more[1]}
		for name, value := range settings {
			all[name] = value
		}
		return all
	}
	whole := resources("", "", "", "4Gi")
	for _, test := range []struct {
		name      string
		qos       podresources.MemoryQoS
		resources v1.ResourceRequirements
		pod       *v1.ResourceRequirements
		forPods   int64
		want      map[string]string
	}{
		{name: "off", want: map[string]string{"memory.high": "max"}, resources: resources("1", "1", "1Gi", "1Gi")},
		{name: "neither", qos: podresources.MemoryQoS{Enabled: true}, want: none,
			resources: resources("1", "1", "1Gi", "1Gi")},
		{name: "guaranteed", qos: podresources.MemoryQoS{Enabled: true, Tiered: true, Throttling: 0.5},
			resources: resources("1", "1", "1Gi", "1Gi"), want: map[string]string{"memory.min": "1073741824"}},
		{name: "burstable", qos: podresources.MemoryQoS{Enabled: true, Tiered: true, Throttling: 0.5},
			resources: resources("", "", "1Gi", "2Gi"),
			want:      map[string]string{"memory.low": "1073741824", "memory.high": "1610612736"}},
		{name: "throttled only", qos: podresources.MemoryQoS{Enabled: true, Throttling: 0.5},
			resources: resources("", "", "1Gi", "2Gi"), want: with(none, "memory.high", "1610612736")},
		{name: "in whole pages", qos: podresources.MemoryQoS{Enabled: true, Throttling: 0.9},
			resources: resources("", "", "5000", "100000"), want: with(none, "memory.high", "90112")},
		{name: "less than a page more", qos: podresources.MemoryQoS{Enabled: true, Throttling: 0.9},
			resources: resources("", "", "8193", "8200"), want: none},
		{name: "without a limit", qos: podresources.MemoryQoS{Enabled: true, Throttling: 0.5}, forPods: 8 << 30,
			resources: resources("", "", "2Gi", ""), want: with(none, "memory.high", "5368709120")},
		{name: "best effort", qos: podresources.MemoryQoS{Enabled: true, Tiered: true, Throttling: 0.5}, forPods: 8 << 30,
			want: with(none, "memory.high", "4294967296")},
		{name: "without a limit on an unknown machine",
			qos: podresources.MemoryQoS{Enabled: true, Throttling: 0.5}, want: none},
		{name: "the pod's limit", qos: podresources.MemoryQoS{Enabled: true, Throttling: 0.5}, forPods: 8 << 30, pod: &whole,
			resources: resources("", "", "1Gi", ""), want: none},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a", Resources: test.resources})
			pod.Spec.Resources = test.pod
			node := containerspec.Node{CgroupV2: true, MemoryQoS: test.qos, MemoryForPods: test.forPods}
			got := containerspec.Resources(pod, &pod.Spec.Containers[0], node).GetUnified()
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			node.CgroupV2 = false
			if got := containerspec.Resources(pod, &pod.Spec.Containers[0], node).GetUnified(); got != nil {
				t.Errorf("cgroup v1: %v", got)
			}
		})
	}
}
