package syncloop

import (
	"context"
	"path/filepath"

	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/loglinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
)

// watchLogs adds the components that maintain the links to containers' logs and rotate the logs.
func watchLogs(ctx context.Context, h *host, store *podstore.Store, parts *components.Group) error {
	kubelet := &h.cfg.Kubelet
	logrotate.Expose(h.registry, func() []logrotate.Used { return logUsageOf(store) })
	parts.Run("log links", loglinks.New(loglinks.Config{
		PodLogsDir: kubelet.PodLogsDir, Containers: func() ([]loglinks.Container, bool) { return linkedOf(store) },
		Clock: clock.RealClock{}, Logger: h.logger,
	}).Run)
	counts := logrotate.NewMetrics(h.registry)
	size, err := nodeconfig.ContainerLogMaxBytes(kubelet)
	if err != nil || size < 0 { // a negative size turns rotation off
		return err
	}
	runtime := h.runtimeNow(ctx)
	parts.Run("log rotation", logrotate.New(logrotate.Config{
		Containers: func() []logrotate.Container { return loggedOf(store) },
		Reopen: func(ctx context.Context, id string) error {
			service, err := runtime()
			if err != nil {
				return err
			}
			return service.ReopenContainerLog(cri.Quiet(ctx), id)
		},
		Policy:  logrotate.Policy{MaxSize: size, MaxFiles: int(*kubelet.ContainerLogMaxFiles)},
		Workers: int(*kubelet.ContainerLogMaxWorkers), Interval: kubelet.ContainerLogMonitorInterval.Duration,
		Clock: clock.RealClock{}, Logger: h.logger, Metrics: counts,
	}).Run)
	return nil
}

// logUsageOf returns the disk usage of the logs of each running container, including those of its predecessors.
func logUsageOf(store *podstore.Store) []logrotate.Used {
	pods, _ := store.AllObserved()
	var all []logrotate.Used
	for _, pod := range pods {
		for _, c := range pod.GetContainers() {
			if c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING || c.GetLogPath() == "" {
				continue
			}
			bytes, err := logrotate.Usage(filepath.Dir(c.GetLogPath()))
			if err != nil {
				continue // no value rather than a wrong one; the rotation logs what is wrong with the disk
			}
			all = append(all, logrotate.Used{
				UID: pod.GetUid(), Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: c.GetName(), Bytes: bytes,
			})
		}
	}
	return all
}

// loggedOf returns the containers whose logs may grow.
func loggedOf(store *podstore.Store) []logrotate.Container {
	pods, _ := store.AllObserved()
	var all []logrotate.Container
	for _, pod := range pods {
		for _, c := range pod.GetContainers() {
			all = append(all, logrotate.Container{
				ID: c.GetId(), Pod: pod.GetNamespace() + "/" + pod.GetName(), Name: c.GetName(), LogPath: c.GetLogPath(),
				Running: c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
			})
		}
	}
	return all
}

// linkedOf returns the containers whose logs get a link. The result is false while they are not known.
func linkedOf(store *podstore.Store) ([]loglinks.Container, bool) {
	pods, known := store.AllObserved()
	all := make([]loglinks.Container, 0, len(pods))
	for _, pod := range pods {
		for _, c := range pod.GetContainers() {
			all = append(all, loglinks.Container{
				Namespace: pod.GetNamespace(), Pod: pod.GetName(), Name: c.GetName(), ID: c.GetId(), LogPath: c.GetLogPath(),
			})
		}
	}
	return all, known
}
