package csi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/quartet-node/quartet/test/csidriver"
)

func TestAVolumeOfAKubeletIsTakenOver(t *testing.T) {
	r := newRig(t, canStage)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	staging := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume").GetStagingTargetPath()
	r.stop()
	for file, text := range map[string]string{
		filepath.Join(one.Dir, "vol_data.json"):               `{"attachmentID":"csi-1","driverName":"disks.example.com","nodeName":"node-1","specVolID":"pv-1","volumeHandle":"vol-1","volumeLifecycleMode":"Persistent"}`,
		filepath.Join(filepath.Dir(staging), "vol_data.json"): `{"driverName":"disks.example.com","volumeHandle":"vol-1"}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	if got := r.inUse(); len(got) != 1 {
		t.Errorf("in use: %v, want exactly one", got)
	}
	r.mount(one)
	r.unmount(one.Dir)
	r.ends()
}

// TestAStagedVolumeThatAKubeletHasLeftIsUnstaged has the record of a kubelet that was killed after its last pod had
// gone.
func TestAStagedVolumeThatAKubeletHasLeftIsUnstaged(t *testing.T) {
	r := newRig(t, canStage)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	staging := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume").GetStagingTargetPath()
	r.driver.Set("NodeUnstageVolume", csidriver.Fails)
	r.unmount(one.Dir)
	r.stop()
	record := filepath.Join(filepath.Dir(staging), "vol_data.json")
	text := []byte(`{"driverName":"disks.example.com","volumeHandle":"vol-1"}`)
	if err := os.WriteFile(record, text, 0o600); err != nil {
		t.Fatal(err)
	}
	r.driver.Set("NodeUnstageVolume", csidriver.None)
	r.start()
	r.ends()
}

func TestADirectoryWithoutARecord(t *testing.T) {
	r := newRig(t, canStage)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.stop()
	if err := os.WriteFile(filepath.Join(one.Dir, "vol_data.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	if err := r.plugin.Unmount(t.Context(), one.Dir); err == nil || !strings.Contains(err.Error(),
		"mount is mounted, and its record") {
		t.Error(err)
	}
	unmountAll(t, one.Dir)
	r.unmount(one.Dir)
}

func TestAnotherVolumeOfTheSameName(t *testing.T) {
	r := newRig(t, canStage)
	one, two := r.request(newPod("u1"), newPV("pv-1", "vol-1")), r.request(newPod("u1"), newPV("pv-1", "vol-2"))
	r.mount(one)
	r.mount(two)
	if got := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume").GetVolumeId(); got != "vol-2" {
		t.Errorf("published is %s, want %q", got, "vol-2")
	}
	r.unmount(two.Dir)
	r.ends()
}
