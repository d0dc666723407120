// Package nodecluster tests Quartet as the node of a whole cluster: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, with the node authorizer, the node admission, real users, and kubectl. The tests act as a user of the
// cluster and check what a user sees. They inspect the node itself only for facts that users cannot see, such as
// whether a process is still the same.
//
// All tests share one cluster and one node, each in a namespace of its own.
package nodecluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// nodeName is the name of the node in the cluster.
	nodeName = "quartet-node"
	// grace is the time without a heartbeat after which the cluster counts the node as lost. A node sends one each 10 s.
	grace = 25 * time.Second
	// patience is the time limit of a wait on a busy machine. An idle one needs some seconds.
	patience = 5 * time.Minute
	interval = 50 * time.Millisecond
)

// The shared objects: whole is the cluster, node the node, adminConfig a kubeconfig with all rights.
var (
	whole       *cluster.Cluster
	node        *livenode.Node
	adminConfig string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	bin := livenode.Bin()
	if reason := errors.Join(livenode.CannotRun(bin), cluster.CannotRun(bin)); reason != nil {
		if os.Getenv("CI") == "true" {
			fmt.Fprintln(os.Stderr, "nodecluster:", reason)
			return 1
		}
		fmt.Println("the tests of a node of a cluster are skipped:", reason)
		return 0
	}
	stop, err := start(context.Background(), bin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "nodecluster: start:", err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		printLog()
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "nodecluster: stop:", err)
		return 1
	}
	return code
}

// start starts the cluster and the node, and returns the function that ends and removes both. When it fails, it leaves
// nothing behind.
func start(ctx context.Context, bin string) (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "quartet-nodecluster-")
	if err != nil {
		return nil, err
	}
	stop = func() error {
		var errs []error
		if node != nil {
			errs = append(errs, node.Remove(context.Background()))
		}
		if whole != nil {
			errs = append(errs, whole.Close())
		}
		return errors.Join(append(errs, os.RemoveAll(dir))...)
	}
	if err := startIn(ctx, dir, bin); err != nil {
		printLog()
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func startIn(ctx context.Context, dir, bin string) (err error) {
	whole, err = cluster.New(ctx, bin, cluster.Controllers("--node-monitor-period=2s", "--node-monitor-grace-period="+grace.String()))
	if err != nil {
		return err
	}
	adminConfig = filepath.Join(dir, "admin.conf")
	if err := whole.SaveKubeconfig(adminConfig, "admin", cluster.Masters); err != nil {
		return err
	}
	if node, err = newNode(dir, bin, nodeName); err != nil {
		return err
	}
	return node.Up(ctx)
}

// newNode returns a node of the cluster that is not started, with its files in a directory.
func newNode(dir, bin, name string) (*livenode.Node, error) {
	kubeconfig := filepath.Join(dir, name+".conf")
	if err := whole.SaveKubeconfig(kubeconfig, cluster.NodeUser(name), cluster.Nodes); err != nil {
		return nil, err
	}
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	// As kubeadm writes it, except the ports, because two nodes share a machine, and a shorter interval of reading the
	// manifests.
	config := filepath.Join(dir, name+".yaml")
	content := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
port: %d
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %q}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
fileCheckFrequency: 2s
%s`, port, whole.CAFile(), livenode.AnyMachine)
	if err := os.WriteFile(config, []byte(content), 0o644); err != nil {
		return nil, err
	}
	n, err := livenode.New(bin, "nodecluster")
	if err != nil {
		return nil, err
	}
	n.Flags = []string{"--kubeconfig", kubeconfig, "--config", config, "--hostname-override", name}
	return n, nil
}

func printLog() {
	if node == nil {
		return
	}
	data, err := os.ReadFile(node.Layout.NodeLog())
	if err != nil {
		return
	}
	const tail = 40_000
	fmt.Fprintf(os.Stderr, "---- the end of the log of the node\n%s\n", data[max(0, len(data)-tail):])
}
