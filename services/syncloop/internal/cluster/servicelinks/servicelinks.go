// Package servicelinks provides the environment variables that tell containers the addresses of services, for example
// KUBERNETES_SERVICE_HOST, by which client-go's in-cluster configuration finds the API server. The names and rules are
// the kubelet's.
//
// The services come from the API server, see [Links], or from the configmux of a site, see [Shared]; a node without an
// API server has none, see [None]. A change of a service affects only containers that are created after it.
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

	"github.com/quartet-node/quartet/internal/podobjects"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
)

const (
	// firstAnswer is how long a container of a pod of the API server waits for the first answer. The pod is notified of a
	// later answer.
	firstAnswer = time.Second
	// resource is the resource name of services.
	resource = "services"
)

// withAddress selects the services that may have a cluster IP. Clusters can have many headless services, which have no
// variables.
var withAddress = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone)

// Config configures Links. All fields are required.
type Config struct {
	// Client is a client of core/v1. It lists and watches the services of all namespaces.
	Client rest.Interface
	// Changed is called for each pod that waits for the services, as soon as they are known. It must not block.
	Changed func(uid types.UID)
	// Clock is the time.
	Clock clock.Clock
}

// Links caches the services of a cluster. Use New to create one. Its methods may be called from any goroutine.
type Links struct {
	cfg Config
	// answered is closed at the first answer or failure of the API server.
	answered chan struct{}
	once     sync.Once

	mu sync.Mutex
	// services are the services with variables, by namespace and name; nil before the first list.
	services map[string]map[string]service
	// err is the error of the last list.
	err error
	// waiting are the pods that wait for the first list.
	waiting map[types.UID]bool
}

// New returns empty Links.
func New(cfg Config) *Links {
	return &Links{cfg: cfg, answered: make(chan struct{}), waiting: map[types.UID]bool{}}
}

// Run lists and watches the services until ctx ends. It returns the error of ctx.
func (l *Links) Run(ctx context.Context) error {
	return reflector.Run(ctx, reflector.Config{
		Client: l.cfg.Client, Resource: resource, Fields: withAddress, Empty: &v1.Service{}, Handler: follower{l},
		Clock: l.cfg.Clock,
	})
}

// UnknownError is returned before the first list of services.
type UnknownError struct {
	// Why is the reason.
	Why string
}

// Error implements error. It begins with the kubelet's words, which people look for.
func (e *UnknownError) Error() string {
	return "services have not yet been read at least once, cannot construct envvars: " + e.Why
}

// Unknown marks the error as [containerspec.Unknown].
func (e *UnknownError) Unknown() {}

// Variables returns the variables of services for the containers of a pod. Before the first list it returns an
// *UnknownError: at once, or, for a pod of the API server, whose services are expected soon, after firstAnswer.
func (l *Links) Variables(ctx context.Context, pod *v1.Pod) ([]v1.EnvVar, error) {
	required := podset.IsFromAPI(pod)
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
	return variables(l.services, pod.Namespace, podobjects.LinksServices(pod)), nil
}

// Forget removes a pod.
func (l *Links) Forget(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, uid)
}

// await waits for the first answer, at most firstAnswer.
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

// None is for a node without an API server: it has no services.
type None struct{}

// Variables returns no variables.
func (None) Variables(context.Context, *v1.Pod) ([]v1.EnvVar, error) { return nil, nil }

// Forget is a no-op.
func (None) Forget(types.UID) {}

// follower handles the objects of the watch.
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
	affected := slices.Collect(maps.Keys(f.l.waiting))
	clear(f.l.waiting)
	f.l.mu.Unlock()
	f.l.answer()
	for _, uid := range affected {
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

// answer wakes those who wait for the first answer.
func (l *Links) answer() { l.once.Do(func() { close(l.answered) }) }

// put adds a service, or removes it if it has no variables.
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
