package stats

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// clusterWait is how long a measurement waits for volumes of the cluster, which are measured side by side. One that
// takes longer has its last usage.
const clusterWait = 2 * time.Second

// clusterKey identifies a volume of a pod.
type clusterKey struct {
	pod    types.UID
	volume string
}

// clusterBook holds the measurements of volumes of the cluster: persistent volumes and inline volumes of drivers.
type clusterBook struct {
	mu sync.Mutex
	// last has the last usage, and running the channels that are closed when a measurement has ended.
	last    map[clusterKey]statsv1alpha1.VolumeStats
	running map[clusterKey]chan struct{}
}

// measureCluster measures the volumes of the cluster of all pods, and waits a moment. A volume whose measurement hangs
// is not measured again until that ends; it delays no other.
func (s *Stats) measureCluster(ctx context.Context, pods []*v1.Pod) {
	if s.cfg.VolumeUsage == nil {
		return
	}
	known := map[clusterKey]bool{}
	var waits []chan struct{}
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			if volume := &pod.Spec.Volumes[i]; isOfCluster(volume) {
				known[clusterKey{pod.UID, volume.Name}] = true
				waits = append(waits, s.startCluster(ctx, pod, volume))
			}
		}
	}
	s.cluster.mu.Lock()
	maps.DeleteFunc(s.cluster.last, func(k clusterKey, _ statsv1alpha1.VolumeStats) bool { return !known[k] })
	s.cluster.mu.Unlock()
	if len(waits) == 0 {
		return
	}
	timer := s.cfg.Clock.NewTimer(clusterWait)
	defer timer.Stop()
	for _, ended := range waits {
		select {
		case <-ended:
		case <-timer.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// startCluster measures a volume in the background, unless that is in progress. The goroutine ends with the
// measurement, or with the process if the kernel hangs.
func (s *Stats) startCluster(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (ended chan struct{}) {
	k := clusterKey{pod.UID, volume.Name}
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	if ended := s.cluster.running[k]; ended != nil {
		return ended
	}
	ended = make(chan struct{})
	s.cluster.running[k] = ended
	go func() {
		usage, err := s.clusterUsage(ctx, pod, volume)
		s.cluster.mu.Lock()
		delete(s.cluster.running, k)
		if err == nil {
			s.cluster.last[k] = usage
		} else {
			delete(s.cluster.last, k)
		}
		s.cluster.mu.Unlock()
		close(ended)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, volumes.ErrNotMeasured) && ctx.Err() == nil {
			s.cfg.Logger.DebugContext(ctx, "a volume cannot be measured", telemetry.KeyPod, pod.Namespace+"/"+pod.Name,
				telemetry.KeyVolume, volume.Name, telemetry.KeyError, err)
		}
	}()
	return ended
}

// clusterUsage measures a volume.
func (s *Stats) clusterUsage(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (statsv1alpha1.VolumeStats, error) {
	stats := statsv1alpha1.VolumeStats{Name: volume.Name, PVCRef: claimOf(pod, volume)}
	usage, err := s.cfg.VolumeUsage(ctx, pod, volume)
	if err != nil {
		return stats, err
	}
	if usage != nil {
		stats.FsStats = *usage
		return stats, nil
	}
	stats.FsStats, err = filesystem(s.cfg.VolumePath(pod, volume), s.cfg.Clock.Now())
	return stats, err
}

// clusterOf returns the last usage of the volumes of a pod that belong to the cluster, in the order of its spec.
func (s *Stats) clusterOf(pod *v1.Pod) (all []statsv1alpha1.VolumeStats) {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	for i := range pod.Spec.Volumes {
		if stats, ok := s.cluster.last[clusterKey{pod.UID, pod.Spec.Volumes[i].Name}]; ok {
			all = append(all, stats)
		}
	}
	return all
}

// isOfCluster reports whether a volume belongs to the cluster.
func isOfCluster(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || v.NFS != nil
}

// claimOf returns the claim of a volume; nil if it has none.
func claimOf(pod *v1.Pod, v *v1.Volume) *statsv1alpha1.PVCReference {
	switch {
	case v.PersistentVolumeClaim != nil:
		return &statsv1alpha1.PVCReference{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
	case v.Ephemeral != nil:
		return &statsv1alpha1.PVCReference{Namespace: pod.Namespace, Name: pod.Name + "-" + v.Name}
	}
	return nil
}

// Expose registers the metrics of claims, which are those of the last measurement.
func (s *Stats) Expose(registry prometheus.Registerer) { ExposeClaims(registry, s.claims) }

// claims returns the last usage of each claim. Several pods may use one.
func (s *Stats) claims() map[statsv1alpha1.PVCReference]statsv1alpha1.FsStats {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	all := map[statsv1alpha1.PVCReference]statsv1alpha1.FsStats{}
	for _, stats := range s.cluster.last {
		if stats.PVCRef != nil {
			all[*stats.PVCRef] = stats.FsStats
		}
	}
	return all
}

// ExposeClaims registers the metrics of claims, which are read at each scrape.
func ExposeClaims(
	registry prometheus.Registerer, read func() map[statsv1alpha1.PVCReference]statsv1alpha1.FsStats,
) {
	registry.MustRegister(claimCollector{read: read, metrics: claimMetrics()})
}

// claimMetric is a metric of claims.
type claimMetric struct {
	desc *prometheus.Desc
	of   func(*statsv1alpha1.FsStats) *uint64
}

func claimMetrics() (metrics []claimMetric) {
	for _, m := range []struct {
		name, help string
		of         func(*statsv1alpha1.FsStats) *uint64
	}{
		{"capacity_bytes", "Capacity in bytes of the volume", func(f *statsv1alpha1.FsStats) *uint64 { return f.CapacityBytes }},
		{"available_bytes", "Number of available bytes in the volume", func(f *statsv1alpha1.FsStats) *uint64 { return f.AvailableBytes }},
		{"used_bytes", "Number of used bytes in the volume", func(f *statsv1alpha1.FsStats) *uint64 { return f.UsedBytes }},
		{"inodes", "Maximum number of inodes in the volume", func(f *statsv1alpha1.FsStats) *uint64 { return f.Inodes }},
		{"inodes_free", "Number of free inodes in the volume", func(f *statsv1alpha1.FsStats) *uint64 { return f.InodesFree }},
		{"inodes_used", "Number of used inodes in the volume", func(f *statsv1alpha1.FsStats) *uint64 { return f.InodesUsed }},
	} {
		labels := []string{"namespace", "persistentvolumeclaim"}
		metrics = append(metrics, claimMetric{prometheus.NewDesc("kubelet_volume_stats_"+m.name, m.help, labels, nil), m.of})
	}
	return metrics
}

// claimCollector implements prometheus.Collector.
type claimCollector struct {
	read    func() map[statsv1alpha1.PVCReference]statsv1alpha1.FsStats
	metrics []claimMetric
}

// Describe implements prometheus.Collector.
func (c claimCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c claimCollector) Collect(ch chan<- prometheus.Metric) {
	for claim, usage := range c.read() {
		for _, m := range c.metrics {
			if value := m.of(&usage); value != nil {
				ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, float64(*value), claim.Namespace, claim.Name)
			}
		}
	}
}
