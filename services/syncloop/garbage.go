package main

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
)

// collectorOf makes what removes images that nobody uses.
func collectorOf(cfg nodeconfig.Config, tel *telemetry.Telemetry, runtime *cri.Client, manager *executor.Manager, counts *imagegc.Metrics, events *podevents.Recorder) *imagegc.Collector {
	return imagegc.New(imagegc.Config{
		Runtime: runtime.Runtime, Images: runtime.Images, Usage: imagegc.DiskUsage, Uses: manager.Images(),
		Policy: imagegc.Policy{
			HighPercent: int(*cfg.Kubelet.ImageGCHighThresholdPercent), LowPercent: int(*cfg.Kubelet.ImageGCLowThresholdPercent),
			MinAge: cfg.Kubelet.ImageMinimumGCAge.Duration, MaxAge: cfg.Kubelet.ImageMaximumGCAge.Duration,
		},
		Clock: clock.RealClock{}, Tracer: tel.Tracer, Calls: cri.NewCaller(tel.Tracer, cfg.Kubelet.ImageServiceEndpoint), Logger: tel.Logger, Metrics: counts,
		Events: events, Left: manager.Images().Left,
	})
}

// deadCollector returns the collector of the containers and sandboxes of present pods that nobody needs, and of what is in the queue.
func deadCollector(queue *containergc.Queue, manager *executor.Manager, store *podstore.Store, book *evictionbook.Book, counts *containergc.Metrics, events *podevents.Recorder, logger *slog.Logger) *containergc.Collector {
	return containergc.New(containergc.Config{
		Queue: queue, Observed: store.AllObserved,
		Disposable: func(uid types.UID, pressed bool) bool { return isDisposable(store, book, uid, pressed, logger) },
		Remove:     manager.RemoveGarbage, Busy: manager.Starting, Clock: clock.RealClock{}, Logger: logger, Metrics: counts, Events: events,
	})
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
