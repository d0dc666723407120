package nodeclaims

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Status is a claim that a pod has used.
type Status struct {
	// Claim is the claim as bound, with a DeletionTimestamp if it was deleted, and PV its persistent volume; nil while
	// that of a storage class is not there, and then the claim is pending.
	Claim *v1.PersistentVolumeClaim
	PV    *v1.PersistentVolume
	// UsedBy are the pods that use the claim, as "namespace/name", sorted.
	UsedBy []string
	// Problem is why a changed claim cannot be kept, why a deleted one cannot be removed, or what the volume of a storage
	// class waits for; empty if there is nothing.
	Problem string
}

// List returns the claims that pods have used, sorted by namespace and name.
func (c *Claims) List() []Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Status, 0, len(c.records))
	for k, r := range c.records {
		s := Status{}
		if r.hasClass() {
			known := c.cfg.Volumes.Known(r.uid())
			s.Claim, s.PV = classBound(r.claim(), known), known.PV
			if known.Problem != nil {
				s.Problem = known.Problem.Error()
			}
		} else {
			s.Claim, s.PV = boundTo(r, c.disk.path(k))
		}
		for uid := range r.users {
			s.UsedBy = append(s.UsedBy, c.pods[uid].name)
		}
		slices.Sort(s.UsedBy)
		if r.problem != nil {
			s.Problem = r.problem.Error()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Status) int {
		return key{a.Claim.Namespace, a.Claim.Name}.compare(key{b.Claim.Namespace, b.Claim.Name})
	})
	return all
}

// Describe returns the claims that pods have used, sorted by namespace and name, for the API of syncloop.
func (c *Claims) Describe() []*enginev1.Claim {
	var all []*enginev1.Claim
	for _, s := range c.List() {
		claim, err := s.Claim.Marshal()
		var pv []byte
		if err == nil && s.PV != nil {
			pv, err = s.PV.Marshal()
		}
		if err != nil { // a claim that was read from its record or decoded can be encoded
			c.cfg.Logger.Error("a claim cannot be described", keyClaim, key{s.Claim.Namespace, s.Claim.Name}, telemetry.KeyError, err)
			continue
		}
		all = append(all, &enginev1.Claim{
			Claim: claim, PersistentVolume: pv, UsedBy: s.UsedBy, Problem: s.Problem,
		})
	}
	return all
}
