package nodeconfig

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/systemd"
)

// Service is one of the four processes of a node, by the name that its socket, its logs and its lock have.
type Service = layout.Service

// The four services.
const (
	ConfigMux  = layout.ConfigMux
	PLEG       = layout.PLEG
	SyncLoop   = layout.SyncLoop
	NodeStatus = layout.NodeStatus
)

// Services has all four.
func Services() []Service { return layout.Services() }

// DefaultStateDir is the state directory of a node unless a flag says otherwise.
const DefaultStateDir = layout.DefaultStateDir

// Config is everything that a service is told at its start. All of it has been validated.
type Config struct {
	// Kubelet is the file with its defaults. Durations are positive, paths absolute.
	Kubelet kubeletconfigv1beta1.KubeletConfiguration
	// File is the path of the file; empty when there is none, and everything is at its default.
	File string
	// Kubeconfig is for all but pleg: the absolute path of the file that says how to reach an API server, which could be
	// read unless it is below HostRoot. Empty for a node that is standalone.
	Kubeconfig string
	// AwaitKubeconfig says that Kubeconfig need not be there yet, for nodestatus writes it when the node has joined its cluster.
	AwaitKubeconfig bool
	// BootstrapKubeconfig is nodestatus's: the absolute path of the file that leads to the API server until the node has a
	// certificate of its own; empty for a node that does not join by itself.
	BootstrapKubeconfig string
	// CertDir is nodestatus's and syncloop's: the absolute path of the directory for that certificate, and for the one that the HTTP
	// API is served with.
	CertDir string
	// ExternalCloud is nodestatus's: the Node is initialised, and given its addresses, by a cloud provider outside of the node.
	ExternalCloud bool
	// APIAddress is syncloop's: the IP address that the authenticated API is served on.
	APIAddress string
	// AllowUnauthenticatedAPI is syncloop's: the authenticated API may let everybody who reaches it do everything.
	AllowUnauthenticatedAPI bool
	// Listen is the address that this service serves on.
	Listen string
	// MetricsListen is where the service serves its metrics: unix:///ABSOLUTE/PATH, or a loopback HOST:PORT. Empty is nowhere.
	MetricsListen string
	// AllowedUIDs are the users, besides root and the process's own, whose processes may connect to this service's sockets.
	AllowedUIDs []int
	// SecretUIDs are configmux's: the users, besides root and the process's own, who may connect and are given the values of
	// secrets.
	SecretUIDs []int
	// Standby is configmux's: when another configmux holds the lock of the state directory, wait for it instead of ending.
	Standby bool
	// Replay is configmux's: the recording that is read instead of every source of pods; empty when there is none.
	Replay string
	// ReplaySpeed is how many times faster than it was recorded Replay is given back; 0 is without waiting.
	ReplaySpeed float64
	// HostPrivileges is configmux's: which sources' pods may reach beyond their own walls.
	HostPrivileges HostPrivileges
	// ReadOnly is pleg's: run beside the node's pleg, without the lock, on an address of its own.
	ReadOnly bool
	// HostRoot is syncloop's: the directory where the machine's root is visible to it, "/" unless it runs in a container.
	// syncloop makes it its root when it starts, so no path needs to be translated: those of pods, of hostPath volumes and
	// of sockets are the machine's.
	HostRoot string
	// CredentialProviders are syncloop's: absolute paths, at which nothing has been looked yet; empty for a node without any.
	CredentialProviders CredentialProviderFlags
	// NodeName is the name of the node: --hostname-override, or the host's name in lower case.
	NodeName string
	// StateDir is where services keep what must survive them.
	StateDir string
	// RootDir is where the directories of pods are.
	RootDir string
	// NodeIP is the address that the node reports, or two, of which one is of IPv4 and one of IPv6, as "IP,IP"; empty to take the
	// one of the default route.
	NodeIP string
	// NodeLabels are put on the Node, besides those that every node has.
	NodeLabels map[string]string
	// Peers has the addresses of the four services, this one included.
	Peers Peers
	// Verbosity is how much is logged, by the flag or else by the file: 0 is information, 4 and more is debugging.
	Verbosity int
	// Flags has the value of each flag, given or not, by its name. No flag holds a secret.
	Flags map[string]string
	// Unsupported names the fields of the file that Quartet knows and does not act on, and that would be this service's
	// to act on: "FILE:LINE: FIELD".
	Unsupported []string
	// Systemd is told when the service serves. No flag sets it, but package service.
	Systemd systemd.Notifier
	// Sockets are the TCP sockets that the service was passed; nil for none. Package service sets it.
	Sockets *sockets.Set
}

// Peers has the addresses of the four services.
type Peers struct {
	ConfigMux, PLEG, SyncLoop, NodeStatus string
}

// Of returns the address of a service, and the empty string for a name that is none.
func (p Peers) Of(service Service) string {
	switch service {
	case ConfigMux:
		return p.ConfigMux
	case PLEG:
		return p.PLEG
	case SyncLoop:
		return p.SyncLoop
	case NodeStatus:
		return p.NodeStatus
	default:
		return ""
	}
}

// DefaultAddress returns the address on which a service listens unless it is told otherwise.
func DefaultAddress(service Service) string {
	return "unix://" + filepath.Join(layout.DefaultRunDir, string(service)+".sock")
}

// LogUnsupported warns, once, of all fields of the file that this service should act on and does not. It says nothing
// when there are none. The four services together name each field once.
func (c Config) LogUnsupported(logger *slog.Logger) {
	if len(c.Unsupported) == 0 {
		return
	}
	logger.Warn("the configuration sets fields that this version does not act on; the node behaves as if they were not set",
		"fields", strings.Join(c.Unsupported, ", "))
}

// Parse reads the flags and the file that they name. It writes the help to out when args ask for it, and then returns
// pflag.ErrHelp, with which a program ends well. The error of a configuration that is wrong is an [Errors] with
// everything that is wrong in it.
func Parse(service Service, args []string, out io.Writer) (Config, error) {
	var f flags
	set := f.flagSet(service)
	if err := set.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			if _, werr := io.WriteString(out, help(service, set)); werr != nil {
				return Config{}, fmt.Errorf("writing the help: %w", werr)
			}
			return Config{}, pflag.ErrHelp
		}
		return Config{}, Errors{fmt.Errorf("%w (%s --help lists the flags)", err, service)}
	}

	var errs Errors
	for _, arg := range set.Args() {
		errs = append(errs, fmt.Errorf("%q: unexpected argument: flags only, see %s --help", arg, service))
	}
	cfg, flagErrs := f.config(service)
	errs = append(errs, flagErrs...)
	cfg.Flags = make(map[string]string)
	set.VisitAll(func(flag *pflag.Flag) { cfg.Flags[flag.Name] = flag.Value.String() })
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return Config{}, append(errs, fmt.Errorf("--config: %w: name a file that exists and may be read", err))
		}
		path, err := filepath.Abs(f.file)
		if err != nil {
			return Config{}, append(errs, fmt.Errorf("--config: %w", err))
		}
		decoded, fileErrs := Decode(path, data)
		errs = append(errs, fileErrs...)
		cfg.File, cfg.Kubelet, cfg.Unsupported = path, decoded.Kubelet, decoded.unsupported(service)
		cfg.APIAddress = apiAddress(&cfg, decoded.index)
	} else {
		setDefaults(&cfg.Kubelet)
		cfg.APIAddress = apiAddress(&cfg, index{})
	}
	if service == SyncLoop && len(errs) == 0 && !cfg.AllowUnauthenticatedAPI {
		if at := cfg.UnauthenticatedAPI(); at != "" {
			errs = append(errs, exposed(&cfg, at))
		}
	}
	if len(errs) > 0 {
		return Config{}, errs
	}
	if !f.given("v") {
		cfg.Verbosity = int(cfg.Kubelet.Logging.Verbosity)
	}
	f.overrideRuntime(&cfg.Kubelet)
	f.overridePaths(&cfg.Kubelet)
	return cfg, nil
}

// Errors is everything that is wrong with a configuration.
type Errors []error

// Error has a line for each error.
func (e Errors) Error() string {
	if len(e) == 1 {
		return "the configuration is wrong: " + e[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the configuration is wrong in %d places:", len(e))
	for _, err := range e {
		b.WriteString("\n  ")
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap lets errors.Is and errors.As look at each.
func (e Errors) Unwrap() []error { return e }

// ExitWrong is the exit code of a process whose configuration is wrong: EX_CONFIG of sysexits.h. Who starts it again without a change to
// the configuration does so in vain.
const ExitWrong = 78

// WrongError is the error of a process that cannot work with its configuration, which it has noticed after Parse: a file that the
// configuration names is wrong, for example. To start the process again does not help.
type WrongError struct {
	Err error
}

func (e *WrongError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *WrongError) Unwrap() error { return e.Err }

// IsWrong says whether an error is that of a wrong configuration: of Parse, or a [WrongError].
func IsWrong(err error) bool {
	var errs Errors
	var wrong *WrongError
	return errors.As(err, &errs) || errors.As(err, &wrong)
}

// FieldError is one thing that is wrong with a file.
type FieldError struct {
	// File is the path of the file.
	File string
	// Line is where in the file, counted from 1; 0 when the field is not in the file or it is about the whole file.
	Line int
	// Field is the path of the field, for example "evictionHard[memory.available]"; empty when it is about the whole file.
	Field string
	// Problem says what is wrong and what to do.
	Problem string
}

// Error is "FILE:LINE: FIELD: PROBLEM" with the parts that there are.
func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	b.WriteString(": ")
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Problem)
	return b.String()
}
