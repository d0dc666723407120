package podworkers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAPodWithoutItsVolumesSaysWhich checks that the status has the reason of the kubelet's event, that the pod is
// tried again, and that it can be ended meanwhile.
func TestAPodWithoutItsVolumesSaysWhich(t *testing.T) {
	r := start(t)
	r.store.SetWaiting("")
	notReady := &volumes.NotReadyError{Message: `MountVolume.SetUp failed for volume "data" : no space left on device`}
	r.node.SetScript(fakenode.Script{
		Sync: func(context.Context, *v1.Pod) error { return notReady }, SandboxError: notReady,
	})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "the status has the reason", func() bool {
		pods, err := r.store.Pods()
		return err == nil && len(pods) == 1 && pods[0].Status.Reason == "FailedMount" && pods[0].Status.Message == notReady.Message &&
			pods[0].Status.Phase == v1.PodPending
	})
	eventually.That(t, "it is due again", func() bool {
		list := r.pool.List()
		return len(list) == 1 && list[0].GetNextSyncAt() != nil && list[0].GetLastError() == "sync the pod: "+notReady.Message
	})
	r.pool.End("u1", podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{Removed: true})
	eventually.That(t, "it is gone", func() bool { return slices.Contains(r.node.Calls(), "clean u1") && len(r.pool.List()) == 0 })
}

// TestAPodWhoseVolumesCannotBeRemovedSaysSo checks what it waits for after its end.
func TestAPodWhoseVolumesCannotBeRemovedSaysSo(t *testing.T) {
	r := start(t)
	r.store.SetWaiting("")
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "it runs", r.running("web"))
	r.node.SetScript(fakenode.Script{Release: func(*v1.Pod) error {
		return fmt.Errorf("release its volumes: %w", &volumes.NotRemovedError{Message: "the driver is away"})
	}})
	r.pool.End("u1", podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{})
	eventually.That(t, "it waits for the removal of its volumes", func() bool {
		list := r.pool.List()
		return len(list) == 1 && list[0].GetWaitsFor() == "the removal of its volumes" &&
			strings.Contains(list[0].GetLastError(), "the driver is away")
	})
	r.node.SetScript(fakenode.Script{})
	eventually.That(t, "they are removed", func() bool { return slices.Contains(r.node.Released(), "u1") })
}
