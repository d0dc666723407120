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

// API makes the requests. Its errors are those of package k8s.io/apimachinery/pkg/api/errors, or of the way to the API
// server.
type API interface {
	// PatchStatus sends a strategic merge patch of a pod's status and returns the pod as it then is.
	PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error)
	// Delete deletes a pod at once if it has this UID.
	Delete(ctx context.Context, namespace, name string, uid types.UID) error
}

// FromAPIServer makes the requests of an API server by a client of core/v1.
func FromAPIServer(core rest.Interface) API { return apiServer{core} }

type apiServer struct{ core rest.Interface }

// PatchStatus implements API. It is tried once: when again is for the Manager to say.
func (a apiServer) PatchStatus(ctx context.Context, namespace, name string, patch []byte) (*v1.Pod, error) {
	answer := &v1.Pod{}
	err := a.core.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("pods").Name(name).SubResource("status").
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

// failureKind says what came of a request.
type failureKind string

const (
	// taken: the API server has done it.
	taken failureKind = "ok"
	// missing: it has no such pod. One that has just been started says so of pods that it has, when a node is to delete
	// them: it is asked again until the source of the pods says so, too.
	missing failureKind = "missing"
	// replaced: it has another pod of this name.
	replaced failureKind = "replaced"
	// refused: it will not do it, whenever it is asked.
	refused failureKind = "refused"
	// ignored: it has taken it, and has not done it.
	ignored failureKind = "ignored"
	// failed: it cannot do it now, or is not there.
	failed failureKind = "failed"
)

// kindOf says what an error of a request means. A patch is in conflict also with others that are made at the same time.
func kindOf(op request, err error) failureKind {
	switch {
	case err == nil:
		return taken
	case apierrors.IsNotFound(err):
		return missing
	case apierrors.IsConflict(err) && op == requestDelete, isAnotherUID(err):
		return replaced
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err),
		apierrors.IsRequestEntityTooLargeError(err):
		return refused
	}
	return failed
}

// isAnotherUID tells whether a patch was refused since the pod of that name has another UID.
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
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// askedDelay is how long the API server asks not to be asked again; 0 when it does not.
func askedDelay(err error) time.Duration {
	seconds, asked := apierrors.SuggestsClientDelay(err)
	if !asked {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
