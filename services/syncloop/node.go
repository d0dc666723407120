package syncloop

import (
	"context"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodeip"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/damagedfiles"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/iptableschains"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/runtimewatch"
)

// watchMachine adds the components that watch the runtime, the node's addresses, the kernel's log and iptables.
func watchMachine(
	h *host, store *podstore.Store, addresses *hostips.Addresses, events *podevents.Recorder, parts *components.Group,
) {
	losing := runtimewatch.NewMetrics(h.registry)
	parts.Run("runtime connection", func(ctx context.Context) error {
		return runtimewatch.Run(ctx, runtimewatch.Config{
			Endpoint: h.cfg.Kubelet.ContainerRuntimeEndpoint, Runtime: h.runtime.Runtime, Images: h.runtime.Images,
			Named: store.SetRuntimeName, CgroupDriver: h.cfg.Kubelet.CgroupDriver,
			Metrics: losing, Waiting: h.health.Set, Clock: clock.RealClock{},
		})
	})
	parts.Run("node addresses", func(ctx context.Context) error { return addresses.Run(ctx, clock.RealClock{}) })
	killed := oom.NewMetrics(h.registry)
	parts.Run("OOM kills", later(clock.RealClock{}, func(ctx context.Context) error {
		oom.Run(ctx, oom.Config{
			Open: func() (oom.Log, error) { return oom.OpenLog(oom.Device) },
			File: filepath.Join(h.cfg.StateDir, "oom-told.json"), Boot: h.boot, Now: sinceBoot,
			Events: events, Logger: h.logger, Metrics: killed,
		})
		return nil // the process goes on without the kernel's log
	}))
	if *h.cfg.Kubelet.MakeIPTablesUtilChains {
		parts.Run("iptables chains", iptableschains.New(iptableschains.Exec, clock.RealClock{}, h.logger).Run)
	}
}

// watchFiles reports damaged files.
func watchFiles(h *host, events *podevents.Recorder, parts *components.Group) *damagedfiles.Reporter {
	reporter := damagedfiles.New(damagedfiles.Config{
		StateDir: h.cfg.StateDir, RootDir: h.cfg.RootDir, Events: events, Clock: clock.RealClock{}, Logger: h.logger,
		Registry: h.registry,
	})
	parts.Run("damaged files", reporter.Run)
	return reporter
}

// healthOf returns the health of the sync loop, with the damaged files among the reasons, and with the errors of what
// could not be read.
func healthOf(syncLoop *loop.Loop, damaged *damagedfiles.Reporter, unread ...func() error) func() loop.Health {
	return func() loop.Health {
		health := syncLoop.Health()
		health.Reasons = append(health.Reasons, damaged.Reasons()...)
		for _, why := range unread {
			if err := why(); err != nil {
				health.Reasons = append(health.Reasons, err.Error())
			}
		}
		return health
	}
}

// sinceBoot returns the time since boot without the time in suspend, or 0 if it cannot be read.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// fallbackAddresses returns the node's addresses for the time before nodestatus reports them: the configured ones,
// otherwise a detected one. It returns nil if there is neither, as on a machine without a network.
func fallbackAddresses(ctx context.Context, cfg nodeconfig.Config) []string {
	ips := nodeip.Given(cfg.NodeIP)
	if len(ips) == 0 {
		if ip := nodeip.New(nodeip.Config{Name: cfg.NodeName, NodeIP: cfg.NodeIP}).Find(ctx); ip != nil {
			ips = []net.IP{ip}
		}
	}
	var texts []string
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	return texts
}
