// Package configobjects provides the config maps and secrets of pods, and notifies pods when one of them changes. On a
// node without an API server it also has the persistent volume claims, the storage classes and the CSIDrivers of
// configmux, and on a node of a site the claims, their persistent volumes and the services.
//
// On a node without an API server, and on one of a site, they come from configmux, see [Configmux], else from the API
// server, see [Cluster].
// No error and no log line contains a value.
package configobjects

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podobjects"
)

// Getter returns config maps and secrets. The returned objects must not be changed. If an object does not exist,
// apierrors.IsNotFound is true for the error. The error is an *UnknownError while the state of the object is unknown,
// and a *NotServedError on a node without config maps and secrets. The text of an error may be shown in the status of a
// pod.
type Getter interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Source provides the objects that pods use. Its methods may be called from any goroutine.
type Source interface {
	Getter
	// Use registers a pod as a user of the objects that its spec names. From then on it is notified when one of them is
	// changed, created or deleted.
	Use(pod *v1.Pod)
	// Forget removes a pod.
	Forget(uid types.UID)
}

// None is a Source without objects.
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

// Kind is the kind of an object.
type Kind string

// The kinds of objects. Only a [Configmux] has those after the first two, and only that of a site the last three.
const (
	ConfigMap Kind = podobjects.ConfigMap
	Secret    Kind = podobjects.Secret
	Claim     Kind = podobjects.Claim
	Class     Kind = "StorageClass"
	Driver    Kind = "CSIDriver"
	Volume    Kind = "PersistentVolume"
	Service   Kind = podobjects.Service
	// Services are all services of a namespace. They have no name.
	Services Kind = podobjects.Services
)

// Resource returns the word for a kind in errors, as the kubelet uses it.
func (k Kind) Resource() string {
	switch k {
	case Secret:
		return "secret"
	case Claim:
		return "persistentvolumeclaim"
	case Class:
		return "storageclass"
	case Driver:
		return "csidriver"
	case Volume:
		return "persistentvolume"
	case Service:
		return "service"
	case Services:
		return "services"
	case ConfigMap:
	}
	return "configmap"
}

// Key identifies an object.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String returns the name of the object for a log: "configmap NAMESPACE/NAME", "storageclass NAME".
func (k Key) String() string {
	switch {
	case k.Namespace == "":
		return k.Kind.Resource() + " " + k.Name
	case k.Name == "":
		return k.Kind.Resource() + " " + k.Namespace
	}
	return k.Kind.Resource() + " " + k.Namespace + "/" + k.Name
}

// notFound returns the kubelet's error for a missing object.
func notFound(k Key) error {
	resource := v1.Resource(k.Kind.Resource())
	if k.Kind == Class || k.Kind == Driver {
		resource = storagev1.Resource(k.Kind.Resource())
	}
	return apierrors.NewNotFound(resource, k.Name)
}

// UnknownError is returned while it is unknown whether an object exists. The caller retries when the pod is notified.
type UnknownError struct {
	Key Key
	// Why is the reason.
	Why string
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%s %q is not known yet: %s", e.Key.Kind.Resource(), e.Key.Name, e.Why)
}

// Unknown marks the error as [containerspec.Unknown].
func (e *UnknownError) Unknown() {}

// NotServedError is returned on a node without config maps, secrets and claims of its own.
type NotServedError struct{ Key Key }

// Error implements error.
func (e *NotServedError) Error() string {
	return fmt.Sprintf("%s %q: configmux has no config maps, secrets and claims, because it has an API server or replays a recording: give syncloop the same --kubeconfig",
		e.Key.Kind.Resource(), e.Key.Name)
}

// NotServed marks the error as [containerspec.NotServed].
func (e *NotServedError) NotServed() {}
