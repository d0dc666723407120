package nodecluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/livenode"
)

// resized is a pod of a namespace that kubectl resizes.
type resized struct {
	*testing.T
	admin    kubernetes.Interface
	ns, name string
}

// patch changes the resources of the pod.
func (r resized) patch(spec string) {
	r.Helper()
	kubectl(r.T, "patch", "pod", "-n", r.ns, r.name, "--subresource", "resize", "--patch", `{"spec": {`+spec+`}}`)
}

// await waits for a status of the latest version of the pod.
func (r resized) await(what string, holds func(p *corev1.Pod) bool) *corev1.Pod {
	r.Helper()
	var pod *corev1.Pod
	awaitThat(r.T, what, func() bool {
		pod = get(r.T, r.admin, r.ns, r.name)
		return pod.Status.ObservedGeneration == pod.Generation && holds(pod)
	})
	return pod
}

// done reports whether nothing is left to resize.
func done(p *corev1.Pod) bool {
	return livenode.Ready(p) && resizeCondition(p, corev1.PodResizePending) == nil &&
		resizeCondition(p, corev1.PodResizeInProgress) == nil
}

func resizeCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// runs reports whether a container runs with its requests and limits, and has them allocated.
func runs(p *corev1.Pod, name string) bool {
	var spec *corev1.Container
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				spec = &list[i]
			}
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == name && s.Resources != nil {
			return equal(s.Resources.Requests, spec.Resources.Requests) && equal(s.Resources.Limits, spec.Resources.Limits) &&
				equal(s.AllocatedResources, spec.Resources.Requests)
		}
	}
	return false
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
}

func equal(a, b corev1.ResourceList) bool {
	return a.Cpu().Equal(*b.Cpu()) && a.Memory().Equal(*b.Memory())
}

// TestKubectlResizesAPod: containers and sidecars change without a restart, unless their policy asks for one. A resize
// without room waits until another pod is gone, and one below the memory in use fails until it is taken back.
func TestKubectlResizesAPod(t *testing.T) {
	const ns = "resize"
	r := resized{T: t, admin: space(t, ns), ns: ns, name: "sized"}
	made := template(nil, "sleep").Spec
	size := func(cpu, memory string) corev1.ResourceRequirements {
		list := amounts(cpu, memory)
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	made.Containers = append(made.Containers, *made.Containers[0].DeepCopy())
	main, again := &made.Containers[0], &made.Containers[1]
	main.Resources, again.Resources, again.Name = size("50m", "64Mi"), size("50m", "64Mi"), "again"
	again.ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
	}
	side := *main.DeepCopy()
	side.Name, side.RestartPolicy = "side", ptr.To(corev1.ContainerRestartPolicyAlways)
	made.InitContainers = []corev1.Container{side}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Spec: made}
	if _, err := r.admin.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod = r.await("Ready", livenode.Ready)
	before := started([]corev1.Pod{*pod})

	r.patch(`"containers": [` + of("main", "100m", "96Mi") + `], "initContainers": [` + of("side", "80m", "32Mi") + `]`)
	pod = r.await("resized", func(p *corev1.Pod) bool { return done(p) && runs(p, "main") && runs(p, "side") })
	if after := started([]corev1.Pod{*pod}); !slices.Equal(before, after) {
		t.Errorf("the containers were %q and are %q", before, after)
	}

	half := fmt.Sprintf("%dm", theNode(t, r.admin).Status.Allocatable.Cpu().MilliValue()/2)
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: template(nil, "sleep").Spec}
	other.Spec.Containers[0].Resources.Requests = amounts(half, "8Mi")
	if _, err := r.admin.CoreV1().Pods(ns).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the other pod takes half of the node", func() bool {
		return livenode.Ready(get(t, r.admin, ns, "other"))
	})
	r.patch(`"containers": [` + of("main", half, "96Mi") + `]`)
	pod = r.await("deferred", func(p *corev1.Pod) bool { return resizeCondition(p, corev1.PodResizePending) != nil })
	c := resizeCondition(pod, corev1.PodResizePending)
	if c.Reason != corev1.PodReasonDeferred || c.ObservedGeneration != pod.Generation || runs(pod, "main") {
		t.Errorf("without room the condition is %+v", c)
	}
	kubectl(t, "delete", "pod", "-n", ns, "other")
	r.await("resized after the other pod", func(p *corev1.Pod) bool { return done(p) && runs(p, "main") })

	r.patch(`"containers": [` + of("main", "50m", "1Mi") + `]`)
	pod = r.await("refused", func(p *corev1.Pod) bool {
		c := resizeCondition(p, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	if c := resizeCondition(pod, corev1.PodResizeInProgress); !strings.Contains(c.Message, "below current usage") {
		t.Errorf("below the memory in use the condition is %+v", c)
	}
	r.patch(`"containers": [` + of("main", "50m", "48Mi") + `,` + of("again", "50m", "80Mi") + `]`)
	pod = r.await("resized with a restart", func(p *corev1.Pod) bool {
		return done(p) && runs(p, "main") && runs(p, "again")
	})
	for _, c := range pod.Status.ContainerStatuses {
		if want := map[string]int32{"main": 0, "again": 1}[c.Name]; c.RestartCount != want {
			t.Errorf("%s was restarted %d times, want %d", c.Name, c.RestartCount, want)
		}
	}
	if out := kubectlOrError(t.Context(), "describe", "pod", "-n", ns, r.name); !strings.Contains(out, "ResizeCompleted") {
		t.Errorf("there is no event that the resize is completed:\n%s", out)
	}
}

// of returns a container of a patch, with equal requests and limits.
func of(name, cpu, memory string) string {
	list := `{"cpu": "` + cpu + `", "memory": "` + memory + `"}`
	return `{"name": "` + name + `", "resources": {"requests": ` + list + `, "limits": ` + list + `}}`
}

// TestKubectlResizesAPodAsAWhole changes the resources of a pod whose containers have none.
func TestKubectlResizesAPodAsAWhole(t *testing.T) {
	const ns = "resize-whole"
	r := resized{T: t, admin: space(t, ns), ns: ns, name: "whole"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Spec: template(nil, "sleep").Spec}
	pod.Spec.Resources = &corev1.ResourceRequirements{
		Requests: amounts("50m", "32Mi"), Limits: amounts("100m", "64Mi"),
	}
	if _, err := r.admin.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod = r.await("Ready", livenode.Ready)
	before := started([]corev1.Pod{*pod})
	r.patch(`"resources": {"requests": {"cpu": "80m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "96Mi"}}`)
	pod = r.await("resized", func(p *corev1.Pod) bool {
		return done(p) && p.Status.Resources != nil && equal(p.Status.Resources.Limits, p.Spec.Resources.Limits) &&
			equal(p.Status.AllocatedResources, p.Spec.Resources.Requests)
	})
	if after := started([]corev1.Pod{*pod}); !slices.Equal(before, after) {
		t.Errorf("the containers were %q and are %q", before, after)
	}
	memory, err := livenode.ReadCgroup(node.PodCgroup(pod), "memory.limit_in_bytes", "memory.max")
	if err != nil || memory != "100663296" {
		t.Errorf("the pod's cgroup has a memory limit of %s, %v, want 96 MiB", memory, err)
	}
}
