package resize_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// running returns the observed status of a pod whose containers run with the resources in its spec.
func running(t interface{ Fatal(args ...any) }, pod *v1.Pod) *lifecyclev1.PodStatus {
	_, annotations, err := podlabels.Sandbox(pod, "")
	if err != nil {
		t.Fatal(err)
	}
	status := &lifecyclev1.PodStatus{Sandboxes: []*lifecyclev1.Sandbox{{
		Id: "s", State: lifecyclev1.SandboxState_SANDBOX_STATE_READY, Annotations: annotations,
	}}}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		_, annotations, err := podlabels.Container(pod, c, podlabels.Restart{}, "")
		if err != nil {
			t.Fatal(err)
		}
		status.Containers = append(status.Containers, &lifecyclev1.Container{
			Id: c.Name + "-1", Name: c.Name, SandboxId: "s", State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING, Annotations: annotations,
		})
	}
	return status
}

func TestResizeInProgress(t *testing.T) {
	pod := podtest.Pod("u", named("a", list("cpu", "1"), nil), named("b", nil, nil))
	pod.Spec.Resources = &v1.ResourceRequirements{Limits: list("memory", "1Gi")}
	status := running(t, pod)
	var actuated resize.Actuated
	check := func(name string, pod *v1.Pod, want bool) {
		t.Helper()
		if got := resize.InProgress(pod, status, actuated); got != want {
			t.Errorf("%s is in progress: %v, want %v", name, got, want)
		}
	}
	check("what was made", pod, false)
	bigger := pod.DeepCopy()
	bigger.Spec.Containers[0].Resources.Requests = list("cpu", "2")
	check("a container", bigger, true)
	actuated.Note(status, "a-1", resize.AmountsOf(bigger.Spec.Resources, bigger.Spec.Containers[0].Resources))
	check("a container that was changed", bigger, false)
	check("the way back", pod, true)

	whole := bigger.DeepCopy()
	whole.Spec.Resources = &v1.ResourceRequirements{Limits: list("memory", "2Gi")}
	check("the pod", whole, true)
	amounts := resize.OfPod(whole.Spec.Resources)
	actuated.Pod = &amounts
	check("containers without limits of their own", whole, true)
	for i, c := range whole.Spec.Containers {
		actuated.Note(status, status.Containers[i].GetId(), resize.AmountsOf(whole.Spec.Resources, c.Resources))
	}
	check("all of it", whole, false)

	status.Containers[0].State = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	check("what does not run", func() *v1.Pod {
		p := whole.DeepCopy()
		p.Spec.Containers[0].Resources.Requests = list("cpu", "4")
		return p
	}(), false)

	status.Containers[1].Annotations, actuated = nil, resize.Actuated{Pod: &amounts}
	check("what something else has made", whole, false)
}

func TestWhatIsGoneIsForgotten(t *testing.T) {
	status := &lifecyclev1.PodStatus{Containers: []*lifecyclev1.Container{{Id: "a"}, {Id: "b"}}}
	actuated := resize.Actuated{Containers: map[string]resize.Amounts{"gone": {}, "a": {}}}
	actuated.Note(status, "b", resize.Amounts{CPULimit: 1})
	want := resize.Actuated{Containers: map[string]resize.Amounts{"a": {}, "b": {CPULimit: 1}}}
	if diff := cmp.Diff(want, actuated); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestTheAllocationOfAPodIsRecovered(t *testing.T) {
	made := podtest.Pod("u", named("a", list("cpu", "1"), nil), named("b", nil, nil), named("later", list("cpu", "3"), nil))
	made.Spec.Resources = &v1.ResourceRequirements{Requests: list("cpu", "8")}
	status := running(t, made)
	status.Containers = status.Containers[:2] // the last container was not started yet
	wanted := made.DeepCopy()
	wanted.Spec.Resources = nil
	for i := range wanted.Spec.Containers {
		wanted.Spec.Containers[i].Resources.Requests = list("cpu", "5")
	}
	if got := resize.Recover(wanted, status); !got.Equal(resize.Of(made)) {
		t.Errorf("got %v, want %v", got, resize.Of(made))
	}
	if got := resize.Recover(wanted, nil); !got.Equal(resize.Of(wanted)) {
		t.Errorf("of a pod that was never started it is %v", got)
	}
	// A restarted container is newer than its sandbox.
	restarted := wanted.DeepCopy()
	_, annotations, err := podlabels.Container(restarted, &restarted.Spec.Containers[0], podlabels.Restart{}, "")
	if err != nil {
		t.Fatal(err)
	}
	status.Containers[0].Annotations = annotations
	cpu := func(a resize.Allocation, name string) int64 {
		r := a.Containers[name]
		return r.Requests.Cpu().Value()
	}
	if got := resize.Recover(wanted, status); cpu(got, "a") != 5 {
		t.Errorf("with a restarted container it is %v, want cpu 5", got)
	}
	// Sandboxes of earlier versions have no annotations.
	status.Sandboxes[0].Annotations = nil
	if got := resize.Recover(wanted, status); got.Pod != nil || cpu(got, "later") != 5 || cpu(got, "b") != 0 {
		t.Errorf("without the sandbox it is %v", got)
	}
}

// observed returns the runtime's report of a container with the given amounts.
func observed(a resize.Amounts) *lifecyclev1.LinuxResources {
	request := a.CPURequest
	if request == 0 {
		request = a.CPULimit
	}
	r := &lifecyclev1.LinuxResources{
		CpuShares: int64(resources.Shares(request)), CpuPeriod: 100_000, MemoryLimitInBytes: a.MemoryLimit,
	}
	if a.CPULimit > 0 {
		r.CpuQuota = max(a.CPULimit*100, 1000)
	}
	return r
}

// TestALostRecordIsRebuiltFromWhatRuns checks that for any created, resized and desired resources, the recovered
// allocation equals what the containers run with, and that the actuated resources are recovered too.
func TestALostRecordIsRebuiltFromWhatRuns(t *testing.T) {
	// A container has both limits, because limits cannot be removed, and requests that do not exceed them.
	requirements := rapid.Custom(func(t *rapid.T) v1.ResourceRequirements {
		cpu, memory := rapid.Int64Range(1, 400).Draw(t, "cpu"), rapid.Int64Range(1, 400).Draw(t, "memory")<<20
		quantity := func(cpu, memory int64) v1.ResourceList {
			return v1.ResourceList{
				v1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
				v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
			}
		}
		return v1.ResourceRequirements{
			Requests: quantity(rapid.Int64Range(1, cpu).Draw(t, "request"), rapid.Int64Range(1, memory).Draw(t, "memory request")), Limits: quantity(cpu, memory),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		made := podtest.Pod("u", named("a", nil, nil), named("b", nil, nil))
		wanted := made.DeepCopy()
		for i := range made.Spec.Containers {
			made.Spec.Containers[i].Resources = requirements.Draw(t, "made")
			wanted.Spec.Containers[i].Resources = requirements.Draw(t, "wanted")
		}
		status := running(t, made)
		runs := map[string]resize.Amounts{}
		for i, c := range status.Containers {
			has := rapid.SampledFrom([]v1.ResourceRequirements{
				made.Spec.Containers[i].Resources, wanted.Spec.Containers[i].Resources, requirements.Draw(t, "resized"),
			}).Draw(t, "has")
			runs[c.GetId()] = resize.AmountsOf(nil, has)
			c.Resources = observed(runs[c.GetId()])
		}
		record := resize.Rebuild(wanted, status)
		pod := record.Allocated.On(wanted)
		if resize.InProgress(pod, status, record.Actuated) {
			t.Fatalf("%+v is promised and %+v runs", record.Allocated, record.Actuated)
		}
		for i, c := range status.Containers {
			got, want := observed(resize.AmountsOf(nil, pod.Spec.Containers[i].Resources)), c.GetResources()
			if got.GetCpuShares() != want.GetCpuShares() || got.GetCpuQuota() != want.GetCpuQuota() ||
				got.GetMemoryLimitInBytes() != want.GetMemoryLimitInBytes() {
				t.Fatalf("%v is promised, %v runs, want CpuShares %v, CpuQuota %v and MemoryLimitInBytes %v",
					got, want, want.GetCpuShares(), want.GetCpuQuota(), want.GetMemoryLimitInBytes())
			}
		}
	})
}
