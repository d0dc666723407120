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

// imageVolumes has the images that are volumes of a pod. Each is had once in a sync, however many containers mount it.
type imageVolumes struct {
	mu  sync.Mutex
	had map[string]func() (images.Image, error)
}

// imageVolumesOf has the images that a container mounts in the runtime, by the names of the volumes. What it fails of is why the
// container waits, as of an image of its own.
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

// imageVolume has the image of a volume in the runtime. Containers that are prepared side by side share the one try.
func (s *podSync) imageVolume(ctx context.Context, volume *v1.Volume) (images.Image, error) {
	s.imageVolumes.mu.Lock()
	if s.imageVolumes.had == nil {
		s.imageVolumes.had = map[string]func() (images.Image, error){}
	}
	have := s.imageVolumes.had[volume.Name]
	if have == nil {
		have = sync.OnceValues(func() (image images.Image, err error) {
			ctx, span := s.m.phase(ctx, "image", s.pod, telemetry.Subject{Image: volume.Image.Reference})
			defer func() { telemetry.End(span, err) }()
			return s.m.images.Ensure(ctx, images.Request{
				Pod: s.pod, Image: volume.Image.Reference, Policy: volume.Image.PullPolicy, Secrets: s.pullSecrets.found, Sandbox: s.sandbox.config,
			})
		})
		s.imageVolumes.had[volume.Name] = have
	}
	s.imageVolumes.mu.Unlock()
	return have()
}

// noteImageVolumes puts the images that a container mounts on it, so that they are not collected while it is there.
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

// countImageVolumes counts the image volumes of a container that was to be created, and whether the runtime has mounted them.
func (s *podSync) countImageVolumes(specs map[string]*runtimeapi.ImageSpec, err error) {
	if len(specs) > 0 {
		s.m.cfg.Metrics.imagesMounted(len(specs), err == nil || !strings.HasPrefix(said(err), crierrors.ErrImageVolumeMountFailed.Error()))
	}
}
