package compose

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// privilege has the privileges that docs/howto/compose.md promises for a container.
type privilege struct {
	user string
	caps []string
}

var promised = map[string]privilege{
	"configmux":  {"10241:10240", nil},
	"pleg":       {"0:10240", nil},
	"syncloop":   {"0:10240", []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SYS_ADMIN", "SYS_CHROOT", "SYSLOG"}},
	"nodestatus": {"10244:10240", nil},
}

// bits are the numbers of the capabilities in /proc/PID/status.
var bits = map[string]uint{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FOWNER": unix.CAP_FOWNER, "SYS_CHROOT": unix.CAP_SYS_CHROOT,
	"FSETID": unix.CAP_FSETID, "SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYSLOG": unix.CAP_SYSLOG,
}

// privileges checks the running processes, where they are visible, and the settings in docker.
func privileges(s *stack) {
	for service, want := range promised {
		id := s.containers(service)[0]
		status, err := os.ReadFile("/proc/" + s.inspect(id, "{{.State.Pid}}") + "/status")
		s.must(err)
		var mask uint64
		for _, name := range want.caps {
			mask |= 1 << bits[name]
		}
		expectLine(s, service, string(status), "CapEff", fmt.Sprintf("%016x", mask))
		expectLine(s, service, string(status), "CapBnd", fmt.Sprintf("%016x", mask))
		expectLine(s, service, string(status), "NoNewPrivs", "1")
		expectLine(s, service, string(status), "Seccomp", "2") // a filter: the engine's default profile
		uid, gid, _ := strings.Cut(want.user, ":")
		expectLine(s, service, string(status), "Uid", strings.Join(slices.Repeat([]string{uid}, 4), "\t"))
		expectLine(s, service, string(status), "Gid", strings.Join(slices.Repeat([]string{gid}, 4), "\t"))
		inspected := s.inspect(id, "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Privileged}} {{gt .HostConfig.Memory 0}} {{.HostConfig.RestartPolicy.Name}} {{ne .State.Health nil}}")
		if inspected != "true false true unless-stopped true" {
			s.t.Errorf("%s: read-only root, privileged, memory limit, restart policy, health check: %s", service, inspected)
		}
	}
	runtimeSockets(s)
	s.expectUser("jaeger", "10001:10001")
	if rules := s.inspect(s.containers("syncloop")[0], "{{.HostConfig.DeviceCgroupRules}} {{.HostConfig.Devices}}"); rules != "[c 1:11 r] []" {
		s.t.Errorf("syncloop may use the devices %s, want %q", rules, "[c 1:11 r] []")
	}
	// The privileges are enough for syncloop's reads of the machine; it would log once that one is denied.
	if log := s.compose("logs", "syncloop"); strings.Contains(log, "are not told: its log cannot be read") {
		s.t.Errorf("syncloop cannot read the kernel's log:\n%s", log)
	}
}

// expectUser checks that the process of a service has a user and a group, and no capabilities.
func (s *stack) expectUser(service, want string) {
	s.t.Helper()
	status, err := os.ReadFile("/proc/" + s.inspect(s.containers(service)[0], "{{.State.Pid}}") + "/status")
	s.must(err)
	uid, gid, _ := strings.Cut(want, ":")
	expectLine(s, service, string(status), "Uid", strings.Join(slices.Repeat([]string{uid}, 4), "\t"))
	expectLine(s, service, string(status), "Gid", strings.Join(slices.Repeat([]string{gid}, 4), "\t"))
	expectLine(s, service, string(status), "CapBnd", fmt.Sprintf("%016x", 0))
}

func expectLine(s *stack, service, status, key, want string) {
	s.t.Helper()
	got := regexp.MustCompile(`(?m)^` + key + `:\s*(.*)$`).FindStringSubmatch(status)
	if len(got) != 2 || strings.TrimSpace(got[1]) != want {
		s.t.Errorf("%s: %s is %q, want %q", service, key, got, want)
	}
}

// runtimeSockets checks which containers see the runtime's sockets: those that use them, and no others.
func runtimeSockets(s *stack) {
	s.t.Helper()
	for service := range promised {
		root := filepath.Join("/proc", s.inspect(s.containers(service)[0], "{{.State.Pid}}"), "root")
		sees := slices.ContainsFunc([]string{"run", "var/run", s.node.Layout.StateDir()}, func(dir string) bool {
			found := false
			// Anything that cannot be listed is not seen.
			_ = filepath.WalkDir(filepath.Join(root, dir), func(_ string, entry fs.DirEntry, err error) error {
				found = found || err == nil && strings.HasPrefix(entry.Name(), "containerd.sock")
				return nil
			})
			return found
		})
		// syncloop sees the machine below /host.
		if want := service == "pleg"; sees != want {
			s.t.Errorf("%s sees the runtime's socket: %t, want %t", service, sees, want)
		}
	}
	info, err := os.Stat(filepath.Join(s.node.Layout.StateDir(), "cri"))
	s.must(err)
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || info.Mode() != os.ModeDir|0o700 || owner.Uid != 0 {
		s.t.Errorf("the directory of the runtime's sockets is %v, want %v of root", info.Mode(), os.ModeDir|0o700)
	}
}
