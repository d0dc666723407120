package podruntime

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// supported says whether this version can run a pod at all. It fails with an *UnsupportedError.
func supported(pod *v1.Pod) error {
	switch {
	case pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName != "":
		return &UnsupportedError{Field: "spec.runtimeClassName", Message: "runtime classes are not supported by this version of Quartet; leave the field out"}
	case pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers:
		return &UnsupportedError{Field: "spec.hostUsers", Message: "user namespaces are not supported by this version of Quartet; leave the field out"}
	case len(pod.Spec.ResourceClaims) > 0:
		return &UnsupportedError{Field: "spec.resourceClaims", Message: "resource claims are not supported by this version of Quartet; leave them out"}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := supportedMounts(pod, &list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// supportedMounts says whether the volumes that a container mounts are of kinds that this version has.
func supportedMounts(pod *v1.Pod, c *v1.Container) error {
	if len(c.VolumeDevices) > 0 {
		return &UnsupportedError{Field: fmt.Sprintf("container %q: volumeDevices", c.Name), Message: "block devices are not supported by this version of Quartet"}
	}
	for _, mount := range c.VolumeMounts {
		volume := volumeOf(pod, mount.Name)
		if volume == nil {
			return fmt.Errorf("container %q: volumeMounts: the pod has no volume %q", c.Name, mount.Name)
		}
		return &UnsupportedError{
			Field:   fmt.Sprintf("volume %q of kind %s", mount.Name, volumeKind(volume)),
			Message: fmt.Sprintf("is not supported by this version of Quartet; container %q mounts it", c.Name),
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
	case v.EmptyDir != nil:
		return "emptyDir"
	case v.HostPath != nil:
		return "hostPath"
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
