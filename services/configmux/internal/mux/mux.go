// Package mux merges the pods of all sources into the set of pods that this node should run, and the config maps and
// secrets that they use, and publishes both.
//
// Sources call Set with their full set, or with a change; podset computes the differences; they are published on a
// level stream, from which each subscriber receives what is new to it in the form that it has requested (updates.go,
// snapshots.go). The last set of each source, and its errors, are kept only here.
package mux

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Entry is one value of the stream: exactly one of its exported fields is set. It is immutable after its publication.
type Entry struct {
	// Pod is a desired pod, under the key of its UID.
	Pod *configv1.PodUpdate
	// Source is the state of a source, under the key of SourceKey.
	Source *configv1.SourceState
	// Set is the full desired set, under the key SetKey.
	Set *configv1.PodSet

	// For a pod: its name, the number of the merge that last changed more than its status, whether that change was its
	// deletion, and whether it is from a checkpoint. Its life is in Pod.
	name     types.NamespacedName
	desire   uint64
	ends     bool
	restored bool
}

// SourceKey returns the key of a source's state in the stream. It contains a slash, unlike the UID of a pod.
func SourceKey(name string) string { return "source/" + name }

// Config holds the parameters of a mux; all fields are required.
type Config struct {
	// Sources are all sources of this node. Until a source has its first reading, its state in the stream is not ready. Of
	// two with the same object, the first in this list takes precedence.
	Sources []source.Source
	Health  Health
	Clock   clock.WithTicker
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Metrics are the metrics of this mux.
	Metrics *Metrics
	// Counts returns the number of objects of each kind, if they are not those of the sources; else nil.
	Counts func() map[apiobject.Kind]int
}

// Health takes the reason why a source is not ready; empty when it is. *rpc.Health implements it.
type Health interface{ Set(part, reason string) }

// Mux holds the last set of every source. It implements source.Sink. All its methods are safe for concurrent use; none
// does I/O.
type Mux struct {
	cfg   Config
	level *stream.Level[Entry]
	// objects is the stream of config maps and secrets.
	objects *stream.Level[ObjectEntry]

	mu      sync.Mutex
	sources map[string]*sourceState
	// owners maps each UID to its source, because the stream has one key for each UID.
	owners map[types.UID]string
	// effective holds the effective objects as published.
	effective map[apiobject.Key]publishedObject
	// merges is the number of merges.
	merges uint64
	// epoch is unique to this mux, so that its lives differ from those of earlier processes.
	epoch string
	// notes are the log lines to write after the lock is released.
	notes []note
}

// note is one log line.
type note struct {
	// ctx carries the span of the line.
	ctx     context.Context //nolint:containedctx // the line is written a moment later
	level   slog.Level
	message string
	attrs   []any
}

// sourceState is the last set of one source.
type sourceState struct {
	// target returns the place that the source reads.
	target func() string
	// ready is true after the first full set of the source.
	ready     bool
	set       podset.Set
	published map[types.UID]published
	// refused maps rejected pods to the reasons.
	refused map[types.UID]source.Error
	// objects are all objects of the source, and hidden the reasons why some have no effect.
	objects []source.Object
	hidden  []source.Error
	// given are the errors of the last reading.
	given  []source.Error
	mode   string
	readAt time.Time
	errs   map[errorKey]*seenError
}

// published is a pod as published.
type published struct {
	Entry
	path string
	seen string
	// sourceLife is the last life from the source.
	sourceLife string
}

// New returns a mux whose sources are not ready yet, as its stream and the health report.
func New(cfg Config) *Mux {
	m := &Mux{
		cfg:     cfg,
		level:   stream.NewLevel[Entry](stream.Config{Clock: cfg.Clock, Metrics: cfg.Metrics.served}),
		objects: stream.NewLevel[ObjectEntry](stream.Config{Clock: cfg.Clock, Metrics: cfg.Metrics.servedObjects}),
		sources: map[string]*sourceState{}, owners: map[types.UID]string{}, effective: map[apiobject.Key]publishedObject{},
		epoch: uuid.NewString(),
	}
	for _, s := range cfg.Sources {
		m.sources[s.Name()] = &sourceState{
			target:    s.Target,
			set:       podset.Set{},
			published: map[types.UID]published{},
			refused:   map[types.UID]source.Error{},
			errs:      map[errorKey]*seenError{},
		}
		m.announce(s.Name(), false)
		m.announceObjects(s.Name(), false)
		cfg.Health.Set(SourceKey(s.Name()), "waiting for the first reading of the source "+s.Name()+", "+s.Target())
	}
	cfg.Metrics.expose(m)
	return m
}

// Close ends all subscriptions. The metrics do not report the sources any more.
func (m *Mux) Close() {
	m.level.Close()
	m.objects.Close()
	m.cfg.Metrics.forget(m)
}

// Idle reports whether no source has a pod and nobody is subscribed.
func (m *Mux) Idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, state := range m.sources {
		if len(state.published) > 0 {
			return false
		}
	}
	return m.level.Subscribers() == 0 && m.objects.Subscribers() == 0
}

// Set implements source.Sink. An unknown name is a programming error; it is logged, and the reading is dropped.
func (m *Mux) Set(name string, reading source.Reading) {
	m.mu.Lock()
	m.set(name, reading)
	notes := m.notes
	m.notes = nil
	m.mu.Unlock()
	for _, n := range notes {
		m.cfg.Logger.Log(n.ctx, n.level, n.message, n.attrs...)
	}
}

func (m *Mux) set(name string, reading source.Reading) {
	state := m.sources[name]
	if state == nil {
		m.note(
			context.Background(),
			slog.LevelError,
			"an unknown source has set pods; they are dropped",
			telemetry.KeySource,
			name,
		)
		return
	}
	if reading.Failed {
		state.mode = reading.Mode
		state.given = reading.Errors
		m.noteErrors(name, state, &reading)
		return
	}
	if reading.Op == podset.Restore && state.ready {
		m.note(
			context.Background(),
			slog.LevelInfo,
			"the source was ready before its checkpoint was read; the checkpoint is not used",
			telemetry.KeySource,
			name,
		)
		return
	}
	state.given = reading.Errors
	changes := m.merge(name, state, &reading)
	m.noteErrors(name, state, &reading)
	state.mode = reading.Mode
	if !reading.ReadAt.IsZero() {
		state.readAt = reading.ReadAt
	}
	first := reading.Op == podset.None && !state.ready
	if first {
		state.ready = true
		// The health is set before the publication, so that a subscriber finds the source ready there too.
		m.cfg.Health.Set(SourceKey(name), "")
		m.note(
			context.Background(),
			slog.LevelInfo,
			"the source is ready",
			telemetry.KeySource,
			name,
			"target",
			state.target(),
			"pods",
			len(state.set),
			"mode",
			reading.Mode,
		)
		m.announceObjects(name, true)
	}
	// The first full set of a source is announced even if it changes nothing, because it makes the source ready.
	if first || len(changes) > 0 {
		// It is put last, so that it follows this merge's pods on every subscription.
		m.announce(name, state.ready)
	}
}

// note queues a log line until the mux is unlocked.
func (m *Mux) note(ctx context.Context, level slog.Level, message string, attrs ...any) {
	m.notes = append(m.notes, note{ctx: ctx, level: level, message: message, attrs: attrs})
}

func (m *Mux) announce(name string, ready bool) {
	m.level.Put(SourceKey(name), Entry{Source: &configv1.SourceState{Name: name, Ready: ready}})
}

// Pods returns the desired pods of all sources, sorted by namespace and name.
func (m *Mux) Pods() []*configv1.PodUpdate {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Entry
	for _, state := range m.sources {
		for _, p := range state.published {
			all = append(all, p.Entry)
		}
	}
	return listed(all, func(name string) bool { return m.sources[name].ready })
}

// Sources returns the state of each source, sorted by name.
func (m *Mux) Sources() []*configv1.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*configv1.Source, 0, len(m.sources))
	for name, state := range m.sources {
		s := &configv1.Source{
			Name: name, Target: sendable(state.target()), Ready: state.ready,
			Pods:    int32(len(state.set)), //nolint:gosec // a node has some hundred pods
			Objects: int32(m.count(name)),  //nolint:gosec // and some hundred objects
			Mode:    state.mode, Errors: state.listErrors(),
		}
		if at := state.readAt; !at.IsZero() {
			s.LastReadAt = timestamppb.New(at)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *configv1.Source) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out
}

// isReady reports whether a source has had its first full set.
func (m *Mux) isReady(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.sources[name]
	return state != nil && state.ready
}

// listed returns pods for a subscriber that has none yet, sorted by namespace, name and source. It sorts its input.
func listed(pods []Entry, ready func(source string) bool) []*configv1.PodUpdate {
	slices.SortFunc(pods, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name),
			cmp.Compare(a.Pod.GetSource(), b.Pod.GetSource()))
	})
	updates := make([]*configv1.PodUpdate, len(pods))
	for i, p := range pods {
		updates[i] = withOp(p.Pod, p.opOfNew(ready))
	}
	return updates
}

// withOp returns the update with another operation, for a subscriber that has missed changes of the pod or does not
// need its last one. The pod's bytes are shared.
func withOp(u *configv1.PodUpdate, op configv1.Op) *configv1.PodUpdate {
	return &configv1.PodUpdate{
		Op:          op,
		Source:      u.GetSource(),
		Pod:         u.GetPod(),
		Traceparent: u.GetTraceparent(),
		Life:        u.GetLife(),
	}
}
