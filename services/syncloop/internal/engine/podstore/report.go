package podstore

import (
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// API reports the statuses of pods to an API server. Its methods are called with the store's lock held, so they must
// neither block nor call the store.
type API interface {
	// Report sets the report of a pod.
	Report(report podstatus.Report)
	// Forget drops a pod.
	Forget(uid types.UID)
}

// report passes the status of a pod to the API, if the API server has the pod or the pod is static. Called with mu
// held.
func (s *Store) report(e *entry) {
	fromAPI := !podset.IsStaticSource(e.source)
	if !s.open || e.source == "" || (fromAPI && !e.desired) {
		return
	}
	mayRun := e.state < podworkers.Terminated && (e.worked || !isEmpty(s.observed[e.pod.UID]))
	if s.cfg.HoldsClaims != nil && s.cfg.HoldsClaims(e.pod.UID) {
		mayRun = true
	}
	s.cfg.API.Report(podstatus.Report{
		Pod: e.pod, Static: !fromAPI, Status: e.status, Traceparent: e.cause, MayRun: mayRun,
		Released: e.released,
	})
}

func (s *Store) unreport(uid types.UID) {
	s.cfg.API.Forget(uid)
}

// previous returns the status before the one to compute. For the first status of a pod of the API server it is the
// status there, so that a restart of this process keeps its times and conditions.
func (e *entry) previous() v1.PodStatus {
	if e.last != nil && !e.worked {
		return *e.last
	}
	if e.status.Phase == "" && !podset.IsStaticSource(e.source) {
		return e.pod.Status
	}
	return e.status
}
