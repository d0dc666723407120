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

// The modes of an emptyDir: every user of the pod's containers may write there, and with a group of the pod's own what is made there
// is that group's.
const (
	emptyDirMode      = fs.FileMode(0o777)
	emptyDirGroupMode = emptyDirMode | fs.ModeSetgid
)

// hugePagesOf is how the medium of pages of one size begins, for example "HugePages-2Mi".
const hugePagesOf = string(v1.StorageMediumHugePagesPrefix)

// EmptyDir is the Plugin of emptyDir volumes, on disk, in memory and in huge pages.
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

// mounting is what is mounted for a volume that is not on the disk.
type mounting struct {
	source, kind string
	options      []string
}

// mountOf is what is mounted for a volume; with no kind for one on the disk. All that makes it right is in the mount's options: a process
// that is killed leaves it right or not at all.
func (e *EmptyDir) mountOf(ctx context.Context, r Request) (mounting, error) {
	switch medium := r.Volume.EmptyDir.Medium; medium { //nolint:exhaustive // the rest is huge pages
	case v1.StorageMediumDefault:
		return mounting{}, nil
	case v1.StorageMediumMemory:
		m := mounting{source: "tmpfs", kind: "tmpfs", options: []string{"mode=1777"}} // as any tmpfs
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
		// This file system takes no setgid bit.
		m := mounting{source: "nodev", kind: "hugetlbfs", options: []string{fmt.Sprintf("pagesize=%d", size), "mode=0777"}}
		if r.FSGroup != nil {
			m.options = append(m.options, fmt.Sprintf("gid=%d", *r.FSGroup))
		}
		return m, nil
	}
}

// pageSize is the size in bytes of the pages of a volume in huge pages: as in a kubelet one that the pod asks for, the only one when the
// medium names none. How much of them the pod may use its cgroup says.
func pageSize(pod *v1.Pod, medium v1.StorageMedium) (int64, error) {
	asked := resources.ForPod(pod, resources.Limits{}).HugePages
	if text, ok := strings.CutPrefix(string(medium), hugePagesOf); ok {
		size, err := resource.ParseQuantity(text)
		if err != nil {
			return 0, fmt.Errorf("the medium %q: %w", medium, err)
		}
		if _, ok := asked[size.Value()]; !ok {
			return 0, fmt.Errorf("the medium %q: no container of the pod asks for such pages: add resources %s%s", medium, v1.ResourceHugePagesPrefix, text)
		}
		return size.Value(), nil
	}
	switch len(asked) {
	case 0:
		return 0, fmt.Errorf("the medium %q: no container of the pod asks for huge pages: add resources such as %s2Mi", medium, v1.ResourceHugePagesPrefix)
	case 1:
		return slices.Collect(maps.Keys(asked))[0], nil
	}
	return 0, fmt.Errorf("the medium %q: the pod asks for huge pages of several sizes: say which, for example %s2Mi", medium, hugePagesOf)
}

// Refreshes implements Plugin.
func (e *EmptyDir) Refreshes() bool { return false }

// SetUp implements Plugin. What is in the volume already stays: containers of the pod may run.
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

// size is how large a volume in memory may become, in bytes: what the node has for pods, less when the pod or the volume has a
// limit below. 0 leaves it to the kernel, which takes half of the memory.
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
	return errors.Join(rmtree.All(dir), rmtree.All(newDir(dir)))
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
