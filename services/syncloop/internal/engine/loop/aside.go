package loop

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// outcome is what the loop does when a piece of I/O that it asked for has ended.
type outcome struct {
	event event
	then  func()
}

// aside does I/O in a goroutine of its own, because a disk that hangs must not stop the loop, and hands then back to the loop. The
// callers see to it that there is a bounded number of them for each pod.
func (l *Loop) aside(event event, io func(ctx context.Context) (then func())) {
	l.group.Go(func() error {
		l.post(event, io(l.ctx))
		return nil
	})
}

// post hands then to the loop, unless that ends.
func (l *Loop) post(event event, then func()) {
	select {
	case l.outcomes <- outcome{event: event, then: then}:
	case <-l.ctx.Done():
	}
}

// evicted returns why a pod was evicted. A pod that is being forgotten is not.
func (l *Loop) evicted(uid types.UID) (podstore.Eviction, bool) {
	if l.forgotten[uid] {
		return podstore.Eviction{}, false
	}
	return l.cfg.Evictions.Get(uid)
}
