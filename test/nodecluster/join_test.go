package nodecluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/livenode"
)

// joinByToken joins another node to the cluster of a control plane as `kubeadm join` does: with a token of `kubeadm
// token create` and the published cluster info, with kubeadm's roles. Only nodestatus runs on that node, because it
// does the joining.
func joinByToken(t *testing.T, dir string, admin kubernetes.Interface) {
	t.Helper()
	const name = "joins-by-token"
	kubeconfig := filepath.Join(dir, "etc/kubernetes/super-admin.conf")
	kubeadm(t, "init", "phase", "bootstrap-token", "--kubeconfig", kubeconfig, "--config", filepath.Join(dir, "kubeadm.yaml"), "--skip-token-print")
	token := strings.TrimSpace(kubeadm(t, "token", "create", "--kubeconfig", kubeconfig))
	info, err := admin.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	published, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	for _, only := range published.Clusters {
		config.Clusters["published"] = only
	}
	config.AuthInfos["token"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["join"] = &clientcmdapi.Context{Cluster: "published", AuthInfo: "token"}
	config.CurrentContext = "join"
	state, err := os.MkdirTemp("", "quartet-joins-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(state) //nolint:errcheck // it is a temporary directory
	bootstrap := filepath.Join(state, "bootstrap.conf")
	if err := clientcmd.WriteToFile(*config, bootstrap); err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(state)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--state-dir", state, "--hostname-override", name, "--metrics-listen", "none",
		"--bootstrap-kubeconfig", bootstrap, "--kubeconfig", filepath.Join(state, "kubeconfig"),
	}
	for _, service := range layout.Services() {
		args = append(args, "--"+string(service)+"-address", l.Address(service))
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(livenode.Bin(), "nodestatus"), args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()         // it was killed
		}
	}
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("the log of the node that joins:\n%s", &log)
		}
	})
	awaitThat(t, "a node has joined by a token", func() bool {
		_, err := admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			_, err = admin.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), name, metav1.GetOptions{})
		}
		return err == nil
	})
	end()
	if strings.Contains(log.String(), token) {
		t.Error("the token is in the log")
	}
	if err := admin.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// kubeadm runs kubeadm, and returns its standard output.
func kubeadm(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(livenode.Bin(), "tools", "kubeadm"), args...)
	cmd.Env = append(os.Environ(), "NO_PROXY=*")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubeadm %s: %v\n%s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}
