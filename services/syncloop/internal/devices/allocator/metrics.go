package allocator

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// The kubelet's values of the label boundary.
const (
	boundaryCore  = "physical_cpu"
	boundaryNode  = "numa_node"
	boundaryCache = "uncore_cache"
)

// Metrics has the kubelet's metrics of the CPU manager, the memory manager and the topology manager.
type Metrics struct {
	memoryPinnings, memoryErrors prometheus.Counter
	pinnings, pinningErrors      prometheus.Counter
	shared, exclusive            prometheus.Gauge
	perNode                      *prometheus.GaugeVec
	alignments, failures         *prometheus.CounterVec
	requests, errors             prometheus.Counter
	duration                     prometheus.Histogram

	mu sync.Mutex
	// nodes are the NUMA nodes that have a value.
	nodes map[int]bool
}

// NewMetrics registers the metrics of one Allocator; with a nil registry they are not registered.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: "kubelet_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return factory.NewGauge(prometheus.GaugeOpts{Name: "kubelet_" + name, Help: help})
	}
	alignments := func(name, help string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_" + name, Help: help},
			[]string{"scope", "boundary"})
	}
	return &Metrics{
		nodes: map[int]bool{},
		memoryPinnings: counter("memory_manager_pinning_requests_total",
			"Containers that were to get memory of NUMA nodes."),
		memoryErrors: counter("memory_manager_pinning_errors_total",
			"Containers that were to get memory of NUMA nodes and could not."),
		pinnings: counter("cpu_manager_pinning_requests_total",
			"Containers that were to get CPUs for themselves."),
		pinningErrors: counter("cpu_manager_pinning_errors_total",
			"Containers that were to get CPUs for themselves and could not."),
		shared: gauge("cpu_manager_shared_pool_size_millicores",
			"CPUs that can be given to containers for themselves, in thousandths."),
		exclusive: gauge("cpu_manager_exclusive_cpu_allocation_count", "CPUs that containers have for themselves."),
		perNode: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_cpu_manager_allocation_per_numa",
			Help: "CPUs that containers have for themselves by NUMA node.",
		}, []string{boundaryNode}),
		alignments: alignments("container_aligned_compute_resources_count",
			"Allocations of resources that are aligned, by the scope and the boundary."),
		failures: alignments("container_aligned_compute_resources_failure_count",
			"Allocations of resources that could not be aligned, by the scope and the boundary."),
		requests: counter("topology_manager_admission_requests_total", "Pods whose resources were to be aligned."),
		errors: counter("topology_manager_admission_errors_total",
			"Pods whose resources could not be aligned or allocated."),
		duration: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_topology_manager_admission_duration_ms", Help: "Durations of alignments in milliseconds.",
			Buckets: prometheus.ExponentialBuckets(.05, 2, 15), //nolint:mnd // the kubelet's
		}),
	}
}

// expect makes the values exist that a kubelet has from its start.
func (m *Metrics) expect(static, aligns bool) {
	if static {
		m.alignments.WithLabelValues(numa.ScopeContainer, boundaryCore)
		m.alignments.WithLabelValues(numa.ScopeContainer, boundaryCache)
		m.failures.WithLabelValues(numa.ScopeContainer, boundaryCore)
	}
	if aligns {
		for _, scope := range []string{numa.ScopeContainer, numa.ScopePod} {
			m.alignments.WithLabelValues(scope, boundaryNode)
			m.failures.WithLabelValues(scope, boundaryNode)
		}
	}
}

// aligned counts an allocation.
func (m *Metrics) aligned(scope, boundary string, ok bool) {
	if ok {
		m.alignments.WithLabelValues(scope, boundary).Inc()
		return
	}
	m.failures.WithLabelValues(scope, boundary).Inc()
}

// pinned counts the allocation of CPUs to a container that wants some.
func (m *Metrics) pinned(book *cpus.Book, pod *v1.Pod, c *v1.Container, taken bool, err error) {
	m.pinnings.Inc()
	if err != nil {
		m.pinningErrors.Inc()
	}
	if book.Options().WholeCores {
		m.aligned(numa.ScopeContainer, boundaryCore, err == nil)
	}
	if taken && book.SharesCache(pod, c) {
		m.aligned(numa.ScopeContainer, boundaryCache, true)
	}
}

// memoryPinned counts the allocation of memory to a container that wants some of NUMA nodes.
func (m *Metrics) memoryPinned(err error) {
	m.memoryPinnings.Inc()
	if err != nil {
		m.memoryErrors.Inc()
	}
}

// admitted counts the admission of a pod.
func (m *Metrics) admitted(aligns bool, took time.Duration, err error) {
	m.requests.Inc()
	if err != nil && aligns {
		m.errors.Inc()
	}
	m.duration.Observe(float64(took.Milliseconds()))
}

// measure updates the gauges of CPUs.
func (a *Allocator) measure() {
	if a.cpus == nil {
		return
	}
	a.mu.Lock()
	free, held := a.cpus.Free().Size(), a.cpus.Held()
	counts := a.cpus.Machine().NodeCounts(held)
	a.mu.Unlock()
	m := a.cfg.Metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shared.Set(float64(free) * 1000) //nolint:mnd // thousandths
	m.exclusive.Set(float64(held.Size()))
	for node := range counts {
		m.nodes[node] = true
	}
	for node := range m.nodes {
		m.perNode.WithLabelValues(strconv.Itoa(node)).Set(float64(counts[node]))
	}
}
