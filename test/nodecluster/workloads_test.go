package nodecluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/livenode"
)

// many is the number of replicas to which a Deployment is scaled.
const many = 50

// TestADeploymentRollsOutAndScales: the first roll-out, a roll-out of another template without an interruption, scaling
// up and scaling to zero.
func TestADeploymentRollsOutAndScales(t *testing.T) {
	const ns = "deployment"
	admin := space(t, ns)
	labels := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels, "serve"),
		},
	}
	deployment.Spec.Template.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/",
			Port: port(8080)}},
	}
	if _, err := admin.AppsV1().Deployments(ns).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitReplicas(t, admin, ns, 3)
	before := pods(t, admin, ns, "app=web")

	patch(t, admin, ns, `{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"GENERATION","value":"2"}]}]}}}}`)
	awaitReplicas(t, admin, ns, 3)
	awaitThat(t, "the pods of before are gone", func() bool {
		now := pods(t, admin, ns, "app=web")
		return len(now) == 3 && !slices.ContainsFunc(now, func(p corev1.Pod) bool {
			return slices.ContainsFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID })
		})
	})

	begin := time.Now()
	patch(t, admin, ns, fmt.Sprintf(`{"spec":{"replicas":%d}}`, many))
	awaitReplicas(t, admin, ns, many)
	t.Logf("%d pods were Ready after %.1f s", many, time.Since(begin).Seconds())
	for _, pod := range pods(t, admin, ns, "app=web") {
		if pod.Spec.NodeName != nodeName || pod.Status.PodIP == "" || pod.Status.HostIP == "" || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the pod %s on %q has the status %+v", pod.Name, pod.Spec.NodeName, pod.Status)
		}
	}
	begin = time.Now()
	patch(t, admin, ns, `{"spec":{"replicas":0}}`)
	awaitThat(t, "no pod is left", func() bool { return len(pods(t, admin, ns, "app=web")) == 0 })
	t.Logf("none was left after %.1f s", time.Since(begin).Seconds())
}

// patch patches the Deployment of a test.
func patch(t *testing.T, admin kubernetes.Interface, ns, change string) {
	t.Helper()
	if _, err := admin.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitReplicas waits until the newest version of the Deployment is rolled out with a number of replicas.
func awaitReplicas(t *testing.T, admin kubernetes.Interface, ns string, want int32) {
	t.Helper()
	awaitThat(t, fmt.Sprintf("%d replicas are Ready and up to date", want), func() bool {
		d, err := admin.AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.ReadyReplicas == want && s.UpdatedReplicas == want &&
			s.Replicas == want
	})
}

// TestADaemonSetHasAPodOnTheNode checks that the pod is recreated after a deletion.
func TestADaemonSetHasAPodOnTheNode(t *testing.T) {
	const ns = "daemonset"
	admin := space(t, ns)
	labels := map[string]string{"app": "agent"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels, "sleep")},
	}
	if _, err := admin.AppsV1().DaemonSets(ns).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitPod := func(not types.UID) types.UID {
		var found types.UID
		awaitThat(t, "the daemon set has a Ready pod", func() bool {
			now, err := admin.AppsV1().DaemonSets(ns).Get(t.Context(), "agent", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			list := pods(t, admin, ns, "app=agent")
			if now.Status.NumberReady != 1 || len(list) != 1 || list[0].UID == not {
				return false
			}
			found = list[0].UID
			return livenode.Ready(&list[0])
		})
		return found
	}
	first := awaitPod("")
	kubectl(t, "delete", "pods", "-n", ns, "-l", "app=agent")
	awaitPod(first)
}

// TestJobs: one Job reaches its completions, one its back-off limit.
func TestJobs(t *testing.T) {
	const ns = "jobs"
	admin := space(t, ns)
	job := func(name string, args ...string) *batchv1.Job {
		spec := template(map[string]string{"work": name}, args...)
		spec.Spec.RestartPolicy = corev1.RestartPolicyNever
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: batchv1.JobSpec{Completions: ptr.To[int32](3), Parallelism: ptr.To[int32](2),
				BackoffLimit: ptr.To[int32](1), Template: spec},
		}
	}
	for _, made := range []*batchv1.Job{job("good", "init"), job("bad", "crash", "-after", "100ms", "-code", "7")} {
		if _, err := admin.BatchV1().Jobs(ns).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]batchv1.JobConditionType{"good": batchv1.JobComplete, "bad": batchv1.JobFailed} {
		awaitThat(t, fmt.Sprintf("the job %s is %s", name, want), func() bool {
			now, err := admin.BatchV1().Jobs(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(now.Status.Conditions, func(c batchv1.JobCondition) bool {
				return c.Type == want && c.Status == corev1.ConditionTrue
			})
		})
	}
	if done := pods(t, admin, ns, "work=good"); len(done) != 3 {
		t.Errorf("%d pods did the work, want 3", len(done))
	}
	for _, pod := range pods(t, admin, ns, "work=bad") {
		state := pod.Status.ContainerStatuses[0].State.Terminated
		if pod.Status.Phase != corev1.PodFailed || state == nil || state.ExitCode != 7 {
			t.Errorf("the pod %s has the status %+v", pod.Name, pod.Status)
		}
	}
}

// TestAStatefulSetHasNames: one pod starts after the other, each with its host name, and with its full name in the
// domain of the service in its hosts file.
func TestAStatefulSetHasNames(t *testing.T) {
	const ns = "statefulset"
	admin := space(t, ns)
	labels := map[string]string{"app": "db"}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: labels,
			Ports: []corev1.ServicePort{{Port: 8080}}},
	}
	if _, err := admin.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			ServiceName: "db", Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(labels, "env"),
		},
	}
	if _, err := admin.AppsV1().StatefulSets(ns).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		name := fmt.Sprintf("db-%d", i)
		awaitThat(t, name+" is Ready", func() bool { return livenode.Ready(get(t, admin, ns, name)) })
		pod := get(t, admin, ns, name)
		root, err := node.Inside(pod, "main")
		if err != nil {
			t.Fatal(err)
		}
		hosts, err := os.ReadFile(filepath.Join(root, "etc", "hosts"))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%s\t%s.db.%s.svc.cluster.local\t%s\n", pod.Status.PodIP, name, ns, name); !strings.Contains(string(hosts), want) {
			t.Errorf("the hosts file of %s lacks %q:\n%s", name, want, hosts)
		}
		hostname, err := os.ReadFile(filepath.Join(root, "etc", "hostname"))
		if err != nil || strings.TrimSpace(string(hostname)) != name {
			t.Errorf("the host name of %s is %q, %v", name, hostname, err)
		}
	}
}

// TestPodsAreDeletedGracefullyAndByForce: one object exists until its pod has ended, the other is removed from the
// cluster at once, and its pod soon from the node.
func TestPodsAreDeletedGracefullyAndByForce(t *testing.T) {
	const ns = "deletion"
	admin := space(t, ns)
	stubborn := runPod(t, admin, ns, "graceful", "sleep", "-ignore-term")
	begin := time.Now()
	kubectl(t, "delete", "pod", "-n", ns, "graceful", "--grace-period=3")
	if took := time.Since(begin); took < 3*time.Second {
		t.Errorf("a pod that does not end by itself was gone after %s", took)
	}
	forced := runPod(t, admin, ns, "forced", "sleep", "-ignore-term")
	kubectl(t, "delete", "pod", "-n", ns, "forced", "--grace-period=0", "--force")
	if get(t, admin, ns, "forced") != nil {
		t.Error("a pod that was deleted by force is there")
	}
	for _, pod := range []*corev1.Pod{stubborn, forced} {
		awaitThat(t, "the cgroups of "+pod.Name+" are gone", func() bool {
			dirs, err := livenode.Cgroups(node.PodCgroup(pod))
			return err == nil && len(dirs) == 0
		})
	}
}
