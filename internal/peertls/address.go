package peertls

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// dnsScheme is the prefix of an address with a name that may have several addresses.
const dnsScheme = "dns:"

// OnNetwork reports whether an address is on the network, and so not that of a unix socket.
func OnNetwork(address string) bool { return !strings.HasPrefix(address, "unix") }

// CheckAddress returns the problem with an address to connect to, HOST:PORT or dns:///NAME:PORT; empty if it is valid.
func CheckAddress(address string) string {
	at := address
	if strings.HasPrefix(address, dnsScheme) {
		u, err := url.Parse(address)
		if err != nil || len(u.Path) < 2 || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Sprintf("%q must be dns:///NAME:PORT", address)
		}
		at = u.Path[1:]
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ") {
		return fmt.Sprintf("%q must be unix:///ABSOLUTE/PATH, HOST:PORT or dns:///NAME:PORT", address)
	}
	return checkPort(address, port)
}

// CheckListen returns the problem with an address to listen on, HOST:PORT or :PORT; empty if it is valid.
func CheckListen(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Sprintf("%q must be HOST:PORT, or :PORT for all addresses of the machine", address)
	}
	return checkPort(address, port)
}

func checkPort(address, port string) string {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("%q: the port must be a number from 1 to 65535", address)
	}
	return ""
}
