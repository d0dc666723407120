package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Volumes has the volumes of pods in place; *volumes.Manager does it.
type Volumes interface {
	// Supports says whether there can be every volume that the pod's containers mount. It fails with a *volumes.UnsupportedError.
	Supports(pod *v1.Pod) error
	// Want says that a pod is to run, and Wait returns when its volumes are in place. It fails with a *volumes.NotReadyError.
	Want(ctx context.Context, pod *v1.Pod)
	Wait(ctx context.Context, pod *v1.Pod) error
	// Path is where a volume of a pod is on the node; empty for an image.
	Path(pod *v1.Pod, v *v1.Volume) string
	// SubPath has what is below a path of a volume mounted for a container, the one at a place among its volumeMounts, and says where.
	// It fails with a *subpath.MakeError when a folder is missing and cannot be made.
	SubPath(ctx context.Context, pod *v1.Pod, v *v1.Volume, c *v1.Container, index int, path string) (string, error)
	// Release removes the volumes of a pod that nothing runs of any more.
	Release(ctx context.Context, uid types.UID) error
}

// waitForVolumes returns when what the containers mount is in place. Nothing of the pod is started before.
func (s *podSync) waitForVolumes(ctx context.Context) (err error) {
	if len(s.pod.Spec.Volumes) == 0 {
		return nil
	}
	ctx, span := s.m.phase(ctx, "volumes", s.pod, telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	defer s.timePhase(phases.Volumes, "")(&err)
	err = s.m.cfg.Volumes.Wait(ctx, s.pod)
	if notReady := (*volumes.NotReadyError)(nil); errors.As(err, &notReady) {
		s.retryAfter(notReady.RetryAfter)
	}
	return err
}

// supportedVolumes says whether this version has the kinds of volumes that a pod's containers mount.
func (m *Manager) supportedVolumes(pod *v1.Pod) error {
	err := m.cfg.Volumes.Supports(pod)
	if unsupported := (*volumes.UnsupportedError)(nil); errors.As(err, &unsupported) {
		return &UnsupportedError{Field: fmt.Sprintf("volume %q of kind %s", unsupported.Volume, unsupported.Kind), Message: unsupported.Message}
	}
	return err
}

// supportedMounts says whether a container mounts volumes in ways that this version has.
func supportedMounts(pod *v1.Pod, c *v1.Container) error {
	if len(c.VolumeDevices) > 0 {
		return &UnsupportedError{Field: fmt.Sprintf("container %q: volumeDevices", c.Name), Message: "block devices are not supported by this version of Quartet"}
	}
	for i, mount := range c.VolumeMounts {
		if volumeOf(pod, mount.Name) == nil {
			return fmt.Errorf("container %q: volumeMounts[%d]: the pod has no volume %q", c.Name, i, mount.Name)
		}
	}
	return nil
}

func volumeOf(pod *v1.Pod, name string) *v1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// onlyRead tells whether containers may only read a volume, whatever they ask for: one whose files are replaced as what they are made
// of changes.
func onlyRead(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// maxEnvFile is how much of a file of environment variables is read, in bytes: containers write it.
const maxEnvFile = 1 << 20

// envFile reads a file that a container of the pod has written into an emptyDir. What a link in it leads to is read only
// within the volume.
func (m *Manager) envFile(pod *v1.Pod, name, path string) (text string, err error) {
	volume := volumeOf(pod, name)
	if volume == nil || volume.EmptyDir == nil {
		return "", fmt.Errorf("volumeName: the pod has no emptyDir %q", name)
	}
	root, err := os.OpenRoot(m.cfg.Volumes.Path(pod, volume))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	// What is no file is not opened, as far as that can be known: to open a device may do something.
	if info, err := root.Stat(path); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() {
		return "", notEnvFile(path)
	}
	// A container may replace it by a pipe meanwhile: that neither blocks nor is read.
	file, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", notEnvFile(path)
	}
	content, err := io.ReadAll(io.LimitReader(file, maxEnvFile+1))
	if err != nil {
		return "", err
	}
	if len(content) > maxEnvFile {
		return "", notEnvFile(path)
	}
	return string(content), nil
}

func notEnvFile(path string) error {
	return fmt.Errorf("%s: must be a file of at most %d bytes", path, maxEnvFile)
}

func propagation(mode *v1.MountPropagationMode) runtimeapi.MountPropagation {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *mode {
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	case v1.MountPropagationNone:
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}
