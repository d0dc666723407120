package apisource

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// verb is what is asked of the API server. Its value is the word that people read.
type verb string

const (
	verbList  verb = "list"
	verbWatch verb = "watch"
)

// verbs has all of them, in the order in which they are asked.
var verbs = [...]verb{verbList, verbWatch}

// newsKind says what a piece of news is about.
type newsKind uint8

const (
	// begun: the Node is known to the API server, and its pods are asked for from now on.
	begun newsKind = iota
	// answered: a request of the verb works.
	answered
	// refused: a request of the verb failed.
	refused
	// listed: the pods are all that there are.
	listed
	// changed: the one pod is new or not as it was.
	changed
	// removed: the one pod is gone.
	removed
)

// news is what the reflector tells.
type news struct {
	kind newsKind
	verb verb
	err  error
	pods []*v1.Pod
	// began is when the request was made, or when the change came.
	began time.Time
}

// retry is how long the reflector waits after a failure, doubling from the first to the last: a node knows of an API
// server that is back within five seconds, and one that stays away is asked every three to four and a half. client-go's own
// goes up to a minute.
func retry() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 100, Cap: 3 * time.Second}
}

// reflect lists and watches until ctx ends, and tells the source of all that comes of it.
func (s *Source) reflect(ctx context.Context) {
	r := &reflection{
		s: s, ctx: ctx,
		pods: cache.NewListWatchFromClient(s.cfg.Client, "pods", metav1.NamespaceAll,
			fields.OneTermEqualSelector("spec.nodeName", s.cfg.Node)),
	}
	cache.NewReflectorWithOptions(r, &v1.Pod{}, r, cache.ReflectorOptions{Name: "pods of " + s.cfg.Node, Backoff: retry()}).RunWithContext(quiet(ctx))
}

// quiet returns a context in which a reflector logs nothing: what goes wrong is told once and stays listed, and it would
// say it with every retry.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// reflection is both ends of a reflector: what it asks, and where it puts what it gets. It implements
// cache.ListerWatcherWithContext and cache.ReflectorStore. It holds nothing but passes all on.
type reflection struct {
	s    *Source
	pods *cache.ListWatch
	// ctx is that of the reflector, whose store is given none.
	ctx context.Context //nolint:containedctx // it lives as long as the reflector
	// listing is when the last list was asked for. It is written before the reflector has the list, and read after.
	listing time.Time
}

// IsWatchListSemanticsUnSupported tells client-go to list by a list and not by a watch: its errors then are those of the
// list, and a refused connection is told and not only waited out.
func (r *reflection) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister, which nobody calls where there is ListWithContext.
func (r *reflection) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher, which nobody calls where there is WatchWithContext.
func (r *reflection) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// ListWithContext lists the pods. The first list is one of what there is now: the reflector would be content with any
// state that the API server has had (a resource version of 0), and of several servers one that is behind could so take
// away from a configmux that was restarted the pods that its node runs.
func (r *reflection) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	began := r.s.cfg.Clock.Now()
	r.listing = began
	if options.ResourceVersion == "0" {
		options.ResourceVersion = ""
	}
	limited, cancel := context.WithTimeout(ctx, r.s.limit)
	defer cancel()
	list, err := r.pods.ListWithContext(limited, options)
	r.outcome(ctx, verbList, began, err)
	return list, err
}

// WatchWithContext begins a watch. It may last as long as it will, but must begin within the limit.
func (r *reflection) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	began := r.s.cfg.Clock.Now()
	limited, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(r.s.limit, func() { cancel(context.DeadlineExceeded) })
	flow, err := r.pods.WatchWithContext(limited, options)
	if !limit.Stop() && err == nil {
		flow.Stop()
		err = context.DeadlineExceeded
	}
	if cause := context.Cause(limited); err != nil && errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	r.outcome(ctx, verbWatch, began, err)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return r.observe(ctx, flow, cancel), nil
}

// outcome counts a request and tells what came of it. That a resource version is too old is no failure: the reflector lists
// anew.
func (r *reflection) outcome(ctx context.Context, v verb, began time.Time, err error) {
	switch {
	case ctx.Err() != nil: // it was given up
	case err == nil:
		r.s.cfg.Metrics.ok(v)
		if v == verbWatch { // that a list worked is told by what it brought
			r.s.tell(ctx, news{kind: answered, verb: v, began: began})
		}
	case isExpired(err):
		r.s.cfg.Metrics.expired(v)
	default:
		r.s.cfg.Metrics.failed(v)
		r.s.tell(ctx, news{kind: refused, verb: v, began: began, err: err})
	}
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// Replace implements cache.ReflectorStore.
func (r *reflection) Replace(items []any, _ string) error {
	r.s.tell(r.ctx, news{kind: listed, verb: verbList, began: r.listing, pods: podsOf(items...)})
	return nil
}

// Add implements cache.ReflectorStore.
func (r *reflection) Add(item any) error { return r.Update(item) }

// Update implements cache.ReflectorStore.
func (r *reflection) Update(item any) error {
	r.one(changed, item)
	return nil
}

// Delete implements cache.ReflectorStore.
func (r *reflection) Delete(item any) error {
	r.one(removed, item)
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do again.
func (r *reflection) Resync() error { return nil }

func (r *reflection) one(kind newsKind, item any) {
	if pods := podsOf(item); len(pods) == 1 {
		r.s.tell(r.ctx, news{kind: kind, verb: verbWatch, began: r.s.cfg.Clock.Now(), pods: pods})
	}
}

// podsOf returns the pods among what a reflector brings, which has brought nothing else.
func podsOf(items ...any) []*v1.Pod {
	out := make([]*v1.Pod, 0, len(items))
	for _, item := range items {
		if pod, is := item.(*v1.Pod); is {
			out = append(out, pod)
		}
	}
	return out
}

// observed is a watch whose errors are told.
type observed struct {
	inner  watch.Interface
	result chan watch.Event
	// stop is closed by Stop, ended when nothing will be told any more.
	stop, ended chan struct{}
	once        sync.Once
	cancel      context.CancelCauseFunc
}

// observe passes on what a watch brings until it ends or is stopped.
func (r *reflection) observe(ctx context.Context, inner watch.Interface, cancel context.CancelCauseFunc) watch.Interface {
	o := &observed{inner: inner, result: make(chan watch.Event), stop: make(chan struct{}), ended: make(chan struct{}), cancel: cancel}
	r.s.cfg.Metrics.watching.Set(1)
	go func() {
		defer close(o.ended)
		defer r.s.cfg.Metrics.watching.Set(0)
		defer close(o.result)
		for event := range inner.ResultChan() {
			if event.Type == watch.Error {
				r.broken(ctx, apierrors.FromObject(event.Object))
			}
			select {
			case o.result <- event:
			case <-o.stop:
				return
			}
		}
	}()
	return o
}

// broken tells that a watch that had begun has failed.
func (r *reflection) broken(ctx context.Context, err error) {
	r.outcome(ctx, verbWatch, r.s.cfg.Clock.Now(), err)
}

// ResultChan implements watch.Interface.
func (o *observed) ResultChan() <-chan watch.Event { return o.result }

// Stop implements watch.Interface. When it returns the watch has ended.
func (o *observed) Stop() {
	o.once.Do(func() {
		close(o.stop)
		o.inner.Stop()
		o.cancel(nil)
	})
	<-o.ended
}
