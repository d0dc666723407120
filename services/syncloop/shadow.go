package syncloop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/shadow"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

const (
	// exitDiffers is the exit code of a shadow that has found differences, exitUnknown of one that has compared nothing.
	exitDiffers = 3
	exitUnknown = 4
	// machineTimeout bounds the question about a machine that is another one.
	machineTimeout = 10 * time.Second
)

// runShadow follows a node until ctx ends, and prints what this syncloop would do differently from the one that runs.
// It takes no lock and no socket, and writes only to a temporary directory.
func runShadow(ctx context.Context, cfg nodeconfig.Config, logger *slog.Logger, out io.Writer) (err error) {
	cfg.LogUnsupported(logger)
	parts := components.New(logger)
	defer func() { err = errors.Join(err, parts.Close()) }()
	follow, err := shadowOf(ctx, cfg, logger, parts)
	if err != nil {
		return err
	}
	if cfg.Shadow.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Shadow.For)
		defer cancel()
	}
	logger.Info("waiting for the processes of a node", "syncloop", cfg.Peers.SyncLoop)
	follow.Started = func() { logger.Info("comparing; Ctrl-C ends with a summary", "syncloop", cfg.Peers.SyncLoop) }
	return printShadow(ctx, follow, shadow.NewPrinter(out, cfg.Shadow.JSON))
}

// printShadow runs a shadow and prints what it finds. Its error has the exit code.
func printShadow(ctx context.Context, follow shadow.Config, printer *shadow.Printer) error {
	var printing error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	follow.Report = func(d shadow.Difference) {
		if err := printer.Difference(d); err != nil {
			printing = err
			cancel() // nobody reads
		}
	}
	summary, err := shadow.Run(ctx, follow)
	if err := errors.Join(err, printing); err != nil {
		return err
	}
	if err := printer.Summary(summary); err != nil {
		return err
	}
	switch {
	case !summary.Compared:
		return &service.ExitError{Code: exitUnknown}
	case summary.Total() > 0:
		return &service.ExitError{Code: exitDiffers}
	}
	return nil
}

// shadowOf returns the configuration of a shadow that follows the node of cfg.
func shadowOf(
	ctx context.Context, cfg nodeconfig.Config, logger *slog.Logger, parts *components.Group,
) (shadow.Config, error) {
	peers, err := dial(cfg, parts)
	if err != nil {
		return shadow.Config{}, err
	}
	running, err := rpc.DialService(nodeconfig.SyncLoop, cfg.Peers.SyncLoop, cfg.TLS)
	if err != nil {
		return shadow.Config{}, fmt.Errorf("reach %s: %w", nodeconfig.SyncLoop, err)
	}
	parts.OnClose("connection to syncloop", running.Close)
	dir, remove, err := shadow.Scratch()
	if err != nil {
		return shadow.Config{}, err
	}
	parts.OnClose("directory of the shadow", remove)
	machine := machineOf(os.DirFS("/"), logger)
	if peertls.OnNetwork(cfg.Peers.NodeStatus) {
		if machine, err = otherMachine(ctx, peers.nodestatus); err != nil {
			return shadow.Config{}, err
		}
	}
	settings, err := shadowSettings(cfg, quietly(logger, cfg.Verbosity))
	if err != nil {
		return shadow.Config{}, err
	}
	pleg := clients.NewPLEG(lifecyclev1.NewLifecycleServiceClient(peers.pleg), 0)
	engine := enginev1.NewEngineServiceClient(running)
	// A shadow ends when it is refused: nobody but its user can mend that.
	settings.Desired = streamrpc.UntilRefused(clients.ConfigMux(configv1.NewConfigServiceClient(peers.configmux)),
		streamrpc.Refusal(nodeconfig.ConfigMux, "pod updates"))
	settings.Events = streamrpc.UntilRefused(pleg.Events(), streamrpc.Refusal(nodeconfig.PLEG, "lifecycle events"))
	settings.Health = pleg.Health
	settings.Pods = streamrpc.UntilRefused(clients.Pods(engine), streamrpc.Refusal(nodeconfig.SyncLoop, "pods"))
	settings.PodEvents = streamrpc.UntilRefused(clients.PodEvents(engine),
		streamrpc.Refusal(nodeconfig.SyncLoop, "events"))
	settings.Node = streamrpc.UntilRefused(nodewatch.Source(nodev1.NewNodeServiceClient(peers.nodestatus)),
		streamrpc.Refusal(nodeconfig.NodeStatus, "the Node"))
	settings.MaxPods, settings.PodsPerCore = int64(cfg.Kubelet.MaxPods), int64(cfg.Kubelet.PodsPerCore)
	settings.Dir, settings.Machine, settings.Clock = dir, machine, clock.RealClock{}
	return settings, nil
}

// shadowSettings returns what the configuration decides.
func shadowSettings(cfg nodeconfig.Config, logger *slog.Logger) (shadow.Config, error) {
	kubelet := &cfg.Kubelet
	features, err := nodefeatures.Of(kubelet, buildinfo.Kubernetes())
	if err != nil {
		return shadow.Config{}, err
	}
	settings := shadow.Config{
		NodeName: cfg.NodeName, Features: features, UnsafeSysctls: kubelet.AllowedUnsafeSysctls,
		Privileges: privilege.Allowed(cfg.HostPrivileges), Resync: kubelet.SyncFrequency.Duration,
		Resizing: resize.Node{
			CPUManager: kubelet.CPUManagerPolicy, MemoryManager: kubelet.MemoryManagerPolicy,
			PodLevel: nodeconfig.ResizesPodLevel(kubelet),
		},
		Wait: cfg.Shadow.Wait, Logger: logger,
	}
	if longest := kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; longest != nil {
		settings.BackoffMax = longest.Duration
	}
	return settings, nil
}

// otherMachine returns the features of the machine of a node that is not this one. Whether it has AppArmor is not
// known; a pod that needs it is admitted.
func otherMachine(ctx context.Context, nodestatus grpc.ClientConnInterface) (admission.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, machineTimeout)
	defer cancel()
	answer, err := nodev1.NewNodeServiceClient(nodestatus).GetNode(ctx, &nodev1.GetNodeRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return admission.Machine{}, fmt.Errorf("ask nodestatus for the Node: %w", err)
	}
	node, err := nodewatch.Decode(answer.GetNode())
	if err != nil {
		return admission.Machine{}, err
	}
	kernel, err := version.ParseGeneric(node.Status.NodeInfo.KernelVersion)
	if err != nil {
		return admission.Machine{}, fmt.Errorf("read the version of the node's kernel: %w", err)
	}
	return admission.Machine{AppArmor: true, Kernel: kernel}, nil
}

// quietly returns a logger that logs only warnings, unless the verbosity is that of debugging: the loop of a shadow
// logs what it would do, which must not look as if it was done.
func quietly(logger *slog.Logger, verbosity int) *slog.Logger {
	if verbosity > 0 {
		return logger.With("shadow", true)
	}
	return slog.New(onlyWarnings{logger.Handler()}).With("shadow", true)
}

// onlyWarnings is a handler of warnings and errors.
type onlyWarnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (w onlyWarnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (w onlyWarnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return onlyWarnings{w.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (w onlyWarnings) WithGroup(name string) slog.Handler {
	return onlyWarnings{w.Handler.WithGroup(name)}
}
