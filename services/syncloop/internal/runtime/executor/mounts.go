package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
)

// mountInputs holds the inputs for the mounts of a container, besides its pod.
type mountInputs struct {
	// images holds the images that are volumes, by the names of the volumes.
	images map[string]*runtimeapi.ImageSpec
	// subPaths are the expanded subPaths of the volumeMounts, in their order.
	subPaths []string
	// recursiveReadOnly is true if the runtime supports recursive read-only mounts.
	recursiveReadOnly bool
}

// mounts prepares and returns all mounts of a container. The environment from in expands subPathExpr.
func (s *podSync) mounts(
	ctx context.Context,
	c *v1.Container,
	in containerspec.Inputs,
	images map[string]*runtimeapi.ImageSpec,
) ([]*runtimeapi.Mount, error) {
	subPaths, err := containerspec.SubPaths(s.pod, c, *s.m.nodeNow(), in)
	if err != nil {
		return nil, err
	}
	inputs := mountInputs{images: images, subPaths: subPaths}
	if slices.ContainsFunc(c.VolumeMounts, requestsRecursiveReadOnly) {
		if inputs.recursiveReadOnly, err = s.hasRecursiveReadOnly(ctx); err != nil {
			return nil, err
		}
	}
	return s.m.mounts(ctx, s.pod, c, in.Restart.Count, in.PodIPs, inputs)
}

// volumeMounts returns the mounts of a container's volumes, which are prepared, and of its image volumes.
func (m *Manager) volumeMounts(
	ctx context.Context,
	pod *v1.Pod,
	c *v1.Container,
	in mountInputs,
) ([]*runtimeapi.Mount, error) {
	var mounts []*runtimeapi.Mount
	for i, mount := range c.VolumeMounts {
		volume, path := volumeOf(pod, mount.Name), in.subPaths[i]
		if volume == nil {
			return nil, fmt.Errorf("container %q: volumeMounts: the pod has no volume %q", c.Name, mount.Name)
		}
		if err := subpath.Check(path); err != nil {
			return nil, err
		}
		recursive, err := recursiveReadOnly(mount, in.recursiveReadOnly)
		if err != nil {
			return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
		}
		made := &runtimeapi.Mount{
			ContainerPath: mount.MountPath, Propagation: propagation(mount.MountPropagation),
			Readonly: mount.ReadOnly || isReadOnly(volume), RecursiveReadOnly: recursive,
		}
		if image := in.images[volume.Name]; image != nil {
			made.Image, made.ImageSubPath, made.Readonly = image, path, true
		} else {
			if made.HostPath, err = m.hostPath(ctx, pod, c, i, volume, path); err != nil {
				return nil, err
			}
			made.SelinuxRelabel = !m.cfg.Volumes.KeepsLabel(pod, volume)
		}
		mounts = append(mounts, made)
	}
	return mounts, nil
}

// hostPath returns the node's path of the volumeMount at index: the volume, or a path below it.
func (m *Manager) hostPath(
	ctx context.Context,
	pod *v1.Pod,
	c *v1.Container,
	index int,
	volume *v1.Volume,
	path string,
) (string, error) {
	if path == "" {
		return m.cfg.Volumes.Path(pod, volume), nil
	}
	at, err := m.cfg.Volumes.SubPath(ctx, pod, volume, c, index, path)
	if err == nil || ctx.Err() != nil {
		return at, err
	}
	// The cause may name files of the node, which the pod's users must not see. It is logged, and the pod gets the
	// kubelet's message.
	m.cfg.Logger.WarnContext(ctx, "a subPath of a volume cannot be mounted", telemetry.KeyPod, podName(pod), telemetry.KeyContainer, c.Name,
		telemetry.KeyVolume, volume.Name, telemetry.KeyError, err)
	if missing := (*subpath.MakeError)(nil); errors.As(err, &missing) {
		return "", fmt.Errorf("failed to create subPath directory for volumeMount %q of container %q", volume.Name, c.Name)
	}
	return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", volume.Name, c.Name)
}

func requestsRecursiveReadOnly(m v1.VolumeMount) bool {
	return m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != v1.RecursiveReadOnlyDisabled
}

// hasRecursiveReadOnly reports whether the pod's runtime handler supports recursive read-only mounts.
func (s *podSync) hasRecursiveReadOnly(ctx context.Context) (bool, error) {
	response, err := s.rt.status(ctx)
	if err != nil {
		return false, fmt.Errorf("handlers of the runtime: %w", err)
	}
	class := ptr.Deref(s.pod.Spec.RuntimeClassName, "")
	features, err := featuresOf(response.GetRuntimeHandlers(), s.sandbox.handler, class)
	return features.GetRecursiveReadOnlyMounts(), err
}

// recursiveReadOnly reports whether a volumeMount is recursively read-only. Its errors are the kubelet's.
func recursiveReadOnly(m v1.VolumeMount, supported bool) (bool, error) {
	switch {
	case !requestsRecursiveReadOnly(m):
		return false, nil
	case !m.ReadOnly:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", m.Name)
	case m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", m.Name, *m.MountPropagation)
	case *m.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled && !supported:
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", m.Name)
	}
	return supported, nil
}

// noteRecursiveReadOnly records in a container's annotations which of its volumeMounts are recursively read-only,
// because the runtime does not report it. The mounts of its volumeMounts begin at an index.
func noteRecursiveReadOnly(config *runtimeapi.ContainerConfig, c *v1.Container, first int) {
	var places []string
	for i := range c.VolumeMounts {
		if config.Mounts[first+i].RecursiveReadOnly {
			places = append(places, strconv.Itoa(i))
		}
	}
	if len(places) > 0 {
		config.Annotations[podlabels.RecursiveReadOnly] = strings.Join(places, ",")
	}
}

// withAdvice adds advice to the runtime's error for mount propagation of a path on a private mount. Other errors stay
// as they are.
func withAdvice(err error) error {
	st, ok := status.FromError(err)
	if !ok || !strings.Contains(st.Message(), "but it is not a shared") {
		return err
	}
	_, rest, _ := strings.Cut(st.Message(), ` is mounted on "`)
	mountPoint, _, _ := strings.Cut(rest, `"`)
	if strings.Contains(mountPoint, "/"+subpath.Dir+"/") {
		mountPoint = "MOUNT-OF-THE-VOLUME" // a subPath's mount has the propagation of the volume's mount
	}
	advice := fmt.Sprintf("; run \"mount --make-rshared %s\" on the node at each of its starts, or leave mountPropagation out", mountPoint)
	return status.Error(st.Code(), st.Message()+advice)
}
