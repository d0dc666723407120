// Package oracle compares the names and the limits of pods' cgroups with the kubelet's code, and also the pods that are
// evicted under pressure or preempted for a critical pod. It is a module of its own, so that the product cannot import
// the kubelet's code.
package oracle

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// TestPodsAreGivenWhatTheKubeletGivesThem covers any resources of containers.
func TestPodsAreGivenWhatTheKubeletGivesThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := podOf(t)
		if rapid.IntRange(0, 3).Draw(t, "guaranteed") == 0 {
			guarantee(pod)
		}
		limits := resources.Limits{
			CPUQuota:  rapid.Bool().Draw(t, "quota"),
			CPUPeriod: rapid.SampledFrom([]time.Duration{100 * time.Millisecond, 5 * time.Millisecond}).Draw(t, "period"),
			MemoryQoS: resources.MemoryQoS{
				Enabled:    rapid.Bool().Draw(t, "enabled"),
				Throttling: rapid.SampledFrom([]float64{0, 0.5, 0.9, 1}).Draw(t, "throttling"),
			},
		}
		limits.MemoryQoS.Tiered = limits.MemoryQoS.Enabled && rapid.Bool().Draw(t, "tiered")
		if diff := cmp.Diff(byKubeletFor(pod, limits), resources.ForPod(pod, limits)); diff != "" {
			t.Fatalf("(-kubelet +ours):\n%s", diff)
		}
	})
}

// TestEachKindOfValueIsTheKubelets has a pod for each value that a pod's cgroup may be given, so that none is left to
// what the test above draws.
func TestEachKindOfValueIsTheKubelets(t *testing.T) {
	amounts := func(cpu, memory string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
	}
	small, large := amounts("250m", "64Mi"), amounts("1500m", "3Gi")
	huge := v1.ResourceList{"hugepages-2Mi": resource.MustParse("8Mi")}
	onlyCPU := v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}
	onlyMemory := v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
	of := func(requests, limits v1.ResourceList) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: requests, Limits: limits}
	}
	const quota, memory, pages = "cpu.max", "memory.max", "hugetlb.2MB.max"
	const least, low, high = "memory.min", "memory.low", "memory.high"
	tests := map[string]struct {
		container v1.ResourceRequirements
		whole     *v1.ResourceRequirements
		want      []string
	}{
		"no resources":          {},
		"requests":              {container: of(small, nil), want: []string{low}},
		"a limit of CPU":        {container: of(onlyCPU, onlyCPU), want: []string{quota}},
		"a limit of memory":     {container: of(nil, onlyMemory), want: []string{memory}},
		"huge pages":            {container: of(huge, huge), want: []string{pages}},
		"guaranteed":            {container: of(small, small), want: []string{quota, memory, least}},
		"burstable":             {container: of(small, large), want: []string{quota, low, memory}},
		"guaranteed as a whole": {whole: ptr.To(of(small, small)), want: []string{quota, memory, least}},
		"burstable as a whole":  {whole: ptr.To(of(small, large)), want: []string{quota, high, low, memory}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{}
			pod.Spec.Resources, pod.Spec.Containers = tc.whole, []v1.Container{{Name: "c", Resources: tc.container}}
			limits := resources.Limits{
				CPUQuota: true, CPUPeriod: 100 * time.Millisecond,
				MemoryQoS: resources.MemoryQoS{Enabled: true, Tiered: true, Throttling: 0.9},
			}
			their := byKubeletFor(pod, limits)
			if diff := cmp.Diff(their, resources.ForPod(pod, limits)); diff != "" {
				t.Errorf("(-kubelet +ours):\n%s", diff)
			}
			var set []string
			for name, is := range map[string]bool{
				quota: their.CPUQuota != resources.NoLimit, memory: their.Memory != resources.NoLimit,
				pages: len(their.HugePages) > 0,
			} {
				if is {
					set = append(set, name)
				}
			}
			set = slices.Sorted(slices.Values(slices.AppendSeq(set, maps.Keys(their.Unified))))
			if diff := cmp.Diff(tc.want, set); diff != "" {
				t.Errorf("values that the kubelet sets (-want +got):\n%s", diff)
			}
		})
	}
}

// byKubeletFor returns what the kubelet writes into a pod's cgroup. If it writes no value, a new cgroup stays without
// a limit.
func byKubeletFor(pod *v1.Pod, limits resources.Limits) resources.Resources {
	protect, policy := limits.MemoryQoS, kubeletconfig.NoneMemoryReservationPolicy
	if protect.Tiered {
		policy = kubeletconfig.TieredReservationMemoryReservationPolicy
	}
	period := uint64(limits.CPUPeriod.Microseconds())
	their := cm.ResourceConfigForPod(pod, limits.CPUQuota, period, protect.Enabled, policy)
	if protect.Throttling > 0 {
		cm.ApplyPodLevelMemoryHigh(pod, their, protect.Throttling)
	}
	all := resources.Resources{
		CPUQuota: resources.NoLimit, Memory: resources.NoLimit, CPUShares: *their.CPUShares, HugePages: their.HugePageLimit,
		Unified: their.Unified,
	}
	if their.CPUQuota != nil && *their.CPUQuota != resources.NoLimit {
		all.CPUQuota, all.CPUPeriod = *their.CPUQuota, *their.CPUPeriod
	}
	if their.Memory != nil {
		all.Memory = *their.Memory
	}
	return all
}

// guarantee gives each container of a pod equal requests and limits.
func guarantee(pod *v1.Pod) {
	pod.Spec.Resources = nil
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			same := v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("64Mi")}
			list[i].Resources = v1.ResourceRequirements{Requests: same, Limits: same}
		}
	}
}

// podOf draws a pod of up to three containers, one of which may be an init container or a sidecar, with or without
// limits.
func podOf(t *rapid.T) *v1.Pod {
	pod := &v1.Pod{}
	pod.UID = types.UID(rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}`).Draw(t, "uid"))
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		c := v1.Container{Name: fmt.Sprint("c", i), Resources: resourcesOf(t)}
		always := v1.ContainerRestartPolicyAlways
		switch rapid.SampledFrom([]string{"main", "main", "init", "sidecar"}).Draw(t, "kind") {
		case "sidecar":
			c.RestartPolicy = &always
			fallthrough
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "overhead") == 0 {
		pod.Spec.Overhead = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("50m"), v1.ResourceMemory: resource.MustParse("16Mi"),
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "whole") == 0 {
		whole := resourcesOf(t)
		pod.Spec.Resources = &whole
	}
	return pod
}

// resourcesOf draws requests and limits. A limit without a request is also the request, as in the defaults of pods.
func resourcesOf(t *rapid.T) v1.ResourceRequirements {
	r := v1.ResourceRequirements{Requests: v1.ResourceList{}, Limits: v1.ResourceList{}}
	for name, amounts := range map[v1.ResourceName][]string{
		v1.ResourceCPU: {"1m", "3m", "250m", "1500m", "300"}, v1.ResourceMemory: {"1Mi", "64Mi", "3Gi"}, "hugepages-2Mi": {"2Mi", "8Mi"},
	} {
		limit := rapid.SampledFrom(append(amounts, "", "")).Draw(t, "limit of "+string(name))
		request := rapid.SampledFrom(append(amounts, "", "")).Draw(t, "request of "+string(name))
		if name == "hugepages-2Mi" {
			request = limit
		}
		if limit != "" {
			r.Limits[name] = resource.MustParse(limit)
			r.Requests[name] = r.Limits[name]
		}
		if request != "" {
			r.Requests[name] = resource.MustParse(request)
		}
	}
	return r
}

func TestNamesAreTheKubelets(t *testing.T) {
	for _, root := range []string{"/", "/nodes/a-b"} {
		for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
			parts := []string{"kubepods"}
			switch class {
			case v1.PodQOSBurstable:
				parts = append(parts, "burstable")
			case v1.PodQOSBestEffort:
				parts = append(parts, "besteffort")
			case v1.PodQOSGuaranteed:
			}
			pod := &v1.Pod{Status: v1.PodStatus{QOSClass: class}}
			pod.UID = "0123-ab"
			parts = append(parts, cm.GetPodCgroupNameSuffix(pod.UID))
			their := cm.NewCgroupName(cm.ParseCgroupfsToCgroupName(root), parts...)
			for driver, want := range map[string]string{"cgroupfs": their.ToCgroupfs(), "systemd": their.ToSystemd()} {
				names := podcgroups.NewNames(driver, root)
				if got, err := names.Pod(pod); err != nil || got != want {
					t.Errorf("%s in %s: got %s, %v, the kubelet's is %s", driver, root, got, err, want)
				}
				if got, want := names.Class(class), path.Dir(want); got != want {
					t.Errorf("%s in %s: %s pods are in %s, the kubelet's in %s", driver, root, class, got, want)
				}
				if got, want := names.Pods(), cm.NodeAllocatableRoot(root, true, driver); got != want {
					t.Errorf("%s in %s: all pods are in %s, the kubelet's in %s", driver, root, got, want)
				}
			}
		}
	}
}
