// Package localsource is the source "local": the pods, config maps and secrets that were applied by a call, and that stay until
// a call deletes them. It keeps one file for each, so that they are there again after a restart; a secret is encrypted in it.
//
// One goroutine, that of Run, owns the pods and the files. Apply and Delete decode and judge what needs no state in the
// caller's goroutine, hand the rest to the owner over a channel without a buffer, and wait for its answer:
//
//	Apply ──► staticpod.Decode ──► owner: who has the name? ──► write the file ──► give the set to the sink ──► answer
//
// The file is written, and synced, before anyone hears of the pod; it is gone before anyone hears that the pod is. So at
// whatever point the process dies, the next one finds what was there before the call, or what the call asked for, and a
// call that was answered has lasting effect. When a step fails, the owner reads the directory again: what it holds in memory
// and what the next process would find never differ.
package localsource

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Name is the name of this source.
const Name = "local"

// mode is how changes are noticed, as operators see it.
const mode = "calls"

// retryInterval is how often a directory is tried again that cannot be read.
const retryInterval = 5 * time.Second

// Others tells of the pods of other sources; the mux does.
type Others interface {
	// Holder returns the pod with that name or that UID of another source than the one that asks; ok is false when there
	// is none.
	Holder(name types.NamespacedName, uid types.UID, asks string) (holder source.Holder, ok bool)
	// ObjectHolder returns the source and the path of the object with that key of another source than the one that asks; ok
	// is false when there is none.
	ObjectHolder(key apiobject.Key, asks string) (from, path string, ok bool)
}

// Config is what the source needs. All fields but Standalone must be set.
type Config struct {
	// Dir has the files. It is made, in a directory that exists.
	Dir string
	// Node is the node's name.
	Node string
	// Allowed says which sources' pods may reach beyond their own walls.
	Allowed privilege.Allowed
	// Standalone is true on a node without an API server: only there the source has config maps and secrets. Elsewhere those
	// that were applied before stay on the disk, and count for nothing.
	Standalone bool
	// Seals encrypts the secrets.
	Seals *sealing.Keyring
	// MaxPods is how many pods there may be, and MaxObjects how many config maps and secrets.
	MaxPods, MaxObjects int
	// Others returns who knows the pods of the other sources. It is called while the source runs.
	Others func() Others
	Clock  clock.Clock
	Tracer trace.Tracer
}

// Source is the source "local". It implements source.Source.
type Source struct {
	cfg      Config
	requests chan request
	// ended is closed when Run has ended.
	ended chan struct{}

	// What follows belongs to the goroutine of Run.

	sink source.Sink
	// failure is why the directory cannot be read; nil when it was.
	failure error
	readAt  time.Time
	// pods are by the names that their manifests give them, which have no suffix.
	pods map[types.NamespacedName]*entry
	// objects are the config maps and secrets.
	objects map[apiobject.Key]*objectEntry
	// broken has, by path, what is wrong with files that hold nothing that can be.
	broken map[string]source.Error
	// locked is true while there are secrets that cannot be decrypted for want of their key.
	locked bool
}

// request is one call, to be done by the owner.
type request struct {
	ctx    context.Context //nolint:containedctx // it is that of the call that waits for the answer
	do     func(context.Context) (Applied, error)
	answer chan<- answer
}

type answer struct {
	applied Applied
	err     error
}

// New returns the source. It does nothing before Run.
func New(cfg Config) *Source {
	return &Source{
		cfg: cfg, requests: make(chan request), ended: make(chan struct{}),
		pods: map[types.NamespacedName]*entry{}, objects: map[apiobject.Key]*objectEntry{}, broken: map[string]source.Error{},
	}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source.
func (s *Source) Target() string { return s.cfg.Dir }

// Run implements source.Source. It never fails: a directory that cannot be read is reported, and tried again. It is
// called once.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	defer close(s.ended)
	s.sink = sink
	s.read(nil)
	for {
		var retry <-chan time.Time
		stop := func() {}
		if s.failure != nil || s.locked {
			timer := s.cfg.Clock.NewTimer(retryInterval)
			retry, stop = timer.C(), func() { timer.Stop() }
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case r := <-s.requests:
			r.answer <- s.serve(r)
		case <-retry:
			s.read(nil)
		}
		stop()
	}
}

// serve does one call. Without having read what there is, nothing can be changed.
func (s *Source) serve(r request) answer {
	if err := r.ctx.Err(); err != nil {
		return answer{err: err}
	}
	if s.failure != nil {
		s.read(nil)
	}
	if s.failure != nil {
		return answer{err: s.failure}
	}
	applied, err := r.do(r.ctx)
	return answer{applied: applied, err: err}
}

// ask has the owner do something, and waits for the outcome. When ctx ends first, it may have been done or not.
func (s *Source) ask(ctx context.Context, do func(context.Context) (Applied, error)) (Applied, error) {
	answered := make(chan answer, 1)
	select {
	case s.requests <- request{ctx: ctx, do: do, answer: answered}:
	case <-s.ended:
		return Applied{}, ErrEnded
	case <-ctx.Done():
		return Applied{}, ctx.Err()
	}
	select {
	case a := <-answered:
		return a.applied, a.err
	case <-ctx.Done():
		return Applied{}, ctx.Err()
	}
}

// give gives the set to the sink, with the traces of what has changed by path.
func (s *Source) give(causes map[string]context.Context) {
	reading := source.Reading{ReadAt: s.readAt, Mode: mode, Causes: causes}
	if s.failure != nil {
		reading.Failed = true
		reading.Errors = []source.Error{{
			Path: s.cfg.Dir, SeenAt: s.cfg.Clock.Now(),
			Message: s.failure.Error() + "; what was applied before runs on",
		}}
		s.sink.Set(Name, reading)
		return
	}
	for _, e := range s.pods {
		reading.Pods = append(reading.Pods, source.Pod{Pod: e.pod, Path: e.path})
	}
	for _, e := range s.objects {
		reading.Objects = append(reading.Objects, source.Object{Object: e.object, Path: e.path, CreatedAt: e.createdAt})
	}
	// In an order, so that what has not changed is given as it was.
	slices.SortFunc(reading.Objects, func(a, b source.Object) int { return a.Key().Compare(b.Key()) })
	for _, e := range s.broken {
		reading.Errors = append(reading.Errors, e)
	}
	s.sink.Set(Name, reading)
}
