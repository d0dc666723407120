package main

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

// newImageCollector returns the collector of images that nobody uses.
func newImageCollector(h *host, manager *executor.Manager, events *podevents.Recorder, parts *components.Group) *imagegc.Collector {
	kubelet := &h.cfg.Kubelet
	collector := imagegc.New(imagegc.Config{
		Runtime: h.runtime.Runtime, Images: h.runtime.Images, Usage: imagegc.DiskUsage, Uses: manager.Images(),
		Policy: imagegc.Policy{
			HighPercent: int(*kubelet.ImageGCHighThresholdPercent), LowPercent: int(*kubelet.ImageGCLowThresholdPercent),
			MinAge: kubelet.ImageMinimumGCAge.Duration, MaxAge: kubelet.ImageMaximumGCAge.Duration,
		},
		Clock: clock.RealClock{}, Tracer: h.tracer, Calls: cri.NewCaller(h.tracer, kubelet.ImageServiceEndpoint), Logger: h.logger,
		Metrics: imagegc.NewMetrics(h.registry), Events: events, Left: manager.Images().Left,
	})
	parts.Run("image garbage", collector.Run)
	return collector
}

// newContainerCollector returns the collector of the containers and sandboxes of present pods that nobody needs, and of what is in the
// queue.
func newContainerCollector(
	h *host, queue *containergc.Queue, manager *executor.Manager, store *podstore.Store, book *evictionbook.Book, events *podevents.Recorder, parts *components.Group,
) *containergc.Collector {
	collector := containergc.New(containergc.Config{
		Queue: queue, Observed: store.AllObserved,
		Disposable: func(uid types.UID, pressed bool) bool { return isDisposable(store, book, uid, pressed, h.logger) },
		Remove:     manager.RemoveGarbage, Busy: manager.Starting, Clock: clock.RealClock{}, Logger: h.logger,
		Metrics: containergc.NewMetrics(h.registry), Events: events,
	})
	parts.Run("container garbage", collector.Run)
	return collector
}

// isDisposable tells whether the ended containers of a pod are of no use: those of one that was evicted, and, with pressed, of each that has
// ended for good. The book has the last status of the pod before its containers go: it is how a restarted syncloop knows that the pod
// ran and how its containers ended. A static pod that ran to its end keeps them: it may be named anew under its UID at any moment.
func isDisposable(store *podstore.Store, book *evictionbook.Book, uid types.UID, pressed bool, logger *slog.Logger) bool {
	last, evicted, static, ok := store.Ended(uid)
	if !ok || (!evicted && !pressed) {
		return false
	}
	kept, err := book.SetLast(uid, last, !static)
	if err != nil {
		logger.Warn("the last status of a pod cannot be kept, so its ended containers stay; it is tried again: mend the disk of the state directory",
			telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
		return false
	}
	if kept {
		store.SetLast(uid, last)
	}
	return kept
}
