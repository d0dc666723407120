package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/removal"
)

// The modes of an emptyDir: every user of the pod's containers may write there, and with a group of the pod's own what is made there
// is that group's.
const (
	emptyDirMode      = fs.FileMode(0o777)
	emptyDirGroupMode = emptyDirMode | fs.ModeSetgid
)

// EmptyDir is the Plugin of emptyDir volumes, on disk and in memory.
type EmptyDir struct {
	// Mounter mounts and unmounts. Required.
	Mounter Mounter
	// Memory is how many bytes of memory pods may use on this node, 0 when that is not known: the most that a volume in memory is
	// given.
	Memory func(context.Context) int64
}

// Name implements Plugin.
func (e *EmptyDir) Name() string { return "kubernetes.io~empty-dir" }

// CanSupport implements Plugin.
func (e *EmptyDir) CanSupport(v *v1.Volume) bool {
	return v.EmptyDir != nil && (v.EmptyDir.Medium == v1.StorageMediumDefault || v.EmptyDir.Medium == v1.StorageMediumMemory)
}

// Refreshes implements Plugin.
func (e *EmptyDir) Refreshes() bool { return false }

// SetUp implements Plugin. What is in the volume already stays: containers of the pod may run.
func (e *EmptyDir) SetUp(ctx context.Context, r Request) error {
	if err := makeEmptyDir(r.Dir, r.FSGroup); err != nil {
		return err
	}
	if r.Volume.EmptyDir.Medium != v1.StorageMediumMemory {
		return nil
	}
	if mounted, err := e.Mounter.IsMountPoint(r.Dir); err != nil || mounted {
		return err
	}
	// With the mount, in one step: a process that is killed leaves it right or not at all.
	options := []string{"mode=0777"}
	if r.FSGroup != nil {
		options = []string{"mode=2777", fmt.Sprintf("gid=%d", *r.FSGroup)}
	}
	if size := e.size(ctx, r); size > 0 {
		options = append(options, fmt.Sprintf("size=%d", size))
	}
	return e.Mounter.Mount("tmpfs", r.Dir, "tmpfs", options)
}

// size is how large a volume in memory may become, in bytes: what the node has for pods, less when the pod or the volume has a
// limit below. 0 leaves it to the kernel, which takes half of the memory.
func (e *EmptyDir) size(ctx context.Context, r Request) int64 {
	var size int64
	if e.Memory != nil {
		size = e.Memory(ctx)
	}
	limits := []int64{podcgroups.ForPod(r.Pod, podcgroups.Limits{}).Memory}
	if limit := r.Volume.EmptyDir.SizeLimit; limit != nil {
		limits = append(limits, limit.Value())
	}
	for _, limit := range limits {
		if limit > 0 && (size <= 0 || limit < size) {
			size = limit
		}
	}
	return size
}

// TearDown implements Plugin.
func (e *EmptyDir) TearDown(_ context.Context, dir string) error {
	points, err := e.mountedAt(dir)
	if err != nil {
		return err
	}
	if len(points.below) > 0 {
		return fmt.Errorf("%s is mounted in the volume, and nothing below it is removed; unmount it", points.below[0])
	}
	for range points.here {
		if err := e.Mounter.Unmount(dir); err != nil {
			return err
		}
	}
	return errors.Join(removal.All(dir), removal.All(newDir(dir)))
}

// points are mount points in a volume.
type points struct{ here, below []string }

// mountedAt looks up what is mounted at a folder and below it. It touches nothing there.
func (e *EmptyDir) mountedAt(dir string) (points, error) {
	all, err := e.Mounter.List()
	if err != nil {
		return points{}, fmt.Errorf("read the mount table: %w", err)
	}
	var found points
	for _, one := range all {
		switch {
		case one.Path == dir:
			found.here = append(found.here, one.Path)
		case strings.HasPrefix(one.Path, dir+string(filepath.Separator)):
			found.below = append(found.below, one.Path)
		}
	}
	return found, nil
}

// newDir is where a folder is made before it is put into its place. No volume's name begins with a dot.
func newDir(dir string) string { return filepath.Join(filepath.Dir(dir), ".new-"+filepath.Base(dir)) }

// makeEmptyDir makes the folder of an emptyDir, unless it is there. It comes into its place with its mode and group: a process that
// is killed leaves no folder that is half right.
func makeEmptyDir(dir string, group *int64) error {
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	made := newDir(dir)
	if err := os.Mkdir(made, volumesDirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mode := emptyDirMode
	if group != nil {
		mode = emptyDirGroupMode
		if err := os.Chown(made, -1, int(*group)); err != nil {
			return err
		}
	}
	if err := os.Chmod(made, mode); err != nil { // past the umask
		return err
	}
	return os.Rename(made, dir)
}
