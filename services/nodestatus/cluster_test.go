package nodestatus

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/cluster"
)

// member returns the configuration of a node whose kubeconfig has a certificate for the cluster.
func member(t *testing.T, name, kubeconfig string, flags ...string) nodeconfig.Config {
	t.Helper()
	return config(t, append([]string{"--hostname-override", name, "--kubeconfig", kubeconfig}, flags...)...)
}

// served waits until nodestatus serves a Node that meets a condition.
func served(t *testing.T, c nodev1.NodeServiceClient, what string, want func(*nodev1.Node, *v1.Node) bool) *v1.Node {
	t.Helper()
	var got *nodev1.Node
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		response, err := c.GetNode(ctx, &nodev1.GetNodeRequest{})
		cancel()
		if err != nil {
			continue
		}
		got = response.GetNode()
		var node v1.Node
		if err := node.Unmarshal(got.GetNode()); err != nil {
			t.Fatal(err)
		}
		if want(got, &node) {
			return &node
		}
	}
	t.Fatalf("no Node that is %s: standalone %t, synced %t", what, got.GetStandalone(), got.GetSynced())
	return nil
}

func isSynced(n *nodev1.Node, _ *v1.Node) bool { return n.GetSynced() && !n.GetStandalone() }
func isAlone(n *nodev1.Node, _ *v1.Node) bool  { return !n.GetSynced() && !n.GetStandalone() }

// waitsFor waits until the health contains a text; empty: until it does not wait for the API server.
func waitsFor(t *testing.T, c nodev1.NodeServiceClient, want string) {
	t.Helper()
	var reasons []string
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		health, err := c.GetHealth(ctx, &nodev1.GetHealthRequest{})
		cancel()
		if err != nil {
			continue
		}
		reasons = health.GetReasons()
		if !health.GetHealthy() {
			continue // the first Node does not exist yet
		}
		about := slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(reason, "API server") })
		if want == "" && !about {
			return
		}
		if want != "" && strings.Contains(strings.Join(reasons, "\n"), want) {
			return
		}
	}
	t.Fatalf("waits for %q, want %q", reasons, want)
}

func get(t *testing.T, client kubernetes.Interface, name string) *v1.Node {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// TestTheNodeIsRegisteredWithItsCertificate uses an API server with the restrictions of nodes.
func TestTheNodeIsRegisteredWithItsCertificate(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name = "registered"
	cfg := member(t, name, c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes), "--node-labels", "disk=ssd")
	nodes := client(t, cfg)
	stop := background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	node := served(t, nodes, "synced", isSynced)
	stored := get(t, admin, name)
	if node.UID == "" || node.UID != stored.UID || !node.CreationTimestamp.Equal(&stored.CreationTimestamp) {
		t.Errorf(
			"serves the Node %s of %s, and the API server has %s of %s",
			node.UID,
			node.CreationTimestamp,
			stored.UID,
			stored.CreationTimestamp,
		)
	}
	if stored.Labels["disk"] != "ssd" || stored.Labels[v1.LabelHostname] != name || stored.Status.Capacity.Cpu().IsZero() ||
		stored.Status.NodeInfo.KubeletVersion == "" {
		t.Errorf("the API server has %+v", stored)
	}
	if want := []string{
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}; !slices.Equal(stored.Status.DeclaredFeatures, want) {
		t.Errorf("the API server has the features %q, want %q", stored.Status.DeclaredFeatures, want)
	}
	waitsFor(t, nodes, "")

	// Changes by others are served, and the status is still the machine's.
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"room":"7"}},"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	node = served(t, nodes, "cordoned", func(_ *nodev1.Node, node *v1.Node) bool { return node.Spec.Unschedulable })
	if node.Labels["room"] != "7" || node.Labels["disk"] != "ssd" || node.Status.Capacity.Memory().IsZero() {
		t.Errorf("serves %+v, want labels room=7 and disk=ssd, and a memory capacity", node)
	}

	if err := admin.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	served(
		t,
		nodes,
		"registered again",
		func(n *nodev1.Node, node *v1.Node) bool { return n.GetSynced() && node.UID != stored.UID },
	)

	// A restart finds the existing Node.
	again := get(t, admin, name)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	if node := served(t, nodes, "synced", isSynced); node.UID != again.UID {
		t.Errorf("after a restart it is the Node %s, before it was %s", node.UID, again.UID)
	}
}

// TestTheNodeIsComputedWithoutTheAPIServer, at the start and later. It is registered when the API server is up.
func TestTheNodeIsComputedWithoutTheAPIServer(t *testing.T) {
	c := shared.Cluster(t)
	const name = "patient"
	cfg := member(t, name, c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes))
	nodes := client(t, cfg)
	servePeers(t, cfg)
	c.APIServer.Kill(t)
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	served(
		t,
		nodes,
		"Ready and not synced",
		func(n *nodev1.Node, node *v1.Node) bool { return isAlone(n, node) && ready(node) },
	)
	waitsFor(t, nodes, "reading the Node from the API server of "+cfg.Kubeconfig)
	c.APIServer.Start(t)
	first := served(t, nodes, "synced", isSynced)
	waitsFor(t, nodes, "")

	c.APIServer.Kill(t)
	waitsFor(t, nodes, "reading the Node from the API server of "+cfg.Kubeconfig)
	// nodestatus keeps the Node while the API server is down.
	if node := served(t, nodes, "synced", isSynced); node.UID != first.UID {
		t.Errorf("it was the Node %s and is %s", first.UID, node.UID)
	}
	c.APIServer.Start(t)
	waitsFor(t, nodes, "")
	if node := served(t, nodes, "synced", isSynced); node.UID != first.UID {
		t.Errorf("it was the Node %s and is %s", first.UID, node.UID)
	}
}

func ready(node *v1.Node) bool {
	return slices.ContainsFunc(
		node.Status.Conditions,
		func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue },
	)
}

// TestACertificateOfAnotherNodeRegistersNothing checks that the health names the required user.
func TestACertificateOfAnotherNodeRegistersNothing(t *testing.T) {
	c := shared.Cluster(t)
	cfg := member(t, "mine", c.Kubeconfig(t, cluster.NodeUser("theirs"), cluster.Nodes))
	nodes := client(t, cfg)
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	waitsFor(t, nodes, "a node's is system:node:mine in the group system:nodes")
	served(t, nodes, "not synced", isAlone)
}

func TestAKubeconfigThatCannotBeUsedEndsTheStart(t *testing.T) {
	cfg := config(t)
	cfg.Kubeconfig = filepath.Join(t.TempDir(), "none")
	if err := run(t.Context(), cfg, quiet, telemetry.Off()); err == nil || !strings.Contains(err.Error(), cfg.Kubeconfig) {
		t.Errorf("got %v, want the file in it", err)
	}
}
