// Package nodecmd implements `quartet node`: the four services as child processes of one command, which replaces the
// kubelet on a node. It selects the processes and their flags; package supervisor keeps them running.
package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// Name is the name of this command's lock and PID file.
	Name = "quartet"

	// dirMode lets only root read the state.
	dirMode = 0o700
	// configMode is the mode of a configuration from this command, because headers of staticPodURLHeader may contain
	// passwords.
	configMode = 0o600
)

// Options holds the flags.
type Options struct {
	// ConfigFile is a KubeletConfiguration; empty for the defaults.
	ConfigFile string
	// CloudProvider is passed to nodestatus. It is not a flag.
	CloudProvider string
	// Config is written to ConfigFile in the state directory when no other command runs the node; nil for an existing
	// file. It is not a flag.
	Config []byte
	// CertDir is passed to nodestatus and syncloop if it is set. It is not a flag.
	CertDir string
	// Kubeconfig is passed to the services that talk to the API server; empty for a node without one.
	Kubeconfig string
	// BootstrapKubeconfig is passed to nodestatus, which then writes Kubeconfig while the others wait for it; empty for a
	// node that does not join its cluster by itself.
	BootstrapKubeconfig string
	// These are passed to the services if they are set.
	RuntimeEndpoint, RootDir string
	NodeFlags
	// HostPrivileges is passed to configmux and syncloop.
	HostPrivileges nodeconfig.PrivilegeFlags
	// AllowUnauthenticatedAPI is passed to syncloop.
	AllowUnauthenticatedAPI bool
	// CredentialProviders is passed to syncloop.
	CredentialProviders nodeconfig.CredentialProviderFlags
	// StateDir is the directory of the node's state.
	StateDir string
	// StuckTimeout is how long a service may stand still before it is ended; 0 for ever.
	StuckTimeout time.Duration
	// Network is passed to the services.
	Network NetworkFlags
	// Configmux is for a configmux that is not started here.
	Configmux ConfigmuxFlags
	// Log is passed to the services.
	Log LogFlags
	// Programs replace services.
	Programs ProgramFlags
	// Systemd is notified when all four services are ready, and when they stop. It is not a flag.
	Systemd systemd.Notifier
	// Sockets holds the listening sockets of the services, at first the inherited ones. It is not a flag.
	Sockets *sockets.Set
}

func (o *Options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(
		&o.ConfigFile,
		"config",
		"",
		"`file` with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1); without it every field has its default",
	)
	flags.StringVar(
		&o.Kubeconfig,
		"kubeconfig",
		"",
		"`file` that says how to reach an API server, for all but pleg; without it the node is standalone",
	)
	flags.StringVar(
		&o.BootstrapKubeconfig,
		"bootstrap-kubeconfig",
		"",
		"`file` to reach the API server with until the node has a certificate of its own; --kubeconfig is written then",
	)
	flags.StringVar(
		&o.RuntimeEndpoint,
		"container-runtime-endpoint",
		"",
		"`address` of the container runtime, instead of the file's containerRuntimeEndpoint",
	)
	flags.StringVar(
		&o.RootDir,
		"root-dir",
		"",
		"`directory` of the pods' volumes and files; root in the state directory when empty",
	)
	o.NodeFlags.Add(flags)
	o.HostPrivileges.Add(flags)
	o.CredentialProviders.Add(flags)
	nodeconfig.AddAllowUnauthenticatedAPI(flags, &o.AllowUnauthenticatedAPI)
	flags.DurationVar(
		&o.StuckTimeout,
		"stuck-timeout",
		watchdog.DefaultPatience,
		"`time` after which a service that stands still logs its goroutines and is restarted; 0 leaves it alone",
	)
	o.Configmux.Add(flags)
	o.Network.Add(flags)
	o.Log.Add(flags)
	o.Programs.Add(flags)
	target.AddFlag(flags, &o.StateDir)
}

// Command is `quartet node`.
func Command() *cobra.Command {
	var opts Options
	var once bool
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the four services with the configured container runtime",
		Long: `Run configmux, pleg, syncloop and nodestatus as child processes, against the runtime of containerRuntimeEndpoint.

Their logs go to standard error, each line with the name of its process. A process that ends is restarted. SIGTERM
and Ctrl-C stop the four processes but no pods: the next start takes them over. STATE/run/NAME.pid has the process IDs.

With --run-once it starts the pods that are desired at the start, prints the result of each,
and exits when all run, have ended or do not run after 10 tries, 17 minutes: with 0 if all run. They continue to run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if once {
				opts.Systemd = systemd.Take() // before the services are started, which would inherit it
				opts.Sockets = sockets.Take(opts.Systemd)
				err = runOnce(cmd.Context(), opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
			} else {
				err = Become(cmd.Context(), opts, cmd.ErrOrStderr())
			}
			if errors.Is(err, os.ErrPermission) {
				err = fmt.Errorf("%w: run the command as root", err)
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	opts.addFlags(cmd.Flags())
	cmd.Flags().
		BoolVar(&once, "run-once", false, "start the pods that are desired at the start, print the result of each, and exit")
	return cmd
}

// Run runs the four services, and others beside them, until the context ends. It fails at once if the configuration is
// invalid, a binary is missing, or another command runs the node of this state directory (a *statedir.HeldError).
func Run(ctx context.Context, opts Options, out io.Writer, others ...supervisor.Service) (err error) {
	plan, lock, err := opts.begin()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	return opts.host(ctx, plan, out, others...)
}

// Become is Run for a command that does nothing else: its process becomes the supervisor, which is a smaller program.
// If that program is missing, it runs the services in this process.
func Become(ctx context.Context, opts Options, out io.Writer) (err error) {
	plan, lock, err := opts.begin()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	path, err := find(supervisor.Program)
	if err == nil {
		return plan.Become(ctx, path, lock)
	}
	fmt.Fprintf(out, "%s: the services are supervised by this process, which needs more memory: %v\n", Name, err)
	opts.Systemd = systemd.Take() // before the services are started, which would inherit it
	opts.Sockets = sockets.Take(opts.Systemd)
	return opts.host(ctx, plan, out)
}

// begin checks the configuration, and takes the lock of the node.
func (o Options) begin() (plan supervisor.Plan, lock *statedir.Held, err error) {
	l, err := layout.New(o.StateDir)
	if err != nil {
		return plan, nil, err
	}
	if o.Config == nil {
		if plan, err = o.complete(l); err != nil {
			return plan, nil, err
		}
	}
	if err := os.MkdirAll(l.StateDir(), dirMode); err != nil {
		return plan, nil, fmt.Errorf("making the node's directories: %w", err)
	}
	lock, err = statedir.Lock(l.StateDir(), Name)
	if err != nil || o.Config == nil {
		return plan, lock, err
	}
	err = statedir.WriteIfChanged(o.ConfigFile, o.Config, configMode)
	if err == nil {
		plan, err = o.complete(l)
	}
	if err != nil {
		return plan, nil, errors.Join(err, lock.Release())
	}
	return plan, lock, nil
}

// host runs the services in this process.
func (o Options) host(ctx context.Context, plan supervisor.Plan, out io.Writer, others ...supervisor.Service) error {
	queue, shared := out.(*logqueue.Queue)
	if !shared {
		queue = logqueue.New(out)
		defer queue.Close()
	}
	if o.Sockets == nil {
		o.Sockets = &sockets.Set{}
	}
	return plan.Run(ctx, supervisor.Host{Log: queue, Systemd: o.Systemd, Sockets: o.Sockets}, others...)
}

// Check fails if a service would refuse its flags or the file.
func (o Options) Check() error {
	l, err := layout.New(o.StateDir)
	if err != nil {
		return err
	}
	_, err = o.plan(l)
	return err
}

// complete is plan, and fails if a program is missing.
func (o Options) complete(l layout.Layout) (supervisor.Plan, error) {
	plan, err := o.plan(l)
	for _, part := range plan.Parts {
		if part.Path == "" {
			_, missing := find(part.Name)
			err = errors.Join(err, missing)
		}
	}
	return plan, err
}

// plan returns the services and their flags. It fails if a service would refuse its flags or the file, so that problems
// are reported once, before anything starts.
func (o Options) plan(l layout.Layout) (supervisor.Plan, error) {
	if err := errors.Join(
		o.Log.check(), o.Network.check(), o.Programs.check(),
		o.Configmux.check(o.Network.Files, o.Network.Listen, o.Programs.Parts),
	); err != nil {
		return supervisor.Plan{}, err
	}
	plan := supervisor.Plan{
		Name: Name, StateDir: l.StateDir(), Config: o.ConfigFile, StuckTimeout: o.StuckTimeout,
		FinalExit: nodeconfig.ExitWrong,
	}
	// Before the services read the file: if it changes meanwhile, they are asked again.
	sum, unread := supervisor.ConfigSum(o.ConfigFile)
	plan.ConfigSum = sum
	for _, service := range o.Configmux.Services() {
		args := o.args(l, service)
		cfg, err := nodeconfig.Parse(service, args, io.Discard)
		if err != nil {
			return supervisor.Plan{}, err
		}
		plan.Logging = cfg.Logging()
		// The machine is the same for all services.
		if service == layout.SyncLoop {
			if err := cfg.FitMachine(os.DirFS("/")); err != nil {
				return supervisor.Plan{}, err
			}
		}
		part := supervisor.Part{Name: string(service), Args: args, Sockets: cfg.SharedSockets(service)}
		own, missing := find(part.Name)
		if missing == nil {
			part.AskSockets = append([]string{own, nodeconfig.SocketsCommand}, args...)
		}
		if part.Path, part.Foreign = o.Programs.Parts[part.Name]; part.Foreign {
			part.Args = foreignArgs(l, cfg, service, args)
		} else {
			part.Path = own
		}
		plan.Parts = append(plan.Parts, part)
	}
	if unread != nil { // the services, which say more about it, have read it since
		return supervisor.Plan{}, fmt.Errorf("--config: %w: try again", unread)
	}
	if _, err := o.CredentialProviders.Read(); err != nil {
		return supervisor.Plan{}, err
	}
	return plan, nil
}

// args returns the flags of a service: those of the operator that the service has, and the addresses of the four.
func (o Options) args(l layout.Layout, service layout.Service) []string {
	args := []string{"--state-dir=" + l.StateDir()}
	for _, peer := range layout.Services() {
		if peer == layout.ConfigMux && o.Configmux.IsGiven() && service == layout.SyncLoop {
			continue // Configmux has it
		}
		args = append(args, fmt.Sprintf("--%s-address=%s", peer, l.Address(peer)))
	}
	args = append(args, o.Configmux.of(service)...)
	kubeconfig := o.Kubeconfig
	if !nodeconfig.UsesAPIServer(service) {
		kubeconfig = ""
	}
	for flag, value := range map[string]string{
		"config":                     o.ConfigFile,
		"kubeconfig":                 kubeconfig,
		"container-runtime-endpoint": o.RuntimeEndpoint,
		"allowed-uids":               o.AllowedUIDs,
		"hostname-override":          o.HostnameOverride,
		"root-dir":                   o.RootDir,
		"node-ip":                    o.NodeIP,
		"node-labels":                o.NodeLabels,
	} {
		if value != "" {
			args = append(args, "--"+flag+"="+value)
		}
	}
	if o.CertDir != "" && (service == layout.NodeStatus || service == layout.SyncLoop) {
		args = append(args, "--cert-dir="+o.CertDir)
	}
	if o.CloudProvider != "" && service == layout.NodeStatus {
		args = append(args, "--cloud-provider="+o.CloudProvider)
	}
	if o.BootstrapKubeconfig != "" {
		switch service {
		case layout.NodeStatus:
			args = append(args, "--bootstrap-kubeconfig="+o.BootstrapKubeconfig)
		case layout.ConfigMux, layout.SyncLoop:
			args = append(args, "--await-kubeconfig")
		case layout.PLEG:
		}
	}
	if service == layout.ConfigMux || service == layout.SyncLoop {
		args = append(args, o.HostPrivileges.Args()...)
	}
	if service == layout.SyncLoop {
		args = append(args, o.CredentialProviders.Args()...)
		if o.AllowUnauthenticatedAPI {
			args = append(args, nodeconfig.AllowUnauthenticatedAPIArg)
		}
	}
	calls := service == layout.SyncLoop && peertls.OnNetwork(o.Configmux.Address)
	args = append(args, o.Network.of(service, calls)...)
	return append(args, o.Log.of(service)...)
}

// BinDir returns the directory of this executable, which also contains the other binaries of the build.
func BinDir() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this executable: %w", err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		return "", fmt.Errorf("finding this executable: %w", err)
	}
	return filepath.Dir(exe), nil
}

// find looks for a service's binary beside this one, and then in the directory of a package.
func find(name string) (string, error) {
	dir, err := BinDir()
	if err != nil {
		return "", err
	}
	candidates := []string{filepath.Join(dir, name), filepath.Join(dir, "..", "libexec", "quartet", name)}
	for _, path := range candidates {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither %s nor %s: run make build", name, candidates[0], candidates[1])
}
