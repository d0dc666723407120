package engineapi

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// ListWorkers implements EngineService.
func (s *Server) ListWorkers(context.Context, *enginev1.ListWorkersRequest) (*enginev1.ListWorkersResponse, error) {
	workers := s.cfg.Workers.List()
	for _, w := range workers {
		if s.cfg.Probes != nil {
			w.Probes = s.cfg.Probes(types.UID(w.GetPodUid()))
		}
		if s.cfg.Volumes != nil {
			w.Volumes = s.cfg.Volumes(types.UID(w.GetPodUid()))
		}
	}
	return &enginev1.ListWorkersResponse{Workers: workers}, nil
}

// ListClaims implements EngineService.
func (s *Server) ListClaims(context.Context, *enginev1.ListClaimsRequest) (*enginev1.ListClaimsResponse, error) {
	answer := &enginev1.ListClaimsResponse{}
	if s.cfg.Claims == nil {
		return answer, nil
	}
	answer.Claims = s.cfg.Claims()
	if s.cfg.Released != nil {
		answer.Released = s.cfg.Released()
	}
	return answer, nil
}

// DeleteReleasedVolume implements EngineService.
func (s *Server) DeleteReleasedVolume(
	ctx context.Context, req *enginev1.DeleteReleasedVolumeRequest,
) (*enginev1.DeleteReleasedVolumeResponse, error) {
	if s.cfg.Forget == nil {
		return nil, status.Error(codes.NotFound, "the persistent volumes of this node are those of its API server")
	}
	driver, handle, err := s.cfg.Forget(ctx, req.GetName())
	switch {
	case errors.Is(err, ErrNoVolume):
		return nil, status.Error(codes.NotFound, err.Error())
	case err != nil:
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &enginev1.DeleteReleasedVolumeResponse{Driver: driver, Handle: handle}, nil
}

// ListVolumes implements EngineService.
func (s *Server) ListVolumes(context.Context, *enginev1.ListVolumesRequest) (*enginev1.ListVolumesResponse, error) {
	answer := &enginev1.ListVolumesResponse{}
	if s.cfg.AllVolumes != nil {
		answer.Volumes = s.cfg.AllVolumes()
	}
	for _, one := range answer.GetVolumes() {
		if one.GetPod() != "" {
			continue
		}
		if pod := s.cfg.Store.Pod(types.UID(one.GetPodUid())); pod != nil {
			one.Namespace, one.Pod = pod.Namespace, pod.Name
		}
	}
	if s.cfg.Unused != nil {
		for _, volume := range s.cfg.Unused() {
			answer.Volumes = append(answer.Volumes, &enginev1.PodVolume{Volume: volume})
		}
	}
	slices.SortStableFunc(answer.GetVolumes(), func(a, b *enginev1.PodVolume) int {
		return cmp.Or(hasPod(b)-hasPod(a),
			cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetPod(), b.GetPod()),
			cmp.Compare(a.GetPodUid(), b.GetPodUid()), cmp.Compare(a.GetVolume().GetName(), b.GetVolume().GetName()))
	})
	return answer, nil
}

// hasPod returns 1 for a volume of a pod, and otherwise 0.
func hasPod(v *enginev1.PodVolume) int { return min(len(v.GetPodUid()), 1) }

// ListImages implements EngineService.
func (s *Server) ListImages(ctx context.Context, _ *enginev1.ListImagesRequest) (*enginev1.ListImagesResponse, error) {
	images, err := s.cfg.Images()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	list, err := images.ListImages(ctx, nil)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "list the runtime's images: %v", err)
	}
	answer := &enginev1.ListImagesResponse{Images: make([]*enginev1.Image, 0, len(list))}
	for _, image := range list {
		answer.Images = append(answer.Images, describe(image))
	}
	slices.SortFunc(answer.Images, func(a, b *enginev1.Image) int {
		return cmp.Or(cmp.Compare(b.GetSizeBytes(), a.GetSizeBytes()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return answer, nil
}

func describe(image *runtimeapi.Image) *enginev1.Image {
	return &enginev1.Image{
		Id: image.GetId(), Names: slices.Concat(image.GetRepoTags(), image.GetRepoDigests()),
		SizeBytes: image.GetSize(), Pinned: image.GetPinned(),
	}
}

// ListPodResources implements EngineService.
func (s *Server) ListPodResources(
	context.Context, *enginev1.ListPodResourcesRequest,
) (*enginev1.ListPodResourcesResponse, error) {
	if s.cfg.Resources == nil {
		return &enginev1.ListPodResourcesResponse{}, nil
	}
	listed, err := s.cfg.Resources()
	if err != nil {
		return nil, toStatus(err)
	}
	data, err := proto.Marshal(listed)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encode the resources of pods: %v", err)
	}
	return &enginev1.ListPodResourcesResponse{Resources: data}, nil
}
