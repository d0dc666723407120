package nodestatus

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/cluster"
)

// quick sets the interval of heartbeats to two seconds, which is also the API server's time limit for an answer.
func quick(cfg nodeconfig.Config) nodeconfig.Config {
	cfg.Kubelet.NodeStatusUpdateFrequency.Duration = 2 * time.Second
	cfg.Kubelet.NodeLeaseDurationSeconds = 8
	return cfg
}

// reported waits until the API server has a Node that meets a condition.
func reported(t *testing.T, client kubernetes.Interface, name, what string, want func(*v1.Node) bool) *v1.Node {
	t.Helper()
	var node *v1.Node
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		got, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if node = got; want(node) {
			return node
		}
	}
	t.Fatalf("the API server has no Node that %s: %+v", what, node)
	return nil
}

// renewed waits for a lease that meets a condition.
func renewed(
	t *testing.T,
	client kubernetes.Interface,
	name, what string,
	want func(*coordinationv1.Lease) bool,
) *coordinationv1.Lease {
	t.Helper()
	var lease *coordinationv1.Lease
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		got, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if lease = got; want(lease) {
			return lease
		}
	}
	t.Fatalf("there is no lease that %s: %+v", what, lease)
	return nil
}

// after matches a lease that was renewed after another one.
func after(other *coordinationv1.Lease) func(*coordinationv1.Lease) bool {
	return func(lease *coordinationv1.Lease) bool { return lease.Spec.RenewTime.After(other.Spec.RenewTime.Time) }
}

// patchStatus writes the status as another client.
func patchStatus(t *testing.T, client kubernetes.Interface, name, patch string) {
	t.Helper()
	if _, err := client.CoreV1().
		Nodes().
		Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

func condition(node *v1.Node, kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

// TestTheAPIServerHasTheStatusAndTheLease uses the rights of a node.
func TestTheAPIServerHasTheStatusAndTheLease(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name = "beating"
	cfg := quick(member(t, name, c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes)))
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	node := reported(
		t,
		admin,
		name,
		"is not ready",
		func(node *v1.Node) bool { return condition(node, v1.NodeReady).Status == v1.ConditionFalse },
	)
	lease := renewed(
		t,
		admin,
		name,
		"is owned by the Node",
		func(lease *coordinationv1.Lease) bool { return len(lease.OwnerReferences) == 1 },
	)
	if owner := lease.OwnerReferences[0]; owner.UID != node.UID || owner.Kind != "Node" || owner.Name != name ||
		*lease.Spec.HolderIdentity != name ||
		*lease.Spec.LeaseDurationSeconds != 8 {
		t.Errorf("the lease is %+v", lease)
	}
	// The lease is renewed without the peers, and the status names those that are down.
	renewed(t, admin, name, "is renewed", after(lease))

	// Other clients write their own fields.
	patchStatus(
		t,
		admin,
		name,
		`{"status":{"capacity":{"example.com/dongle":"4"},"conditions":[{"type":"FrequentKubeletRestart","status":"True","reason":"Many"}]}}`,
	)
	servePeers(t, cfg)
	node = reported(t, admin, name, "is ready with a dongle", func(node *v1.Node) bool {
		dongles := node.Status.Allocatable["example.com/dongle"]
		return ready(node) && dongles.Value() == 4
	})
	if condition(node, "FrequentKubeletRestart").Reason != "Many" || node.Status.Capacity.Cpu().IsZero() {
		t.Errorf("the API server has the status %+v", node.Status)
	}

	// Another client's change of this node's fields is corrected, as that of a node controller that has lost the node.
	became := condition(node, v1.NodeReady).LastTransitionTime
	patchStatus(
		t,
		admin,
		name,
		`{"status":{"nodeInfo":{"kernelVersion":"0"},"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`,
	)
	node = reported(
		t,
		admin,
		name,
		"is ready again",
		func(node *v1.Node) bool { return ready(node) && node.Status.NodeInfo.KernelVersion != "0" },
	)
	if again := condition(node, v1.NodeReady); again.LastTransitionTime.Before(&became) || again.Reason != "KubeletReady" {
		t.Errorf("ready since %v, at first since %v", again, became)
	}

	// A deleted lease is recreated, and so is that of a deleted Node.
	if err := admin.CoordinationV1().
		Leases(v1.NamespaceNodeLease).
		Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	renewed(t, admin, name, "is another", func(other *coordinationv1.Lease) bool { return other.UID != lease.UID })
	if err := admin.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	another := reported(
		t,
		admin,
		name,
		"is another and ready",
		func(other *v1.Node) bool { return other.UID != node.UID && ready(other) },
	)
	renewed(
		t,
		admin,
		name,
		"is owned by the new Node",
		func(lease *coordinationv1.Lease) bool { return lease.OwnerReferences[0].UID == another.UID },
	)
	from := metricstest.Scrape(cfg.MetricsListen)
	metricstest.Within(
		t,
		from,
		metricstest.EveryService,
		metricstest.ServedStreams,
		metricstest.FollowedStreams,
		metricstest.NodeStatus,
		metricstest.APIRequests,
		metricstest.NodeInCluster,
		metricstest.EventsInCluster,
	)
	metricstest.Want(t, from, 0, "quartet_nodestatus_lease_contended")
	if took := metricstest.Value(t, from, "kubelet_node_startup_post_registration_duration_seconds"); took <= 0 {
		t.Errorf("the node was ready %v s after it was registered", took)
	}
}

// TestADeadConnectionIsNoticed: packets are lost without an error. The connection is closed, and the next one works,
// long before the kernel would detect the loss.
func TestADeadConnectionIsNoticed(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name = "cutoff"
	proxy := c.Proxy(t)
	cfg := quick(member(t, name, proxy.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes)))
	servePeers(t, cfg)
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	reported(t, admin, name, "is ready", ready)
	renewed(t, admin, name, "is there", func(*coordinationv1.Lease) bool { return true })
	if proxy.Swallow() == 0 {
		t.Fatal("there is no connection")
	}
	swallowed := time.Now()
	lease := renewed(
		t,
		admin,
		name,
		"is renewed",
		func(l *coordinationv1.Lease) bool { return l.Spec.RenewTime.After(swallowed) },
	)
	if took := lease.Spec.RenewTime.Sub(swallowed); took > 40*time.Second {
		t.Errorf("it took %s", took)
	}
	if closed := metricstest.Value(
		t,
		metricstest.Scrape(cfg.MetricsListen),
		"quartet_nodestatus_connections_closed_total",
	); closed == 0 {
		t.Error("no connection was closed")
	}
	patchStatus(t, admin, name, `{"status":{"nodeInfo":{"kernelVersion":"0"}}}`)
	reported(t, admin, name, "is put right", func(node *v1.Node) bool { return node.Status.NodeInfo.KernelVersion != "0" })
}

// TestTwoAgentsWithOneNameAreReported checks that both report it.
func TestTwoAgentsWithOneNameAreReported(t *testing.T) {
	c := shared.Cluster(t)
	const name = "twins"
	kubeconfig := c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes)
	one, two := quick(member(t, name, kubeconfig)), quick(member(t, name, kubeconfig))
	background(t, func(ctx context.Context) error { return run(ctx, one, quiet, telemetry.Off()) })
	stop := background(t, func(ctx context.Context) error { return run(ctx, two, quiet, telemetry.Off()) })
	for _, cfg := range []nodeconfig.Config{one, two} {
		waitsFor(t, client(t, cfg), "two machines have one node name")
	}
	reported := func() bool {
		events, err := c.Client(t).
			CoreV1().
			Events(metav1.NamespaceDefault).
			List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NodeNameInUse,involvedObject.name=" + name})
		if err != nil {
			t.Fatal(err)
		}
		return len(events.Items) > 0
	}
	for end := time.Now().Add(60 * time.Second); !reported(); <-time.After(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no event tells it")
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	waitsFor(t, client(t, one), "")
}
