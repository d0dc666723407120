package nodeconfig

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/quartet-node/quartet/internal/peertls"
)

// flags holds the flags as given.
type flags struct {
	file, kubeconfig, listen string
	metricsListen            string
	peers                    map[Service]*string
	stateDir, rootDir        string
	runtimeEndpoint          string
	hostnameOverride, nodeIP string
	nodeLabels               string
	verbosity                int
	logFormat                string
	standby, readOnly        bool
	openAPI                  bool
	hostRoot                 string
	podManifestPath          string
	podLogsDir, cgroupRoot   string
	replay                   string
	nodes                    string
	configmuxObjects         bool
	replaySpeed              float64
	hostPrivileges           PrivilegeFlags
	roles                    roleFlags
	tlsListen                string
	tls                      peertls.Files
	join                     joinFlags
	shadow                   shadowFlags
	credentials              CredentialProviderFlags
	given                    func(flag string) bool
}

func (f *flags) flagSet(service Service) *pflag.FlagSet {
	set := pflag.NewFlagSet(string(service), pflag.ContinueOnError)
	set.SortFlags = false
	set.Usage = func() {}
	set.StringVar(
		&f.file,
		"config",
		"",
		"`FILE` with a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), the same for all four services; without it all fields have their defaults",
	)
	set.StringVar(&f.listen, "listen", "", "`ADDRESS` to serve on (default: this service's own address below)")
	set.StringVar(
		&f.metricsListen,
		"metrics-listen",
		"",
		"`ADDRESS` to serve metrics on: a unix socket, a loopback HOST:PORT, or none (default: beside --listen, with -metrics in its name)",
	)
	f.roles.add(service, set)
	f.peers = make(map[Service]*string)
	for _, peer := range Services() {
		f.peers[peer] = set.String(
			string(peer)+"-address",
			DefaultAddress(peer),
			"`ADDRESS` of "+string(peer)+": a unix socket, or with TLS HOST:PORT or dns:///NAME:PORT",
		)
	}
	f.addNetwork(service, set)
	set.StringVar(&f.stateDir, "state-dir", DefaultStateDir, "`DIR` for state that survives a restart")
	set.StringVar(
		&f.rootDir,
		"root-dir",
		"",
		"`DIR` for the directories of pods (default: \"root\" in the state directory)",
	)
	set.StringVar(
		&f.runtimeEndpoint,
		"container-runtime-endpoint",
		"",
		"`ADDRESS` of the container runtime, instead of the file's containerRuntimeEndpoint",
	)
	set.StringVar(&f.hostnameOverride, "hostname-override", "", "`NAME` of the node (default: the name of the host)")
	set.StringVar(
		&f.nodeIP,
		"node-ip",
		"",
		"`IP` that the node reports, or two of both families as IP,IP; :: prefers IPv6 (default: the address of this "+
			"machine that the node's name resolves to, or else that of the default route)",
	)
	set.StringVar(&f.nodeLabels, "node-labels", "", "`LABELS` for the Node, as KEY=VALUE,KEY=VALUE")
	f.addOwnFlags(service, set)
	set.IntVarP(&f.verbosity, "v", "v", 0, "`N`, how much to log: 0 is information, 4 and more is debugging")
	set.StringVar(&f.logFormat, "logging-format", "", "`FORMAT` of the log: text or json (default: the file's logging.format)")
	f.given = set.Changed
	return set
}

// purposes describes each service, for its help.
var purposes = map[Service]string{
	ConfigMux:  "configmux decides which pods this node should run: it reads them from their sources and merges them.",
	PLEG:       "pleg observes the pods in the container runtime and reports their changes.",
	SyncLoop:   "syncloop runs the pods from configmux in the container runtime.",
	NodeStatus: "nodestatus computes the Node: the capacity of this machine, and whether it can run pods.",
}

func help(service Service, set *pflag.FlagSet) string {
	return fmt.Sprintf(`%s
It is one of the four processes of a Quartet node. They may be started in any order, stopped and started again.

Usage:
  %s [flags]
  %s health [flags]     query the running process: exit code 0 if it is ready; otherwise print what it waits for
  %s guard [[flags] --] [flags]
                        run it as a child process; when it stands still for 30 s, log its goroutines and end it;
                        flags before -- name the address at which it is asked, if that is another

Flags:
%s
Environment:
  OTEL_EXPORTER_OTLP_ENDPOINT   where traces go, by OTLP over gRPC; without it there are none
`, purposes[service], service, service, service, set.FlagUsagesWrapped(110))
}

// failure records a problem with a flag.
type failure func(flag, format string, args ...any)

// config returns the configuration of the flags, and all problems.
func (f *flags) config(service Service) (Config, []error) {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	cfg := Config{Verbosity: f.verbosity}
	if f.verbosity < 0 {
		fail("v", "%d: must be 0 or more", f.verbosity)
	}
	f.directories(&cfg, fail)
	f.addresses(service, &cfg, fail)
	f.ownFlags(service, &cfg, fail)
	cfg.NodeIP = f.nodeIPs(fail)
	name, err := f.nodeName()
	if err != nil {
		errs = append(errs, err)
	}
	cfg.NodeName = name
	labels, labelErrs := parseLabels(f.nodeLabels)
	cfg.NodeLabels = labels
	return cfg, append(errs, labelErrs...)
}

// nodeIPs returns the addresses of --node-ip in their canonical form: "IP" or "IP,IP". As for the kubelet, 0.0.0.0 or
// :: alone is a family to prefer.
func (f *flags) nodeIPs(fail failure) string {
	if f.nodeIP == "" {
		return ""
	}
	var ips []string
	var fours, families int
	for part := range strings.SplitSeq(f.nodeIP, ",") {
		ip := net.ParseIP(strings.TrimSpace(part))
		if ip == nil {
			fail("node-ip", "%q is not an IP address of this node", part)
			return ""
		}
		if ip.To4() != nil {
			fours++
		}
		if ip.IsUnspecified() {
			families++
		}
		ips = append(ips, ip.String())
	}
	if len(ips) > 2 || (len(ips) == 2 && (fours != 1 || families > 0)) {
		fail("node-ip", "%q must be one address, or one of each family; 0.0.0.0 or :: alone prefers a family", f.nodeIP)
	}
	return strings.Join(ips, ",")
}

func (f *flags) directories(cfg *Config, fail failure) {
	for _, dir := range []struct {
		flag, value string
		into        *string
	}{{"state-dir", f.stateDir, &cfg.StateDir}, {"root-dir", f.rootDir, &cfg.RootDir}} {
		if dir.value == "" {
			if dir.flag == "state-dir" {
				fail(dir.flag, "must not be empty")
			}
			continue
		}
		abs, err := filepath.Abs(dir.value)
		if err != nil {
			fail(dir.flag, "%v", err)
		}
		*dir.into = abs
	}
	if cfg.RootDir == "" {
		cfg.RootDir = filepath.Join(cfg.StateDir, "root")
	}
}

func (f *flags) nodeName() (string, error) {
	name, from := f.hostnameOverride, "--hostname-override"
	if !f.given("hostname-override") {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("asking for the name of the host: %w: name the node with --hostname-override", err)
		}
		name, from = host, "the name of the host"
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf(
			"%s: %q cannot name a node: %s: name it with --hostname-override",
			from,
			name,
			strings.Join(problems, "; "),
		)
	}
	return name, nil
}

// parseLabels parses KEY=VALUE,KEY=VALUE. It refuses labels of kubernetes.io that a node may not set.
func parseLabels(text string) (map[string]string, []error) {
	labels := make(map[string]string)
	var errs []error
	fail := func(label, problem string) {
		errs = append(errs, fmt.Errorf("--node-labels: %q: %s", label, problem))
	}
	for label := range strings.SplitSeq(text, ",") {
		label = strings.TrimSpace(label)
		if label == "" {
			continue
		}
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			fail(label, "must be KEY=VALUE")
			continue
		}
		problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			fail(label, strings.Join(problems, "; "))
			continue
		}
		if _, twice := labels[key]; twice {
			fail(label, "the key is given twice")
			continue
		}
		if isKubernetesLabel(key) && !kubeletapis.IsKubeletLabel(key) {
			fail(
				label,
				"labels of kubernetes.io and k8s.io are reserved: a node may set those of node.kubernetes.io and kubelet.kubernetes.io, and "+
					strings.Join(
						kubeletapis.KubeletLabels(),
						", ",
					),
			)
			continue
		}
		labels[key] = value
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return labels, errs
}

func isKubernetesLabel(key string) bool {
	prefix, _, ok := strings.Cut(key, "/")
	if !ok {
		return false
	}
	for _, domain := range []string{"kubernetes.io", "k8s.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return true
		}
	}
	return false
}
