// Package shutdown terminates pods before the machine shuts down. nodestatus decides which pods, when, and with which
// grace period, and calls ShutDownPods of the Engine API. This package ends the pods for good, as an eviction does, and
// returns when nothing of them is left. A pod that has not begun is refused, as the loop refuses it when it learns of
// the shutdown.
//
// A static pod starts again after a reboot. Any other pod does not: it is Failed in the API server, and its controller
// creates another one.
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
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

const (
	// reason and message are those of the pod's status. They are the kubelet's.
	reason  = "Terminated"
	message = "Pod was terminated in response to imminent node shutdown."
	// pollPeriod is how often a condition is checked. A check only reads memory.
	pollPeriod = 100 * time.Millisecond
)

// Config configures an Ender.
type Config struct {
	// Store has the pods.
	Store *podstore.Store
	// Book records the ended pods on disk: *evictionbook.Book.
	Book interface {
		Get(uid types.UID) (podstore.Eviction, bool)
		PutAll(evictions map[types.UID]podstore.Eviction)
	}
	// Workers terminates the pods: *podworkers.Pool.
	Workers interface {
		End(uid types.UID, cause podworkers.Cause, end podworkers.End) bool
	}
	// Boot is the ID of this boot of the machine: boottime.Boot.
	Boot string
	// Unsent returns the number of pods whose current status the API server does not have. Required.
	Unsent func() int
	Clock  clock.WithTicker
}

// Ender terminates pods. Create it with New.
type Ender struct{ cfg Config }

// New returns an Ender.
func New(cfg Config) *Ender { return &Ender{cfg: cfg} }

// End terminates pods, each with its grace period in seconds, and returns when nothing of them is left. It ignores UIDs
// without a pod, and shortens the grace period of a pod that is terminating already. It returns podstore.NotReadyError
// while the pods are not known, and the error of ctx if that ends first; the termination then continues.
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
	e.cfg.Book.PutAll(ended)
	var idle []types.UID
	for uid, eviction := range ended {
		if err := e.cfg.Store.Evict(uid, eviction); err == nil { // an error means that the pod has gone meanwhile
			idle = append(idle, uid)
		}
	}
	return e.until(ctx, func() bool {
		// A pod may have no worker yet, for example because the runtime was down. The loop reads the book and starts one that
		// terminates the pod. The grace period is passed to it then.
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

// eviction returns the end of a pod. One on record counts, although the store may not have it yet.
func (e *Ender) eviction(pod *v1.Pod) podstore.Eviction {
	if known, ok := e.cfg.Book.Get(pod.UID); ok {
		return known
	}
	eviction := podstore.Eviction{Reason: reason, Message: message, Disruption: message, At: e.cfg.Clock.Now()}
	if !e.cfg.Store.HasBegun(pod.UID) {
		refusal := admission.NodeShutdown()
		eviction = podstore.Eviction{Reason: refusal.Reason, Message: refusal.StatusMessage()}
	}
	if podset.IsStaticSource(pod.Annotations[podset.AnnotationSource]) {
		eviction.Boot = e.cfg.Boot
	}
	return eviction
}

// AwaitStatuses waits until the API server has the status of every pod. It returns the error of ctx if that ends first.
func (e *Ender) AwaitStatuses(ctx context.Context) error {
	return e.until(ctx, func() bool { return e.cfg.Unsent() == 0 })
}

// until waits until a condition is true. It returns the error of ctx if that ends first.
func (e *Ender) until(ctx context.Context, isTrue func() bool) error {
	ticker := e.cfg.Clock.NewTicker(pollPeriod)
	defer ticker.Stop()
	for !isTrue() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
	return nil
}
