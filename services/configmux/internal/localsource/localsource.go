// Package localsource is the source "local": the pods, config maps, secrets and persistent volume claims that were
// applied by a call, and that stay until a call deletes them. It keeps a file for each of them, so that they survive a
// restart; secrets are encrypted in it.
//
// One goroutine, that of Run, owns the pods and the files. Apply and Delete decode and validate in the caller's
// goroutine what needs no state, pass the rest to the owner over an unbuffered channel, and wait for its answer:
//
//	Apply ──► staticpod.Decode ──► owner: is the name free? ──► write the file ──► pass the set to the sink ──► answer
//
// The file is written and synced before a new pod is published, and removed before its removal is published. So if the
// process dies at any point, the next one finds either the state before the call or the state after it, and an answered
// call is durable. After a failed step the owner reads the directory again, so that its memory never differs from what
// the next process would find.
package localsource

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Name is the name of this source.
const Name = "local"

// mode is the mode of noticing changes, for operators.
const mode = "calls"

// retryInterval is the interval of retries for an unreadable directory.
const retryInterval = 5 * time.Second

// Others finds the pods of other sources. The mux implements it.
type Others interface {
	// Holder returns the pod with that name or that UID of a source other than except; ok is false if there is none.
	Holder(name types.NamespacedName, uid types.UID, except string) (holder source.Holder, ok bool)
	// ObjectHolder returns the source and the path of the object with that key of a source other than except; ok is false
	// if there is none.
	ObjectHolder(key apiobject.Key, except string) (from, path string, ok bool)
}

// Config holds the parameters of the source. All fields except Standalone are required.
type Config struct {
	// Dir is the directory of the files. It is created in an existing directory.
	Dir string
	// Node is the node's name.
	Node string
	// Allowed lists the sources whose pods may have access to the host.
	Allowed privilege.Allowed
	// Standalone is true for a node without an API server. Only there the source has objects that pods use. Elsewhere
	// those that were applied before stay on disk without an effect.
	Standalone bool
	// Seals encrypts the secrets.
	Seals *sealing.Keyring
	// MaxPods is the maximum number of pods, and MaxObjects that of config maps, secrets and claims.
	MaxPods, MaxObjects int
	// Others returns the finder for pods of other sources. It is called while the source runs.
	Others func() Others
	Clock  clock.Clock
	Tracer trace.Tracer
}

// Source is the source "local". It implements source.Source.
type Source struct {
	cfg      Config
	steps    *watchdog.Steps
	requests chan request
	// ended is closed when Run has ended.
	ended chan struct{}

	// Only the goroutine of Run uses the following fields.

	sink source.Sink
	// failure is the error of reading the directory; nil if it was read.
	failure error
	readAt  time.Time
	// pods maps the names in the manifests, without the suffix, to the pods.
	pods map[types.NamespacedName]*entry
	// objects are the config maps, secrets and claims.
	objects map[apiobject.Key]*objectEntry
	// broken maps the paths of invalid files to their errors.
	broken map[string]source.Error
	// locked is true while there are secrets whose key is missing.
	locked bool
}

// request is one call for the owner.
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
		cfg: cfg, steps: watchdog.NewSteps(cfg.Clock, 0), requests: make(chan request), ended: make(chan struct{}),
		pods: map[types.NamespacedName]*entry{}, objects: map[apiobject.Key]*objectEntry{}, broken: map[string]source.Error{},
	}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source.
func (s *Source) Target() string { return s.cfg.Dir }

// Stands returns why the loop of the source stands still; nil if it turns, or waits for a disk.
func (s *Source) Stands() error { return s.steps.Stands() }

// Run implements source.Source. It never fails: an unreadable directory is reported and retried. It is called once.
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

// serve executes one call. It refuses changes while the directory has not been read.
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

// ask passes a function to the owner, and waits for its result. If ctx ends first, the function may or may not have
// run.
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

// give passes the set to the sink, with the traces of changes by path.
func (s *Source) give(causes map[string]context.Context) {
	reading := source.Reading{ReadAt: s.readAt, Mode: mode, Causes: causes}
	if s.failure != nil {
		reading.Failed = true
		reading.Errors = []source.Error{{
			Path: s.cfg.Dir, SeenAt: s.cfg.Clock.Now(),
			Message: s.failure.Error() + "; the pods that were applied before continue to run",
		}}
		s.set(reading)
		return
	}
	for _, e := range s.pods {
		reading.Pods = append(reading.Pods, source.Pod{Pod: e.pod, Path: e.path})
	}
	for _, e := range s.objects {
		reading.Objects = append(reading.Objects, source.Object{Object: e.object, Path: e.path, CreatedAt: e.createdAt})
	}
	// Sorted, so that an unchanged set has an unchanged order.
	slices.SortFunc(reading.Objects, func(a, b source.Object) int { return a.Key().Compare(b.Key()) })
	for _, e := range s.broken {
		reading.Errors = append(reading.Errors, e)
	}
	s.set(reading)
}

// set passes a reading to the sink.
func (s *Source) set(reading source.Reading) {
	s.steps.Do(func() { s.sink.Set(Name, reading) })
}
