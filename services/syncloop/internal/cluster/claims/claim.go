package claims

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// Claim implements Source.
func (c *Cluster) Claim(
	ctx context.Context, pod *v1.Pod, volume *v1.Volume,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	name, ephemeral := ClaimName(pod, volume)
	if name == "" {
		return nil, nil, fmt.Errorf("volume %q names no claim", volume.Name)
	}
	k := key{kind: claimKind, namespace: pod.Namespace, name: name}
	object, err := c.get(ctx, k, pod.UID)
	claim, ok := object.(*v1.PersistentVolumeClaim)
	if !ok {
		return nil, nil, c.failed(k, processing(k, causeOf(err), "failed to fetch PVC from API server: ", err), pod.UID)
	}
	if cause, err := usable(claim); err != nil {
		return nil, nil, c.failed(k, processing(k, cause, "", err), pod.UID)
	}
	if ephemeral {
		if err := owned(claim, pod); err != nil {
			return nil, nil, c.failed(k, &Error{Cause: CauseNotOwner, message: err.Error()}, pod.UID)
		}
	}
	bound := key{kind: volumeKind, name: claim.Spec.VolumeName}
	object, err = c.get(ctx, bound, pod.UID)
	pv, ok := object.(*v1.PersistentVolume)
	if !ok {
		tried := fmt.Sprintf("failed to fetch PV %s from API server: ", bound.name)
		return nil, nil, c.failed(bound, processing(k, causeOf(err), tried, err), pod.UID)
	}
	if cause, err := belongs(pv, claim); err != nil {
		failure := c.failed(k, processing(k, cause, "", err), pod.UID) // the claim may have been replaced
		return nil, nil, c.failed(bound, failure, pod.UID)
	}
	c.succeeded(k, pod.UID)
	c.succeeded(bound, pod.UID)
	return claim, pv, nil
}

// processing returns the kubelet's error for a claim. A nil error is one of an API server that has not answered.
func processing(claim key, cause Cause, tried string, err error) *Error {
	return &Error{
		Cause: cause, err: err,
		message: fmt.Sprintf("error processing PVC %s/%s: %s%s", claim.namespace, claim.name, tried, why(err)),
	}
}

// causeOf returns the cause of a request without an object.
func causeOf(err error) Cause {
	if apierrors.IsNotFound(err) {
		return CauseMissing
	}
	return CauseUnknown
}

// why returns the text of an error; nil is no answer.
func why(err error) string {
	if err == nil {
		return "it has not answered yet"
	}
	return err.Error()
}

// Attachment implements Source.
func (c *Cluster) Attachment(ctx context.Context, driver, handle string) (map[string]string, error) {
	return c.attachment(ctx, driver, handle, func(k key) (runtime.Object, error) { return c.get(ctx, k, "") })
}

// AttachmentNow implements Source.
func (c *Cluster) AttachmentNow(ctx context.Context, driver, handle string) (map[string]string, error) {
	return c.attachment(ctx, driver, handle, func(k key) (runtime.Object, error) { return c.getNow(ctx, k) })
}

// attachment returns the publish context of the attachment that get returns.
func (c *Cluster) attachment(
	ctx context.Context, driver, handle string, get func(key) (runtime.Object, error),
) (map[string]string, error) {
	known, err := c.Driver(ctx, driver)
	if err != nil {
		return nil, err
	}
	if !needsAttachment(known) {
		return nil, nil
	}
	k := key{kind: attachmentKind, name: AttachmentName(driver, handle, c.cfg.NodeName)}
	object, err := get(k)
	attachment, ok := object.(*storagev1.VolumeAttachment)
	if !ok {
		return nil, c.failed(k, &Error{
			Cause: causeOf(err), err: err,
			message: fmt.Sprintf("volume %v has GET error for volume attachment %v: %s", handle, k.name, why(err)),
		})
	}
	if cause, err := attached(attachment, handle, known); err != nil {
		failure := &Error{Cause: cause, message: err.Error()}
		if cause == CauseLimitExceeded {
			failure.Driver = driver
		}
		return nil, c.failed(k, failure)
	}
	c.succeeded(k)
	return attachment.Status.AttachmentMetadata, nil
}

// Secret implements Source.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	k := key{kind: secretKind, namespace: namespace, name: name}
	object, err := c.ask(ctx, k)
	secret, ok := object.(*v1.Secret)
	if !ok {
		return nil, c.failed(k, &Error{
			Cause: causeOf(err), err: err,
			message: fmt.Sprintf("failed to find the secret %s in the namespace %s with error: %s", name, namespace, why(err)),
		})
	}
	return secret, nil
}
