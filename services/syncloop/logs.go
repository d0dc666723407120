package main

import (
	"context"
	"log/slog"
	"path/filepath"

	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/loglinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
)

// containerLogs is what is done about the logs of containers while they are there.
type containerLogs struct {
	links *loglinks.Keeper
	// rotator is nil when no log is put aside.
	rotator *logrotate.Rotator
}

// containerLogsOf makes it. What the runtime has is what the store was told.
func containerLogsOf(ctx context.Context, cfg nodeconfig.Config, store *podstore.Store, runtime *cri.Client, counts *logrotate.Metrics, logger *slog.Logger) (containerLogs, error) {
	realClock := clock.RealClock{}
	logs := containerLogs{links: loglinks.New(loglinks.Config{
		PodLogsDir: cfg.Kubelet.PodLogsDir, Containers: func() ([]loglinks.Container, bool) { return linkedOf(store) }, Clock: realClock, Logger: logger,
	})}
	size, err := nodeconfig.ContainerLogMaxBytes(&cfg.Kubelet)
	if err != nil || size < 0 {
		return logs, err
	}
	logs.rotator = logrotate.New(logrotate.Config{
		Containers: func() []logrotate.Container { return loggedOf(store) },
		Reopen: func(asking context.Context, id string) error {
			service, err := runtime.Runtime(atOnce(ctx))
			if err != nil {
				return err
			}
			return service.ReopenContainerLog(cri.Quiet(asking), id)
		},
		Policy:  logrotate.Policy{MaxSize: size, MaxFiles: int(*cfg.Kubelet.ContainerLogMaxFiles)},
		Workers: int(*cfg.Kubelet.ContainerLogMaxWorkers), Interval: cfg.Kubelet.ContainerLogMonitorInterval.Duration,
		Clock: realClock, Logger: logger, Metrics: counts,
	})
	return logs, nil
}

// logUsageOf says what the logs of each container that runs take, and of those of its name that ran before.
func logUsageOf(store *podstore.Store) []logrotate.Used {
	pods, _ := store.AllObserved()
	var all []logrotate.Used
	for _, pod := range pods {
		for _, c := range pod.GetContainers() {
			if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING && c.GetLogPath() != "" {
				all = append(all, logrotate.Used{
					UID: pod.GetUid(), Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: c.GetName(),
					Bytes: logrotate.Usage(filepath.Dir(c.GetLogPath())),
				})
			}
		}
	}
	return all
}

// loggedOf lists the containers whose logs may grow.
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

// linkedOf lists the containers whose logs are linked to. With false they are not known yet.
func linkedOf(store *podstore.Store) ([]loglinks.Container, bool) {
	pods, known := store.AllObserved()
	var all []loglinks.Container
	for _, pod := range pods {
		for _, c := range pod.GetContainers() {
			all = append(all, loglinks.Container{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Name: c.GetName(), ID: c.GetId(), LogPath: c.GetLogPath()})
		}
	}
	return all, known
}
