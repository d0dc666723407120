package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Volumes prepares the volumes of pods; *volumes.Manager implements it.
type Volumes interface {
	// Supports fails with a *volumes.UnsupportedError if the pod's containers mount a volume of an unsupported kind.
	Supports(pod *v1.Pod) error
	// Want registers a pod that is to run. Wait returns when its volumes are ready, and fails with a
	// *volumes.NotReadyError.
	Want(ctx context.Context, pod *v1.Pod)
	Wait(ctx context.Context, pod *v1.Pod) error
	// Path returns the path of a pod's volume on the node; empty for an image.
	Path(pod *v1.Pod, v *v1.Volume) string
	// SubPath mounts a path below a volume for the volumeMount of a container at index, and returns where on the node. It
	// fails with a *subpath.MakeError if a folder is missing and cannot be created.
	SubPath(ctx context.Context, pod *v1.Pod, v *v1.Volume, c *v1.Container, index int, path string) (string, error)
	// Groups returns the supplemental groups that containers get because of the pod's volumes, which are ready.
	Groups(pod *v1.Pod) []int64
	// KeepsLabel reports whether the runtime must not give a volume the pod's SELinux label.
	KeepsLabel(pod *v1.Pod, v *v1.Volume) bool
	// Release removes the volumes of a pod of which nothing runs any more.
	Release(ctx context.Context, uid types.UID) error
}

// waitForVolumes returns when the volumes that the containers mount are ready. Nothing of the pod is started before.
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

// supportedVolumes returns an error if this version does not support the kind of a volume that a container of the pod
// mounts.
func (m *Manager) supportedVolumes(pod *v1.Pod) error {
	err := m.cfg.Volumes.Supports(pod)
	if unsupported := (*volumes.UnsupportedError)(nil); errors.As(err, &unsupported) {
		return &UnsupportedError{Field: fmt.Sprintf("volume %q of kind %s", unsupported.Volume, unsupported.Kind), Message: unsupported.Message}
	}
	return err
}

// supportedMounts returns an error if a container mounts volumes in a way that this version does not support.
func supportedMounts(pod *v1.Pod, c *v1.Container) error {
	for i, device := range c.VolumeDevices {
		if volumeOf(pod, device.Name) == nil {
			return fmt.Errorf("container %q: volumeDevices[%d]: the pod has no volume %q", c.Name, i, device.Name)
		}
	}
	for i, mount := range c.VolumeMounts {
		if volumeOf(pod, mount.Name) == nil {
			return fmt.Errorf("container %q: volumeMounts[%d]: the pod has no volume %q", c.Name, i, mount.Name)
		}
	}
	return nil
}

// volumeDevices returns the block devices of a container, which are set up. As in the kubelet, a claim that is
// read-only gives a device that can only be read.
func (m *Manager) volumeDevices(pod *v1.Pod, c *v1.Container) ([]*runtimeapi.Device, error) {
	var devices []*runtimeapi.Device
	for _, device := range c.VolumeDevices {
		if !filepath.IsAbs(device.DevicePath) {
			return nil, fmt.Errorf("error DevicePath `%s` must be an absolute path", device.DevicePath)
		}
		volume, path := volumeOf(pod, device.Name), ""
		if volume != nil {
			path = m.cfg.Volumes.Path(pod, volume)
		}
		if path == "" {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", device.Name, c.Name)
		}
		permissions := "mrw"
		if claim := volume.PersistentVolumeClaim; claim != nil && claim.ReadOnly {
			permissions = "r"
		}
		devices = append(devices, &runtimeapi.Device{
			ContainerPath: device.DevicePath, HostPath: path, Permissions: permissions,
		})
	}
	return devices, nil
}

func volumeOf(pod *v1.Pod, name string) *v1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// isReadOnly reports whether containers mount a volume read-only whatever they request. Quartet replaces the files of
// such a volume when their source changes.
func isReadOnly(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// maxEnvFile is the largest size in bytes of a file of environment variables, because containers write it.
const maxEnvFile = 1 << 20

// envFile reads a file that a container of the pod has written into an emptyDir. It follows links only within the
// volume.
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
	// Only regular files are opened, because opening a device may have side effects.
	if info, err := root.Stat(path); err != nil {
		return "", err
	} else if !info.Mode().IsRegular() {
		return "", notEnvFile(path)
	}
	// A container may replace the file by a pipe in between: the flags avoid blocking, and the second check rejects it.
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
