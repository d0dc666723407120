package volumes

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
)

// UnsupportedError says that a volume is of a kind that there is no plugin for.
type UnsupportedError struct {
	// Volume is its name, Kind the field of its source in the manifest, for example "persistentVolumeClaim".
	Volume, Kind string
	// Message says why, and what to do.
	Message string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("volume %q of kind %s: %s", e.Volume, e.Kind, e.Message)
}

// Supports says whether there is a plugin for every volume that a container of the pod mounts. It fails with an *UnsupportedError.
func (m *Manager) Supports(pod *v1.Pod) error {
	for _, v := range mounted(pod) {
		if m.pluginOf(v) != nil {
			continue
		}
		err := &UnsupportedError{Volume: v.Name, Kind: Kind(v), Message: "it is not supported yet by this version of Quartet"}
		if v.EmptyDir != nil {
			err.Message = fmt.Sprintf("there is no medium %q: leave it out, or say Memory, HugePages or HugePages-SIZE", v.EmptyDir.Medium)
		}
		return err
	}
	return nil
}

// Path is where a volume of a pod is on the node; empty for one that is no path of it, as an image. The pod has to want it.
func (m *Manager) Path(pod *v1.Pod, v *v1.Volume) string {
	plugin := m.pluginOf(v)
	if plugin == nil {
		return ""
	}
	if there, ok := plugin.(InPlace); ok {
		return there.Path(v)
	}
	return m.dir(key{pod: pod.UID, plugin: plugin.Name(), name: v.Name})
}

// SubPath has what is below a path of a volume mounted for a container, the one at a place among its volumeMounts, and says where. What
// is mounted goes with the volume. The volume has to be in place. It fails as subpath.Mounts.Prepare.
func (m *Manager) SubPath(ctx context.Context, pod *v1.Pod, v *v1.Volume, c *v1.Container, index int, path string) (string, error) {
	how := c.VolumeMounts[index].MountPropagation
	return m.subPaths.Prepare(ctx, subpath.Request{
		Volume: m.Path(pod, v), Path: path, PodDir: m.podDir(pod.UID), Name: v.Name, Container: c.Name, Index: index,
		Propagates: how != nil && *how != v1.MountPropagationNone,
	})
}

// Kind is the name of a volume's source in the manifest, for example "configMap"; "emptyDir" when it names none.
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
