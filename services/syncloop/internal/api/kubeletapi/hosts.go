package kubeletapi

import (
	"fmt"
	"net"
	"net/http"
	"strings"
)

// ownHost calls next only for requests to this node: to one of its addresses, to its name or to localhost. The
// read-only API has no authentication and relies on being reachable from this machine only. A web page of another site
// can make a browser on this machine resolve a name of that site to this machine and read the answer (DNS rebinding).
// The header Host identifies such a request.
func ownHost(nodeName string, addresses func() ([]net.Addr, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A client of HTTP/1.0 need not send a Host header. No browser is such a client.
		if r.Host == "" || isOwn(hostOf(r.Host), nodeName, addresses) {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("the read-only API answers for this node only, and not for the host %q: ask localhost, %s or an address of the node", r.Host, nodeName), http.StatusForbidden)
	})
}

// hostOf returns the host of a Host header, which may have a port.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return host
}

// isOwn reports whether a host is this node. Programs that read the address to listen on from the configuration ask for
// 0.0.0.0 or ::, which is this machine to a client. Addresses returns the addresses of the machine's interfaces; it is
// called only for another IP address that is not a loopback address.
func isOwn(host, nodeName string, addresses func() ([]net.Addr, error)) bool {
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback() || ip.IsUnspecified() || isOfMachine(ip, addresses)
	}
	host = strings.TrimSuffix(host, ".")
	return strings.EqualFold(host, "localhost") || strings.EqualFold(host, nodeName)
}

func isOfMachine(ip net.IP, addresses func() ([]net.Addr, error)) bool {
	all, err := addresses()
	if err != nil {
		return false
	}
	for _, address := range all {
		if network, ok := address.(*net.IPNet); ok && network.IP.Equal(ip) {
			return true
		}
	}
	return false
}
