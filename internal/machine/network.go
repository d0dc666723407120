package machine

import (
	"fmt"
	"os"
	"slices"
)

// PacketFilter returns the packet filter that CNI plugins use for masquerading and host ports, "iptables" before
// "nftables"; empty if the machine has neither.
func (m Machine) PacketFilter() string {
	if _, err := m.LookPath("iptables"); err == nil {
		return "iptables"
	}
	if _, err := m.LookPath("nft"); err == nil {
		return "nftables"
	}
	return ""
}

// Masquerading checks for a packet filter.
func (m Machine) Masquerading() Finding {
	filter := m.PacketFilter()
	f := Ok("packet filter", "%s", filter)
	if filter == "" {
		return f.With(
			Warning,
			"neither iptables nor nft is installed: pods do not reach beyond this machine, and a hostPort fails",
			"apt-get install iptables (or nftables)",
		)
	}
	return f
}

// Forwarding checks that the kernel forwards packets between pods and the network.
func (m Machine) Forwarding() Finding {
	f := Ok("ip_forward", "on")
	on, err := m.number("proc/sys/net/ipv4/ip_forward")
	switch {
	case err != nil:
		return Unknown(f.Check, err)
	case on == 0:
		return f.With(Warning, "off: pods do not reach beyond this machine unless the CNI plugin turns it on, as bridge does",
			sysctl("net.ipv4.ip_forward", 1))
	default:
		return f
	}
}

// BridgeFilter checks that packets between two pods on one bridge pass the packet filter, which host ports and services
// need. The file exists if br_netfilter is loaded or built in.
func (m Machine) BridgeFilter() Finding {
	f := Ok("br_netfilter", "on")
	on, err := m.number("proc/sys/net/bridge/bridge-nf-call-iptables")
	switch {
	case os.IsNotExist(err):
		return f.With(Warning, "not loaded: a pod does not reach a hostPort or a service that leads to its own bridge",
			"modprobe br_netfilter, and the line br_netfilter in /etc/modules-load.d/quartet.conf")
	case err != nil:
		return Unknown(f.Check, err)
	case on == 0:
		return f.With(Warning, "off: a pod does not reach a hostPort or a service that leads to its own bridge",
			sysctl("net.bridge.bridge-nf-call-iptables", 1))
	default:
		return f
	}
}

// Port checks that a TCP port on the loopback interface is free, or that its owner holds it. purpose describes the use
// of the port, and fix how to use another; mine reports whether a process may hold it.
func (m Machine) Port(port int, purpose, fix string, processes []Process, mine func(Process) bool) Finding {
	f := Ok(fmt.Sprintf("port %d", port), "free (%s)", purpose)
	inodes, err := m.listeners(port)
	switch {
	case err != nil:
		return Unknown(f.Check, err)
	case len(inodes) == 0:
		return f
	}
	holders := holdersOf(processes, inodes)
	if i := slices.IndexFunc(holders, mine); i >= 0 {
		return Ok(f.Check, "%s: %s, pid %d", purpose, holders[i].Name, holders[i].PID)
	}
	// systemd holds sockets for their services.
	if i := slices.IndexFunc(holders, func(p Process) bool { return p.PID != 1 }); i > 0 {
		holders = holders[i:]
	}
	switch {
	case len(holders) > 0 && holders[0].PID == 1:
		return f.With(
			Fault,
			fmt.Sprintf("%s, pid 1, holds it for a service that is not running; it is needed as %s", holders[0].Name, purpose),
			"if that is a service of this node, systemctl status says why it is not running; otherwise stop it, or "+fix,
		)
	case len(holders) > 0:
		holder := holders[0]
		return f.With(Fault, fmt.Sprintf("%s, pid %d, listens there, and it is to be %s", holder.Name, holder.PID, purpose),
			fmt.Sprintf("end pid %d, or %s", holder.PID, fix))
	default:
		return f.With(Fault, "another process listens there, and it is to be "+purpose,
			fmt.Sprintf("ss -ltnp sport = :%d names it to root: end it, or %s", port, fix))
	}
}
