package fakecri

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AddImage adds an image to the runtime. Its id is derived from its name.
func (s *Server) AddImage(name string, sizeBytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[name] = &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: sizeBytes, Spec: &runtimeapi.ImageSpec{Image: name}}
}

// Pin marks an image as pinned by the runtime, as that of sandboxes.
func (s *Server) Pin(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[name].Pinned = true
}

// Images returns the names of the images, sorted.
func (s *Server) Images() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.images))
}

// Protect makes pulls of an image fail without the right user and password. The error repeats the credentials, as that
// of a careless registry does.
func (s *Server) Protect(name, user, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protected[name] = &runtimeapi.AuthConfig{Username: user, Password: password}
}

// denied returns the error of a refused pull. Called with mu held.
func (s *Server) denied(name string, auth *runtimeapi.AuthConfig) error {
	want := s.protected[name]
	if want == nil || (auth.GetUsername() == want.GetUsername() && auth.GetPassword() == want.GetPassword()) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "failed to pull image %q: pull access denied for user %q with password %q", name, auth.GetUsername(), auth.GetPassword())
}

// findImage finds an image by name or id. Called with mu held.
func (s *Server) findImage(name string) (*runtimeapi.Image, error) {
	for _, image := range s.images {
		if image.GetId() == name || slices.Contains(image.GetRepoTags(), name) {
			return image, nil
		}
	}
	return nil, notFound("image", name)
}

// ListImages implements the CRI.
func (s *Server) ListImages(
	_ context.Context, r *runtimeapi.ListImagesRequest,
) (*runtimeapi.ListImagesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &runtimeapi.ListImagesResponse{}
	for _, name := range slices.Sorted(maps.Keys(s.images)) {
		if want := r.GetFilter().GetImage().GetImage(); want == "" || want == name {
			resp.Images = append(resp.Images, s.images[name])
		}
	}
	return resp, nil
}

// ImageStatus implements the CRI: a missing image has an answer without an image.
func (s *Server) ImageStatus(
	_ context.Context, r *runtimeapi.ImageStatusRequest,
) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	image, err := s.findImage(r.GetImage().GetImage())
	if err != nil {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: image}, nil
}

// PullImage implements the CRI: every pull succeeds, unless Fail or Protect applies.
func (s *Server) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := r.GetImage().GetImage()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "the request has no image")
	}
	s.mu.Lock()
	err := s.denied(name, r.GetAuth())
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	const pulledBytes = 1 << 20
	s.AddImage(name, pulledBytes)
	return &runtimeapi.PullImageResponse{ImageRef: "sha256:" + name}, nil
}

// RemoveImage implements the CRI.
func (s *Server) RemoveImage(
	_ context.Context, r *runtimeapi.RemoveImageRequest,
) (*runtimeapi.RemoveImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.images, func(_ string, image *runtimeapi.Image) bool {
		return image.GetId() == r.GetImage().GetImage() || slices.Contains(image.GetRepoTags(), r.GetImage().GetImage())
	})
	return &runtimeapi.RemoveImageResponse{}, nil
}

// ImageFsInfo implements the CRI.
func (s *Server) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var used uint64
	for _, image := range s.images {
		used += image.GetSize()
	}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		Timestamp: s.clock.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"},
		UsedBytes: &runtimeapi.UInt64Value{Value: used},
	}}}, nil
}
