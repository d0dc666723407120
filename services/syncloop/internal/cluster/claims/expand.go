package claims

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// resizeConditions are the conditions of an expansion. All of them end with it.
var resizeConditions = []v1.PersistentVolumeClaimConditionType{
	v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimResizing,
	v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError,
}

// statusPatch is a strategic merge patch of the status of a claim. A null removes a field.
type statusPatch struct {
	Metadata *patchedMeta `json:"metadata,omitempty"`
	Status   struct {
		Capacity   v1.ResourceList                             `json:"capacity,omitempty"`
		Statuses   map[v1.ResourceName]*v1.ClaimResourceStatus `json:"allocatedResourceStatuses,omitempty"`
		Conditions []patchedCondition                          `json:"conditions,omitempty"`
	} `json:"status"`
}

// patchedMeta makes the API server refuse the patch if the claim has changed in the meantime.
type patchedMeta struct {
	ResourceVersion string `json:"resourceVersion"`
}

// patchedCondition sets the condition of a type, or deletes it.
type patchedCondition struct {
	Patch              string                                `json:"$patch,omitempty"`
	Type               v1.PersistentVolumeClaimConditionType `json:"type"`
	Status             v1.ConditionStatus                    `json:"status,omitempty"`
	LastTransitionTime *metav1.Time                          `json:"lastTransitionTime,omitempty"`
	Message            string                                `json:"message,omitempty"`
}

// MarkExpanding implements Expansion.
func (c *Cluster) MarkExpanding(
	ctx context.Context, claim *v1.PersistentVolumeClaim,
) (*v1.PersistentVolumeClaim, error) {
	patch := statusPatch{Metadata: &patchedMeta{ResourceVersion: claim.ResourceVersion}}
	patch.setStorage(v1.PersistentVolumeClaimNodeResizeInProgress)
	return c.patch(ctx, claim, patch)
}

// MarkExpanded implements Expansion.
func (c *Cluster) MarkExpanded(
	ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity,
) (*v1.PersistentVolumeClaim, error) {
	patch := statusPatch{Metadata: &patchedMeta{ResourceVersion: claim.ResourceVersion}}
	patch.Status.Capacity = v1.ResourceList{v1.ResourceStorage: size}
	if _, found := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]; found {
		patch.Status.Statuses = map[v1.ResourceName]*v1.ClaimResourceStatus{v1.ResourceStorage: nil}
	}
	for i := range claim.Status.Conditions {
		if kind := claim.Status.Conditions[i].Type; slices.Contains(resizeConditions, kind) {
			patch.Status.Conditions = append(patch.Status.Conditions, patchedCondition{Patch: "delete", Type: kind})
		}
	}
	return c.patch(ctx, claim, patch)
}

// MarkExpansionFailed implements Expansion. As in a kubelet, it overrides a change of another, and a first error stays
// until the expansion has succeeded.
func (c *Cluster) MarkExpansionFailed(
	ctx context.Context, claim *v1.PersistentVolumeClaim, cause error, infeasible bool,
) (*v1.PersistentVolumeClaim, error) {
	var patch statusPatch
	if infeasible {
		patch.setStorage(v1.PersistentVolumeClaimNodeResizeInfeasible)
	}
	reported := slices.ContainsFunc(claim.Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimNodeResizeError && c.Status == v1.ConditionTrue
	})
	switch {
	case reported && !infeasible:
		return claim, nil
	case !reported:
		now := metav1.NewTime(c.cfg.Clock.Now())
		patch.Status.Conditions = []patchedCondition{{
			Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: &now,
			Message: fmt.Sprintf("failed to expand pvc with %v", cause),
		}}
	}
	return c.patch(ctx, claim, patch)
}

func (p *statusPatch) setStorage(status v1.ClaimResourceStatus) {
	p.Status.Statuses = map[v1.ResourceName]*v1.ClaimResourceStatus{v1.ResourceStorage: &status}
}

// patch patches the status of a claim, and caches its new state.
func (c *Cluster) patch(
	ctx context.Context, claim *v1.PersistentVolumeClaim, patch statusPatch,
) (*v1.PersistentVolumeClaim, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("patchPVCStatus failed to patch PVC %q: %w", claim.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	updated := &v1.PersistentVolumeClaim{}
	k := key{kind: claimKind, namespace: claim.Namespace, name: claim.Name}
	err = c.cfg.Core.Patch(types.StrategicMergePatchType).Namespace(k.namespace).Resource(string(k.kind) + "s").
		Name(k.name).SubResource("status").Body(body).MaxRetries(0).Do(ctx).Into(updated)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.held[k] != nil { // it may be that the claim has changed
			c.enqueue(k)
		}
		return nil, fmt.Errorf("patchPVCStatus failed to patch PVC %q: %w", claim.Name, err)
	}
	c.saw(k, updated)
	return updated, nil
}

// saw caches the state of an object that a change has returned. Its pods know about the change.
func (c *Cluster) saw(k key, object *v1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.held[k]; h != nil {
		c.note(k, h, object, nil)
	}
}
