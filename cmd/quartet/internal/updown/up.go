// Package updown implements `quartet up` and `quartet down`: they start a whole node on this machine with its own
// container runtime, and stop it. Package bundle runs the runtime and package nodecmd the services.
package updown

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// defaultReadOnlyPort is the kubelet's read-only port.
	defaultReadOnlyPort = 10255
	// defaultHealthzPort is the kubelet's healthz port.
	defaultHealthzPort = 10248
	healthzPortFlag    = "healthz-port"
	// readOnlyAddress keeps the read-only API, which has no authentication, on this machine.
	readOnlyAddress = "127.0.0.1"
)

type upOptions struct {
	stateDir, manifests, kubeconfig string
	bootstrapKubeconfig             string
	config, podCIDR                 string
	readOnlyPort, healthzPort       int32
	// healthzPortGiven is true if --healthz-port is set.
	healthzPortGiven    bool
	detach              bool
	node                nodecmd.NodeFlags
	log                 nodecmd.LogFlags
	programs            nodecmd.ProgramFlags
	configmux           nodecmd.ConfigmuxFlags
	network             nodecmd.NetworkFlags
	hostPrivileges      nodeconfig.PrivilegeFlags
	credentialProviders nodeconfig.CredentialProviderFlags
	// systemd is notified when the node is ready. It is not a flag.
	systemd systemd.Notifier
	// sockets are the inherited sockets. It is not a flag.
	sockets *sockets.Set
}

// UpCommand is `quartet up`.
func UpCommand() *cobra.Command {
	var opts upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a node with its own container runtime",
		Long: `Start containerd, runc and the CNI plugins that the build made, and the four services on them. Everything is kept in
the state directory; a runtime that this machine already has is not touched.

Ctrl-C and SIGTERM stop the four services; containerd and the pods continue to run, and the next start takes them over.
"quartet down" stops everything.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.healthzPortGiven = cmd.Flags().Changed(healthzPortFlag)
			opts.systemd = systemd.Take() // before containerd is started, which would inherit it
			opts.sockets = sockets.Take(opts.systemd)
			return up(cmd.Context(), opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().AddFlagSet(opts.flagSet())
	return cmd
}

// flagSet returns the flags.
func (o *upOptions) flagSet() *pflag.FlagSet {
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.BoolVar(&o.detach, "detach", false, "return when the node is healthy, and leave it running in the background")
	target.AddFlag(flags, &o.stateDir)
	flags.StringVar(
		&o.manifests,
		"manifests",
		"",
		"`directory` to read pods from; manifests in the state directory when empty",
	)
	flags.StringVar(
		&o.kubeconfig,
		"kubeconfig",
		"",
		"`file` that says how to reach an API server; without it the node is standalone",
	)
	flags.StringVar(
		&o.bootstrapKubeconfig,
		"bootstrap-kubeconfig",
		"",
		"`file` to reach the API server with until the node has a certificate of its own; --kubeconfig is written then",
	)
	flags.StringVar(
		&o.config,
		"config",
		"",
		"`file` with a KubeletConfiguration; fields that the node's own runtime and --read-only-port need are overridden",
	)
	flags.Int32Var(
		&o.readOnlyPort,
		"read-only-port",
		defaultReadOnlyPort,
		"`port` of /pods and /healthz on 127.0.0.1; another node on this machine needs another",
	)
	flags.Int32Var(
		&o.healthzPort,
		healthzPortFlag,
		defaultHealthzPort,
		"`port` of the health of the node on 127.0.0.1, instead of the healthzPort of --config; 0 is none, and another node on this machine needs another",
	)
	flags.StringVar(
		&o.podCIDR,
		"pod-cidr",
		"",
		"`network` that pods get their IPv4 addresses from, instead of podCIDR of the file; a free private one is chosen when both are empty",
	)
	o.node.Add(flags)
	o.hostPrivileges.Add(flags)
	o.credentialProviders.Add(flags)
	o.configmux.Add(flags)
	o.network.Add(flags)
	o.log.Add(flags)
	o.programs.Add(flags)
	return flags
}

// node is the state that the steps of a start share.
type node struct {
	opts     upOptions
	layout   layout.Layout
	binDir   string
	progress progress
	bundle   *bundle.Bundle
}

func up(ctx context.Context, opts upOptions, out, errOut io.Writer) error {
	if err := opts.hostPrivileges.Check(); err != nil {
		return err
	}
	l, err := layout.New(opts.stateDir)
	if err != nil {
		return err
	}
	if opts.manifests != "" && opts.configmux.IsGiven() && opts.manifests != l.Manifests() {
		return errors.New("--manifests: the pods come from the configmux of --configmux-address: leave one of the two out")
	}
	if opts.manifests == "" {
		opts.manifests = l.Manifests()
	}
	if opts.manifests, err = filepath.Abs(opts.manifests); err != nil {
		return fmt.Errorf("making --manifests absolute: %w", err)
	}
	if err := errors.Join(
		opts.credentialProviders.Absolute(), opts.programs.Absolute(), opts.network.Absolute(),
	); err != nil {
		return err
	}
	if _, err := opts.credentialProviders.Read(); err != nil {
		return err
	}
	for flag, file := range map[string]*string{
		"--kubeconfig": &opts.kubeconfig, "--bootstrap-kubeconfig": &opts.bootstrapKubeconfig, "--config": &opts.config,
	} {
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return fmt.Errorf("making %s absolute: %w", flag, err)
		}
	}
	network, err := bundle.PodNetwork(opts.podCIDR, opts.config)
	if err != nil {
		return err
	}
	binDir, err := nodecmd.BinDir()
	if err != nil {
		return err
	}
	if !opts.detach {
		steps, log := logqueue.New(out), logqueue.New(errOut)
		defer steps.Close()
		defer log.Close()
		out, errOut = steps, log
	}
	p := progress{out: out}
	n := &node{
		opts: opts, layout: l, binDir: binDir, progress: p,
		bundle: bundle.New(bundle.Config{
			Layout: l, BinDir: binDir, PodNetwork: network, Logger: slog.New(slog.NewTextHandler(errOut, nil)), Note: p.note,
		}),
	}
	if opts.detach {
		return n.detached(ctx)
	}
	return n.foreground(ctx, errOut)
}

// prepare prepares everything that the four services need. It holds the node's lock, so that it never changes a running
// node.
func (n *node) prepare(ctx context.Context) (err error) {
	if err := n.progress.step("machine", n.checkMachine); err != nil {
		return err
	}
	lock, err := statedir.Lock(n.layout.StateDir(), nodecmd.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	steps := []struct {
		name string
		do   func() (string, error)
	}{
		{"read-only port", func() (string, error) {
			return checkPort(n.opts.readOnlyPort)
		}},
		{"configuration", func() (string, error) {
			if err := writeConfig(n.layout, n.opts.config, n.opts.ownFields()); err != nil {
				return "", err
			}
			return n.layout.ConfigFile(), n.nodeOptions().Check()
		}},
		{"runtime's files", func() (string, error) {
			return n.layout.Runtime(), n.bundle.Prepare()
		}},
		{"containerd", func() (string, error) {
			if pid := n.bundle.PID(); pid != 0 {
				return fmt.Sprintf("already runs, pid %d", pid), n.bundle.Start(ctx)
			}
			err := n.bundle.Start(ctx)
			return fmt.Sprintf("pid %d, %s", n.bundle.PID(), n.layout.RuntimeSocket()), err
		}},
		{"images", func() (string, error) {
			return bundle.PauseImage + ", " + bundle.HelloImage, n.bundle.ImportImages(ctx)
		}},
	}
	for _, s := range steps {
		if err := n.progress.step(s.name, s.do); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) checkMachine() (string, error) {
	findings := bundle.Preflight(n.binDir)
	if err := findings.Err(); err != nil {
		return "", err
	}
	var have []string
	for _, f := range findings {
		if f.Level == machine.Warning {
			n.progress.note(fmt.Sprintf("%s: %s; %s", f.Check, f.Detail, f.Fix))
			continue
		}
		have = append(have, f.Check+": "+f.Detail)
	}
	return strings.Join(have, "; "), nil
}

// ownFields returns the fields that flags set.
func (o upOptions) ownFields() ownFields {
	own := ownFields{manifests: o.manifests, readOnlyPort: o.readOnlyPort}
	if o.healthzPortGiven {
		own.healthzPort = &o.healthzPort
	}
	return own
}

// checkPort fails if the read-only API could not listen, so that the error is reported here and not repeatedly in a
// log.
func checkPort(port int32) (string, error) {
	if port == 0 {
		return "off", nil
	}
	address := net.JoinHostPort(readOnlyAddress, strconv.Itoa(int(port)))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return "", fmt.Errorf(
			"%w: stop who listens there ('ss -ltnp sport = :%d' names it), or choose another --read-only-port; 0 is none",
			err,
			port,
		)
	}
	return address, listener.Close()
}

// foreground runs the node in this process until the context ends.
func (n *node) foreground(ctx context.Context, errOut io.Writer) error {
	err := n.prepare(ctx)
	var held *statedir.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf(
			"the node of %s already runs, pid %d: 'quartet get node%s' shows it, 'quartet down%s' stops it; another node on this machine needs another --state-dir, --read-only-port and --healthz-port",
			n.layout.StateDir(),
			held.Holder.PID,
			stateDirFlag(n.layout),
			stateDirFlag(n.layout),
		)
	}
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := nodecmd.Run(ctx, n.nodeOptions(), errOut, runtimeService{n.bundle})
		if err == nil && ctx.Err() == nil {
			err = errors.New("the services have ended")
		}
		return err
	})
	group.Go(func() error {
		if err := n.waitHealthy(ctx); err != nil {
			return ignoreEnd(ctx, err)
		}
		n.farewell("Ctrl-C stops the four services and no pod; quartet down" + stateDirFlag(n.layout) + " stops everything")
		return nil
	})
	return ignoreEnd(ctx, group.Wait())
}

// ignoreEnd drops the error of a context that has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (n *node) nodeOptions() nodecmd.Options {
	return nodecmd.Options{
		ConfigFile:          n.layout.ConfigFile(),
		Kubeconfig:          n.opts.kubeconfig,
		BootstrapKubeconfig: n.opts.bootstrapKubeconfig,
		NodeFlags:           n.opts.node,
		HostPrivileges:      n.opts.hostPrivileges,
		CredentialProviders: n.opts.credentialProviders,
		StateDir:            n.layout.StateDir(),
		Configmux:           n.opts.configmux,
		Network:             n.opts.network,
		Log:                 n.opts.log,
		Programs:            n.opts.programs,
		StuckTimeout:        watchdog.DefaultPatience,
		Systemd:             n.opts.systemd,
		Sockets:             n.opts.sockets,
	}
}

func (n *node) farewell(end string) {
	source := cmp.Or(n.opts.configmux.Address, n.opts.manifests)
	n.progress.printf("\nThe node is ready. Pods come from %s\n%s.\n", source, end)
}

// runtimeService keeps containerd running beside the four services. containerd outlives it because the pods need it.
type runtimeService struct {
	bundle *bundle.Bundle
}

func (runtimeService) String() string { return "containerd" }

// Serve starts containerd unless it runs, and returns when it has ended or the context has.
func (s runtimeService) Serve(ctx context.Context) error {
	if err := s.bundle.Start(ctx); err != nil {
		return err
	}
	if err := s.bundle.Wait(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

// stateDirFlag returns the flag that selects this node in a command.
func stateDirFlag(l layout.Layout) string {
	if l.IsDefault() {
		return ""
	}
	return " --state-dir " + l.StateDir()
}

// logFile returns the log of the four services in the background.
func (n *node) logFile() string { return n.layout.NodeLog() }
