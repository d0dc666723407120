// Package podevents keeps what syncloop tells people about its pods: what it has done for them and what it could not do, with
// the types, reasons and messages of the kubelet's events.
//
// What repeats becomes one event whose count grows; of many alike one says so; a pod that has told too much is quiet for a
// while (client-go's correlator, with its defaults). What is kept is bounded, per pod and altogether, and an hour old at most.
package podevents

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"slices"
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
	// maxPerPod is what one pod may have: twice the burst that the correlator lets pass.
	maxPerPod = 50
	// maxEvents is what all pods together may have: ten for each of 500.
	maxEvents = 5000
	// component names who tells, in the events.
	component = "quartet-syncloop"
)

// Config is what a Recorder needs.
type Config struct {
	// NodeName is the host in the events.
	NodeName string
	Clock    clock.WithTicker
	Logger   *slog.Logger
	// StreamMetrics counts what the stream does; nobody sees it when nil.
	StreamMetrics *stream.ServedMetrics
}

// Recorder takes in events and publishes them. All of its methods may be called at any time by anyone; none waits for
// I/O.
type Recorder struct {
	cfg        Config
	correlator *record.EventCorrelator
	level      *stream.Level[*enginev1.PodEvent]

	mu sync.Mutex
	// kept has the events by when they were last seen, the oldest first; byName finds them, ofPod counts them.
	kept   *list.List
	byName map[string]*list.Element
	ofPod  map[types.UID]int
	// named is the time in the newest name: no two are the same, however fast they come.
	named int64
}

// kept is what must be known of an event to drop it.
type kept struct {
	name string
	pod  types.UID
	last time.Time
}

// New returns a recorder of nothing.
func New(cfg Config) *Recorder {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Recorder{
		cfg: cfg, correlator: record.NewEventCorrelator(cfg.Clock),
		level: stream.NewLevel[*enginev1.PodEvent](stream.Config{Clock: cfg.Clock, Metrics: cfg.StreamMetrics}),
		kept:  list.New(), byName: map[string]*list.Element{}, ofPod: map[types.UID]int{},
	}
}

// Stream returns what WatchPodEvents serves, by the events' names.
func (r *Recorder) Stream() stream.Source[*enginev1.PodEvent] { return r.level }

// Close ends all subscriptions.
func (r *Recorder) Close() { r.level.Close() }

// Normal tells what went as it should. The container is the name of the one that it is about; empty for the pod as a whole.
// The reason is a word in CamelCase, the kubelet's where it has one; the message is for people.
func (r *Recorder) Normal(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	r.record(ctx, pod, container, v1.EventTypeNormal, reason, message)
}

// Warning tells what did not go as it should, as Normal does.
func (r *Recorder) Warning(ctx context.Context, pod *v1.Pod, container, reason, message string) {
	r.record(ctx, pod, container, v1.EventTypeWarning, reason, message)
}

func (r *Recorder) record(ctx context.Context, pod *v1.Pod, container, kind, reason, message string) {
	now := r.cfg.Clock.Now()
	at := metav1.NewTime(now)
	ref := v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		FieldPath: fieldPath(pod, container),
	}
	result, err := r.correlator.EventCorrelate(&v1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: cmp.Or(pod.Namespace, metav1.NamespaceDefault), Name: r.newName(pod, now)},
		InvolvedObject: ref, Type: kind, Reason: reason, Message: message, FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: v1.EventSource{Component: component, Host: r.cfg.NodeName}, ReportingController: component, ReportingInstance: r.cfg.NodeName,
	})
	if err != nil || result.Skip {
		return // it has told as much as it may; the log has the rest
	}
	event := result.Event
	r.correlator.UpdateState(event)
	data, err := event.Marshal()
	if err != nil {
		r.cfg.Logger.ErrorContext(ctx, "an event cannot be encoded and is left out", telemetry.KeyPod, pod.Namespace+"/"+pod.Name, telemetry.KeyReason, reason, telemetry.KeyError, err)
		return
	}
	r.keep(kept{name: event.Name, pod: pod.UID, last: now}, &enginev1.PodEvent{
		Event: data, LastSeenAt: timestamppb.New(now), Traceparent: telemetry.Traceparent(ctx),
	})
}

// newName returns the name of an event that may turn out to be a new one.
func (r *Recorder) newName(pod *v1.Pod, now time.Time) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named = max(r.named+1, now.UnixNano())
	return recordutil.GenerateEventName(pod.Name, r.named)
}

// keep publishes an event, and drops those that there is no room for any more.
func (r *Recorder) keep(k kept, event *enginev1.PodEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byName[k.name]; e != nil {
		e.Value = k
		r.kept.MoveToBack(e)
	} else {
		r.byName[k.name] = r.kept.PushBack(k)
		r.ofPod[k.pod]++
	}
	r.level.Put(k.name, event)
	for e := r.kept.Front(); r.ofPod[k.pod] > maxPerPod; {
		next := e.Next()
		if of(e).pod == k.pod {
			r.drop(e)
		}
		e = next
	}
	for e := r.kept.Front(); r.kept.Len() > maxEvents || k.last.Sub(of(e).last) > maxAge; e = r.kept.Front() {
		r.drop(e)
	}
}

// drop forgets an event. The recorder is locked.
func (r *Recorder) drop(e *list.Element) {
	k := of(e)
	r.kept.Remove(e)
	delete(r.byName, k.name)
	if r.ofPod[k.pod]--; r.ofPod[k.pod] == 0 {
		delete(r.ofPod, k.pod)
	}
	r.level.Delete(k.name)
}

func of(e *list.Element) kept { return e.Value.(kept) } //nolint:forcetypeassert // keep puts nothing else

// fieldPath is where a container stands in its pod's spec, as the kubelet says it in its events; empty for none.
func fieldPath(pod *v1.Pod, container string) string {
	if container == "" {
		return ""
	}
	named := func(c v1.Container) bool { return c.Name == container }
	list := "containers"
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, named):
		list = "initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool { return c.Name == container }):
		list = "ephemeralContainers"
	}
	return fmt.Sprintf("spec.%s{%s}", list, container)
}
