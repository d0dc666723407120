package main

import (
	"context"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// TestNodeRunsPodsOnTheRuntimeOfItsConfiguration: quartet node uses a runtime that it did not start, and its end does
// not end the pods.
func TestNodeRunsPodsOnTheRuntimeOfItsConfiguration(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := harness.StartNode(t, harness.StartContainerd(t))
	n.WriteManifest(t, "kept.yaml", pod)
	eventually.In(ctx, t, "the pod is ready", func() bool { return harness.Ready(n.Pod(ctx, "kept")) })
	before := n.Pod(ctx, "kept").Status.ContainerStatuses[0].ContainerID

	n.Stop(t)
	for _, service := range layout.Services() {
		if pid := n.PID(service); pid != 0 {
			t.Errorf("%s still runs, pid %d", service, pid)
		}
	}
	n.Start(t)
	eventually.In(ctx, t, "the pod is ready", func() bool { return harness.Ready(n.Pod(ctx, "kept")) })
	status := n.Pod(ctx, "kept").Status.ContainerStatuses[0]
	if status.ContainerID != before || status.RestartCount != 0 {
		t.Errorf("the container was %s and is %s, restarted %d times", before, status.ContainerID, status.RestartCount)
	}
}
