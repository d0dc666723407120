package images

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// pullBuckets are the kubelet's buckets, in seconds.
var pullBuckets = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}

// Metrics counts and times pulls.
type Metrics struct {
	duration *prometheus.HistogramVec
	errors   prometheus.Counter
}

// NewMetrics registers the metrics of a Puller; a nil registry registers nothing.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	factory := promauto.With(registry)
	return &Metrics{
		duration: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_image_pull_duration_seconds", Buckets: pullBuckets,
			Help: "Duration of successful image pulls, including the wait for their turn, by the size of the image.",
		}, []string{"image_size_in_bytes"}),
		errors: factory.NewCounter(prometheus.CounterOpts{Name: "quartet_image_pull_errors_total", Help: "Image pulls that failed."}),
	}
}

// Pulled records a successful pull, with its duration including the wait for its turn. size is the size of the image in
// bytes, 0 if it is not known.
func (m *Metrics) Pulled(size uint64, took time.Duration) {
	m.duration.WithLabelValues(sizeLabel(size)).Observe(max(took, 0).Seconds())
}

// failed counts a failed pull.
func (m *Metrics) failed() { m.errors.Inc() }

const (
	mib = 1 << 20
	gib = 1 << 30
)

// sizeLabel returns the kubelet's class for an image's size.
func sizeLabel(size uint64) string {
	classes := []struct {
		above uint64
		label string
	}{
		{100 * gib, "GT100GB"}, {60 * gib, "60GB-100GB"}, {40 * gib, "40GB-60GB"}, {30 * gib, "30GB-40GB"}, {20 * gib, "20GB-30GB"},
		{10 * gib, "10GB-20GB"}, {5 * gib, "5GB-10GB"}, {gib, "1GB-5GB"}, {500 * mib, "500MB-1GB"}, {100 * mib, "100MB-500MB"},
		{10 * mib, "10MB-100MB"}, {0, "0-10MB"},
	}
	for _, class := range classes {
		if size > class.above {
			return class.label
		}
	}
	return "N/A"
}
