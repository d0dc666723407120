package csi_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// must ends a test if a step of it fails.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// damage puts a directory in place of a record, and returns the function that puts the record back.
func damage(t *testing.T, file string) (repair func()) {
	t.Helper()
	aside := file + "-aside"
	must(t, os.Mkdir(aside, 0o700))
	exchange(t, file, aside)
	return func() {
		t.Helper()
		exchange(t, file, aside)
		must(t, os.Remove(aside))
	}
}

// exchange exchanges two paths in one step, so that a process that reads meanwhile does not find one of them missing.
func exchange(t *testing.T, a, b string) {
	t.Helper()
	must(t, unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE))
}

// steps gives the rig a clock that only a test moves.
func (r *rig) steps() *clocktesting.FakeClock {
	clock := clocktesting.NewFakeClock(time.Now())
	r.clock = clock
	return clock
}

// isUnstaged waits until the driver has been asked to unstage a number of volumes.
func (r *rig) isUnstaged(clock *clocktesting.FakeClock, volumes int) {
	r.t.Helper()
	eventually.That(r.t, "it is unstaged", func() bool {
		clock.Step(time.Second)
		return len(r.driver.Calls("NodeUnstageVolume")) >= volumes
	})
}

// TestAVolumeOfAnUnreadableRecordIsUnstagedInTheEnd has the volume of a pod mounted in a way that does not tell where
// it comes from, so that its record is the only one that knows it. It is unstaged when the record is there again, or
// when the directory of the pod is removed.
func TestAVolumeOfAnUnreadableRecordIsUnstagedInTheEnd(t *testing.T) {
	for name, removed := range map[string]bool{"the record is back": false, "the directory of the pod is removed": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, canStage)
			r.attaches("vol-1")
			one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
			r.mount(one)
			r.stop()
			target, file := filepath.Join(one.Dir, "mount"), filepath.Join(one.Dir, "vol_data.json")
			must(t, unix.Unmount(target, 0))
			must(t, unix.Mount("tmpfs", target, "tmpfs", 0, ""))
			repair := damage(t, file)
			clock := r.steps()
			r.start()
			r.staysStaged(file)
			if removed {
				must(t, unix.Unmount(target, 0))
				must(t, os.RemoveAll(filepath.Join(r.root, "pods/u1")))
				r.isUnstaged(clock, 1)
				r.ends()
				return
			}
			repair()
			eventually.That(t, "the pod is known again", func() bool {
				clock.Step(time.Second)
				return r.plugin.Driver(one.Dir) == driverName
			})
			r.unmount(one.Dir)
			r.isUnstaged(clock, 1)
			r.ends()
		})
	}
}

// TestAnUnreadableRecordSparesOtherVolumes unstages a volume while the record of another one cannot be read: the mount
// of that pod tells its volume.
func TestAnUnreadableRecordSparesOtherVolumes(t *testing.T) {
	r := newRig(t, canStage)
	one, two := r.request(newPod("u1"), newPV("pv-1", "vol-1")), r.request(newPod("u2"), newPV("pv-2", "vol-2"))
	r.mount(one)
	r.mount(two)
	r.stop()
	repair := damage(t, filepath.Join(one.Dir, "vol_data.json"))
	r.start()
	r.unmount(two.Dir)
	eventually.That(t, "the other volume is unstaged", func() bool {
		return len(r.driver.Calls("NodeUnstageVolume")) == 1
	})
	repair()
	r.unmount(one.Dir)
	r.ends()
}

// TestAPodReplacesItsUnreadableRecord has the pod of such a record come back. Its volume is not staged again, and is
// unpublished when the pod goes, also by a process that began before the driver has answered.
func TestAPodReplacesItsUnreadableRecord(t *testing.T) {
	r := newRig(t, canStage)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.stop()
	must(t, os.WriteFile(filepath.Join(one.Dir, "vol_data.json"), []byte("{"), 0o600))
	r.driver.Set("NodePublishVolume", csidriver.Fails)
	r.start()
	fails(t, r, one, "NodePublishVolume fails as asked")
	r.driver.Set("NodePublishVolume", csidriver.None)
	r.restart(r.timeout)
	if calls := r.driver.Calls("NodeStageVolume"); len(calls) != 1 {
		t.Errorf("staged %d times, want once", len(calls))
	}
	r.unmount(one.Dir)
	r.ends()
}

// TestAVolumeForOnePodIsTakenByAnUnreadableRecord refuses a second pod as long as it is not known whether the first one
// has the volume.
func TestAVolumeForOnePodIsTakenByAnUnreadableRecord(t *testing.T) {
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	one, two := r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
	r.mount(one)
	r.stop()
	repair := damage(t, filepath.Join(one.Dir, "vol_data.json"))
	r.start()
	fails(t, r, two, "already in use by another pod")
	repair()
	r.unmount(one.Dir)
	r.mount(two)
	r.unmount(two.Dir)
	r.ends()
}

// TestAVolumeThatIsNotStagedStaysInUse has a driver that does not stage volumes, and a record that cannot be read.
func TestAVolumeThatIsNotStagedStaysInUse(t *testing.T) {
	r := newRig(t)
	r.attaches("vol-1")
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.stop()
	repair := damage(t, filepath.Join(one.Dir, "vol_data.json"))
	r.start()
	r.staysStaged("vol_data.json cannot be read")
	repair()
	r.unmount(one.Dir)
	r.ends()
	if names, _ := r.plugin.VolumesInUse(); len(names) > 0 {
		t.Errorf("in use at the end: %v", names)
	}
}

// TestAStagedVolumeOfAnUnreadableRecordIsUnstaged cannot read the record of a staged volume. The record of the pod says
// which volume it is; without a pod the volume is unstaged when its record can be read again, and its directory stays
// until then, although nothing is mounted there.
func TestAStagedVolumeOfAnUnreadableRecordIsUnstaged(t *testing.T) {
	for _, block := range []bool{false, true} {
		for name, used := range map[string]bool{"a pod has it": true, "no pod has it": false} {
			t.Run(map[bool]string{false: "file system, ", true: "block device, "}[block]+name, func(t *testing.T) {
				r := newRig(t, canStage)
				one, _ := r.pair(block)
				record := filepath.Join(filepath.Dir(r.globalmount()), "vol_data.json")
				if block {
					needsLoops(t)
					t.Cleanup(func() { detachAll(r) })
					record = filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices/pv-1/data/vol_data.json")
				}
				r.obtain(one)
				r.driver.Set("NodeUnstageVolume", csidriver.Fails)
				if !used {
					r.unmount(one.Dir)
					eventually.That(t, "the driver fails", func() bool { return len(r.driver.Calls("NodeUnstageVolume")) > 0 })
				}
				r.stop()
				r.driver.Set("NodeUnstageVolume", csidriver.None)
				before := len(r.driver.Calls("NodeUnstageVolume"))
				if !used && !block { // as of a driver that mounts nothing when it stages
					must(t, unix.Unmount(r.globalmount(), 0))
				}
				repair := damage(t, record)
				clock := r.steps()
				if used {
					must(t, os.Remove(record+"-aside"))
				}
				r.start()
				if used {
					r.unmount(one.Dir)
				} else {
					repair()
				}
				r.isUnstaged(clock, before+1)
				r.ends()
			})
		}
	}
}

// TestABlockDeviceOfAnUnreadableRecordIsNotUnstaged has the record of a pod's block device damaged, or the device still
// held for a pod without any record.
func TestABlockDeviceOfAnUnreadableRecordIsNotUnstaged(t *testing.T) {
	needsLoops(t)
	r := newRig(t, canStage)
	r.attaches("disk-of-pv-1")
	t.Cleanup(func() { detachAll(r) })
	one := r.blockRequest(newPod("u1"), "pv-1")
	r.obtain(one)
	r.stop()
	devices := filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices")
	repair := damage(t, filepath.Join(devices, "pv-1/data/u1.json"))
	r.start()
	if names, known := r.plugin.VolumesInUse(); !known || len(names) != 1 || len(r.plugin.Unused()) > 0 {
		t.Errorf("in use are %v, %t, and unused %v", names, known, r.plugin.Unused())
	}
	r.stop()
	repair()
	must(t, os.Remove(filepath.Join(devices, "pv-1/data/u1.json")))
	must(t, unix.Unmount(filepath.Join(devices, "publish/pv-1/u1"), 0))
	must(t, os.Remove(filepath.Join(devices, "publish/pv-1/u1")))
	r.start()
	r.staysStaged(filepath.Join(devices, "pv-1/dev/u1"))
	must(t, r.plugin.Unmount(t.Context(), one.Dir))
	r.ends()
	r.nothingAttached()
}
