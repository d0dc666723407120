package kubeletapi

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs/blockdevice"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// detailMetrics are the metrics that only dashboards use, from stats.Details.
type detailMetrics struct {
	figures                                    []figure
	cfsPeriods, cfsThrottled, cfsThrottledTime family
	lastSeen, openFiles, deviceUsage           family
	transfers                                  []transfer
	mounted                                    []each[blockdevice.Diskstats]
	packets                                    []each[stats.Packets]
}

// figure is a metric with one value for each cgroup, which is divided by unit. It is nil if it is unknown.
type figure struct {
	family
	of   func(*stats.Details) *uint64
	unit float64
}

// transfer is a metric of what a cgroup reads from each disk or writes to it.
type transfer struct {
	family
	of        func(*podcgroups.DiskIO) map[string]uint64
	operation string
}

// each is a metric with one value for each disk or interface, which is divided by unit.
type each[T any] struct {
	family
	of   func(*T) uint64
	unit float64
}

func newDetailMetrics() detailMetrics {
	container := containerFamily
	return detailMetrics{
		figures:          slices.Concat(cpuFigures(), memoryFigures(), processFigures()),
		cfsPeriods:       container(counter, "container_cpu_cfs_periods_total", "Enforcement periods of the CPU limit."),
		cfsThrottled:     container(counter, "container_cpu_cfs_throttled_periods_total", "Enforcement periods in which processes were throttled."),
		cfsThrottledTime: container(counter, "container_cpu_cfs_throttled_seconds_total", "Time in seconds for which processes were throttled."),
		lastSeen:         container(gauge, "container_last_seen", "Time of the reading in seconds since 1970."),
		openFiles:        container(gauge, "container_ulimits_soft", "Soft limit of the first process; -1 if it is unlimited.", "ulimit"),
		deviceUsage: container(counter, "container_blkio_device_usage_total", "Bytes read from the disk and written to it, by operation.",
			"device", "major", "minor", "operation"),
		transfers: transfers(), mounted: mountedDisks(), packets: packets(),
	}
}

func cpuFigures() []figure {
	var all []figure
	add := func(kind prometheus.ValueType, name, help string, unit float64, of func(*stats.Details) *uint64) {
		all = append(all, figure{containerFamily(kind, name, help), of, unit})
	}
	add(counter, "container_cpu_user_seconds_total", "CPU time of programs in seconds.", float64(time.Second),
		func(d *stats.Details) *uint64 { return d.UserTime })
	add(counter, "container_cpu_system_seconds_total", "CPU time of the kernel in seconds.", float64(time.Second),
		func(d *stats.Details) *uint64 { return d.SystemTime })
	add(gauge, "container_spec_cpu_period", "Period of the CPU limit in microseconds.", 1,
		func(d *stats.Details) *uint64 { return d.CPUPeriod })
	add(gauge, "container_spec_cpu_quota", "CPU limit in microseconds of each period.", 1,
		func(d *stats.Details) *uint64 { return d.CPUQuota })
	add(gauge, "container_spec_cpu_shares", "CPU shares: 1024 for each requested CPU.", 1,
		func(d *stats.Details) *uint64 { return d.CPUShares })
	return all
}

func memoryFigures() []figure {
	var all []figure
	add := func(kind prometheus.ValueType, name, help string, of func(*stats.Details) *uint64) {
		all = append(all, figure{containerFamily(kind, name, help), of, 1})
	}
	add(gauge, "container_memory_cache", "Memory of cached files in bytes.",
		func(d *stats.Details) *uint64 { return d.CacheBytes })
	add(gauge, "container_memory_mapped_file", "Memory of mapped files in bytes.",
		func(d *stats.Details) *uint64 { return d.MappedBytes })
	add(gauge, "container_memory_max_usage_bytes", "Largest memory usage in bytes.",
		func(d *stats.Details) *uint64 { return d.PeakBytes })
	add(counter, "container_memory_failcnt", "Times that the memory limit was hit, with cgroup v1.",
		func(d *stats.Details) *uint64 { return d.LimitHits })
	add(counter, "container_memory_events_high_total", "Times that memory.high was exceeded, with cgroup v2.",
		func(d *stats.Details) *uint64 { return d.HighEvents })
	add(counter, "container_memory_events_max_total", "Times that the memory limit was hit, with cgroup v2.",
		func(d *stats.Details) *uint64 { return d.MaxEvents })
	add(gauge, "container_spec_memory_limit_bytes", "Memory limit in bytes; 0 for none.",
		func(d *stats.Details) *uint64 { return d.MemoryLimit })
	add(gauge, "container_spec_memory_swap_limit_bytes", "Limit of swapped memory in bytes; 0 for none.",
		func(d *stats.Details) *uint64 { return d.SwapLimit })
	add(gauge, "container_spec_memory_reservation_limit_bytes", "Reserved memory in bytes; 0 for none.",
		func(d *stats.Details) *uint64 { return d.MemoryReserved })
	add(counter, "container_oom_events_total", "Processes that the kernel killed because memory ran out.",
		func(d *stats.Details) *uint64 { return d.OOMKills })
	return all
}

func processFigures() []figure {
	var all []figure
	add := func(name, help string, of func(*stats.Details) *uint64) {
		all = append(all, figure{containerFamily(gauge, name, help), of, 1})
	}
	add("container_processes", "Number of processes, without those of the cgroups below.", processCount)
	add("container_threads", "Number of processes and threads.", func(d *stats.Details) *uint64 { return d.Threads })
	add("container_threads_max", "Limit of processes and threads; 0 for none.",
		func(d *stats.Details) *uint64 { return d.MaxThreads })
	add("container_file_descriptors", "Number of file descriptors of the processes.",
		func(d *stats.Details) *uint64 { return d.Opened.Descriptors })
	add("container_sockets", "Number of sockets of the processes.",
		func(d *stats.Details) *uint64 { return d.Opened.Sockets })
	return all
}

func processCount(d *stats.Details) *uint64 {
	if d.Processes == nil {
		return nil
	}
	n := uint64(len(d.Processes))
	return &n
}

func transfers() []transfer {
	disk := func(name, help string) family { return containerFamily(counter, "container_fs_"+name, help, "device") }
	bytes := func(d *podcgroups.DiskIO) map[string]uint64 { return d.Bytes }
	operations := func(d *podcgroups.DiskIO) map[string]uint64 { return d.Operations }
	return []transfer{
		{disk("reads_bytes_total", "Bytes read from the disk."), bytes, "Read"},
		{disk("writes_bytes_total", "Bytes written to the disk."), bytes, "Write"},
		{disk("reads_total", "Reads of the disk."), operations, "Read"},
		{disk("writes_total", "Writes to the disk."), operations, "Write"},
	}
}

// mountedDisks returns the metrics that only the machine has.
func mountedDisks() []each[blockdevice.Diskstats] {
	var all []each[blockdevice.Diskstats]
	add := func(kind prometheus.ValueType, name, help string, unit float64, of func(*blockdevice.Diskstats) uint64) {
		all = append(all, each[blockdevice.Diskstats]{containerFamily(kind, "container_fs_"+name, help, "device"), of, unit})
	}
	const milliseconds = 1000
	add(counter, "reads_merged_total", "Merged reads of the disk.", 1,
		func(d *blockdevice.Diskstats) uint64 { return d.ReadMerges })
	add(counter, "sector_reads_total", "Sectors read from the disk.", 1,
		func(d *blockdevice.Diskstats) uint64 { return d.ReadSectors })
	add(counter, "read_seconds_total", "Time in seconds of all reads.", milliseconds,
		func(d *blockdevice.Diskstats) uint64 { return d.ReadTicks })
	add(counter, "writes_merged_total", "Merged writes to the disk.", 1,
		func(d *blockdevice.Diskstats) uint64 { return d.WriteMerges })
	add(counter, "sector_writes_total", "Sectors written to the disk.", 1,
		func(d *blockdevice.Diskstats) uint64 { return d.WriteSectors })
	add(counter, "write_seconds_total", "Time in seconds of all writes.", milliseconds,
		func(d *blockdevice.Diskstats) uint64 { return d.WriteTicks })
	add(gauge, "io_current", "Reads and writes in progress.", 1,
		func(d *blockdevice.Diskstats) uint64 { return d.IOsInProgress })
	add(counter, "io_time_seconds_total", "Time in seconds with reads or writes in progress.", milliseconds,
		func(d *blockdevice.Diskstats) uint64 { return d.IOsTotalTicks })
	add(counter, "io_time_weighted_seconds_total", "Time in seconds of all reads and writes.", milliseconds,
		func(d *blockdevice.Diskstats) uint64 { return d.WeightedIOTicks })
	return all
}

func packets() []each[stats.Packets] {
	var all []each[stats.Packets]
	add := func(name, help string, of func(*stats.Packets) uint64) {
		all = append(all, each[stats.Packets]{containerFamily(counter, "container_network_"+name, help, "interface"), of, 1})
	}
	add("receive_packets_total", "Received packets.", func(p *stats.Packets) uint64 { return p.Received })
	add("receive_packets_dropped_total", "Dropped received packets.",
		func(p *stats.Packets) uint64 { return p.ReceivedDropped })
	add("transmit_packets_total", "Sent packets.", func(p *stats.Packets) uint64 { return p.Sent })
	add("transmit_packets_dropped_total", "Packets dropped while sending.",
		func(p *stats.Packets) uint64 { return p.SentDropped })
	return all
}

func (m *detailMetrics) describe(to chan<- *prometheus.Desc) {
	for _, f := range []family{m.cfsPeriods, m.cfsThrottled, m.cfsThrottledTime, m.lastSeen, m.openFiles, m.deviceUsage} {
		to <- f.Desc
	}
	for _, f := range m.figures {
		to <- f.Desc
	}
	for _, f := range m.transfers {
		to <- f.Desc
	}
	for _, f := range m.mounted {
		to <- f.Desc
	}
	for _, f := range m.packets {
		to <- f.Desc
	}
}

// read reads the details of a cgroup at this moment, with packets if the network is known: a pod in the machine's
// network has none of its own.
func (s subject) read(ctx context.Context, cgroup string, network *statsv1alpha1.NetworkStats) stats.Details {
	if s.Details == nil || cgroup == "" {
		return stats.Details{}
	}
	return s.Details(ctx, cgroup, network != nil)
}

// details sends the metrics of details that were read.
func (s subject) details(d *stats.Details, network *statsv1alpha1.NetworkStats) {
	if d.At.IsZero() {
		return
	}
	s.count(s.lastSeen, uint64(max(d.At.Unix(), 0)), 1)
	for _, f := range s.figures {
		s.send(f.family, metav1.Time{}, false, f.of(d), f.unit)
	}
	if cfs := d.CFS; cfs != nil {
		s.count(s.cfsPeriods, cfs.Periods, 1)
		s.count(s.cfsThrottled, cfs.Throttled, 1)
		s.count(s.cfsThrottledTime, uint64(max(cfs.Time, 0)), float64(time.Second))
	}
	if limit := d.Opened.Limit; limit != nil && *limit == math.MaxUint64 {
		s.value(s.openFiles, -1, "max_open_files")
	} else if limit != nil {
		s.count(s.openFiles, *limit, 1, "max_open_files")
	}
	s.transferred(d.Disks)
	for i := range d.Mounted {
		for _, f := range s.mounted {
			s.count(f.family, f.of(&d.Mounted[i]), f.unit, "/dev/"+d.Mounted[i].DeviceName)
		}
	}
	for i := range d.Packets {
		one := &d.Packets[i]
		if network == nil || !slices.ContainsFunc(network.Interfaces, func(known statsv1alpha1.InterfaceStats) bool {
			return known.Name == one.Interface
		}) {
			continue
		}
		for _, f := range s.packets {
			s.count(f.family, f.of(one), f.unit, one.Interface)
		}
	}
}

// transferred sends the metrics of the disks of a cgroup.
func (s subject) transferred(disks []podcgroups.DiskIO) {
	for i := range disks {
		disk := &disks[i]
		for _, f := range s.transfers {
			s.count(f.family, f.of(disk)[f.operation], 1, disk.Device)
		}
		for operation, bytes := range disk.Bytes {
			s.count(s.deviceUsage, bytes, 1, disk.Device, disk.Major, disk.Minor, operation)
		}
	}
}

// count sends a value without a timestamp, divided by unit.
func (s subject) count(f family, value uint64, unit float64, more ...string) {
	s.value(f, float64(value)/unit, more...)
}
