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
)

// limitsPeriod is how often it is looked whether pods take more of the disk than they may: the kubelet's.
const limitsPeriod = 10 * time.Second

// The signals under which it is counted that a pod is ended for a limit of its own: the kubelet's.
const (
	signalVolumeLimit    = "emptydirfs.limit"
	signalPodLimit       = "ephemeralpodfs.limit"
	signalContainerLimit = "ephemeralcontainerfs.limit"
)

// excess is a limit of the disk that a pod is above.
type excess struct {
	// signal is what it is counted under, and message says it to people, in the kubelet's words.
	signal, message string
}

// holdToLimits ends the pods that take more of the disk than they may, and returns whether there were any. While no pod
// has a limit nothing is asked. A pod of which nothing is known is left alone.
func (e *Evictor) holdToLimits(ctx context.Context) bool {
	pods, err := e.cfg.Pods()
	if err != nil {
		return false // they are not known yet
	}
	limited := slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return !hasLimit(pod) || e.cfg.Spared(pod) })
	if len(limited) == 0 {
		return false
	}
	summary, err := e.summary(ctx)
	if err != nil {
		e.once(ctx, "pods are not held to their limits of the disk before it is known what they use: "+err.Error())
		return false
	}
	var ended []types.UID
	for _, pod := range limited {
		above := exceeded(pod, statsOf(summary, pod.UID), e.cfg.Stats.DedicatedImageFS())
		if above == nil || !e.end(ctx, pod, podstore.Eviction{Reason: Reason, Message: above.message}, hardGrace, nil) {
			continue
		}
		e.cfg.Metrics.evicted(above.signal)
		ended = append(ended, pod.UID)
	}
	if len(ended) == 0 {
		return false
	}
	e.untilGone(ctx, ended...)
	e.cfg.RemoveEvicted(ctx)
	return true
}

// hasLimit tells whether a pod has any limit that exceeded compares with.
func hasLimit(pod *v1.Pod) bool {
	if _, limited := podLimit(pod); limited {
		return true
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return volumeLimit(&v) != nil })
}

// exceeded says which limit of its own a pod is above: that of a volume, that of all its containers together, or that
// of one of them; nil when it is above none. Dedicated tells that the layers of containers have a file system of their
// own: then a container's limit is of its logs alone, as for the kubelet, while the pod's is of all.
func exceeded(pod *v1.Pod, stats *statsv1alpha1.PodStats, dedicated bool) *excess {
	if stats == nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if limit := volumeLimit(volume); limit != nil && isAbove(volumeUsage(stats, volume.Name), *limit) {
			return &excess{signalVolumeLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, limit.String())}
		}
	}
	if limit, limited := podLimit(pod); limited && isAbove(bytesOf(stats.EphemeralStorage), limit) {
		return &excess{signalPodLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())}
	}
	for i := range stats.Containers {
		container := &stats.Containers[i]
		used := bytesOf(container.Logs)
		if !dedicated {
			used += bytesOf(container.Rootfs)
		}
		if limit := containerLimit(pod, container.Name); !limit.IsZero() && isAbove(used, limit) {
			return &excess{signalContainerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", container.Name, limit.String())}
		}
	}
	return nil
}

// volumeLimit is how large a volume may be; nil when it is held to nothing here. One in memory the kernel lets become
// no larger.
func volumeLimit(volume *v1.Volume) *resource.Quantity {
	source := volume.EmptyDir
	if source == nil || source.Medium == v1.StorageMediumMemory || source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 {
		return nil
	}
	return source.SizeLimit
}

// podLimit is how much all containers of a pod may take together, of which those without a limit of their own have no
// part.
func podLimit(pod *v1.Pod) (limit resource.Quantity, limited bool) {
	limit, limited = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[v1.ResourceEphemeralStorage]
	return limit, limited
}

// containerLimit is how much a container may take; zero is without limit. Init containers that run to their end are
// held to none, but count for the pod.
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

// volumeUsage is how much a volume takes, 0 when it has not been measured.
func volumeUsage(stats *statsv1alpha1.PodStats, name string) uint64 {
	for i := range stats.VolumeStats {
		if v := &stats.VolumeStats[i]; v.Name == name {
			return bytesOf(&v.FsStats)
		}
	}
	return 0
}

// bytesOf is how many bytes something takes, 0 when that is not known.
func bytesOf(fs *statsv1alpha1.FsStats) uint64 {
	if fs == nil || fs.UsedBytes == nil {
		return 0
	}
	return *fs.UsedBytes
}
