package bundle

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// occupied is a network in use on the machine.
type occupied struct {
	Prefix netip.Prefix
	// By names the user of the network, for an error.
	By string
}

// link is an interface of the machine.
type link struct {
	name   string
	master int
}

// occupation returns the IPv4 networks of the machine's interfaces and routes, except those of one bridge. It skips
// default routes. It includes routes of every table, because rules may send packets to any of them.
func occupation(bridge string) ([]occupied, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the interfaces of the machine: %w", err)
	}
	var found []occupied
	names := map[uint32]string{}
	for _, l := range links {
		names[uint32(l.Index)] = l.Name //nolint:gosec // the kernel's indexes are positive
		if l.Name == bridge {
			continue
		}
		addrs, err := l.Addrs()
		if err != nil {
			continue // the interface has disappeared
		}
		for _, addr := range addrs {
			if prefix, err := netip.ParsePrefix(addr.String()); err == nil && prefix.Addr().Is4() {
				found = append(found, occupied{Prefix: prefix.Masked(), By: fmt.Sprintf("the interface %s (%s)", l.Name, prefix)})
			}
		}
	}
	routes, err := routes()
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		switch name := names[r.link]; {
		case r.dst.Bits() == 0 || name == bridge:
		case name == "":
			found = append(found, occupied{Prefix: r.dst, By: fmt.Sprintf("the route to %s", r.dst)})
		default:
			found = append(found, occupied{Prefix: r.dst, By: fmt.Sprintf("the route to %s over the interface %s", r.dst, name)})
		}
	}
	return found, nil
}

// route is a destination and the interface that leads to it; 0 for none, as in a route that drops packets.
type route struct {
	dst  netip.Prefix
	link uint32
}

// routes returns the IPv4 routes of all tables from the kernel. /proc/net/route has only one table, of the network
// namespace of the process's first thread.
func routes() ([]route, error) {
	messages, err := netlinkDump(unix.RTM_GETROUTE, unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("listing the routes of the machine: %w", err)
	}
	var found []route
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			continue
		}
		r, address := route{}, [4]byte{}
		for _, a := range attributes {
			switch {
			case a.Attr.Type == unix.RTA_DST && len(a.Value) == net.IPv4len:
				address = [4]byte(a.Value)
			case a.Attr.Type == unix.RTA_OIF && len(a.Value) == int(unsafe.Sizeof(r.link)):
				r.link = binary.NativeEndian.Uint32(a.Value)
			}
		}
		r.dst = netip.PrefixFrom(netip.AddrFrom4(address), int(m.Data[1])) // rtm_dst_len
		if r.dst.IsValid() && !r.dst.Addr().IsMulticast() {
			found = append(found, r)
		}
	}
	return found, nil
}

// ports returns the number of interfaces of a bridge, one for each pod with an address. It is 0 for a missing bridge.
func ports(bridge string) (int, error) {
	messages, err := netlinkDump(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return 0, fmt.Errorf("listing the interfaces of the machine: %w", err)
	}
	links := map[int]link{}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			continue
		}
		var l link
		for _, a := range attributes {
			switch {
			case a.Attr.Type == unix.IFLA_IFNAME && len(a.Value) > 0:
				l.name = string(a.Value[:len(a.Value)-1])
			case a.Attr.Type == unix.IFLA_MASTER && len(a.Value) == 4:
				l.master = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
		links[int(binary.NativeEndian.Uint32(m.Data[4:8]))] = l // ifi_index
	}
	n := 0
	for _, l := range links {
		if l.master != 0 && links[l.master].name == bridge {
			n++
		}
	}
	return n, nil
}

func netlinkDump(request, family int) ([]syscall.NetlinkMessage, error) {
	raw, err := syscall.NetlinkRIB(request, family)
	if err != nil {
		return nil, err
	}
	return syscall.ParseNetlinkMessage(raw)
}

// networkOf returns the network of a bridge's IPv4 address; zero if it has none or does not exist.
func networkOf(bridge string) netip.Prefix {
	l, err := net.InterfaceByName(bridge)
	if err != nil {
		return netip.Prefix{}
	}
	addrs, err := l.Addrs()
	if err != nil {
		return netip.Prefix{}
	}
	for _, addr := range addrs {
		if prefix, err := netip.ParsePrefix(addr.String()); err == nil && prefix.Addr().Is4() {
			return prefix.Masked()
		}
	}
	return netip.Prefix{}
}
