package nodestatus

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apievents"
	"github.com/quartet-node/quartet/internal/events"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
)

// nodeEvents publishes events of the node, with the kubelet's reasons: to subscribers of this process, and on a node of
// a cluster also to the API server.
type nodeEvents struct {
	*events.Recorder
	// target is where the events go; apievents.None for a standalone node.
	target apievents.Target

	mu sync.Mutex
	// uid is the UID of the Node in the API server; empty while it is unknown.
	uid types.UID
	// last is the previously computed Node, at first that of an earlier process; nil if there was none.
	last *v1.Node
	// began is true after the start event, and cordoned while the node is unschedulable.
	began, cordoned bool
}

// nodeEventsOf creates the events of the node. previous is the Node of an earlier process; nil if there was none.
func nodeEventsOf(
	cfg nodeconfig.Config,
	previous *v1.Node,
	logger *slog.Logger,
	registry prometheus.Registerer,
) (*nodeEvents, error) {
	target, err := apievents.Connect(nodeconfig.NodeStatus, cfg, logger, registry)
	if err != nil {
		return nil, err
	}
	n := &nodeEvents{target: target, last: previous}
	n.Recorder = events.New(events.Config{
		NodeName: cfg.NodeName, NodeUID: n.nodeUID, Publish: target.Send, Clock: clock.RealClock{}, Logger: logger,
		StreamMetrics: stream.NewServedMetrics(registry, stream.NameNodeEvents),
	})
	return n, nil
}

func (n *nodeEvents) nodeUID() types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uid
}

// run sends events until ctx ends.
func (n *nodeEvents) run(ctx context.Context) error {
	defer n.Close()
	if err := n.target.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// computed compares the computed Node with the previous one, and publishes events.
func (n *nodeEvents) computed(node *v1.Node) {
	n.mu.Lock()
	last, began := n.last, n.began
	n.last, n.began = node, true
	n.mu.Unlock()
	ctx := context.Background() // it belongs to no trace
	if !began {
		n.NodeNormal(ctx, "Starting", "Starting kubelet.")
		if boot := node.Status.NodeInfo.BootID; last != nil && last.Status.NodeInfo.BootID != "" &&
			last.Status.NodeInfo.BootID != boot {
			n.NodeWarning(ctx, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", node.Name, boot))
		}
	}
	for _, reason := range transitions(last, node) {
		n.NodeNormal(ctx, reason, fmt.Sprintf("Node %s status is now: %s", node.Name, reason))
	}
}

// registered processes the Node in the API server; nil if it does not exist.
func (n *nodeEvents) registered(node *v1.Node) {
	if node == nil {
		return
	}
	n.mu.Lock()
	changed := n.cordoned != node.Spec.Unschedulable
	n.uid, n.cordoned = node.UID, node.Spec.Unschedulable
	n.mu.Unlock()
	if !changed {
		return
	}
	reason := "NodeSchedulable"
	if node.Spec.Unschedulable {
		reason = "NodeNotSchedulable"
	}
	n.NodeNormal(context.Background(), reason, fmt.Sprintf("Node %s status is now: %s", node.Name, reason))
}

// reasons returns the kubelet's reasons for changes of a condition: when it becomes true, and when it ceases to be.
func reasons(kind v1.NodeConditionType) (isTrue, isNot string) {
	switch kind { //nolint:exhaustive // others are not told of
	case v1.NodeReady:
		return "NodeReady", "NodeNotReady"
	case v1.NodeMemoryPressure:
		return "NodeHasInsufficientMemory", "NodeHasSufficientMemory"
	case v1.NodeDiskPressure:
		return "NodeHasDiskPressure", "NodeHasNoDiskPressure"
	case v1.NodePIDPressure:
		return "NodeHasInsufficientPID", "NodeHasSufficientPID"
	}
	return "", ""
}

// transitions returns the reasons for conditions whose status has changed. An unknown pressure counts as unchanged; an
// unknown readiness counts as not ready.
func transitions(before, after *v1.Node) []string {
	status := map[v1.NodeConditionType]v1.ConditionStatus{}
	if before != nil {
		for _, c := range before.Status.Conditions {
			status[c.Type] = c.Status
		}
	}
	var changed []string
	for _, c := range after.Status.Conditions {
		isTrue, isNot := reasons(c.Type)
		if isTrue == "" || status[c.Type] == c.Status {
			continue
		}
		switch {
		case c.Status == v1.ConditionTrue:
			changed = append(changed, isTrue)
		case c.Status == v1.ConditionFalse, c.Type == v1.NodeReady && status[c.Type] == v1.ConditionTrue:
			changed = append(changed, isNot)
		}
	}
	return changed
}
