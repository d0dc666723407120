package nodecluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/livenode"
)

func port(number int) intstr.IntOrString { return intstr.FromInt32(int32(number)) }

func sendKill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// four returns the names of the processes of a node.
func four() []string { return []string{"configmux", "pleg", "syncloop", "nodestatus"} }

// TestTheNodeIsReadyWithItsLease checks the condition that kubectl shows, and that the lease is renewed.
func TestTheNodeIsReadyWithItsLease(t *testing.T) {
	admin := whole.Client(t)
	awaitThat(t, "the node is Ready", func() bool { return condition(theNode(t, admin), corev1.NodeReady) == corev1.ConditionTrue })
	lines := kubectl(t, "get", "nodes", "--no-headers")
	if fields := strings.Fields(lines); len(fields) < 2 || fields[0] != nodeName || fields[1] != "Ready" {
		t.Errorf("kubectl get nodes: %s", lines)
	}
	renewed := func() time.Time {
		lease, err := admin.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil || lease.Spec.RenewTime == nil {
			return time.Time{}
		}
		if owners := lease.OwnerReferences; len(owners) != 1 || owners[0].UID != theNode(t, admin).UID {
			t.Fatalf("the lease is owned by %v", owners)
		}
		return lease.Spec.RenewTime.Time
	}
	awaitThat(t, "the node has a lease", func() bool { return !renewed().IsZero() })
	first := renewed()
	awaitThat(t, "the lease is renewed", func() bool { return renewed().After(first) })
}

// TestTheClusterMissesANodeThatIsDead: when all four processes are stopped, the controller reports the node as unknown
// within its time limit; when they are back it is Ready, and no container was affected.
func TestTheClusterMissesANodeThatIsDead(t *testing.T) {
	const ns = "missed"
	admin := space(t, ns)
	runPod(t, admin, ns, "stays", "sleep")
	before := started(pods(t, admin, ns, ""))
	kill(t, four()...)
	node.StopServicesMeanwhile(t)
	begin := time.Now()
	awaitThat(t, "the node is Unknown", func() bool { return condition(theNode(t, admin), corev1.NodeReady) == corev1.ConditionUnknown })
	if took := time.Since(begin); took > grace+time.Minute {
		t.Errorf("it took %s", took)
	}
	awaitThat(t, "the pod is not Ready", func() bool { return !livenode.Ready(get(t, admin, ns, "stays")) })
	if err := node.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the node is Ready again", func() bool { return condition(theNode(t, admin), corev1.NodeReady) == corev1.ConditionTrue })
	awaitThat(t, "the pod is Ready again", func() bool { return livenode.Ready(get(t, admin, ns, "stays")) })
	if after := started(pods(t, admin, ns, "")); !slices.Equal(before, after) {
		t.Errorf("containers went from %q to %q", before, after)
	}
}

// TestTheAPIServerDiesInTheMiddleOfARollOut: the API server is down for two minutes, in which the four processes are
// killed, too. Running pods keep running, and the roll-out completes when the API server is back. Meanwhile manifests
// are added, changed and removed, and the container of one is killed: the node applies all of that, and the cluster has
// the matching mirror pods when the API server is back.
//
// Longer outages are for manual runs, for example because the tokens of pods are renewed every hour:
//
//	QUARTET_OUTAGE=2h go test -timeout 3h -run TestTheAPIServerDies ./test/nodecluster
func TestTheAPIServerDiesInTheMiddleOfARollOut(t *testing.T) {
	const ns = "outage"
	admin := space(t, ns)
	labels := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](6), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels, "serve"),
		},
	}
	if _, err := admin.AppsV1().Deployments(ns).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitReplicas(t, admin, ns, 6)
	runPod(t, admin, ns, "stays", "serve")
	before := started(pods(t, admin, ns, "app=stays"))
	static := placeStatics(t, ns+"-static")

	patch(t, admin, ns, `{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"GENERATION","value":"2"}]}]}}}}`)
	awaitThat(t, "a pod of the second version is bound", func() bool {
		d, err := admin.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && d.Status.UpdatedReplicas > 0
	})
	whole.APIServer.Kill(t)
	t.Cleanup(func() { // for a test that has failed before the restart
		if !whole.APIServer.Running() {
			whole.APIServer.Start(t)
		}
	})
	away := time.NewTimer(outage())
	defer away.Stop()
	kill(t, four()...)
	awaitThat(t, "the node serves again, without an API server", func() bool {
		list, err := node.Pods(t.Context())
		return err == nil && slices.ContainsFunc(list, func(p corev1.Pod) bool {
			return p.Name == "stays" && livenode.Ready(&p)
		})
	})
	local := started(localPods(t, ns))
	static.change(t)
	<-away.C
	if after := started(localPods(t, ns)); !slices.Equal(local, after) {
		t.Errorf("while the API server was away, containers went from %q to %q", local, after)
	}
	whole.APIServer.Start(t)
	awaitReplicas(t, admin, ns, 6)
	awaitThat(t, "the pods of the first version are gone", func() bool { return len(pods(t, admin, ns, "app=web")) == 6 })
	static.right(t)
	if after := started(pods(t, admin, ns, "app=stays")); !slices.Equal(before, after) {
		t.Errorf("containers went from %q to %q", before, after)
	}
	for _, pod := range pods(t, admin, ns, "app=web") {
		if restarts := pod.Status.ContainerStatuses[0].RestartCount; restarts != 0 {
			t.Errorf("%s was restarted %d times, want 0", pod.Name, restarts)
		}
	}
}

// outage returns the duration of the outage: QUARTET_OUTAGE, or two minutes.
func outage() time.Duration {
	if given, err := time.ParseDuration(os.Getenv("QUARTET_OUTAGE")); err == nil {
		return given
	}
	return 2 * time.Minute
}

// localPods returns the pods of a namespace as the node itself lists them, without those that are being stopped.
func localPods(t *testing.T, ns string) []corev1.Pod {
	t.Helper()
	list, err := node.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(p corev1.Pod) bool { return p.Namespace != ns || p.DeletionTimestamp != nil })
}

// TestPodsHaveTokens checks that the API server accepts a pod's token, and that the pod has the cluster's published
// roots.
func TestPodsHaveTokens(t *testing.T) {
	const ns = "tokens"
	admin := space(t, ns)
	pod := runPod(t, admin, ns, "robot", "sleep")
	root, err := node.Inside(pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "var/run/secrets/kubernetes.io/serviceaccount")
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(token)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if user := review.Status.User.Username; user != "system:serviceaccount:tokens:default" {
		t.Errorf("the API server takes the token for %q, want %q", user, "system:serviceaccount:tokens:default")
	}
	roots, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(whole.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(roots)) != strings.TrimSpace(string(want)) {
		t.Errorf("ca.crt has %q", roots)
	}
}
