package loop

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// resizeTrigger names why pods whose resize is deferred are asked about again, as the kubelet does.
type resizeTrigger string

// The triggers: a pod is to be resized, or pods were added or removed, one has ended, one was made smaller, or it is time.
const (
	podUpdated    resizeTrigger = "pod_updated"
	podsAdded     resizeTrigger = "pods_added"
	podsRemoved   resizeTrigger = "pods_removed"
	podTerminated resizeTrigger = "pod_terminated"
	podResized    resizeTrigger = "pod_resized"
	periodic      resizeTrigger = "periodic_retry"
)

// resizeResolution names what became of a resize that was deferred.
type resizeResolution string

// What becomes of it: there is room, nobody wants it any more, or the pod is gone.
const (
	resizeAccepted   resizeResolution = "accepted"
	resizeReverted   resizeResolution = "reverted"
	resizeTerminated resizeResolution = "terminated"
)

// deferredBuckets are the kubelet's, in seconds.
var deferredBuckets = []float64{5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600}

// resizeMetrics count what is decided about pods that are to be resized.
type resizeMetrics struct {
	requested, infeasible, accepted *prometheus.CounterVec
	deferred                        *prometheus.HistogramVec
}

func newResizeMetrics(factory promauto.Factory) resizeMetrics {
	return resizeMetrics{
		requested: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_container_requested_resizes_total",
			Help: "Changes of cpu or memory that somebody has asked for, by resource, by requirement (requests or limits) and by operation " +
				"(add, remove, increase, decrease).",
		}, []string{"resource", "requirement", "operation"}),
		infeasible: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_infeasible_resizes_total", Help: "Resizes that this node never does, by reason.",
		}, []string{"reason_detail"}),
		accepted: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_pod_deferred_accepted_resizes_total",
			Help: "Resizes for which there was room after they had been deferred, by what made the node look again.",
		}, []string{"retry_trigger"}),
		deferred: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_deferred_resize_duration_seconds", Buckets: deferredBuckets,
			Help: "How long resizes were deferred, by what became of them (accepted, reverted, terminated) and by the class of the pod's " +
				"priority.",
		}, []string{"resolution", "priority_bucket"}),
	}
}

// resizeRequested notes that somebody has asked for a change.
func (m *Metrics) resizeRequested(r resize.Request) {
	m.resizes.requested.WithLabelValues(r.Resource, r.Requirement, r.Operation).Inc()
}

// resizeInfeasible notes that a resize is never done on this node.
func (m *Metrics) resizeInfeasible(detail string) {
	m.resizes.infeasible.WithLabelValues(detail).Inc()
}

// deferredResizeAccepted notes that there is room for a resize that was deferred.
func (m *Metrics) deferredResizeAccepted(trigger resizeTrigger) {
	m.resizes.accepted.WithLabelValues(string(trigger)).Inc()
}

// deferredResizeOver notes how long a resize was deferred.
func (m *Metrics) deferredResizeOver(resolution resizeResolution, priority string, took time.Duration) {
	m.resizes.deferred.WithLabelValues(string(resolution), priority).Observe(max(took, 0).Seconds())
}
