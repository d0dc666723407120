package eviction_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

// limited returns a pod with an emptyDir of a size limit and containers with limits of ephemeral storage. An empty
// limit sets none. The second container is a sidecar, and the third an init container that runs to completion.
func limited(name, volume string, containers ...string) *v1.Pod {
	p := pod(name, 0, 0)
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	if volume != "" {
		p.Spec.Volumes[0].EmptyDir.SizeLimit = ptr.To(resource.MustParse(volume))
	}
	p.Spec.Containers = nil
	for i, limit := range containers {
		c := v1.Container{Name: []string{"main", "sidecar", "init"}[i]}
		if limit != "" {
			c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		switch c.Name {
		case "sidecar":
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
			fallthrough
		case "init":
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

// taking returns the statistics of a pod that uses the given MiB of disk for its volume, and for the layer and the logs
// of each container.
func taking(volume uint64, containers ...[2]uint64) statsv1alpha1.PodStats {
	fs := func(mib uint64) *statsv1alpha1.FsStats { return &statsv1alpha1.FsStats{UsedBytes: ptr.To(mib * mebi)} }
	stats := statsv1alpha1.PodStats{VolumeStats: []statsv1alpha1.VolumeStats{{Name: "data", FsStats: *fs(volume)}}}
	sum := volume
	for i, c := range containers {
		stats.Containers = append(stats.Containers, statsv1alpha1.ContainerStats{
			Name: []string{"main", "sidecar", "init"}[i], Rootfs: fs(c[0]), Logs: fs(c[1]),
		})
		sum += c[0] + c[1]
	}
	stats.EphemeralStorage = fs(sum)
	return stats
}

func TestAPodThatTakesMoreOfTheDiskThanItMayIsEvicted(t *testing.T) {
	const volumeText = `Usage of EmptyDir volume "data" exceeds the limit "%s". `
	none := [2]uint64{}
	inVolume := func(medium v1.StorageMedium) *v1.Pod {
		p := limited("pod", "1Mi", "")
		p.Spec.Volumes[0].EmptyDir.Medium = medium
		return p
	}
	for name, test := range map[string]struct {
		pod       *v1.Pod
		stats     statsv1alpha1.PodStats
		dedicated bool
		want      string
	}{
		"a volume above its limit":       {limited("pod", "3Mi", ""), taking(4), false, fmt.Sprintf(volumeText, "3Mi")},
		"a volume at its limit":          {limited("pod", "4Mi", ""), taking(4), false, ""},
		"a volume without a limit":       {limited("pod", "", ""), taking(4), false, ""},
		"a limit of zero":                {limited("pod", "0", ""), taking(4), false, ""},
		"a volume in memory":             {inVolume(v1.StorageMediumMemory), taking(4), false, ""},
		"a volume in huge pages":         {inVolume(v1.StorageMediumHugePages), taking(4), false, fmt.Sprintf(volumeText, "1Mi")},
		"a volume in huge pages of size": {inVolume("HugePages-2Mi"), taking(4), false, fmt.Sprintf(volumeText, "1Mi")},
		"a volume that is not measured":  {limited("pod", "1Mi", ""), statsv1alpha1.PodStats{}, false, ""},
		"layers, logs and volumes together": {
			limited("pod", "", "4Mi", "4Mi"), taking(3, [2]uint64{2, 1}, [2]uint64{2, 1}), false,
			"Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. "},
		"all of them at the limit": {
			limited("pod", "", "4Mi", "4Mi"), taking(2, [2]uint64{2, 1}, [2]uint64{2, 1}), false, "",
		},
		"a container's layer and logs": {limited("pod", "", "4Mi", "9Mi"), taking(0, [2]uint64{2, 3}, none), false,
			`Container main exceeded its local ephemeral storage limit "4Mi". `},
		"a sidecar's": {limited("pod", "", "9Mi", "4Mi"), taking(0, none, [2]uint64{2, 3}), false,
			`Container sidecar exceeded its local ephemeral storage limit "4Mi". `},
		"an init container's, which counts only for the pod": {
			limited("pod", "", "9Mi", "", "4Mi"), taking(0, none, none, [2]uint64{2, 3}), false, "",
		},
		"layers on another disk: only logs count for the container": {
			limited("pod", "", "4Mi", "9Mi"), taking(0, [2]uint64{9, 3}, none), true, "",
		},
		"layers on another disk: they count for the pod": {limited("pod", "", "4Mi", "4Mi"), taking(0, [2]uint64{8, 3}, none), true,
			"Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. "},
		"a container without a limit adds nothing to the pod's": {limited("pod", "", "4Mi", ""), taking(0, none, [2]uint64{4, 1}), false,
			"Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(r *rig) {
					r.pods = []*v1.Pod{test.pod}
					if test.dedicated {
						r.disks = stats.ImageDisk
					}
					r.stats = map[types.UID]statsv1alpha1.PodStats{"pod": test.stats}
				})
				<-time.After(10 * time.Second)
				synctest.Wait()
				var wanted []string
				if test.want != "" {
					wanted = []string{"Evicted pod in 1 s: " + test.want}
				}
				want(t, r.actions, wanted...)
			})
		})
	}
}

func TestEvictionsForLimitsAreCountedBySignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) {
			r.pods = []*v1.Pod{
				limited("volume", "1Mi", ""), limited("sum", "", "1Mi"), limited("container", "", "1Mi", "9Mi"),
				limited("critical", "1Mi", ""),
			}
			r.stats = map[types.UID]statsv1alpha1.PodStats{
				"volume": taking(2), "sum": taking(2, [2]uint64{}), "container": taking(0, [2]uint64{1, 1}), "critical": taking(2),
			}
		})
		<-time.After(10 * time.Second)
		synctest.Wait()
		if len(r.actions) != 3 {
			t.Errorf("the actions are %q, want the eviction of all but the critical pod", r.actions)
		}
		if r.cleanups.Load() != 1 {
			t.Errorf("the ended containers of evicted pods were removed %d times, want 1", r.cleanups.Load())
		}
		for _, signal := range []string{"emptydirfs.limit", "ephemeralpodfs.limit", "ephemeralcontainerfs.limit"} {
			metricstest.Want(t, r.registry, 1, "kubelet_evictions", "eviction_signal", signal)
		}
	})
}

func TestNothingIsAskedWhileNoPodHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		<-time.After(time.Minute)
		synctest.Wait()
		if r.reads != 0 {
			t.Errorf("the statistics were read %d times, want 0", r.reads)
		}
	})
}

// TestPodsAboveTheirLimitsAreEvictedFirst checks that all pods above their limits are evicted together, and no other
// pod before nodestatus has measured again.
func TestPodsAboveTheirLimitsAreEvictedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(r *rig) {
			r.pods = append(r.pods, limited("above", "1Mi", ""), limited("too", "1Mi", ""))
			r.stats["above"], r.stats["too"] = taking(2), taking(2)
			r.alive["too"] = true
		})
		const text = `in 1 s: Usage of EmptyDir volume "data" exceeds the limit "1Mi". `
		want(t, r.press("memory.available", true), "Evicted above "+text, "Evicted too "+text)
		want(t, r.press("memory.available", true)) // The second pod is still terminating.
		<-time.After(30 * time.Second)
		if did := r.press("memory.available", true); len(did) != 2 || !strings.HasPrefix(did[1], "Evicted big") {
			t.Errorf("then: %q, want 2 entries and did[1] beginning with %q", did, "Evicted big")
		}
	})
}
