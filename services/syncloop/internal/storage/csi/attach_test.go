package csi_test

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAVolumeThatIsBeingDetachedIsNotStaged has a pod that wants a volume while the cluster detaches it, because its
// last pod has gone. What is known of the attachment is that of before.
func TestAVolumeThatIsBeingDetachedIsNotStaged(t *testing.T) {
	r := newRig(t, canStage)
	r.cluster.drivers[driverName] = nil // such a driver's volumes are attached
	r.cluster.attached["vol-1"] = map[string]string{"device": "sda"}
	first, second := r.request(newPod("u1"), newPV("pv-1", "vol-1")), r.request(newPod("u2"), newPV("pv-1", "vol-1"))
	r.mount(first)
	r.unmount(first.Dir)
	eventually.That(t, "the volume is unstaged", func() bool { return len(r.driver.Calls("NodeUnstageVolume")) == 1 })

	r.node = func(name string) error {
		if name != "kubernetes.io/csi/disks.example.com^vol-1" {
			t.Errorf("asked for %s", name)
		}
		return errors.New("Volume not attached according to node status")
	}
	fails(t, r, second, "Volume not attached according to node status")
	r.node = nil
	r.cluster.detaching["vol-1"] = true
	fails(t, r, second, "volume attachment is being deleted")
	if calls := len(r.driver.Calls("NodeStageVolume")); calls != 1 {
		t.Errorf("staged %d times, want once", calls)
	}
	if got := r.inUse(); len(got) != 1 {
		t.Errorf("in use while it is waited for: %v", got)
	}

	// It is attached anew, as another device.
	r.cluster.attached["vol-1"] = map[string]string{"device": "sdb"}
	delete(r.cluster.detaching, "vol-1")
	r.mount(second)
	stage := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume")
	publish := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume")
	if stage.GetPublishContext()["device"] != "sdb" || publish.GetPublishContext()["device"] != "sdb" {
		t.Errorf("staged %v, published %v, want the new device", stage, publish)
	}
	r.unmount(second.Dir)
	r.ends()
}

// TestAVolumeInPlaceIsNotLookedForInTheNode checks that, as with a kubelet, a second pod gets a volume of the node
// whatever the Node's status says, also after a restart, but not after a reboot.
func TestAVolumeInPlaceIsNotLookedForInTheNode(t *testing.T) {
	r := newRig(t, canStage)
	r.cluster.drivers[driverName] = nil
	r.cluster.attached["vol-1"] = nil
	first, second := r.request(newPod("u1"), newPV("pv-1", "vol-1")), r.request(newPod("u2"), newPV("pv-1", "vol-1"))
	r.mount(first)
	r.node = func(string) error { return errors.New("the node is asked") }
	r.stop()
	r.start()
	r.mount(second)
	r.unmount(second.Dir)
	r.stop()
	r.boot = "boot-2"
	r.start()
	if _, err := r.plugin.Mount(t.Context(), second); err == nil || !strings.Contains(err.Error(), "the node is asked") {
		t.Errorf("after a reboot: %v", err)
	}
	r.unmount(second.Dir)
	r.unmount(first.Dir)
	r.ends()
}

// TestAPodThatWaitsForItsAttachmentSaysSo has a cluster that does not attach a volume.
func TestAPodThatWaitsForItsAttachmentSaysSo(t *testing.T) {
	r := newRig(t, canStage)
	r.cluster.drivers[driverName] = nil
	r.cluster.attached["vol-1"] = nil
	goOn := make(chan struct{})
	r.node = func(string) error { <-goOn; return nil }
	now := clocktesting.NewFakeClock(time.Now())
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(r.root, "pods"), Clock: now, Logger: slog.New(slog.DiscardHandler),
		Plugins: persistentvolumes.Plugins(persistentvolumes.Config{
			Claims: claims{"pv-1": newPV("pv-1", "vol-1")}, Kinds: []persistentvolumes.Kind{r.plugin},
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, manager.Run)()
	manager.Want(t.Context(), podWith("u1", v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "pv-1"},
	}))
	eventually.That(t, "it says that it waits for the cluster", func() bool {
		now.Step(volumes.SlowAfter)
		return manager.Describe("u1")[0].GetWaitsFor() == "cluster to attach the volume"
	})
	close(goOn)
	eventually.That(t, "it is ready", func() bool { return manager.Ready("u1") })
	if got := manager.Describe("u1")[0].GetWaitsFor(); got != "" {
		t.Errorf("then it waits for %q", got)
	}
	if err := manager.Release(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
	r.ends()
}
