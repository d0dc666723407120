package stats

import (
	"fmt"
	"os"
	"strconv"
	"strings"

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
		switch {
		case !packets:
		case cgroup == wholeMachine:
			details.Packets = packetsIn("/proc/net/dev")
		case read.PID > 0:
			details.Packets = packetsIn(fmt.Sprintf("/proc/%d/net/dev", read.PID))
		}
		return details
	}
}

// packetsIn reads a file of the kernel's; none when it cannot be read.
func packetsIn(file string) []Packets {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return parsePackets(string(data))
}

// The places of numbers behind the name of an interface.
const (
	receivedPackets, receivedDropped, sentPackets, sentDropped = 1, 3, 9, 11
	interfaceNumbers                                           = 16
)

// parsePackets reads lines as "  eth0: 1 2 3 …", below two of headings.
func parsePackets(content string) []Packets {
	var all []Packets
	for line := range strings.Lines(content) {
		name, rest, found := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if !found || len(words) < interfaceNumbers {
			continue
		}
		number := func(at int) uint64 {
			n, err := strconv.ParseUint(words[at], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
		all = append(all, Packets{
			Interface: strings.TrimSpace(name), Received: number(receivedPackets), ReceivedDropped: number(receivedDropped),
			Sent: number(sentPackets), SentDropped: number(sentDropped),
		})
	}
	return all
}
