package nodecluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/quartet-node/quartet/test/livenode"
)

// statics are static pods that are changed while there is no API server.
type statics struct {
	admin kubernetes.Interface
	ns    string
	// mirrors and containers have the former mirror pods and containers, by the name in the manifest.
	mirrors    map[string]types.UID
	containers map[string]string
}

// placeStatics places the pods before the outage, and returns when the cluster has their mirror pods.
func placeStatics(t *testing.T, ns string) *statics {
	t.Helper()
	s := &statics{admin: space(t, ns), ns: ns, mirrors: map[string]types.UID{}, containers: map[string]string{}}
	// Also for a failed test: a remaining pod would keep the namespace.
	t.Cleanup(func() {
		for _, name := range []string{"kept", "changed", "restarted", "removed", "added"} {
			if err := os.Remove(filepath.Join(node.Layout.Manifests(), name+".yaml")); err != nil && !os.IsNotExist(err) {
				t.Error(err)
			}
		}
	})
	for _, name := range []string{"kept", "changed", "restarted", "removed"} {
		s.place(t, name, "sleep")
	}
	for _, name := range []string{"kept", "changed", "restarted", "removed"} {
		mirror := s.await(t, name, func(*corev1.Pod) bool { return true })
		s.mirrors[name], s.containers[name] = mirror.UID, mirror.Status.ContainerStatuses[0].ContainerID
	}
	return s
}

func (s *statics) place(t *testing.T, name, arg string) {
	t.Helper()
	err := node.Place(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, args: [%s]}
`, name, s.ns, livenode.Image, arg))
	if err != nil {
		t.Fatal(err)
	}
}

// await waits until the cluster has the mirror of a pod, Ready and as required.
func (s *statics) await(t *testing.T, name string, as func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var mirror *corev1.Pod
	awaitThat(t, "the mirror of "+name+" is Ready and right", func() bool {
		mirror = get(t, s.admin, s.ns, name+"-"+nodeName)
		return livenode.Ready(mirror) && as(mirror)
	})
	return mirror
}

// local returns a pod as the node itself has it; nil when it has none.
func (s *statics) local(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	for _, pod := range localPods(t, s.ns) {
		if pod.Name == name+"-"+nodeName {
			return &pod
		}
	}
	return nil
}

// change makes all changes to the pods that need no API server, and returns when the node has applied them.
func (s *statics) change(t *testing.T) {
	t.Helper()
	s.place(t, "added", "sleep")
	s.place(t, "changed", "env")
	if err := node.TakeAway("removed.yaml"); err != nil {
		t.Fatal(err)
	}
	restarted := s.local(t, "restarted")
	if restarted == nil {
		t.Fatal("the node does not have the pod restarted")
	}
	root, err := node.Inside(restarted, "main")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(root)))
	if err != nil {
		t.Fatal(err)
	}
	if err := sendKill(pid); err != nil {
		t.Fatal(err)
	}
	for name, as := range map[string]func(*corev1.Pod) bool{
		"added":     func(pod *corev1.Pod) bool { return livenode.Ready(pod) },
		"changed":   func(pod *corev1.Pod) bool { return livenode.Ready(pod) && argument(pod) == "env" },
		"restarted": func(pod *corev1.Pod) bool { return livenode.Ready(pod) && restarts(pod) == 1 },
		"removed":   func(pod *corev1.Pod) bool { return pod == nil },
	} {
		awaitThat(t, "without an API server the node has "+name+" as it is to be", func() bool { return as(s.local(t, name)) })
	}
}

// right waits until the mirror pods match the pods, and checks that untouched ones are the same.
func (s *statics) right(t *testing.T) {
	t.Helper()
	s.await(t, "added", func(*corev1.Pod) bool { return true })
	s.await(t, "changed", func(pod *corev1.Pod) bool { return argument(pod) == "env" && pod.UID != s.mirrors["changed"] })
	s.await(t, "restarted", func(pod *corev1.Pod) bool { return restarts(pod) == 1 && pod.UID == s.mirrors["restarted"] })
	awaitThat(t, "the mirror of removed is gone", func() bool { return get(t, s.admin, s.ns, "removed-"+nodeName) == nil })
	kept := s.await(t, "kept", func(*corev1.Pod) bool { return true })
	if id := kept.Status.ContainerStatuses[0].ContainerID; kept.UID != s.mirrors["kept"] || id != s.containers["kept"] || restarts(kept) != 0 {
		t.Errorf("the untouched pod was %s with %s, and is %s with %s, started again %d times",
			s.mirrors["kept"], s.containers["kept"], kept.UID, id, restarts(kept))
	}
	names := make([]string, 0, 4)
	for _, pod := range pods(t, s.admin, s.ns, "") {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	if want := []string{"added-" + nodeName, "changed-" + nodeName, "kept-" + nodeName, "restarted-" + nodeName}; !slices.Equal(names, want) {
		t.Errorf("the cluster has %q, want %q", names, want)
	}
}

func argument(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Spec.Containers[0].Args[0]
}

func restarts(pod *corev1.Pod) int32 {
	if pod == nil || len(pod.Status.ContainerStatuses) == 0 {
		return -1
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}
