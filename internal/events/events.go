// Package events records the events of a service about the pods of the node and about the node itself, with the types,
// reasons and messages of the kubelet's events.
//
// A repeated event becomes one event whose count grows, many similar events are aggregated, and an object with too many
// events is rate-limited. client-go's correlator does this with its defaults. The recorder keeps a bounded number of
// events for each object and in total, for at most an hour. Package apievents sends them to an API server.
package events

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	recordutil "k8s.io/client-go/tools/record/util"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxAge is how long an event is kept after it last happened: the API server's default (--event-ttl).
	maxAge = time.Hour
	// maxPerObject is the maximum number of events of one object: twice the burst that the correlator allows.
	maxPerObject = 50
	// maxEvents is the maximum number of events in total: ten for each of 500 objects.
	maxEvents = 5000
	// component is the reporting component in the events. It is the kubelet's name, so that a search for a node agent's
	// events finds them.
	component = "kubelet"
)

// Config holds the parameters of a Recorder.
type Config struct {
	// NodeName is the host in the events, and the involved object of the node's events.
	NodeName string
	// NodeUID returns the UID of the Node in the API server; empty while it is unknown. It is nil for a standalone node.
	NodeUID func() types.UID
	// Publish is called with each new or changed event, in order, under the name that it keeps. It must not block or
	// change the event. It may be nil.
	Publish func(*v1.Event)
	Clock   clock.WithTicker
	// Logger logs events that cannot be encoded; slog's default if nil.
	Logger *slog.Logger
	// StreamMetrics counts the operations of the stream; nothing is counted if it is nil.
	StreamMetrics *stream.ServedMetrics
}

// Recorder records and publishes events. All its methods are safe for concurrent use; none does I/O.
type Recorder struct {
	cfg        Config
	correlator *record.EventCorrelator
	level      *stream.Level[*enginev1.PodEvent]

	// mu serializes the changes of events, so that they are published in their order.
	mu sync.Mutex
	// kept lists the events by the time they last happened, the oldest first; byName indexes it, and of counts the events
	// of each object.
	kept   *list.List
	byName map[string]*list.Element
	counts map[object]int
	// named is the time in the newest name. It makes names unique.
	named int64
}

// object is the object of an event.
type object struct {
	kind string
	uid  types.UID
}

// kept holds the keys of an event that are needed to drop it.
type kept struct {
	name  string
	about object
	last  time.Time
}

// New returns a Recorder without events.
func New(cfg Config) *Recorder {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Recorder{
		cfg: cfg, correlator: record.NewEventCorrelator(cfg.Clock),
		level: stream.NewLevel[*enginev1.PodEvent](stream.Config{Clock: cfg.Clock, Metrics: cfg.StreamMetrics}),
		kept:  list.New(), byName: map[string]*list.Element{}, counts: map[object]int{},
	}
}

// Stream returns the stream of events, keyed by their names.
func (r *Recorder) Stream() stream.Source[*enginev1.PodEvent] { return r.level }

// Close ends all subscriptions.
func (r *Recorder) Close() { r.level.Close() }

// NodeNormal records an event of type Normal about the node. The reason is a word in CamelCase, the kubelet's where it
// has one. The message is for people.
func (r *Recorder) NodeNormal(ctx context.Context, reason, message string) {
	r.Record(ctx, r.node(), v1.EventTypeNormal, reason, message)
}

// NodeWarning records an event of type Warning about the node, see NodeNormal.
func (r *Recorder) NodeWarning(ctx context.Context, reason, message string) {
	r.Record(ctx, r.node(), v1.EventTypeWarning, reason, message)
}

// node returns the reference to the Node as the kubelet does: by its UID if it is known, and otherwise with the name in
// its place, by which kubectl finds it too.
func (r *Recorder) node() v1.ObjectReference {
	var uid types.UID
	if r.cfg.NodeUID != nil {
		uid = r.cfg.NodeUID()
	}
	return v1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       r.cfg.NodeName,
		UID:        cmp.Or(uid, types.UID(r.cfg.NodeName)),
	}
}

// Record records an event about an object, of type v1.EventTypeNormal or v1.EventTypeWarning.
func (r *Recorder) Record(ctx context.Context, about v1.ObjectReference, kind, reason, message string) {
	r.RecordAnnotated(ctx, about, kind, reason, message, nil)
}

// Publish publishes an event about an object that is neither a pod nor the node. It is not kept, because the same has
// happened to a pod.
func (r *Recorder) Publish(about v1.ObjectReference, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	event := r.correlate(r.cfg.Clock.Now(), about, kind, reason, message, nil)
	if event != nil && r.cfg.Publish != nil {
		r.cfg.Publish(event)
	}
}

// RecordAnnotated records an event with annotations for programs that read events.
func (r *Recorder) RecordAnnotated(
	ctx context.Context,
	about v1.ObjectReference,
	kind, reason, message string,
	annotations map[string]string,
) {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	event := r.correlate(now, about, kind, reason, message, annotations)
	if event == nil {
		return // rate-limited; the log has the rest
	}
	data, err := event.Marshal()
	if err != nil {
		r.cfg.Logger.ErrorContext(ctx, "an event cannot be encoded and is left out",
			telemetry.KeyPod, about.Namespace+"/"+about.Name, telemetry.KeyReason, reason, telemetry.KeyError, err)
		return
	}
	r.keep(kept{name: event.Name, about: object{kind: about.Kind, uid: about.UID}, last: now}, &enginev1.PodEvent{
		Event: data, LastSeenAt: timestamppb.New(now), Traceparent: telemetry.Traceparent(ctx),
	})
	if r.cfg.Publish != nil {
		r.cfg.Publish(event)
	}
}

// correlate returns an event with the earlier ones of its kind counted; nil if the object has too many. The caller
// holds the lock.
func (r *Recorder) correlate(
	now time.Time, about v1.ObjectReference, kind, reason, message string, annotations map[string]string,
) *v1.Event {
	at := metav1.NewTime(now)
	r.named = max(r.named+1, now.UnixNano())
	result, err := r.correlator.EventCorrelate(&v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(
				about.Namespace,
				metav1.NamespaceDefault,
			),
			Name:        recordutil.GenerateEventName(about.Name, r.named),
			Annotations: annotations,
		},
		InvolvedObject: about,
		Type:           kind,
		Reason:         reason,
		Message:        message,
		FirstTimestamp: at,
		LastTimestamp:  at,
		Count:          1,
		Source: v1.EventSource{
			Component: component,
			Host:      r.cfg.NodeName,
		},
		ReportingController: component,
		ReportingInstance:   r.cfg.NodeName,
	})
	if err != nil || result.Skip {
		return nil
	}
	r.correlator.UpdateState(result.Event)
	return result.Event
}

// keep publishes an event, and drops the events beyond the limits. The caller holds the lock.
func (r *Recorder) keep(k kept, event *enginev1.PodEvent) {
	if e := r.byName[k.name]; e != nil {
		e.Value = k
		r.kept.MoveToBack(e)
	} else {
		r.byName[k.name] = r.kept.PushBack(k)
		r.counts[k.about]++
	}
	r.level.Put(k.name, event)
	for e := r.kept.Front(); r.counts[k.about] > maxPerObject; {
		next := e.Next()
		if keptIn(e).about == k.about {
			r.drop(e)
		}
		e = next
	}
	for e := r.kept.Front(); r.kept.Len() > maxEvents || k.last.Sub(keptIn(e).last) > maxAge; e = r.kept.Front() {
		r.drop(e)
	}
}

// drop removes an event. The caller holds the lock.
func (r *Recorder) drop(e *list.Element) {
	k := keptIn(e)
	r.kept.Remove(e)
	delete(r.byName, k.name)
	if r.counts[k.about]--; r.counts[k.about] == 0 {
		delete(r.counts, k.about)
	}
	r.level.Delete(k.name)
}

func keptIn(e *list.Element) kept { return e.Value.(kept) } //nolint:forcetypeassert // keep puts nothing else
