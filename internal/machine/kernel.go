package machine

import (
	"fmt"
	"os"
	"strings"
)

// version is the major and minor number of a kernel's release.
type version struct{ major, minor int }

func (v version) before(other version) bool {
	return v.major < other.major || (v.major == other.major && v.minor < other.minor)
}

// oldestKernel is the oldest version that can run containers and a node. pidfd_open(2), which is used to wait for them,
// is of 5.3; the freezer of cgroup v2, which runc's documentation requires, is of 5.2; and 5.4 is the first long-term
// release with both. kubeadm's own check (k8s.io/system-validators) requires 4.19.
var oldestKernel = version{5, 4}

// wholeKernel is the oldest version without limitations. PIDFD_NONBLOCK, which `quartet up` and `quartet down` use to
// wait, is of 5.10, and Kubernetes requires 5.8 for cgroup v2 (kubernetes.io, "Linux Kernel Version Requirements").
var wholeKernel = version{5, 10}

// Kernel checks the kernel's version.
func (m Machine) Kernel() Finding {
	const check = "kernel"
	release, err := m.read("proc/sys/kernel/osrelease")
	if err != nil {
		return Unknown(check, err)
	}
	v, err := parseVersion(release)
	f := Ok(check, "%s", release)
	const fix = "boot a kernel of 5.10 or later"
	switch {
	case err != nil:
		return Unknown(check, err)
	case v.before(oldestKernel):
		return f.With(Fault, release+" is older than 5.4, which containers and waiting for processes need", fix)
	case v.before(wholeKernel):
		return f.With(
			Warning,
			release+" is older than 5.10: quartet up and down cannot wait for processes, and cgroup v2 is incomplete",
			fix,
		)
	default:
		return f
	}
}

func parseVersion(release string) (version, error) {
	var v version
	if _, err := fmt.Sscanf(release, "%d.%d", &v.major, &v.minor); err != nil {
		return v, fmt.Errorf("%q is not the release of a kernel: %w", release, err)
	}
	return v, nil
}

// User checks that this process runs as root.
func (m Machine) User() Finding {
	f := Ok("root", "running as root")
	if m.EUID != 0 {
		return f.With(Fault, fmt.Sprintf("running as uid %d, and containers need root", m.EUID), "run the command with sudo")
	}
	return f
}

// Cgroups checks the control groups. Version 2 lists its controllers in one file; version 1 has a directory for each.
// The limits of every container need cpu, memory and pids; only some pods need the other controllers.
func (m Machine) Cgroups() Finding {
	f := Finding{Check: "cgroups"}
	needed := []string{"cpu", "memory", "pids"}
	if have, err := m.read("sys/fs/cgroup/cgroup.controllers"); err == nil {
		return cgroupFinding(f, "version 2", needed, []string{"cpuset", "io"}, strings.Fields(have), func([]string) string {
			return "enable them in the kernel, or in the parent's cgroup.subtree_control when this is a container"
		})
	}
	wanted := []string{"cpuset", "cpuacct", "blkio", "devices", "freezer"}
	var have []string
	for _, name := range append(wanted, needed...) {
		if _, err := os.Stat(m.path("sys/fs/cgroup", name)); err == nil {
			have = append(have, name)
		}
	}
	if len(lacking(needed, have)) == len(needed) {
		return f.With(Fault, "nothing is mounted at /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup")
	}
	return cgroupFinding(f, "version 1", needed, wanted, have, func(missing []string) string {
		var commands []string
		for _, name := range missing {
			commands = append(
				commands,
				fmt.Sprintf("mkdir -p /sys/fs/cgroup/%[1]s && mount -t cgroup -o %[1]s none /sys/fs/cgroup/%[1]s", name),
			)
		}
		return strings.Join(commands, " && ")
	})
}

// cgroupFinding compares the available controllers with those that every pod needs and those that some pods need.
func cgroupFinding(
	f Finding,
	version string,
	needed, wanted, have []string,
	fix func(missing []string) string,
) Finding {
	if missing := lacking(needed, have); len(missing) > 0 {
		return f.With(Fault, version+" without the controllers "+strings.Join(missing, ", "), fix(missing))
	}
	if missing := lacking(wanted, have); len(missing) > 0 {
		return f.With(
			Warning,
			version+" without the controllers "+strings.Join(missing, ", ")+", which some pods need",
			fix(missing),
		)
	}
	f.Detail = version
	return f
}

func lacking(needed, have []string) []string {
	var out []string
	for _, n := range needed {
		found := false
		for _, h := range have {
			found = found || h == n
		}
		if !found {
			out = append(out, n)
		}
	}
	return out
}

// CapSysResource is CAP_SYS_RESOURCE of linux/capability.h. A process without it may not lower an OOM score.
const CapSysResource = 24

// Capabilities checks that this process has the capabilities that starting containers needs; root in a container often
// has not.
func (m Machine) Capabilities() Finding {
	f := Ok("capabilities", "all that containers need")
	set, err := m.capabilities()
	if err != nil {
		return Unknown(f.Check, err)
	}
	var missing []string
	// Numbers of linux/capability.h, required by runc to set up a container and its network.
	for _, c := range []struct {
		number uint
		name   string
	}{
		{0, "CAP_CHOWN"}, {1, "CAP_DAC_OVERRIDE"}, {3, "CAP_FOWNER"}, {5, "CAP_KILL"}, {6, "CAP_SETGID"}, {7, "CAP_SETUID"},
		{8, "CAP_SETPCAP"}, {12, "CAP_NET_ADMIN"}, {18, "CAP_SYS_CHROOT"}, {19, "CAP_SYS_PTRACE"}, {21, "CAP_SYS_ADMIN"},
		{27, "CAP_MKNOD"},
	} {
		if set&(1<<c.number) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return f.With(Fault, "without "+strings.Join(missing, ", "),
			"run the command with sudo; in a container, run that with --privileged")
	}
	return f
}

// OOMScores checks for CAP_SYS_RESOURCE. Without it, the bundled runtime does not change OOM scores.
func (m Machine) OOMScores() Finding {
	f := Ok("CAP_SYS_RESOURCE", "held")
	if !m.HasCapability(CapSysResource) {
		return f.With(Warning, "not held, so containers keep the OOM score of this process where a lower one is asked",
			"start with that capability to have the scores of guaranteed pods protected")
	}
	return f
}

// HasCapability reports whether this process has a capability, numbered as in linux/capability.h, in its effective set.
func (m Machine) HasCapability(capability uint) bool {
	set, err := m.capabilities()
	return err == nil && set&(1<<capability) != 0
}

// capabilities reads the effective set of this process.
func (m Machine) capabilities() (uint64, error) {
	proc, err := m.proc()
	if err != nil {
		return 0, err
	}
	self, err := proc.Self()
	if err != nil {
		return 0, err
	}
	status, err := self.NewStatus()
	return status.CapEff, err
}
