package siteobjects

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// maxBackoff bounds the pause after a failed request. It is longer than for pods, because there may be thousands of
// objects that configmux may not read.
const maxBackoff = 30 * time.Second

// watch begins to watch an object. The caller holds mu.
func (o *Objects) watch(key apiobject.Key, h *held) {
	if o.ctx == nil || o.closed || h.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(o.ctx)
	h.stop = stop
	var empty runtime.Object = &v1.ConfigMap{}
	if key.Kind == apiobject.Secret {
		empty = &v1.Secret{}
	}
	o.running.Go(func() {
		defer stop()
		_ = reflector.Run(ctx, reflector.Config{ // it ends only with ctx
			Client: o.cfg.Client, Resource: key.Kind.Plural(), Namespace: key.Namespace,
			Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name), Empty: empty,
			Handler: &one{all: o, key: key, held: h}, Clock: o.cfg.Clock, MaxBackoff: maxBackoff,
			Requested: func(verb reflector.Verb, _ time.Time, err error) { o.cfg.Requested(key.String(), verb, err) },
		})
	})
}

// one implements reflector.Handler for one object.
type one struct {
	all  *Objects
	key  apiobject.Key
	held *held
}

// Listed implements reflector.Handler.
func (w *one) Listed(objects []runtime.Object, _ time.Time) {
	if len(objects) == 0 {
		w.all.saw(w.key, w.held, nil, false)
		return
	}
	w.Changed(objects[0]) // at most one object has the name
}

// Changed implements reflector.Handler.
func (w *one) Changed(object runtime.Object) {
	data, immutable, ok := encode(object)
	if ok {
		w.all.saw(w.key, w.held, data, immutable)
	}
}

// Deleted implements reflector.Handler.
func (w *one) Deleted(runtime.Object) { w.all.saw(w.key, w.held, nil, false) }

// ListFailed implements reflector.Handler. Requested has received the failure.
func (*one) ListFailed(error) {}

// encode returns the bytes of an object without managedFields, which a node does not need. An empty object has bytes,
// too, because it has a name.
func encode(object runtime.Object) (data []byte, immutable, ok bool) {
	wrapped := &apiobject.Object{}
	switch o := object.(type) {
	case *v1.ConfigMap:
		wrapped.ConfigMap = o
	case *v1.Secret:
		wrapped.Secret = o
	default:
		return nil, false, false
	}
	wrapped.Meta().ManagedFields = nil
	data, err := wrapped.Marshal()
	return data, wrapped.Immutable(), err == nil
}
