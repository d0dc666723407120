package syncloop

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
)

// newImageCollector returns the garbage collector of images.
func newImageCollector(
	h *host, manager *executor.Manager, events *podevents.Recorder, parts *components.Group,
) *imagegc.Collector {
	kubelet := &h.cfg.Kubelet
	collector := imagegc.New(imagegc.Config{
		Runtime: h.runtime.Runtime, Images: h.runtime.Images, Usage: imagegc.DiskUsage, Uses: manager.Images(),
		Policy: imagegc.Policy{
			HighPercent: int(*kubelet.ImageGCHighThresholdPercent), LowPercent: int(*kubelet.ImageGCLowThresholdPercent),
			MinAge: kubelet.ImageMinimumGCAge.Duration, MaxAge: kubelet.ImageMaximumGCAge.Duration,
		},
		Clock: clock.RealClock{}, Tracer: h.tracer, Logger: h.logger,
		Calls:   cri.NewCaller(h.tracer, kubelet.ImageServiceEndpoint),
		Metrics: imagegc.NewMetrics(h.registry), Events: events, Left: manager.Images().Left,
	})
	parts.Run("image garbage", later(clock.RealClock{}, collector.Run))
	return collector
}

// newContainerCollector returns the garbage collector of containers and sandboxes. It collects those that a present pod
// no longer needs, and those in the queue.
func newContainerCollector(
	h *host, queue *containergc.Queue, manager *executor.Manager, store *podstore.Store, book *evictionbook.Book,
	events *podevents.Recorder, parts *components.Group,
) *containergc.Collector {
	collector := containergc.New(containergc.Config{
		Queue: queue, Observed: store.AllObserved,
		Disposable: func(uid types.UID, pressed bool) bool {
			return isDisposable(store, book, uid, pressed, h.logger)
		},
		Remove: manager.RemoveGarbage, Busy: manager.Starting, Clock: clock.RealClock{}, Logger: h.logger,
		Metrics: containergc.NewMetrics(h.registry), Events: events,
	})
	parts.Run("container garbage", collector.Run)
	return collector
}

// isDisposable reports whether the ended containers of a pod may be removed: those of an evicted pod always, those of
// any other finished pod only if pressed is true. First it saves the last status of the pod to the book, because a
// restarted syncloop cannot learn without the containers that the pod ran and how its containers ended. A static pod
// that ran to completion keeps its containers, because its source may name it again under its UID at any time.
func isDisposable(
	store *podstore.Store, book *evictionbook.Book, uid types.UID, pressed bool, logger *slog.Logger,
) bool {
	last, evicted, static, ok := store.Ended(uid)
	if !ok || (!evicted && !pressed) {
		return false
	}
	kept, err := book.SetLast(uid, last, !static)
	if err != nil {
		logger.Warn("the last status of a pod cannot be saved, so its ended containers are not removed; it is tried again: check the disk of the state directory",
			telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
		return false
	}
	if kept {
		store.SetLast(uid, last)
	}
	return kept
}
