package kubeletapi

import (
	"fmt"
	"net"
	"net/http"
	"strings"
)

// ownHost lets next answer only those who ask for this node: by an address of it, by its name or as localhost. The read-only API asks
// nobody who they are and trusts that only this machine reaches it. A browser on this machine is told by the page of another site to ask
// a name of that site, which leads here (DNS rebinding), and the page may read the answer. The header Host tells such a request from others.
func ownHost(nodeName string, addresses func() ([]net.Addr, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A client of HTTP/1.0 need not name a host. No browser is one.
		if r.Host == "" || isOwn(hostOf(r.Host), nodeName, addresses) {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("the read-only API answers for this node only, and not for the host %q: ask localhost, %s or an address of the node", r.Host, nodeName), http.StatusForbidden)
	})
}

// hostOf returns the host of a header Host, which may have a port.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return host
}

// isOwn tells whether a host is this node. Addresses are those of the machine's interfaces, looked at when somebody asks for one.
func isOwn(host, nodeName string, addresses func() ([]net.Addr, error)) bool {
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback() || isOfMachine(ip, addresses)
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
