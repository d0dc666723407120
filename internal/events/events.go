// Package events keeps what a service tells people about the pods of the node and about the node itself: what it has done and what it
// could not do, with the types, reasons and messages of the kubelet's events.
//
// What repeats becomes one event whose count grows; of many alike one says so; of an object of which too much was told nothing more
// is for a while (client-go's correlator, with its defaults). What is kept is bounded, for each object and altogether, and an
// hour old at most. Package apievents sends it to an API server.
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
	// maxAge is how long an event is kept after it was last seen: the API server's default (--event-ttl).
	maxAge = time.Hour
	// maxPerObject is what one object may have: twice the burst that the correlator lets pass.
	maxPerObject = 50
	// maxEvents is what all objects together may have: ten for each of 500.
	maxEvents = 5000
	// component names who tells, in the events: the kubelet's name, so that who looks for a node agent's events in a cluster finds them.
	component = "kubelet"
)

// Config is what a Recorder needs.
type Config struct {
	// NodeName is the host in the events, and the object of those of the node.
	NodeName string
	// NodeUID is the UID of the Node in the API server; empty while it is not known. Nil is for a node that is standalone.
	NodeUID func() types.UID
	// Told is given each event as it has become, under the name that it keeps, one after another. It must not wait for anything
	// and must not change the event. Nil is for nobody else to know.
	Told  func(*v1.Event)
	Clock clock.WithTicker
	// Logger is told of what cannot be encoded; slog's default when nil.
	Logger *slog.Logger
	// StreamMetrics counts what the stream does; nobody sees it when nil.
	StreamMetrics *stream.ServedMetrics
}

// Recorder takes in events and publishes them. All of its methods may be called at any time by anyone; none waits for
// I/O.
type Recorder struct {
	cfg        Config
	correlator *record.EventCorrelator
	level      *stream.Level[*enginev1.PodEvent]

	// mu makes one event out of another, so that what is published of it is in its order.
	mu sync.Mutex
	// kept has the events by when they were last seen, the oldest first; byName finds them, of counts them by their object.
	kept   *list.List
	byName map[string]*list.Element
	of     map[object]int
	// named is the time in the newest name: no two are the same, however fast they come.
	named int64
}

// object is what an event is about.
type object struct {
	kind string
	uid  types.UID
}

// kept is what must be known of an event to drop it.
type kept struct {
	name  string
	about object
	last  time.Time
}

// New returns a recorder of nothing.
func New(cfg Config) *Recorder {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Recorder{
		cfg: cfg, correlator: record.NewEventCorrelator(cfg.Clock),
		level: stream.NewLevel[*enginev1.PodEvent](stream.Config{Clock: cfg.Clock, Metrics: cfg.StreamMetrics}),
		kept:  list.New(), byName: map[string]*list.Element{}, of: map[object]int{},
	}
}

// Stream returns the events by their names.
func (r *Recorder) Stream() stream.Source[*enginev1.PodEvent] { return r.level }

// Close ends all subscriptions.
func (r *Recorder) Close() { r.level.Close() }

// NodeNormal tells what of the node itself went as it should. The reason is a word in CamelCase, the kubelet's where it has one;
// the message is for people.
func (r *Recorder) NodeNormal(ctx context.Context, reason, message string) {
	r.Record(ctx, r.node(), v1.EventTypeNormal, reason, message)
}

// NodeWarning tells what of the node itself did not go as it should, as NodeNormal does.
func (r *Recorder) NodeWarning(ctx context.Context, reason, message string) {
	r.Record(ctx, r.node(), v1.EventTypeWarning, reason, message)
}

// node refers to the Node as the kubelet does: by its UID once that is known, before that by the name in its place, by which kubectl
// finds it too.
func (r *Recorder) node() v1.ObjectReference {
	var uid types.UID
	if r.cfg.NodeUID != nil {
		uid = r.cfg.NodeUID()
	}
	return v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.cfg.NodeName, UID: cmp.Or(uid, types.UID(r.cfg.NodeName))}
}

// Record tells something about an object, with one of the types v1.EventTypeNormal and v1.EventTypeWarning.
func (r *Recorder) Record(ctx context.Context, about v1.ObjectReference, kind, reason, message string) {
	r.RecordAnnotated(ctx, about, kind, reason, message, nil)
}

// RecordAnnotated tells what Record does, with annotations for programs that read events.
func (r *Recorder) RecordAnnotated(ctx context.Context, about v1.ObjectReference, kind, reason, message string, annotations map[string]string) {
	now := r.cfg.Clock.Now()
	at := metav1.NewTime(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named = max(r.named+1, now.UnixNano())
	result, err := r.correlator.EventCorrelate(&v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault), Name: recordutil.GenerateEventName(about.Name, r.named), Annotations: annotations,
		},
		InvolvedObject: about, Type: kind, Reason: reason, Message: message, FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: v1.EventSource{Component: component, Host: r.cfg.NodeName}, ReportingController: component, ReportingInstance: r.cfg.NodeName,
	})
	if err != nil || result.Skip {
		return // it has told as much as it may; the log has the rest
	}
	event := result.Event
	r.correlator.UpdateState(event)
	data, err := event.Marshal()
	if err != nil {
		r.cfg.Logger.ErrorContext(ctx, "an event cannot be encoded and is left out",
			telemetry.KeyPod, about.Namespace+"/"+about.Name, telemetry.KeyReason, reason, telemetry.KeyError, err)
		return
	}
	r.keep(kept{name: event.Name, about: object{kind: about.Kind, uid: about.UID}, last: now}, &enginev1.PodEvent{
		Event: data, LastSeenAt: timestamppb.New(now), Traceparent: telemetry.Traceparent(ctx),
	})
	if r.cfg.Told != nil {
		r.cfg.Told(event)
	}
}

// keep publishes an event, and drops those that there is no room for any more. The recorder is locked.
func (r *Recorder) keep(k kept, event *enginev1.PodEvent) {
	if e := r.byName[k.name]; e != nil {
		e.Value = k
		r.kept.MoveToBack(e)
	} else {
		r.byName[k.name] = r.kept.PushBack(k)
		r.of[k.about]++
	}
	r.level.Put(k.name, event)
	for e := r.kept.Front(); r.of[k.about] > maxPerObject; {
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

// drop forgets an event. The recorder is locked.
func (r *Recorder) drop(e *list.Element) {
	k := keptIn(e)
	r.kept.Remove(e)
	delete(r.byName, k.name)
	if r.of[k.about]--; r.of[k.about] == 0 {
		delete(r.of, k.about)
	}
	r.level.Delete(k.name)
}

func keptIn(e *list.Element) kept { return e.Value.(kept) } //nolint:forcetypeassert // keep puts nothing else
