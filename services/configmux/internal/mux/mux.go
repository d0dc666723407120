// Package mux merges what the sources give into the one set of pods that this node is to run, and publishes it.
//
// Sources call Set with everything they have; podset says what became of each pod; what changed is put on a level
// stream, from which server serves WatchPodUpdates. What each source gave last, and everything that is wrong with it, is
// kept here and nowhere else.
package mux

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Entry is one value of the stream: exactly one of its fields is set. It is not changed once it is published.
type Entry struct {
	// Pod is a desired pod, under the key of its UID.
	Pod *configv1.PodUpdate
	// Source is the state of a source, under the key that SourceKey gives.
	Source *configv1.SourceState
}

// SourceKey is the key of a source's state in the stream. No UID of a pod has a slash in it.
func SourceKey(name string) string { return "source/" + name }

// Config is what a mux needs; all fields must be set.
type Config struct {
	// Sources are all that this node has. Until each has spoken, its state in the stream says that it has not.
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

	mu      sync.Mutex
	sources map[string]*sourceState
	// owners has the source of each UID: the stream has one key for each.
	owners map[types.UID]string
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
	// set is nil until the source has spoken.
	set       podset.Set
	published map[types.UID]published
	mode      string
	readAt    time.Time
	errs      map[errorKey]*seenError
}

// published is a pod as subscribers have it.
type published struct {
	name   types.NamespacedName
	path   string
	seen   string
	update *configv1.PodUpdate
}

// New returns a mux whose sources have not spoken yet, and says so in the stream and in the health.
func New(cfg Config) *Mux {
	m := &Mux{
		cfg:     cfg,
		level:   stream.NewLevel[Entry](stream.Config{Clock: cfg.Clock, Metrics: cfg.Metrics.served}),
		sources: map[string]*sourceState{},
		owners:  map[types.UID]string{},
	}
	for _, s := range cfg.Sources {
		m.sources[s.Name()] = &sourceState{
			target: s.Target(), published: map[types.UID]published{}, errs: map[errorKey]*seenError{},
		}
		m.announce(s.Name(), false)
		cfg.Health.Set(SourceKey(s.Name()), "waiting for the first reading of the source "+s.Name()+", "+s.Target())
	}
	cfg.Metrics.expose(m)
	return m
}

// Stream returns what WatchPodUpdates serves.
func (m *Mux) Stream() stream.Source[Entry] { return m.level }

// Close ends all subscriptions.
func (m *Mux) Close() { m.level.Close() }

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
		m.noteErrors(name, state, &reading)
		return
	}
	merged := m.merge(name, state, &reading)
	m.noteErrors(name, state, &reading)
	state.mode, state.readAt = reading.Mode, reading.ReadAt
	if merged.First {
		// Before anyone hears of it, so that who has heard of it finds it in the health too.
		m.cfg.Health.Set(SourceKey(name), "")
		m.note(context.Background(), slog.LevelInfo, "the source is ready", telemetry.KeySource, name, "target", state.target, "pods", len(merged.Set), "mode", reading.Mode)
	}
	if !merged.Silent() {
		// Put last, so that it comes after this merge's pods on every subscription.
		m.announce(name, true)
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
	var all []published
	for _, state := range m.sources {
		for _, p := range state.published {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b published) int {
		return cmp.Or(cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name),
			cmp.Compare(a.update.GetSource(), b.update.GetSource()))
	})
	updates := make([]*configv1.PodUpdate, len(all))
	for i, p := range all {
		updates[i] = WithOp(p.update, configv1.Op_OP_ADD)
	}
	return updates
}

// Sources returns what is known of each source, in the order of their names.
func (m *Mux) Sources() []*configv1.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*configv1.Source, 0, len(m.sources))
	for name, state := range m.sources {
		s := &configv1.Source{
			Name: name, Target: sendable(state.target), Ready: state.set != nil,
			Pods: int32(len(state.set)), //nolint:gosec // a node has some hundred pods
			Mode: state.mode, Errors: state.listErrors(),
		}
		if at := state.readAt; !at.IsZero() {
			s.LastReadAt = timestamppb.New(at)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *configv1.Source) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out
}

// WithOp returns the update with another operation, for who has seen more or less of the pod than its last change. The
// pod's bytes are shared.
func WithOp(u *configv1.PodUpdate, op configv1.Op) *configv1.PodUpdate {
	return &configv1.PodUpdate{Op: op, Source: u.GetSource(), Pod: u.GetPod(), Traceparent: u.GetTraceparent()}
}
