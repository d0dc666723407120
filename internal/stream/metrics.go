package stream

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The streams of a node, by their names in metrics and logs.
const (
	// NamePodUpdates is configmux's stream of desired pods.
	NamePodUpdates = "pod_updates"
	// NameObjects is configmux's stream of config maps and secrets.
	NameObjects = "objects"
	// NameLifecycleEvents is pleg's stream of changes in the runtime.
	NameLifecycleEvents = "lifecycle_events"
	// NamePods is syncloop's stream of pods with their status.
	NamePods = "pods"
	// NamePodEvents is syncloop's stream of events of its pods.
	NamePodEvents = "pod_events"
	// NameStorage is syncloop's stream of CSI drivers and volumes in use.
	NameStorage = "storage"
	// NameNode is nodestatus' stream of the Node.
	NameNode = "node"
	// NameNodeEvents is nodestatus' stream of events of the node.
	NameNodeEvents = "node_events"
)

// label is the label that names the stream.
const label = "stream"

// ServedMetrics counts the operations of a publisher. Counting a message costs an atomic addition; values that depend
// on every subscriber are computed when the metrics are gathered.
type ServedMetrics struct {
	sent          map[Kind]prometheus.Counter
	subscriptions map[Start]prometheus.Counter
	ends          map[ending]prometheus.Counter
	// skipped counts changes that subscribers did not receive because they fell behind the kept history.
	skipped atomic.Uint64
	mu      sync.Mutex
	// publishers have the state of their subscribers. There is one, except in a configmux of a site.
	publishers map[publisher]struct{}
	// past is the number of changes of publishers that have ended.
	past                                                    uint64
	subscribersDesc, changesDesc, behindDesc, behindForDesc *prometheus.Desc
	skippedDesc                                             *prometheus.Desc
}

// servedState is the state of a publisher's subscribers at one moment.
type servedState struct {
	subscribers int
	// published is the number of changes so far.
	published uint64
	// behind is the number of messages that the slowest subscriber has not received.
	behind int
	// behindFor is the time for which the subscriber that has waited longest has not been up to date.
	behindFor time.Duration
}

// publisher is a publisher whose subscribers are looked at.
type publisher interface{ look() servedState }

// publishes adds a publisher.
func (m *ServedMetrics) publishes(p publisher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publishers[p] = struct{}{}
}

// ended removes a publisher, and counts its changes on. It is a no-op for one that was removed.
func (m *ServedMetrics) ended(p publisher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.publishers[p]; known {
		delete(m.publishers, p)
		m.past += p.look().published
	}
}

// state returns the state of all publishers together: sums, and the slowest subscriber of all.
func (m *ServedMetrics) state() servedState {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := servedState{published: m.past}
	for p := range m.publishers {
		one := p.look()
		all.subscribers += one.subscribers
		all.published += one.published
		all.behind = max(all.behind, one.behind)
		all.behindFor = max(all.behindFor, one.behindFor)
	}
	return all
}

// ending is the reason why a subscription ended.
type ending string

const (
	// endLeft: the subscriber or its connection has ended.
	endLeft ending = "left"
	// endOverflow: it fell behind the kept history, see ErrOverflow.
	endOverflow ending = "overflow"
	// endClosed: the publisher has stopped.
	endClosed ending = "publisher_stopped"
)

// NewServedMetrics registers the metrics of a stream, by its name, for the Config.Metrics of its publisher, or of all
// its publishers, which count together. A stream can be registered only once in a registry.
func NewServedMetrics(registry prometheus.Registerer, name string) *ServedMetrics {
	m := newServedMetrics(name)
	registry.MustRegister(m)
	return m
}

func newServedMetrics(name string) *ServedMetrics {
	labels := prometheus.Labels{label: name}
	desc := func(metric, help string) *prometheus.Desc { return prometheus.NewDesc(metric, help, nil, labels) }
	return &ServedMetrics{
		publishers: map[publisher]struct{}{},
		sent: countersOf(kindNames(), "quartet_stream_messages_sent_total",
			"Messages sent to subscribers, by kind.", name, "kind"),
		subscriptions: countersOf(startNames(), "quartet_stream_subscriptions_total",
			"Subscriptions that have begun, by where from: resumed, or a snapshot and why.", name, "start"),
		ends: countersOf(
			map[ending]string{endLeft: string(endLeft), endOverflow: string(endOverflow), endClosed: string(endClosed)},
			"quartet_stream_subscriptions_ended_total",
			"Subscriptions that have ended, by reason.",
			name,
			"reason",
		),
		subscribersDesc: desc("quartet_stream_subscribers", "Subscriptions that are open."),
		changesDesc:     desc("quartet_stream_changes_total", "Changes published since the process began."),
		behindDesc: desc("quartet_stream_lag_messages",
			"Messages that the slowest subscriber has not received yet."),
		behindForDesc: desc("quartet_stream_lag_seconds",
			"Time for which the subscriber that has waited longest has not been up to date."),
		skippedDesc: desc("quartet_stream_skipped_changes_total",
			"Changes that subscribers received only as part of a snapshot, because they fell behind the kept history."),
	}
}

// Skipped returns the number of changes that subscribers did not receive because they fell behind the kept history.
func (m *ServedMetrics) Skipped() uint64 { return m.skipped.Load() }

// Describe implements prometheus.Collector.
func (m *ServedMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *ServedMetrics) Collect(ch chan<- prometheus.Metric) {
	collect(ch, m.sent)
	collect(ch, m.subscriptions)
	collect(ch, m.ends)
	now := m.state()
	gauge := func(desc *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(m.subscribersDesc, float64(now.subscribers))
	gauge(m.behindDesc, float64(now.behind))
	gauge(m.behindForDesc, now.behindFor.Seconds())
	ch <- prometheus.MustNewConstMetric(m.changesDesc, prometheus.CounterValue, float64(now.published))
	ch <- prometheus.MustNewConstMetric(m.skippedDesc, prometheus.CounterValue, float64(m.skipped.Load()))
}

// FollowedMetrics counts the messages that a follower receives.
type FollowedMetrics struct {
	connected   prometheus.Gauge
	losses      prometheus.Counter
	lastMessage prometheus.Gauge
	begun       map[Start]prometheus.Counter
	received    map[Kind]prometheus.Counter
	// otherAPI has a value for the version that the publisher of the last connection has stated.
	otherAPIDesc *prometheus.Desc
	otherAPI     atomic.Pointer[prometheus.Metric]
}

// NewFollowedMetrics registers the metrics of one follower, by the name of its stream, for FollowConfig.Metrics. A
// followed stream can be registered only once in a registry.
func NewFollowedMetrics(registry prometheus.Registerer, name string) *FollowedMetrics {
	m := newFollowedMetrics(name)
	registry.MustRegister(m)
	return m
}

func newFollowedMetrics(name string) *FollowedMetrics {
	labels := prometheus.Labels{label: name}
	m := &FollowedMetrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name:        "quartet_stream_follower_connected",
			Help:        "1 while the stream is connected, 0 while it is not.",
			ConstLabels: labels,
		}),
		losses: prometheus.NewCounter(prometheus.CounterOpts{
			Name:        "quartet_stream_follower_losses_total",
			Help:        "Number of times that the connected stream was lost.",
			ConstLabels: labels,
		}),
		lastMessage: prometheus.NewGauge(prometheus.GaugeOpts{
			Name:        "quartet_stream_follower_last_message_timestamp_seconds",
			Help:        "Time of the last message in seconds since 1970; 0 before the first. A connected stream has one every 10 s.",
			ConstLabels: labels,
		}),
		begun: countersOf(startNames(), "quartet_stream_follower_connections_total",
			"Connections that have begun, by where from: resumed, or a snapshot and why.", name, "start"),
		received: countersOf(
			kindNames(),
			"quartet_stream_follower_messages_total",
			"Messages received, by kind.",
			name,
			"kind",
		),
		otherAPIDesc: prometheus.NewDesc("quartet_stream_follower_other_kubernetes_api",
			"1 if the publisher has another version of k8s.io/api than this process, 0 if it has the same; its version.",
			[]string{"version"}, labels),
	}
	m.speaks("", false)
	return m
}

// Describe implements prometheus.Collector.
func (m *FollowedMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *FollowedMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, metric := range []prometheus.Metric{m.connected, m.losses, m.lastMessage} {
		ch <- metric
	}
	ch <- *m.otherAPI.Load()
	collect(ch, m.begun)
	collect(ch, m.received)
}

// note counts a message. start is that of a KindOpened message.
func (m *FollowedMetrics) note(kind Kind, start Start, now time.Time) {
	m.received[kind].Inc()
	m.lastMessage.Set(float64(now.UnixMilli()) / 1e3)
	if counter, known := m.begun[start]; known && kind == KindOpened {
		counter.Inc()
	}
}

// speaks records the version of the Kubernetes API of the publisher, empty if it is not known, and whether it is
// another one than this process's.
func (m *FollowedMetrics) speaks(version string, differs bool) {
	value := 0.0
	if differs {
		value = 1
	}
	version = strings.ToValidUTF8(version, "?")
	metric := prometheus.MustNewConstMetric(m.otherAPIDesc, prometheus.GaugeValue, value, version)
	m.otherAPI.Store(&metric)
}

// flows records whether the stream was and is connected.
func (m *FollowedMetrics) flows(before, now bool) {
	switch {
	case now:
		m.connected.Set(1)
	case before:
		m.losses.Inc()
		m.connected.Set(0)
	}
}

// countersOf creates a counter for each value of a label in advance, so that each starts at 0 and counting needs no
// lookup by text.
func countersOf[K comparable](values map[K]string, metric, help, name, by string) map[K]prometheus.Counter {
	counters := make(map[K]prometheus.Counter, len(values))
	for key, value := range values {
		counters[key] = prometheus.NewCounter(prometheus.CounterOpts{
			Name: metric, Help: help, ConstLabels: prometheus.Labels{label: name, by: value},
		})
	}
	return counters
}

func collect[K comparable](ch chan<- prometheus.Metric, counters map[K]prometheus.Counter) {
	for _, counter := range counters {
		ch <- counter
	}
}

func kindNames() map[Kind]string {
	return map[Kind]string{
		KindOpened: "opened", KindSnapshot: "snapshot", KindSynced: "synced", KindDelta: "delta", KindBookmark: "bookmark",
		KindUnknown: "unknown",
	}
}

func startNames() map[Start]string {
	return map[Start]string{
		StartResumed: "resumed", StartSnapshot: "snapshot_new", StartSnapshotEpoch: "snapshot_other_epoch",
		StartSnapshotCompacted: "snapshot_compacted", StartSnapshotInvalid: "snapshot_invalid_token",
	}
}
