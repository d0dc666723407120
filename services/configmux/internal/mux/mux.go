// Package mux merges what the sources give into the one set of pods that this node is to run, and the config maps and secrets
// that they use, and publishes both.
//
// Sources call Set with everything they have, or with what has changed; podset says what became of each pod; what changed is
// put on a level stream, from which each subscriber takes what is new to it in the form that it asked for (updates.go,
// snapshots.go). What each source gave last, and everything that is wrong with it, is kept here and nowhere else.
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
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Entry is one value of the stream: exactly one of its exported fields is set. It is not changed once it is published.
type Entry struct {
	// Pod is a desired pod, under the key of its UID.
	Pod *configv1.PodUpdate
	// Source is the state of a source, under the key that SourceKey gives.
	Source *configv1.SourceState
	// Set is all that is desired, under the key SetKey.
	Set *configv1.PodSet

	// Of a pod: its name, the number of the merge that last changed more of it than its status, whether that change was that
	// it is to end, and whether it is out of a checkpoint. Its life is in Pod.
	name     types.NamespacedName
	desire   uint64
	ends     bool
	restored bool
}

// SourceKey is the key of a source's state in the stream. No UID of a pod has a slash in it.
func SourceKey(name string) string { return "source/" + name }

// Config is what a mux needs; all fields must be set.
type Config struct {
	// Sources are all that this node has. Until each has spoken, its state in the stream says that it has not. Of two that have
	// an object of one key, that of the first one here counts.
	Sources []source.Source
	Health  *rpc.Health
	Clock   clock.WithTicker
	Tracer  trace.Tracer
	Logger  *slog.Logger
	// Metrics are those of this mux alone.
	Metrics *Metrics
}

// Mux holds what every source gave last. It implements source.Sink; all of its methods may be called at any time by
// anyone, and none waits for I/O.
type Mux struct {
	cfg   Config
	level *stream.Level[Entry]
	// objects is the stream of config maps and secrets.
	objects *stream.Level[ObjectEntry]

	mu      sync.Mutex
	sources map[string]*sourceState
	// owners has the source of each UID: the stream has one key for each.
	owners map[types.UID]string
	// effective are the objects that count, as subscribers have them.
	effective map[apiobject.Key]publishedObject
	// merges counts the merges.
	merges uint64
	// epoch is unique to this mux: a life that it names is not one that an earlier process named.
	epoch string
	// notes are what is to be logged once the lock is given back.
	notes []note
}

// note is one line of the log.
type note struct {
	// ctx has the span that the line is about.
	ctx     context.Context //nolint:containedctx // the line is written a moment later
	level   slog.Level
	message string
	attrs   []any
}

// sourceState is what one source gave last.
type sourceState struct {
	target string
	// ready is true once the source has spoken, by its first full set.
	ready     bool
	set       podset.Set
	published map[types.UID]published
	// refused has why pods were left out of the set.
	refused map[types.UID]source.Error
	// objects are all that the source gave, and hidden why some of them do not count.
	objects []source.Object
	hidden  []source.Error
	// given are the errors of the last reading.
	given  []source.Error
	mode   string
	readAt time.Time
	errs   map[errorKey]*seenError
}

// published is a pod as subscribers have it.
type published struct {
	Entry
	path string
	seen string
	// sourceLife is the life that the source gave last.
	sourceLife string
}

// New returns a mux whose sources have not spoken yet, and says so in the stream and in the health.
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
			target: s.Target(), published: map[types.UID]published{}, refused: map[types.UID]source.Error{}, errs: map[errorKey]*seenError{},
		}
		m.announce(s.Name(), false)
		m.announceObjects(s.Name(), false)
		cfg.Health.Set(SourceKey(s.Name()), "waiting for the first reading of the source "+s.Name()+", "+s.Target())
	}
	cfg.Metrics.expose(m)
	return m
}

// Close ends all subscriptions.
func (m *Mux) Close() {
	m.level.Close()
	m.objects.Close()
}

// Set implements source.Sink. A name that is none of the mux's sources is a mistake of the program; it is logged, and
// the reading dropped.
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
		m.note(context.Background(), slog.LevelError, "a source that is not known gave pods; they are dropped", telemetry.KeySource, name)
		return
	}
	if reading.Failed {
		state.mode = reading.Mode
		state.given = reading.Errors
		m.noteErrors(name, state, &reading)
		return
	}
	if reading.Op == podset.Restore && state.ready {
		m.note(context.Background(), slog.LevelInfo, "the source has spoken before its checkpoint was read; nothing of it is restored", telemetry.KeySource, name)
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
		// Before anyone hears of it, so that who has heard of it finds it in the health too.
		m.cfg.Health.Set(SourceKey(name), "")
		m.note(context.Background(), slog.LevelInfo, "the source is ready", telemetry.KeySource, name, "target", state.target, "pods", len(state.set), "mode", reading.Mode)
		m.announceObjects(name, true)
	}
	// The first full set of a source is told of even when it changes nothing: it makes the source ready.
	if first || len(changes) > 0 {
		// Put last, so that it comes after this merge's pods on every subscription.
		m.announce(name, state.ready)
	}
}

// note keeps a line of the log for when the mux is no longer locked.
func (m *Mux) note(ctx context.Context, level slog.Level, message string, attrs ...any) {
	m.notes = append(m.notes, note{ctx: ctx, level: level, message: message, attrs: attrs})
}

func (m *Mux) announce(name string, ready bool) {
	m.level.Put(SourceKey(name), Entry{Source: &configv1.SourceState{Name: name, Ready: ready}})
}

// Pods returns the desired pods of all sources, in the order of namespace and name.
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

// Sources returns what is known of each source, in the order of their names.
func (m *Mux) Sources() []*configv1.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*configv1.Source, 0, len(m.sources))
	for name, state := range m.sources {
		s := &configv1.Source{
			Name: name, Target: sendable(state.target), Ready: state.ready,
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

// isReady tells whether a source has spoken.
func (m *Mux) isReady(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.sources[name]
	return state != nil && state.ready
}

// listed returns pods in the order of namespace, name and source, as they are to one who sees them for the first time. What is
// given is sorted.
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

// withOp returns the update with another operation, for who has seen more or less of the pod than its last change. The
// pod's bytes are shared.
func withOp(u *configv1.PodUpdate, op configv1.Op) *configv1.PodUpdate {
	return &configv1.PodUpdate{Op: op, Source: u.GetSource(), Pod: u.GetPod(), Traceparent: u.GetTraceparent(), Life: u.GetLife()}
}
