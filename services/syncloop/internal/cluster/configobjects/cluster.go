package configobjects

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
)

const (
	// CacheTTL is the maximum age of a cached object with the strategy Cache, as in a kubelet whose Node does not set it.
	CacheTTL = time.Minute
	// firstAnswer is how long a caller waits for the first answer of the API server. It is the kubelet's number.
	firstAnswer = time.Second
	// requestTimeout bounds each request except watches.
	requestTimeout = 15 * time.Second
)

// ClusterConfig configures a Cluster.
type ClusterConfig struct {
	// Client is a client of core/v1. It requests single objects only, those of pods of this node. Required.
	Client rest.Interface
	// Strategy is how changes are detected: Watch watches each object that a pod uses, Cache requests an object again if
	// it is older than CacheTTL, Get requests it each time. The default is Watch.
	Strategy kubeletconfigv1beta1.ResourceChangeDetectionStrategy
	// Changed is called for each pod with a watched object that was changed, created or deleted, or whose answer came
	// late. It must not block. Required.
	Changed func(uid types.UID)
	// Clock is the time. Required.
	Clock clock.Clock
}

// Cluster is the Source of a node with an API server. It caches an object while a pod uses it. While the API server is
// away, cached objects stay; with the strategy Get nothing is cached.
type Cluster struct {
	cfg ClusterConfig
	// process is the parent context of watches.
	process context.Context //nolint:containedctx // named so in NewCluster
	running sync.WaitGroup

	mu sync.Mutex
	// closed is true when no more watches are started.
	closed bool
	users  users
	held   map[Key]*held
}

// held is the cached state of an object that pods use.
type held struct {
	// object is nil if the object does not exist or is unknown.
	object runtime.Object
	// known is true once the API server has answered; of is the time of the answer.
	known      bool
	answeredAt time.Time
	// err is the error of the last request; nil if it succeeded.
	err error
	// answered is closed at the first answer or failure. late is true if a caller did not wait for it, or received an
	// error.
	answered chan struct{}
	once     sync.Once
	late     bool
	// stop ends the watch.
	stop context.CancelFunc
}

// NewCluster returns a Source whose watches run until process or Run ends.
func NewCluster(process context.Context, cfg ClusterConfig) *Cluster {
	if cfg.Strategy == "" {
		cfg.Strategy = kubeletconfigv1beta1.WatchChangeDetectionStrategy
	}
	return &Cluster{cfg: cfg, process: process, users: newUsers(), held: map[Key]*held{}}
}

// Run returns when ctx and all watches have ended. The cached objects stay.
func (c *Cluster) Run(ctx context.Context) error {
	<-ctx.Done()
	c.mu.Lock()
	c.closed = true
	for _, h := range c.held {
		h.stop()
	}
	c.mu.Unlock()
	c.running.Wait()
	return ctx.Err()
}

// Use implements Source.
func (c *Cluster) Use(pod *v1.Pod) {
	keys := Used(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.users.pods[pod.UID]
	c.users.use(pod.UID, keys)
	for _, key := range keys {
		switch h := c.held[key]; {
		case h == nil:
			c.hold(key)
		case !known:
			h.answeredAt = time.Time{} // A new pod gets the current object.
		}
	}
	c.dropUnused()
}

// Forget implements Source.
func (c *Cluster) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users.forget(uid)
	c.dropUnused()
}

// hold starts caching an object. The caller holds mu.
func (c *Cluster) hold(key Key) {
	h := &held{answered: make(chan struct{}), stop: func() {}}
	c.held[key] = h
	if c.cfg.Strategy == kubeletconfigv1beta1.WatchChangeDetectionStrategy && !c.closed {
		ctx, stop := context.WithCancel(c.process)
		h.stop = stop
		c.running.Go(func() {
			defer stop()
			c.watch(ctx, key, h)
		})
	}
}

// dropUnused removes the objects that no pod uses any more. The caller holds mu.
func (c *Cluster) dropUnused() {
	for key, h := range c.held {
		if c.users.byKey[key] == nil {
			h.stop()
			delete(c.held, key)
		}
	}
}

// saw records the API server's answer for an object; nil if it does not exist.
func (c *Cluster) saw(key Key, h *held, object runtime.Object) {
	c.mu.Lock()
	var affected []types.UID
	changed := h.known && !equality.Semantic.DeepEqual(h.object, object)
	if c.held[key] == h && (changed || h.late) {
		for uid := range c.users.byKey[key] {
			affected = append(affected, uid)
		}
	}
	h.object, h.known, h.err, h.late, h.answeredAt = object, true, nil, false, c.cfg.Clock.Now()
	h.once.Do(func() { close(h.answered) })
	if isImmutable(object) {
		h.stop() // An immutable object needs no watch.
	}
	c.mu.Unlock()
	for _, uid := range affected {
		c.cfg.Changed(uid)
	}
}

// failed records an error of the API server. The API server may assign a pod to the node before its authorizer knows
// about it, so "forbidden" does not count as a first answer: callers wait for the next try, as in a kubelet.
func (c *Cluster) failed(h *held, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.err = err
	if !apierrors.IsForbidden(err) {
		h.once.Do(func() { close(h.answered) })
	}
}

func isImmutable(object runtime.Object) bool {
	switch o := object.(type) {
	case *v1.ConfigMap:
		return o.Immutable != nil && *o.Immutable
	case *v1.Secret:
		return o.Immutable != nil && *o.Immutable
	}
	return false
}

// get returns an object.
func (c *Cluster) get(ctx context.Context, key Key) (runtime.Object, error) {
	c.mu.Lock()
	h := c.held[key]
	c.mu.Unlock()
	if h == nil || c.cfg.Strategy == kubeletconfigv1beta1.GetChangeDetectionStrategy {
		object, err := c.ask(ctx, key)
		return object, getterError(key, err)
	}
	if c.cfg.Strategy == kubeletconfigv1beta1.TTLCacheChangeDetectionStrategy {
		c.refresh(ctx, key, h)
	} else if err := c.await(ctx, h); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case h.object != nil:
		return h.object, nil
	case h.known:
		return nil, notFound(key)
	}
	h.late = true
	if h.err != nil {
		return nil, getterError(key, h.err)
	}
	return nil, &UnknownError{Key: key, Why: "the API server has not answered yet"}
}

// getterError converts an error of the API server to an error of a Getter.
func getterError(key Key, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return notFound(key)
	}
	return &UnknownError{Key: key, Why: "the API server: " + err.Error()}
}

// await waits for the first answer, at most firstAnswer.
func (c *Cluster) await(ctx context.Context, h *held) error {
	timer := c.cfg.Clock.NewTimer(firstAnswer)
	defer timer.Stop()
	select {
	case <-h.answered:
	case <-timer.C():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// refresh requests an object whose cached state is too old. If the request fails, the cached state stays.
func (c *Cluster) refresh(ctx context.Context, key Key, h *held) {
	c.mu.Lock()
	fresh := h.known && c.cfg.Clock.Since(h.answeredAt) < CacheTTL
	c.mu.Unlock()
	if fresh {
		return
	}
	object, err := c.ask(ctx, key)
	switch {
	case err == nil:
		c.saw(key, h, object)
	case apierrors.IsNotFound(err):
		c.saw(key, h, nil)
	default:
		c.failed(h, err)
	}
}

// ConfigMap implements Getter.
func (c *Cluster) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	object, err := c.get(ctx, Key{Kind: ConfigMap, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.ConfigMap), nil //nolint:forcetypeassert // ask and watch have put it under its kind
}

// Secret implements Getter.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	object, err := c.get(ctx, Key{Kind: Secret, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.Secret), nil //nolint:forcetypeassert // ask and watch have put it under its kind
}
