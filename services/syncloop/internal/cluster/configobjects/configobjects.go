// Package configobjects is where syncloop has the config maps and secrets of its pods from, and who is told when one of them changes.
//
// On a node without an API server configmux has them, see [Configmux], and else the API server, see [Cluster]. Nothing here says a
// value: not in an error, not in a log.
package configobjects

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Getter gives config maps and secrets. What it gives is only read. An error is one that apierrors.IsNotFound knows when there is no
// such object, an *UnknownError while nobody can say, and a *NotServedError on a node that cannot have any. Its text is fit for the
// status of a pod.
type Getter interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Source gives the objects that pods use. Its methods may be called from any goroutine.
type Source interface {
	Getter
	// Use says that a pod uses the objects that its spec names, from now on. It is told when one of them changes, comes or goes.
	Use(pod *v1.Pod)
	// Forget says that a pod uses none any more.
	Forget(uid types.UID)
}

// None is a Source without any object.
type None struct{}

// ConfigMap implements Getter.
func (None) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	return nil, notFound(Key{Kind: ConfigMap, Name: name})
}

// Secret implements Getter.
func (None) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	return nil, notFound(Key{Kind: Secret, Name: name})
}

// Use implements Source.
func (None) Use(*v1.Pod) {}

// Forget implements Source.
func (None) Forget(types.UID) {}

// Kind is "ConfigMap" or "Secret".
type Kind string

// The kinds that there are.
const (
	ConfigMap Kind = "ConfigMap"
	Secret    Kind = "Secret"
)

// resource is the word for a kind in errors, as the kubelet says it.
func (k Kind) resource() string {
	if k == Secret {
		return "secret"
	}
	return "configmap"
}

// Key names an object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String is what a log calls the object: "configmap NAMESPACE/NAME".
func (k Key) String() string { return k.Kind.resource() + " " + k.Namespace + "/" + k.Name }

// notFound says that there is no such object, in the words of the kubelet.
func notFound(k Key) error {
	return apierrors.NewNotFound(v1.Resource(k.Kind.resource()), k.Name)
}

// UnknownError says that nobody can say yet whether there is an object. It is tried again when somebody can.
type UnknownError struct {
	Key Key
	// Why is what is waited for.
	Why string
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%s %q is not known yet: %s", e.Key.Kind.resource(), e.Key.Name, e.Why)
}

// NotServedError says that a node has no objects.
type NotServedError struct{ Key Key }

// Error implements error.
func (e *NotServedError) Error() string {
	return fmt.Sprintf("%s %q: configmux has no config maps and secrets, for it has an API server or replays a recording: give syncloop the same --kubeconfig",
		e.Key.Kind.resource(), e.Key.Name)
}

// NotServed marks the error as [containerspec.NotServed].
func (e *NotServedError) NotServed() {}
