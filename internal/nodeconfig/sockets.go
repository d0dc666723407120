package nodeconfig

import (
	"net"
	"strconv"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/sockets"
)

// The names of the TCP sockets of a service: the field of the file, or the flag, that sets the port. Each service has
// SocketMetrics and peertls.FlagListen: see SharedSockets.
const (
	SocketAPI      = "port"
	SocketReadOnly = "readOnlyPort"
	SocketHealthz  = "healthzPort"
	SocketMetrics  = "metrics-listen"
)

// SocketsCommand is the sub-command of a service that prints its SharedSockets as a JSON array. It fails with ExitWrong
// for a configuration with which the service would not start.
const SocketsCommand = "sockets"

// TCPSockets returns the TCP sockets of a service. A socket that is turned off has no address.
func (c *Config) TCPSockets(service Service) []sockets.Socket {
	all := []sockets.Socket{c.MetricsSocket(), {Name: peertls.FlagListen, Address: c.Network.Address}}
	switch service {
	case SyncLoop:
		all = append(all, c.APISocket(), c.ReadOnlySocket())
	case NodeStatus:
		all = append(all, c.HealthzSocket())
	case ConfigMux, PLEG:
	}
	return all
}

// SharedSockets returns the TCP sockets of a service for a process that holds those of all. The keys of sockets that
// several services have are preceded by the service.
func (c *Config) SharedSockets(service Service) []sockets.Shared {
	var all []sockets.Shared
	for _, socket := range c.TCPSockets(service) {
		key := string(service) + "-" + socket.Name
		switch socket.Name {
		case SocketAPI, SocketReadOnly, SocketHealthz:
			key = socket.Name // one service has it; systemd may have stored it for an earlier version
		}
		all = append(all, sockets.Shared{Socket: socket, Key: key})
	}
	return all
}

// APISocket returns the socket of the authenticated API.
func (c *Config) APISocket() sockets.Socket {
	if c.WhyNoAPI() != "" {
		return sockets.Socket{Name: SocketAPI}
	}
	return socketAt(SocketAPI, c.APIAddress, c.Kubelet.Port)
}

// ReadOnlySocket returns the socket of the read-only API.
func (c *Config) ReadOnlySocket() sockets.Socket {
	return socketAt(SocketReadOnly, ReadOnlyAddress(&c.Kubelet), c.Kubelet.ReadOnlyPort)
}

// HealthzSocket returns the socket of the node's health endpoint.
func (c *Config) HealthzSocket() sockets.Socket {
	return socketAt(SocketHealthz, c.Kubelet.HealthzBindAddress, *c.Kubelet.HealthzPort)
}

// MetricsSocket returns the TCP socket of the service's metrics.
func (c *Config) MetricsSocket() sockets.Socket {
	if strings.HasPrefix(c.MetricsListen, "unix:") {
		return sockets.Socket{Name: SocketMetrics}
	}
	return sockets.Socket{Name: SocketMetrics, Address: c.MetricsListen}
}

// socketAt returns a socket; port 0 turns it off.
func socketAt(name, address string, port int32) sockets.Socket {
	if port == 0 {
		return sockets.Socket{Name: name}
	}
	return sockets.Socket{Name: name, Address: net.JoinHostPort(address, strconv.Itoa(int(port)))}
}

// WhyNoAPI returns why the node does not serve the authenticated API; empty if it does. The API is not served if no
// client could be authenticated or authorized.
func (c *Config) WhyNoAPI() string {
	k, standalone := &c.Kubelet, c.Kubeconfig == ""
	tokens := *k.Authentication.Webhook.Enabled && !standalone
	switch {
	case !*k.EnableServer:
		return "enableServer is false"
	case standalone && k.Authorization.Mode != kubeletconfigv1beta1.KubeletAuthorizationModeAlwaysAllow:
		return "a standalone node has no API server to authorize clients: authorization.mode AlwaysAllow, with authentication.x509.clientCAFile, allows everything to clients with a certificate"
	case !tokens && k.Authentication.X509.ClientCAFile == "" && !*k.Authentication.Anonymous.Enabled:
		return "no client could be authenticated: set authentication.x509.clientCAFile"
	case standalone && k.ServerTLSBootstrap:
		return "serverTLSBootstrap needs an API server that has the certificate signed"
	default:
		return ""
	}
}
