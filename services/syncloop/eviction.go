package main

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// newEvictor makes what makes room when the node has run short of something, and holds pods to their limits of the disk.
func (e *engine) newEvictor(inCluster bool, evicter *engineapi.Evictions) *eviction.Evictor {
	return eviction.New(eviction.Config{
		Stats: e.stats, Limits: *e.cfg.Kubelet.LocalStorageCapacityIsolation,
		Pods: e.evictable, Spared: func(pod *v1.Pod) bool { return isSpared(pod, inCluster) }, Evict: evicter.EvictAnnotated,
		Gone:             e.store.IsGone,
		RemoveContainers: e.dead.Reclaim, RemoveEvicted: e.dead.Look, RemoveImages: e.garbage.RemoveUnused, Events: e.events,
		MaxGrace: int64(e.cfg.Kubelet.EvictionMaxPodGracePeriod), Clock: clock.RealClock{}, BootTime: boottime.Now, Logger: e.logger, Metrics: eviction.NewMetrics(e.metrics.Registry),
	})
}

// evictable are the pods that run and have not ended, nor been ended.
func (e *engine) evictable() ([]*v1.Pod, error) {
	pods, err := e.store.Pods()
	if err != nil {
		return nil, err
	}
	var running []*v1.Pod
	for _, pod := range pods {
		if ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed; !ended && podview.AnyAlive(e.store.Observed(pod.UID)) {
			running = append(running, pod)
		}
	}
	return running, nil
}

// isSpared tells whether a pod is never ended to make room, nor for what it takes of the disk. A kubelet spares every static pod. Here that
// is so on a node of a cluster, where others can go; on one without an API server all pods are static, and their priority says which ones
// it cannot do without.
func isSpared(pod *v1.Pod, inCluster bool) bool {
	static := inCluster && podset.IsStaticSource(pod.Annotations[podset.AnnotationSource])
	return admission.IsCritical(pod, static)
}
