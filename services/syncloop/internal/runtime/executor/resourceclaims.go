package executor

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// ResourceClaims prepares the resource claims of pods; *resourceclaims.Manager implements it.
type ResourceClaims interface {
	// Prepare returns when the claims of a pod are prepared whose sandbox is about to be created.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Annotation returns the claims of a pod for an annotation of its sandbox; empty if it has none.
	Annotation(pod types.UID) (string, error)
	// Devices returns the CDI devices of a container that is about to be created.
	Devices(pod *v1.Pod, c *v1.Container) ([]string, error)
	// Pods returns the pods that use claims, and Release unprepares those of a pod of which nothing runs any more.
	Pods() []types.UID
	Release(ctx context.Context, uid types.UID) error
}

// noClaims is a node without an API server. Its pods have no claims: see supported.
type noClaims struct{}

// Prepare implements ResourceClaims.
func (noClaims) Prepare(context.Context, *v1.Pod) error { return nil }

// Annotation implements ResourceClaims.
func (noClaims) Annotation(types.UID) (string, error) { return "", nil }

// Devices implements ResourceClaims.
func (noClaims) Devices(*v1.Pod, *v1.Container) ([]string, error) { return nil, nil }

// Pods implements ResourceClaims.
func (noClaims) Pods() []types.UID { return nil }

// Release implements ResourceClaims.
func (noClaims) Release(context.Context, types.UID) error { return nil }

// ClaimsError is the error of a pod that waits until its resource claims are prepared or unprepared.
type ClaimsError struct{ Err error }

func (e *ClaimsError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *ClaimsError) Unwrap() error { return e.Err }

// releaseClaims unprepares the resource claims that no other pod uses.
func (m *Manager) releaseClaims(ctx context.Context, uid types.UID) error {
	if err := m.cfg.ResourceClaims.Release(ctx, uid); err != nil {
		return &ClaimsError{Err: err}
	}
	return nil
}

// prepareClaims prepares the resource claims before a sandbox is created. In a sandbox that exists, containers are
// created with what was prepared for it.
func (s *podSync) prepareClaims(ctx context.Context) error {
	if !s.actions.CreateSandbox {
		return nil
	}
	err := s.m.cfg.ResourceClaims.Prepare(ctx, s.pod)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s.m.warn(ctx, s.pod, "", eventClaimsFailed, "Failed to prepare dynamic resources: "+err.Error())
	return &ClaimsError{Err: err}
}

// noteClaims adds the pod's claims to the annotations of its sandbox.
func (s *podSync) noteClaims(annotations map[string]string) error {
	text, err := s.m.cfg.ResourceClaims.Annotation(s.pod.UID)
	if err == nil && text != "" {
		annotations[podlabels.Claims] = text
	}
	return err
}

// withClaims returns the CDI devices of a container: those of its resource claims, and others that were given to it.
func (s *podSync) withClaims(c *v1.Container, given []*runtimeapi.CDIDevice) ([]*runtimeapi.CDIDevice, error) {
	names, err := s.m.cfg.ResourceClaims.Devices(s.pod, c)
	if err != nil {
		return nil, err
	}
	all := make([]*runtimeapi.CDIDevice, 0, len(names)+len(given))
	for _, name := range names {
		all = append(all, &runtimeapi.CDIDevice{Name: name})
	}
	for _, device := range given {
		if !slices.Contains(names, device.GetName()) {
			all = append(all, device)
		}
	}
	return all, nil
}
