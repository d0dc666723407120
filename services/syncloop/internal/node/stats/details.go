package stats

import (
	"maps"
	"slices"

	"github.com/prometheus/procfs"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// Details is what dashboards show of a cgroup besides its usage.
type Details struct {
	podcgroups.Details
	// Packets has the network interfaces that the processes of the cgroup see.
	Packets []Packets
}

// Packets are the packet counters of an interface.
type Packets struct {
	Interface                                    string
	Received, ReceivedDropped, Sent, SentDropped uint64
}

// DetailsOf returns a function that reads the details of a cgroup, and if requested the packet counters of its
// processes' network. Values that cannot be read are left out.
func DetailsOf(cgroups *podcgroups.Machine) func(cgroup string, packets bool) Details {
	return func(cgroup string, packets bool) Details {
		read, err := cgroups.Details(cgroup)
		if err != nil {
			return Details{}
		}
		details := Details{Details: read}
		if packets {
			details.Packets = packetsOf("/proc", cgroup, read.PID)
		}
		return details
	}
}

// packetsOf reads the packet counters of a cgroup's network: those of the machine for the root cgroup, otherwise those
// of a process in the cgroup. It returns nil if they cannot be read.
func packetsOf(proc, cgroup string, pid int) []Packets {
	dir, err := procfs.NewFS(proc)
	if err != nil {
		return nil
	}
	var interfaces procfs.NetDev
	switch {
	case cgroup == wholeMachine:
		interfaces, err = dir.NetDev()
	case pid > 0:
		var process procfs.Proc
		if process, err = dir.Proc(pid); err == nil {
			interfaces, err = process.NetDev()
		}
	}
	if err != nil {
		return nil
	}
	var all []Packets
	for _, name := range slices.Sorted(maps.Keys(interfaces)) {
		line := interfaces[name]
		all = append(all, Packets{
			Interface: name,
			Received:  line.RxPackets, ReceivedDropped: line.RxDropped, Sent: line.TxPackets, SentDropped: line.TxDropped,
		})
	}
	return all
}
