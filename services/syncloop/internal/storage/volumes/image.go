package volumes

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// Image is the Plugin for image volumes. The runtime mounts them: the images are pulled when containers start, and
// nothing of them is in the pod's directory.
type Image struct{}

// Name implements Plugin.
func (Image) Name() string { return "kubernetes.io~image" }

// CanSupport implements Plugin.
func (Image) CanSupport(v *v1.Volume) bool { return v.Image != nil }

// Refreshes implements Plugin.
func (Image) Refreshes() bool { return false }

// Path implements InPlace.
func (Image) Path(*v1.Volume) string { return "" }

// SetUp implements Plugin.
func (Image) SetUp(context.Context, Request) error { return nil }

// TearDown implements Plugin.
func (Image) TearDown(context.Context, string) error { return nil }
