package resizes

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// Class is a class of pods whose resize is pending.
type Class struct {
	// Reason is the reason of the condition PodResizePending, and Priority the resize.PriorityClass of the pod.
	Reason, Priority string
}

// Counts has the numbers of pods whose resize is pending and in progress.
type Counts struct {
	Pending    map[Class]int
	InProgress int
}

// Count counts the pods whose resize is pending or in progress. Pod returns a pod, or nil if it is not known any more.
func (b *Book) Count(pod func(types.UID) *v1.Pod) Counts {
	counts := Counts{Pending: map[Class]int{}}
	for _, uid := range b.UIDs() {
		record, _ := b.Get(uid)
		if record.Conditions.InProgress != nil {
			counts.InProgress++
		}
		if pending := record.Conditions.Pending; pending != nil {
			class := Class{Reason: pending.Reason, Priority: resize.PriorityUnknown}
			if p := pod(uid); p != nil {
				class.Priority = resize.PriorityClass(p.Spec.Priority)
			}
			counts.Pending[class]++
		}
	}
	return counts
}

// Expose registers the gauges of resizes, which call count at each scrape.
func Expose(registry prometheus.Registerer, count func() Counts) {
	registry.MustRegister(&collector{
		count: count,
		pending: prometheus.NewDesc("kubelet_pod_pending_resizes",
			"Pods whose resize is pending, by reason (deferred, infeasible) and by the class of their priority.",
			[]string{"reason", "priority_bucket"}, nil),
		inProgress: prometheus.NewDesc("kubelet_pod_in_progress_resizes", "Pods that are being resized.", nil, nil),
	})
}

// collector implements prometheus.Collector.
type collector struct {
	count               func() Counts
	pending, inProgress *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	to <- c.pending
	to <- c.inProgress
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	now := c.count()
	for class, n := range now.Pending {
		reason := strings.ToLower(class.Reason)
		to <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(n), reason, class.Priority)
	}
	to <- prometheus.MustNewConstMetric(c.inProgress, prometheus.GaugeValue, float64(now.InProgress))
}
