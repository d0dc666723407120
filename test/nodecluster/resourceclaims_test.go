package nodecluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

// draDriver is the name of the DRA driver, and of the class of its devices.
const draDriver = "nodecluster.dra.example.com"

// startDRADriver starts Kubernetes' DRA test driver, and returns a function that ends it, as the deletion of its pod
// does.
func startDRADriver(t *testing.T) (stop func()) {
	t.Helper()
	program := filepath.Join(livenode.Bin(), "tools", "dra-test-driver")
	_, err := os.Stat(program)
	require.NoError(t, err)
	root := node.Layout.Root()
	if err := os.MkdirAll(filepath.Join(root, "plugins", draDriver), 0o750); err != nil { // as the volume of its pod
		t.Fatal(err)
	}
	cmd := exec.Command(program, "kubelet-plugin", "--kubeconfig", adminConfig, "--drivername", draDriver,
		"--node-name", nodeName, "--datadir", filepath.Join(root, "plugins"),
		"--plugin-registration-path", filepath.Join(root, "plugins_registry"), "--num-devices", "4", "-v", "3")
	cmd.Env = append(os.Environ(), "NO_PROXY=*")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the DRA driver wrote\n%s", output.String())
		}
	}
	t.Cleanup(stop)
	return stop
}

// published returns the number of ResourceSlices of the driver.
func published(t *testing.T, admin kubernetes.Interface) int {
	t.Helper()
	list, err := admin.ResourceV1().ResourceSlices().List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.driver=" + draDriver})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// claimSpec asks for one device, and gives the container the variable user_COLOR=COLOR.
func claimSpec(color string) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{
			Name: "one", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: draDriver},
		}},
		Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: draDriver, Parameters: runtime.RawExtension{Raw: []byte(`{"` + color + `":"` + color + `"}`)},
			},
		}}},
	}}
}

// claiming creates a pod that uses a claim of its own, from the template, and the claim that all such pods share.
func claiming(t *testing.T, admin kubernetes.Interface, namespace, name string, args ...string) {
	t.Helper()
	made := template(map[string]string{"app": name}, args...)
	made.Spec.RestartPolicy = corev1.RestartPolicyNever
	made.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "own", ResourceClaimTemplateName: ptr.To("own")}, {Name: "shared", ResourceClaimName: ptr.To("shared")},
	}
	made.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "own", Request: "one"}, {Name: "shared"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: made.Labels}, Spec: made.Spec}
	if _, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// variables returns the variables of a running pod that the driver has set.
func variables(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	root, err := node.Inside(pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	environment, err := os.ReadFile(filepath.Join(filepath.Dir(root), "environ"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.SplitSeq(string(environment), "\x00") {
		if strings.HasPrefix(line, "user_") {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

// preparedClaims returns the UIDs of the claims of which the driver has files for the runtime.
func preparedClaims(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/var/run/cdi", draDriver+"-*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var uids []string
	for _, file := range files {
		name := strings.TrimPrefix(filepath.Base(file), draDriver+"-")
		uids = append(uids, strings.TrimSuffix(name, "-one.json"))
	}
	return uids
}

// claimUIDs returns the UIDs of the claims of a pod, its own one first.
func claimUIDs(t *testing.T, admin kubernetes.Interface, pod *corev1.Pod) []string {
	t.Helper()
	var uids []string
	for _, name := range []string{*pod.Status.ResourceClaimStatuses[0].ResourceClaimName, "shared"} {
		claim, err := admin.ResourceV1().ResourceClaims(pod.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids = append(uids, string(claim.UID))
	}
	return uids
}

// prepareClass creates the class of the driver's devices, the shared claim, and the template of the others.
func prepareClass(t *testing.T, admin kubernetes.Interface, namespace string) {
	t.Helper()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: draDriver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "` + draDriver + `"`,
		}}},
	}}
	if _, err := admin.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kubectlOrError(t.Context(), "delete", "deviceclass", draDriver) })
	shared := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: claimSpec("red")}
	if _, err := admin.ResourceV1().ResourceClaims(namespace).Create(t.Context(), shared,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimSpec("blue")},
	}
	if _, err := admin.ResourceV1().ResourceClaimTemplates(namespace).Create(t.Context(), own,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestResourceClaimsOfADriver runs Kubernetes' DRA test driver: pods get the devices of their own claim and of one that
// they share, claims are unprepared when the last pod is gone, also after syncloop was killed and a pod was deleted
// meanwhile, the driver is restarted, and its devices vanish from the cluster when it leaves for good.
func TestResourceClaimsOfADriver(t *testing.T) {
	const ns = "resourceclaims"
	admin := space(t, ns)
	prepareClass(t, admin, ns)
	t.Cleanup(func() { // a driver that was restarted does not know its files any more
		for _, uid := range preparedClaims(t) {
			_ = os.Remove(filepath.Join("/var/run/cdi", draDriver+"-"+uid+"-one.json")) // the driver may have removed it
		}
	})
	stop := startDRADriver(t)
	awaitThat(t, "the devices are published", func() bool { return published(t, admin) > 0 })
	both := []string{"user_blue=blue", "user_red=red"}
	ready := func(name string) *corev1.Pod {
		awaitThat(t, name+" is Ready", func() bool { return livenode.Ready(get(t, admin, ns, name)) })
		pod := get(t, admin, ns, name)
		if got := variables(t, pod); !slices.Equal(got, both) {
			t.Errorf("%s sees %q, want %q", name, got, both)
		}
		return pod
	}
	claiming(t, admin, ns, "first", "sleep")
	claiming(t, admin, ns, "second", "sleep")
	first, second := ready("first"), ready("second")
	awaitThat(t, "the status has the devices", func() bool {
		has := get(t, admin, ns, "first").Status.ContainerStatuses[0].AllocatedResourcesStatus
		return len(has) == 2 && has[0].Name == "claim:own/one" && has[1].Name == "claim:shared" && len(has[1].Resources) == 1
	})
	ofFirst, ofSecond := claimUIDs(t, admin, first), claimUIDs(t, admin, second)

	kill(t, "syncloop")
	force := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := admin.CoreV1().Pods(ns).Delete(t.Context(), "first", force); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the claim of the deleted pod is unprepared",
		func() bool { return !slices.Contains(preparedClaims(t), ofFirst[0]) })
	for _, uid := range ofSecond {
		if !slices.Contains(preparedClaims(t), uid) {
			t.Errorf("the claim %s of a running pod was unprepared", uid)
		}
	}

	claiming(t, admin, ns, "ends", "init")
	awaitThat(t, "a pod has ended", func() bool { return get(t, admin, ns, "ends").Status.Phase == corev1.PodSucceeded })
	awaitThat(t, "its claim is unprepared", func() bool { return len(preparedClaims(t)) == len(ofSecond) })

	stop()
	claiming(t, admin, ns, "waits", "sleep")
	awaitThat(t, "a pod waits for the driver", func() bool {
		return strings.Contains(kubectl(t, "get", "events", "-n", ns, "--field-selector", "involvedObject.name=waits"),
			"Failed to prepare dynamic resources: prepare dynamic resources: DRA driver "+draDriver+" is not registered")
	})
	stop = startDRADriver(t)
	ready("waits")
	if now := get(t, admin, ns, "second"); !slices.Equal(started([]corev1.Pod{*now}), started([]corev1.Pod{*second})) {
		t.Errorf("a running pod was restarted: %v", now.Status)
	}
	kubectl(t, "delete", "pod", "-n", ns, "--all", "--wait")
	awaitThat(t, "the checkpoint is empty", func() bool {
		data, err := os.ReadFile(filepath.Join(node.Layout.Root(), "dra_manager_state"))
		return err == nil && !bytes.Contains(data, []byte("ClaimUID"))
	})
	stop()
	awaitThat(t, "the devices are not published any more", func() bool { return published(t, admin) == 0 })
}
