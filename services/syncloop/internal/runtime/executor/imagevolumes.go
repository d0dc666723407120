package executor

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
)

// imageVolumes holds the images that are volumes of a pod. Each image is pulled once in a sync, even if several
// containers mount it.
type imageVolumes struct {
	mu    sync.Mutex
	pulls map[string]func() (images.Image, error)
}

// imageVolumesOf pulls the images that a container mounts and returns them by the names of the volumes. An error is the
// reason why the container waits, like an error of its own image.
func (s *podSync) imageVolumesOf(ctx context.Context, c *v1.Container) (map[string]*runtimeapi.ImageSpec, error) {
	var specs map[string]*runtimeapi.ImageSpec
	for _, mount := range c.VolumeMounts {
		volume := volumeOf(s.pod, mount.Name)
		if volume == nil || volume.Image == nil || specs[volume.Name] != nil {
			continue
		}
		image, err := s.imageVolume(ctx, volume)
		if err != nil {
			return nil, err
		}
		if specs == nil {
			specs = map[string]*runtimeapi.ImageSpec{}
		}
		specs[volume.Name] = &runtimeapi.ImageSpec{Image: image.Ref, UserSpecifiedImage: volume.Image.Reference}
	}
	return specs, nil
}

// imageVolume pulls the image of a volume. Containers that are prepared concurrently share one pull.
func (s *podSync) imageVolume(ctx context.Context, volume *v1.Volume) (images.Image, error) {
	s.imageVolumes.mu.Lock()
	if s.imageVolumes.pulls == nil {
		s.imageVolumes.pulls = map[string]func() (images.Image, error){}
	}
	pull := s.imageVolumes.pulls[volume.Name]
	if pull == nil {
		pull = sync.OnceValues(func() (image images.Image, err error) {
			ctx, span := s.m.phase(ctx, "image", s.pod, telemetry.Subject{Image: volume.Image.Reference})
			defer func() { telemetry.End(span, err) }()
			return s.m.images.Ensure(ctx, images.Request{
				Pod: s.pod, Image: volume.Image.Reference, Policy: volume.Image.PullPolicy,
				Secrets: s.pullSecrets.found, Sandbox: s.sandbox.config,
			})
		})
		s.imageVolumes.pulls[volume.Name] = pull
	}
	s.imageVolumes.mu.Unlock()
	return pull()
}

// noteImageVolumes records in a container's annotations the images that it mounts, so that image garbage collection
// keeps them.
func noteImageVolumes(config *runtimeapi.ContainerConfig, specs map[string]*runtimeapi.ImageSpec) {
	if len(specs) == 0 {
		return
	}
	refs := map[string]bool{}
	for _, spec := range specs {
		refs[spec.GetImage()] = true
	}
	config.Annotations[podlabels.ImageVolumes] = strings.Join(slices.Sorted(maps.Keys(refs)), ",")
}

// countImageVolumes counts the image volumes of a container after its creation, by whether the runtime mounted them.
func (s *podSync) countImageVolumes(specs map[string]*runtimeapi.ImageSpec, err error) {
	if len(specs) > 0 {
		failed := err != nil && strings.HasPrefix(callError(err), crierrors.ErrImageVolumeMountFailed.Error())
		s.m.cfg.Metrics.imagesMounted(len(specs), !failed)
	}
}
