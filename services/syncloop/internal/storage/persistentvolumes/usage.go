package persistentvolumes

import (
	"context"
	"io/fs"

	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Measurer is a Kind that measures its volumes itself. Otherwise the usage is that of the file system.
type Measurer interface {
	// Usage returns the usage of the volume at dir. It fails with volumes.ErrNotMeasured if it cannot be measured.
	Usage(ctx context.Context, dir string) (*statsv1alpha1.FsStats, error)
}

// Usage implements volumes.Measurer.
func (d *dispatch) Usage(ctx context.Context, dir string) (*statsv1alpha1.FsStats, error) {
	d.mu.Lock()
	p, known := d.places[dir]
	d.mu.Unlock()
	if !known || p.path == "" {
		return nil, fs.ErrNotExist
	}
	if measurer, ok := p.kind.(Measurer); ok {
		return measurer.Usage(ctx, p.dir)
	}
	return nil, nil
}

// Usage implements Measurer: as in the kubelet, a path of the node is not measured.
func (HostPath) Usage(context.Context, string) (*statsv1alpha1.FsStats, error) {
	return nil, volumes.ErrNotMeasured
}
