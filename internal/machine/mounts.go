package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// MountOf returns the mount that contains a directory: the longest mount point that is a prefix of it. Among mounts on
// one point the last counts, because it covers the others. It is nil if /proc shows no mount, as in some chroots.
func (m Machine) MountOf(dir string) (at *mountinfo.Info, err error) {
	resolved, err := filepath.EvalSymlinks(m.path(dir))
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", dir, err)
	}
	if below, found := strings.CutPrefix(resolved, filepath.Clean(m.Root)); found {
		resolved = filepath.Join("/", below)
	}
	// The file of the thread and not of the process: a command in a container inspects the machine from a thread that has
	// entered its namespaces.
	file, err := os.Open(m.path("proc/thread-self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.ParentsFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	for _, mount := range mounts {
		if at == nil || len(mount.Mountpoint) >= len(at.Mountpoint) {
			at = mount
		}
	}
	return at, nil
}

// IsShared reports whether mounts below a mount propagate.
func IsShared(mount *mountinfo.Info) bool {
	return mount != nil && strings.Contains(mount.Optional, "shared:")
}

// Propagation checks that a mount made by one container below the state directory is visible to the others, which
// volumes with mount propagation need. `quartet up` and the compose stack ensure it themselves.
func (m Machine) Propagation(stateDir string) Finding {
	const check = "mount propagation"
	dir, err := m.existing(stateDir)
	if err != nil {
		return Unknown(check, err)
	}
	at, err := m.MountOf(dir)
	if err == nil && at == nil {
		err = errors.New("/proc/thread-self/mountinfo shows no mount of " + dir)
	}
	if err != nil {
		return Unknown(check, err)
	}
	if IsShared(at) {
		return Ok(check, "%s is on a shared mount (%s)", stateDir, at.Mountpoint)
	}
	fix := fmt.Sprintf("mount --bind %[1]s %[1]s && mount --make-rshared %[1]s", stateDir)
	if dir != stateDir {
		fix = "mkdir -p " + stateDir + " && " + fix
	}
	return Finding{Check: check}.With(
		Warning,
		fmt.Sprintf(
			"the mount of %s (%s) is private: a volume with mountPropagation does not pass mounts on",
			stateDir,
			at.Mountpoint,
		),
		fix+" (quartet up and the compose stack do it themselves)",
	)
}
