package persistentvolumes

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestAVolumeIsUsedAsWhatItIs(t *testing.T) {
	mounts := v1.Container{VolumeMounts: []v1.VolumeMount{{Name: "data"}}}
	maps := v1.Container{VolumeDevices: []v1.VolumeDevice{{Name: "data"}}}
	for name, c := range map[string]struct {
		spec v1.PodSpec
		mode *v1.PersistentVolumeMode
		text string
	}{
		"a file system": {v1.PodSpec{Containers: []v1.Container{mounts}}, nil, ""},
		"a device":      {v1.PodSpec{Containers: []v1.Container{maps}}, ptr.To(v1.PersistentVolumeBlock), ""},
		"a device that is mounted": {v1.PodSpec{InitContainers: []v1.Container{mounts}}, ptr.To(v1.PersistentVolumeBlock),
			"volume data has volumeMode Block, but is specified in volumeMounts"},
		"a file system as a device": {v1.PodSpec{Containers: []v1.Container{maps}}, nil,
			"volume data has volumeMode Filesystem, but is specified in volumeDevices"},
		"in an ephemeral container": {v1.PodSpec{EphemeralContainers: []v1.EphemeralContainer{{
			EphemeralContainerCommon: v1.EphemeralContainerCommon{VolumeMounts: mounts.VolumeMounts},
		}}}, ptr.To(v1.PersistentVolumeBlock), "volume data has volumeMode Block, but is specified in volumeMounts"},
	} {
		err := checkMode(&v1.Pod{Spec: c.spec}, "data", ptr.Deref(c.mode, v1.PersistentVolumeFilesystem))
		if (err == nil) != (c.text == "") || err != nil && err.Error() != c.text {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
