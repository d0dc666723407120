package decide_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// give sets the CPU request of a container.
func give(pod *v1.Pod, name, cpu string) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				list[i].Resources.Requests = podtest.List("cpu", cpu)
			}
		}
	}
}

// restartsFor sets the resize policy of a container to restart for a resource.
func restartsFor(pod *v1.Pod, name string, resource v1.ResourceName) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				list[i].ResizePolicy = append(list[i].ResizePolicy, v1.ContainerResizePolicy{
					ResourceName: resource, RestartPolicy: v1.RestartContainer,
				})
			}
		}
	}
}

func TestAResize(t *testing.T) {
	const always, onFailure = v1.RestartPolicyAlways, v1.RestartPolicyOnFailure
	for _, test := range []struct {
		name                 string
		policy               v1.RestartPolicy
		containers, observed string
		change               func(*v1.Pod, *lifecyclev1.PodStatus, *decide.Facts)
		want                 string
	}{
		{"of one container", always, "a b", "s0:ready a@s0:running b@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "a", "1")
		}, "cpu(a-1)"},
		{"that was carried out", always, "a", "s0:ready a@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			give(p, "a", "1")
			f.Resized, f.Actuated.Containers = true, map[string]resize.Amounts{"a-1": {CPURequest: 1000}}
		}, "nothing"},
		{"back to what it was made with", always, "a", "s0:ready a@s0:running", func(_ *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			f.Resized, f.Actuated.Containers = true, map[string]resize.Amounts{"a-1": {CPURequest: 1000}}
		}, "cpu(a-1)"},
		{"of both resources, less before more", always, "a b", "s0:ready a@s0:running b@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			p.Spec.Containers[0].Resources.Limits = podtest.List("cpu", "1", "memory", "1Mi")
			f.Resized, f.Actuated.Containers = true, map[string]resize.Amounts{"b-2": {CPULimit: 1000, MemoryLimit: 1 << 20}}
		}, "memory(b-2) memory(a-1) cpu(b-2) cpu(a-1)"},
		{"of a sidecar", always, "sidecar:s a", "s0:ready s@s0:running a@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "s", "1")
		}, "cpu(s-1)"},
		{"of an init container", always, "init:i a", "s0:ready i@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "i", "1")
			give(p, "a", "2")
			restartsFor(p, "i", v1.ResourceCPU)
		}, "cpu(i-1)"},
		{"of an init container that has ended", always, "init:i a", "s0:ready i@s0:exited=0 a@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "i", "1")
		}, "nothing"},
		{"by a restart", always, "a b", "s0:ready a@s0:running,rc=3 b@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			give(p, "a", "1")
			restartsFor(p, "a", v1.ResourceCPU)
			f.Resized = true
		}, "kill(a-1) cgroup start(a rc=4)"},
		{"of the other resource, which needs no restart", always, "a", "s0:ready a@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "a", "1")
			restartsFor(p, "a", v1.ResourceMemory)
		}, "cpu(a-1)"},
		{"by a restart, after the kill", onFailure, "a", "s0:ready a@s0:exited=0,rc=2,ended=1s", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			give(p, "a", "1")
			f.Resized, f.Replaced = true, func(id string) bool { return id == "a-1" }
		}, "cgroup start(a rc=3)"},
		{"of a pod of which a container starts", always, "a b", "s0:ready a@s0:running", func(_ *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			f.Resized = true
		}, "cgroup start(b)"},
		{"of a pod whose sandbox is replaced", always, "a", "s0:notready a@s0:exited=1", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			give(p, "a", "1")
			f.Resized = true
		}, "sandbox(1) start(a rc=1)"},
		{"of the pod as a whole", always, "a", "s0:ready a@s0:running", func(p *v1.Pod, s *lifecyclev1.PodStatus, _ *decide.Facts) {
			s.Sandboxes[0].Annotations = map[string]string{podlabels.PodResources: `{"requests": {"cpu": "1"}}`}
			p.Spec.Resources = &v1.ResourceRequirements{Requests: podtest.List("cpu", "2")}
		}, "cgroup"},
		{"of the limit of the pod, which is its container's", always, "a", "s0:ready a@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, f *decide.Facts) {
			p.Spec.Resources = &v1.ResourceRequirements{Limits: podtest.List("memory", "1Gi")}
			f.Resized, f.Actuated.Pod = true, &resize.Amounts{MemoryLimit: 1 << 20}
			f.Actuated.Containers = map[string]resize.Amounts{"a-1": {MemoryLimit: 1 << 20}}
		}, "memory(a-1) cgroup"},
		{"of what something else has made", always, "a", "s0:ready a@s0:running", func(p *v1.Pod, s *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "a", "1")
			s.Containers[0].Annotations = nil
		}, "nothing"},
		{"of a pod that is being deleted", always, "a", "s0:ready a@s0:running", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "a", "1")
			deleted := p.CreationTimestamp
			p.DeletionTimestamp = &deleted
		}, "nothing"},
		{"of a pod that is over", v1.RestartPolicyNever, "sidecar:s a", "s0:ready s@s0:running a@s0:exited=0", func(p *v1.Pod, _ *lifecyclev1.PodStatus, _ *decide.Facts) {
			give(p, "s", "1")
		}, "stop-all"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := podviewtest.Pod(test.policy, test.containers)
			status, facts := podviewtest.Status(pod, test.observed), decide.Facts{Now: now}
			test.change(pod, status, &facts)
			if got := format(decide.Pod(pod, status, facts)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestARestartForAResizeIsNoCrash checks that the back-off of the container does not grow, and that the cause names the
// resize.
func TestARestartForAResizeIsNoCrash(t *testing.T) {
	pod := podviewtest.Pod(v1.RestartPolicyAlways, "a")
	status := podviewtest.Status(pod, "s0:ready a@s0:running,rc=3")
	give(pod, "a", "1")
	restartsFor(pod, "a", v1.ResourceCPU)
	start := decide.Pod(pod, status, decide.Facts{Now: now}).Start[0]
	if start.Restart != (podlabels.Restart{Count: 4, Step: 3, Cause: "resources changed"}) {
		t.Errorf("it is started as %+v, want %+v",
			start.Restart, podlabels.Restart{Count: 4, Step: 3, Cause: "resources changed"})
	}
	status = podviewtest.Status(pod, "s0:ready a@s0:exited=137,rc=3,ended=0s")
	actions := decide.Pod(pod, status, decide.Facts{Now: now, Replaced: func(id string) bool { return id == "a-1" }})
	if len(actions.Start) != 1 ||
		actions.Start[0].Restart != (podlabels.Restart{Count: 4, Step: 3, Cause: "resources changed, exited with 137"}) {
		t.Errorf("after the kill it is started as %+v", actions.Start)
	}
}
