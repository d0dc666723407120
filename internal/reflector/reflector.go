// Package reflector lists and watches a resource of an API server and passes its objects to a [Handler]. It is the only
// adapter of client-go's reflector: it bounds each request, requests the latest state and not a cached one, reports
// every failure, and logs nothing, because the handler decides how repeated failures are logged.
package reflector

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// defaultTimeout bounds a request when the configuration says nothing.
	defaultTimeout = 15 * time.Second
	// The pause after a failure doubles from minBackoff. client-go's own default goes up to a minute, which is too long
	// for a pod that waits for an object.
	minBackoff        = 200 * time.Millisecond
	defaultMaxBackoff = 5 * time.Second
)

// Verb is a kind of request.
type Verb string

// The verbs, in their readable form.
const (
	VerbList  Verb = "list"
	VerbWatch Verb = "watch"
)

// Handler receives the objects. One goroutine calls its methods, one after another.
type Handler interface {
	// Listed receives every object of a list that was requested at began.
	Listed(objects []runtime.Object, began time.Time)
	// Changed receives an object that was created or changed.
	Changed(object runtime.Object)
	// Deleted receives the last state of a deleted object.
	Deleted(object runtime.Object)
	// ListFailed receives the error of a list. The reflector retries after a pause.
	ListFailed(err error)
}

// Config holds the parameters of Run.
type Config struct {
	// Client is a client of the resource's group version. Required.
	Client rest.Interface
	// Resource is the plural name, for example "clustertrustbundles". Required.
	Resource string
	// Namespace limits the objects to one namespace. Empty means all.
	Namespace string
	// Fields selects objects. Nil selects all.
	Fields fields.Selector
	// Labels selects objects by a selector of labels. Empty selects all.
	Labels string
	// Empty is an empty object of the type. Required.
	Empty runtime.Object
	// Handler receives the objects. Required.
	Handler Handler
	// Clock gives the time. Required.
	Clock clock.PassiveClock
	// Timeout bounds a list and the start of a watch. 0 means 15 s.
	Timeout time.Duration
	// MaxBackoff bounds the pause after a failure. 0 means 5 s.
	MaxBackoff time.Duration
	// Requested receives the result of each request; err is nil if it succeeded. A watch that fails after its start is
	// another result. May be nil.
	Requested func(verb Verb, began time.Time, err error)
	// Watching is called when a watch begins and when it ends. May be nil.
	Watching func(watching bool)
}

// Run lists and watches until ctx ends, whose error it returns.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Fields == nil {
		cfg.Fields = fields.Everything()
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = defaultMaxBackoff
	}
	if cfg.Requested == nil {
		cfg.Requested = func(Verb, time.Time, error) {}
	}
	if cfg.Watching == nil {
		cfg.Watching = func(bool) {}
	}
	r := &reflector{cfg: cfg, list: cache.NewFilteredListWatchFromClient(
		cfg.Client, cfg.Resource, cfg.Namespace, func(options *metav1.ListOptions) {
			options.FieldSelector, options.LabelSelector = cfg.Fields.String(), cfg.Labels
		},
	)}
	options := cache.ReflectorOptions{
		Name:    cfg.Resource,
		Backoff: &wait.Backoff{Duration: minBackoff, Factor: 2, Jitter: 0.5, Steps: 100, Cap: cfg.MaxBackoff},
	}
	// The empty logger discards what client-go would log with every retry.
	cache.NewReflectorWithOptions(r, cfg.Empty, r, options).RunWithContext(klog.NewContext(ctx, klog.Logger{}))
	return ctx.Err()
}

// reflector is both ends of client-go's reflector: cache.ListerWatcherWithContext and cache.ReflectorStore.
type reflector struct {
	cfg  Config
	list *cache.ListWatch
	// listing is when the current list was requested. It is written before client-go has the list and read after.
	listing time.Time
}

// IsWatchListSemanticsUnSupported makes client-go list by a list and not by a watch, so that a list fails as a list.
func (*reflector) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister. client-go calls ListWithContext instead.
func (r *reflector) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher. client-go calls WatchWithContext instead.
func (r *reflector) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// ListWithContext requests the latest state. client-go would accept any state that the API server's cache has (resource
// version 0), and one of several API servers may be behind: pods that run would be missing from its list.
func (r *reflector) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	began := r.cfg.Clock.Now()
	if options.Continue == "" {
		r.listing = began
	}
	limited, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	list, err := r.list.ListWithContext(limited, options)
	r.requested(ctx, VerbList, began, err)
	return list, err
}

// WatchWithContext starts a watch. The start is bounded, the watch is not.
func (r *reflector) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	began := r.cfg.Clock.Now()
	limited, cancel := context.WithCancelCause(ctx)
	limit := time.AfterFunc(r.cfg.Timeout, func() { cancel(context.DeadlineExceeded) })
	inner, err := r.list.WatchWithContext(limited, options)
	if !limit.Stop() && err == nil {
		inner.Stop()
		err = context.DeadlineExceeded
	}
	if cause := context.Cause(limited); err != nil && errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	r.requested(ctx, VerbWatch, began, err)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return r.observe(ctx, inner, cancel), nil
}

// requested reports the outcome of a request, unless ctx has ended.
func (r *reflector) requested(ctx context.Context, verb Verb, began time.Time, err error) {
	if ctx.Err() != nil {
		return
	}
	r.cfg.Requested(verb, began, err)
	if verb == VerbList && err != nil {
		r.cfg.Handler.ListFailed(err)
	}
}

// Replace implements cache.ReflectorStore.
func (r *reflector) Replace(items []any, _ string) error {
	objects := make([]runtime.Object, 0, len(items))
	for _, item := range items {
		if object, ok := item.(runtime.Object); ok {
			objects = append(objects, object)
		}
	}
	r.cfg.Handler.Listed(objects, r.listing)
	return nil
}

// Add implements cache.ReflectorStore.
func (r *reflector) Add(item any) error { return r.Update(item) }

// Update implements cache.ReflectorStore.
func (r *reflector) Update(item any) error {
	if object, ok := item.(runtime.Object); ok {
		r.cfg.Handler.Changed(object)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (r *reflector) Delete(item any) error {
	if object, ok := item.(runtime.Object); ok {
		r.cfg.Handler.Deleted(object)
	}
	return nil
}

// Resync implements cache.ReflectorStore as a no-op: the handler keeps what it was told.
func (*reflector) Resync() error { return nil }
