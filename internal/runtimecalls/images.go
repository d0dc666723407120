package runtimecalls

import (
	"context"

	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Images returns an image service whose calls a Tap takes. Close is no call of the runtime.
func Images(of internalapi.ImageManagerService, tap *Tap) internalapi.ImageManagerService {
	if tap == nil {
		return of
	}
	return images{ImageManagerService: of, tap: tap}
}

// images takes each call of an image service.
type images struct {
	internalapi.ImageManagerService

	tap *Tap
}

// ListImages implements the CRI.
func (i images) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return tapped(i.tap, "ListImages",
		func() proto.Message { return &runtimeapi.ListImagesRequest{Filter: filter} },
		func() ([]*runtimeapi.Image, error) { return i.ImageManagerService.ListImages(ctx, filter) },
		func(v []*runtimeapi.Image) proto.Message { return &runtimeapi.ListImagesResponse{Images: v} })
}

// ImageStatus implements the CRI.
func (i images) ImageStatus(
	ctx context.Context, image *runtimeapi.ImageSpec, verbose bool,
) (*runtimeapi.ImageStatusResponse, error) {
	return tapped(i.tap, "ImageStatus",
		func() proto.Message { return &runtimeapi.ImageStatusRequest{Image: image, Verbose: verbose} },
		func() (*runtimeapi.ImageStatusResponse, error) {
			return i.ImageManagerService.ImageStatus(ctx, image, verbose)
		},
		func(v *runtimeapi.ImageStatusResponse) proto.Message { return v })
}

// PullImage implements the CRI.
func (i images) PullImage(
	ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	return tapped(i.tap, "PullImage",
		func() proto.Message {
			return &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox}
		},
		func() (string, error) { return i.ImageManagerService.PullImage(ctx, image, auth, sandbox) },
		func(v string) proto.Message { return &runtimeapi.PullImageResponse{ImageRef: v} })
}

// RemoveImage implements the CRI.
func (i images) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	return tappedOnly(i.tap, "RemoveImage", &runtimeapi.RemoveImageResponse{},
		func() proto.Message { return &runtimeapi.RemoveImageRequest{Image: image} },
		func() error { return i.ImageManagerService.RemoveImage(ctx, image) })
}

// ImageFsInfo implements the CRI.
func (i images) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return tapped(i.tap, "ImageFsInfo",
		func() proto.Message { return &runtimeapi.ImageFsInfoRequest{} },
		func() (*runtimeapi.ImageFsInfoResponse, error) { return i.ImageManagerService.ImageFsInfo(ctx) },
		func(v *runtimeapi.ImageFsInfoResponse) proto.Message { return v })
}
