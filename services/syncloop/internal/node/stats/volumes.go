package stats

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/diskusage"
)

// volumeBook holds the last measurement of volumes.
type volumeBook struct {
	mu    sync.Mutex
	ofPod map[types.UID][]statsv1alpha1.VolumeStats
}

func (b *volumeBook) get(uid types.UID) []statsv1alpha1.VolumeStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ofPod[uid]
}

// measureVolumes measures at once and then periodically until ctx ends. It returns the error of ctx.
func (s *Stats) measureVolumes(ctx context.Context) error {
	ticker := s.cfg.Clock.NewTicker(s.cfg.VolumePeriod)
	defer ticker.Stop()
	for {
		pods, _ := s.cfg.Observed()
		all := make(map[types.UID][]statsv1alpha1.VolumeStats, len(pods))
		var alive []*v1.Pod
		for _, seen := range pods {
			if pod := s.cfg.Pod(types.UID(seen.GetUid())); pod != nil && podview.AnyAlive(seen) {
				alive = append(alive, pod)
			}
		}
		s.measureCluster(ctx, alive)
		for _, pod := range alive {
			all[pod.UID] = append(s.measure(ctx, pod), s.clusterOf(pod)...)
		}
		s.volumes.mu.Lock()
		s.volumes.ofPod = all
		s.volumes.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// measure measures the volumes of a pod whose files belong to the pod.
func (s *Stats) measure(ctx context.Context, pod *v1.Pod) []statsv1alpha1.VolumeStats {
	var all []statsv1alpha1.VolumeStats
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if !isOwn(volume) {
			continue
		}
		stats := statsv1alpha1.VolumeStats{Name: volume.Name}
		path := s.cfg.VolumePath(pod, volume)
		used, err := diskusage.Of(ctx, path)
		if err == nil {
			stats.FsStats, err = filesystem(path, s.cfg.Clock.Now())
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil { // The volume is not set up yet, or no container mounts it.
				s.cfg.Logger.WarnContext(ctx, "a volume cannot be measured",
					telemetry.KeyPod, pod.Namespace+"/"+pod.Name, "volume", volume.Name, telemetry.KeyError, err)
			}
			continue
		}
		stats.UsedBytes, stats.InodesUsed = count(used.Bytes), count(used.Inodes)
		all = append(all, stats)
	}
	return all
}

// isOwn reports whether the files of a volume belong to the pod and are on this node. Other volumes are not measured.
func isOwn(v *v1.Volume) bool {
	return v.EmptyDir != nil || v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// isOnNodeDisk reports whether the content of a volume counts as usage of the node's own disk, as for the kubelet.
func isOnNodeDisk(v *v1.Volume) bool {
	if v.EmptyDir != nil {
		return v.EmptyDir.Medium == v1.StorageMediumDefault
	}
	return v.ConfigMap != nil
}

// count converts a number to the API's type. Negative numbers become 0.
func count(n int64) *uint64 {
	u := uint64(max(n, 0))
	return &u
}
