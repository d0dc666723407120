package podworkers

import (
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// networkError says that a pod cannot be given a network yet.
type networkError struct{ reason string }

func (e *networkError) Error() string { return "network is not ready: " + e.reason }

// networkFor fails when the pod is to be given a network and there is none to give. A pod of the host's network, such as the
// one that brings the network, does not wait, nor does one whose sandbox is up: it has its network already, and a container
// of it that has crashed is started again.
func (w *worker) networkFor(status *lifecyclev1.PodStatus) error {
	if w.pod.Spec.HostNetwork || podview.Sandbox(status) != nil {
		return nil
	}
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	if w.pool.network == "" {
		return nil
	}
	return &networkError{w.pool.network}
}
