package cri

import (
	"context"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// countedImages counts each call of an image service. Close is not counted because it does not call the runtime.
type countedImages struct {
	internalapi.ImageManagerService
	operations *operations
}

// ListImages implements the CRI.
func (i countedImages) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return counted(
		i.operations,
		"list_images",
		func() ([]*runtimeapi.Image, error) { return i.ImageManagerService.ListImages(ctx, filter) },
	)
}

// ImageStatus implements the CRI.
func (i countedImages) ImageStatus(
	ctx context.Context,
	image *runtimeapi.ImageSpec,
	verbose bool,
) (*runtimeapi.ImageStatusResponse, error) {
	return counted(i.operations, "image_status", func() (*runtimeapi.ImageStatusResponse, error) {
		return i.ImageManagerService.ImageStatus(ctx, image, verbose)
	})
}

// PullImage implements the CRI.
func (i countedImages) PullImage(
	ctx context.Context,
	image *runtimeapi.ImageSpec,
	auth *runtimeapi.AuthConfig,
	podSandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	return counted(
		i.operations,
		"pull_image",
		func() (string, error) { return i.ImageManagerService.PullImage(ctx, image, auth, podSandboxConfig) },
	)
}

// RemoveImage implements the CRI.
func (i countedImages) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	return countedOnly(i.operations, "remove_image", func() error { return i.ImageManagerService.RemoveImage(ctx, image) })
}

// ImageFsInfo implements the CRI.
func (i countedImages) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return counted(
		i.operations,
		"image_fs_info",
		func() (*runtimeapi.ImageFsInfoResponse, error) { return i.ImageManagerService.ImageFsInfo(ctx) },
	)
}
