package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
)

// The modes of an emptyDir: every user of the pod's containers may write to it, and new files belong to the pod's group
// if it has one.
const (
	emptyDirMode      = fs.FileMode(0o777)
	emptyDirGroupMode = emptyDirMode | fs.ModeSetgid
)

// hugePagesOf is the prefix of the medium for pages of one size, for example "HugePages-2Mi".
const hugePagesOf = string(v1.StorageMediumHugePagesPrefix)

// EmptyDir is the Plugin for emptyDir volumes, on disk, in memory and in huge pages.
type EmptyDir struct {
	// Mounter mounts and unmounts. Required.
	Mounter Mounter
	// Memory returns the memory of the node for pods in bytes, 0 if unknown: the maximum size of a volume in memory.
	Memory func(context.Context) int64
}

// Name implements Plugin.
func (e *EmptyDir) Name() string { return "kubernetes.io~empty-dir" }

// CanSupport implements Plugin.
func (e *EmptyDir) CanSupport(v *v1.Volume) bool {
	if v.EmptyDir == nil {
		return false
	}
	switch medium := v.EmptyDir.Medium; medium { //nolint:exhaustive // the rest has a size in its name
	case v1.StorageMediumDefault, v1.StorageMediumMemory, v1.StorageMediumHugePages:
		return true
	default:
		return strings.HasPrefix(string(medium), hugePagesOf)
	}
}

// mounting is the mount of a volume that is not on disk.
type mounting struct {
	source, kind string
	options      []string
}

// mountOf returns the mount of a volume; without a kind for one on disk. The mount options contain all settings, so
// that a killed process leaves either a complete mount or none.
func (e *EmptyDir) mountOf(ctx context.Context, r Request) (mounting, error) {
	switch medium := r.Volume.EmptyDir.Medium; medium { //nolint:exhaustive // the rest is huge pages
	case v1.StorageMediumDefault:
		return mounting{}, nil
	case v1.StorageMediumMemory:
		m := mounting{source: "tmpfs", kind: "tmpfs", options: []string{"mode=1777"}} // the usual mode of a tmpfs
		if r.FSGroup != nil {
			m.options = []string{"mode=3777", fmt.Sprintf("gid=%d", *r.FSGroup)}
		}
		if size := e.size(ctx, r); size > 0 {
			m.options = append(m.options, fmt.Sprintf("size=%d", size))
		}
		return m, nil
	default:
		size, err := pageSize(r.Pod, medium)
		if err != nil {
			return mounting{}, err
		}
		// This file system does not support the setgid bit.
		m := mounting{source: "nodev", kind: "hugetlbfs", options: []string{fmt.Sprintf("pagesize=%d", size), "mode=0777"}}
		if r.FSGroup != nil {
			m.options = append(m.options, fmt.Sprintf("gid=%d", *r.FSGroup))
		}
		return m, nil
	}
}

// pageSize returns the page size in bytes of a volume in huge pages: as in the kubelet, one that the pod requests, or
// the only one if the medium names none. The cgroup limits their number.
func pageSize(pod *v1.Pod, medium v1.StorageMedium) (int64, error) {
	sizes := resources.ForPod(pod, resources.Limits{}).HugePages
	if text, ok := strings.CutPrefix(string(medium), hugePagesOf); ok {
		size, err := resource.ParseQuantity(text)
		if err != nil {
			return 0, fmt.Errorf("the medium %q: %w", medium, err)
		}
		if _, ok := sizes[size.Value()]; !ok {
			return 0, fmt.Errorf("the medium %q: no container of the pod asks for such pages: add resources %s%s", medium, v1.ResourceHugePagesPrefix, text)
		}
		return size.Value(), nil
	}
	switch len(sizes) {
	case 0:
		return 0, fmt.Errorf("the medium %q: no container of the pod asks for huge pages: add resources such as %s2Mi", medium, v1.ResourceHugePagesPrefix)
	case 1:
		return slices.Collect(maps.Keys(sizes))[0], nil
	}
	return 0, fmt.Errorf("the medium %q: the pod asks for huge pages of several sizes: say which, for example %s2Mi", medium, hugePagesOf)
}

// Refreshes implements Plugin.
func (e *EmptyDir) Refreshes() bool { return false }

// SetUp implements Plugin. Existing content stays, because containers of the pod may run.
func (e *EmptyDir) SetUp(ctx context.Context, r Request) error {
	if err := makeEmptyDir(r.Dir, r.FSGroup); err != nil {
		return err
	}
	if r.Volume.EmptyDir.Medium == v1.StorageMediumDefault {
		return nil
	}
	if mounted, err := e.Mounter.IsMountPoint(r.Dir); err != nil || mounted {
		return err
	}
	m, err := e.mountOf(ctx, r)
	if err != nil {
		return err
	}
	return e.Mounter.Mount(m.source, r.Dir, m.kind, m.options)
}

// size returns the maximum size of a volume in memory in bytes: the node's memory for pods, or a lower limit of the pod
// or the volume. 0 selects the kernel's default, half of the memory.
func (e *EmptyDir) size(ctx context.Context, r Request) int64 {
	var size int64
	if e.Memory != nil {
		size = e.Memory(ctx)
	}
	limits := []int64{resources.ForPod(r.Pod, resources.Limits{}).Memory}
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
func (e *EmptyDir) TearDown(ctx context.Context, dir string) error {
	defer Asking(ctx, "removal of its files")()
	points, err := e.mountedAt(dir)
	if err != nil {
		return err
	}
	if len(points.below) > 0 {
		return fmt.Errorf("%s is mounted in the volume, and nothing below it is removed; unmount it", points.below[0])
	}
	for range points.at {
		if err := e.Mounter.Unmount(dir); err != nil {
			return err
		}
	}
	return errors.Join(rmtree.All(dir), rmtree.All(newDir(dir)))
}

// points holds the mount points in a volume.
type points struct{ at, below []string }

// mountedAt returns the mounts at and below a directory from the mount table, without accessing them.
func (e *EmptyDir) mountedAt(dir string) (points, error) {
	all, err := e.Mounter.List()
	if err != nil {
		return points{}, fmt.Errorf("read the mount table: %w", err)
	}
	var found points
	for _, one := range all {
		switch {
		case one.Path == dir:
			found.at = append(found.at, one.Path)
		case strings.HasPrefix(one.Path, dir+string(filepath.Separator)):
			found.below = append(found.below, one.Path)
		}
	}
	return found, nil
}

// newDir returns the path where a directory is created before it is moved into place. No volume's name begins with a
// dot.
func newDir(dir string) string { return filepath.Join(filepath.Dir(dir), ".new-"+filepath.Base(dir)) }

// makeEmptyDir creates the directory of an emptyDir, unless it exists. It is moved into place with its mode and group,
// so that a killed process leaves no incomplete directory.
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
	if err := os.Chmod(made, mode); err != nil { // regardless of the umask
		return err
	}
	return os.Rename(made, dir)
}
