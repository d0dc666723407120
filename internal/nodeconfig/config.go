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
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/starting"
	"github.com/quartet-node/quartet/internal/systemd"
)

// Service is one of the four processes of a node, by the name of its socket, its logs and its lock.
type Service = layout.Service

// The four services.
const (
	ConfigMux  = layout.ConfigMux
	PLEG       = layout.PLEG
	SyncLoop   = layout.SyncLoop
	NodeStatus = layout.NodeStatus
)

// Services returns the four services.
func Services() []Service { return layout.Services() }

// DefaultStateDir is the default state directory of a node.
const DefaultStateDir = layout.DefaultStateDir

// Config is the validated configuration of a service.
type Config struct {
	// Kubelet is the file with defaults. Durations are positive, paths absolute.
	Kubelet kubeletconfigv1beta1.KubeletConfiguration
	// File is the path of the file; empty if there is none, and all fields have their defaults.
	File string
	// Kubeconfig is the absolute path of the kubeconfig, for all services except pleg. It was readable, unless it is below
	// HostRoot. It is empty for a standalone node.
	Kubeconfig string
	// AwaitKubeconfig allows Kubeconfig to be missing, because nodestatus writes it when the node has joined its cluster.
	AwaitKubeconfig bool
	// BootstrapKubeconfig is for nodestatus: the absolute path of the kubeconfig for joining the cluster, used until the
	// node has its own certificate; empty for a node that does not join by itself.
	BootstrapKubeconfig string
	// CertDir is for nodestatus and syncloop: the absolute path of the directory for that certificate, and for the serving
	// certificate of the HTTP API.
	CertDir string
	// ExternalCloud is for nodestatus: an external cloud provider initializes the Node and sets its addresses.
	ExternalCloud bool
	// APIAddress is for syncloop: the IP address of the authenticated API.
	APIAddress string
	// AllowUnauthenticatedAPI is for syncloop: the authenticated API may grant everything to everyone who reaches it.
	AllowUnauthenticatedAPI bool
	// Listen is the address of this service.
	Listen string
	// MetricsListen is the address for metrics: unix:///ABSOLUTE/PATH, or a loopback HOST:PORT; empty for none.
	MetricsListen string
	// Network is what this service serves for parts on other machines; the zero value is nothing.
	Network peertls.Listen
	// TLS has the files of TLS for connections to services on other machines; the zero value for none.
	TLS peertls.Files
	// Users are the users, besides root and the process's own, that have roles in this service.
	Users rights.Users
	// Standby is for configmux: if another configmux holds the lock of the state directory, wait for it instead of
	// failing.
	Standby bool
	// Nodes are for configmux: the nodes of a site that it serves, instead of this one.
	Nodes Nodes
	// ConfigmuxObjects is for syncloop: config maps, secrets, claims and services come from configmux, although there is
	// an API server.
	ConfigmuxObjects bool
	// Replay is for configmux: the recording that replaces all sources of pods; empty for none.
	Replay string
	// ReplaySpeed is the speed of Replay relative to the recording; 0 means without delays.
	ReplaySpeed float64
	// HostPrivileges is for configmux and syncloop: the sources whose pods may have access to the host.
	HostPrivileges HostPrivileges
	// ReadOnly is for pleg: run beside the node's pleg, without the lock, on another address.
	ReadOnly bool
	// Shadow is for syncloop: follow a node and do nothing.
	Shadow Shadow
	// HostRoot is for syncloop: the directory where the machine's root is mounted, "/" unless it runs in a container.
	// syncloop changes its root to it when it starts, so no path needs to be translated: the paths of pods, hostPath
	// volumes and sockets are the machine's.
	HostRoot string
	// CredentialProviders is for syncloop: absolute paths, not yet read; empty for none.
	CredentialProviders CredentialProviderFlags
	// NodeName is the name of the node: --hostname-override, or the host's name in lower case.
	NodeName string
	// StateDir is the directory for the state that survives a restart of the services.
	StateDir string
	// RootDir is the directory of the pods' directories.
	RootDir string
	// NodeIP is the address that the node reports, or one IPv4 and one IPv6 address as "IP,IP". If it is empty, or
	// "0.0.0.0" or "::" to prefer a family, package nodeip finds the address.
	NodeIP string
	// NodeLabels are the additional labels of the Node.
	NodeLabels map[string]string
	// Peers holds the addresses of the four services, including this one.
	Peers Peers
	// Verbosity is the log verbosity of the flag, or else of the file: 0 is information, 4 and more is debugging.
	Verbosity int
	// Flags holds the value of each flag, set or default, by name. No flag holds a secret.
	Flags map[string]string
	// Unsupported lists the fields of the file, as "FILE:LINE: FIELD", that this service would have to implement and does
	// not.
	Unsupported []string
	// Systemd is notified when the service is ready. Package service sets it.
	Systemd systemd.Notifier
	// Sockets are the TCP sockets that the service has inherited; nil for none. Package service sets it.
	Sockets *sockets.Set
	// Starting is told what the service does until it serves; nil for nobody. Package service sets it.
	Starting *starting.Steps
}

// Peers holds the addresses of the four services.
type Peers struct {
	ConfigMux, PLEG, SyncLoop, NodeStatus string
}

// Of returns the address of a service, and the empty string for an unknown name.
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

// DefaultAddress returns the default address of a service.
func DefaultAddress(service Service) string {
	return "unix://" + layout.SocketIn(layout.DefaultRunDir, service)
}

// LogUnsupported logs one warning with all fields of the file that this service would have to implement and does not;
// it is a no-op without such fields. The four services together name each field once.
func (c Config) LogUnsupported(logger *slog.Logger) {
	if len(c.Unsupported) == 0 {
		return
	}
	logger.Warn(
		"the configuration sets fields that this version does not act on; the node behaves as if they were not set",
		"fields",
		strings.Join(c.Unsupported, ", "),
	)
}

// Parse parses the flags and the file that they name. If args ask for help, it writes the help to out and returns
// pflag.ErrHelp, which is no failure. The error of an invalid configuration is an [Errors] with all problems.
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
	errs = append(errs, f.overrideLogFormat(&cfg.Kubelet)...)
	errs = append(errs, siteFile(&cfg)...)
	if service == SyncLoop && len(errs) == 0 && !cfg.AllowUnauthenticatedAPI && !cfg.Shadow.On {
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
	cfg.Kubelet.Address = cfg.APIAddress // /configz shows what is in effect
	useReservedCPUs(&cfg.Kubelet)
	f.overrideRuntime(&cfg.Kubelet)
	f.overridePaths(&cfg.Kubelet)
	return cfg, nil
}

// Errors holds all problems of a configuration.
type Errors []error

// Error returns one line for each problem.
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

// Unwrap makes each problem visible to errors.Is and errors.As.
func (e Errors) Unwrap() []error { return e }

// ExitWrong is the exit code for an invalid configuration: EX_CONFIG of sysexits.h. A restart fails again until the
// configuration changes.
const ExitWrong = 78

// WrongError is the error of an invalid configuration that is detected after Parse, for example in a file that the
// configuration names. A restart fails again until the configuration changes.
type WrongError struct {
	Err error
}

func (e *WrongError) Error() string { return e.Err.Error() }

// Unwrap returns the problem.
func (e *WrongError) Unwrap() error { return e.Err }

// IsWrong reports whether an error is that of an invalid configuration: an error of Parse, or a [WrongError].
func IsWrong(err error) bool {
	var errs Errors
	var wrong *WrongError
	return errors.As(err, &errs) || errors.As(err, &wrong)
}

// FieldError is one problem in a file.
type FieldError struct {
	// File is the path of the file.
	File string
	// Line is the line in the file, counted from 1; 0 if the field is not in the file or the problem concerns the whole
	// file.
	Line int
	// Field is the path of the field, for example "evictionHard[memory.available]"; empty if the problem concerns the
	// whole file.
	Field string
	// Problem describes the problem and its remedy.
	Problem string
}

// Error returns "FILE:LINE: FIELD: PROBLEM" without empty parts.
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
