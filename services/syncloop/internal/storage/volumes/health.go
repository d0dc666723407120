package volumes

import (
	"context"
	"errors"
	"io/fs"

	v1 "k8s.io/api/core/v1"
)

// ErrNotExamined is returned for a volume of whose health nothing is known.
var ErrNotExamined = errors.New("the health of the volume is not reported")

// Examiner is a Plugin whose volumes have a health.
type Examiner interface {
	// Health returns what is wrong with a volume. dir is the directory that SetUp receives. It fails with fs.ErrNotExist
	// for a volume that was never mounted, and with ErrNotExamined.
	Health(ctx context.Context, dir string) ([]v1.VolumeHealthCondition, error)
}

// Health returns what is wrong with a volume of a pod. It fails with fs.ErrNotExist for a volume that was never
// mounted, and with ErrNotExamined. It may hang.
func (m *Manager) Health(ctx context.Context, pod *v1.Pod, v *v1.Volume) ([]v1.VolumeHealthCondition, error) {
	plugin := m.pluginOf(v)
	examiner, ok := plugin.(Examiner)
	if !ok {
		return nil, ErrNotExamined
	}
	k := key{pod: pod.UID, plugin: plugin.Name(), name: v.Name}
	if at, _ := m.where(k); at == "" {
		return nil, fs.ErrNotExist
	}
	return examiner.Health(ctx, m.dir(k))
}

// Driver returns the CSI driver of a volume of a pod; empty if it has none or it is not known.
func (m *Manager) Driver(pod *v1.Pod, v *v1.Volume) string {
	plugin := m.pluginOf(v)
	if claimed, ok := plugin.(Claimed); ok {
		return claimed.Claim(m.dir(key{pod: pod.UID, plugin: plugin.Name(), name: v.Name})).Driver
	}
	return ""
}
