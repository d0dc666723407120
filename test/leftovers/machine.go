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

// mounts are the mount points of this process's namespace, each with its type: network namespaces that have a name and what
// a runtime mounts for containers are among them.
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

// interfaces are the network interfaces of the machine's own network namespace.
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

// cgroupRoot is where the cgroups are: of one hierarchy, or of each in a directory of its own.
const cgroupRoot = "/sys/fs/cgroup"

// cgroups are all cgroups except those that an init system makes and removes for reasons of its own.
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

// ofInit is true of a cgroup of systemd's own units: services start by timers, and people sign in.
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

// programs are those whose processes count: what a node, a runtime and an engine consist of, and what the tests' containers
// run. Others come and go on every machine.
func programs() []string {
	return []string{
		"configmux", "pleg", "syncloop", "nodestatus", "quartet", "containerd", "containerd-shim", "containerd-shim-runc-v2", "ctr",
		"runc", "dockerd", "docker-proxy", "docker-init", "pause", "hello", "jaeger", "etcd", "kube-apiserver",
		"kube-controller-manager", "kube-scheduler", "kubectl",
	}
}

// processes are the processes of the programs, each by its id and command line. One that has ended and waits for its parent to
// ask for its exit code does not count: that is the parent's affair.
func processes() ([]string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, dir := range dirs {
		content, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		args := strings.Split(string(bytes.TrimRight(content, "\x00")), "\x00")
		// A process that ends while it is read, or has ended, has no command line.
		if err != nil || !slices.Contains(programs(), filepath.Base(args[0])) {
			continue
		}
		all = append(all, filepath.Base(dir)+": "+strings.Join(args, " "))
	}
	return all, nil
}

// rules are the rules and chains of the packet filter, without their counters.
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
			// A chain of the kernel's own that accepts is there as soon as anybody has looked at its table.
			if chain, _, _ := strings.Cut(line[1:], " ["); !strings.HasSuffix(chain, " ACCEPT") {
				all = append(all, table+": chain "+chain)
			}
		case strings.HasPrefix(line, "-"):
			all = append(all, table+": "+line)
		}
	}
	return all, nil
}
