package main

import (
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/imagegc"
	enginemetrics "github.com/quartet-node/quartet/services/syncloop/internal/metrics"
	"github.com/quartet-node/quartet/services/syncloop/internal/podruntime"
)

// collectorOf makes what removes images that nobody uses.
func collectorOf(cfg nodeconfig.Config, tel *telemetry.Telemetry, runtime *cri.Client, manager *podruntime.Manager, counts *enginemetrics.Metrics) *imagegc.Collector {
	return imagegc.New(imagegc.Config{
		Runtime: runtime.Runtime, Images: runtime.Images, Usage: imagegc.DiskUsage, Uses: manager.Images(),
		Policy: imagegc.Policy{
			HighPercent: int(*cfg.Kubelet.ImageGCHighThresholdPercent), LowPercent: int(*cfg.Kubelet.ImageGCLowThresholdPercent),
			MinAge: cfg.Kubelet.ImageMinimumGCAge.Duration, MaxAge: cfg.Kubelet.ImageMaximumGCAge.Duration,
		},
		Clock: clock.RealClock{}, Tracer: tel.Tracer, Calls: cri.NewCaller(tel.Tracer, cfg.Kubelet.ImageServiceEndpoint), Logger: tel.Logger, Metrics: counts,
	})
}
