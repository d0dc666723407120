package claims

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// errNone is returned for everything that None does not have.
var errNone = errors.New("there are no claims and no persistent volumes here: leave the claim out and use an emptyDir or a hostPath")

// None is a Source without claims. A node without an API server has it until its own claims take its place.
type None struct{}

// Use implements Source.
func (None) Use(*v1.Pod) {}

// Forget implements Source.
func (None) Forget(types.UID) {}

// Claim implements Source.
func (None) Claim(context.Context, *v1.Pod, *v1.Volume) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	return nil, nil, errNone
}

// Driver implements Source: there are no objects of drivers.
func (None) Driver(context.Context, string) (*storagev1.CSIDriver, error) { return nil, nil }

// Attachment implements Source: nothing attaches volumes to this node, so none needs it.
func (None) Attachment(context.Context, string, string) (map[string]string, error) { return nil, nil }

// AttachmentNow implements Source.
func (None) AttachmentNow(context.Context, string, string) (map[string]string, error) {
	return nil, nil
}

// Secret implements Source.
func (None) Secret(context.Context, string, string) (*v1.Secret, error) { return nil, errNone }

// Refused implements Source.
func (None) Refused(types.UID, *v1.Secret) {}

// Accepted implements Source.
func (None) Accepted(types.UID, string, string) {}

// MarkExpanding implements Expansion.
func (None) MarkExpanding(context.Context, *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	return nil, errNone
}

// MarkExpanded implements Expansion.
func (None) MarkExpanded(context.Context, *v1.PersistentVolumeClaim, resource.Quantity) (*v1.PersistentVolumeClaim,
	error) {
	return nil, errNone
}

// MarkExpansionFailed implements Expansion.
func (None) MarkExpansionFailed(context.Context, *v1.PersistentVolumeClaim, error, bool) (*v1.PersistentVolumeClaim,
	error) {
	return nil, errNone
}
