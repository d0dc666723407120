package volumes

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
)

// UnsupportedError is the error of a volume without a plugin.
type UnsupportedError struct {
	// Volume is its name, and Kind the field of its source in the manifest, for example "persistentVolumeClaim".
	Volume, Kind string
	// Message is the reason and the remedy.
	Message string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("volume %q of kind %s: %s", e.Volume, e.Kind, e.Message)
}

// Supports checks that there is a plugin for every volume that a container of the pod mounts. It fails with an
// *UnsupportedError.
func (m *Manager) Supports(pod *v1.Pod) error {
	for _, v := range mounted(pod) {
		if m.pluginOf(v) != nil {
			continue
		}
		err := &UnsupportedError{Volume: v.Name, Kind: Kind(v), Message: "it is not supported yet by this version of Quartet"}
		if message := removedKind(v); message != "" {
			err.Message = message
		}
		if v.EmptyDir != nil {
			err.Message = fmt.Sprintf("there is no medium %q: leave it out, or say Memory, HugePages or HugePages-SIZE", v.EmptyDir.Medium)
		}
		return err
	}
	return nil
}

// removedKind returns why no node of this version of Kubernetes mounts a volume, with the remedy; empty if a kubelet
// does.
func removedKind(v *v1.Volume) string {
	switch {
	case v.GitRepo != nil:
		return "Kubernetes has disabled it: use an emptyDir and an init container that runs git clone"
	case v.Glusterfs != nil, v.RBD != nil, v.CephFS != nil, v.Flocker != nil, v.Quobyte != nil, v.StorageOS != nil,
		v.ScaleIO != nil, v.PhotonPersistentDisk != nil:
		return "Kubernetes has removed it: use a claim with a CSI driver of that storage"
	}
	return ""
}

// Path returns the path of a pod's volume on the node; empty for one without a path, such as an image. The pod must be
// wanted, and a volume of a claim must be set up.
func (m *Manager) Path(pod *v1.Pod, v *v1.Volume) string {
	plugin := m.pluginOf(v)
	if plugin == nil {
		return ""
	}
	if inPlace, ok := plugin.(InPlace); ok {
		return inPlace.Path(v)
	}
	_, path := m.where(key{pod: pod.UID, plugin: plugin.Name(), name: v.Name})
	return path
}

// SubPath mounts a sub-path of a volume for a container's volumeMount, and returns the mount point. It is unmounted
// with the volume, which must be set up. It fails as subpath.Mounts.Prepare does.
func (m *Manager) SubPath(
	ctx context.Context, pod *v1.Pod, v *v1.Volume, c *v1.Container, index int, path string,
) (string, error) {
	how, name := c.VolumeMounts[index].MountPropagation, v.Name
	if plugin := m.pluginOf(v); plugin != nil {
		name = m.partsOf(key{pod: pod.UID, plugin: plugin.Name(), name: v.Name})
	}
	return m.subPaths.Prepare(ctx, subpath.Request{
		Volume: m.Path(pod, v), Path: path, PodDir: m.podDir(pod.UID), Name: name, Container: c.Name, Index: index,
		Propagates: how != nil && *how != v1.MountPropagationNone,
	})
}

// Kind returns the name of a volume's source in the manifest, for example "configMap"; "emptyDir" if it names none.
func Kind(v *v1.Volume) string {
	source := reflect.ValueOf(v.VolumeSource)
	for i := range source.NumField() {
		if !source.Field(i).IsNil() {
			name, _, _ := strings.Cut(source.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "emptyDir"
}
