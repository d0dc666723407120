package csi_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// needsLoops skips a test on a machine without loop devices.
func needsLoops(t *testing.T) {
	t.Helper()
	_, err := os.Stat("/dev/loop-control")
	require.NoError(t, err)
	_, err = exec.LookPath("losetup")
	require.NoError(t, err)
}

// blockRequest returns the request for a block device of a pod.
func (r *rig) blockRequest(pod *v1.Pod, name string) persistentvolumes.Request {
	pv := newPV(name, "disk-of-"+name)
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	one := r.request(pod, pv)
	one.Block, one.Dir = true, filepath.Join(r.root, "pods", string(pod.UID), "volumeDevices/kubernetes.io~csi", name)
	if err := os.MkdirAll(filepath.Dir(one.Dir), 0o750); err != nil {
		r.t.Fatal(err)
	}
	return one
}

// loops returns the loop devices of a path below the rig.
func loops(t testing.TB, part string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), part) {
			found = append(found, strings.TrimSpace(string(text)))
		}
	}
	return found
}

// nothingAttached waits until no loop device of the rig is attached. The kernel detaches one when the last process that
// looks at it has closed it, and a test beside this one that looks for a free device may look at it.
func (r *rig) nothingAttached() {
	r.t.Helper()
	eventually.That(r.t, "no loop device is attached", func() bool { return len(loops(r.t, filepath.Dir(r.root))) == 0 })
}

func TestABlockDevice(t *testing.T) {
	needsLoops(t)
	for _, can := range [][]csispec.NodeServiceCapability_RPC_Type{{canStage}, nil} {
		r := newRig(t, can...)
		t.Cleanup(func() { detachAll(r) })
		one, two := r.blockRequest(newPod("u1"), "pv-1"), r.blockRequest(newPod("u2"), "pv-1")
		for _, request := range []persistentvolumes.Request{one, two, one} {
			if path, err := r.plugin.Mount(t.Context(), request); err != nil || path != request.Dir {
				t.Fatalf("%s, %v", path, err)
			}
		}
		wantMapped(t, r, one, two)
		writeDevice(t, one.Dir, "hello")
		if text, err := os.ReadFile(r.driver.Device("disk-of-pv-1")); err != nil || !bytes.HasPrefix(text, []byte("hello")) {
			t.Errorf("not on the device: %v", err)
		}
		devices := filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices")
		publish := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume")
		if publish.GetTargetPath() != devices+"/publish/pv-1/u2" || publish.GetVolumeCapability().GetBlock() == nil {
			t.Errorf("published by %v", publish)
		}
		if can != nil {
			if got := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume").GetStagingTargetPath(); got != devices+"/staging/pv-1" {
				t.Errorf("staged at %s, want %s", got, devices+"/staging/pv-1")
			}
		}
		if got := loops(t, devices); len(got) != 2 {
			t.Errorf("held are %v, want 2 entries", got)
		}
		hasRecord(t, devices+"/pv-1/data/vol_data.json", map[string]string{"volumeHandle": "disk-of-pv-1", "driverName": driverName, "specVolID": "pv-1"})
		r.unmount(one.Dir)
		r.stop()
		r.start() // the next process finds it
		writeDevice(t, two.Dir, "there")
		r.unmount(two.Dir)
		r.ends()
		r.nothingAttached()
		if left, _ := os.ReadDir(devices + "/publish"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

// writeDevice writes to a device.
func writeDevice(t *testing.T, path, text string) {
	t.Helper()
	device, err := os.OpenFile(path, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := device.WriteString(text); err != nil {
		t.Error(err)
	}
	if err := device.Close(); err != nil {
		t.Error(err)
	}
}

func detachAll(r *rig) {
	unmountAll(r.t, filepath.Dir(r.root))
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), filepath.Dir(r.root)) {
			_ = exec.Command("losetup", "--detach", "/dev/"+strings.Split(file, "/")[3]).Run()
		}
	}
}

// TestFaultsOfABlockDevice lets each call go wrong once; the pod goes without leaving anything.
func TestFaultsOfABlockDevice(t *testing.T) {
	needsLoops(t)
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		for name, fault := range faults() {
			t.Run(method+"/"+name, func(t *testing.T) {
				r := newRig(t, canStage)
				t.Cleanup(func() { detachAll(r) })
				r.restart(soon)
				one := r.blockRequest(newPod("u1"), "pv-1")
				r.driver.Set(method, fault)
				if _, err := r.plugin.Mount(t.Context(), one); err == nil {
					t.Fatal("the call does not fail")
				}
				r.heal(method)
				r.restart(30 * time.Second)
				eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
				r.ends()
				r.nothingAttached()
			})
		}
	}
}

// TestABlockDeviceOfAKubelet is found by its link and its record, which has no users.
func TestABlockDeviceOfAKubelet(t *testing.T) {
	needsLoops(t)
	r := newRig(t, canStage)
	t.Cleanup(func() { detachAll(r) })
	one := r.blockRequest(newPod("u1"), "pv-1")
	if _, err := r.plugin.Mount(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	r.stop()
	data := filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices/pv-1/data")
	if err := os.Remove(data + "/u1.json"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(data+"/vol_data.json", []byte(`{"driverName":"disks.example.com","specVolID":"pv-1","volumeHandle":"disk-of-pv-1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	if _, err := r.plugin.Mount(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	r.unmount(one.Dir)
	r.ends()
}

// TestAnotherBlockDeviceOfTheSameName waits until the earlier volume is unstaged, because both have the same paths.
func TestAnotherBlockDeviceOfTheSameName(t *testing.T) {
	needsLoops(t)
	r := newRig(t, canStage)
	t.Cleanup(func() { detachAll(r) })
	one, two := r.blockRequest(newPod("u1"), "pv-1"), r.blockRequest(newPod("u1"), "pv-1")
	two.PV.Spec.CSI.VolumeHandle = "another"
	r.driver.Set("NodeUnstageVolume", csidriver.Fails)
	r.obtain(one)
	fails(t, r, two, `the volume "disk-of-pv-1" of an earlier persistent volume pv-1 is still staged`)
	r.driver.Set("NodeUnstageVolume", csidriver.None)
	eventually.That(t, "the other one is there", func() bool {
		_, err := r.plugin.Mount(t.Context(), two)
		return err == nil
	})
	r.obtain(two)
	r.unmount(two.Dir)
	r.ends()
}

// wantMapped checks the events of block devices: the kubelet's, once for each path of each pod.
func wantMapped(t *testing.T, r *rig, requests ...persistentvolumes.Request) {
	t.Helper()
	var want []string
	for _, one := range requests {
		for _, path := range []string{
			fmt.Sprintf("globalMapPath %q", filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices", one.PV.Name, "dev")),
			fmt.Sprintf("volumeMapPath %q", filepath.Dir(one.Dir)),
		} {
			want = append(want, fmt.Sprintf("SuccessfulMountVolume: MapVolume.MapPodDevice succeeded for volume %q %s",
				one.PV.Name, path))
		}
	}
	if got := r.cluster.noted(); !slices.Equal(got, want) {
		t.Errorf("noted %q, want %q", got, want)
	}
}
