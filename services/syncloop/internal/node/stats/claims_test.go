package stats_test

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// TestVolumesOfTheClusterAreMeasured has one that a driver measures, one that is a file system, one whose measurement
// hangs, one that cannot be measured, and one that is not set up.
func TestVolumesOfTheClusterAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, hung := prometheus.NewRegistry(), make(chan struct{})
		defer close(hung)
		r := newRig(t, func(r *rig, c *stats.Config) {
			for _, name := range []string{"driver", "hangs", "none", "missing", "data"} {
				r.pod.Spec.Volumes = append(r.pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + name},
				}})
			}
			r.pod.Spec.Volumes = r.pod.Spec.Volumes[3:]
			c.VolumeUsage = func(_ context.Context, _ *v1.Pod, v *v1.Volume) (*statsv1alpha1.FsStats, error) {
				switch v.Name {
				case "driver":
					return &statsv1alpha1.FsStats{CapacityBytes: ptr.To[uint64](1000)}, nil
				case "hangs":
					<-hung
				case "none":
					return nil, volumes.ErrNotMeasured
				case "missing":
					return nil, fs.ErrNotExist
				}
				return nil, nil
			}
		})
		r.Expose(registry)
		<-time.After(3 * time.Second) // in the bubble: the measurement does not wait longer for the one that hangs
		synctest.Wait()
		got := map[string]statsv1alpha1.VolumeStats{}
		for _, v := range r.summary(t).Pods[0].VolumeStats {
			got[v.Name] = v
		}
		if driver := got["driver"]; len(got) != 2 || *driver.CapacityBytes != 1000 || *driver.PVCRef != (statsv1alpha1.PVCReference{Namespace: "shop", Name: "claim-driver"}) {
			t.Errorf("measured %+v", got)
		}
		if data := got["data"]; data.CapacityBytes == nil || *data.CapacityBytes == 0 {
			t.Errorf("the file system: %+v", data)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		exposed := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				exposed[name] = m.GetGauge().GetValue()
			}
		}
		if exposed["kubelet_volume_stats_capacity_bytes shop claim-driver"] != 1000 || exposed["kubelet_volume_stats_inodes shop claim-data"] == 0 {
			t.Errorf("exposed %v", exposed)
		}
		for name := range exposed {
			if strings.Contains(name, "hangs") {
				t.Errorf("exposed %s", name)
			}
		}
	})
}
