package claims

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Cause is why a volume cannot be used.
type Cause string

// The causes. Every one of them can pass, and Source notifies the pod when it may have: see [Error].
const (
	// CauseUnknown: the API server has not answered, or with an error.
	CauseUnknown Cause = "unknown"
	// CauseMissing: an object does not exist.
	CauseMissing Cause = "missing"
	// CauseNotBound: the claim is not bound to a persistent volume yet.
	CauseNotBound Cause = "not bound"
	// CauseLost: the persistent volume of the claim is gone.
	CauseLost Cause = "lost"
	// CauseDeleting: the claim is being deleted, and nothing protects it from that any more.
	CauseDeleting Cause = "deleting"
	// CauseNotOwner: the claim has the name of that of an ephemeral volume, but was not created for the pod.
	CauseNotOwner Cause = "not owner"
	// CauseMismatch: the persistent volume is bound to another claim, or to none.
	CauseMismatch Cause = "mismatch"
	// CauseNoSource: the persistent volume does not say what it is.
	CauseNoSource Cause = "no source"
	// CauseNotAttached: the volume is not attached to the node yet.
	CauseNotAttached Cause = "not attached"
	// CauseAttachFailed: attaching the volume has failed, and is retried by who does it.
	CauseAttachFailed Cause = "attach failed"
	// CauseLimitExceeded: as CauseAttachFailed, because no more volumes can be attached to the node.
	CauseLimitExceeded Cause = "attach limit exceeded"
)

// ReasonLimitExceeded is the kubelet's reason for rejecting a pod.
const ReasonLimitExceeded = "VolumeAttachmentLimitExceeded"

// Error is returned while a volume cannot be used. The pod may try again when it is notified.
type Error struct {
	// Cause is for decisions.
	Cause Cause
	// Object is the object that has to change, for example "persistentvolumeclaim shop/data".
	Object string
	// Driver is the CSI driver whose limit is reached; empty for other causes.
	Driver string
	// message is the text, and err the error that it has come from, if any.
	message string
	err     error
}

// Error implements error.
func (e *Error) Error() string { return e.message }

// Unwrap returns the error of the API server, if there is one.
func (e *Error) Unwrap() error { return e.err }

// WaitsFor returns the object that has to change, for users: "persistentvolumeclaim shop/data".
func (e *Error) WaitsFor() string { return e.Object }

// IsRoutine reports whether the pod waits until the cluster attaches its volume, as most pods do for a moment. The
// attachment does not exist before, and the authorizer answers "forbidden" then.
func (e *Error) IsRoutine() bool {
	if !strings.HasPrefix(e.Object, string(attachmentKind)+" ") {
		return false
	}
	return e.Cause == CauseNotAttached || e.Cause == CauseMissing || apierrors.IsForbidden(e.err)
}

// ExhaustedDriver returns the driver whose limit is reached.
func (e *Error) ExhaustedDriver() string { return e.Driver }

// RejectsPod returns the reason for which a kubelet rejects a pod whose volume is still in this state after the time
// that a pod waits for its volumes (two minutes). It is empty if the pod waits on.
func (e *Error) RejectsPod() string {
	if e.Cause == CauseLimitExceeded {
		return ReasonLimitExceeded
	}
	return ""
}
