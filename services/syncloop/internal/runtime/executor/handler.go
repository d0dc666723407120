package executor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// RuntimeClasses resolves the runtime class of a pod to a runtime handler.
type RuntimeClasses interface {
	// Use registers the objects that a pod references, and Forget removes the pod.
	Use(pod *v1.Pod)
	Forget(uid types.UID)
	// Handler returns the handler, empty for the runtime's default. It fails with a [containerspec.Unknown] while the
	// runtime class is not known.
	Handler(ctx context.Context, pod *v1.Pod) (string, error)
}

// handler returns the runtime handler for the pod's runtime class, and the IDs of its user namespace. The handler of a
// pod without a runtime class is empty. The runtime's status is requested only for pods that need a feature of the
// runtime. handler fails with an *UnsupportedError if the runtime lacks the handler, or the handler lacks user
// namespaces.
func (s *podSync) handler(ctx context.Context) (handler string, ids containerspec.IDs, err error) {
	if handler, err = s.m.cfg.RuntimeClasses.Handler(ctx, s.pod); err != nil {
		sandboxes := s.observed.GetSandboxes() // newest first
		if len(sandboxes) == 0 || !containerspec.IsUnknown(err) {
			return "", ids, err
		}
		// a pod that ran here continues while the API server is unavailable, also after a reboot
		handler = sandboxes[0].GetRuntimeHandler()
	}
	strict := admission.AsksForStrictGroups(s.pod)
	if handler == "" && !requestsUserNamespace(s.pod) && !strict {
		return "", ids, nil
	}
	status, err := s.rt.status(ctx)
	if err != nil {
		return "", ids, fmt.Errorf("handlers of the runtime: %w", err)
	}
	if strict && !status.GetFeatures().GetSupplementalGroupsPolicy() {
		return "", ids, &UnsupportedError{
			Field:   "spec.securityContext.supplementalGroupsPolicy",
			Message: "the runtime does not report support for Strict: leave the field out, or use a runtime that supports it",
		}
	}
	features, err := featuresOf(status.GetRuntimeHandlers(), handler, ptr.Deref(s.pod.Spec.RuntimeClassName, ""))
	if err != nil {
		return "", ids, err
	}
	if !requestsUserNamespace(s.pod) {
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

// featuresOf returns the features of the handler that a pod's runtime class names. If the runtime lists no handlers,
// featuresOf returns nil and the runtime checks the name itself.
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
	suffix := ""
	if class != name {
		suffix = fmt.Sprintf(", which the runtimeclass %q asks for", class)
	}
	return nil, &UnsupportedError{
		Field: "spec.runtimeClassName",
		Message: fmt.Sprintf("the runtime has no handler named %q%s; it has %s: use one of these, or configure the handler in the runtime",
			name, suffix, strings.Join(names, ", ")),
	}
}

// requestsUserNamespace reports whether a pod requests its own user namespace.
func requestsUserNamespace(pod *v1.Pod) bool {
	return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers
}

// userNamespace returns the IDs of a pod's user namespace; none for a pod in the host's. They stay the same as long as
// the pod exists.
func (m *Manager) userNamespace(pod *v1.Pod) (containerspec.IDs, error) {
	if !requestsUserNamespace(pod) {
		return containerspec.IDs{}, nil
	}
	if m.cfg.UserIDs == nil {
		return containerspec.IDs{}, &UnsupportedError{Field: "spec.hostUsers", Message: "this node has no user IDs for pods; leave the field out"}
	}
	return m.cfg.UserIDs(pod.UID)
}
