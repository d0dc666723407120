package main

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

// nodeEvents tells what happens to the node, by the kubelet's reasons: who watches this process, and of a node of a cluster the API
// server too.
type nodeEvents struct {
	*events.Recorder
	// way is nil for a node that is standalone.
	way *apievents.Way

	mu sync.Mutex
	// uid is that of the Node in the API server; empty while it is not known.
	uid types.UID
	// last is the Node as it was computed before, by an earlier process at first; nil when it never was.
	last *v1.Node
	// began says that it was told that this process has begun, cordoned that no pods are to be scheduled on the node.
	began, cordoned bool
}

// nodeEventsOf takes the Node as an earlier process remembered it; nil when it did not.
func nodeEventsOf(cfg nodeconfig.Config, previous *v1.Node, logger *slog.Logger, registry prometheus.Registerer) (*nodeEvents, error) {
	way, err := apievents.WayOf(nodeconfig.NodeStatus, cfg, logger, registry)
	if err != nil {
		return nil, err
	}
	n := &nodeEvents{way: way, last: previous}
	n.Recorder = events.New(events.Config{
		NodeName: cfg.NodeName, NodeUID: n.nodeUID, Told: way.Told(), Clock: clock.RealClock{}, Logger: logger,
		StreamMetrics: stream.NewServedMetrics(registry, stream.NameNodeEvents),
	})
	return n, nil
}

func (n *nodeEvents) nodeUID() types.UID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uid
}

// run sends until ctx ends.
func (n *nodeEvents) run(ctx context.Context) error {
	defer n.Close()
	if err := n.way.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// computed takes the Node as it was computed, and tells what has become of it.
func (n *nodeEvents) computed(node *v1.Node) {
	n.mu.Lock()
	last, began := n.last, n.began
	n.last, n.began = node, true
	n.mu.Unlock()
	ctx := context.Background() // it is part of no other work
	if !began {
		n.NodeNormal(ctx, "Starting", "Starting kubelet.")
		if boot := node.Status.NodeInfo.BootID; last != nil && last.Status.NodeInfo.BootID != "" && last.Status.NodeInfo.BootID != boot {
			n.NodeWarning(ctx, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", node.Name, boot))
		}
	}
	for _, reason := range transitions(last, node) {
		n.NodeNormal(ctx, reason, fmt.Sprintf("Node %s status is now: %s", node.Name, reason))
	}
}

// registered takes the Node as the API server has it, nil when it does not have it.
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

// reasons are those of the kubelet for the conditions that it tells of: when one becomes true, and when it is not any more.
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

// transitions are the reasons of the conditions that have another status than before. A pressure of which nothing is known is none
// that has come or gone; a Node of which it is not known that it is ready is not.
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
