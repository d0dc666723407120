package csi_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// host is a machine with SELinux, whose file systems have labels or not.
type host struct{ labels bool }

func (host) Enabled() bool                                { return true }
func (host) FileLabel(*v1.SELinuxOptions) (string, error) { return "", nil }
func (h host) HasLabels(string) (bool, error)             { return h.labels, nil }

// labelIn returns the SELinux label in a record.
func labelIn(t *testing.T, file string) string {
	t.Helper()
	values := map[string]string{}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	return values["seLinuxMountContext"]
}

// TestADriverMountsWithALabel also checks that a pod which needs another label waits until the volume is unstaged, and
// is woken then.
func TestADriverMountsWithALabel(t *testing.T) {
	const red, blue = "system_u:object_r:container_file_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c3,c4"
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	pv.Spec.MountOptions = []string{"noatime"}
	one, two := r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
	one.Label, two.Label = red, blue
	r.mount(one)
	stage := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume")
	publish := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume")
	want := []string{"noatime", `context="` + red + `"`}
	if got := stage.GetVolumeCapability().GetMount().GetMountFlags(); !slices.Equal(got, want) {
		t.Errorf("staged with %q, want %q", got, want)
	}
	if got := publish.GetVolumeCapability().GetMount().GetMountFlags(); !slices.Equal(got, want) {
		t.Errorf("published with %q, want %q", got, want)
	}
	if len(pv.Spec.MountOptions) != 1 {
		t.Errorf("the persistent volume is changed: %v", pv.Spec.MountOptions)
	}
	staged := filepath.Join(filepath.Dir(stage.GetStagingTargetPath()), "vol_data.json")
	for _, file := range []string{staged, filepath.Join(one.Dir, "vol_data.json")} {
		if got := labelIn(t, file); got != red {
			t.Errorf("%s has the label %q", file, got)
		}
	}

	waits := `waiting for unmount of volume "kubernetes.io/csi/disks.example.com^vol-1", because it is already mounted ` +
		`to a different pod with a different SELinux label`
	fails(t, r, two, waits)
	r.stop()
	r.start()
	if label, mounted := r.plugin.Present(one.Dir); label != red || !mounted {
		t.Errorf("after a restart it has the label %q, %t", label, mounted)
	}
	if label, mounted := r.plugin.Present(two.Dir); mounted {
		t.Errorf("a volume that waits is mounted with %q", label)
	}
	fails(t, r, two, waits)
	again := one // as if its label was not known any more
	again.Label = ""
	r.mount(again)
	r.unmount(one.Dir)
	eventually.That(t, "the waiting pod is woken after the volume is unstaged", func() bool {
		return len(r.driver.Calls("NodeUnstageVolume")) == 1 && slices.Contains(r.freed(), types.UID("u2"))
	})
	eventually.That(t, "it is mounted with the other label", func() bool {
		_, err := r.plugin.Mount(t.Context(), two)
		return err == nil
	})
	stage = last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume")
	if got := stage.GetVolumeCapability().GetMount().GetMountFlags()[1]; got != `context="`+blue+`"` {
		t.Errorf("staged again with %q", got)
	}
	// After a reboot a pod may need another label, because the cluster has changed the CSIDriver.
	r.stop()
	unmountAll(t, r.root)
	r.boot = "boot-2"
	r.start()
	two.Label = red
	eventually.That(t, "it is mounted with the new label", func() bool {
		_, err := r.plugin.Mount(t.Context(), two)
		return err == nil
	})
	if got := labelIn(t, staged); got != red {
		t.Errorf("it is staged with the label %q", got)
	}
	r.unmount(two.Dir)
	r.ends()
}

func TestWhichVolumesAreLabeledByTheRuntime(t *testing.T) {
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	inline := persistentvolumes.Request{Volume: &v1.Volume{VolumeSource: v1.VolumeSource{
		CSI: &v1.CSIVolumeSource{Driver: driverName, ReadOnly: ptr.To(true)},
	}}}
	for name, c := range map[string]struct {
		request persistentvolumes.Request
		labels  bool
		keeps   bool
	}{
		"with labels":          {request: persistentvolumes.Request{PV: pv}, labels: true},
		"without labels":       {request: persistentvolumes.Request{PV: pv}, keeps: true},
		"mounted with a label": {request: persistentvolumes.Request{PV: pv, Label: "x"}, labels: true, keeps: true},
		"read-only":            {request: persistentvolumes.Request{PV: pv, ReadOnly: true}, labels: true, keeps: true},
		"inline and read-only": {request: inline, labels: true, keeps: true},
	} {
		r.stop()
		r.selinux = host{c.labels}
		r.start()
		if keeps, err := r.plugin.KeepsLabel(c.request, r.root); err != nil || keeps != c.keeps {
			t.Errorf("%s: keeps its labels: %t, %v, want %t", name, keeps, err, c.keeps)
		}
	}
	for _, supports := range []*bool{nil, ptr.To(false), ptr.To(true)} {
		r.cluster.drivers[driverName].Spec.SELinuxMount = supports
		got, err := r.plugin.MountsLabel(context.Background(), persistentvolumes.Request{PV: pv})
		if err != nil || got != ptr.Deref(supports, false) {
			t.Errorf("the driver supports labels: %t, %v, want %v", got, err, supports)
		}
	}
}
