// Package following knows what an API server has of a resource: it asks for all that a selector chooses, and then watches.
package following

import (
	"context"
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

// listTimeout bounds a request for all objects.
const listTimeout = 15 * time.Second

// Follower is told what there is. Its methods are called by one goroutine, one after another, and must not block.
type Follower interface {
	// All is everything that there was at a time after asked.
	All(objects []runtime.Object, asked time.Time)
	// Is tells an object that has come or changed.
	Is(object runtime.Object)
	// Gone tells an object that is not there any more, as it was last.
	Gone(object runtime.Object)
	// Failed tells why the API server could not say what there is. It is asked again after a pause; what it said last stays.
	Failed(err error)
}

// Config says what is followed.
type Config struct {
	// Client is a client of the resource's group version. Required.
	Client rest.Interface
	// Resource is its plural name, for example "clustertrustbundles". Required.
	Resource string
	// Fields chooses objects; nil chooses all, in all namespaces.
	Fields fields.Selector
	// Empty is an object of the type. Required.
	Empty runtime.Object
	// Follower is told. Required.
	Follower Follower
	// Clock is the time. Required.
	Clock clock.PassiveClock
}

// Run follows until ctx ends, whose error it returns.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Fields == nil {
		cfg.Fields = fields.Everything()
	}
	r := &reflected{cfg: cfg, list: cache.NewListWatchFromClient(cfg.Client, cfg.Resource, metav1.NamespaceAll, cfg.Fields)}
	options := cache.ReflectorOptions{Name: cfg.Resource, Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 100, Cap: 5 * time.Second}}
	// It logs nothing: what goes wrong is the follower's to say, and it would say it with every try.
	cache.NewReflectorWithOptions(r, cfg.Empty, r, options).RunWithContext(klog.NewContext(ctx, klog.Logger{}))
	return ctx.Err()
}

// reflected is both ends of a reflector: what it asks, and where it puts what it gets.
type reflected struct {
	cfg  Config
	list *cache.ListWatch
	// asked is when the last list was asked for.
	asked time.Time
}

// IsWatchListSemanticsUnSupported tells client-go to list by a list and not by a watch: its errors then are those of the list.
func (*reflected) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister, which nobody calls where there is ListWithContext.
func (r *reflected) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher, which nobody calls where there is WatchWithContext.
func (r *reflected) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// ListWithContext asks for what there is now: not in any state that the API server has had.
func (r *reflected) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	asked := r.cfg.Clock.Now()
	list, err := r.list.ListWithContext(limited, options)
	if err != nil && ctx.Err() == nil {
		r.cfg.Follower.Failed(err)
	}
	if options.Continue == "" {
		r.asked = asked
	}
	return list, err
}

// WatchWithContext begins a watch.
func (r *reflected) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return r.list.WatchWithContext(ctx, options)
}

// Replace implements cache.ReflectorStore.
func (r *reflected) Replace(list []any, _ string) error {
	objects := make([]runtime.Object, 0, len(list))
	for _, item := range list {
		if object, ok := item.(runtime.Object); ok {
			objects = append(objects, object)
		}
	}
	r.cfg.Follower.All(objects, r.asked)
	return nil
}

// Add implements cache.ReflectorStore.
func (r *reflected) Add(object any) error { return r.Update(object) }

// Update implements cache.ReflectorStore.
func (r *reflected) Update(object any) error {
	if object, ok := object.(runtime.Object); ok {
		r.cfg.Follower.Is(object)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (r *reflected) Delete(object any) error {
	if object, ok := object.(runtime.Object); ok {
		r.cfg.Follower.Gone(object)
	}
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do again.
func (*reflected) Resync() error { return nil }
