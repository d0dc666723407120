package bundle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// capSysResource is CAP_SYS_RESOURCE of linux/capability.h: without it a process may not lower an OOM score.
const capSysResource = 24

// Level says what a finding means.
type Level int

// The levels, from good to bad.
const (
	// OK: the machine has it.
	OK Level = iota
	// Fallback: the machine lacks it, and the node runs without.
	Fallback
	// Missing: the node cannot run.
	Missing
)

// Finding is the result of one check of the machine.
type Finding struct {
	// Name is what was looked for.
	Name string
	// Level is what was found.
	Level Level
	// Detail says what is there or what is lacking, and Do what to do about it.
	Detail, Do string
}

// Findings are the results of all checks.
type Findings []Finding

// Err names everything that is missing and what to do about each, at once; nil when nothing is missing.
func (f Findings) Err() error {
	var errs []error
	for _, finding := range f {
		if finding.Level == Missing {
			errs = append(errs, fmt.Errorf("%s: %s: %s", finding.Name, finding.Detail, finding.Do))
		}
	}
	return errors.Join(errs...)
}

// Preflight checks what the bundled runtime needs of the machine and changes nothing. binDir has the built binaries.
func Preflight(binDir string) Findings {
	return machine{root: "/", euid: os.Geteuid(), binDir: binDir}.check()
}

// machine is what the checks look at; tests look at one of their own.
type machine struct {
	root   string
	euid   int
	binDir string
}

func (m machine) check() Findings {
	return Findings{m.user(), m.binaries(), m.cgroups(), m.capability()}
}

func (m machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.root}, parts...)...)
}

func (m machine) user() Finding {
	f := Finding{Name: "root", Detail: "running as root"}
	if m.euid != 0 {
		f.Level, f.Detail = Missing, fmt.Sprintf("running as uid %d, and containers need root", m.euid)
		f.Do = "run the command with sudo"
	}
	return f
}

func (m machine) binaries() Finding {
	f := Finding{Name: "bundled runtime", Detail: "built in " + m.binDir}
	var missing []string
	for _, name := range binaries() {
		if _, err := os.Stat(filepath.Join(m.binDir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		f.Level, f.Detail = Missing, fmt.Sprintf("%s not in %s", strings.Join(missing, ", "), m.binDir)
		f.Do = "run make build"
	}
	return f
}

// cgroups: version 2 has its controllers listed in one file, version 1 has a directory for each.
func (m machine) cgroups() Finding {
	needed := []string{"cpu", "memory", "pids"}
	f := Finding{Name: "cgroups"}
	have, err := os.ReadFile(m.path("sys/fs/cgroup/cgroup.controllers"))
	if err == nil {
		f.Detail = "version 2"
		if lacking := lacking(needed, strings.Fields(string(have))); len(lacking) > 0 {
			f.Level, f.Detail = Missing, "version 2 without the controllers "+strings.Join(lacking, ", ")
			f.Do = "enable them in the kernel, or in the parent's cgroup.subtree_control when this is a container"
		}
		return f
	}
	f.Detail = "version 1"
	var controllers []string
	for _, name := range append(needed, "devices", "freezer") {
		if _, err := os.Stat(m.path("sys/fs/cgroup", name)); err == nil {
			controllers = append(controllers, name)
		}
	}
	switch lacking := lacking(needed, controllers); {
	case len(lacking) == len(needed):
		f.Level, f.Detail = Missing, "nothing is mounted at /sys/fs/cgroup"
		f.Do = "mount -t cgroup2 none /sys/fs/cgroup"
	case len(lacking) > 0:
		f.Level, f.Detail = Missing, "version 1 without the controllers "+strings.Join(lacking, ", ")
		f.Do = "mount each with mount -t cgroup -o NAME none /sys/fs/cgroup/NAME"
	}
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

func (m machine) capability() Finding {
	f := Finding{Name: "CAP_SYS_RESOURCE", Detail: "held"}
	if !capabilityIn(m.path("proc/self/status"), capSysResource) {
		f.Level = Fallback
		f.Detail = "not held, so containers keep the OOM score of this process where a lower one is asked"
		f.Do = "start with that capability to have the scores of guaranteed pods protected"
	}
	return f
}

func hasCapability(capability uint) bool {
	return capabilityIn("/proc/self/status", capability)
}

// capabilityIn reads the effective set of a process from its status file.
func capabilityIn(path string, capability uint) bool {
	status, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if hex, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && set&(1<<capability) != 0
		}
	}
	return false
}
