package csi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAnyVolumeHandleIsPassedOn has handles that are no names of files. The driver gets them as they are, and no path
// contains them, also for the next process.
func TestAnyVolumeHandleIsPassedOn(t *testing.T) {
	needsLoops(t)
	for name, handle := range map[string]string{
		"slashes": "/pool/a//b/../../../../etc", "dots": "..", "a dot": ".", "NUL": "a\x00b",
		"10 kB":              strings.Repeat("é", 5<<10),
		"control characters": "\x1b[2J\r\n", "spaces": "  ", "quotes": `{"a":'"'}`, "a caret": "a^b",
	} {
		for _, block := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, canStage)
				t.Cleanup(func() { detachAll(r) })
				one := r.request(newPod("u1"), newPV("pv-1", handle))
				if block {
					one = r.blockRequest(newPod("u1"), "pv-1")
					one.PV.Spec.CSI.VolumeHandle = handle
				}
				r.obtain(one)
				r.stop()
				r.start()
				r.obtain(one)
				stage := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume")
				at := filepath.Clean(stage.GetStagingTargetPath())
				if stage.GetVolumeId() != handle || !strings.HasPrefix(at, r.root+"/plugins/") {
					t.Errorf("staged %.100q at %.200s", stage.GetVolumeId(), stage.GetStagingTargetPath())
				}
				if calls := r.driver.Calls("NodeStageVolume"); len(calls) != 1 {
					t.Errorf("staged %d times", len(calls))
				}
				r.unmount(one.Dir)
				r.ends()
				if got := last[*csispec.NodeUnstageVolumeRequest](r, "NodeUnstageVolume").GetVolumeId(); got != handle {
					t.Errorf("unstaged is %.100q", got)
				}
			})
		}
	}
}

// TestNoLinkIsFollowed has links where the driver and syncloop have their paths: to a directory of the node, which must
// be neither mounted over nor read nor removed.
func TestNoLinkIsFollowed(t *testing.T) {
	for name, place := range map[string]func(r *rig, one persistentvolumes.Request) string{
		"the target":      func(_ *rig, one persistentvolumes.Request) string { return filepath.Join(one.Dir, "mount") },
		"the global path": func(r *rig, _ persistentvolumes.Request) string { return r.globalmount() },
		"the staged one":  func(r *rig, _ persistentvolumes.Request) string { return filepath.Dir(r.globalmount()) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, canStage)
			one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
			theirs := filepath.Join(filepath.Dir(r.root), "theirs")
			mustWrite(t, filepath.Join(theirs, "file"), "1")
			link := place(r, one)
			if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(theirs, link); err != nil {
				t.Fatal(err)
			}
			fails(t, r, one, link+" is a symbolic link")
			if at := mountsBelow(t, filepath.Dir(r.root)); len(at) > 0 {
				t.Errorf("mounted: %v, want none", at)
			}
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
			r.mount(one)
			r.unmount(one.Dir)
			r.ends()
			if entries, err := os.ReadDir(theirs); err != nil || len(entries) != 1 {
				t.Errorf("the directory has %v, %v, want its file", entries, err)
			}
		})
	}
}

// globalmount is where the volume "vol-1" is staged.
func (r *rig) globalmount() string {
	return filepath.Join(r.root, "plugins/kubernetes.io/csi", driverName,
		"d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49", "globalmount")
}

func mustWrite(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestARecordThatIsNoFile has something else in place of vol_data.json when a process begins. It neither hangs nor
// reads it, and the volume is not forgotten: it is neither unstaged nor detached while it is mounted for the pod. When
// the record is there again, the volume is unpublished and unstaged.
func TestARecordThatIsNoFile(t *testing.T) {
	for name, put := range map[string]func(file, other string) error{
		"a link": func(file, other string) error { return os.Symlink(other, file) },
		"a pipe": func(file, _ string) error { return unix.Mkfifo(file, 0o600) },
		"a directory": func(file, _ string) error {
			return os.MkdirAll(filepath.Join(file, "below"), 0o700)
		},
		"a file that is large": func(file, _ string) error {
			return os.WriteFile(file, []byte(`{"driverName":"`+strings.Repeat("x", 2<<20)+`"}`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, canStage)
			r.attaches("vol-1")
			one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
			r.mount(one)
			r.stop()
			file, other := filepath.Join(one.Dir, "vol_data.json"), filepath.Join(filepath.Dir(r.root), "other.json")
			must(t, os.Rename(file, other))
			must(t, put(file, other))
			r.startsInTime()
			err := r.plugin.Unmount(t.Context(), one.Dir)
			if err == nil || !strings.Contains(err.Error(), "mount is mounted, and its record") {
				t.Errorf("unmounted: %v", err)
			}
			r.staysStaged(filepath.Join(one.Dir, "mount"))
			exchange(t, file, other)
			must(t, os.RemoveAll(other))
			if name == "a pipe" { // the operator has unmounted it, and the pod is gone
				must(t, os.Remove(file))
				must(t, unix.Unmount(filepath.Join(one.Dir, "mount"), 0))
			}
			r.unmount(one.Dir)
			r.ends()
		})
	}
}

// attaches has the cluster attach a volume.
func (r *rig) attaches(handle string) {
	r.cluster.drivers[driverName].Spec.AttachRequired = ptr.To(true)
	r.cluster.attached[handle] = map[string]string{}
}

// startsInTime starts a process that must not hang.
func (r *rig) startsInTime() {
	r.t.Helper()
	started := make(chan struct{})
	go func() {
		defer close(started)
		r.start()
	}()
	select {
	case <-started:
	case <-time.After(30 * time.Second):
		r.t.Fatal("the process does not begin")
	}
}

// staysStaged waits until the volume is to be unstaged, and checks that it is not, with an error that contains a text,
// and that it must not be detached.
func (r *rig) staysStaged(says string) {
	r.t.Helper()
	refused := ""
	eventually.That(r.t, "it is said why the volume is not unstaged, or it is unstaged", func() bool {
		for _, one := range r.plugin.Unused() {
			refused = one.GetLastError()
		}
		return refused != "" || len(r.driver.Calls("NodeUnstageVolume")) > 0
	})
	if !strings.Contains(refused, says) {
		r.t.Errorf("the error is %q, want one with %q", refused, says)
	}
	if calls := r.driver.Calls("NodeUnstageVolume"); len(calls) > 0 {
		r.t.Errorf("a volume in use is unstaged: %v", calls)
	}
	if names, known := r.plugin.VolumesInUse(); !known || len(names) != 1 {
		r.t.Errorf("volumes in use are %v, %t, want the one of the pod", names, known)
	}
}

// TestAMeasurementThatIsNonsense has negative and huge values, and units that are unknown or repeated.
func TestAMeasurementThatIsNonsense(t *testing.T) {
	r := newRig(t, canMeasure)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.driver.Measure(&csispec.NodeGetVolumeStatsResponse{Usage: []*csispec.VolumeUsage{
		{Unit: csispec.VolumeUsage_BYTES, Total: -1, Used: 1<<63 - 1, Available: -1 << 63},
		{Unit: csispec.VolumeUsage_INODES, Total: 7}, {Unit: csispec.VolumeUsage_INODES, Total: 9},
		{Unit: csispec.VolumeUsage_UNKNOWN, Total: 5}, {Unit: 99, Total: 5}, {},
	}})
	got, err := r.plugin.Usage(t.Context(), one.Dir)
	if err != nil || *got.CapacityBytes != 0 || *got.UsedBytes != 1<<63-1 || *got.AvailableBytes != 0 || *got.Inodes != 9 {
		t.Errorf("measured %+v, %v", got, err)
	}
	r.driver.Measure(&csispec.NodeGetVolumeStatsResponse{})
	if got, err := r.plugin.Usage(t.Context(), one.Dir); err == nil {
		t.Errorf("without values: %+v", got)
	}
	r.unmount(one.Dir)
	r.ends()
}

// TestTheErrorOfADriverIsFitForUsers has one of 1 MB that clears the screen.
func TestTheErrorOfADriverIsFitForUsers(t *testing.T) {
	r := newRig(t, canStage)
	r.driver.Say("\x1b[2J\x00no disk\n" + strings.Repeat("x", 1<<20))
	r.driver.Set("NodeStageVolume", csidriver.Fails)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	_, err := r.plugin.Mount(t.Context(), one)
	if err == nil || len(err.Error()) > 1200 || strings.Contains(err.Error(), "\x1b") ||
		!strings.Contains(err.Error(), "�no disk\n") {
		t.Errorf("%.300v", err)
	}
	r.unmount(one.Dir)
	r.ends()
}
