package nodecluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

// controlPlaneNode is the name of the node that runs the control plane of its own cluster.
const controlPlaneNode = "control-plane"

// TestAControlPlaneOfStaticPods: etcd, the API server, the controllers and the scheduler run on a node as kubeadm's
// static pods, and the node joins the cluster of this control plane. It has their mirror pods and runs the pods that
// the cluster binds to it. All of them survive a kill of its four processes, and a reboot. Another node joins the
// cluster with a token.
func TestAControlPlaneOfStaticPods(t *testing.T) {
	for _, image := range []string{"kubernetes", "etcd"} {
		if _, err := os.Stat(archive(image)); err != nil {
			require.NoError(t, fmt.Errorf("%w: run 'make test-tools' first", err))
		}
	}
	address := freeOf(t, 6443, 2379, 2380, 2381, 10257, 10259)
	dir := prepareControlPlane(t, address)
	n := controlPlane(t, dir)
	admin := clientOf(t, filepath.Join(dir, "etc/kubernetes/super-admin.conf"))
	p := plane{node: n, admin: admin}

	p.awaitWhole(t)
	p.awaitMirrors(t, address)
	made := template(nil, "serve")
	guest := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "guest"}, Spec: made.Spec}
	awaitThat(t, "the cluster takes a pod", func() bool {
		_, err := admin.CoreV1().Pods("default").Create(t.Context(), guest, metav1.CreateOptions{})
		return err == nil
	})
	p.awaitGuest(t)
	joinByToken(t, dir, admin)

	before := p.started(t)
	for _, name := range four() {
		pid, err := n.PID(name)
		if err == nil {
			err = sendKill(pid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p.awaitWhole(t)
	if after := p.started(t); !slices.Equal(before, after) {
		t.Errorf("the kill changed containers from %q to %q", before, after)
	}

	static := p.static(t)
	endAll(t, n)
	if err := n.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.awaitWhole(t)
	p.awaitGuest(t)
	p.awaitMirrors(t, address)
	for i, now := range p.static(t) {
		if was := static[i]; now.UID != was.UID ||
			now.Status.ContainerStatuses[0].RestartCount <= was.Status.ContainerStatuses[0].RestartCount {
			t.Errorf("after the reboot %s is another pod, or says nothing of a restart: %+v", now.Name, now.Status.ContainerStatuses)
		}
	}
}

// plane is a node that runs the control plane.
type plane struct {
	node  *livenode.Node
	admin kubernetes.Interface
}

// awaitWhole waits until the node is Ready in the cluster, and all four pods are Ready by the node's own list. The API
// server is one of the pods, so failed requests are retried.
func (p plane) awaitWhole(t *testing.T) {
	t.Helper()
	awaitThat(t, "the node and the control plane are Ready", func() bool {
		own, err := p.admin.CoreV1().Nodes().Get(t.Context(), controlPlaneNode, metav1.GetOptions{})
		if err != nil || condition(own, corev1.NodeReady) != corev1.ConditionTrue {
			return false
		}
		list := p.static(t)
		return len(list) == 4 && !slices.ContainsFunc(list, func(pod corev1.Pod) bool { return !livenode.Ready(&pod) })
	})
}

// static returns the pods of the control plane from the node, in the order of their names; none when it does not
// answer.
func (p plane) static(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := p.node.Pods(t.Context())
	if err != nil {
		return nil
	}
	list = slices.DeleteFunc(list, func(pod corev1.Pod) bool { return pod.Namespace != "kube-system" })
	slices.SortFunc(list, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (p plane) awaitGuest(t *testing.T) {
	t.Helper()
	awaitThat(t, "the pod of the cluster is Ready", func() bool {
		pod, err := p.admin.CoreV1().Pods("default").Get(t.Context(), "guest", metav1.GetOptions{})
		return err == nil && livenode.Ready(pod)
	})
}

// awaitMirrors waits until the cluster has a Ready mirror pod of each of the four, with the spec of kubeadm's
// manifests.
func (p plane) awaitMirrors(t *testing.T, address string) {
	t.Helper()
	var mirrors []corev1.Pod
	awaitThat(t, "the mirrors of the four are Ready", func() bool {
		list, err := p.admin.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "tier=control-plane"})
		if err != nil {
			return false
		}
		mirrors = list.Items
		return len(mirrors) == 4 && !slices.ContainsFunc(mirrors, func(pod corev1.Pod) bool { return !livenode.Ready(&pod) })
	})
	for _, pod := range mirrors {
		if pod.Spec.PriorityClassName != "system-node-critical" || !pod.Spec.HostNetwork || pod.Status.PodIP != address ||
			pod.Annotations[corev1.MirrorPodAnnotationKey] == "" || pod.Status.QOSClass != corev1.PodQOSBurstable {
			t.Errorf("the mirror %s is %+v, %+v", pod.Name, pod.ObjectMeta, pod.Status)
		}
	}
}

// started returns the containers of all pods of the node.
func (p plane) started(t *testing.T) []string {
	t.Helper()
	list, err := p.node.Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return started(list)
}

func archive(image string) string { return filepath.Join(livenode.Bin(), "images", image+".tar") }

// freeOf returns an address of the machine on which the ports are free. The ports are fixed, so the test is skipped
// when they are in use.
func freeOf(t *testing.T, ports ...int) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		if !ok || network.IP.To4() == nil || network.IP.IsLoopback() {
			continue
		}
		for _, port := range ports {
			listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
			require.NoError(t, err)
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return network.IP.String()
	}
	require.NoError(t, fmt.Errorf("this machine has no IPv4 address besides 127.0.0.1"))
	return ""
}

// prepareControlPlane does the manual steps of the walk-through.
func prepareControlPlane(t *testing.T, address string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quartet-controlplane-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	kubeadm, err := filepath.Abs(filepath.Join(livenode.Bin(), "tools", "kubeadm"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "examples", "controlplane", "init"), dir, address, controlPlaneNode)
	cmd.Env = append(os.Environ(), "KUBEADM="+kubeadm)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("examples/controlplane/init: %v\n%s", err, out)
	}
	return dir
}

// controlPlane starts a node, imports the images and places the manifests. Everything is removed when the test ends.
func controlPlane(t *testing.T, dir string) *livenode.Node {
	t.Helper()
	n, err := livenode.New(livenode.Bin(), "controlplane")
	if err != nil {
		t.Fatal(err)
	}
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "kubelet.yaml")
	content, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, fmt.Appendf(content, "port: %d\n%s", port, livenode.AnyMachine), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.Flags = []string{"--config", config, "--kubeconfig", filepath.Join(dir, "etc/kubernetes/kubelet.conf"), "--hostname-override", controlPlaneNode}
	t.Cleanup(func() {
		if t.Failed() {
			if log, err := os.ReadFile(n.Layout.NodeLog()); err == nil {
				t.Logf("the end of the node's log:\n%s", log[max(0, len(log)-20_000):])
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := n.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := n.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"etcd", "kubernetes"} {
		if err := n.Import(t.Context(), archive(image)); err != nil {
			t.Fatal(err)
		}
	}
	manifests, err := filepath.Glob(filepath.Join(dir, "manifests", "*.yaml"))
	if err != nil || len(manifests) != 4 {
		t.Fatalf("the manifests are %q, %v, want 4 entries", manifests, err)
	}
	for _, file := range manifests {
		content, err := os.ReadFile(file)
		if err == nil {
			err = n.Place(filepath.Base(file), string(content))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// clientOf returns a client for a kubeconfig, without a rate limit.
func clientOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Timeout = -1, 10*time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// endAll kills every process of a node and of its pods, as switching off a machine does; files on the disk remain.
func endAll(t *testing.T, n *livenode.Node) {
	t.Helper()
	awaitThat(t, "nothing of the node runs", func() bool {
		pids := processesOf(t, n)
		for _, pid := range pids {
			_ = sendKill(pid) // one that has ended meanwhile is fine
		}
		return len(pids) == 0
	})
}

// processesOf returns the processes that have the node's state directory in their command line, and those in its
// cgroups.
func processesOf(t *testing.T, n *livenode.Node) []int {
	t.Helper()
	var pids []int
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range commands {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		command, err := os.ReadFile(file)
		if err != nil || len(command) == 0 {
			continue // it has ended
		}
		groups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
		if err == nil && (strings.Contains(string(command), n.Layout.StateDir()) ||
			strings.Contains(string(groups), ":"+n.Layout.CgroupRoot()+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}
