package podworkers

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// failure is the class of an error of a worker. It determines the metric, the reason in the pod's status, what the
// worker waits for, and the time of the next try.
type failure struct {
	// label is the reason of quartet_pod_worker_retries_total.
	label string
	// reason is the reason of the pod's containers in its status, if the error keeps the sandbox from being made.
	reason string
	// waits is what the worker waits for; empty for the next try.
	waits string
	// passes is true for an error that may be over at any moment, whatever the pod's spec is. It is retried soon.
	passes bool
}

// The classes.
var (
	failedAway = failure{
		label: "away", waits: "pleg or the runtime, which is away", reason: podstatus.ReasonSandbox, passes: true,
	}
	failedInspect = failure{
		label: "inspect", waits: "pleg, which cannot inspect the pod", reason: podstatus.ReasonSandbox, passes: true,
	}
	failedNetwork = failure{
		label: "network", waits: "the network of pods", reason: podstatus.ReasonNoNetwork, passes: true,
	}
	failedCgroup  = failure{label: "cgroup", waits: "its cgroup", reason: podstatus.ReasonCgroup, passes: true}
	failedVolume  = failure{label: "volume", waits: "volumes", reason: podstatus.ReasonVolumes, passes: true}
	failedRemoval = failure{
		label: "volume", waits: "the removal of its volumes", reason: podstatus.ReasonVolumes, passes: true,
	}
	failedDevices = failure{label: "devices", waits: "device plugins", reason: podstatus.ReasonDevices, passes: true}
	failedClaims  = failure{label: "claims", waits: "resource claims", reason: podstatus.ReasonClaims, passes: true}
	failedResize  = failure{
		label: "resize", waits: "the runtime to resize it", reason: podstatus.ReasonSandbox, passes: true,
	}
	failedUnsupported = failure{
		label: "unsupported", waits: "a change of the pod, which asks for what this node cannot do", reason: podstatus.ReasonUnsupported,
	}
	failedImage   = failure{label: "image", reason: podstatus.ReasonSandbox}
	failedRuntime = failure{label: "runtime", reason: podstatus.ReasonSandbox, passes: true}
	failedOther   = failure{label: "other", reason: podstatus.ReasonSandbox}
)

// failures returns every class.
func failures() []failure {
	return []failure{
		failedAway, failedInspect, failedNetwork, failedCgroup, failedVolume, failedRemoval, failedDevices, failedClaims,
		failedResize, failedUnsupported, failedImage, failedRuntime, failedOther,
	}
}

// classify returns the class of an error.
func classify(err error) failure {
	switch {
	case isAway(err):
		return failedAway
	case errors.As(err, new(*inspectError)):
		return failedInspect
	case errors.As(err, new(*networkError)):
		return failedNetwork
	case errors.As(err, new(*executor.CgroupError)):
		return failedCgroup
	case errors.As(err, new(*executor.DevicesError)):
		return failedDevices
	case errors.As(err, new(*executor.ClaimsError)):
		return failedClaims
	case errors.As(err, new(*executor.ResizeError)):
		return failedResize
	case errors.As(err, new(*executor.UnsupportedError)):
		return failedUnsupported
	case errors.As(err, new(*volumes.NotReadyError)):
		return failedVolume
	case errors.As(err, new(*volumes.NotRemovedError)):
		return failedRemoval
	case errors.As(err, new(*images.Error)):
		return failedImage
	case refused(err):
		return failedRuntime
	default:
		return failedOther
	}
}

// isAway reports whether work failed because pleg or the runtime is unreachable.
func isAway(err error) bool {
	return status.Code(err) == codes.Unavailable || errors.As(err, new(*cri.NotConnectedError))
}

// refused reports whether the runtime or pleg has answered with an error.
func refused(err error) bool {
	_, ok := status.FromError(err)
	return ok
}

// inspectError is the failure of pleg to inspect a pod.
type inspectError struct{ reason string }

func (e *inspectError) Error() string { return "pleg cannot inspect the pod: " + e.reason }
