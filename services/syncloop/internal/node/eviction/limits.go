package eviction

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

// limitsPeriod is how often pods are compared with their disk limits. It is the kubelet's value.
const limitsPeriod = 10 * time.Second

// The signals that the metrics use for evictions because of a pod's own limit. They are the kubelet's.
const (
	signalVolumeLimit    = "emptydirfs.limit"
	signalPodLimit       = "ephemeralpodfs.limit"
	signalContainerLimit = "ephemeralcontainerfs.limit"
)

// excess is a disk limit that a pod exceeds.
type excess struct {
	// signal is the label of the metric. message is the text for people, in the kubelet's words.
	signal, message string
}

// holdToLimits evicts the pods that exceed their disk limits, and reports whether there were any. It reads no
// statistics while no pod has a limit, and does not touch pods without statistics.
func (e *Evictor) holdToLimits(ctx context.Context) bool {
	pods, err := e.running()
	if err != nil {
		return false // The pods are not known yet.
	}
	limited := slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool {
		return !hasLimit(pod) || e.cfg.Spared(pod)
	})
	if len(limited) == 0 {
		return false
	}
	summary, err := e.summary(ctx)
	if err != nil {
		e.logOnce(ctx, "disk limits are not enforced because the resource usage of pods is unknown: "+err.Error())
		return false
	}
	var evicted []types.UID
	for _, pod := range limited {
		over := exceeded(pod, statsOf(summary, pod.UID), e.cfg.Stats.Disks() != stats.OneDisk)
		if over == nil || !e.evictPod(ctx, pod, podstore.Eviction{Reason: Reason, Message: over.message}, hardGrace, nil) {
			continue
		}
		e.cfg.Metrics.evicted(over.signal)
		evicted = append(evicted, pod.UID)
	}
	if len(evicted) == 0 {
		return false
	}
	e.awaitGone(ctx, evicted...)
	e.cfg.RemoveEvicted(ctx)
	return true
}

// hasLimit reports whether a pod has a limit that exceeded checks.
func hasLimit(pod *v1.Pod) bool {
	if _, limited := podLimit(pod); limited {
		return true
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return volumeLimit(&v) != nil })
}

// exceeded returns the first limit that a pod exceeds: of a volume, of the pod as a whole, or of a container. It
// returns nil if there is none. dedicated is true if containers' layers are on a file system of their own. Then a
// container's limit applies only to its logs, as for the kubelet, but the pod's limit applies to everything.
func exceeded(pod *v1.Pod, stats *statsv1alpha1.PodStats, dedicated bool) *excess {
	if stats == nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if limit := volumeLimit(volume); limit != nil && isAbove(volumeUsage(stats, volume.Name), *limit) {
			text := fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, limit.String())
			return &excess{signalVolumeLimit, text}
		}
	}
	if limit, limited := podLimit(pod); limited && isAbove(bytesOf(stats.EphemeralStorage), limit) {
		text := fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
		return &excess{signalPodLimit, text}
	}
	for i := range stats.Containers {
		container := &stats.Containers[i]
		used := bytesOf(container.Logs)
		if !dedicated {
			used += bytesOf(container.Rootfs)
		}
		if limit := containerLimit(pod, container.Name); !limit.IsZero() && isAbove(used, limit) {
			text := fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", container.Name, limit.String())
			return &excess{signalContainerLimit, text}
		}
	}
	return nil
}

// volumeLimit returns the size limit of a volume, or nil if none is enforced here. The kernel enforces the limit of a
// volume in memory.
func volumeLimit(volume *v1.Volume) *resource.Quantity {
	source := volume.EmptyDir
	if source == nil || source.Medium == v1.StorageMediumMemory {
		return nil
	}
	if source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 {
		return nil
	}
	return source.SizeLimit
}

// podLimit returns the ephemeral-storage limit of a pod, which is computed from the limits of its containers.
// Containers without a limit do not count.
func podLimit(pod *v1.Pod) (limit resource.Quantity, limited bool) {
	limit, limited = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return limit, limited
}

// containerLimit returns the ephemeral-storage limit of a container, or zero if it has none. The limit of an init
// container that runs to completion is not enforced, but counts for the pod.
func containerLimit(pod *v1.Pod, name string) resource.Quantity {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return *c.Resources.Limits.StorageEphemeral()
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name && podset.IsSidecar(c) {
			return *c.Resources.Limits.StorageEphemeral()
		}
	}
	return resource.Quantity{}
}

func isAbove(bytes uint64, limit resource.Quantity) bool {
	return resource.NewQuantity(int64(bytes), resource.BinarySI).Cmp(limit) > 0 //nolint:gosec // less than 8 EiB
}

// volumeUsage returns the bytes that a volume uses, or 0 if it has not been measured.
func volumeUsage(stats *statsv1alpha1.PodStats, name string) uint64 {
	for i := range stats.VolumeStats {
		if v := &stats.VolumeStats[i]; v.Name == name {
			return bytesOf(&v.FsStats)
		}
	}
	return 0
}

// bytesOf returns the used bytes of a file system, or 0 if they are not known.
func bytesOf(fs *statsv1alpha1.FsStats) uint64 {
	if fs == nil || fs.UsedBytes == nil {
		return 0
	}
	return *fs.UsedBytes
}
