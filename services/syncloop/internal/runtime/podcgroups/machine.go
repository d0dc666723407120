package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	fsv1 "github.com/opencontainers/cgroups/fs"
	fsv2 "github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/systemd"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

const (
	// root is the mount point of cgroup v2. With cgroup v1 it contains one mount point per hierarchy.
	root = "/sys/fs/cgroup"
	// hybrid is the mount point of cgroup v2 without controllers, on a machine whose controllers all belong to v1.
	// Runtimes put their containers there, too.
	hybrid = root + "/unified"
	// unified is the name of the only hierarchy of v2.
	unified = ""
)

// Machine manages the cgroups of this machine, of version 1 or 2, through the file system or systemd. Its methods may
// be called from any goroutine.
type Machine struct {
	clock   clock.WithTicker
	systemd bool

	mu sync.Mutex
	// at holds the mount points of the hierarchies, by controller; v2 has the empty name. Nil until they are found.
	at map[string]string
}

// NewMachine returns the machine's cgroups for a cgroup driver, cgroupfs or systemd. It reads nothing: on a machine
// without cgroups every method fails.
func NewMachine(driver string, waits clock.WithTicker) *Machine {
	return &Machine{systemd: driver == driverSystemd, clock: waits}
}

// Has reports whether a cgroup exists in every hierarchy that Set creates it in. It returns false if that is not known.
func (m *Machine) Has(name string) bool {
	dirs, err := m.dirs(name)
	for controller, dir := range dirs {
		if controller == "devices" || controller == unified && len(dirs) > 1 {
			continue // the runtime manages these hierarchies
		}
		if _, err := os.Stat(dir); err != nil {
			return false
		}
	}
	return err == nil
}

// Set creates a cgroup and its parents if they do not exist, and sets its resources. Its errors name the cgroup, and
// the controller and file if one rejects a value.
func (m *Machine) Set(name string, r resources.Resources) error {
	manager, err := m.manager(name, r)
	if err == nil {
		// -1 adds no process to the cgroup.
		if err = manager.Apply(-1); err == nil {
			err = manager.Set(m.resources(r))
		}
	}
	if err != nil {
		return fmt.Errorf("make the cgroup %s: %w", name, explain(err))
	}
	return nil
}

// Limit sets resources of an existing cgroup and creates none. Its errors are like those of Set.
func (m *Machine) Limit(name string, r resources.Resources) error {
	manager, err := m.manager(name, r)
	if err == nil {
		err = manager.Set(m.resources(r))
	}
	if err != nil {
		return fmt.Errorf("limit the cgroup %s: %w", name, explain(err))
	}
	return nil
}

// Remove kills the processes in a cgroup and in those below it, and removes them all. It succeeds if the cgroup does
// not exist. It waits for the end of the processes for at most killPatience.
func (m *Machine) Remove(ctx context.Context, name string) error {
	dirs, err := m.dirs(name)
	if err != nil {
		return fmt.Errorf("remove the cgroup %s: %w", name, err)
	}
	var existing []string
	for _, dir := range dirs {
		_, err := os.Stat(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the cgroup %s: %w", name, err)
		}
		if err == nil && !slices.Contains(existing, dir) {
			existing = append(existing, dir)
		}
	}
	if len(existing) == 0 {
		return nil
	}
	if err := m.end(ctx, existing); err != nil {
		return fmt.Errorf("remove the cgroup %s: %w", name, err)
	}
	if m.systemd {
		manager, err := m.manager(name, resources.Resources{})
		if err == nil {
			err = manager.Destroy()
		}
		if err != nil {
			return fmt.Errorf("remove the cgroup %s: %w", name, explain(err))
		}
	}
	for _, dir := range existing {
		if err := cgroups.RemovePath(dir); err != nil {
			if errors.Is(err, unix.EBUSY) {
				err = fmt.Errorf("%w: it contains processes of another PID namespace, which this process does not see", err)
			}
			return fmt.Errorf("remove the cgroup %s: %w", name, explain(err))
		}
	}
	return nil
}

// manager returns the library's manager of a cgroup for the machine's version and driver.
func (m *Machine) manager(name string, r resources.Resources) (cgroups.Manager, error) {
	dirs, err := m.dirs(name)
	if err != nil {
		return nil, err
	}
	config := m.config(name, r)
	dir, v2 := dirs[unified]
	v2 = v2 && len(dirs) == 1
	switch {
	case m.systemd && !systemd.IsRunningSystemd():
		return nil, errors.New("cgroupDriver is systemd, but systemd does not run here: set cgroupDriver: cgroupfs, here and in the runtime")
	case m.systemd && v2:
		return systemd.NewUnifiedManager(config, dir)
	case m.systemd:
		return systemd.NewLegacyManager(config, dirs)
	case v2:
		return fsv2.NewManager(config, dir)
	default:
		return fsv1.NewManager(config, dirs)
	}
}

// config returns the library's configuration of a cgroup: its path, or for systemd its slice and the parent slice.
func (m *Machine) config(name string, r resources.Resources) *cgroups.Cgroup {
	config := &cgroups.Cgroup{Resources: m.resources(r), Systemd: m.systemd}
	if !m.systemd {
		config.Path = name
		return config
	}
	config.Name, config.Parent = path.Base(name), path.Base(path.Dir(name))
	if path.Dir(name) == "/" {
		config.Parent = "-" + slice
	}
	return config
}

// resources converts resources to the library's type, for the controllers of the machine: a missing limit, or unset
// huge pages, need no controller.
func (m *Machine) resources(r resources.Resources) *cgroups.Resources {
	has := m.controllers()
	out := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true, CpuPeriod: r.CPUPeriod}
	if slices.Contains(has, unified) {
		out.CpuWeight = resources.Weight(r.CPUShares)
	} else {
		out.CpuShares = r.CPUShares
	}
	if r.CPUQuota != resources.NoLimit || slices.Contains(has, "cpu") {
		out.CpuQuota = r.CPUQuota
	}
	if r.Memory != resources.NoLimit || slices.Contains(has, "memory") {
		out.Memory = r.Memory
	}
	if r.PIDs != 0 {
		out.PidsLimit = &r.PIDs
	}
	if slices.Contains(has, unified) && slices.Contains(has, "memory") {
		out.Unified = maps.Clone(r.Unified)
	}
	if r.HugePages == nil || !slices.Contains(has, "hugetlb") {
		return out
	}
	for _, size := range cgroups.HugePageSizes() {
		limit := max(r.HugePages[bytesOf(size)], 0)
		out.HugetlbLimit = append(out.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: size, Limit: uint64(limit)})
	}
	return out
}

// bytesOf parses a size of huge pages, for example 2MB; 0 if it is not valid.
func bytesOf(size string) int64 {
	for i, unit := range []string{"KB", "MB", "GB"} {
		var n int64
		if number, ok := strings.CutSuffix(size, unit); ok {
			if _, err := fmt.Sscan(number, &n); err == nil {
				return n << (10 * (i + 1))
			}
		}
	}
	return 0
}

// controllers returns the controllers of the machine, and for v2 also the name of its hierarchy.
func (m *Machine) controllers() []string {
	at, err := m.mounts()
	if err != nil {
		return nil
	}
	if mount, v2 := at[unified]; v2 && len(at) == 1 {
		list, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
		if err != nil {
			return []string{unified}
		}
		return append(strings.Fields(string(list)), unified)
	}
	var names []string
	for name := range at {
		if name != unified {
			names = append(names, name)
		}
	}
	return names
}

// dirs returns the directory of a cgroup in each hierarchy.
func (m *Machine) dirs(name string) (map[string]string, error) {
	at, err := m.mounts()
	if err != nil {
		return nil, err
	}
	dirs := make(map[string]string, len(at))
	for controller, mount := range at {
		dirs[controller] = filepath.Join(mount, name)
	}
	return dirs, nil
}

// mounts finds the hierarchies once. The library's own search is not used: it runs at the start of the process, before
// a syncloop in a container has changed to the machine's root.
func (m *Machine) mounts() (map[string]string, error) {
	m.mu.Lock() // held over one read of a kernel file
	defer m.mu.Unlock()
	if m.at != nil {
		return m.at, nil
	}
	if isCgroup2(root) {
		m.at = map[string]string{unified: root}
		return m.at, nil
	}
	table, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup"))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	at := v1Mounts(table)
	if len(at) == 0 {
		return nil, errors.New("no cgroups are mounted at " + root + ": mount them, or set cgroupsPerQOS: false and enforceNodeAllocatable: [none]")
	}
	if isCgroup2(hybrid) {
		at[unified] = hybrid
	}
	m.at = at
	return at, nil
}

func isCgroup2(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}

// v1Mounts returns the mount point of each controller, the shortest one if there are several. A mount of only a part of
// a hierarchy, as in containers, is ignored.
func v1Mounts(table []*mountinfo.Info) map[string]string {
	at := map[string]string{}
	for _, mount := range table {
		if mount.Root != "/" {
			continue
		}
		for option := range strings.SplitSeq(mount.VFSOptions, ",") {
			if !slices.Contains(v1Controllers(), option) {
				continue
			}
			if known, ok := at[option]; !ok || len(mount.Mountpoint) < len(known) {
				at[option] = mount.Mountpoint
			}
		}
	}
	return at
}

// v1Controllers returns the hierarchies that a runtime puts containers in.
func v1Controllers() []string {
	return []string{
		"cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "hugetlb", "devices", "freezer", "net_cls", "net_prio", "perf_event", "rdma", "misc",
		"name=systemd",
	}
}

// explain adds the controller to an error that only names a file.
func explain(err error) error {
	var at *fs.PathError
	if !errors.As(err, &at) {
		return err
	}
	controller, _, _ := strings.Cut(path.Base(at.Path), ".")
	if below, ok := strings.CutPrefix(at.Path, root+"/"); ok && !isCgroup2(root) {
		controller, _, _ = strings.Cut(below, "/")
	}
	return fmt.Errorf("controller %s: %w", controller, err)
}
