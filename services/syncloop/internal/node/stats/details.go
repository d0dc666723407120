package stats

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// detailsWait is how long to wait for the details of one cgroup, which takes a few milliseconds.
const detailsWait = time.Second

// Details is what dashboards show of a cgroup besides its usage. Values that could not be read are left out.
type Details struct {
	podcgroups.Details
	// At is the time of the reading; zero if the cgroup could not be read.
	At time.Time
	// Opened tells what the processes of the cgroup have open.
	Opened Opened
	// Packets has the network interfaces that the processes of the cgroup see.
	Packets []Packets
	// Mounted has the disks with mounted file systems. Only the root cgroup has it.
	Mounted []blockdevice.Diskstats
}

// Packets are the packet counters of an interface.
type Packets struct {
	Interface                                    string
	Received, ReceivedDropped, Sent, SentDropped uint64
}

// DetailsOf returns a function that reads the details of a cgroup, and if requested the packet counters of its
// processes' network. If the kernel hangs over a cgroup, only the details of that cgroup are missing. The function may
// be called from any goroutine. Details must not be modified.
func DetailsOf(
	cgroups *podcgroups.Machine, clk clock.Clock,
) func(ctx context.Context, cgroup string, packets bool) Details {
	book := detailsBook{
		clock: clk, running: map[detailsKey]*detailsReading{},
		read: func(k detailsKey) Details { return readDetails(cgroups, clk, k) },
	}
	return func(ctx context.Context, cgroup string, packets bool) Details {
		return book.get(ctx, detailsKey{cgroup, packets})
	}
}

// readDetails reads the details of a cgroup.
func readDetails(cgroups *podcgroups.Machine, clk clock.Clock, k detailsKey) Details {
	const proc = "/proc"
	read, err := cgroups.Details(k.cgroup)
	if err != nil {
		return Details{}
	}
	details := Details{Details: read, At: clk.Now(), Opened: openedBy(proc, k.cgroup, read.Processes, maxDescriptors)}
	if k.packets {
		details.Packets = packetsOf(proc, k.cgroup, read.PID)
	}
	if k.cgroup == wholeMachine {
		details.Mounted = mountedDisks(proc, "/sys")
		if len(details.Disks) == 0 {
			details.Disks = transfersOf(details.Mounted)
		}
	}
	return details
}

// detailsKey is what is read: the details of a cgroup, with or without packets.
type detailsKey struct {
	cgroup  string
	packets bool
}

// detailsBook has the readings in progress. Simultaneous callers share one.
type detailsBook struct {
	clock clock.Clock
	read  func(detailsKey) Details

	mu      sync.Mutex
	running map[detailsKey]*detailsReading
}

// detailsReading is a reading in progress.
type detailsReading struct {
	// ended is closed at the end of the reading, after value is set.
	ended chan struct{}
	value Details
	// late is true after a caller has waited for detailsWait. Others do not wait again.
	late bool
}

// get reads details, and waits for them until ctx ends, for at most detailsWait. The goroutine ends with the reading,
// or with the process if the kernel hangs.
func (b *detailsBook) get(ctx context.Context, k detailsKey) Details {
	reading, late := b.start(k)
	if late {
		return Details{}
	}
	timer := b.clock.NewTimer(detailsWait)
	defer timer.Stop()
	select {
	case <-reading.ended:
		return reading.value
	case <-timer.C():
		b.mu.Lock()
		reading.late = true
		b.mu.Unlock()
	case <-ctx.Done():
	}
	return Details{}
}

// start starts a reading, unless it is in progress.
func (b *detailsBook) start(k detailsKey) (reading *detailsReading, late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if reading := b.running[k]; reading != nil {
		return reading, reading.late
	}
	reading = &detailsReading{ended: make(chan struct{})}
	b.running[k] = reading
	go func() {
		reading.value = b.read(k)
		b.mu.Lock()
		delete(b.running, k)
		b.mu.Unlock()
		close(reading.ended)
	}()
	return reading, false
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
