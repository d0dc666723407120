package heartbeat

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

func TestMetricsFollowTheNode(t *testing.T) {
	r := newRig(t)
	reading := errors.New("no /proc")
	r.cfg.ReadNow = func() (facts.Readings, error) { return facts.Readings{}, reading }
	stop := r.servePLEG()
	r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	r.until("a second Node", func(_ v1.NodeCondition, published int) bool { return published > 1 })
	value := func(metric string, labels ...string) float64 {
		t.Helper()
		return metricstest.Value(t, r.registry, metric, labels...)
	}
	if failed, beats := value("quartet_nodestatus_reading_errors_total"), value(
		"quartet_nodestatus_heartbeat_duration_seconds",
	); failed < 1 ||
		beats < 1 {
		t.Errorf("%v readings failed at %v heartbeats, want some of both", failed, beats)
	}
	if got := value("quartet_nodestatus_peer_healthy", "peer", "pleg"); got != 1 {
		t.Errorf("pleg is %v, want 1", got)
	}
	stop()
	r.untilReady(v1.ConditionFalse, "is unreachable")
	// The metrics are updated a moment after the Node.
	r.until("metrics of the Node", func(v1.NodeCondition, int) bool {
		return value("quartet_node_condition", "condition", "Ready", "status", "false") == 1 &&
			value("quartet_node_condition", "condition", "Ready", "status", "true") == 0
	})
	if got := value("quartet_nodestatus_peer_healthy", "peer", "pleg"); got != 0 {
		t.Errorf("pleg is %v, want 0", got)
	}
	at := r.all()[len(r.all())-1].Node.Status.Conditions[0].LastHeartbeatTime
	if got := value("quartet_nodestatus_last_heartbeat_timestamp_seconds"); got < float64(at.Unix())-1 {
		t.Errorf("the last heartbeat was at %v, the Node is of %v", got, at.Unix())
	}
}
