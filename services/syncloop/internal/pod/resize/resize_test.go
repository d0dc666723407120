package resize_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

var list = podtest.List

// named returns a container with a name, requests and limits.
func named(name string, requests, limits v1.ResourceList) v1.Container {
	c := podtest.Container(requests, limits)
	c.Name = name
	return c
}

func TestAnAllocationIsPutOnAPod(t *testing.T) {
	pod := podtest.Pod("u", named("a", list("cpu", "1"), nil), named("b", nil, nil))
	pod.Spec.InitContainers = []v1.Container{named("i", list("memory", "1Mi"), list("memory", "2Mi"))}
	if got := resize.Of(pod).On(pod); got != pod {
		t.Error("a pod that has what is allocated is another one")
	}
	bigger := pod.DeepCopy()
	bigger.Spec.Containers[0].Resources.Requests = list("cpu", "2")
	bigger.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "gpu"}}
	bigger.Spec.InitContainers[0].Resources.Limits = list("memory", "4Mi")
	bigger.Spec.Resources = &v1.ResourceRequirements{Limits: list("cpu", "3")}
	got := resize.Of(pod).On(bigger)
	if got == bigger || !resize.Of(got).Equal(resize.Of(pod)) || got.Spec.Resources != nil ||
		len(got.Spec.Containers[0].Resources.Claims) != 1 {
		t.Errorf("the pod has %v and claims %v", resize.Of(got), got.Spec.Containers[0].Resources.Claims)
	}
	if back := resize.Of(bigger).On(got); !resize.Of(back).Equal(resize.Of(bigger)) {
		t.Errorf("the way back gives %v", resize.Of(back))
	}
	if resize.Of(pod).Equal(resize.Of(bigger)) {
		t.Error("two allocations are the same")
	}
	empty := pod.DeepCopy()
	empty.Spec.Resources, empty.Spec.Containers[1].Resources.Limits = &v1.ResourceRequirements{}, v1.ResourceList{}
	if resize.Of(pod).On(empty) != empty {
		t.Error("nothing is not the same as empty")
	}
}

func TestWhatIsRequested(t *testing.T) {
	before := podtest.Pod("u", named("a", list("cpu", "1", "memory", "1Mi"), list("cpu", "2")), named("b", nil, nil))
	after := podtest.Pod("u", named("a", list("cpu", "2", "memory", "1Mi"), list("memory", "2Mi")), named("b", nil, nil))
	want := []resize.Request{
		{Resource: "memory", Requirement: "limits", Operation: "add"}, {Resource: "cpu", Requirement: "requests", Operation: "increase"},
		{Resource: "cpu", Requirement: "limits", Operation: "remove"},
	}
	if diff := cmp.Diff(want, resize.Requests(before, after)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := resize.Requests(after, after); len(got) > 0 {
		t.Errorf("nothing is %v", got)
	}
	smaller := podtest.Pod("u", named("a", list("cpu", "0.5", "memory", "1Mi"), list("cpu", "2")), named("b", nil, nil))
	if got := resize.Requests(before, smaller); len(got) != 1 || got[0].Operation != "decrease" || !resize.Shrinks(before, smaller) || resize.Shrinks(smaller, before) {
		t.Errorf("less is %v", got)
	}
}

func TestInfeasibleResizes(t *testing.T) {
	burstable := podtest.Pod("u", named("a", list("cpu", "1", "memory", "1Mi"), nil))
	guaranteed := podtest.Pod("u", named("a", list("cpu", "1", "memory", "1Mi"), list("cpu", "1", "memory", "1Mi")))
	change := func(pod *v1.Pod, cpu, memory string) *v1.Pod {
		out := pod.DeepCopy()
		r := &out.Spec.Containers[0].Resources
		r.Requests = list("cpu", cpu, "memory", memory)
		if r.Limits != nil {
			r.Limits = r.Requests
		}
		return out
	}
	whole := burstable.DeepCopy()
	whole.Spec.Resources = &v1.ResourceRequirements{Requests: list("cpu", "2")}
	restarts := burstable.DeepCopy()
	restarts.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
		{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
	}
	limited := burstable.DeepCopy()
	limited.Spec.Containers[0].Resources.Limits = list("memory", "2Mi")
	limitedRestarts := restarts.DeepCopy()
	limitedRestarts.Spec.Containers[0].Resources.Limits = list("memory", "2Mi")
	wholeLimited := whole.DeepCopy()
	wholeLimited.Spec.Resources.Limits = list("cpu", "2")
	bestEffort := podtest.Pod("u", named("a", nil, nil))
	swaps := func(*v1.Pod, *v1.Container) bool { return true }
	for name, tc := range map[string]struct {
		wanted, allocated *v1.Pod
		node              resize.Node
		want              string
	}{
		"a plain node":                             {change(guaranteed, "2", "2Mi"), guaranteed, resize.Node{}, ""},
		"cpu of a guaranteed pod, static policy":   {change(guaranteed, "2", "1Mi"), guaranteed, resize.Node{CPUManager: "static"}, "guaranteed_pod_cpu_manager_static_policy"},
		"memory of it":                             {change(guaranteed, "1", "2Mi"), guaranteed, resize.Node{CPUManager: "static"}, ""},
		"memory, static policy":                    {change(guaranteed, "1", "2Mi"), guaranteed, resize.Node{MemoryManager: "Static"}, "guaranteed_pod_memory_manager_static_policy"},
		"cpu, static policy of memory":             {change(guaranteed, "2", "1Mi"), guaranteed, resize.Node{MemoryManager: "Static"}, ""},
		"a burstable pod with both":                {change(burstable, "2", "2Mi"), burstable, resize.Node{CPUManager: "static", MemoryManager: "Static"}, ""},
		"the pod as a whole":                       {whole, burstable, resize.Node{}, "plr_feature_gate_off"},
		"the pod as a whole, where that is there":  {whole, burstable, resize.Node{PodLevel: true}, ""},
		"another QoS class":                        {guaranteed, burstable, resize.Node{}, "qos_class"},
		"no requests":                              {bestEffort, burstable, resize.Node{}, "qos_class"},
		"no limit":                                 {burstable, limited, resize.Node{}, "limit_removed"},
		"a new limit":                              {limited, burstable, resize.Node{}, ""},
		"no limit after a restart":                 {restarts, limitedRestarts, resize.Node{}, ""},
		"no limit of the pod as a whole":           {whole, wholeLimited, resize.Node{PodLevel: true}, "limit_removed"},
		"memory of one that swaps":                 {change(burstable, "1", "2Mi"), burstable, resize.Node{Swaps: swaps}, "swap_limitation"},
		"cpu of one that swaps":                    {change(burstable, "2", "1Mi"), burstable, resize.Node{Swaps: swaps}, ""},
		"memory of one that is restarted for that": {change(restarts, "1", "2Mi"), restarts, resize.Node{Swaps: swaps}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := resize.Infeasible(tc.wanted, tc.allocated, tc.node)
			if (got == nil) != (tc.want == "") || got != nil && (got.Detail != tc.want || got.Message == "") {
				t.Errorf("got %+v, want %q", got, tc.want)
			}
		})
	}
}

func TestOrderOfPendingResizes(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	waiting := func(name, from, to string, priority int32, guaranteed bool, since time.Time) resize.Waiting {
		pod := func(cpu string) *v1.Pod {
			r := list("cpu", cpu, "memory", "1Mi")
			out := podtest.Pod(name, named("a", r, nil))
			if guaranteed {
				out.Spec.Containers[0].Resources.Limits = r
			}
			out.Spec.Priority = &priority
			return out
		}
		return resize.Waiting{Wanted: pod(to), Allocated: pod(from), Since: since}
	}
	all := []resize.Waiting{
		waiting("new", "1", "2", 0, false, time.Time{}), waiting("late", "1", "2", 0, false, at.Add(time.Second)), waiting("early", "1", "2", 0, false, at),
		waiting("guaranteed", "1", "2", 0, true, at.Add(time.Hour)), waiting("important", "1", "2", 10, false, at.Add(time.Hour)),
		waiting("less", "2", "1", -10, false, at.Add(time.Hour)),
	}
	want := []string{"less", "important", "guaranteed", "early", "late", "new"}
	for range len(all) {
		all = append(all[1:], all[0]) // from any initial order
		resize.Order(all)
		var got []string
		for _, w := range all {
			got = append(got, string(w.Wanted.UID))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func amounts() *rapid.Generator[resize.Amounts] {
	return rapid.Custom(func(t *rapid.T) resize.Amounts {
		one := func(name string) int64 { return rapid.Int64Range(0, 5).Draw(t, name) * 100 }
		return resize.Amounts{CPURequest: one("cpu"), CPULimit: one("cpu limit"), MemoryRequest: one("memory"), MemoryLimit: one("memory limit")}
	})
}

// TestAPlanNeedsNoMoreThanBeforeOrAfter checks that at no step the containers of a pod together have more than before
// or after the resize, because amounts are lowered first. After the last step each has the desired amount.
func TestAPlanNeedsNoMoreThanBeforeOrAfter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.SliceOfN(amounts(), 1, 6).Draw(t, "before")
		after := make([]resize.Amounts, len(before))
		has := map[string]resize.Amounts{}
		var plan resize.Plan
		for i := range before {
			after[i] = amounts().Draw(t, "after")
			id := string(rune('a' + i))
			has[id] = before[i]
			plan.Add(resize.Update{Container: &v1.Container{Name: id}, ID: id, Wants: after[i], Has: before[i]})
		}
		sums := func(all []resize.Amounts) (cpu, memory int64) {
			for _, a := range all {
				cpu, memory = cpu+a.CPULimit, memory+a.MemoryLimit
			}
			return cpu, memory
		}
		cpuBefore, memoryBefore := sums(before)
		cpuAfter, memoryAfter := sums(after)
		check := func() {
			var now []resize.Amounts
			for _, a := range has {
				now = append(now, a)
			}
			if cpu, memory := sums(now); cpu > max(cpuBefore, cpuAfter) || memory > max(memoryBefore, memoryAfter) {
				t.Fatalf("in between there are %d and %d", cpu, memory)
			}
		}
		for _, u := range plan.Memory {
			has[u.ID] = has[u.ID].WithMemory(u.Wants)
			check()
		}
		for _, u := range plan.CPU {
			has[u.ID] = has[u.ID].WithCPU(u.Wants)
			check()
		}
		for i := range after {
			if id := string(rune('a' + i)); has[id] != after[i] {
				t.Fatalf("%s has %+v, and wants %+v", id, has[id], after[i])
			}
		}
	})
}

func TestContainersThatMustBeRecreated(t *testing.T) {
	c := &v1.Container{ResizePolicy: []v1.ContainerResizePolicy{
		{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired},
		{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
	}}
	has := resize.Amounts{CPURequest: 1, CPULimit: 1, MemoryRequest: 1, MemoryLimit: 1}
	for _, tc := range []struct {
		c     *v1.Container
		wants resize.Amounts
		want  bool
	}{
		{c, has, false},
		{c, has.WithCPU(resize.Amounts{}), false},
		{c, has.WithMemory(resize.Amounts{MemoryRequest: 1, MemoryLimit: 2}), true},
		{c, has.WithMemory(resize.Amounts{MemoryRequest: 2, MemoryLimit: 1}), true},
		{&v1.Container{}, resize.Amounts{}, false},
	} {
		if got := resize.NeedsRestart(tc.c, tc.wants, has); got != tc.want {
			t.Errorf("%v to %+v is %v, want %v", tc.c.ResizePolicy, tc.wants, got, tc.want)
		}
	}
}
