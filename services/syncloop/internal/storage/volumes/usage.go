package volumes

import (
	"context"
	"errors"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// ErrNotMeasured is returned for a volume that is not measured, as in the kubelet.
var ErrNotMeasured = errors.New("the volume is not measured")

// Measurer is a Plugin whose volumes belong to the cluster, and are measured without reading their files.
type Measurer interface {
	// Usage returns the usage of a volume; nil if it is that of the file system at its path. dir is the directory that
	// SetUp receives. It fails with fs.ErrNotExist for a volume that is not set up, and with ErrNotMeasured.
	Usage(ctx context.Context, dir string) (*statsv1alpha1.FsStats, error)
}

// Usage returns the usage of a volume of the cluster; nil if it is that of the file system at its path. It fails with
// fs.ErrNotExist for a volume that is not set up, and with ErrNotMeasured. It may hang.
func (m *Manager) Usage(ctx context.Context, pod *v1.Pod, v *v1.Volume) (*statsv1alpha1.FsStats, error) {
	plugin := m.pluginOf(v)
	measurer, ok := plugin.(Measurer)
	if !ok {
		return nil, ErrNotMeasured
	}
	k := key{pod: pod.UID, plugin: plugin.Name(), name: v.Name}
	if _, path := m.where(k); path == "" {
		return nil, fs.ErrNotExist
	}
	return measurer.Usage(ctx, m.dir(k))
}
