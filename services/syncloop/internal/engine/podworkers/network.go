package podworkers

import (
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// networkError says why a pod cannot get a network yet.
type networkError struct{ reason string }

func (e *networkError) Error() string { return "network is not ready: " + e.reason }

// networkFor fails if the pod needs a network and the network is not ready. A pod in the host's network does not wait,
// such as one that sets up the network. Nor does a pod with a sandbox, because it has its network: its crashed
// containers are started again.
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
