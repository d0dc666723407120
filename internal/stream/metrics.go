package stream

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The streams of a node, by the names that they have in metrics and logs.
const (
	// NamePodUpdates is configmux's stream of desired pods.
	NamePodUpdates = "pod_updates"
	// NameObjects is configmux's stream of config maps and secrets.
	NameObjects = "objects"
	// NameLifecycleEvents is pleg's stream of what happens in the runtime.
	NameLifecycleEvents = "lifecycle_events"
	// NamePods is syncloop's stream of pods with their status.
	NamePods = "pods"
	// NamePodEvents is syncloop's stream of what it tells of its pods.
	NamePodEvents = "pod_events"
	// NameNode is nodestatus' stream of the Node.
	NameNode = "node"
	// NameNodeEvents is nodestatus' stream of what it tells of the node.
	NameNodeEvents = "node_events"
)

// label is the label that names the stream.
const label = "stream"

// ServedMetrics counts what a publisher does. What is counted for each message is an atomic addition; what takes a look
// at every subscriber is worked out when somebody asks for the metrics.
type ServedMetrics struct {
	sent          map[Kind]prometheus.Counter
	subscriptions map[Start]prometheus.Counter
	ends          map[ending]prometheus.Counter
	// skipped counts changes that subscribers were not sent, since they fell behind what is kept.
	skipped atomic.Uint64
	// look asks the publisher how its subscribers are; nil until there is one.
	look                                                    atomic.Pointer[func() servedState]
	subscribersDesc, changesDesc, behindDesc, behindForDesc *prometheus.Desc
	skippedDesc                                             *prometheus.Desc
}

// servedState is how the subscribers of a publisher are at one moment.
type servedState struct {
	subscribers int
	// published is how many changes there have been.
	published uint64
	// behind is how many messages the subscriber that is the farthest behind has not been given.
	behind int
	// behindFor is for how long the one that has waited longest has not been up to date.
	behindFor time.Duration
}

// ending says why a subscription ended.
type ending string

const (
	// endLeft: the subscriber has gone, or the connection to it.
	endLeft ending = "left"
	// endOverflow: it fell behind what is kept, see ErrOverflow.
	endOverflow ending = "overflow"
	// endClosed: the publisher has stopped.
	endClosed ending = "publisher_stopped"
)

// NewServedMetrics registers the metrics of one publisher, by the name of its stream; for Config.Metrics. A registry has
// each stream once.
func NewServedMetrics(registry prometheus.Registerer, name string) *ServedMetrics {
	m := newServedMetrics(name)
	registry.MustRegister(m)
	return m
}

func newServedMetrics(name string) *ServedMetrics {
	labels := prometheus.Labels{label: name}
	desc := func(metric, help string) *prometheus.Desc { return prometheus.NewDesc(metric, help, nil, labels) }
	return &ServedMetrics{
		sent: countersOf(kindNames(), "quartet_stream_messages_sent_total",
			"Messages given to subscribers, by kind.", name, "kind"),
		subscriptions: countersOf(startNames(), "quartet_stream_subscriptions_total",
			"Subscriptions that have begun, by where from: resumed, or a snapshot and why.", name, "start"),
		ends: countersOf(map[ending]string{endLeft: string(endLeft), endOverflow: string(endOverflow), endClosed: string(endClosed)},
			"quartet_stream_subscriptions_ended_total", "Subscriptions that have ended, by reason.", name, "reason"),
		subscribersDesc: desc("quartet_stream_subscribers", "Subscriptions that are open."),
		changesDesc:     desc("quartet_stream_changes_total", "Changes published since the process began."),
		behindDesc: desc("quartet_stream_lag_messages",
			"Messages that the subscriber which is the farthest behind has not been given yet."),
		behindForDesc: desc("quartet_stream_lag_seconds",
			"For how long the subscriber that has waited longest has not been up to date."),
		skippedDesc: desc("quartet_stream_skipped_changes_total",
			"Changes that subscribers were not sent one by one, since they fell behind what is kept; a snapshot stood in for them."),
	}
}

// Skipped returns how many changes subscribers were not sent, since they fell behind what is kept.
func (m *ServedMetrics) Skipped() uint64 { return m.skipped.Load() }

// Describe implements prometheus.Collector.
func (m *ServedMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *ServedMetrics) Collect(ch chan<- prometheus.Metric) {
	collect(ch, m.sent)
	collect(ch, m.subscriptions)
	collect(ch, m.ends)
	var now servedState
	if look := m.look.Load(); look != nil {
		now = (*look)()
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(m.subscribersDesc, float64(now.subscribers))
	gauge(m.behindDesc, float64(now.behind))
	gauge(m.behindForDesc, now.behindFor.Seconds())
	ch <- prometheus.MustNewConstMetric(m.changesDesc, prometheus.CounterValue, float64(now.published))
	ch <- prometheus.MustNewConstMetric(m.skippedDesc, prometheus.CounterValue, float64(m.skipped.Load()))
}

// FollowedMetrics counts what a follower sees of a stream.
type FollowedMetrics struct {
	connected   prometheus.Gauge
	losses      prometheus.Counter
	lastMessage prometheus.Gauge
	begun       map[Start]prometheus.Counter
	received    map[Kind]prometheus.Counter
}

// NewFollowedMetrics registers the metrics of one follower, by the name of the stream that it follows; for
// FollowConfig.Metrics. A registry has each followed stream once.
func NewFollowedMetrics(registry prometheus.Registerer, name string) *FollowedMetrics {
	m := newFollowedMetrics(name)
	registry.MustRegister(m)
	return m
}

func newFollowedMetrics(name string) *FollowedMetrics {
	labels := prometheus.Labels{label: name}
	return &FollowedMetrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quartet_stream_follower_connected", Help: "1 while the stream flows, 0 while it is away.", ConstLabels: labels,
		}),
		losses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quartet_stream_follower_losses_total", Help: "How often a stream that flowed was lost.", ConstLabels: labels,
		}),
		lastMessage: prometheus.NewGauge(prometheus.GaugeOpts{
			Name:        "quartet_stream_follower_last_message_timestamp_seconds",
			Help:        "When the last message came, in seconds since 1970; 0 before the first. A stream that flows has one every 10 s.",
			ConstLabels: labels,
		}),
		begun: countersOf(startNames(), "quartet_stream_follower_connections_total",
			"Connections that have begun, by where from: resumed, or a snapshot and why.", name, "start"),
		received: countersOf(kindNames(), "quartet_stream_follower_messages_total", "Messages received, by kind.", name, "kind"),
	}
}

// Describe implements prometheus.Collector.
func (m *FollowedMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *FollowedMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, metric := range []prometheus.Metric{m.connected, m.losses, m.lastMessage} {
		ch <- metric
	}
	collect(ch, m.begun)
	collect(ch, m.received)
}

// note counts a message. Start is what a KindOpened says.
func (m *FollowedMetrics) note(kind Kind, start Start, now time.Time) {
	m.received[kind].Inc()
	m.lastMessage.Set(float64(now.UnixMilli()) / 1e3)
	if counter, known := m.begun[start]; known && kind == KindOpened {
		counter.Inc()
	}
}

// flows notes whether the stream flowed before and does now.
func (m *FollowedMetrics) flows(before, now bool) {
	switch {
	case now:
		m.connected.Set(1)
	case before:
		m.losses.Inc()
		m.connected.Set(0)
	}
}

// countersOf makes a counter for each value of a label, all at once: so each is there, as 0, before it first counts,
// and counting looks nothing up by text.
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
	}
}

func startNames() map[Start]string {
	return map[Start]string{
		StartResumed: "resumed", StartSnapshot: "snapshot_new", StartSnapshotEpoch: "snapshot_other_epoch",
		StartSnapshotCompacted: "snapshot_compacted", StartSnapshotInvalid: "snapshot_invalid_token",
	}
}
