package podworkers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
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

// TestAWorkerSaysWhatTheVolumesOfItsPodWaitFor checks the words of a worker that waits for volumes, before and after it
// has given up once, and of one that removes them: those of the volumes, each once.
func TestAWorkerSaysWhatTheVolumesOfItsPodWaitFor(t *testing.T) {
	r := start(t)
	r.store.SetWaiting("")
	says := func(want string) {
		t.Helper()
		eventually.That(t, "it waits for "+want, func() bool {
			list := r.pool.List()
			return len(list) == 1 && list[0].GetWaitsFor() == want
		})
	}
	volume := func(state enginev1.VolumeState, waits string) *enginev1.Volume {
		return &enginev1.Volume{State: state, WaitsFor: waits}
	}
	const settingUp, removed = enginev1.VolumeState_VOLUME_STATE_SETTING_UP, enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN
	const driver, server = "CSI driver disks.example.com", "NFS server of 192.0.2.1:/data"
	r.volumes.Store(&[]*enginev1.Volume{
		volume(settingUp, driver), volume(enginev1.VolumeState_VOLUME_STATE_READY, "another"), volume(settingUp, ""),
		volume(settingUp, server), volume(settingUp, driver),
	})
	late := make(chan struct{})
	give := sync.OnceFunc(func() { close(late) })
	t.Cleanup(give) // before the rig stops
	r.node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) error {
		<-late
		return &volumes.NotReadyError{Message: "timed out"}
	}})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	says(driver + ", " + server)
	r.volumes.Store(nil)
	says("") // it may do something else
	give()
	says("volumes") // nothing more is known
	r.volumes.Store(&[]*enginev1.Volume{volume(settingUp, server)})
	says(server)
	r.node.SetScript(fakenode.Script{Release: func(*v1.Pod) error { return &volumes.NotRemovedError{Message: "away"} }})
	eventually.That(t, "it runs", r.running("web"))
	says("")
	r.volumes.Store(&[]*enginev1.Volume{volume(removed, driver)})
	r.pool.End("u1", podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{})
	says(driver)
	r.node.SetScript(fakenode.Script{})
	eventually.That(t, "they are removed", func() bool { return slices.Contains(r.node.Released(), "u1") })
}
