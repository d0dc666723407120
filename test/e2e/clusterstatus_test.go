package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
)

// TestAnAPIServerHasTheStatusOfPods checks the status of a pod of the API server until its object is deleted, of one
// that the node refuses, and of a static pod by its mirror pod, whose deletion ends nothing; across a kill of syncloop,
// and after the API server was down.
func TestAnAPIServerHasTheStatusOfPods(t *testing.T) {
	name := nodeName(t)
	c := cluster.Start(t)
	node.RestartServices(t, "--kubeconfig", c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes))
	pods := c.Client(t).CoreV1().Pods("e2e")
	awaitThat(t, "the Node is registered", func() bool {
		_, err := c.Client(t).CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	})
	place(t, "mirrored.yaml", manifest("mirrored", 1, "sleep")) // its namespace does not exist yet
	inRuntime := fmt.Sprint(containerIDs(await(t, "mirrored", "Ready", ready)))
	if _, err := c.Client(t).CoreV1().Namespaces().Create(t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e2e"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	create(t, pods, name, "told-here", nil)
	running := awaitObject(t, pods, "told-here", "Ready", ready)
	if s := running.Status; s.PodIP == "" || s.HostIP == "" || s.ObservedGeneration != running.Generation || s.StartTime == nil || !s.ContainerStatuses[0].Ready {
		t.Errorf("the API server has %+v", s)
	}
	create(t, pods, name, "refused", map[string]string{"no-such": "label"})
	if s := awaitObject(t, pods, "refused", "Failed", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodFailed }).Status; s.Reason != "NodeAffinity" {
		t.Errorf("the refused pod has %+v, want Reason %q", s, "NodeAffinity")
	}
	static := "mirrored-" + name
	mirror := awaitObject(t, pods, static, "mirrored and Ready", ready)

	// A kill changes nothing, and the deletion of the mirror pod ends nothing.
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	await(t, "told", "Ready", ready)
	after := awaitObject(t, pods, "told-here", "Ready", ready)
	if before, now := transitions(running), transitions(after); !slices.Equal(before, now) {
		t.Errorf("a kill has changed conditions from %q to %q", before, now)
	}
	if err := pods.Delete(t.Context(), static, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := awaitObject(t, pods, static, "mirrored again", func(p *v1.Pod) bool { return p != nil && p.UID != mirror.UID && ready(p) })
	if now := fmt.Sprint(containerIDs(await(t, "mirrored", "Ready", ready))); now != inRuntime {
		t.Errorf("the containers of the static pod went from %s to %s", inRuntime, now)
	}

	wantPodsEndedForAShutdown(t, pods, name)

	// Controllers see a pod that never ran as Failed before it is removed.
	wantFailedBeforeGone(t, pods, "refused", 0) // there is nothing to say of its containers
	never := newPod(name, "never-ran", nil)
	never.Spec.Containers[0].Image, never.Spec.Containers[0].ImagePullPolicy = "quartet.test/no-such-image:1", v1.PullNever
	if _, err := pods.Create(t.Context(), never, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitObject(t, pods, "never-ran", "waiting for its image", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImageNeverPull"
	})
	wantFailedBeforeGone(t, pods, "never-ran", 1)

	// Changes while the API server was down are reported when it is back.
	c.APIServer.Kill(t)
	takeAway(t, "mirrored.yaml")
	awaitGone(t, "mirrored")
	c.APIServer.Start(t)
	awaitObject(t, pods, again.Name, "gone", func(p *v1.Pod) bool { return p == nil })

	if err := pods.Delete(t.Context(), "told-here", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitObject(t, pods, "told-here", "gone", func(p *v1.Pod) bool { return p == nil })
	awaitGone(t, "told")
}

// create creates a pod that is bound to the node, with labels as node selector.
func create(t *testing.T, pods corev1.PodInterface, node, name string, labels map[string]string) {
	t.Helper()
	if _, err := pods.Create(t.Context(), newPod(node, name, labels), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// newPod returns a pod that is bound to the node, with labels as node selector.
func newPod(node, name string, labels map[string]string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: node, NodeSelector: labels, TerminationGracePeriodSeconds: ptr.To[int64](1),
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []v1.Container{{Name: "main", Image: image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent}},
		},
	}
}

// wantFailedBeforeGone deletes a pod that never ran, and checks its last status at the API server: the pod has failed,
// and so have this number of containers.
func wantFailedBeforeGone(t *testing.T, pods corev1.PodInterface, name string, containers int) {
	t.Helper()
	changes, err := pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	over := time.After(time.Minute)
	for {
		select {
		case <-over:
			t.Fatalf("%s is not gone from the API server", name)
		case change := <-changes.ResultChan():
			pod, isPod := change.Object.(*v1.Pod)
			if !isPod {
				t.Fatalf("the watch of %s has ended: %+v", name, change)
			}
			if change.Type != watch.Deleted {
				continue
			}
			s := pod.Status
			failed := func(c v1.ContainerStatus) bool {
				return c.State.Terminated != nil && c.State.Terminated.ExitCode == 137
			}
			if s.Phase != v1.PodFailed || len(slices.DeleteFunc(slices.Clone(s.ContainerStatuses), failed)) > 0 ||
				len(s.ContainerStatuses) != containers {
				t.Errorf("what the API server had last of %s is %+v", name, s)
			}
			return
		}
	}
}

// awaitObject returns a pod as soon as its object at the API server meets a condition; a nil pod does not exist.
func awaitObject(t *testing.T, pods corev1.PodInterface, name, what string, wanted func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var got *v1.Pod
	awaitThat(t, name+" is "+what+" in the API server", func() bool {
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false
		}
		if got = pod; err != nil {
			got = nil
		}
		return wanted(got)
	})
	return got
}

// transitions returns the conditions of a pod with their transition times.
func transitions(pod *v1.Pod) []string {
	var all []string
	for _, c := range pod.Status.Conditions {
		all = append(all, strings.Join([]string{string(c.Type), string(c.Status), c.LastTransitionTime.UTC().String()}, " "))
	}
	slices.Sort(all)
	return all
}
