package persistentvolumes

import (
	"context"
	"io/fs"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Examiner is a Kind whose volumes have a health.
type Examiner interface {
	// Health returns what is wrong with the volume at dir. It fails with fs.ErrNotExist for a volume that was never
	// mounted, and with volumes.ErrNotExamined.
	Health(ctx context.Context, dir string) ([]v1.VolumeHealthCondition, error)
}

// Health implements volumes.Examiner.
func (d *dispatch) Health(ctx context.Context, dir string) ([]v1.VolumeHealthCondition, error) {
	d.mu.Lock()
	p, known := d.places[dir]
	d.mu.Unlock()
	if !known {
		return nil, fs.ErrNotExist
	}
	if examiner, ok := p.kind.(Examiner); ok {
		return examiner.Health(ctx, p.dir)
	}
	return nil, volumes.ErrNotExamined
}
