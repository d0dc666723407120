// Package shutdown ends pods before the machine goes down. Which of them, when and with which grace period nodestatus says, by
// ShutDownPods of the Engine API; this package ends them for good, as an eviction does, and tells when nothing of them is left.
//
// A static pod is ended until the machine has been started anew, any other one for ever: the API server has it as Failed, and who
// made it makes another one.
package shutdown

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

const (
	// reason and message are those of the status of a pod that is ended, the kubelet's.
	reason  = "Terminated"
	message = "Pod was terminated in response to imminent node shutdown."
	// lookPeriod is how often it is looked whether what is waited for has come: a glance at memory.
	lookPeriod = 100 * time.Millisecond
)

// Config is what an Ender needs.
type Config struct {
	// Store has the pods.
	Store *podstore.Store
	// Book keeps which pods were ended over restarts: *evictionbook.Book.
	Book interface {
		PutAll(evictions map[types.UID]podstore.Eviction) error
	}
	// Workers ends the pods: *podworkers.Pool.
	Workers interface {
		End(uid types.UID, cause podworkers.Cause, end podworkers.End) bool
	}
	// Boot names this boot of the machine: boottime.Boot.
	Boot string
	// Unsent returns how many pods have a status that the API server does not have. Required.
	Unsent func() int
	Clock  clock.WithTicker
}

// Ender ends pods. Make it with New.
type Ender struct{ cfg Config }

// New returns an Ender.
func New(cfg Config) *Ender { return &Ender{cfg: cfg} }

// End ends pods, each with its grace period in seconds, and returns when nothing of them is left. A pod that is not there is none to
// end; one that is being ended has its time shortened. It fails with podstore.NotReadyError while it is not known which pods there are,
// when it cannot be kept which were ended, and with ctx's error when that ends before: the pods go on ending.
func (e *Ender) End(ctx context.Context, grace map[types.UID]int64) error {
	if _, err := e.cfg.Store.Source(); err != nil {
		return err
	}
	ended := map[types.UID]podstore.Eviction{}
	for uid := range grace {
		if pod := e.cfg.Store.Pod(uid); pod != nil && e.cfg.Store.Phase(uid) != v1.PodSucceeded {
			ended[uid] = e.eviction(pod)
		}
	}
	if err := e.cfg.Book.PutAll(ended); err != nil {
		return err
	}
	var idle []types.UID
	for uid, eviction := range ended {
		if err := e.cfg.Store.Evict(uid, eviction); err == nil { // else it has gone since
			idle = append(idle, uid)
		}
	}
	return e.until(ctx, func() bool {
		// A pod that has no worker yet, as when the runtime was away, gets one that ends it: the loop reads the book. It has its time then.
		idle = slices.DeleteFunc(idle, func(uid types.UID) bool {
			seconds := grace[uid]
			return e.cfg.Workers.End(uid, podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{Grace: &seconds})
		})
		for uid := range grace {
			if !e.cfg.Store.IsGone(uid) {
				return false
			}
		}
		return true
	})
}

func (e *Ender) eviction(pod *v1.Pod) podstore.Eviction {
	eviction := podstore.Eviction{Reason: reason, Message: message, Disruption: message, At: e.cfg.Clock.Now()}
	if podset.IsStaticSource(pod.Annotations[podset.AnnotationSource]) {
		eviction.Boot = e.cfg.Boot
	}
	return eviction
}

// AwaitStatuses returns when the API server has the status of every pod. It fails with ctx's error when that ends before.
func (e *Ender) AwaitStatuses(ctx context.Context) error {
	return e.until(ctx, func() bool { return e.cfg.Unsent() == 0 })
}

// until returns when something is so, or with ctx's error.
func (e *Ender) until(ctx context.Context, isSo func() bool) error {
	ticker := e.cfg.Clock.NewTicker(lookPeriod)
	defer ticker.Stop()
	for !isSo() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
	return nil
}
