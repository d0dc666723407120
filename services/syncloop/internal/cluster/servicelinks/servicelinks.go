// Package servicelinks gives containers the environment variables that tell them where services are, for example
// KUBERNETES_SERVICE_HOST, by which client-go's in-cluster configuration finds the API server. The names and rules are
// the kubelet's.
//
// The services are those of the API server, see [Links]; a node without an API server has none, see [None]. A change of
// a service concerns only containers that are created after it.
package servicelinks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
)

const (
	// firstAnswer is how long a container of a pod of the API server waits for the first answer. The pod is told of one
	// that comes later.
	firstAnswer = time.Second
	// resource is what the API server calls services.
	resource = "services"
)

// withAddress chooses the services that may have a cluster IP: clusters can have many headless ones, and nothing is
// said of these.
var withAddress = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone)

// Config is what Links need. All of it is required.
type Config struct {
	// Client is a client of core/v1. It is asked for the services of all namespaces.
	Client rest.Interface
	// Changed is told each pod that waits for the services, as soon as they are known. It must not block.
	Changed func(uid types.UID)
	// Clock is the time.
	Clock clock.Clock
}

// Links knows the services of a cluster. Make it with New. Its methods may be called from any goroutine.
type Links struct {
	cfg Config
	// answered is closed at the first answer or failure of the API server.
	answered chan struct{}
	once     sync.Once

	mu sync.Mutex
	// services are those that have variables, by namespace and name; nil before they were listed once.
	services map[string]map[string]service
	// err is why the API server could not list them when it was asked last.
	err error
	// waiting are the pods that wait for the first list.
	waiting map[types.UID]bool
}

// New returns Links that know no service yet.
func New(cfg Config) *Links {
	return &Links{cfg: cfg, answered: make(chan struct{}), waiting: map[types.UID]bool{}}
}

// Run lists and watches the services until ctx ends, whose error it returns.
func (l *Links) Run(ctx context.Context) error {
	return reflector.Run(ctx, reflector.Config{
		Client: l.cfg.Client, Resource: resource, Fields: withAddress, Empty: &v1.Service{}, Handler: follower{l}, Clock: l.cfg.Clock,
	})
}

// UnknownError says that the services were not listed yet.
type UnknownError struct {
	// Why is what is waited for.
	Why string
}

// Error implements error. It begins with the kubelet's words, which people look for.
func (e *UnknownError) Error() string {
	return "services have not yet been read at least once, cannot construct envvars: " + e.Why
}

// Variables returns the variables of services for the containers of a pod. Before the services were listed once it
// fails with an *UnknownError, after a moment for a pod of the API server, whose services can be expected soon, and at
// once for others.
func (l *Links) Variables(ctx context.Context, pod *v1.Pod) ([]v1.EnvVar, error) {
	required := Required(pod)
	if required {
		if err := l.await(ctx); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.services == nil {
		if required {
			l.waiting[pod.UID] = true
		}
		if l.err != nil {
			return nil, &UnknownError{Why: "the API server: " + l.err.Error()}
		}
		return nil, &UnknownError{Why: "the API server has not answered yet"}
	}
	return variables(l.services, pod.Namespace, pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks), nil
}

// Forget says that a pod is gone.
func (l *Links) Forget(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, uid)
}

// await waits for the first answer, but not for long.
func (l *Links) await(ctx context.Context) error {
	timer := l.cfg.Clock.NewTimer(firstAnswer)
	defer timer.Stop()
	select {
	case <-l.answered:
	case <-timer.C():
	case <-ctx.Done():
		return fmt.Errorf("wait for the services: %w", ctx.Err())
	}
	return nil
}

// Required tells whether a container of a pod must not start before the services are known: a pod of the API server
// must not. Others start with what is known.
func Required(pod *v1.Pod) bool { return pod.Annotations[podset.AnnotationSource] == podset.SourceAPI }

// None is for a node without an API server: there are no services.
type None struct{}

// Variables returns no variables.
func (None) Variables(context.Context, *v1.Pod) ([]v1.EnvVar, error) { return nil, nil }

// Forget does nothing.
func (None) Forget(types.UID) {}

// follower notes what the API server says.
type follower struct{ l *Links }

// Listed implements reflector.Handler.
func (f follower) Listed(objects []runtime.Object, _ time.Time) {
	services := map[string]map[string]service{}
	for _, object := range objects {
		if s, ok := object.(*v1.Service); ok {
			put(services, s)
		}
	}
	f.l.mu.Lock()
	f.l.services, f.l.err = services, nil
	told := slices.Collect(maps.Keys(f.l.waiting))
	clear(f.l.waiting)
	f.l.mu.Unlock()
	f.l.answer()
	for _, uid := range told {
		f.l.cfg.Changed(uid)
	}
}

// Changed implements reflector.Handler.
func (f follower) Changed(object runtime.Object) {
	if s, ok := object.(*v1.Service); ok {
		f.l.mu.Lock()
		defer f.l.mu.Unlock()
		put(f.l.services, s)
	}
}

// Deleted implements reflector.Handler.
func (f follower) Deleted(object runtime.Object) {
	if s, ok := object.(*v1.Service); ok {
		f.l.mu.Lock()
		defer f.l.mu.Unlock()
		remove(f.l.services, s)
	}
}

// ListFailed implements reflector.Handler.
func (f follower) ListFailed(err error) {
	f.l.mu.Lock()
	f.l.err = err
	f.l.mu.Unlock()
	f.l.answer()
}

// answer tells those who wait for a first answer.
func (l *Links) answer() { l.once.Do(func() { close(l.answered) }) }

// put puts a service among others, or removes it when it has no variables.
func put(services map[string]map[string]service, object *v1.Service) {
	s, ok := kept(object)
	if !ok {
		remove(services, object)
		return
	}
	if services[object.Namespace] == nil {
		services[object.Namespace] = map[string]service{}
	}
	services[object.Namespace][object.Name] = s
}

func remove(services map[string]map[string]service, object *v1.Service) {
	delete(services[object.Namespace], object.Name)
	if len(services[object.Namespace]) == 0 {
		delete(services, object.Namespace)
	}
}
