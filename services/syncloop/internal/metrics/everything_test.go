package metrics_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
)

// everything makes a sample of every metric.
func everything() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	m.Worked(metrics.OperationCreate, time.Second)
	m.Retried(metrics.FailedAway)
	m.Restarted(true)
	m.Refused("OutOfcpu")
	m.EvictedFor("memory.available")
	m.EvictionStatsAge("memory.available", time.Second)
	m.Preempted("cpu")
	m.SandboxCalled("", time.Second, http.ErrServerClosed)
	m.ContainerBegun(metrics.Container)
	m.ContainerFailed(metrics.InitContainer, "ErrImagePull")
	m.StatusChanged(&v1.PodStatus{}, &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
		Name: "web", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}},
	}}})
	m.Pulled(1, time.Second)
	m.VolumeOperation("kubernetes.io/empty-dir", metrics.VolumeMount, time.Second, nil)
	m.StatusHeld(time.Second)
	m.StatusRequested(metrics.StatusPatch, "ok")
	metrics.CollectStatuses(registry, func() int { return 1 }, func() int { return 1 })
	metrics.CollectVolumes(registry, func() []metrics.VolumeCount {
		return []metrics.VolumeCount{{Plugin: "kubernetes.io/empty-dir", State: metrics.VolumesActual, Volumes: 1}}
	})
	metrics.CollectCertificates(registry, func() []metrics.CertificateCount {
		return []metrics.CertificateCount{{Signer: "shop.example/signer", State: "fresh", Certificates: 1}}
	})
	m.CredentialPluginRan("ecr", time.Second, true)
	metrics.CollectCredentialConfig(registry, "sha256:00")
	m.ImageCollected(metrics.CollectedForSpace)
	m.ImageCollectionFailed("ImageGCFailed")
	metrics.CollectServingCertificate(registry, func() time.Time { return time.Time{} }, func() int64 { return 0 })
	m.WebSocket("exec")
	m.HTTP(metrics.ReadWrite, "pods", false, http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	oom.Run(context.Background(), oom.Config{ // which has a metric of its own
		Open: func() (oom.Log, error) { return nil, http.ErrServerClosed }, Registerer: registry, Logger: slog.New(slog.DiscardHandler),
	})
	metrics.CollectLogs(registry, func() []metrics.LogUsage { return []metrics.LogUsage{{Container: "web", Bytes: 1}} })
	metrics.Collect(registry, metrics.Sources{
		Pods: func() metrics.Census {
			return metrics.Census{Waiting: []metrics.WaitingContainer{{Reason: "ErrImagePull"}}}
		},
		Workers:  func() metrics.Workers { return metrics.Workers{States: map[string]int{"syncing": 1}} },
		LastTurn: func() time.Time { return time.Unix(1, 0) },
	})
	return registry
}

func family(t *testing.T, g prometheus.Gatherer, name string) *dto.MetricFamily {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}
