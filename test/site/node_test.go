package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/sitenodes"
)

// realName is the name of the node whose containers are real, and podName that of its pod.
const realName, podName = "site-real", "web"

// realNode is a whole node without a configmux of its own, with its containers, behind the configmux of a site. The
// line to the API server is one for both.
type realNode struct {
	t         *testing.T
	bin       string
	admin     kubernetes.Interface
	uplink    *cluster.Proxy
	configmux *sitenodes.Configmux
	state     string
	node      *livenode.Node
}

func newRealNode(t *testing.T) *realNode {
	t.Helper()
	require.Root(t, "containers")
	bin := cluster.Require(t)
	require.NoError(t, livenode.CannotRun(bin))
	c := cluster.Start(t)
	n := &realNode{t: t, bin: bin, admin: c.Client(t), uplink: c.Proxy(t)}
	dir, own := t.TempDir(), t.TempDir()
	n.state = filepath.Join(dir, "state", "site")
	var err error
	n.configmux, err = sitenodes.NewConfigmux(c, bin, dir, n.uplink.URL())
	must(t, err)
	t.Cleanup(func() { must(t, n.configmux.Close()) })
	must(t, n.configmux.Start())

	files := sitenodes.Files(c, own)
	must(t, c.SaveNode(files.Cert, files.Key, realName))
	port, err := freeport.Find()
	must(t, err)
	config := filepath.Join(own, "kubelet.yaml")
	must(t, os.WriteFile(config, []byte(fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: %d
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %q}
authorization: {mode: Webhook}
%s`, port, c.CAFile(), livenode.AnyMachine)), 0o600))
	n.node, err = livenode.New(bin, "site")
	must(t, err)
	n.node.Flags = []string{
		"--kubeconfig", n.uplink.Kubeconfig(t, cluster.NodeUser(realName), cluster.Nodes), "--config", config,
		"--hostname-override", realName, "--configmux-address", n.configmux.Address, "--configmux-objects",
		"--tls-cert", files.Cert, "--tls-key", files.Key, "--tls-ca", files.CA,
	}
	t.Cleanup(func() {
		log, err := os.ReadFile(n.node.Layout.NodeLog())
		if t.Failed() && err == nil {
			t.Logf("the log of the node:\n%s", log[max(0, len(log)-20_000):])
		}
		if log, err := os.ReadFile(n.configmux.Log); t.Failed() && err == nil {
			t.Logf("the log of configmux:\n%s", log)
		}
		must(t, n.node.Remove(context.Background()))
	})
	must(t, n.node.Up(t.Context()))
	n.await("the Node is registered", func() bool {
		_, err := n.admin.CoreV1().Nodes().Get(t.Context(), realName, metav1.GetOptions{})
		return err == nil
	})
	return n
}

func (n *realNode) await(what string, holds func() bool) {
	n.t.Helper()
	eventually.Wait{Patience: patience, Interval: 100 * time.Millisecond}.That(n.t, what, holds)
}

// createObjects creates what the pod names. The claim is bound to a directory of this machine, as the controllers of a
// cluster would do it.
func (n *realNode) createObjects(dir string) {
	n.t.Helper()
	ctx, core := n.t.Context(), n.admin.CoreV1()
	_, err := core.ConfigMaps("default").Create(ctx, &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"LEVEL": "info"},
	}, metav1.CreateOptions{})
	must(n.t, err)
	_, err = core.Secrets("default").Create(ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "login"}, Data: map[string][]byte{"password": []byte("hunter2")},
	}, metav1.CreateOptions{})
	must(n.t, err)
	_, err = core.Services("default").Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(n.t, err)
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	claim, err := core.PersistentVolumeClaims("default").Create(ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: ptr.To(""), VolumeName: "disk",
			Resources: v1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	must(n.t, err)
	_, err = core.PersistentVolumes().Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: "data", UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpExists},
				},
			}}}},
		},
	}, metav1.CreateOptions{})
	must(n.t, err)
	claim.Status.Phase, claim.Status.AccessModes, claim.Status.Capacity = v1.ClaimBound, modes, size
	_, err = core.PersistentVolumeClaims("default").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	must(n.t, err)
}

func (n *realNode) createPod() {
	n.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: v1.PodSpec{
			NodeName: realName, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{
				Name: "main", Image: livenode.Image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent,
				EnvFrom: []v1.EnvFromSource{{Prefix: "APP_", ConfigMapRef: &v1.ConfigMapEnvSource{
					LocalObjectReference: v1.LocalObjectReference{Name: "settings"},
				}}},
				Env: []v1.EnvVar{{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
					LocalObjectReference: v1.LocalObjectReference{Name: "login"}, Key: "password",
				}}}},
				VolumeMounts: []v1.VolumeMount{{Name: "settings", MountPath: "/settings"}, {Name: "data", MountPath: "/data"}},
			}},
			Volumes: []v1.Volume{
				{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
					LocalObjectReference: v1.LocalObjectReference{Name: "settings"},
				}}},
				{Name: "data", VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
				}},
			},
		},
	}
	_, err := n.admin.CoreV1().Pods("default").Create(n.t.Context(), pod, metav1.CreateOptions{})
	must(n.t, err)
}

// ready waits until the pod is ready on the node, with a number of restarts, and returns it.
func (n *realNode) ready(restarts int32) *v1.Pod {
	n.t.Helper()
	var found *v1.Pod
	n.await(fmt.Sprintf("the pod is ready after %d restarts", restarts), func() bool {
		pods, err := n.node.Pods(n.t.Context())
		i := slices.IndexFunc(pods, func(p v1.Pod) bool { return p.Name == podName })
		if err != nil || i < 0 || !livenode.Ready(&pods[i]) {
			return false
		}
		found = &pods[i]
		return found.Status.ContainerStatuses[0].RestartCount == restarts
	})
	return found
}

// hasAll checks that the container of the pod has everything that it names.
func (n *realNode) hasAll(pod *v1.Pod, when string) {
	n.t.Helper()
	root, err := n.node.Inside(pod, "main")
	must(n.t, err)
	environment, err := os.ReadFile(filepath.Join(filepath.Dir(root), "environ"))
	must(n.t, err)
	api, err := n.admin.CoreV1().Services("default").Get(n.t.Context(), "kubernetes", metav1.GetOptions{})
	must(n.t, err)
	shop, err := n.admin.CoreV1().Services("default").Get(n.t.Context(), "shop", metav1.GetOptions{})
	must(n.t, err)
	has := strings.Split(string(environment), "\x00")
	for _, want := range []string{
		"APP_LEVEL=info", "PASSWORD=hunter2", "KUBERNETES_SERVICE_HOST=" + api.Spec.ClusterIP,
		"SHOP_SERVICE_HOST=" + shop.Spec.ClusterIP,
	} {
		if !slices.Contains(has, want) {
			n.t.Errorf("%s: the environment lacks %s", when, want)
		}
	}
	for file, want := range map[string]string{"settings/LEVEL": "info", "data/file": "kept"} {
		if got, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(got) != want {
			n.t.Errorf("%s: %s has %q, %v, want %q", when, file, got, err, want)
		}
	}
}

// killSyncloop kills syncloop, and returns when another one runs.
func (n *realNode) killSyncloop() {
	n.t.Helper()
	before, err := n.node.PID("syncloop")
	must(n.t, err)
	must(n.t, syscall.Kill(before, syscall.SIGKILL))
	n.await("another syncloop runs", func() bool {
		now, err := n.node.PID("syncloop")
		return err == nil && now != before
	})
}

// quartet runs a command on the node, and returns its output and its exit code.
func (n *realNode) quartet(args ...string) (out string, code int) {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), filepath.Join(n.bin, "quartet"),
		append(args, "--state-dir", n.node.Layout.StateDir())...)
	data, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(data), exit.ExitCode()
	}
	must(n.t, err)
	return string(data), 0
}

// commandsReachTheSite checks that the commands for configmux ask that of the site, as the node does.
func (n *realNode) commandsReachTheSite() {
	n.t.Helper()
	dir := n.t.TempDir()
	doctor, _ := n.quartet("doctor") // the machine of the test may have other faults
	if want := "the configmux at " + n.configmux.Address; !regexp.MustCompile(`(?m)^configmux +ok +` + want).MatchString(doctor) {
		n.t.Errorf("quartet doctor has no line of the configmux of the site:\n%s", doctor)
	}
	file := filepath.Join(dir, "node.jsonl")
	if out, code := n.quartet("record", file, "--for", "3s"); code != 0 {
		n.t.Errorf("quartet record ends with %d: %s", code, out)
	}
	recorded, err := os.ReadFile(file)
	if err != nil || !regexp.MustCompile(`"part":"configmux","op":"put".*"name":"?api`).Match(recorded) {
		n.t.Errorf("the recording has no pod updates of the site, %v:\n%s", err, recorded[:min(len(recorded), 4096)])
	}
	if out, code := n.quartet("support-bundle", "-o", filepath.Join(dir, "bundle.tar.gz")); code != 0 ||
		strings.Contains(out, "Warning") {
		n.t.Errorf("quartet support-bundle ends with %d, want no warning: %s", code, out)
	}
	shadow := exec.CommandContext(n.t.Context(), filepath.Join(n.bin, "syncloop"), "--shadow", "--shadow-for=15s",
		"--hostname-override="+realName, "--state-dir="+n.node.Layout.StateDir())
	if out, err := shadow.CombinedOutput(); !strings.Contains(string(out), "Compared 1 pods.") {
		n.t.Errorf("syncloop --shadow ends with %v, want one pod compared: %s", err, out)
	}
}

// TestARealNodeOfASiteWhileTheLineIsCut: a pod has its config map, secret, claim and services from the configmux of the
// site. With the line to the API server cut, syncloop and configmux are killed, and the pod runs on; when its container
// ends, the next one has all of them, from the checkpoint of configmux.
func TestARealNodeOfASiteWhileTheLineIsCut(t *testing.T) {
	n := newRealNode(t)
	if _, err := n.node.PID("configmux"); err == nil {
		t.Error("the node has a configmux of its own")
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("kept"), 0o600))
	n.createObjects(dir)
	n.createPod()
	before := n.ready(0)
	n.hasAll(before, "at first")
	n.await("the checkpoints have the pod and what it names", func() bool {
		pods, podsErr := os.ReadFile(filepath.Join(n.state, realName+".pods"))
		objects, err := os.ReadFile(filepath.Join(n.state, "objects"))
		for _, name := range []string{"settings", "login", "data", "disk", `"ServiceList"`} {
			if !strings.Contains(string(objects), name) {
				return false
			}
		}
		return podsErr == nil && err == nil && strings.Contains(string(pods), podName)
	})
	n.commandsReachTheSite()

	var after *v1.Pod
	whileCut(t, n.uplink, func() {
		must(t, n.configmux.Kill())
		n.killSyncloop()
		must(t, n.configmux.Start())
		after = n.ready(0)
		was, is := before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID
		if is != was {
			t.Errorf("after the kills the container is %s, before %s", is, was)
		}
	})
	root, err := n.node.Inside(after, "main")
	must(t, err)
	process, err := strconv.Atoi(filepath.Base(filepath.Dir(root)))
	must(t, err)
	must(t, syscall.Kill(process, syscall.SIGKILL))
	n.hasAll(n.ready(1), "after a new start without the line")

	n.uplink.Accept(t)
	settings := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"LEVEL": "debug"}}
	_, err = n.admin.CoreV1().ConfigMaps("default").Update(t.Context(), settings, metav1.UpdateOptions{})
	must(t, err)
	n.await("a change reaches the container", func() bool {
		root, err := n.node.Inside(n.ready(1), "main")
		if err != nil {
			return false
		}
		level, err := os.ReadFile(filepath.Join(root, "settings", "LEVEL"))
		return err == nil && string(level) == "debug"
	})
}
