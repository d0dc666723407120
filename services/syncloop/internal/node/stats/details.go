package stats

import (
	"maps"
	"slices"

	"github.com/prometheus/procfs"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// Details is what dashboards ask for of a cgroup beside what it uses.
type Details struct {
	podcgroups.Details
	// Packets has the interfaces of the network that the processes of the cgroup are in.
	Packets []Packets
}

// Packets are those of an interface.
type Packets struct {
	Interface                                    string
	Received, ReceivedDropped, Sent, SentDropped uint64
}

// DetailsOf returns what reads the details of a cgroup, and the packets of its processes' network if asked for. What cannot be read is not
// known.
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

// packetsOf reads the packets of a cgroup's network: the machine's, or that of a process in the cgroup. It returns none if
// they cannot be read.
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
