package volumes_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/mount-utils"
	"k8s.io/utils/ptr"

	"golang.org/x/sys/unix"

	"context"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/require"
)

func emptyDir(source v1.EmptyDirVolumeSource) *v1.Pod {
	return with(newPod("u1"), v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &source}})
}

// request returns a request for the first volume of a pod, in a directory of the test.
func request(t *testing.T, pod *v1.Pod) volumes.Request {
	t.Helper()
	r := volumes.Request{Pod: pod, Volume: &pod.Spec.Volumes[0], Dir: filepath.Join(t.TempDir(), pod.Spec.Volumes[0].Name)}
	if sc := pod.Spec.SecurityContext; sc != nil {
		r.FSGroup = sc.FSGroup
	}
	return r
}

func TestAnEmptyDirIsForAllUsersAndForTheGroupOfThePod(t *testing.T) {
	for name, c := range map[string]struct {
		group *int64
		mode  fs.FileMode
	}{
		"no group": {nil, fs.ModeDir | 0o777},
		"a group":  {ptr.To[int64](4711), fs.ModeDir | fs.ModeSetgid | 0o777},
	} {
		t.Run(name, func(t *testing.T) {
			pod := emptyDir(v1.EmptyDirVolumeSource{})
			pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: c.group}
			r, plugin := request(t, pod), &volumes.EmptyDir{Mounter: mount.NewFakeMounter(nil)}
			if err := plugin.SetUp(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(r.Dir)
			if err != nil || info.Mode() != c.mode {
				t.Fatalf("Mode() = %v, %v, want %v", info.Mode(), err, c.mode)
			}
			if gid := info.Sys().(*syscall.Stat_t).Gid; c.group != nil && int64(gid) != *c.group { //nolint:forcetypeassert // it is Linux
				t.Errorf("group %d, want %d", gid, *c.group)
			}
			if err := os.WriteFile(filepath.Join(r.Dir, "kept"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := plugin.SetUp(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(r.Dir, "kept")); err != nil {
				t.Errorf("after another set-up: %v", err)
			}
			if err := plugin.TearDown(t.Context(), r.Dir); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(filepath.Dir(r.Dir)); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v, want none", left, err)
			}
		})
	}
}

// TestAFolderThatWasHalfMadeIsMadeWhole starts from the state that a process leaves that is killed before it moves the
// directory into place.
func TestAFolderThatWasHalfMadeIsMadeWhole(t *testing.T) {
	r, plugin := request(t, emptyDir(v1.EmptyDirVolumeSource{})), &volumes.EmptyDir{Mounter: mount.NewFakeMounter(nil)}
	half := filepath.Join(filepath.Dir(r.Dir), ".new-data")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := plugin.SetUp(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(r.Dir); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("Stat() = %v, %v, want Mode.Perm 0o777", info, err)
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("the half: %v, want fs.ErrNotExist", err)
	}
}

func TestTheSizeOfAVolumeInMemoryIsTheLeastOfTheLimits(t *testing.T) {
	limited := func(pod *v1.Pod, limits ...string) *v1.Pod {
		pod.Spec.Containers = make([]v1.Container, len(limits))
		for i, limit := range limits {
			if limit != "" {
				pod.Spec.Containers[i].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit)}
			}
		}
		return pod
	}
	for name, c := range map[string]struct {
		node   int64
		size   string
		limits []string
		want   string
	}{
		"what pods may use":                   {1 << 30, "", []string{""}, "size=1073741824"},
		"the volume's own":                    {1 << 30, "64Mi", []string{""}, "size=67108864"},
		"the volume's own is more":            {1 << 30, "64Gi", []string{""}, "size=1073741824"},
		"the pod's":                           {1 << 30, "", []string{"32Mi", "32Mi"}, "size=67108864"},
		"the pod's below the volume's":        {1 << 30, "128Mi", []string{"64Mi"}, "size=67108864"},
		"a container without":                 {1 << 30, "", []string{"32Mi", ""}, "size=1073741824"},
		"zero is none":                        {1 << 30, "0", []string{""}, "size=1073741824"},
		"nobody knows what pods may use":      {0, "", []string{""}, ""},
		"nobody knows, and the volume's does": {0, "64Mi", []string{""}, "size=67108864"},
	} {
		t.Run(name, func(t *testing.T) {
			source := v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}
			if c.size != "" {
				source.SizeLimit = ptr.To(resource.MustParse(c.size))
			}
			mounter := mount.NewFakeMounter(nil)
			plugin := &volumes.EmptyDir{Mounter: mounter, Memory: func(context.Context) int64 { return c.node }}
			if err := plugin.SetUp(t.Context(), request(t, limited(emptyDir(source), c.limits...))); err != nil {
				t.Fatal(err)
			}
			points, err := mounter.List()
			if err != nil || len(points) != 1 || points[0].Type != "tmpfs" {
				t.Fatalf("List() = %v, %v, want exactly one and points[0].Type %q", points, err, "tmpfs")
			}
			i := slices.IndexFunc(points[0].Opts, func(o string) bool { return strings.HasPrefix(o, "size=") })
			if c.want == "" && i >= 0 || c.want != "" && (i < 0 || points[0].Opts[i] != c.want) {
				t.Errorf("options %v, want %q", points[0].Opts, c.want)
			}
		})
	}
}

// inHugePages returns a pod that requests huge pages of the given sizes and has a volume of the medium.
func inHugePages(medium v1.StorageMedium, sizes ...string) *v1.Pod {
	pod := emptyDir(v1.EmptyDirVolumeSource{Medium: medium})
	pages := v1.ResourceList{}
	for _, size := range sizes {
		pages[v1.ResourceName(v1.ResourceHugePagesPrefix+size)] = resource.MustParse("1Gi")
	}
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: pages, Limits: pages}
	return pod
}

func TestAVolumeInHugePagesHasPagesThatThePodAsksFor(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"the only size":    {inHugePages("HugePages", "2Mi"), "pagesize=2097152 mode=0777"},
		"a size":           {inHugePages("HugePages-1Gi", "2Mi", "1Gi"), "pagesize=1073741824 mode=0777"},
		"no pages":         {inHugePages("HugePages"), `the medium "HugePages": no container of the pod asks for huge pages: add resources such as hugepages-2Mi`},
		"two sizes":        {inHugePages("HugePages", "2Mi", "1Gi"), `the medium "HugePages": the pod asks for huge pages of several sizes: say which`},
		"another size":     {inHugePages("HugePages-1Gi", "2Mi"), `the medium "HugePages-1Gi": no container of the pod asks for such pages: add resources hugepages-1Gi`},
		"no size":          {inHugePages("HugePages-big", "2Mi"), `the medium "HugePages-big": quantities must match`},
		"the pod's group":  {inHugePages("HugePages", "2Mi"), "pagesize=2097152 mode=0777 gid=4711"},
		"an init's demand": {inHugePages("HugePages"), "pagesize=2097152 mode=0777"},
	} {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "the pod's group":
				c.pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
			case "an init's demand":
				c.pod.Spec.InitContainers = inHugePages("", "2Mi").Spec.Containers
			}
			mounter := mount.NewFakeMounter(nil)
			plugin := &volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: mounter}}
			if !plugin.CanSupport(&c.pod.Spec.Volumes[0]) {
				t.Fatal("it is of another kind")
			}
			r := request(t, c.pod)
			err := plugin.SetUp(t.Context(), r)
			points, _ := mounter.List()
			if err != nil {
				if !strings.HasPrefix(err.Error(), c.want) || len(points) > 0 {
					t.Errorf("%v, mounted %v; want %s", err, points, c.want)
				}
				return
			}
			if len(points) != 1 || points[0].Type != "hugetlbfs" || points[0].Path != r.Dir || strings.Join(points[0].Opts, " ") != c.want {
				t.Errorf("mounted %v, want %s", points, c.want)
			}
		})
	}
}

func TestAVolumeInHugePagesOnARealMount(t *testing.T) {
	needsMounts(t)
	if _, err := os.Stat("/sys/kernel/mm/hugepages/hugepages-2048kB"); err != nil {
		t.Skipf("this machine has no pages of 2 MiB: %v", err)
	}
	pod := inHugePages("HugePages-2Mi", "2Mi")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
	r, plugin := request(t, pod), &volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: volumes.Machine{}}}
	t.Cleanup(func() { _ = unix.Unmount(r.Dir, unix.MNT_DETACH) })
	for range 2 {
		if err := plugin.SetUp(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(r.Dir, &stat); err != nil || stat.Type != unix.HUGETLBFS_MAGIC || stat.Bsize != 2<<20 {
		t.Errorf("there = %+v, %v, want Type %v and Bsize %v", stat, err, unix.HUGETLBFS_MAGIC, 2<<20)
	}
	info, err := os.Stat(r.Dir)
	if err != nil || info.Mode() != fs.ModeDir|0o777 || info.Sys().(*syscall.Stat_t).Gid != 4711 { //nolint:forcetypeassert // it is Linux
		t.Errorf("Stat() = %v, %v, want Mode %v and Gid 4711", info, err, fs.ModeDir|0o777)
	}
	for range 2 {
		if err := plugin.TearDown(t.Context(), r.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(r.Dir); !os.IsNotExist(err) {
		t.Errorf("afterwards: %v, want fs.ErrNotExist", err)
	}
}

// needsMounts skips a test if this process may not mount.
func needsMounts(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4096"))
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
}

func TestAVolumeInMemoryOnARealMount(t *testing.T) {
	needsMounts(t)
	pod := emptyDir(v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi"))})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
	r, plugin := request(t, pod), &volumes.EmptyDir{Mounter: volumes.Machine{}}
	t.Cleanup(func() { _ = unix.Unmount(r.Dir, unix.MNT_DETACH) })
	for range 2 {
		if err := plugin.SetUp(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(r.Dir)
	// The sticky bit is set, as for any tmpfs: users of the pod's containers cannot remove each other's files.
	if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o777 || info.Sys().(*syscall.Stat_t).Gid != 4711 { //nolint:forcetypeassert // it is Linux
		t.Fatalf("Stat() = %v, %v, want Mode %v and Gid 4711", info, err, fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o777)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, "large"), make([]byte, 2<<20), 0o600); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("more than the limit: %v", err)
	}
	// A foreign mount in the volume is not removed, and nothing else is removed before it is gone.
	inner := filepath.Join(r.Dir, "inner")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", inner, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(inner, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := plugin.TearDown(t.Context(), r.Dir); err == nil ||
		!strings.Contains(err.Error(), inner+" is mounted in the volume") {
		t.Errorf("torn down with a mount in it: %v", err)
	}
	if _, err := os.Stat(filepath.Join(inner, "precious")); err != nil {
		t.Errorf("what was mounted: %v", err)
	}
	if err := unix.Unmount(inner, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := plugin.TearDown(t.Context(), r.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(r.Dir); !os.IsNotExist(err) {
		t.Errorf("afterwards: %v, want fs.ErrNotExist", err)
	}
}
