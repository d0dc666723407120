// Package kubeadm tests clusters that kubeadm sets up with Quartet as the kubelet: a control plane and a worker, each
// on a systemd of its own, with CoreDNS, kube-proxy and metrics-server as pods, an upgrade, a reset, and another join
// of a node after it.
package kubeadm

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/test/systemdhost"
)

// version is the version of Kubernetes.
const version = "v1.37.2"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestKubeadmMakesAClusterOfQuartets(t *testing.T) {
	bin := requireBuilt(t)
	control, worker := boot(t, bin, "control-plane"), boot(t, bin, "worker")
	control.address, worker.address = netip.MustParseAddr(controlAddress), netip.MustParseAddr(workerAddress)
	systemdhost.Connect(t, control.Machine, netip.PrefixFrom(control.address, 24), worker.Machine,
		netip.PrefixFrom(worker.address, 24))
	c := cluster{control: control, worker: worker}

	control.WriteFile(t, "/root/init.yaml", read(t, "testdata/init.yaml"))
	control.kubeadm(t, append([]string{"init", "--config", "/root/init.yaml"}, ignored()...)...)
	c.join(t)
	c.ready(t)
	// kubeadm has found the certificate at the kubelet's path and put the path into the kubeconfig, so that the
	// certificate is renewed.
	if kubeconfig := control.Run(t, "cat", "/etc/kubernetes/kubelet.conf"); !strings.Contains(kubeconfig, "client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem") {
		t.Error("the kubeconfig of the control plane's node does not name the certificate that is renewed")
	}

	c.namesAndServices(t)
	c.metrics(t)
	c.storage(t)
	c.upgrade(t)
	c.resetAndJoinAgain(t)
	control.kubeadm(t, "reset", "--force")
	nothingIsLeft(t, control)
}

// cluster is a cluster of two nodes.
type cluster struct{ control, worker *node }

// join joins the worker with the command that kubeadm prints.
func (c cluster) join(t *testing.T) {
	t.Helper()
	command := strings.Fields(c.control.Run(t, "kubeadm", "--kubeconfig", admin, "token", "create", "--print-join-command"))
	c.worker.kubeadm(t, append(command[1:], ignored()...)...)
}

// ready sets up the nodes' network and waits until they and all objects of kubeadm are Ready.
func (c cluster) ready(t *testing.T) {
	t.Helper()
	ranges := map[string]string{}
	for _, n := range []*node{c.control, c.worker} {
		ranges[n.Name] = c.control.await(t, "the node "+n.Name+" has a range of addresses", func(out string) bool { return out != "" },
			"get", "node", n.Name, "-o", "jsonpath={.spec.podCIDR}")
	}
	c.control.network(t, ranges[c.control.Name], c.worker, ranges[c.worker.Name])
	c.worker.network(t, ranges[c.worker.Name], c.control, ranges[c.control.Name])
	c.control.kubectl(t, "wait", "--for=condition=Ready", "--timeout=5m", "nodes", "--all")
	c.control.kubectl(t, "-n", "kube-system", "rollout", "status", "--timeout=5m", "daemonset/kube-proxy")
	c.control.kubectl(t, "-n", "kube-system", "rollout", "status", "--timeout=5m", "deployment/coredns")
	c.control.kubectl(t, "-n", "kube-system", "wait", "--for=condition=Ready", "--timeout=5m", "pods", "--all")
	t.Logf("%s", c.control.kubectl(t, "get", "nodes,pods", "-A", "-o", "wide"))
}

// namesAndServices checks that a pod on each node reaches a service by its name and by its address, whichever node the
// service's pods are on.
func (c cluster) namesAndServices(t *testing.T) {
	t.Helper()
	c.control.apply(t, read(t, "testdata/hello.yaml"))
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "daemonset/hello")
	address := c.control.kubectl(t, "get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	pods := strings.Fields(c.control.kubectl(t, "get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[*].metadata.name}"))
	if len(pods) != 2 {
		t.Fatalf("the pods are %q, want 2 entries", pods)
	}
	for _, pod := range pods {
		for _, url := range []string{"http://hello/", "http://hello.default.svc.cluster.local/", "http://" + address + "/"} {
			answered := map[string]bool{}
			each.That(t, pod+" has had an answer of each pod to "+url, func() bool {
				out, err := c.control.Try(t, "kubectl", "--kubeconfig", admin, "exec", pod, "--", "/hello", "get", url)
				for _, other := range pods {
					if err == nil && strings.Contains(out, "("+other+",") {
						answered[other] = true
					}
				}
				return len(answered) == len(pods)
			})
		}
	}
}

// metrics checks that metrics-server finds its API server with the variables of its pod, and the API server finds it
// behind its service.
func (c cluster) metrics(t *testing.T) {
	t.Helper()
	c.control.apply(t, read(t, "testdata/metrics-server.yaml"))
	c.control.kubectl(t, "-n", "kube-system", "rollout", "status", "--timeout=5m", "deployment/metrics-server")
	c.control.await(t, "kubectl top has both nodes", func(out string) bool {
		return strings.Contains(out, c.control.Name) && strings.Contains(out, c.worker.Name) &&
			!strings.Contains(out, "unknown")
	}, "top", "nodes")
	c.control.await(t, "kubectl top has the pods", func(out string) bool {
		return strings.Contains(out, "kube-proxy-") && strings.Contains(out, "coredns-") && strings.Contains(out, "etcd-"+c.control.Name)
	}, "top", "pods", "-n", "kube-system")
}

// upgrade checks that kubeadm applies changes of the cluster's configuration to each node: a flag of the scheduler and
// a field of the kubelet's configuration.
func (c cluster) upgrade(t *testing.T) {
	t.Helper()
	change := func(name, key string, edit func(string) string) {
		t.Helper()
		was := c.control.kubectl(t, "-n", "kube-system", "get", "configmap", name, "-o", "jsonpath={.data."+key+"}")
		now := edit(was)
		if now == was {
			t.Fatalf("nothing is changed in %s:\n%s", name, was)
		}
		c.control.WriteFile(t, "/root/"+key, now)
		c.control.WriteFile(t, "/root/changed.yaml", c.control.kubectl(t, "-n", "kube-system", "create", "configmap", name, "--dry-run=client", "-o", "yaml", "--from-file="+key+"=/root/"+key))
		c.control.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", "/root/changed.yaml")
	}
	change("kubelet-config", "kubelet", func(was string) string { return was + "\nmaxPods: 77\n" })
	change("kubeadm-config", "ClusterConfiguration", func(was string) string {
		return strings.Replace(was, "scheduler: {}", "scheduler:\n  extraArgs:\n  - name: kube-api-qps\n    value: \"51\"", 1)
	})
	for _, n := range []*node{c.control, c.worker} {
		n.kubeadm(t, append([]string{"upgrade", "node"}, ignored()...)...)
		n.Run(t, "systemctl", "restart", "kubelet.service")
		c.control.await(t, n.Name+" takes 77 pods", func(out string) bool { return out == "77 True" },
			"get", "node", n.Name, "-o", `jsonpath={.status.capacity.pods} {.status.conditions[?(@.type=="Ready")].status}`)
	}
	c.control.await(t, "the scheduler has the flag and is Ready", func(out string) bool {
		return strings.Contains(out, "--kube-api-qps=51") && strings.HasSuffix(out, " True")
	}, "-n", "kube-system", "get", "pod", "kube-scheduler-"+c.control.Name, "-o", `jsonpath={.spec.containers[0].command} {.status.conditions[?(@.type=="Ready")].status}`)
}

// resetAndJoinAgain checks that a reset leaves nothing of the node on the worker, which can join again as another Node.
func (c cluster) resetAndJoinAgain(t *testing.T) {
	t.Helper()
	uid := func() string {
		return c.control.kubectl(t, "get", "node", c.worker.Name, "-o", "jsonpath={.metadata.uid}")
	}
	before := uid()
	c.control.kubectl(t, "drain", c.worker.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m")
	c.worker.kubeadm(t, "reset", "--force")
	nothingIsLeft(t, c.worker)
	// kubeadm asks the administrator to do this: the node is going to have another range of addresses.
	c.worker.Run(t, "rm", "/etc/cni/net.d/10-test.conflist")
	c.worker.Run(t, "ip", "link", "delete", "cni0")
	c.control.kubectl(t, "delete", "node", c.worker.Name)
	c.join(t)
	c.ready(t)
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "daemonset/hello")
	if after := uid(); after == before {
		t.Errorf("the Node is the one that was there before the reset, %s", after)
	}
}

// nothingIsLeft checks that after a reset no kubelet and no container runs, and nothing is mounted or kept.
func nothingIsLeft(t *testing.T, n *node) {
	t.Helper()
	if state, _ := n.Try(t, "systemctl", "is-active", "kubelet.service"); state != "inactive" {
		t.Errorf("after a reset the kubelet of %s is %s", n.Name, state)
	}
	if left := n.Run(t, "ctr", "-n", "k8s.io", "containers", "list", "-q"); left != "" {
		t.Errorf("after a reset %s has the containers %s", n.Name, left)
	}
	if mounts := n.Run(t, "cat", "/proc/self/mounts"); strings.Contains(mounts, " /var/lib/kubelet/pods") {
		t.Errorf("after a reset %s has these mounts:\n%s", n.Name, mounts)
	}
	for _, dir := range []string{"/var/lib/kubelet", "/etc/kubernetes/manifests", "/var/lib/etcd"} {
		entries, err := os.ReadDir(n.Path(dir))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		for _, entry := range entries {
			t.Errorf("after a reset %s has %s", n.Name, filepath.Join(dir, entry.Name()))
		}
	}
}
