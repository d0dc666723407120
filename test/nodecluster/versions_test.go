package nodecluster

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/livenode"
)

// older returns the dialect of an API server that lacks resources and fields of recent versions.
func older() cluster.Dialect {
	return cluster.Dialect{
		Missing: []string{"/clustertrustbundles/", "/podcertificaterequests/", "/certificates.k8s.io/v1beta1/", "/certificates.k8s.io/v1alpha1/", "/resize/"},
		// Fields of the status of pods, of their containers, and of nodes.
		Unknown: []string{"observedGeneration", "hostIPs", "allocatedResources", "stopSignal", "runtimeHandlers", "features", "declaredFeatures", "swap"},
	}
}

// newer returns the dialect of an API server with unknown fields and unknown values.
func newer() cluster.Dialect {
	return cluster.Dialect{Send: func(kind string, object map[string]any) {
		add := map[string]string{
			"Pod": `{"futureStage": 3, "metadata": {"futureMark": ["x"]},
				"spec": {"futureRoute": {"by": "air"}, "preemptionPolicy": "PreemptSometimes", "tolerations": [{"key": "future", "operator": "Near", "effect": "NoFuture"}]},
				"status": {"futureMood": "good", "conditions": [{"type": "FutureProof", "status": "Maybe", "futureSince": 1}]}}`,
			"Node": `{"spec": {"futureHome": "here", "taints": [{"key": "future", "effect": "NoFuture"}]},
				"status": {"futureMood": "good", "phase": "Futuristic", "conditions": [{"type": "FutureProof", "status": "Maybe", "reason": "Unheard", "message": "of"}]}}`,
			"Lease":     `{"spec": {"futureStrategy": "Newest"}}`,
			"ConfigMap": `{"futureData": {"a": {"b": 1}}}`,
		}[kind]
		if add == "" {
			return
		}
		var more map[string]any
		if err := json.Unmarshal([]byte(add), &more); err != nil {
			panic(err) // the JSON is the constant above
		}
		merge(object, more)
	}}
}

// merge merges an object into another one, and appends to its lists.
func merge(object, more map[string]any) {
	for name, value := range more {
		switch value := value.(type) {
		case map[string]any:
			if inner, ok := object[name].(map[string]any); ok {
				merge(inner, value)
				continue
			}
		case []any:
			if list, ok := object[name].([]any); ok {
				object[name] = append(list, value...)
				continue
			}
		}
		object[name] = value
	}
}

// TestAnAPIServerOfAnotherVersion: the node works in the cluster and runs pods, whether its API server lacks resources
// that it uses or has unknown ones. A pod that needs a missing resource reports that.
func TestAnAPIServerOfAnotherVersion(t *testing.T) {
	another := whole.Versions(t)
	elsewhere(t, another)
	for name, tc := range map[string]struct {
		ns      string
		dialect cluster.Dialect
		more    func(*testing.T, kubernetes.Interface, string)
	}{
		"an older one": {"older", older(), lacks},
		"a newer one":  {"newer", newer(), func(*testing.T, kubernetes.Interface, string) {}},
	} {
		t.Run(name, func(t *testing.T) {
			another.Speak(tc.dialect)
			admin := space(t, tc.ns)
			// All watches begin again, and the node registers again.
			kill(t, four()...)
			first := renewal(t, admin)
			takesPods(t, admin, tc.ns)
			tc.more(t, admin, tc.ns)
			awaitThat(t, "the node is Ready and renews its lease", func() bool {
				return condition(theNode(t, admin), corev1.NodeReady) == corev1.ConditionTrue && renewal(t, admin).After(first)
			})
		})
	}
	if another.Refused() == 0 {
		t.Error("the node has asked for nothing that an older API server lacks")
	}
}

// elsewhere makes the node use another address of the API server until the test ends.
func elsewhere(t *testing.T, another *cluster.Versions) {
	t.Helper()
	kubeconfig := node.Flags[slices.Index(node.Flags, "--kubeconfig")+1]
	before, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := another.SaveKubeconfig(kubeconfig, cluster.NodeUser(nodeName), cluster.Nodes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(kubeconfig, before, 0o600); err != nil {
			t.Error(err)
		}
		awaitIn(context.WithoutCancel(t.Context()), t, "the four run", func() bool {
			return !slices.ContainsFunc(four(), func(name string) bool { _, err := node.PID(name); return err != nil })
		})
		kill(t, four()...)
	})
}

// renewal returns the time of the last renewal of the node's lease.
func renewal(t *testing.T, admin kubernetes.Interface) time.Time {
	t.Helper()
	lease, err := admin.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil {
		t.Fatalf("the lease of the node is %+v, %v", lease, err)
	}
	return lease.Spec.RenewTime.Time
}

// takesPods checks that a pod runs, is Ready in the cluster with its address, keeps running, and is removed when it is
// deleted.
func takesPods(t *testing.T, admin kubernetes.Interface, ns string) {
	t.Helper()
	pod := runPod(t, admin, ns, "web", "serve")
	if pod.Status.PodIP == "" || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod has the status %+v", pod.Status)
	}
	if out := kubectl(t, "logs", "-n", ns, "web"); !strings.Contains(out, "hello") {
		t.Errorf("its log is %q, want text with %q", out, "hello")
	}
	if again := get(t, admin, ns, "web"); !slices.Equal(started([]corev1.Pod{*pod}), started([]corev1.Pod{*again})) {
		t.Errorf("it went from %+v to %+v", pod.Status, again.Status)
	}
	kubectl(t, "delete", "pod", "-n", ns, "web")
	awaitThat(t, "nothing is left of it", func() bool {
		dirs, err := livenode.Cgroups(node.PodCgroup(pod))
		return err == nil && len(dirs) == 0
	})
}

// lacks checks that a pod that needs a missing resource of the API server waits with a message that names it.
func lacks(t *testing.T, admin kubernetes.Interface, ns string) {
	t.Helper()
	made := template(nil, "sleep")
	made.Spec.Volumes = []corev1.Volume{{Name: "roots", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: ptr.To("shop"),
			Path: "ca.crt"}}},
	}}}}
	made.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "roots", MountPath: "/roots"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "trusts"}, Spec: made.Spec}
	if _, err := admin.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the pod reports that the API server has no trust bundles", func() bool {
		events, err := admin.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "trusts" && strings.Contains(e.Message, "clusterTrustBundle") && strings.Contains(e.Message, "could not find the requested resource")
		})
	})
}
