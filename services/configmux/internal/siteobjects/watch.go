package siteobjects

import (
	"context"
	"maps"
	"slices"
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

// withAddress selects the services that may have a cluster IP. Clusters can have many headless services, of which the
// environment of a container says nothing.
var withAddress = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone)

// watch begins to watch an object. That of the API server is among those of its namespace. The caller holds mu.
func (o *Objects) watch(key apiobject.Key, h *held) {
	if o.ctx == nil || o.closed || h.stop != nil || key.Kind == apiobject.Service {
		return
	}
	ctx, stop := context.WithCancel(o.ctx)
	h.stop = stop
	selected := fields.OneTermEqualSelector(metav1.ObjectNameField, key.Name)
	var handler reflector.Handler = &one{all: o, key: key, held: h}
	if key.Kind == apiobject.Services {
		selected, handler = withAddress, &several{all: o, key: key, held: h}
	}
	o.running.Go(func() {
		defer stop()
		_ = reflector.Run(ctx, reflector.Config{ // it ends only with ctx
			Client: o.cfg.Client, Resource: key.Kind.Plural(), Namespace: key.Namespace,
			Fields: selected, Empty: empty(key.Kind), Handler: handler, Clock: o.cfg.Clock, MaxBackoff: maxBackoff,
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

// several implements reflector.Handler for the services of a namespace.
type several struct {
	all  *Objects
	key  apiobject.Key
	held *held
	// services are the services of the last answers, by name.
	services map[string]v1.Service
}

// Listed implements reflector.Handler.
func (w *several) Listed(objects []runtime.Object, _ time.Time) {
	w.services = make(map[string]v1.Service, len(objects))
	for _, object := range objects {
		if s, is := object.(*v1.Service); is {
			w.services[s.Name] = linked(s)
		}
	}
	w.saw()
}

// Changed implements reflector.Handler.
func (w *several) Changed(object runtime.Object) {
	if s, is := object.(*v1.Service); is {
		w.services[s.Name] = linked(s)
		w.saw()
	}
}

// Deleted implements reflector.Handler.
func (w *several) Deleted(object runtime.Object) {
	if s, is := object.(*v1.Service); is {
		delete(w.services, s.Name)
		w.saw()
	}
}

// ListFailed implements reflector.Handler. Requested has received the failure.
func (*several) ListFailed(error) {}

func (w *several) saw() {
	var list v1.ServiceList
	for _, name := range slices.Sorted(maps.Keys(w.services)) {
		list.Items = append(list.Items, w.services[name])
	}
	if data, err := list.Marshal(); err == nil { // what was decoded can be encoded
		w.all.saw(w.key, w.held, data, false)
	}
}
