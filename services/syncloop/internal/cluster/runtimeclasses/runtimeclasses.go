// Package runtimeclasses resolves the container runtime's handler of a pod. In a cluster spec.runtimeClassName names a
// RuntimeClass of the API server, see [Classes], which names the handler; on a node without an API server it is the
// handler's name, see [ByName]. The API server adds the other fields of a class, tolerations and overhead, to the pod.
package runtimeclasses

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/reflector"
)

const (
	// firstAnswer is how long a pod that starts waits for the first answer of the API server. The pod is notified of a
	// later answer.
	firstAnswer = time.Second
	// plural and singular are the resource name of classes and the word for one in an error.
	plural, singular = "runtimeclasses", "runtimeclass"
)

// Config configures Classes. All fields are required.
type Config struct {
	// Client is a client of node/v1. It lists and watches all classes while a pod of the node names one.
	Client rest.Interface
	// Changed is called for each pod whose handler was unknown, as soon as it may be known. It must not block.
	Changed func(uid types.UID)
	// Clock is the time.
	Clock clock.Clock
}

// Classes caches the runtime classes of a cluster. Use New to create one. Its methods may be called from any goroutine.
type Classes struct {
	cfg Config
	// used has capacity for one signal: the first pod names a class, or no pod does any more.
	used chan struct{}

	mu      sync.Mutex
	users   map[types.UID]*user
	answers *answers
}

// user is a pod that names a class.
type user struct {
	class string
	// waits is true if the handler was unknown when the pod asked.
	waits bool
}

// answers is what the API server has answered since a pod names a class.
type answers struct {
	// answered is closed at the first answer or failure.
	answered chan struct{}
	once     sync.Once
	// handlers maps the names of classes to their handlers; nil before the first list.
	handlers map[string]string
	// err is the error of the last list.
	err error
}

// New returns empty Classes.
func New(cfg Config) *Classes {
	return &Classes{cfg: cfg, used: make(chan struct{}, 1), users: map[types.UID]*user{}, answers: newAnswers()}
}

func newAnswers() *answers { return &answers{answered: make(chan struct{})} }

// UnknownError is returned while the handler of a class is unknown.
type UnknownError struct {
	// Class is the name of the class.
	Class string
	// Why is the reason.
	Why string
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%s %q is not known yet: %s", singular, e.Class, e.Why)
}

// Unknown marks the error as [containerspec.Unknown].
func (e *UnknownError) Unknown() {}

// Use registers a pod with the class that its spec names.
func (c *Classes) Use(pod *v1.Pod) {
	class := ClassOf(pod)
	if class == "" {
		c.Forget(pod.UID)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if u := c.users[pod.UID]; u == nil || u.class != class {
		c.users[pod.UID] = &user{class: class}
	}
	if len(c.users) == 1 {
		c.signal()
	}
}

// Forget removes a pod.
func (c *Classes) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.users, uid)
	if len(c.users) == 0 {
		c.signal()
	}
}

func (c *Classes) signal() {
	select {
	case c.used <- struct{}{}:
	default:
	}
}

// Handler returns the handler of the class that a pod names; empty for a pod without a class, which uses the runtime's
// default. It waits up to firstAnswer for the API server. If there is no such class, apierrors.IsNotFound is true for
// the error. While the class is unknown, the error is an *UnknownError; Changed is then called for the pod, which must
// have been registered with Use, when it should ask again.
func (c *Classes) Handler(ctx context.Context, pod *v1.Pod) (string, error) {
	class := ClassOf(pod)
	if class == "" {
		return "", nil
	}
	if err := c.await(ctx); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	handler, exists := c.answers.handlers[class]
	if u := c.users[pod.UID]; u != nil {
		u.waits = !exists
	}
	switch {
	case exists:
		return handler, nil
	case c.answers.handlers != nil:
		return "", fmt.Errorf("%w: the pod starts when there is one", apierrors.NewNotFound(nodev1.Resource(singular), class))
	case c.answers.err != nil:
		return "", &UnknownError{Class: class, Why: "the API server: " + c.answers.err.Error()}
	}
	return "", &UnknownError{Class: class, Why: "the API server has not answered yet"}
}

// await waits for the first answer, at most firstAnswer.
func (c *Classes) await(ctx context.Context) error {
	c.mu.Lock()
	answered := c.answers.answered
	c.mu.Unlock()
	timer := c.cfg.Clock.NewTimer(firstAnswer)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// ClassOf returns the name of the class that a pod names; empty if it names none.
func ClassOf(pod *v1.Pod) string {
	if pod.Spec.RuntimeClassName == nil {
		return ""
	}
	return *pod.Spec.RuntimeClassName
}

// ByName is for a node without an API server: the name of a class is the name of a handler.
type ByName struct{}

// Use is a no-op.
func (ByName) Use(*v1.Pod) {}

// Forget is a no-op.
func (ByName) Forget(types.UID) {}

// Handler returns the handler that a pod names; empty for the runtime's default. It never fails.
func (ByName) Handler(_ context.Context, pod *v1.Pod) (string, error) { return ClassOf(pod), nil }

// Run watches the classes of the API server while a pod names one, until ctx ends. It returns the error of ctx.
func (c *Classes) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if c.wanted() {
			c.follow(ctx)
			continue
		}
		select {
		case <-ctx.Done():
		case <-c.used:
		}
	}
	return ctx.Err()
}

func (c *Classes) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.users) > 0
}

// follow watches until no pod names a class any more, or ctx ends. It then clears the cache.
func (c *Classes) follow(ctx context.Context) {
	watch, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = reflector.Run(watch, reflector.Config{ // it ends with watch
			Client: c.cfg.Client, Resource: plural, Empty: &nodev1.RuntimeClass{}, Handler: follower{c}, Clock: c.cfg.Clock,
		})
	})
	for c.wanted() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-c.used:
		}
	}
	stop()
	watching.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = newAnswers()
}

// follower handles the objects of the watch.
type follower struct{ c *Classes }

// Listed implements reflector.Handler.
func (f follower) Listed(objects []runtime.Object, _ time.Time) {
	handlers := make(map[string]string, len(objects))
	for _, object := range objects {
		if class, ok := object.(*nodev1.RuntimeClass); ok {
			handlers[class.Name] = class.Handler
		}
	}
	f.c.update(func(h *answers) { h.handlers, h.err = handlers, nil })
}

// Changed implements reflector.Handler.
func (f follower) Changed(object runtime.Object) {
	if class, ok := object.(*nodev1.RuntimeClass); ok {
		f.c.update(func(h *answers) { h.handlers[class.Name] = class.Handler })
	}
}

// Deleted implements reflector.Handler.
func (f follower) Deleted(object runtime.Object) {
	if class, ok := object.(*nodev1.RuntimeClass); ok {
		f.c.update(func(h *answers) { delete(h.handlers, class.Name) })
	}
}

// ListFailed implements reflector.Handler.
func (f follower) ListFailed(err error) {
	f.c.update(func(h *answers) { h.err = err })
}

// update records an answer and notifies the pods that wait for it: all pods at the first list, then those whose class
// was created.
func (c *Classes) update(note func(*answers)) {
	c.mu.Lock()
	previous := c.answers.handlers
	note(c.answers)
	var affected []types.UID
	for uid, u := range c.users {
		_, exists := c.answers.handlers[u.class]
		if u.waits && (exists || previous == nil && c.answers.handlers != nil) {
			affected = append(affected, uid)
		}
	}
	c.answers.once.Do(func() { close(c.answers.answered) })
	c.mu.Unlock()
	for _, uid := range affected {
		c.cfg.Changed(uid)
	}
}
