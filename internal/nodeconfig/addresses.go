package nodeconfig

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/peertls"
)

const (
	// maxSocketPath is the maximum length of a path in sockaddr_un, without the final zero byte.
	maxSocketPath = 107
	// noMetrics is the value of --metrics-listen that turns the metrics off.
	noMetrics = "none"
)

// addresses sets the addresses of this service, the other services and the runtime, and the allowed users.
func (f *flags) addresses(service Service, cfg *Config, fail failure) {
	for _, peer := range Services() {
		if problem := checkAddress(*f.peers[peer]); problem != "" {
			fail(string(peer)+"-address", "%s", problem)
		}
	}
	cfg.Peers = Peers{
		ConfigMux:  *f.peers[ConfigMux],
		PLEG:       *f.peers[PLEG],
		SyncLoop:   *f.peers[SyncLoop],
		NodeStatus: *f.peers[NodeStatus],
	}
	cfg.Listen = cfg.Peers.Of(service)
	if peertls.OnNetwork(cfg.Listen) {
		cfg.Listen = DefaultAddress(service) // the others reach it by the network
	}
	if f.given("listen") {
		cfg.Listen = f.listen
		switch problem := checkSocket(f.listen); {
		case problem != "" && peertls.CheckListen(f.listen) == "":
			fail("listen", "%q is on the network, where nothing is served without TLS: use --%s for it, with --%s, --%s and --%s",
				f.listen, peertls.FlagListen, peertls.FlagCert, peertls.FlagKey, peertls.FlagCA)
		case problem != "":
			fail("listen", "%s", problem)
		}
	}
	f.network(service, cfg, fail)
	metrics, problem := f.metricsAddress(cfg.Listen)
	if problem != "" {
		fail("metrics-listen", "%s", problem)
	}
	cfg.MetricsListen = metrics
	cfg.Users = f.roles.users(fail)
	if f.given("container-runtime-endpoint") {
		f.runtimeEndpoint = fullEndpoint(f.runtimeEndpoint)
		if problem := checkEndpoint(f.runtimeEndpoint); problem != "" {
			fail("container-runtime-endpoint", "%s", problem)
		}
	}
}

// MetricsAddress returns the default metrics address of a service that listens on an address.
func MetricsAddress(listen string) string {
	return strings.TrimSuffix(listen, ".sock") + "-metrics.sock"
}

// metricsAddress returns the address for metrics, empty for none, or the problem with the given address.
func (f *flags) metricsAddress(listen string) (address, problem string) {
	if !f.given("metrics-listen") {
		if checkSocket(listen) != "" {
			return "", "" // already reported for that flag
		}
		address = MetricsAddress(listen)
		if problem := checkSocket(address); problem != "" {
			return "", problem + ", or name another address, or none"
		}
		return address, ""
	}
	switch {
	case f.metricsListen == noMetrics:
		return "", ""
	case f.metricsListen == listen:
		return "", fmt.Sprintf("%q is the address of --listen: name another address, or none", listen)
	case strings.HasPrefix(f.metricsListen, "unix:"):
		return f.metricsListen, checkSocket(f.metricsListen)
	default:
		return f.metricsListen, checkLoopback(f.metricsListen)
	}
}

// checkLoopback returns the problem with an HTTP address; empty if it is valid. Metrics have no authentication, so they
// are served on this machine only.
func checkLoopback(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Sprintf("%q must be unix:///PATH, a loopback HOST:PORT such as 127.0.0.1:9101, or none", address)
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Sprintf(
			"%q: the host must be a loopback address such as 127.0.0.1 or [::1], because metrics are served without authentication",
			address,
		)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("%q: the port must be a number from 1 to 65535", address)
	}
	return ""
}

// overrideRuntime replaces the runtime endpoint of the file by the flag. It applies to images too, unless the file has
// a separate endpoint for them.
func (f *flags) overrideRuntime(cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	if !f.given("container-runtime-endpoint") {
		return
	}
	if cfg.ImageServiceEndpoint == cfg.ContainerRuntimeEndpoint {
		cfg.ImageServiceEndpoint = f.runtimeEndpoint
	}
	cfg.ContainerRuntimeEndpoint = f.runtimeEndpoint
}

// checkAddress returns the problem with the address of a service; empty if it is valid.
func checkAddress(address string) string {
	if strings.HasPrefix(address, "unix:") || peertls.CheckAddress(address) != "" && !strings.Contains(address, ":") {
		return checkSocket(address)
	}
	return peertls.CheckAddress(address)
}

// checkSocket returns the problem with the address of a service's unix socket; empty if it is valid.
func checkSocket(address string) string {
	path, ok := socketPath(address)
	if !ok {
		return fmt.Sprintf("%q must be unix:// and an absolute path, for example %s", address, DefaultAddress(PLEG))
	}
	if len(path) > maxSocketPath {
		return fmt.Sprintf(
			"%q: the path has %d bytes, and a socket's may have %d: use a shorter directory",
			address,
			len(path),
			maxSocketPath,
		)
	}
	return ""
}

// fullEndpoint adds the scheme to the address of a container runtime that is only a path. Old configurations have such
// addresses, and the kubelet accepts them.
func fullEndpoint(address string) string {
	if filepath.IsAbs(address) {
		return "unix://" + address
	}
	return address
}

// checkEndpoint returns the problem with the address of a container runtime; empty if it is valid.
func checkEndpoint(address string) string {
	if _, ok := socketPath(address); !ok {
		return fmt.Sprintf(
			"%q must be unix:// and an absolute path, for example unix:///run/containerd/containerd.sock",
			address,
		)
	}
	return ""
}

// socketPath returns the path of unix:///PATH, and whether the address has that form.
func socketPath(address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "unix" || u.Host != "" || !filepath.IsAbs(u.Path) || u.RawQuery != "" ||
		u.Fragment != "" {
		return "", false
	}
	return u.Path, true
}
