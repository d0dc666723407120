package loop

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// outcome is the reaction of the loop to the end of a piece of I/O.
type outcome struct {
	event event
	react func()
}

// runIO does I/O in a goroutine of its own, because a hung disk must not stop the loop, and posts the reaction to the
// loop. The callers bound the number of these goroutines for each pod.
func (l *Loop) runIO(event event, io func(ctx context.Context) (react func())) {
	l.group.Go(func() error {
		l.post(event, io(l.ctx))
		return nil
	})
}

// post gives react to the loop, unless the loop ends.
func (l *Loop) post(event event, react func()) {
	select {
	case l.outcomes <- outcome{event: event, react: react}:
	case <-l.ctx.Done():
	}
}

// evicted returns the eviction of a pod; ok is false for a pod that is being forgotten.
func (l *Loop) evicted(uid types.UID) (podstore.Eviction, bool) {
	if l.forgotten[uid] {
		return podstore.Eviction{}, false
	}
	return l.cfg.Evictions.Get(uid)
}

// showEviction reports whether a pod was evicted. The store then shows why.
func (l *Loop) showEviction(uid types.UID) bool {
	eviction, evicted := l.evicted(uid)
	if !evicted {
		return false
	}
	if err := l.cfg.Store.Evict(uid, eviction); err != nil {
		l.cfg.Logger.Error("cannot find an evicted pod", telemetry.KeyPodUID, string(uid), telemetry.KeyError, err)
	}
	return true
}
