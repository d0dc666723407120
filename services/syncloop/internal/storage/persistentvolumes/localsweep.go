package persistentvolumes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/blockdevice"
)

// Sweep unmounts the file systems of devices, and releases the devices, that no pod below a root directory has any
// more: an earlier process, or a kubelet, was killed after it had removed the directory of the last pod. It may be
// called while volumes are mounted, because the directory of a pod is there before its mount. It does all that it can,
// and returns the errors.
func (l *Local) Sweep(ctx context.Context, root string) error {
	root, err := filepath.EvalSymlinks(root) // as in the requests, by whose paths the locks are
	if err != nil {
		return err
	}
	names, err := foldersIn(filepath.Join(root, localMounts))
	for _, name := range names {
		err = errors.Join(err, l.sweepMount(ctx, root, name))
	}
	volumes, listing := foldersIn(filepath.Join(root, localDevices))
	err = errors.Join(err, listing)
	for _, name := range volumes {
		err = errors.Join(err, l.sweepDevices(root, name))
	}
	return err
}

// sweepMount unmounts the file system of a persistent volume without pods.
func (l *Local) sweepMount(ctx context.Context, root, name string) error {
	global := filepath.Join(root, localMounts, name)
	unlock, err := l.locks.Lock(ctx, global)
	if err != nil {
		return err
	}
	defer unlock()
	const noPod = "-"
	used, err := usedByOthers(filepath.Join(root, "pods", noPod, volumesFolder, LocalName, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) || used {
		return err
	}
	if err := l.unmountAll(ctx, global); err != nil {
		return err
	}
	return removeEmpty(global)
}

// sweepDevices releases the devices of a persistent volume that are held for pods without a link to it.
func (l *Local) sweepDevices(root, name string) error {
	folder := filepath.Join(root, localDevices, name)
	pods, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	left := 0
	for _, pod := range pods {
		link := filepath.Join(root, "pods", pod.Name(), devicesFolder, LocalName, name)
		if _, missing := os.Lstat(link); !errors.Is(missing, fs.ErrNotExist) {
			left++
			continue
		}
		err = errors.Join(err, blockdevice.Release(filepath.Join(folder, pod.Name()), l.mounted))
	}
	if err != nil || left > 0 {
		return err
	}
	if err := os.Remove(folder); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
		return err // a pod may just have got it: then it is not empty
	}
	return nil
}

// foldersIn returns the names of the directories in a directory, which may be missing.
func foldersIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, err
}
