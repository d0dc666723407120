package configobjects

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/quartet-node/quartet/internal/reflector"
)

// plural returns the resource name of a kind.
func (k Kind) plural() string { return k.Resource() + "s" }

// empty returns an empty object of a kind.
func (k Kind) empty() runtime.Object {
	if k == Secret {
		return &v1.Secret{}
	}
	return &v1.ConfigMap{}
}

// ask requests an object from the API server.
func (c *Cluster) ask(ctx context.Context, key Key) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object := key.Kind.empty()
	request := c.cfg.Client.Get().Namespace(key.Namespace).Resource(key.Kind.plural()).Name(key.Name)
	if err := request.Do(ctx).Into(object); err != nil {
		return nil, err
	}
	return object, nil
}

// watch lists and watches one object until ctx ends.
func (c *Cluster) watch(ctx context.Context, key Key, h *held) {
	_ = reflector.Run(ctx, reflector.Config{ // Run returns only when ctx ends.
		Client: c.cfg.Client, Resource: key.Kind.plural(), Namespace: key.Namespace,
		Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name), Empty: key.Kind.empty(),
		Handler: &one{c: c, key: key, held: h}, Clock: c.cfg.Clock, Timeout: requestTimeout,
	})
}

// one implements reflector.Handler for one object. Errors are returned to those who request the object.
type one struct {
	c    *Cluster
	key  Key
	held *held
}

// Listed implements reflector.Handler.
func (o *one) Listed(objects []runtime.Object, _ time.Time) {
	var object runtime.Object
	if len(objects) > 0 { // At most one object has the name.
		object = objects[0]
	}
	o.c.saw(o.key, o.held, object)
}

// Changed implements reflector.Handler.
func (o *one) Changed(object runtime.Object) { o.c.saw(o.key, o.held, object) }

// Deleted implements reflector.Handler.
func (o *one) Deleted(runtime.Object) { o.c.saw(o.key, o.held, nil) }

// ListFailed implements reflector.Handler.
func (o *one) ListFailed(err error) { o.c.failed(o.held, err) }
