package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
)

// TestAPodHasItsEnvironmentFromAnAPIServer: the pod waits for a secret and starts when the secret is created. Kills of
// the API server and of the node's processes do not affect it afterwards. The node may read only the objects that its
// own pods reference.
func TestAPodHasItsEnvironmentFromAnAPIServer(t *testing.T) {
	name := nodeName(t)
	c := cluster.Start(t)
	node.RestartServices(t, "--kubeconfig", c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes))
	admin := c.Client(t).CoreV1()
	awaitThat(t, "the Node is registered", func() bool {
		_, err := admin.Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	})
	_, err := admin.Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e2e"}},
		metav1.CreateOptions{})
	if err == nil {
		_, err = admin.ConfigMaps("e2e").Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"LEVEL": "info"}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = admin.Pods("e2e").Create(t.Context(), podWithObjects("asks-server", name), metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "asks", "waiting for its secret", func(p *v1.Pod) bool {
		return waitsFor(p, "CreateContainerConfigError", `secret "login" not found`)
	})
	login := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "login"}, Data: map[string][]byte{"password": []byte(secretValue)}}
	if _, err := admin.Secrets("e2e").Create(t.Context(), login, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running := fmt.Sprint(containerIDs(await(t, "asks", "Ready", ready)))
	// the API server created it at its start
	api, err := admin.Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the container has printed its environment", func() bool {
		log, _ := node.Command(t.Context(), "logs", "e2e/asks-server")
		return strings.Contains(log, "APP_LEVEL=info\n") && strings.Contains(log, "PASSWORD="+secretValue+"\n") &&
			strings.Contains(log, "KUBERNETES_SERVICE_HOST="+api.Spec.ClusterIP+"\n") && strings.Contains(log, "KUBERNETES_SERVICE_PORT=443\n")
	})
	c.APIServer.Kill(t)
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	if again := fmt.Sprint(containerIDs(await(t, "asks", "Ready", ready))); again != running {
		t.Errorf("containers went from %s to %s", running, again)
	}
	checkOutputsWithoutSecret(t, map[string]string{"describe": quartet(t, "describe", "pod", "e2e/asks-server")})
	c.APIServer.Start(t)
	if err := admin.Pods("e2e").Delete(t.Context(), "asks-server", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "asks")
	wantRuntimeClasses(t, c)
}

// podWithObjects returns a pod on a node with environment variables from a config map and a secret.
func podWithObjects(pod, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "e2e"},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{
				Name: "main", Image: image, Args: []string{"env"}, ImagePullPolicy: v1.PullIfNotPresent,
				EnvFrom: []v1.EnvFromSource{{Prefix: "APP_", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}},
				Env: []v1.EnvVar{{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{
					SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "login"}, Key: "password"},
				}}},
			}},
		},
	}
}
