package kubeletapi

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

// microsecondsPerSecond converts the kernel's totals of pressure.
const microsecondsPerSecond = 1e6

// family is one of cAdvisor's metrics, with its labels.
type family struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

// cadvisorMetrics collects the cAdvisor metrics that dashboards use for pods, from the same reading as /stats/summary.
// The values are read at each scrape.
type cadvisorMetrics struct {
	reads
	detailMetrics
	cpu, memory, workingSet, rss, swap, faults, start                   family
	received, receiveErrors, sent, sendErrors                           family
	fsUsed, fsLimit, fsInodesFree, fsInodes                             family
	cpuStalled, cpuWaiting, memoryStalled, memoryWaiting                family
	ioStalled, ioWaiting                                                family
	failed, machineFailed, machineCPUs, machineMemory, machineSwapBytes family
}

// containerFamily returns a metric of a container, a pod or a cgroup.
func containerFamily(kind prometheus.ValueType, name, help string, more ...string) family {
	labels := append([]string{"container", "id", "image", "name", "namespace", "pod"}, more...)
	return family{prometheus.NewDesc(name, help, labels, nil), kind}
}

// stalled and waiting return metrics of the pressure on a resource.
func stalled(name, resource string) family {
	return containerFamily(prometheus.CounterValue, "container_pressure_"+name+"_stalled_seconds_total",
		"Time in seconds for which all processes waited for "+resource+".")
}

func waiting(name, resource string) family {
	return containerFamily(prometheus.CounterValue, "container_pressure_"+name+"_waiting_seconds_total",
		"Time in seconds for which some processes waited for "+resource+".")
}

// machineFamily returns a metric of the machine.
func machineFamily(name, help string) family {
	labels := []string{"boot_id", "machine_id", "system_uuid"}
	return family{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// plainFamily returns a metric without labels.
func plainFamily(name, help string) family {
	return family{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue}
}

func newCadvisorMetrics(h reads) *cadvisorMetrics {
	container, machine, plain := containerFamily, machineFamily, plainFamily
	return &cadvisorMetrics{
		reads: h, detailMetrics: newDetailMetrics(),

		cpu:        container(counter, "container_cpu_usage_seconds_total", "CPU time in seconds.", "cpu"),
		memory:     container(gauge, "container_memory_usage_bytes", "Used memory in bytes, including the page cache."),
		workingSet: container(gauge, "container_memory_working_set_bytes", "Working set in bytes: memory that cannot be reclaimed at once."),
		rss:        container(gauge, "container_memory_rss", "Anonymous memory in bytes."),
		swap:       container(gauge, "container_memory_swap", "Swapped memory in bytes."),
		faults:     container(counter, "container_memory_failures_total", "Page faults, by type: all, and those that read the disk.", "failure_type", "scope"),
		start:      container(gauge, "container_start_time_seconds", "Start time in seconds since 1970."),

		received:      container(counter, "container_network_receive_bytes_total", "Received bytes.", "interface"),
		receiveErrors: container(counter, "container_network_receive_errors_total", "Errors while receiving.", "interface"),
		sent:          container(counter, "container_network_transmit_bytes_total", "Sent bytes.", "interface"),
		sendErrors:    container(counter, "container_network_transmit_errors_total", "Errors while sending.", "interface"),

		fsUsed:       container(gauge, "container_fs_usage_bytes", "Used bytes of the file system; for a container, of its writable layer.", "device"),
		fsLimit:      container(gauge, "container_fs_limit_bytes", "Size of the file system in bytes.", "device"),
		fsInodesFree: container(gauge, "container_fs_inodes_free", "Free inodes of the file system.", "device"),
		fsInodes:     container(gauge, "container_fs_inodes_total", "Number of inodes of the file system.", "device"),

		cpuStalled:    stalled("cpu", "a CPU"),
		cpuWaiting:    waiting("cpu", "a CPU"),
		memoryStalled: stalled("memory", "memory"),
		memoryWaiting: waiting("memory", "memory"),
		ioStalled:     stalled("io", "disks"),
		ioWaiting:     waiting("io", "disks"),

		failed:           plain("container_scrape_error", "1 if the resource usage could not be read, otherwise 0."),
		machineFailed:    plain("machine_scrape_error", "1 if the machine could not be read, otherwise 0."),
		machineCPUs:      machine("machine_cpu_cores", "Number of CPUs of the machine."),
		machineMemory:    machine("machine_memory_bytes", "Memory of the machine in bytes."),
		machineSwapBytes: machine("machine_swap_bytes", "Swap space of the machine in bytes."),
	}
}

// Describe implements prometheus.Collector.
func (m *cadvisorMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, f := range []family{
		m.cpu, m.memory, m.workingSet, m.rss, m.swap, m.faults, m.start,
		m.received, m.receiveErrors, m.sent, m.sendErrors,
		m.fsUsed, m.fsLimit, m.fsInodesFree, m.fsInodes,
		m.cpuStalled, m.cpuWaiting, m.memoryStalled, m.memoryWaiting, m.ioStalled, m.ioWaiting,
		m.failed, m.machineFailed, m.machineCPUs, m.machineMemory, m.machineSwapBytes,
	} {
		to <- f.Desc
	}
	m.describe(to)
}

// Collect implements prometheus.Collector.
func (m *cadvisorMetrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), resourceTimeout)
	defer cancel()
	report, err := m.Report(ctx)
	bad := 0.0
	if err != nil {
		m.Logger.Debug("the resource usage of pods could not be read", telemetry.KeyError, err)
		bad = 1
	}
	to <- prometheus.MustNewConstMetric(m.failed.Desc, m.failed.kind, bad)
	to <- prometheus.MustNewConstMetric(m.machineFailed.Desc, m.machineFailed.kind, bad)
	if err != nil {
		return
	}
	m.machine(to, &report.Machine)
	m.node(ctx, to, report)
	for i := range report.Pods {
		pod := &report.Pods[i]
		m.pod(ctx, to, pod, report.Places[types.UID(pod.PodRef.UID)])
	}
}

func (m *cadvisorMetrics) machine(to chan<- prometheus.Metric, machine *stats.Machine) {
	for f, value := range map[family]float64{
		m.machineCPUs: float64(machine.CPUs), m.machineMemory: float64(machine.MemoryBytes),
		m.machineSwapBytes: float64(machine.SwapBytes),
	} {
		to <- prometheus.MustNewConstMetric(f.Desc, f.kind, value, machine.BootID, machine.ID, machine.SystemUUID)
	}
}

// node collects the metrics of the machine and of all pods together.
func (m *cadvisorMetrics) node(ctx context.Context, to chan<- prometheus.Metric, report *stats.Report) {
	node := &report.Node
	whole := m.subjectFor(to, "", "/", "", "", "", "")
	whole.cpuAndMemory(node.CPU, node.Memory, node.Swap)
	whole.io(node.IO)
	whole.network(node.Network)
	details := whole.read(ctx, "/", node.Network)
	details.MemoryLimit, details.SwapLimit = &report.Machine.MemoryBytes, &report.Machine.SwapBytes
	whole.details(&details, node.Network)
	whole.disk(node.Fs)
	whole.inodes(node.Fs)
	whole.started(node.StartTime)
	for i := range node.SystemContainers {
		if c := &node.SystemContainers[i]; c.Name == statsv1alpha1.SystemContainerPods {
			all := m.subjectFor(to, "", report.PodsCgroup, "", "", "", "")
			all.cpuAndMemory(c.CPU, c.Memory, c.Swap)
			all.io(c.IO)
			details := all.read(ctx, report.PodsCgroup, nil)
			all.details(&details, nil)
		}
	}
}

// pod collects the metrics of a pod, which owns the network, and of its containers. A container without a cgroup of its
// own is identified by its runtime ID.
func (m *cadvisorMetrics) pod(
	ctx context.Context, to chan<- prometheus.Metric, pod *statsv1alpha1.PodStats, place stats.Place,
) {
	whole := m.subjectFor(to, "", named(place.Cgroup, place.Sandbox), "", "", pod.PodRef.Namespace, pod.PodRef.Name)
	whole.cpuAndMemory(pod.CPU, pod.Memory, pod.Swap)
	whole.io(pod.IO)
	whole.network(pod.Network)
	details := whole.read(ctx, place.Cgroup, pod.Network)
	whole.details(&details, pod.Network)
	whole.started(pod.StartTime)
	for i := range pod.Containers {
		c := &pod.Containers[i]
		at := place.Containers[c.Name]
		one := m.subjectFor(to, c.Name, named(at.Cgroup, at.ID), at.Image, at.ID, pod.PodRef.Namespace, pod.PodRef.Name)
		one.cpuAndMemory(c.CPU, c.Memory, c.Swap)
		one.io(c.IO)
		details := one.read(ctx, at.Cgroup, nil)
		one.details(&details, nil)
		one.disk(c.Rootfs)
		one.started(c.StartTime)
	}
}

func named(cgroup, id string) string {
	if cgroup != "" || id == "" {
		return cgroup
	}
	return "/" + id
}

// subject is what metrics describe, as the values of the labels.
type subject struct {
	*cadvisorMetrics
	to     chan<- prometheus.Metric
	labels []string
}

// container returns a subject from its labels, in the order of their names.
func (m *cadvisorMetrics) subjectFor(
	to chan<- prometheus.Metric, container, id, image, name, namespace, pod string,
) subject {
	return subject{m, to, []string{container, id, image, name, namespace, pod}}
}

// send sends a value, divided by unit, if it is known; with a timestamp if timed is true.
func (s subject) send(f family, at metav1.Time, timed bool, value *uint64, unit float64, more ...string) {
	if value == nil {
		return
	}
	metric := s.metric(f, float64(*value)/unit, more...)
	if timed && !at.IsZero() {
		metric = prometheus.NewMetricWithTimestamp(at.Time, metric)
	}
	s.to <- metric
}

// value sends a value without a timestamp.
func (s subject) value(f family, value float64, more ...string) { s.to <- s.metric(f, value, more...) }

func (s subject) metric(f family, value float64, more ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(f.Desc, f.kind, value, append(s.labels[:len(s.labels):len(s.labels)], more...)...)
}

func (s subject) cpuAndMemory(
	cpu *statsv1alpha1.CPUStats, memory *statsv1alpha1.MemoryStats, swap *statsv1alpha1.SwapStats,
) {
	if cpu != nil {
		s.send(s.cpu, cpu.Time, true, cpu.UsageCoreNanoSeconds, float64(time.Second), "total")
		s.pressure(s.cpuStalled, s.cpuWaiting, cpu.Time, cpu.PSI)
	}
	if memory != nil {
		s.send(s.memory, memory.Time, true, memory.UsageBytes, 1)
		s.send(s.workingSet, memory.Time, true, memory.WorkingSetBytes, 1)
		s.send(s.rss, memory.Time, true, memory.RSSBytes, 1)
		for _, scope := range []string{"container", "hierarchy"} { // cAdvisor has the same values for both
			s.send(s.faults, memory.Time, true, memory.PageFaults, 1, "pgfault", scope)
			s.send(s.faults, memory.Time, true, memory.MajorPageFaults, 1, "pgmajfault", scope)
		}
		s.pressure(s.memoryStalled, s.memoryWaiting, memory.Time, memory.PSI)
	}
	if swap != nil {
		s.send(s.swap, swap.Time, true, swap.SwapUsageBytes, 1)
	}
}

func (s subject) io(io *statsv1alpha1.IOStats) {
	if io != nil {
		s.pressure(s.ioStalled, s.ioWaiting, io.Time, io.PSI)
	}
}

// pressure sends how long all processes and some of them waited for a resource.
func (s subject) pressure(stalled, waiting family, at metav1.Time, psi *statsv1alpha1.PSIStats) {
	if psi != nil {
		s.send(stalled, at, true, &psi.Full.Total, microsecondsPerSecond)
		s.send(waiting, at, true, &psi.Some.Total, microsecondsPerSecond)
	}
}

func (s subject) network(network *statsv1alpha1.NetworkStats) {
	if network == nil {
		return
	}
	for i := range network.Interfaces {
		one := &network.Interfaces[i]
		s.send(s.received, network.Time, true, one.RxBytes, 1, one.Name)
		s.send(s.receiveErrors, network.Time, true, one.RxErrors, 1, one.Name)
		s.send(s.sent, network.Time, true, one.TxBytes, 1, one.Name)
		s.send(s.sendErrors, network.Time, true, one.TxErrors, 1, one.Name)
	}
}

// disk sends the metrics of a file system. Its device is unknown.
func (s subject) disk(fs *statsv1alpha1.FsStats) {
	if fs == nil {
		return
	}
	s.send(s.fsUsed, fs.Time, true, fs.UsedBytes, 1, "")
	s.send(s.fsLimit, fs.Time, true, fs.CapacityBytes, 1, "")
}

// inodes sends the inodes of a file system. As with a kubelet on containerd, containers do not have them.
func (s subject) inodes(fs *statsv1alpha1.FsStats) {
	if fs == nil {
		return
	}
	s.send(s.fsInodesFree, fs.Time, true, fs.InodesFree, 1, "")
	s.send(s.fsInodes, fs.Time, true, fs.Inodes, 1, "")
}

// started sends the start time, which is the same at each scrape.
func (s subject) started(at metav1.Time) {
	if at.IsZero() {
		return
	}
	seconds := uint64(max(at.Unix(), 0))
	s.send(s.start, at, false, &seconds, 1)
}
