// Package nodeip finds the address of the node: that of --node-ip, or else one of the machine's, as the kubelet does.
// nodestatus reports the address in the Node, and syncloop uses it until it has heard nodestatus.
package nodeip

import (
	"context"
	"crypto/sha256"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"
)

// lookupTimeout bounds the question for the addresses of the node's name, because the Node is computed after it.
const lookupTimeout = time.Second

// Config says whose address is found, and where.
type Config struct {
	// Name is the name of the node. Required.
	Name string
	// NodeIP is a valid --node-ip: an address, one of each family, "::" to prefer IPv6, or "0.0.0.0" or "" to prefer IPv4.
	NodeIP string
	// Lookup returns the addresses of a name; the machine's resolver when nil.
	Lookup func(ctx context.Context, name string) ([]net.IP, error)
	// Own returns the addresses of the machine's interfaces; net.InterfaceAddrs when nil.
	Own func() ([]net.Addr, error)
	// Route returns the address of the default route in the family of an unspecified address; the machine's when nil.
	Route func(unspecified net.IP) (net.IP, error)
}

// Finder finds the address. It is for one goroutine.
type Finder struct {
	cfg    Config
	prefer net.IP
	// resolved are the addresses that the name had last. They stay while no name server answers.
	resolved []net.IP
}

// New makes a Finder.
func New(cfg Config) *Finder {
	if cfg.Lookup == nil {
		cfg.Lookup = func(ctx context.Context, name string) ([]net.IP, error) {
			return net.DefaultResolver.LookupIP(ctx, "ip", name)
		}
	}
	if cfg.Own == nil {
		cfg.Own = net.InterfaceAddrs
	}
	if cfg.Route == nil {
		route := routed{
			search: utilnet.ResolveBindAddress,
			tables: func() ([sha256.Size]byte, error) { return sumOfTables(routeTables()) },
			holds:  canBind,
		}
		cfg.Route = route.find
	}
	f := &Finder{cfg: cfg, prefer: net.IPv4zero}
	if ip := net.ParseIP(cfg.NodeIP); ip != nil {
		f.prefer = ip
	}
	return f
}

// Given returns the addresses that a valid --node-ip names, the primary one first; nil when it names a family or
// nothing.
func Given(nodeIP string) (ips []net.IP) {
	for part := range strings.SplitSeq(nodeIP, ",") {
		if ip := net.ParseIP(part); ip != nil && !ip.IsUnspecified() {
			ips = append(ips, ip)
		}
	}
	return ips
}

// Find returns the primary address of --node-ip, else the name of the node if that is an address, else an address of
// the machine that the name resolves to, the preferred family first, else the address of the default route. It is nil
// if there is none of these. It asks for what it needs only, because a name server that does not answer delays the
// Node.
func (f *Finder) Find(ctx context.Context) net.IP {
	if given := Given(f.cfg.NodeIP); len(given) > 0 {
		return given[0]
	}
	if ip := netutils.ParseIPSloppy(f.cfg.Name); ip != nil {
		return ip
	}
	if ip := f.named(ctx); ip != nil {
		return ip
	}
	ip, err := f.cfg.Route(f.prefer)
	if err != nil {
		return nil
	}
	return ip
}

// named returns the address of the machine that the node's name resolves to; nil when there is none.
func (f *Finder) named(ctx context.Context) net.IP {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := f.cfg.Lookup(ctx, f.cfg.Name)
	var failure *net.DNSError
	if err == nil || errors.As(err, &failure) && failure.IsNotFound {
		f.resolved = ips
	}
	var other net.IP
	for _, ip := range f.resolved {
		switch {
		case !f.isOwn(ip):
		case netutils.IsIPv6(ip) == netutils.IsIPv6(f.prefer):
			return ip
		case other == nil:
			other = ip
		}
	}
	return other
}

// isOwn reports whether an address is one of an interface of the machine by which others reach it.
func (f *Finder) isOwn(ip net.IP) bool {
	if ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() {
		return false
	}
	own, err := f.cfg.Own()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		network, ok := a.(*net.IPNet)
		return ok && network.IP.Equal(ip)
	})
}
