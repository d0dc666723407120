package apisource

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/quartet-node/quartet/internal/reflector"
)

// maxBackoff bounds the pause after a failed request, so that a node notices within five seconds that an API server is
// reachable again.
const maxBackoff = 3 * time.Second

// verbs lists the verbs in the order in which they are requested.
var verbs = [...]reflector.Verb{reflector.VerbList, reflector.VerbWatch}

// newsKind is the kind of a result of the reflector.
type newsKind uint8

const (
	// begun: the API server has the Node, and its pods are requested from now on.
	begun newsKind = iota
	// answered: a request of the verb succeeded.
	answered
	// refused: a request of the verb failed.
	refused
	// listed: the pods are the full set.
	listed
	// changed: the pod was created or changed.
	changed
	// removed: the pod was deleted.
	removed
)

// news is a result of the reflector.
type news struct {
	kind newsKind
	verb reflector.Verb
	err  error
	pods []*v1.Pod
	// began is the time of the request, or of the arrival of the change.
	began time.Time
}

// reflect lists and watches the pods of the node until ctx ends, and passes the results to the source.
func (s *Source) reflect(ctx context.Context) {
	r := s.Feed(ctx)
	_ = reflector.Run(ctx, reflector.Config{ // it ends only with ctx
		Client:     s.cfg.Client,
		Resource:   "pods",
		Fields:     fields.OneTermEqualSelector("spec.nodeName", s.cfg.Node),
		Empty:      &v1.Pod{},
		Handler:    r,
		Clock:      s.cfg.Clock,
		Timeout:    s.limit,
		MaxBackoff: maxBackoff,
		Requested: func(verb reflector.Verb, began time.Time, err error) {
			s.cfg.Metrics.Requested(verb, err)
			if s.cfg.Requested != nil {
				s.cfg.Requested(verb, err)
			}
			r.Requested(verb, began, err)
		},
		Watching: func(watching bool) {
			s.cfg.Metrics.Watching(watching)
		},
	})
}

// Feed passes pods to a source. It implements reflector.Handler, and has no state. Its methods wait for Run, which only
// computes, and return when the context of the feed ends.
type Feed struct {
	s *Source
	// ctx is the context of the reflector, which it does not pass to its handler.
	ctx context.Context //nolint:containedctx // it lives as long as the reflector
}

// Feed returns the feed of a Shared source until ctx ends.
func (s *Source) Feed(ctx context.Context) *Feed { return &Feed{s: s, ctx: ctx} }

// Begun passes that the pods are requested from now on.
func (r *Feed) Begun() { r.s.send(r.ctx, news{kind: begun}) }

// Requested passes the result of a request. An expired resource version is no failure: the reflector lists again.
func (r *Feed) Requested(verb reflector.Verb, began time.Time, err error) {
	switch {
	case err == nil:
		if verb == reflector.VerbWatch { // Listed reports the success of a list
			r.s.send(r.ctx, news{kind: answered, verb: verb, began: began})
		}
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
	default:
		r.s.send(r.ctx, news{kind: refused, verb: verb, began: began, err: err})
	}
}

// Listed implements reflector.Handler.
func (r *Feed) Listed(objects []runtime.Object, began time.Time) {
	r.s.send(r.ctx, news{kind: listed, verb: reflector.VerbList, began: began, pods: podsOf(objects...)})
}

// Changed implements reflector.Handler.
func (r *Feed) Changed(object runtime.Object) { r.one(changed, object) }

// Deleted implements reflector.Handler.
func (r *Feed) Deleted(object runtime.Object) { r.one(removed, object) }

// ListFailed implements reflector.Handler. requested has reported the failure.
func (*Feed) ListFailed(error) {}

func (r *Feed) one(kind newsKind, object runtime.Object) {
	if pods := podsOf(object); len(pods) == 1 {
		r.s.send(r.ctx, news{kind: kind, verb: reflector.VerbWatch, began: r.s.cfg.Clock.Now(), pods: pods})
	}
}

// podsOf returns the pods among the objects of a reflector, which are all pods.
func podsOf(items ...runtime.Object) []*v1.Pod {
	out := make([]*v1.Pod, 0, len(items))
	for _, item := range items {
		if pod, ok := item.(*v1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out
}
