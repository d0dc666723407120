package volumes_test

import (
	"errors"
	"maps"
	"testing"
	"testing/synctest"
)

// TestOperationsOfADriverAreMeasured checks the kubelet's names: a plugin with its driver.
func TestOperationsOfADriverAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if err := r.want(newPod("u1", "config")); err != nil {
			t.Fatal(err)
		}
		if err := r.release("u1"); err != nil {
			t.Fatal(err)
		}
		const plugin = "kubernetes.io/configmap:disks.example.com"
		want := map[string]uint64{
			"storage_operation_duration_seconds false volume_mount success " + plugin:   1,
			"storage_operation_duration_seconds false volume_unmount success " + plugin: 1,
			"volume_operation_total_seconds overall_volume_mount " + plugin:             1,
		}
		if got := r.histograms(); !maps.Equal(got, want) {
			t.Errorf("measured %v, want %v", got, want)
		}
	})
}

// devices is a plugin for block devices.
type devices struct{ *plugin }

func (devices) Name() string { return "volumeDevices/kubernetes.io~csi" }

// TestOperationsOnABlockDeviceAreMeasured checks the kubelet's names, and that no time of a mount is recorded.
func TestOperationsOnABlockDeviceAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.stop()
		r.restart(devices{r.plugin})
		r.plugin.failing("disk", errors.New("not yet"))
		if err := r.want(newPod("u1", "disk")); err == nil {
			t.Fatal("it is set up")
		}
		r.plugin.failing("disk", nil)
		r.manager.Refresh("u1")
		if err := r.want(newPod("u1", "disk")); err != nil {
			t.Fatal(err)
		}
		if err := r.release("u1"); err != nil {
			t.Fatal(err)
		}
		const plugin = "kubernetes.io/csi:disks.example.com"
		got := r.histograms()
		for _, name := range []string{
			"false map_volume fail-unknown " + plugin, "false map_volume success " + plugin,
			"false unmap_volume success " + plugin,
		} {
			name = "storage_operation_duration_seconds " + name
			if got[name] == 0 {
				t.Errorf("%s is not measured", name)
			}
			delete(got, name)
		}
		if len(got) > 0 {
			t.Errorf("also measured: %v", got)
		}
	})
}

// histograms returns how often each histogram was observed, by its name and the values of its labels.
func (r *rig) histograms() map[string]uint64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetHistogram() == nil {
				continue
			}
			name := f.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			counts[name] = m.GetHistogram().GetSampleCount()
		}
	}
	return counts
}
