// Package volumelimits holds pods to the size limits of their emptyDir volumes on disk and in huge pages: it measures them now and then,
// and has a pod evicted whose volume has become larger, as a kubelet does. Volumes in memory need none of it: the kernel lets them become
// no larger.
package volumelimits

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/diskusage"
)

// reasonEvicted is the status.reason of a pod that is evicted, and grace how many seconds its containers then have to stop: the
// kubelet's.
const (
	reasonEvicted = "Evicted"
	grace         = 1
)

// systemCritical is the priority from which on a pod is never evicted by its node.
const systemCritical = 2_000_000_000

// Config is what a Keeper needs.
type Config struct {
	// Pods gives the pods of the node with their status. Required.
	Pods func() ([]*v1.Pod, error)
	// Path is where a volume of a pod is. Required.
	Path func(pod *v1.Pod, v *v1.Volume) string
	// Usage measures a folder: diskusage.Of. Required.
	Usage func(ctx context.Context, path string) (diskusage.Usage, error)
	// Evict ends a pod for good; grace is in seconds. Required.
	Evict func(ctx context.Context, uid types.UID, reason, message string, grace int64) error
	// Period is how often volumes are measured: volumeStatsAggPeriod of the KubeletConfiguration. Required.
	Period time.Duration
	// Clock is the time. Required.
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Keeper holds pods to their limits. Make it with New.
type Keeper struct{ cfg Config }

// New makes a Keeper.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg} }

// Run measures again and again until ctx ends, and returns its error.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := k.cfg.Clock.NewTicker(k.cfg.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
			k.Round(ctx)
		}
	}
}

// Round measures every volume that has a limit, once, and evicts the pods of those that are larger.
func (k *Keeper) Round(ctx context.Context) {
	pods, err := k.cfg.Pods()
	if err != nil {
		return // they are not known yet
	}
	for _, pod := range pods {
		if ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed; ended || isSpared(pod) {
			continue
		}
		message, err := k.exceeds(ctx, pod)
		if err != nil && ctx.Err() == nil {
			k.cfg.Logger.WarnContext(ctx, "a volume cannot be measured; its size limit is not held meanwhile",
				telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyError, err)
		}
		if message == "" {
			continue
		}
		k.cfg.Logger.InfoContext(ctx, "evicting a pod", telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyReason, message)
		if err := k.cfg.Evict(ctx, pod.UID, reasonEvicted, message, grace); err != nil {
			k.cfg.Logger.WarnContext(ctx, "a pod cannot be evicted; it is tried again", telemetry.KeyPod, pod.Namespace+"/"+pod.Name,
				telemetry.KeyPodUID, string(pod.UID), telemetry.KeyError, err)
		}
	}
}

// isSpared tells whether a pod is not held to its limits. A kubelet spares every static pod, too, and with it all of a node without an
// API server; here they are spared as others are, by their priority, which those of a control plane have.
func isSpared(pod *v1.Pod) bool {
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}

// exceeds says of the first volume of a pod that is larger than it may be that it is; empty when none is. What cannot be measured
// does not keep the others from it.
func (k *Keeper) exceeds(ctx context.Context, pod *v1.Pod) (message string, err error) {
	var errs []error
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		source := volume.EmptyDir
		if source == nil || source.Medium == v1.StorageMediumMemory || source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 {
			continue
		}
		used, err := k.cfg.Usage(ctx, k.cfg.Path(pod, volume))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is not there yet, or nobody mounts it
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", volume.Name, err))
			continue
		}
		if resource.NewQuantity(used.Bytes, resource.BinarySI).Cmp(*source.SizeLimit) > 0 {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, source.SizeLimit.String()), nil
		}
	}
	return "", errors.Join(errs...)
}
