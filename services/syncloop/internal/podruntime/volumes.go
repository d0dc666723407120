package podruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// supportedMounts says whether what a container mounts is of the kinds that this version has: emptyDir on disk and
// hostPath.
func supportedMounts(pod *v1.Pod, c *v1.Container) error {
	if len(c.VolumeDevices) > 0 {
		return &UnsupportedError{Field: fmt.Sprintf("container %q: volumeDevices", c.Name), Message: "block devices are not supported by this version of Quartet"}
	}
	for i, mount := range c.VolumeMounts {
		field := fmt.Sprintf("container %q: volumeMounts[%d]", c.Name, i)
		volume := volumeOf(pod, mount.Name)
		switch {
		case volume == nil:
			return fmt.Errorf("%s: the pod has no volume %q", field, mount.Name)
		case mount.SubPath != "" || mount.SubPathExpr != "":
			return &UnsupportedError{Field: field, Message: "subPath is not supported by this version of Quartet; mount the whole volume"}
		case mount.RecursiveReadOnly != nil && *mount.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled:
			return &UnsupportedError{Field: field, Message: "recursiveReadOnly Enabled is not supported by this version of Quartet; say IfPossible"}
		case volume.EmptyDir != nil && volume.EmptyDir.Medium != v1.StorageMediumDefault:
			return &UnsupportedError{
				Field:   fmt.Sprintf("volume %q of kind emptyDir", volume.Name),
				Message: fmt.Sprintf("the medium %q is not supported by this version of Quartet; leave it out", volume.EmptyDir.Medium),
			}
		case volume.EmptyDir == nil && volume.HostPath == nil:
			return &UnsupportedError{
				Field:   fmt.Sprintf("volume %q of kind %s", volume.Name, volumeKind(volume)),
				Message: fmt.Sprintf("is not supported by this version of Quartet; container %q mounts it", c.Name),
			}
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

// volumeKind is the name of a volume's kind in the manifest.
func volumeKind(v *v1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "configMap"
	case v.Secret != nil:
		return "secret"
	case v.Projected != nil:
		return "projected"
	case v.DownwardAPI != nil:
		return "downwardAPI"
	case v.PersistentVolumeClaim != nil:
		return "persistentVolumeClaim"
	case v.CSI != nil:
		return "csi"
	case v.NFS != nil:
		return "nfs"
	case v.Image != nil:
		return "image"
	case v.Ephemeral != nil:
		return "ephemeral"
	}
	return "another"
}

// volumeMounts has the volumes of a container in place, and says where they are mounted.
func (m *Manager) volumeMounts(pod *v1.Pod, c *v1.Container) ([]*runtimeapi.Mount, error) {
	var mounts []*runtimeapi.Mount
	for _, mount := range c.VolumeMounts {
		volume := volumeOf(pod, mount.Name)
		if volume == nil {
			return nil, fmt.Errorf("container %q: volumeMounts: the pod has no volume %q", c.Name, mount.Name)
		}
		var path string
		var err error
		if volume.HostPath != nil {
			path, err = volume.HostPath.Path, checkHostPath(volume.HostPath)
		} else {
			path = m.emptyDirPath(pod, volume.Name)
			err = makeEmptyDir(path, pod.Spec.SecurityContext)
		}
		if err != nil {
			return nil, fmt.Errorf("volume %q: %w", volume.Name, err)
		}
		mounts = append(mounts, &runtimeapi.Mount{
			ContainerPath: mount.MountPath, HostPath: path, Readonly: mount.ReadOnly, Propagation: propagation(mount.MountPropagation),
			SelinuxRelabel: volume.EmptyDir != nil,
		})
	}
	return mounts, nil
}

// emptyDirPath is the folder of an emptyDir, where a kubelet has it.
func (m *Manager) emptyDirPath(pod *v1.Pod, volume string) string {
	return filepath.Join(m.podDir(string(pod.UID)), "volumes", "kubernetes.io~empty-dir", volume)
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
	root, err := os.OpenRoot(m.emptyDirPath(pod, name))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	// Not before it is known to be a file: to open a pipe would wait for whoever writes it.
	info, err := root.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxEnvFile {
		return "", fmt.Errorf("%s: must be a file of at most %d bytes", path, maxEnvFile)
	}
	content, err := root.ReadFile(path)
	return string(content), err
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

// makeEmptyDir makes the folder of an emptyDir, open to every user of the pod's containers. It is the pod's, and goes with
// it; what is in it already stays, since containers of the pod may run.
func makeEmptyDir(path string, sc *v1.PodSecurityContext) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	// Two containers may come at once; the mode is set below.
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mode := fs.FileMode(0o777)
	if sc != nil && sc.FSGroup != nil {
		mode |= fs.ModeSetgid
		if err := os.Chown(path, -1, int(*sc.FSGroup)); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode) // past the umask
}

// checkHostPath checks that a path of the host is what its type says, or makes it so.
func checkHostPath(source *v1.HostPathVolumeSource) error {
	if source.Type == nil || *source.Type == v1.HostPathUnset {
		return nil
	}
	info, err := os.Stat(source.Path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && *source.Type == v1.HostPathDirectoryOrCreate:
		return os.MkdirAll(source.Path, 0o755) //nolint:gosec // DirectoryOrCreate promises this mode
	case missing && *source.Type == v1.HostPathFileOrCreate:
		return writeNew(source.Path)
	case err != nil:
		return fmt.Errorf("hostPath: %w", err)
	}
	mode := info.Mode()
	device := mode&fs.ModeDevice != 0
	is := map[v1.HostPathType]bool{
		v1.HostPathDirectory: mode.IsDir(), v1.HostPathDirectoryOrCreate: mode.IsDir(),
		v1.HostPathFile: mode.IsRegular(), v1.HostPathFileOrCreate: mode.IsRegular(), v1.HostPathSocket: mode&fs.ModeSocket != 0,
		v1.HostPathCharDev: device && mode&fs.ModeCharDevice != 0, v1.HostPathBlockDev: device && mode&fs.ModeCharDevice == 0,
	}
	if !is[*source.Type] {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", source.Path, *source.Type)
	}
	return nil
}

// writeNew makes an empty file in a folder that is there.
func writeNew(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // FileOrCreate promises this mode
	if err != nil {
		return fmt.Errorf("hostPath: %w", err)
	}
	return file.Close()
}
