package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
)

// TestPodsOfAnAPIServer: a node that was given a kubeconfig registers, runs the pods that are bound to it, keeps them through a
// kill of everything while the API server is away, and ends them as the API server says when it is back.
func TestPodsOfAnAPIServer(t *testing.T) {
	name := nodeName(t)
	c := cluster.Start(t)
	if err := node.StopServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := node.StopServices(ctx); err != nil {
			t.Error(err)
		}
		if err := node.Up(ctx); err != nil {
			t.Error(err)
		}
	})
	kubeconfig := c.Kubeconfig(t, cluster.NodeUser(name), "system:nodes")
	quartet(t, "up", "--detach", "--read-only-port", node.Port(), "--kubeconfig", kubeconfig)

	admin := c.Client(t).CoreV1()
	awaitThat(t, "the Node is registered", func() bool {
		_, err := admin.Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	})
	if _, err := admin.Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e2e"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wanted := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bound-here", Namespace: "e2e"},
		Spec: v1.PodSpec{
			NodeName: name, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{Name: "main", Image: image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent}},
		},
	}
	if _, err := admin.Pods("e2e").Create(t.Context(), wanted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running := containerIDs(await(t, "bound", "Ready", ready))

	awaitThat(t, "the pod is kept, at most a second later", func() bool {
		kept, err := os.ReadFile(filepath.Join(node.Layout.StateDir(), "api-pods"))
		return err == nil && strings.Contains(string(kept), "bound-here")
	})
	c.APIServer.Kill(t)
	kill(t, "configmux", "pleg", "syncloop", "nodestatus")
	awaitThat(t, "what was kept is restored", func() bool {
		out, err := node.Command(t.Context(), "updates")
		return err == nil && strings.Contains(out, "RESTORE") && strings.Contains(out, "e2e/bound-here")
	})
	if again := containerIDs(await(t, "bound", "Ready", ready)); fmt.Sprint(again) != fmt.Sprint(running) {
		t.Errorf("containers %v, want those from before the kill, %v", again, running)
	}

	c.APIServer.Start(t)
	if err := admin.Pods("e2e").Delete(t.Context(), "bound-here", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "bound", "stopped", func(p *v1.Pod) bool { return p != nil && p.DeletionTimestamp != nil && !ready(p) })
	if err := admin.Pods("e2e").Delete(t.Context(), "bound-here", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "bound")
}

// nodeName is the name that a node has where none is given.
func nodeName(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToLower(host)
}
