package nodestatus

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/authority"
)

func TestMetricsAreServedAsDocumented(t *testing.T) {
	cfg := config(t)
	cfg.TLS = authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "nodestatus"})
	servePeers(t, cfg)
	nodes := follow(t, client(t, cfg))
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	waitReady(t, nodes, v1.ConditionTrue)
	served := metricstest.Scrape(cfg.MetricsListen)
	metricstest.Documented(t, served, metricstest.EveryService, metricstest.ServedStreams,
		metricstest.FollowedStreams, metricstest.NodeStatus, metricstest.Certificates)

	metricstest.Want(t, served, 1, "kubelet_node_name", "node", "node-1")
	metricstest.Want(t, served, 1, "kubernetes_build_info", "major", "1")
	metricstest.Want(t, served, 1, "quartet_node_condition", "condition", "Ready", "status", "true")
	metricstest.Want(t, served, 0, "quartet_node_condition", "condition", "Ready", "status", "false")
	metricstest.Want(t, served, 1, "quartet_nodestatus_peer_healthy", "peer", "pleg")
	metricstest.Want(t, served, 1, "quartet_stream_subscribers", "stream", "node")
	if got := metricstest.Value(t, served, "kubelet_cgroup_version"); got != 1 && got != 2 {
		t.Errorf("cgroups are of version %v", got)
	}
	if got := metricstest.Value(
		t,
		served,
		"quartet_node_eviction_signal_available",
		"signal",
		"memory.available",
	); got <= 0 {
		t.Errorf("%v bytes of memory are left", got)
	}
	metricstest.Want(t, served, 100<<20, "quartet_node_eviction_signal_threshold", "signal", "memory.available")
}
