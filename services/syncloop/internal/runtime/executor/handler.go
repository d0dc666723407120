package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// RuntimeClasses says which handler of the runtime a pod asks for by its runtime class. *runtimeclasses.Classes does it for a node of a
// cluster, runtimeclasses.ByName for others.
type RuntimeClasses interface {
	// Use says that a pod names what its spec names, from now on, and Forget that it is gone.
	Use(pod *v1.Pod)
	Forget(uid types.UID)
	// Handler returns the handler, empty for the runtime's default. It fails with a *runtimeclasses.UnknownError while nobody can say.
	Handler(ctx context.Context, pod *v1.Pod) (string, error)
}

// handler is the runtime's handler that a pod asks for, by its runtime class, and the IDs of its user namespace. The runtime
// says what it has: it is asked for the pods that ask for something. It fails with an *UnsupportedError when the runtime has
// no such handler, or one without user namespaces. The handler of a pod without a runtime class is empty.
func (s *podSync) handler(ctx context.Context) (handler string, ids containerspec.IDs, err error) {
	if handler, err = s.m.cfg.RuntimeClasses.Handler(ctx, s.pod); err != nil {
		had := s.observed.GetSandboxes() // the newest first
		if len(had) == 0 || !errors.As(err, new(*runtimeclasses.UnknownError)) {
			return "", ids, err
		}
		handler = had[0].GetRuntimeHandler() // a pod that ran here goes on while the API server is away, also after a reboot
	}
	strict := admission.AsksForStrictGroups(s.pod)
	if handler == "" && !ownUsers(s.pod) && !strict {
		return "", ids, nil
	}
	status, err := s.rt.status(ctx)
	if err != nil {
		return "", ids, fmt.Errorf("handlers of the runtime: %w", err)
	}
	if strict && !status.GetFeatures().GetSupplementalGroupsPolicy() {
		return "", ids, &UnsupportedError{
			Field:   "spec.securityContext.supplementalGroupsPolicy",
			Message: "the runtime does not say that it supports Strict: leave the field out, or give the node a runtime that does",
		}
	}
	features, err := featuresOf(status.GetRuntimeHandlers(), handler, runtimeclasses.ClassOf(s.pod))
	if err != nil {
		return "", ids, err
	}
	if !ownUsers(s.pod) {
		return handler, ids, nil
	}
	if !features.GetUserNamespaces() {
		message := "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
		if handler != "" {
			message = fmt.Sprintf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
		}
		return "", ids, &UnsupportedError{Field: "spec.hostUsers", Message: message + "; leave the field out"}
	}
	ids, err = s.m.userNamespace(s.pod)
	return handler, ids, err
}

// featuresOf is what a handler can do, which a pod asks for by a class. A runtime that names no handlers is left to judge the name by
// itself.
func featuresOf(handlers []*runtimeapi.RuntimeHandler, name, class string) (*runtimeapi.RuntimeHandlerFeatures, error) {
	var names []string
	for _, h := range handlers {
		if h.GetName() == name {
			return h.GetFeatures(), nil
		}
		if h.GetName() != "" {
			names = append(names, h.GetName())
		}
	}
	if len(handlers) == 0 || name == "" {
		return nil, nil
	}
	slices.Sort(names)
	asks := ""
	if class != name {
		asks = fmt.Sprintf(", which the runtimeclass %q asks for", class)
	}
	return nil, &UnsupportedError{
		Field: "spec.runtimeClassName",
		Message: fmt.Sprintf("the runtime has no handler named %q%s; it has %s: name one of these, or give the runtime such a handler",
			name, asks, strings.Join(names, ", ")),
	}
}

// ownUsers says whether a pod asks for a user namespace of its own.
func ownUsers(pod *v1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// userNamespace has the IDs of a pod's user namespace, the same ones as long as the pod is there; none for a pod that uses the
// host's.
func (m *Manager) userNamespace(pod *v1.Pod) (containerspec.IDs, error) {
	if !ownUsers(pod) {
		return containerspec.IDs{}, nil
	}
	if m.cfg.UserIDs == nil {
		return containerspec.IDs{}, &UnsupportedError{Field: "spec.hostUsers", Message: "this node has no user IDs for pods; leave the field out"}
	}
	return m.cfg.UserIDs(pod.UID)
}
