package servicelinks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podobjects"
)

// Getter has the services that the node's pods name, as the configmux of a site has them. Its errors are those of the
// API server, or have a method Unknown while it does not know the services.
type Getter interface {
	// Service returns a service.
	Service(namespace, name string) (*v1.Service, error)
	// Services returns the services of a namespace.
	Services(namespace string) ([]v1.Service, error)
}

// SharedConfig configures Shared. All fields are required.
type SharedConfig struct {
	// Services has the services.
	Services Getter
	// Changed is called for each pod that waits for services, when some have changed. It must not block.
	Changed func(uid types.UID)
	// Clock is the time.
	Clock clock.Clock
}

// Shared has the variables of services of a node of a site. Its methods may be called from any goroutine.
type Shared struct {
	cfg SharedConfig

	mu sync.Mutex
	// told is closed at the next call of Tell.
	told chan struct{}
	// waiting are the pods that wait for services.
	waiting map[types.UID]bool
}

// NewShared returns a Shared.
func NewShared(cfg SharedConfig) *Shared {
	return &Shared{cfg: cfg, told: make(chan struct{}), waiting: map[types.UID]bool{}}
}

// Tell says that Getter has other services.
func (s *Shared) Tell() {
	s.mu.Lock()
	close(s.told)
	s.told = make(chan struct{})
	affected := slices.Sorted(maps.Keys(s.waiting))
	clear(s.waiting)
	s.mu.Unlock()
	for _, uid := range affected {
		s.cfg.Changed(uid)
	}
}

// Variables returns the variables of services for the containers of a pod. It waits up to firstAnswer for services that
// are not known yet, and then returns an *UnknownError.
func (s *Shared) Variables(ctx context.Context, pod *v1.Pod) ([]v1.EnvVar, error) {
	timer := s.cfg.Clock.NewTimer(firstAnswer)
	defer timer.Stop()
	for {
		s.mu.Lock()
		told := s.told
		all, err := s.services(pod)
		var unknown interface{ Unknown() }
		isUnknown := errors.As(err, &unknown)
		s.waiting[pod.UID] = isUnknown
		if !isUnknown {
			delete(s.waiting, pod.UID)
		}
		s.mu.Unlock()
		switch {
		case err == nil:
			return variables(all, pod.Namespace, podobjects.LinksServices(pod)), nil
		case !isUnknown:
			return nil, err
		}
		select {
		case <-told:
		case <-timer.C():
			return nil, &UnknownError{Why: err.Error()}
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the services: %w", ctx.Err())
		}
	}
}

// services returns the services that a pod names, by namespace and name.
func (s *Shared) services(pod *v1.Pod) (map[string]map[string]service, error) {
	all := map[string]map[string]service{}
	api, err := s.cfg.Services.Service(metav1.NamespaceDefault, podobjects.APIService)
	switch {
	case err == nil:
		put(all, api)
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	if !podobjects.LinksServices(pod) {
		return all, nil
	}
	linked, err := s.cfg.Services.Services(pod.Namespace)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	for i := range linked {
		put(all, &linked[i])
	}
	return all, nil
}

// Forget removes a pod.
func (s *Shared) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, uid)
}
