package kubeletapi

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// summary answers with the resource usage of the node, its pods and their containers. With only_cpu_and_memory=true it
// leaves out disks and networks.
func (h reads) summary(w http.ResponseWriter, r *http.Request) {
	report, err := h.Report(r.Context())
	if err != nil {
		failed(w, err)
		return
	}
	found := report.Summary
	if flag(r.URL.Query(), "only_cpu_and_memory") {
		found = cpuAndMemory(found)
	}
	h.writeJSON(w, found)
}

// cpuAndMemory returns the CPU and memory parts of a summary.
func cpuAndMemory(whole *statsv1alpha1.Summary) *statsv1alpha1.Summary {
	node := whole.Node
	out := &statsv1alpha1.Summary{
		Node: statsv1alpha1.NodeStats{
			NodeName: node.NodeName, StartTime: node.StartTime, CPU: node.CPU, Memory: node.Memory, Swap: node.Swap,
			SystemContainers: containersOf(node.SystemContainers),
		},
		Pods: make([]statsv1alpha1.PodStats, 0, len(whole.Pods)),
	}
	for i := range whole.Pods {
		pod := &whole.Pods[i]
		out.Pods = append(out.Pods, statsv1alpha1.PodStats{
			PodRef: pod.PodRef, StartTime: pod.StartTime, CPU: pod.CPU, Memory: pod.Memory, Swap: pod.Swap,
			Containers: containersOf(pod.Containers),
		})
	}
	return out
}

func containersOf(whole []statsv1alpha1.ContainerStats) []statsv1alpha1.ContainerStats {
	out := make([]statsv1alpha1.ContainerStats, 0, len(whole))
	for i := range whole {
		c := &whole[i]
		out = append(out, statsv1alpha1.ContainerStats{
			Name: c.Name, StartTime: c.StartTime, CPU: c.CPU, Memory: c.Memory, Swap: c.Swap,
		})
	}
	return out
}

// resourceTimeout bounds the reading of the resource usage.
const resourceTimeout = 20 * time.Second

// resourceMetrics collects the kubelet's resource metrics for metrics-server and autoscaling. The values are read at
// each scrape.
type resourceMetrics struct {
	reads
	node, pod, container     figures
	swapLimit, start, failed *prometheus.Desc
}

// figures are the metrics of one kind of object.
type figures struct{ cpu, memory, swap *prometheus.Desc }

func newResourceMetrics(h reads) *resourceMetrics {
	make3 := func(kind string, labels ...string) figures {
		return figures{
			cpu: prometheus.NewDesc(kind+"_cpu_usage_seconds_total",
				"CPU time of a "+kind+" in seconds.", labels, nil),
			memory: prometheus.NewDesc(kind+"_memory_working_set_bytes",
				"Working set of a "+kind+" in bytes: memory that cannot be reclaimed at once.", labels, nil),
			swap: prometheus.NewDesc(kind+"_swap_usage_bytes", "Swapped memory of a "+kind+" in bytes.", labels, nil),
		}
	}
	return &resourceMetrics{
		reads: h, node: make3("node"), pod: make3("pod", "pod", "namespace"),
		container: make3("container", "container", "pod", "namespace"),
		swapLimit: prometheus.NewDesc("container_swap_limit_bytes", "Memory of a container that may be swapped, in bytes.",
			[]string{"container", "pod", "namespace"}, nil),
		start: prometheus.NewDesc("container_start_time_seconds", "Start time of a container in seconds since 1970.",
			[]string{"container", "pod", "namespace"}, nil),
		failed: prometheus.NewDesc("resource_scrape_error", "1 if the resource usage could not be read, otherwise 0.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *resourceMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, f := range []figures{m.node, m.pod, m.container} {
		to <- f.cpu
		to <- f.memory
		to <- f.swap
	}
	to <- m.swapLimit
	to <- m.start
	to <- m.failed
}

// Collect implements prometheus.Collector.
func (m *resourceMetrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), resourceTimeout)
	defer cancel()
	found, err := m.Report(ctx)
	if err != nil {
		m.Logger.Debug("the resource usage of pods could not be read", telemetry.KeyError, err)
		to <- prometheus.MustNewConstMetric(m.failed, prometheus.GaugeValue, 1)
		return
	}
	to <- prometheus.MustNewConstMetric(m.failed, prometheus.GaugeValue, 0)
	m.node.collect(to, found.Node.CPU, found.Node.Memory, found.Node.Swap)
	for i := range found.Pods {
		pod := &found.Pods[i]
		for j := range pod.Containers {
			c := &pod.Containers[j]
			labels := []string{c.Name, pod.PodRef.Name, pod.PodRef.Namespace}
			m.container.collect(to, c.CPU, c.Memory, c.Swap, labels...)
			if swap := c.Swap; swap != nil && swap.SwapUsageBytes != nil && swap.SwapAvailableBytes != nil {
				limit := float64(*swap.SwapUsageBytes + *swap.SwapAvailableBytes)
				to <- prometheus.NewMetricWithTimestamp(swap.Time.Time,
					prometheus.MustNewConstMetric(m.swapLimit, prometheus.GaugeValue, limit, labels...))
			}
			if !c.StartTime.IsZero() {
				started := float64(c.StartTime.UnixNano()) / float64(time.Second)
				to <- prometheus.NewMetricWithTimestamp(c.StartTime.Time,
					prometheus.MustNewConstMetric(m.start, prometheus.GaugeValue, started, labels...))
			}
		}
		m.pod.collect(to, pod.CPU, pod.Memory, pod.Swap, pod.PodRef.Name, pod.PodRef.Namespace)
	}
}

func (f figures) collect(
	to chan<- prometheus.Metric, cpu *statsv1alpha1.CPUStats, memory *statsv1alpha1.MemoryStats,
	swap *statsv1alpha1.SwapStats, labels ...string,
) {
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, at metav1.Time, value *uint64, unit float64) {
		if value != nil {
			to <- prometheus.NewMetricWithTimestamp(at.Time,
				prometheus.MustNewConstMetric(desc, kind, float64(*value)/unit, labels...))
		}
	}
	if cpu != nil {
		send(f.cpu, prometheus.CounterValue, cpu.Time, cpu.UsageCoreNanoSeconds, float64(time.Second))
	}
	if memory != nil {
		send(f.memory, prometheus.GaugeValue, memory.Time, memory.WorkingSetBytes, 1)
	}
	if swap != nil {
		send(f.swap, prometheus.GaugeValue, swap.Time, swap.SwapUsageBytes, 1)
	}
}
