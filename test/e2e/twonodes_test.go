package e2e

import (
	"context"
	"fmt"
	"maps"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/livenode"
)

// TestTwoNodesOnOneMachine runs a pod with the same name and UID on each of two nodes. Neither is affected by the kill
// and the end of the other.
func TestTwoNodesOnOneMachine(t *testing.T) {
	other, err := livenode.New(livenode.Bin(), "second")
	if err != nil {
		t.Fatal(err)
	}
	other.Flags = []string{"--hostname-override", "another-node"}
	gone := false
	t.Cleanup(func() {
		if !gone {
			if err := other.Remove(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	if err := other.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	const text = `apiVersion: v1
kind: Pod
metadata: {name: twin, namespace: e2e, uid: the-same-on-both}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %q
    args: [sleep]
    resources: {limits: {memory: 32Mi}}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {medium: Memory}}]
`
	manifest := fmt.Sprintf(text, image)
	place(t, "twin.yaml", manifest)
	if err := other.Place("twin.yaml", manifest); err != nil {
		t.Fatal(err)
	}
	find := func(n *livenode.Node) *v1.Pod {
		pods, err := n.Pods(t.Context())
		if err != nil {
			return nil
		}
		for i := range pods {
			if pods[i].UID == "the-same-on-both" {
				return &pods[i]
			}
		}
		return nil
	}
	awaitThat(t, "both to be Ready", func() bool { return ready(find(node)) && ready(find(other)) })
	first, second := find(node), find(other)
	if node.PodCgroup(first) == other.PodCgroup(second) {
		t.Errorf("both pods are in the cgroup %s", node.PodCgroup(first))
	}
	for _, service := range layout.Services() {
		pid, err := other.PID(string(service))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	awaitThat(t, "the other node to be back", func() bool {
		_, err := other.Command(t.Context(), "get", "node")
		return err == nil && ready(find(other))
	})
	if after := find(other); !maps.Equal(containerIDs(after), containerIDs(second)) {
		t.Errorf("the other node's containers were %v and are %v", containerIDs(second), containerIDs(after))
	}
	if gone = true; other.Remove(t.Context()) != nil {
		t.Fatal("the other node does not end")
	}
	after := find(node)
	if !ready(after) || !maps.Equal(containerIDs(after), containerIDs(first)) ||
		after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the end of the other node has changed the pod of this one to %+v", after.Status)
	}
	if limit, err := livenode.ReadCgroup(node.PodCgroup(first), "memory.limit_in_bytes", "memory.max"); err != nil || limit != fmt.Sprint(32<<20) {
		t.Errorf("the pod's cgroup has the limit %s, %v, want %s", limit, err, fmt.Sprint(32<<20))
	}
	quartet(t, "get", "node")
}
