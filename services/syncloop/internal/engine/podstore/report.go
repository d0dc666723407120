package podstore

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// API has an API server know the pods' statuses; *statusmanager.Manager does it. Its methods are called with the store's lock held: they
// wait for nothing and do not call the store.
type API interface {
	// Report takes in what there is to say of a pod.
	Report(report statusmanager.Report)
	// Forget drops a pod.
	Forget(uid types.UID)
}

// report tells the API server's part what there is to say of a pod: of one that the API server has, or that is static. Called with mu held.
func (s *Store) report(e *entry) {
	fromAPI := !podset.IsStaticSource(e.source)
	if !s.open || e.source == "" || (fromAPI && !e.desired) {
		return
	}
	s.cfg.API.Report(statusmanager.Report{
		Pod: e.pod, Static: !fromAPI, Status: e.status, Traceparent: e.cause,
		MayRun:   e.state < podworkers.Terminated && (e.worked || !isEmpty(s.observed[e.pod.UID])),
		Released: e.released,
	})
}

func (s *Store) unreport(uid types.UID) {
	s.cfg.API.Forget(uid)
}

// previous is the status before the one that is to be computed. The first one of a pod that the API server has follows on what that
// has: a restart of this process changes nothing of what it says.
func (e *entry) previous() v1.PodStatus {
	if e.last != nil && !e.worked {
		return *e.last
	}
	if e.status.Phase == "" && !podset.IsStaticSource(e.source) {
		return e.pod.Status
	}
	return e.status
}
