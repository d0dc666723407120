package resourceclaims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
)

// Prepare returns when the drivers have prepared all claims of a pod that is about to be started, or with the first
// error, in the kubelet's words. A claim that this process has prepared for another pod is not prepared again.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) (err error) {
	defer m.timed("PrepareResources")(&err)
	if err := m.prepare(ctx, pod); err != nil {
		return fmt.Errorf("prepare dynamic resources: %w", err)
	}
	m.stopWaiting(pod.UID)
	return nil
}

func (m *Manager) prepare(ctx context.Context, pod *v1.Pod) error {
	claims, err := m.claims(ctx, pod)
	if err != nil || len(claims) == 0 {
		return err
	}
	names := make([]types.NamespacedName, 0, len(claims))
	for _, c := range claims {
		names = append(names, c.Name)
	}
	release, err := m.locks.acquire(ctx, names)
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	calls, err := m.book.Use(pod.UID, claims)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if err := m.save(); err != nil { // the claims must not be lost if this process is killed during the calls
		return err
	}
	if len(calls) == 0 {
		return nil
	}
	batches, _ := m.batches(calls, resourceapi.SkipNodeOperationNodePrepareResources)
	for _, name := range slices.Sorted(maps.Keys(batches)) {
		if err := m.prepareWith(ctx, pod.UID, name, batches[name]); err != nil {
			return err
		}
	}
	m.mu.Lock()
	for _, c := range calls {
		m.book.Prepared(c.Name)
	}
	m.mu.Unlock()
	return m.save()
}

// claims returns the claims of a pod from the API server, sorted by name. It fails if the pod may not use one, or if a
// driver is not registered.
func (m *Manager) claims(ctx context.Context, pod *v1.Pod) ([]claimbook.Claim, error) {
	named, err := namesOf(pod, nil)
	if err != nil {
		return nil, err
	}
	claims := make([]claimbook.Claim, 0, len(named))
	for _, n := range named {
		object, err := m.cfg.API.Claim(ctx, pod.Namespace, n.claim)
		if err != nil {
			return nil, fmt.Errorf("fetch ResourceClaim %s: %w", n.claim, err)
		}
		if n.owned {
			if err := resourceclaim.IsForPod(pod, object, false); err != nil {
				return nil, err
			}
		}
		if !resourceclaim.IsReservedForPod(pod, object, false) {
			return nil, fmt.Errorf("pod %s (%s) is not allowed to use ResourceClaim %s (%s)", pod.Name, pod.UID, n.claim,
				object.UID)
		}
		claim, err := claimbook.FromAPI(object)
		if err != nil {
			return nil, fmt.Errorf("ResourceClaim %s: %w", n.claim, err)
		}
		for _, name := range claim.DriverNames() {
			if _, err := m.driver(name, pod.UID); err != nil {
				return nil, err
			}
		}
		claims = append(claims, claim)
	}
	byName := func(a, b claimbook.Claim) int { return strings.Compare(a.Name.Name, b.Name.Name) }
	slices.SortFunc(claims, byName)
	return slices.CompactFunc(claims, func(a, b claimbook.Claim) bool { return a.Name == b.Name }), nil
}

// named is a claim of a pod.
type named struct {
	// reference is the name in the pod's spec; empty for the claim of extended resources. claim is the name of the object.
	reference, claim string
	// owned is true if the object must be owned by the pod.
	owned bool
}

// namesOf returns the claims of a pod that exist: those that a container uses, or all if it is nil.
func namesOf(pod *v1.Pod, c *v1.Container) ([]named, error) {
	var all []named
	for i := range pod.Spec.ResourceClaims {
		reference := &pod.Spec.ResourceClaims[i]
		uses := func(claim v1.ResourceClaim) bool { return claim.Name == reference.Name }
		if c != nil && !slices.ContainsFunc(c.Resources.Claims, uses) {
			continue
		}
		name, owned, err := resourceclaim.Name(pod, reference)
		if err != nil {
			return nil, err
		}
		if name != nil { // otherwise the pod needs none
			all = append(all, named{reference: reference.Name, claim: *name, owned: owned})
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		all = append(all, named{claim: extended.ResourceClaimName})
	}
	return all, nil
}

// batches returns the requests of each driver that needs to be called for claims, and the claims of each request.
func (m *Manager) batches(
	claims []claimbook.Claim, operation resourceapi.SkipNodeOperation,
) (requests map[string][]*drav1.Claim, of map[string]claimbook.Claim) {
	requests, of = map[string][]*drav1.Claim{}, map[string]claimbook.Claim{}
	for _, c := range claims {
		of[string(c.UID)] = c
		for name, d := range c.Drivers {
			if !d.Needs(operation) {
				m.cfg.Metrics.skipped(operation, name)
				continue
			}
			requests[name] = append(requests[name], &drav1.Claim{
				Namespace: c.Name.Namespace, Name: c.Name.Name, Uid: string(c.UID),
			})
		}
	}
	return requests, of
}

// prepareWith asks a driver to prepare claims, and records its answer.
func (m *Manager) prepareWith(ctx context.Context, pod types.UID, name string, claims []*drav1.Claim) error {
	d, err := m.driver(name, pod)
	if err != nil {
		return err
	}
	answer, err := d.prepare(ctx, claims)
	if err != nil {
		return fmt.Errorf("NodePrepareResources: %w", err)
	}
	for _, uid := range slices.Sorted(maps.Keys(answer.GetClaims())) {
		result := answer.GetClaims()[uid]
		at := slices.IndexFunc(claims, func(c *drav1.Claim) bool { return c.GetUid() == uid })
		if at < 0 {
			return fmt.Errorf("NodePrepareResources returned result for unknown claim UID %s", uid)
		}
		if text := result.GetError(); text != "" {
			return fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", claims[at].GetName(), text)
		}
		devices := make([]claimbook.Device, 0, len(result.GetDevices()))
		for _, one := range result.GetDevices() {
			devices = append(devices, claimbook.Device{
				Pool: one.GetPoolName(), Name: one.GetDeviceName(), ShareID: (*types.UID)(one.ShareId),
				Requests: one.GetRequestNames(), CDI: one.GetCdiDeviceIds(),
			})
		}
		m.mu.Lock()
		m.book.Answered(types.NamespacedName{Namespace: claims[at].GetNamespace(), Name: claims[at].GetName()}, name, devices)
		m.mu.Unlock()
	}
	if missing := len(claims) - len(answer.GetClaims()); missing != 0 {
		return fmt.Errorf("NodePrepareResources skipped %d ResourceClaims", missing)
	}
	return nil
}

// Release unprepares the claims of a pod of which nothing runs any more, except those that another pod uses. It is
// called until it succeeds.
func (m *Manager) Release(ctx context.Context, pod types.UID) (err error) {
	defer m.timed("UnprepareResources")(&err)
	m.stopWaiting(pod)
	m.mu.Lock()
	names := m.book.Of(pod)
	m.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	release, err := m.locks.acquire(ctx, names)
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	leaving := m.book.Leave(pod)
	m.mu.Unlock()
	failed := m.unprepare(ctx, pod, leaving)
	m.mu.Lock()
	for _, c := range leaving {
		if failed[c.Name] == nil {
			m.book.Left(c.Name)
		}
	}
	m.mu.Unlock()
	errs := []error{m.save()} // until then, the next process repeats the calls
	for _, c := range leaving {
		errs = append(errs, failed[c.Name])
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("unprepare dynamic resources: %w", err)
	}
	return nil
}

// unprepare asks the drivers to unprepare claims, and returns the errors by claim.
func (m *Manager) unprepare(
	ctx context.Context, pod types.UID, claims []claimbook.Claim,
) map[types.NamespacedName]error {
	failed := map[types.NamespacedName]error{}
	batches, of := m.batches(claims, resourceapi.SkipNodeOperationNodeUnprepareResources)
	for _, name := range slices.Sorted(maps.Keys(batches)) {
		batch := batches[name]
		var answer *drav1.NodeUnprepareResourcesResponse
		d, err := m.driver(name, pod)
		if err == nil {
			if answer, err = d.unprepare(ctx, batch); err != nil {
				err = fmt.Errorf("NodeUnprepareResources: %w", err)
			}
		}
		for _, c := range batch {
			result, answered := answer.GetClaims()[c.GetUid()]
			failure := err
			switch {
			case err != nil:
			case !answered:
				failure = fmt.Errorf("NodeUnprepareResources skipped ResourceClaim %s", c.GetName())
			case result.GetError() != "":
				failure = fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", c.GetName(), result.GetError())
			}
			claim := of[c.GetUid()].Name
			failed[claim] = cmp.Or(failed[claim], failure)
		}
	}
	return failed
}

// stopWaiting forgets what a pod waits for.
func (m *Manager) stopWaiting(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for driver, pods := range m.waiting {
		if delete(pods, pod); len(pods) == 0 {
			delete(m.waiting, driver)
		}
	}
}
