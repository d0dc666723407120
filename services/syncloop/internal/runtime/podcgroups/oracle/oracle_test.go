// Package oracle compares the names and the limits of pods' cgroups with the kubelet's code, and also the pods that are
// evicted under pressure or preempted for a critical pod. It is a module of its own, so that the product cannot import
// the kubelet's code.
package oracle

import (
	"fmt"
	"path"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// TestPodsAreGivenWhatTheKubeletGivesThem covers any resources of containers.
func TestPodsAreGivenWhatTheKubeletGivesThem(t *testing.T) {
	classes, protected := map[string]int{}, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		pod := podOf(t)
		if rapid.IntRange(0, 3).Draw(t, "guaranteed") == 0 {
			guarantee(pod)
		}
		quota := rapid.Bool().Draw(t, "quota")
		period := rapid.SampledFrom([]time.Duration{100 * time.Millisecond, 5 * time.Millisecond}).Draw(t, "period")
		protect := resources.MemoryQoS{
			Enabled:    rapid.Bool().Draw(t, "enabled"),
			Throttling: rapid.SampledFrom([]float64{0, 0.5, 0.9, 1}).Draw(t, "throttling"),
		}
		policy := kubeletconfig.NoneMemoryReservationPolicy
		if protect.Enabled && rapid.Bool().Draw(t, "tiered") {
			protect.Tiered, policy = true, kubeletconfig.TieredReservationMemoryReservationPolicy
		}
		their := cm.ResourceConfigForPod(pod, quota, uint64(period.Microseconds()), protect.Enabled, policy)
		if protect.Throttling > 0 {
			cm.ApplyPodLevelMemoryHigh(pod, their, protect.Throttling)
		}
		want := resources.Resources{
			CPUQuota: resources.NoLimit, Memory: resources.NoLimit, CPUShares: *their.CPUShares, HugePages: their.HugePageLimit,
			Unified: their.Unified,
		}
		// If the kubelet sets no value, a new cgroup stays without a limit.
		if their.CPUQuota != nil && *their.CPUQuota != resources.NoLimit {
			want.CPUQuota, want.CPUPeriod = *their.CPUQuota, *their.CPUPeriod
		}
		if their.Memory != nil {
			want.Memory = *their.Memory
		}
		got := resources.ForPod(pod, resources.Limits{CPUQuota: quota, CPUPeriod: period, MemoryQoS: protect})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-kubelet +ours):\n%s", diff)
		}
		for name := range want.Unified {
			protected[name]++
		}
		classes[fmt.Sprint(want.CPUQuota == resources.NoLimit, want.Memory == resources.NoLimit)]++
	})
	if len(classes) < 4 {
		t.Errorf("the test compared only limits of %v, want cpu and memory with and without a limit", classes)
	}
	if len(protected) < 3 {
		t.Errorf("the test compared only %v, want memory.min, memory.low and memory.high", protected)
	}
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
