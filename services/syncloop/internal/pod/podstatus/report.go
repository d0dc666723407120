package podstatus

import v1 "k8s.io/api/core/v1"

// Report is the state of a pod to be reported.
type Report struct {
	// Pod is the pod as its source has it, identified by its UID. The Status of a pod of the API server is what the API
	// server has.
	Pod *v1.Pod
	// Static is true for a pod that is not from the API server. The API server has at most a mirror pod for it, which
	// SetMirror sets.
	Static bool
	// Status is the computed status of the pod.
	Status v1.PodStatus
	// MayRun is true while a part of the pod runs or may start to run: the pod is not reported as ended then.
	MayRun bool
	// Released is true if nothing of the pod runs and its resources on the machine are released.
	Released bool
	// Traceparent is the trace of the last change of the status.
	Traceparent string
}
