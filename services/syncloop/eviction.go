package syncloop

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// evictorConfig has the dependencies of newEvictor besides the host.
type evictorConfig struct {
	usage     *stats.Stats
	store     *podstore.Store
	manager   *executor.Manager
	garbage   *containergc.Queue
	book      *evictionbook.Book
	evictions *engineapi.Evictions
	events    *podevents.Recorder
}

// newEvictor returns the evictor, which relieves pressure on the node and enforces the disk limits of pods. It also
// adds the collectors of unused containers and images, which the evictor calls.
func newEvictor(h *host, c evictorConfig, parts *components.Group) *eviction.Evictor {
	containers := newContainerCollector(h, c.garbage, c.manager, c.store, c.book, c.events, parts)
	images := newImageCollector(h, c.manager, c.events, parts)
	inCluster := h.cfg.Kubeconfig != ""
	evictor := eviction.New(eviction.Config{
		Stats: c.usage, Limits: *h.cfg.Kubelet.LocalStorageCapacityIsolation,
		Pods:   func() ([]*v1.Pod, error) { return evictable(c.store) },
		Spared: func(pod *v1.Pod) bool { return isSpared(pod, inCluster) },
		Evict:  c.evictions.EvictAnnotated, Gone: c.store.IsGone,
		RemoveContainers: containers.Reclaim, RemoveEvicted: containers.Look, RemoveImages: images.RemoveUnused,
		Events: c.events, MaxGrace: int64(h.cfg.Kubelet.EvictionMaxPodGracePeriod),
		Clock: clock.RealClock{}, BootTime: boottime.Now, Logger: h.logger, Metrics: eviction.NewMetrics(h.registry),
	})
	parts.Run("eviction", evictor.Run)
	return evictor
}

// evictable returns the running pods that have neither completed nor failed.
func evictable(store *podstore.Store) ([]*v1.Pod, error) {
	pods, err := store.Pods()
	if err != nil {
		return nil, err
	}
	var running []*v1.Pod
	for _, pod := range pods {
		finished := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
		if !finished && store.AnyAlive(pod.UID) {
			running = append(running, pod)
		}
	}
	return running, nil
}

// isSpared reports whether a pod is never evicted. A kubelet spares every static pod. Here that applies only to a node
// of a cluster, where other pods can be evicted. Without an API server all pods are static, and their priority decides.
func isSpared(pod *v1.Pod, inCluster bool) bool {
	static := inCluster && podset.IsStaticSource(pod.Annotations[podset.AnnotationSource])
	return admission.IsCritical(pod, static)
}
