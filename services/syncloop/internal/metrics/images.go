package metrics

import "github.com/prometheus/client_golang/prometheus"

// CollectionReason is why an image that nobody uses was removed, as the kubelet labels it.
type CollectionReason string

// The reasons: it was unused for too long, or its file system is too full.
const (
	CollectedForAge   CollectionReason = "age"
	CollectedForSpace CollectionReason = "space"
)

// imageMetrics count the removal of images that nobody uses.
type imageMetrics struct {
	collected, failed *prometheus.CounterVec
}

func newImageMetrics(f factory) imageMetrics {
	m := imageMetrics{
		collected: f.counters(kubelet, "image_garbage_collected_total",
			"Images removed since nobody used them for too long (age), or since their file system was too full (space).", "reason"),
		failed: f.counters(quartet, "image_collection_errors_total",
			"Rounds of the collection of unused images that failed, by the reason that the kubelet's event of it has.", "reason"),
	}
	for _, reason := range []CollectionReason{CollectedForAge, CollectedForSpace} {
		m.collected.WithLabelValues(string(reason))
	}
	return m
}

// ImageCollected notes that an image was removed.
func (m *Metrics) ImageCollected(reason CollectionReason) {
	m.collection.collected.WithLabelValues(string(reason)).Inc()
}

// ImageCollectionFailed notes that unused images could not be removed, or were not enough. The reason is one word.
func (m *Metrics) ImageCollectionFailed(reason string) {
	m.collection.failed.WithLabelValues(reason).Inc()
}
