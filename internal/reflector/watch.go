package reflector

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// observed is a watch whose errors are reported.
type observed struct {
	inner  watch.Interface
	result chan watch.Event
	// stop is closed by Stop, ended when the goroutine has ended.
	stop, ended chan struct{}
	once        sync.Once
	cancel      context.CancelCauseFunc
}

// observe passes on the events of a watch until it ends or is stopped.
func (r *reflector) observe(
	ctx context.Context,
	inner watch.Interface,
	cancel context.CancelCauseFunc,
) watch.Interface {
	o := &observed{
		inner: inner, result: make(chan watch.Event), stop: make(chan struct{}), ended: make(chan struct{}), cancel: cancel,
	}
	r.cfg.Watching(true)
	go func() {
		defer close(o.ended)
		defer r.cfg.Watching(false)
		defer close(o.result)
		for event := range inner.ResultChan() {
			if event.Type == watch.Error {
				r.requested(ctx, VerbWatch, r.cfg.Clock.Now(), apierrors.FromObject(event.Object))
			}
			select {
			case o.result <- event:
			case <-o.stop:
				return
			}
		}
	}()
	return o
}

// ResultChan implements watch.Interface.
func (o *observed) ResultChan() <-chan watch.Event { return o.result }

// Stop implements watch.Interface. The watch has ended when it returns.
func (o *observed) Stop() {
	o.once.Do(func() {
		close(o.stop)
		o.inner.Stop()
		o.cancel(nil)
	})
	<-o.ended
}
