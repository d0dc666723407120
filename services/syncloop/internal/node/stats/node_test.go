package stats_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// TestDisksOfImagesAndLayers: /dev is another file system than a temporary directory.
func TestDisksOfImagesAndLayers(t *testing.T) {
	for name, test := range map[string]struct {
		images, layers string
		want           stats.Disks
		signals        []string
	}{
		"one":          {"", "", stats.OneDisk, []string{"imagefs"}},
		"own":          {"/dev", "/dev", stats.ImageDisk, []string{"imagefs"}},
		"split":        {"/dev", "", stats.SplitDisks, []string{"imagefs", "containerfs"}},
		"split layers": {"", "/dev", stats.SplitDisks, []string{"imagefs", "containerfs"}},
		"unreported":   {"/dev", "none", stats.ImageDisk, []string{"imagefs"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(r *rig, cfg *stats.Config) {
					r.runtime.dir = cmp.Or(test.images, cfg.RootDir)
					if test.layers != "none" {
						r.runtime.layers = cmp.Or(test.layers, cfg.RootDir)
					}
				})
				synctest.Wait()
				var disks []string
				for _, reading := range r.Readings() {
					if disk, ok := strings.CutSuffix(reading.GetSignal(), "fs.available"); ok {
						disks = append(disks, disk+"fs")
					}
				}
				if got := r.Disks(); got != test.want || !slices.Equal(disks, test.signals) {
					t.Errorf("disks %d with readings of %v, want %d with %v", got, disks, test.want, test.signals)
				}
			})
		})
	}
}

// TestPressureAndHugePages: pressure is that of the cgroup, or else of the runtime. Huge pages are available to nobody.
func TestPressureAndHugePages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waited := func(n uint64) *statsv1alpha1.PSIStats {
			return &statsv1alpha1.PSIStats{Some: statsv1alpha1.PSIData{Total: n, Avg10: 0.5}}
		}
		r := newRig(t, func(r *rig, cfg *stats.Config) {
			for i, name := range []string{"/", "/kubepods", podCgroup, containerCgroup} {
				usage, base := r.cgroups.used[name], uint64(10*i)
				usage.Pressure = podcgroups.Pressure{CPU: waited(base + 1), Memory: waited(base + 2), IO: waited(base + 3)}
				r.cgroups.used[name] = usage
			}
			cfg.HugePageAware = true
			cfg.Machine = func() stats.Machine { return stats.Machine{MemoryBytes: 1000, HugePageBytes: 300} }
		})
		summary := r.summary(t)
		node, pod := summary.Node, summary.Pods[0]
		all, c := node.SystemContainers[0], pod.Containers[0]
		if *node.Memory.AvailableBytes != 100 || *pod.Memory.AvailableBytes != 800 {
			t.Errorf("%d bytes are available to the node and %d to the pod, want 100 and 800",
				*node.Memory.AvailableBytes, *pod.Memory.AvailableBytes)
		}
		for what, got := range map[string][]*statsv1alpha1.PSIStats{
			"0": {node.CPU.PSI, node.Memory.PSI, node.IO.PSI}, "1": {all.CPU.PSI, all.Memory.PSI, all.IO.PSI},
			"2": {pod.CPU.PSI, pod.Memory.PSI, pod.IO.PSI}, "3": {c.CPU.PSI, c.Memory.PSI, c.IO.PSI},
		} {
			base := uint64(what[0]-'0') * 10
			want := []*statsv1alpha1.PSIStats{waited(base + 1), waited(base + 2), waited(base + 3)}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("cgroup %s (-want +got):\n%s", what, diff)
			}
		}
	})
}
