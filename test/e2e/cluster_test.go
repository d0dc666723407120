package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
)

// TestPodsOfAnAPIServer: a node with a kubeconfig registers and runs the pods that are bound to it. While the API
// server is down it keeps them, with their API credentials, across a kill of all processes. When the API server is
// back, it ends the deleted ones.
func TestPodsOfAnAPIServer(t *testing.T) {
	name := nodeName(t)
	c := cluster.Start(t, cluster.ServiceAccounts())
	kubeconfig := c.Kubeconfig(t, cluster.NodeUser(name), "system:nodes")
	node.RestartServices(t, "--kubeconfig", kubeconfig)

	admin := c.Client(t).CoreV1()
	awaitThat(t, "the Node is registered", func() bool {
		_, err := admin.Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	})
	if _, err := admin.Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e2e"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ServiceAccounts("e2e").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// the controller manager does this in a cluster
	roots := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "the roots"}}
	if _, err := admin.ConfigMaps("e2e").Create(t.Context(), roots, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wanted := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bound-here", Namespace: "e2e"},
		Spec: v1.PodSpec{
			NodeName: name, TerminationGracePeriodSeconds: ptr.To[int64](1), ServiceAccountName: "robot",
			Containers: []v1.Container{{Name: "main", Image: image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent}},
		},
	}
	if _, err := admin.Pods("e2e").Create(t.Context(), wanted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound := await(t, "bound", "Ready", ready)
	running := containerIDs(bound)
	first := tokenOf(t, c, bound)
	for file, want := range map[string]string{"namespace": "e2e", "ca.crt": "the roots"} {
		if got := identityOf(t, bound, file); got != want {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}

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

	if again := identityOf(t, bound, "token"); again != first {
		t.Error("the token that the pod has while the API server is away is another one, or none")
	}

	c.APIServer.Start(t)
	awaitThat(t, "the new syncloop has a token made", func() bool { return identityOf(t, bound, "token") != first })
	second := tokenOf(t, c, bound)
	if err := admin.Pods("e2e").Delete(t.Context(), "bound-here", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitObject(t, admin.Pods("e2e"), "bound-here", "gone", func(p *v1.Pod) bool { return p == nil })
	awaitGone(t, "bound")
	for _, token := range []string{first, second} {
		for _, path := range filesWith(t, node.Layout.StateDir(), token) {
			t.Errorf("%s has a token", path)
		}
	}
}

// identityOf returns the content of a file in the volume that an API server adds to each pod, as a container of the pod
// sees it.
func identityOf(t *testing.T, pod *v1.Pod, file string) string {
	t.Helper()
	content, err := os.ReadFile(inside(t, pod, "main") + "/var/run/secrets/kubernetes.io/serviceaccount/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// tokenOf returns the token of a container of the pod, after the API server has accepted it as the pod's.
func tokenOf(t *testing.T, c *cluster.Cluster, pod *v1.Pod) string {
	t.Helper()
	token := identityOf(t, pod, "token")
	review, err := c.Client(t).AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if of := review.Status.User.Extra["authentication.kubernetes.io/pod-uid"]; !review.Status.Authenticated || len(of) != 1 || of[0] != string(pod.UID) {
		t.Errorf("the API server does not take the token for one of the pod: %+v", review.Status)
	}
	return token
}

// nodeName returns the default name of a node.
func nodeName(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToLower(host)
}
