package nodestatus

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/nodestatus/internal/clockskew"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeat"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
	"github.com/quartet-node/quartet/services/nodestatus/internal/lease"
	"github.com/quartet-node/quartet/services/nodestatus/internal/registration"
	"github.com/quartet-node/quartet/services/nodestatus/internal/report"
	"github.com/quartet-node/quartet/services/nodestatus/internal/startup"
)

// heartbeatClient returns the configuration of the client for heartbeats: without a rate limit, and with a timeout
// below the interval of heartbeats.
func heartbeatClient(cfg nodeconfig.Config) apiclient.Config {
	client := apiclient.ConfigOf(nodeconfig.NodeStatus, cfg)
	client.QPS, client.Timeout = -1, heartbeatTimeout(cfg)
	return client
}

func leaseDuration(cfg nodeconfig.Config) time.Duration {
	return time.Duration(cfg.Kubelet.NodeLeaseDurationSeconds) * time.Second
}

// heartbeatTimeout returns the shorter of the renewal interval of the lease and the interval of the status.
func heartbeatTimeout(cfg nodeconfig.Config) time.Duration {
	return min(lease.RenewInterval(leaseDuration(cfg)), cfg.Kubelet.NodeStatusUpdateFrequency.Duration)
}

// hasDeviceCheckpoint reports whether the kubelet's checkpoint of devices may exist. Like a kubelet, nodestatus takes a
// machine without it for one that was set up anew, but only at its first start in the state directory. If nodestatus is
// not root it may not look, and that start is enough.
func hasDeviceCheckpoint(root string) bool {
	_, err := os.Lstat(filepath.Join(root, "device-plugins", "kubelet_internal_checkpoint"))
	return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission)
}

// loops returns the loops that are checked. Without an API server there is only the heart.
func (p *published) loops(heart *heartbeat.Heart) []watchdog.Loop {
	loops := []watchdog.Loop{{Name: "heartbeat", Check: heart.Stands}}
	if p.lease == nil {
		return loops
	}
	return append(loops,
		watchdog.Loop{Name: "lease", Check: p.lease.Stands}, watchdog.Loop{Name: "report", Check: p.reporter.Stands})
}

// join runs the components that keep the Node, its status and its lease in the API server.
func join(
	ctx context.Context,
	group *errgroup.Group,
	cfg nodeconfig.Config,
	to clients,
	node *published,
	reported *inventory.Inventory,
	recreated bool,
	health *rpc.Health,
	registry prometheus.Registerer,
) {
	real := clock.RealClock{}
	closed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "quartet_nodestatus_connections_closed_total",
		Help: "Times that the connections to the API server were closed because consecutive heartbeats failed.",
	})
	registry.MustRegister(closed)
	broken := func() {
		closed.Inc()
		// The other client reaches the API server over the same network.
		to.heartbeat.CloseConnections()
		to.cluster.CloseConnections()
	}
	to.heartbeat.OnAnswer(clockskew.New(registry, health, node.logger).Seen)
	started := startup.New(registry, boottime.Now)
	node.storage = newStorage(cfg, to, reported, health, node.logger, node.tracer)
	node.reporter = report.New(report.Config{
		Client: to.heartbeat.Core, Name: cfg.NodeName, Timeout: heartbeatTimeout(cfg), Broken: broken, Ready: started.Ready,
		Period: cfg.Kubelet.NodeStatusUpdateFrequency.Duration, Frequency: cfg.Kubelet.NodeStatusReportFrequency.Duration,
		ExternalCloud: cfg.ExternalCloud, VolumesInUse: node.storage.reported.VolumesInUse,
		Delayed: node.storage.drivers.Trouble,
		Health:  health, Clock: real, Logger: node.logger, Metrics: report.NewMetrics(registry), Tracer: node.tracer,
	})
	node.lease = lease.New(lease.Config{
		Client: to.heartbeat.Coordination, Name: cfg.NodeName, Duration: leaseDuration(cfg), Broken: broken,
		Taken: func() {
			node.events.NodeWarning(
				ctx,
				"NodeNameInUse",
				"Another agent renews the lease of node "+cfg.NodeName+": two machines have one node name, or two agents run on this one",
			)
		},
		Health: health, Clock: real, Logger: node.logger, Metrics: lease.NewMetrics(registry), Tracer: node.tracer,
	})
	node.registrar = registration.New(registration.Config{
		Client: to.cluster.Core, Name: cfg.NodeName, Register: *cfg.Kubelet.RegisterNode, Kubeconfig: cfg.Kubeconfig,
		Changed: node.registered, Seen: node.reporter.Seen, Attempted: started.Attempted, Created: started.Created,
		Delayed: node.storage.drivers.Trouble, Recreated: recreated,
		Health: health, Clock: real, Logger: node.logger, Tracer: node.tracer,
	})
	node.storage.run(ctx, group, node.reporter.Changed)
	for _, run := range []func(context.Context){node.registrar.Run, node.reporter.Run, node.lease.Run} {
		group.Go(func() error {
			run(ctx)
			return nil
		})
	}
}
