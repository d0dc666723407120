package configobjects

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// plural is what the API server calls the objects of a kind.
func (k Kind) plural() string { return k.resource() + "s" }

// empty is an object of a kind.
func (k Kind) empty() runtime.Object {
	if k == Secret {
		return &v1.Secret{}
	}
	return &v1.ConfigMap{}
}

// ask asks the API server for an object.
func (c *Cluster) ask(ctx context.Context, key Key) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object := key.Kind.empty()
	if err := c.cfg.Client.Get().Namespace(key.Namespace).Resource(key.Kind.plural()).Name(key.Name).Do(ctx).Into(object); err != nil {
		return nil, err
	}
	return object, nil
}

// retry is the pause after a failure: soon enough that a pod which was just bound to this node, and whose objects the API server
// gives it a moment later, does not wait long.
func retry() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 100, Cap: 5 * time.Second}
}

// watch follows one object until ctx ends.
func (c *Cluster) watch(ctx context.Context, key Key, h *held) {
	o := &one{c: c, key: key, held: h, list: cache.NewListWatchFromClient(c.cfg.Client, key.Kind.plural(), key.Namespace,
		fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name))}
	options := cache.ReflectorOptions{Name: key.String(), Backoff: retry()}
	// It logs nothing: what goes wrong is said to who asks for the object, and it would say it with every try.
	cache.NewReflectorWithOptions(o, key.Kind.empty(), o, options).RunWithContext(klog.NewContext(ctx, klog.Logger{}))
}

// one is both ends of the reflector of one object: what it asks, and where it puts what it gets.
type one struct {
	c    *Cluster
	key  Key
	held *held
	list *cache.ListWatch
}

// IsWatchListSemanticsUnSupported tells client-go to list by a list and not by a watch: its errors then are those of the list.
func (o *one) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister, which nobody calls where there is ListWithContext.
func (o *one) List(options metav1.ListOptions) (runtime.Object, error) {
	return o.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher, which nobody calls where there is WatchWithContext.
func (o *one) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return o.WatchWithContext(context.Background(), options)
}

// ListWithContext asks for the object as it is now: not in any state that the API server has had, for a pod may have been made after
// a change that it needs.
func (o *one) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" {
		options.ResourceVersion = ""
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := o.list.ListWithContext(limited, options)
	if err != nil && ctx.Err() == nil {
		o.c.failed(o.held, err)
	}
	return list, err
}

// WatchWithContext begins a watch.
func (o *one) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return o.list.WatchWithContext(ctx, options)
}

// Replace implements cache.ReflectorStore.
func (o *one) Replace(list []any, _ string) error {
	var object runtime.Object
	for _, item := range list {
		object, _ = item.(runtime.Object)
	}
	o.c.saw(o.key, o.held, object)
	return nil
}

// Add implements cache.ReflectorStore.
func (o *one) Add(object any) error { return o.Update(object) }

// Update implements cache.ReflectorStore.
func (o *one) Update(object any) error {
	if object, ok := object.(runtime.Object); ok {
		o.c.saw(o.key, o.held, object)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (o *one) Delete(any) error {
	o.c.saw(o.key, o.held, nil)
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do again.
func (*one) Resync() error { return nil }
