package volumes_test

import (
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
