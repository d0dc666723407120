package statusmanager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// API sends the requests. Its errors are those of package k8s.io/apimachinery/pkg/api/errors, or connection errors.
type API interface {
	// PatchStatus sends a strategic merge patch of a pod's status and returns the patched pod.
	PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error)
	// Delete deletes a pod at once if it has this UID.
	Delete(ctx context.Context, namespace, name string, uid types.UID) error
}

// FromAPIServer returns an API that uses a client of core/v1.
func FromAPIServer(core rest.Interface) API { return apiServer{core} }

type apiServer struct{ core rest.Interface }

// PatchStatus implements API. It does not retry, because the Manager schedules retries.
func (a apiServer) PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error) {
	answer := &v1.Pod{}
	err := a.core.Patch(types.StrategicMergePatchType).
		Namespace(namespace).Resource("pods").Name(name).SubResource("status").
		Body(patch).MaxRetries(0).Do(ctx).Into(answer)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Delete implements API.
func (a apiServer) Delete(ctx context.Context, namespace, name string, uid types.UID) error {
	options := &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &uid}}
	return a.core.Delete().Namespace(namespace).Resource("pods").Name(name).Body(options).MaxRetries(0).Do(ctx).Error()
}

// failureKind is the kind of a request's result.
type failureKind string

const (
	// taken: the request succeeded.
	taken failureKind = "ok"
	// missing: there is no such pod. An API server that has just started may answer that for existing pods, so a deletion
	// is retried until the source of the pods confirms it.
	missing failureKind = "missing"
	// replaced: there is another pod of this name.
	replaced failureKind = "replaced"
	// refused: the request is rejected, and will be each time.
	refused failureKind = "refused"
	// ignored: the request was accepted without effect.
	ignored failureKind = "ignored"
	// failed: the request failed temporarily, or the API server is away.
	failed failureKind = "failed"
)

// kindOf returns the kind of a request's error. A conflict can also be caused by other concurrent patches.
func kindOf(op request, err error) failureKind {
	switch {
	case err == nil:
		return taken
	case apierrors.IsNotFound(err):
		return missing
	case apierrors.IsConflict(err) && op == requestDelete, isAnotherUID(err):
		return replaced
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err):
		return refused
	}
	return failed
}

// isAnotherUID reports whether a patch was rejected because the pod of that name has another UID.
func isAnotherUID(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	if apierrors.IsConflict(err) {
		return strings.Contains(status.Status().Message, "UID in precondition")
	}
	if !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid"
	})
}

// suggestedDelay returns the delay before the next try that the API server asks for; 0 if there is none.
func suggestedDelay(err error) time.Duration {
	seconds, suggested := apierrors.SuggestsClientDelay(err)
	if !suggested {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
