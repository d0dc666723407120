package volumeprojected

import (
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/volumes"
)

// tmpfs is the file system in memory, noSwap its option that keeps it there.
const (
	tmpfs  = "tmpfs"
	noSwap = "noswap"
)

// unswapped mounts so that nothing of it ever comes to a swap device, where the kernel can do that: since Linux 6.4, and not in a user
// namespace. Elsewhere it mounts without, as a kubelet does.
type unswapped struct{ volumes.Mounter }

// Mount implements volumes.Mounter.
func (u unswapped) Mount(source, target, fstype string, options []string) error {
	err := u.Mounter.Mount(source, target, fstype, append(slices.Clone(options), noSwap))
	if errors.Is(err, unix.EINVAL) {
		return u.Mounter.Mount(source, target, fstype, options)
	}
	return err
}

// keeper keeps the immutable ones of the objects that volumes are made of, for as long as the volumes are there.
type keeper[T any] struct {
	mu sync.Mutex
	// kept has them by the folder of the volume and their name.
	kept map[string]map[string]T
}

// get gives an object that is kept, or asks for it; ask says also whether it is immutable.
func (k *keeper[T]) get(dir, name string, ask func() (T, bool, error)) (T, error) {
	k.mu.Lock()
	object, ok := k.kept[dir][name]
	k.mu.Unlock()
	if ok {
		return object, nil
	}
	object, immutable, err := ask()
	if !immutable {
		return object, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		k.kept = map[string]map[string]T{}
	}
	if k.kept[dir] == nil {
		k.kept[dir] = map[string]T{}
	}
	k.kept[dir][name] = object
	return object, nil
}

// forget drops what is kept for a volume.
func (k *keeper[T]) forget(dir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, dir)
}
