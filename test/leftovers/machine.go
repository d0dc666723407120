package leftovers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// mounts returns the mount points of this process's namespace, each with its type. They include named network
// namespaces and a runtime's mounts for containers.
func mounts() ([]string, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(content)) {
		before, after, found := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) == 0 {
			return nil, fmt.Errorf("/proc/self/mountinfo has the line %q", line)
		}
		all = append(all, fields[4]+" ("+kind[0]+")")
	}
	return all, nil
}

// interfaces returns the network interfaces of the machine's own network namespace.
func interfaces() ([]string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(links))
	for _, link := range links {
		all = append(all, link.Name)
	}
	return all, nil
}

// cgroupRoot is the mount point of the cgroups: of one hierarchy, or of each in a directory of its own.
const cgroupRoot = "/sys/fs/cgroup"

// cgroups returns all cgroups except those that an init system creates and removes by itself.
func cgroups() ([]string, error) {
	var all []string
	err := filepath.WalkDir(cgroupRoot, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it has just ended
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case ofInit(entry.Name()):
			return fs.SkipDir
		}
		all = append(all, strings.TrimPrefix(path, cgroupRoot))
		return nil
	})
	return all, err
}

// ofInit reports whether a cgroup is one of systemd's own units: services start by timers, and users log in.
func ofInit(name string) bool {
	switch filepath.Ext(name) {
	case ".service", ".mount", ".socket", ".swap":
		return true
	case ".scope":
		return strings.HasPrefix(name, "session-") || strings.HasPrefix(name, "init")
	case ".slice":
		return strings.HasPrefix(name, "user")
	default:
		return false
	}
}

// programs returns the programs whose processes count: those of a node, a runtime and an engine, and those of the
// tests' containers. Others come and go on every machine.
func programs() []string {
	return []string{
		"configmux", "pleg", "syncloop", "nodestatus", "quartet", "containerd", "containerd-shim", "containerd-shim-runc-v2", "ctr",
		"runc", "dockerd", "docker-proxy", "docker-init", "pause", "hello", "jaeger", "etcd", "kube-apiserver",
		"kube-controller-manager", "kube-scheduler", "kubectl",
	}
}

// processes returns the processes of the programs, each with its id and command line. A process that has ended and
// waits for its parent to collect its exit code does not count.
func processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, dir := range dirs {
		content, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		args := strings.Split(string(bytes.TrimRight(content, "\x00")), "\x00")
		// A process that has ended, or ends meanwhile, has no command line.
		if err != nil || !slices.Contains(programs(), filepath.Base(args[0])) {
			continue
		}
		all = append(all, filepath.Base(dir)+": "+strings.Join(args, " "))
	}
	return all, nil
}

// rules returns the rules and chains of the packet filter, without their counters.
func rules() ([]string, error) {
	if _, err := exec.LookPath("iptables-save"); err != nil {
		return nil, nil
	}
	out, err := exec.Command("iptables-save").Output()
	if err != nil {
		return nil, fmt.Errorf("iptables-save: %w", err)
	}
	var all []string
	table := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			// The kernel creates its own accepting chains as soon as a program reads their table.
			if chain, _, _ := strings.Cut(line[1:], " ["); !strings.HasSuffix(chain, " ACCEPT") {
				all = append(all, table+": chain "+chain)
			}
		case strings.HasPrefix(line, "-"):
			all = append(all, table+": "+line)
		}
	}
	return all, nil
}
