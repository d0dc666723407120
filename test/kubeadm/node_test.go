package kubeadm

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"

	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/systemdhost"
)

const (
	// patience is the time limit of a wait for containers. On two busy cores, an API server takes a minute.
	patience = 5 * time.Minute
	// controlAddress and workerAddress are the addresses of the machines; testdata/init.yaml has the first, too.
	controlAddress, workerAddress = "192.168.231.1", "192.168.231.2"
	// admin is the kubeconfig of the cluster's administrator.
	admin = "/etc/kubernetes/admin.conf"
)

// each polls every second, because each check starts a program.
var each = eventually.Wait{Patience: patience, Interval: time.Second}

// node is a machine with containerd, kubeadm, kubectl, and Quartet as the kubelet.
type node struct {
	*systemdhost.Machine
	address netip.Addr
	bin     string
}

// programs returns the binaries that the machines run.
func programs() []string {
	return []string{"quartet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge", "host-local", "loopback", "portmap", "tools/kubeadm"}
}

// archives returns the names of the built images, without their suffix.
func archives() []string {
	return []string{"pause", "hello", "kubernetes", "etcd", "coredns", "storage"}
}

// requireBuilt skips the test when something has not been built.
func requireBuilt(t *testing.T) string {
	t.Helper()
	bin := harness.BinDir(t)
	for _, name := range programs() {
		_, err := os.Stat(filepath.Join(bin, name))
		require.NoError(t, err)
	}
	for _, name := range archives() {
		if _, err := os.Stat(archive(bin, name)); err != nil {
			require.NoError(t, fmt.Errorf("%w: run 'make test-tools' first", err))
		}
	}
	return bin
}

func archive(bin, image string) string { return filepath.Join(bin, "images", image+".tar") }

// boot starts a machine and does the installation that an administrator does before kubeadm.
func boot(t *testing.T, bin, name string) *node {
	t.Helper()
	n := &node{Machine: systemdhost.Boot(t, name), bin: bin}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of containerd of %s:\n%s\nthe log of the kubelet:\n%s", name, last(n.Log("containerd"), 8<<10), n.Log("kubelet"))
		}
	})
	// kubeadm and kubectl are one program, which the name of its file selects.
	for link, file := range map[string]string{"kubeadm": "tools/kubeadm", "kubectl": "tools/kubeadm", "ctr": "ctr"} {
		n.Run(t, "ln", "-sf", filepath.Join(bin, file), path.Join("/usr/bin", link))
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		n.CopyFrom(t, filepath.Join(bin, plugin), path.Join("/opt/cni/bin", plugin))
	}
	n.WriteFile(t, "/etc/containerd/config.toml", n.runtimeConfig())
	n.WriteFile(t, systemdhost.AdminUnits+"/containerd.service", "[Service]\nType=notify\nExecStart="+filepath.Join(bin, "containerd")+
		"\nDelegate=yes\nKillMode=process\nRestart=always\n[Install]\nWantedBy=multi-user.target\n")
	n.Run(t, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	n.Run(t, "rm", "-f", "/etc/resolv.conf")
	// no server has this address: external names are not resolved
	n.WriteFile(t, "/etc/resolv.conf", "nameserver 192.0.2.1\n")
	n.WriteFile(t, "/etc/hosts", "127.0.0.1 localhost\n"+controlAddress+" control-plane\n"+workerAddress+" worker\n")
	n.Run(t, "systemctl", "daemon-reload")
	n.Run(t, "systemctl", "enable", "--now", "containerd.service")
	n.install(t)
	n.importImages(t)
	return n
}

// install runs the commands of docs/howto/join-a-cluster.md, in a directory that replaces a checkout.
func (n *node) install(t *testing.T) {
	t.Helper()
	deploy, err := filepath.Abs(filepath.Join("..", "..", "deploy"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(read(t, filepath.Join("..", "..", "docs", "howto", "join-a-cluster.md")), "\n## With kubeadm\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := regexp.MustCompile(`(?m)^ {4}(?:install|ln|systemctl) .*$`).FindAllString(section, -1)
	if !found || len(commands) < 7 {
		t.Fatalf("docs/howto/join-a-cluster.md has the commands %q", commands)
	}
	n.Run(t, "ln", "-s", n.bin, "/root/bin")
	n.Run(t, "ln", "-s", deploy, "/root/deploy")
	n.Run(t, "sh", "-euc", "cd /root\n"+strings.Join(commands, "\n"))
}

// runtimeConfig returns the configuration of containerd. It differs from the default in the cgroup driver, the paths of
// programs, and a setting for machines that must not lower a process's OOM score.
func (n *node) runtimeConfig() string {
	return fmt.Sprintf(`version = 3
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'quartet.local/pause:1'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = %[2]t
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  runtime_path = '%[1]s/containerd-shim-runc-v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '%[1]s/runc'
  SystemdCgroup = true
`, n.bin, !machine.This().HasCapability(machine.CapSysResource))
}

// importImages imports the images of a cluster, under kubeadm's names: most are one image, whose program is selected by
// its name.
func (n *node) importImages(t *testing.T) {
	t.Helper()
	for _, name := range archives() {
		n.Run(t, "ctr", "-n", "k8s.io", "images", "import", "--local", archive(n.bin, name))
	}
	built := strings.Fields(n.Run(t, "ctr", "-n", "k8s.io", "images", "list", "-q", "name~=quartet.local"))
	for _, wanted := range strings.Fields(n.Run(t, "kubeadm", "config", "images", "list", "--kubernetes-version", version)) {
		name, _, _ := strings.Cut(path.Base(wanted), ":")
		if strings.HasPrefix(name, "kube-") {
			name = "kubernetes"
		}
		found := false
		for _, image := range built {
			if strings.HasPrefix(image, "quartet.local/"+name+":") {
				n.Run(t, "ctr", "-n", "k8s.io", "images", "tag", "--force", image, wanted)
				found = true
			}
		}
		if !found {
			t.Fatalf("nothing is built for %s: %q", wanted, built)
		}
	}
}

// network replaces a network plugin: the node's pods have addresses of its range, and the range of the other node is
// routed to that node.
func (n *node) network(t *testing.T, podCIDR string, other *node, othersCIDR string) {
	t.Helper()
	n.WriteFile(t, "/etc/cni/net.d/10-test.conflist", `{"cniVersion": "1.0.0", "name": "test", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "`+podCIDR+`"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`)
	n.Run(t, "ip", "route", "replace", othersCIDR, "via", other.address.String())
}

// kubectl runs kubectl as the cluster's administrator.
func (n *node) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return n.Run(t, "kubectl", append([]string{"--kubeconfig", admin}, args...)...)
}

// apply applies a manifest with kubectl.
func (n *node) apply(t *testing.T, manifest string) {
	t.Helper()
	cmd := n.Command(t.Context(), "kubectl", "--kubeconfig", admin, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// await waits until the output of kubectl meets a condition.
func (n *node) await(t *testing.T, what string, holds func(out string) bool, args ...string) string {
	t.Helper()
	var out string
	var err error
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer to 'kubectl %s': %v\n%s", strings.Join(args, " "), err, out)
		}
	})
	each.That(t, what, func() bool {
		out, err = n.Try(t, "kubectl", append([]string{"--kubeconfig", admin}, args...)...)
		return err == nil && holds(out)
	})
	return out
}

// kubeadm runs kubeadm and logs its output.
func (n *node) kubeadm(t *testing.T, args ...string) {
	t.Helper()
	began := time.Now()
	cmd := n.Command(t.Context(), "kubeadm", args...)
	out, err := cmd.CombinedOutput()
	t.Logf("kubeadm %s on %s, %.0f s:\n%s", args[0], n.Name, time.Since(began).Seconds(), out)
	if err != nil {
		t.Fatalf("kubeadm %s: %v", strings.Join(args, " "), err)
	}
}

// ignored returns the preflight checks of kubeadm that fail on a machine with cgroup v1, with any kubelet.
func ignored() []string {
	if cgroups.IsCgroup2UnifiedMode() {
		return nil
	}
	return []string{"--ignore-preflight-errors=SystemVerification"}
}

func last(text string, n int) string { return text[max(0, len(text)-n):] }

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
