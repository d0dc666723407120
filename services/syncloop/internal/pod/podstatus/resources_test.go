package podstatus_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// text formats resources as one line.
func text(r *v1.ResourceRequirements) string {
	out := ""
	for _, list := range []struct {
		name string
		list v1.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			if quantity, ok := list.list[name]; ok {
				out += " " + list.name + "." + string(name) + "=" + quantity.String()
			}
		}
	}
	return out
}

func TestTheResourcesOfAContainer(t *testing.T) {
	runs := func(shares, quota, memory int64) *lifecyclev1.LinuxResources {
		return &lifecyclev1.LinuxResources{CpuShares: shares, CpuQuota: quota, CpuPeriod: 100_000, MemoryLimitInBytes: memory}
	}
	all := func(cpu, memory string) v1.ResourceList { return podtest.List("cpu", cpu, "memory", memory) }
	for name, tc := range map[string]struct {
		requests, limits v1.ResourceList
		state            string
		has              *lifecyclev1.LinuxResources
		actuated         resize.Amounts
		before           *v1.ResourceRequirements
		want             string
	}{
		"what it is to have": {all("1", "1Mi"), all("2", "2Mi"), "running", runs(1024, 200_000, 2<<20), resize.Amounts{MemoryRequest: 1 << 20}, nil,
			" requests.cpu=1 requests.memory=1Mi limits.cpu=2 limits.memory=2Mi"},
		"something else": {all("1", "1Mi"), all("2", "2Mi"), "running", runs(512, 100_000, 1<<20), resize.Amounts{MemoryRequest: 512 << 10}, nil,
			" requests.cpu=500m requests.memory=512Ki limits.cpu=1 limits.memory=1Mi"},
		"it does not run": {all("1", "1Mi"), all("2", "2Mi"), "exited=1", runs(512, 100_000, 1<<20), resize.Amounts{}, nil,
			" requests.cpu=1 requests.memory=1Mi limits.cpu=2 limits.memory=2Mi"},
		"less than the kernel tells apart": {podtest.List("cpu", "1m"), podtest.List("cpu", "5m"), "running", runs(2, 1000, 0), resize.Amounts{}, nil,
			" requests.cpu=1m limits.cpu=5m"},
		"nothing is asked for": {nil, nil, "running", runs(2, 0, 0), resize.Amounts{}, nil, ""},
		"limits that are about to be added": {podtest.List("cpu", "1"), podtest.List("memory", "1Mi"), "running", runs(1024, 0, 0), resize.Amounts{}, nil,
			" requests.cpu=1 limits.memory=1Mi"},
		"a runtime that says nothing": {all("1", "1Mi"), all("2", "2Mi"), "running", nil, resize.Amounts{MemoryRequest: 1 << 20},
			&v1.ResourceRequirements{Requests: all("500m", "512Ki"), Limits: all("1", "1Mi")},
			" requests.cpu=500m requests.memory=1Mi limits.cpu=1 limits.memory=1Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
			pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: tc.requests, Limits: tc.limits}
			status := podviewtest.Status(pod, "s0:ready a@s0:"+tc.state)
			status.Containers[0].Resources = tc.has
			in := podstatus.Inputs{
				Now:    now,
				Resize: resize.Record{Actuated: resize.Actuated{Containers: map[string]resize.Amounts{"a-1": tc.actuated}}},
			}
			if tc.before != nil {
				in.Previous.ContainerStatuses = []v1.ContainerStatus{{
					Name: "a", ContainerID: "containerd://a-1", Resources: tc.before, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
				}}
			}
			got := podstatus.Generate(pod, status, in).ContainerStatuses[0]
			if text(got.Resources) != tc.want {
				t.Errorf("it has %s, want %s", text(got.Resources), tc.want)
			}
			if diff := cmp.Diff(tc.requests, got.AllocatedResources); diff != "" {
				t.Errorf("allocated: -want +got\n%s", diff)
			}
		})
	}
}

func TestTheResourcesOfAPodAsAWhole(t *testing.T) {
	own := &v1.ResourceRequirements{Requests: podtest.List("cpu", "3"), Limits: podtest.List("cpu", "4", "memory", "8Mi")}
	cgroup := &resources.Resources{CPUShares: 2048, CPUQuota: 300_000, CPUPeriod: 100_000, Memory: 4 << 20}
	progress := resize.Record{Conditions: resize.Conditions{InProgress: &resize.Condition{}}}
	before := v1.PodStatus{
		Phase: v1.PodRunning, Resources: &v1.ResourceRequirements{Requests: podtest.List("cpu", "500m")},
	}
	for name, tc := range map[string]struct {
		state string
		own   *v1.ResourceRequirements
		in    podstatus.Inputs
		want  string
	}{
		"it does not run": {"created", nil, podstatus.Inputs{Cgroup: cgroup}, " requests.cpu=1 requests.memory=1Mi limits.cpu=2 limits.memory=2Mi"},
		"what its cgroup has": {"running", nil, podstatus.Inputs{Cgroup: cgroup},
			" requests.cpu=2 requests.memory=1Mi limits.cpu=3 limits.memory=4Mi"},
		"what its cgroup has of its own": {"running", own, podstatus.Inputs{Cgroup: cgroup}, " requests.cpu=2 requests.memory=1Mi limits.cpu=3 limits.memory=4Mi"},
		"a cgroup without limits": {"running", nil, podstatus.Inputs{Cgroup: &resources.Resources{CPUShares: 1024, CPUQuota: resources.NoLimit, Memory: resources.NoLimit}},
			" requests.cpu=1 requests.memory=1Mi"},
		"a weight of version 2 that stands for what is allocated": {"running", own,
			podstatus.Inputs{Cgroup: &resources.Resources{CPUShares: resources.SharesOf(resources.Weight(3072))}}, " requests.cpu=3 requests.memory=1Mi limits.cpu=4 limits.memory=8Mi"},
		"no cgroups":                  {"running", own, podstatus.Inputs{Previous: before}, " requests.cpu=3 requests.memory=1Mi limits.cpu=4 limits.memory=8Mi"},
		"no cgroups, while it lowers": {"running", own, podstatus.Inputs{Previous: before, Resize: progress}, " requests.cpu=500m"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
			pod.Spec.Resources = tc.own
			pod.Spec.Containers[0].Resources = v1.ResourceRequirements{
				Requests: podtest.List("cpu", "1", "memory", "1Mi"), Limits: podtest.List("cpu", "2", "memory", "2Mi"),
			}
			tc.in.Now = now
			got := podstatus.Generate(pod, podviewtest.Status(pod, "s0:ready a@s0:"+tc.state), tc.in)
			if text(got.Resources) != tc.want {
				t.Errorf("it has %s, want %s", text(got.Resources), tc.want)
			}
			if cpu := got.AllocatedResources.Cpu().Value(); cpu != 1 && tc.own == nil || cpu != 3 && tc.own != nil {
				t.Errorf("allocated are %v", got.AllocatedResources)
			}
		})
	}
}

func TestTheConditionsOfAResize(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	pod.Generation = 5
	pod.Status.Conditions = []v1.PodCondition{
		{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonDeferred, Message: "old"},
		{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue, Message: "old"},
	}
	of := func(in podstatus.Inputs) (all []v1.PodCondition) {
		in.Now = now
		for _, c := range podstatus.Generate(pod, podviewtest.Status(pod, "s0:ready a@s0:running"), in).Conditions {
			if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
				all = append(all, c)
			}
		}
		return all
	}
	since := now.Add(-time.Hour)
	record := resize.Record{Conditions: resize.Conditions{
		Pending:    &resize.Condition{Reason: v1.PodReasonDeferred, Message: "no room", Generation: 4, Since: since},
		InProgress: &resize.Condition{Reason: v1.PodReasonError, Message: "no", Generation: 3, Since: since},
	}}
	got := of(podstatus.Inputs{Resize: record})
	if len(got) != 2 ||
		got[0].Type != v1.PodResizePending || got[0].Message != "no room" || got[0].ObservedGeneration != 4 ||
		got[1].Type != v1.PodResizeInProgress || got[1].Reason != v1.PodReasonError ||
		got[1].ObservedGeneration != 3 || !got[1].LastTransitionTime.Time.Equal(since) {
		t.Errorf("the conditions are %+v", got)
	}
	if got := of(podstatus.Inputs{}); len(got) > 0 {
		t.Errorf("a pod that has what it asks for has %+v", got)
	}
	if got := of(podstatus.Inputs{Resize: record, Terminal: true}); len(got) > 0 {
		t.Errorf("a pod that has ended has %+v, want none", got)
	}
}
