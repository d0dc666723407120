package loop

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// resizeTrigger is the kubelet's name for the cause of a retry of deferred resizes.
type resizeTrigger string

// The causes.
const (
	// podUpdated is another pod that asks for a resize, podResized another pod that shrinks, and periodic a retry
	// without a known cause.
	podUpdated    resizeTrigger = "pod_updated"
	podsAdded     resizeTrigger = "pods_added"
	podsRemoved   resizeTrigger = "pods_removed"
	podTerminated resizeTrigger = "pod_terminated"
	podResized    resizeTrigger = "pod_resized"
	periodic      resizeTrigger = "periodic_retry"
)

// resizeResolution is the kubelet's name for the end of a deferred resize.
type resizeResolution string

// A deferred resize is accepted, or nobody asks for it any more, or the pod is gone.
const (
	resizeAccepted   resizeResolution = "accepted"
	resizeReverted   resizeResolution = "reverted"
	resizeTerminated resizeResolution = "terminated"
)

// deferredBuckets are the kubelet's, in seconds.
var deferredBuckets = []float64{5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600}

// resizeMetrics count the decisions about resizes.
type resizeMetrics struct {
	requested, infeasible, accepted *prometheus.CounterVec
	deferred                        *prometheus.HistogramVec
}

func newResizeMetrics(factory promauto.Factory) resizeMetrics {
	return resizeMetrics{
		requested: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_container_requested_resizes_total",
			Help: "Requested changes of cpu or memory, by resource, by requirement (requests or limits) and by operation " +
				"(add, remove, increase, decrease).",
		}, []string{"resource", "requirement", "operation"}),
		infeasible: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_infeasible_resizes_total", Help: "Infeasible resizes, by reason.",
		}, []string{"reason_detail"}),
		accepted: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_deferred_accepted_resizes_total",
			Help: "Deferred resizes that were accepted, by what triggered the retry.",
		}, []string{"retry_trigger"}),
		deferred: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_deferred_resize_duration_seconds", Buckets: deferredBuckets,
			Help: "How long resizes were deferred, by resolution (accepted, reverted, terminated) and by the class of the pod's priority.",
		}, []string{"resolution", "priority_bucket"}),
	}
}

// resizeRequested counts a requested change.
func (m *Metrics) resizeRequested(r resize.Request) {
	m.resizes.requested.WithLabelValues(r.Resource, r.Requirement, r.Operation).Inc()
}

// resizeInfeasible counts an infeasible resize.
func (m *Metrics) resizeInfeasible(detail string) {
	m.resizes.infeasible.WithLabelValues(detail).Inc()
}

// deferredResizeAccepted counts a deferred resize that is accepted.
func (m *Metrics) deferredResizeAccepted(trigger resizeTrigger) {
	m.resizes.accepted.WithLabelValues(string(trigger)).Inc()
}

// deferredResizeOver records how long a resize was deferred.
func (m *Metrics) deferredResizeOver(resolution resizeResolution, priority string, took time.Duration) {
	m.resizes.deferred.WithLabelValues(string(resolution), priority).Observe(max(took, 0).Seconds())
}
