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

// occupied is a network that something of the machine uses.
type occupied struct {
	Prefix netip.Prefix
	// By is who uses it, for an error.
	By string
}

// link is an interface of the machine.
type link struct {
	name   string
	master int
}

// occupation lists the IPv4 networks that the interfaces and routes of the machine use, those of one bridge left out. A
// default route counts for nothing. Routes of every table count, because rules may lead packets to each of them.
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
			continue // the interface has just gone
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

// route is a destination, and the interface that it is reached over; 0 for none, as of a route that drops packets.
type route struct {
	dst  netip.Prefix
	link uint32
}

// routes asks the kernel for the IPv4 routes of all tables. /proc/net/route has those of one table, and of the network of
// the process's first thread.
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

// ports is how many interfaces a bridge joins: one for each pod with an address. It is 0 for a bridge that is not there.
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

// networkOf is the network of a bridge's IPv4 address; zero when it has none, or is not there.
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
