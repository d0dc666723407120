package compose

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/livenode"
)

// clusterFile is the additional compose file of a node of a cluster.
const clusterFile = "../../deploy/compose/compose.cluster.yaml"

// joinsACluster joins the node of the stack to a cluster, with the second file and a bootstrap token. The running pods
// are not affected. The node becomes Ready with the machine's address, runs pods of the cluster's scheduler, and the
// API server reaches it.
func joinsACluster(s *stack) {
	c := cluster.Start(s.t, cluster.Controllers())
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Log(s.compose("logs", "--no-color", "--tail", "60", "configmux", "syncloop", "nodestatus"))
		}
	})
	admin := c.Client(s.t)
	// The namespace of the manifests' pods, which each have a mirror pod.
	if _, err := admin.CoreV1().Namespaces().Create(s.t.Context(),
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "compose"}}, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	before := instances(s.awaitReady("web"))
	token := s.join(c)
	node := s.awaitNode(admin)
	s.machineAddress(node)
	if now := instances(s.awaitReady("web")); now != before {
		s.t.Errorf("after joining the pod is another:\nbefore %s\nafter  %s", before, now)
	}
	// The second file has not changed any privilege.
	privileges(s)
	s.joined(token)

	s.awaitPod(admin, "compose", "web-"+node.Name)
	spec := v1.PodSpec{Containers: []v1.Container{{
		Name: "main", Image: livenode.Image, Args: []string{"serve", "-every", "1s"}, ImagePullPolicy: v1.PullIfNotPresent,
	}}}
	s.await("the cluster takes a pod", func() bool { // its service account is created meanwhile
		_, err := admin.CoreV1().Pods("default").Create(s.t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "guest"}, Spec: spec}, metav1.CreateOptions{})
		return err == nil
	}, func() string { return "" })
	s.awaitPod(admin, "default", "guest")
	if out := s.kubectl(c, "logs", "guest"); !strings.Contains(out, "hello") {
		s.t.Errorf("kubectl logs says %q, want text with %q", out, "hello")
	}
	if out := s.kubectl(c, "exec", "guest", "--", "/hello", "crash", "-after", "0s", "-code", "0"); out == "" {
		s.t.Error("kubectl exec says nothing")
	}
}

// join starts the stack with the second file, and returns its bootstrap token.
func (s *stack) join(c *cluster.Cluster) string {
	s.t.Helper()
	dir := filepath.Join(s.node.Layout.StateDir(), "cluster")
	ca, err := os.ReadFile(c.CAFile())
	s.must(err)
	s.must(os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o644))
	config := filepath.Join(s.t.TempDir(), "kubelet.yaml")
	example, err := os.ReadFile("../../deploy/compose/kubelet.cluster.yaml")
	s.must(err)
	// The file as delivered, with this stack's directory and ports.
	content := strings.NewReplacer("/var/lib/quartet-compose", s.node.Layout.StateDir(), "10255", s.node.Port()).Replace(string(example))
	s.must(os.WriteFile(config, []byte(content+"port: "+freePort(s.t)+"\nhealthzPort: 0\nmakeIPTablesUtilChains: false\n"+livenode.NoEviction), 0o644))
	kubeconfig, token := c.Bootstrap(s.t)
	// As in docs/howto/compose.md: the group of the services may read it.
	s.must(os.Chown(kubeconfig, -1, 10240))
	s.must(os.Chmod(kubeconfig, 0o640))
	second := *s
	second.env = append(slices.Clone(s.env), "QUARTET_CLUSTER_CONFIG="+config, "QUARTET_BOOTSTRAP_KUBECONFIG="+kubeconfig)
	second.compose("-f", clusterFile, "up", "--detach")
	return token
}

// awaitNode waits until the Node is Ready, and returns it.
func (s *stack) awaitNode(admin kubernetes.Interface) *v1.Node {
	s.t.Helper()
	host, err := os.Hostname()
	s.must(err)
	var node *v1.Node
	s.await("the node is Ready in the cluster", func() bool {
		node, err = admin.CoreV1().Nodes().Get(s.t.Context(), strings.ToLower(host), metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		})
	}, func() string { return fmt.Sprintf("%v, %+v", err, node) })
	return node
}

// awaitPod waits until a pod is Ready in the cluster.
func (s *stack) awaitPod(admin kubernetes.Interface, namespace, name string) {
	s.t.Helper()
	var pod *v1.Pod
	var err error
	s.await(name+" is Ready in the cluster", func() bool {
		pod, err = admin.CoreV1().Pods(namespace).Get(s.t.Context(), name, metav1.GetOptions{})
		return err == nil && livenode.Ready(pod)
	}, func() string { return fmt.Sprintf("%v, %+v", err, pod) })
}

// machineAddress checks that a Node has the machine's address, and not that of a container.
func (s *stack) machineAddress(node *v1.Node) {
	s.t.Helper()
	own, err := net.InterfaceAddrs()
	s.must(err)
	for _, address := range node.Status.Addresses {
		if address.Type == v1.NodeInternalIP && !slices.ContainsFunc(own, func(a net.Addr) bool {
			network, ok := a.(*net.IPNet)
			return ok && !network.IP.IsLoopback() && network.IP.String() == address.Address
		}) {
			s.t.Errorf("the node has the address %s, and the machine %v", address.Address, own)
		}
	}
}

// joined checks the permissions of the node's credentials, and that the token is not logged.
func (s *stack) joined(token string) {
	s.t.Helper()
	for _, name := range []string{"cluster", "cluster/kubeconfig", "cluster/pki", "cluster/pki/kubelet-client-current.pem"} {
		info, err := os.Stat(filepath.Join(s.node.Layout.StateDir(), name))
		s.must(err)
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || owner.Uid != 10244 || owner.Gid != 10240 || info.Mode().Perm()&0o027 != 0 || info.Mode().Perm()&0o040 == 0 {
			s.t.Errorf("%s is %v of %+v", name, info.Mode(), owner)
		}
	}
	if strings.Contains(s.logs("nodestatus"), token) {
		s.t.Error("the token is in the log of nodestatus")
	}
}

// kubectl runs kubectl as an administrator.
func (s *stack) kubectl(c *cluster.Cluster, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(livenode.Bin(), "tools", "kubectl"),
		append([]string{"--kubeconfig", c.Kubeconfig(s.t, "admin", cluster.Masters)}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+s.t.TempDir(), "NO_PROXY=*")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
