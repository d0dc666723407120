package claims

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Shared has the claims of the node's pods, their volumes, and the secrets of these, as the configmux of a site has
// them. Its errors are those of the API server, or have a method Unknown while it does not know the object.
type Shared interface {
	Claim(namespace, name string) (*v1.PersistentVolumeClaim, error)
	Volume(name string) (*v1.PersistentVolume, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// unknown is implemented by an error of Shared for an object that it does not know yet.
type unknown interface{ Unknown() }

// isUnknown reports whether an error says that an object is not known yet.
func isUnknown(err error) bool {
	var u unknown
	return errors.As(err, &u)
}

// isShared reports whether Shared has objects of a kind.
func (c *Cluster) isShared(k kind) bool {
	return c.cfg.Shared != nil && (k == claimKind || k == volumeKind || k == secretKind)
}

// askShared returns an object of Shared. While it has an older state of an object than this node, which has changed the
// status of a claim, it returns the node's.
func (c *Cluster) askShared(ctx context.Context, k key) (runtime.Object, error) {
	var object runtime.Object
	var err error
	switch k.kind {
	case claimKind:
		object, err = present(c.cfg.Shared.Claim(k.namespace, k.name))
	case volumeKind:
		object, err = present(c.cfg.Shared.Volume(k.name))
	case secretKind:
		object, err = present(c.cfg.Shared.Secret(ctx, k.namespace, k.name))
	case attachmentKind:
		return nil, fmt.Errorf("%s is not shared", k)
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.object(k); own != nil && isNewer(own, object) {
		return own, nil
	}
	return object, nil
}

// present returns an object as an interface that is nil if there is an error.
func present[T runtime.Object](object T, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	return object, nil
}

// isNewer reports whether a state of an object is newer than another one of the same object.
func isNewer(object, than runtime.Object) bool {
	a, errA := meta.Accessor(object)
	b, errB := meta.Accessor(than)
	if errA != nil || errB != nil || a.GetUID() != b.GetUID() {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// Tell says that Shared has another state of an object. It does not block.
func (c *Cluster) Tell(resource, namespace, name string) {
	k := key{kind: kind(resource), namespace: namespace, name: name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[k] != nil {
		c.enqueue(k)
	}
}
