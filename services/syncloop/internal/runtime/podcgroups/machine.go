package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// root is where cgroup v2 is mounted, and the hierarchies of cgroup v1 each in a directory of its own.
	root = "/sys/fs/cgroup"
	// hybrid is where cgroup v2 is, without controllers, on a machine whose controllers are all of v1. Runtimes put their
	// containers there, too.
	hybrid = root + "/unified"
	// unified is the name of the one hierarchy of v2.
	unified = ""
)

// Machine is the cgroups of this machine, of version 1 or 2, made in the file system or by systemd. All of its methods
// may be called at any time by anyone.
type Machine struct {
	clock   clock.WithTicker
	systemd bool

	mu sync.Mutex
	// at is where each hierarchy is mounted, by the controller; of v2 it is the one of no name. Nil until one was found.
	at map[string]string
}

// NewMachine returns the machine's cgroups for a cgroup driver, cgroupfs or systemd. It looks at nothing yet: a machine
// without cgroups shows in each error.
func NewMachine(driver string, waits clock.WithTicker) *Machine {
	return &Machine{systemd: driver == driverSystemd, clock: waits}
}

// Has tells whether a cgroup is there in every hierarchy that Set makes it in. It is not when it cannot be told.
func (m *Machine) Has(name string) bool {
	dirs, err := m.dirs(name)
	for controller, dir := range dirs {
		if controller == "devices" || controller == unified && len(dirs) > 1 {
			continue // these are the runtime's affair
		}
		if _, err := os.Stat(dir); err != nil {
			return false
		}
	}
	return err == nil
}

// Set makes a cgroup and those above it unless they are there, and gives it resources. Its errors name the cgroup, and
// the controller and file where it is one that refuses.
func (m *Machine) Set(name string, r resources.Resources) error {
	manager, err := m.manager(name, r)
	if err == nil {
		// No process is put into it.
		if err = manager.Apply(-1); err == nil {
			err = manager.Set(m.resources(r))
		}
	}
	if err != nil {
		return fmt.Errorf("make the cgroup %s: %w", name, explain(err))
	}
	return nil
}

// Limit gives resources to a cgroup that is there, and makes none. Its errors are as those of Set.
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

// Remove kills what runs in a cgroup and in those below it, and removes them all. One that is not there is fine. It
// waits for what it has killed, at most killPatience.
func (m *Machine) Remove(ctx context.Context, name string) error {
	dirs, err := m.dirs(name)
	if err != nil {
		return fmt.Errorf("remove the cgroup %s: %w", name, err)
	}
	var there []string
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil && !slices.Contains(there, dir) {
			there = append(there, dir)
		}
	}
	if len(there) == 0 {
		return nil
	}
	if err := m.end(ctx, there); err != nil {
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
	for _, dir := range there {
		if err := cgroups.RemovePath(dir); err != nil {
			if errors.Is(err, unix.EBUSY) {
				err = fmt.Errorf("%w: something runs in it that this process does not see: it is of another PID namespace", err)
			}
			return fmt.Errorf("remove the cgroup %s: %w", name, explain(err))
		}
	}
	return nil
}

// manager is what the library has for a cgroup of the machine's version and driver.
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
		return nil, errors.New("cgroupDriver is systemd, which does not run here: set cgroupDriver: cgroupfs, here and in the runtime")
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

// config names a cgroup for the library: by its path, or, for systemd, as a slice and the slice that it is in.
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

// resources are resources as the library has them, of the controllers that the machine has: to take a limit away or to
// leave huge pages alone needs none.
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
	if r.HugePages == nil || !slices.Contains(has, "hugetlb") {
		return out
	}
	for _, size := range cgroups.HugePageSizes() {
		limit := max(r.HugePages[bytesOf(size)], 0)
		out.HugetlbLimit = append(out.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: size, Limit: uint64(limit)})
	}
	return out
}

// bytesOf reads the name of a size of huge pages, for example 2MB; 0 when it is none.
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

// controllers are those that the machine has; with v2 also the name of its hierarchy.
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

// dirs is where a cgroup is in each hierarchy.
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

// mounts finds the hierarchies, once. The library's own search is not used: it looks when the process begins, before a
// syncloop in a container has gone to the machine's root.
func (m *Machine) mounts() (map[string]string, error) {
	m.mu.Lock() // over the read, which is once, of a file of the kernel's
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

// v1Mounts finds where each controller is mounted, with the shortest path where it is several times. Part of a
// hierarchy, as containers have it, is not it.
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

// v1Controllers are the hierarchies that a runtime puts containers in.
func v1Controllers() []string {
	return []string{
		"cpu", "cpuacct", "cpuset", "memory", "pids", "blkio", "hugetlb", "devices", "freezer", "net_cls", "net_prio", "perf_event", "rdma", "misc",
		"name=systemd",
	}
}

// explain puts the controller before an error that only names a file.
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
