package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/livenode"
)

// wantRuntimeClasses checks a pod with a RuntimeClass, on the node of a cluster with the namespace e2e. The pod runs
// with the handler of the class and the overhead from the API server. It waits for a missing class with a message, also
// after a kill of syncloop, and needs no API server once it runs.
func wantRuntimeClasses(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	name, admin := nodeName(t), c.Client(t)
	createClass(t, admin, "sealed")
	if _, err := admin.CoreV1().Pods("e2e").Create(t.Context(), classedPod(name, "sealed"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// An API server accepts no pod of a missing class, so the class is deleted before the pod is bound to the node.
	if err := admin.NodeV1().RuntimeClasses().Delete(t.Context(), "sealed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "classed-" + name, Namespace: "e2e"}, Target: v1.ObjectReference{Kind: "Node", Name: name}}
	if err := admin.CoreV1().Pods("e2e").Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waits := func(p *v1.Pod) bool {
		return p != nil && p.Status.Phase == v1.PodPending && p.Status.Reason == "FailedCreatePodSandBox" &&
			strings.Contains(p.Status.Message, `runtimeclass.node.k8s.io "sealed" not found`)
	}
	await(t, "classed", "waiting for its class", waits)
	awaitThat(t, "an event says so", func() bool {
		out, err := node.Command(t.Context(), "describe", "pod", "e2e/classed-"+name)
		return err == nil && strings.Contains(out, "FailedCreatePodSandBox") && strings.Contains(out, `Failed to create pod sandbox: runtimeclass.node.k8s.io "sealed" not found`)
	})
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	await(t, "classed", "waiting for its class again", waits)
	createClass(t, admin, "sealed")
	p := await(t, "classed", "Ready", ready)
	limit, err := livenode.ReadCgroup(node.PodCgroup(p), "memory.limit_in_bytes", "memory.max")
	if want := fmt.Sprint((64 + 16) << 20); err != nil || limit != want {
		t.Errorf("the pod's cgroup has %s bytes of memory, error %v; want %s, those of its container and the overhead", limit, err, want)
	}

	awaitThat(t, "the Node says that there is such a handler, and what it can", func() bool {
		n, err := admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(n.Status.RuntimeHandlers, func(h v1.NodeRuntimeHandler) bool {
			return h.Name == "runc" && h.Features != nil && *h.Features.RecursiveReadOnlyMounts && *h.Features.UserNamespaces
		})
	})

	c.APIServer.Kill(t)
	old = pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	if err := syscall.Kill(processOf(t, bare(p)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "classed", "Ready again, without an API server", func(p *v1.Pod) bool {
		return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	c.APIServer.Start(t)
	if err := admin.CoreV1().Pods("e2e").Delete(t.Context(), "classed-"+name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "classed")
}

// createClass creates a RuntimeClass with the usual handler of the node's runtime and an overhead.
func createClass(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	class := &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: "runc",
		Overhead: &nodev1.Overhead{PodFixed: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"),
			v1.ResourceMemory: resource.MustParse("16Mi")}},
	}
	if _, err := admin.NodeV1().RuntimeClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// classedPod returns an unbound pod of a class. It is named like a static pod of a node.
func classedPod(node, class string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "classed-" + node, Namespace: "e2e"},
		Spec: v1.PodSpec{
			RuntimeClassName: &class, TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{
				Name: "main", Image: image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent,
				Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"),
					v1.ResourceMemory: resource.MustParse("64Mi")}},
			}},
		},
	}
}
