// Package nodeprocess finds the processes of a node on this machine by the locks of its state directory, and reads
// their command lines. Commands for a node learn from them what only its processes know.
package nodeprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// These are flags of syncloop.
	flagConfigmux  = "configmux-address"
	flagObjects    = "configmux-objects"
	flagKubeconfig = "kubeconfig"
)

// Process is a running process of a node.
type Process struct {
	PID  int
	Args []string
	// Dir is its working directory, to which paths in Args are relative; empty if this user may not know it.
	Dir string
}

// Of returns the process that holds the lock of a service in a state directory. Without a process its PID is 0, and the
// error says why. There is an error, too, if its working directory is unknown.
func Of(stateDir string, service layout.Service) (Process, error) {
	holder, err := statedir.LastHolder(stateDir, string(service))
	if err != nil || holder.PID == 0 {
		return Process{}, errors.Join(fmt.Errorf("no process has the lock of %s in %s", service, stateDir), err)
	}
	line, err := os.ReadFile(File(holder.PID, "cmdline"))
	if err != nil {
		return Process{}, fmt.Errorf("the process of %v has ended: %w", holder, err)
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	// Another process may have the number by now.
	if filepath.Base(args[0]) != string(service) {
		return Process{}, fmt.Errorf("the process of %v has ended", holder)
	}
	dir, err := os.Readlink(File(holder.PID, "cwd"))
	return Process{PID: holder.PID, Args: args, Dir: dir}, err
}

// File returns the path of a file of a process in /proc.
func File(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// Paths returns the paths that are the values of flags of the process, in their order.
func (p Process) Paths(flags ...string) []string {
	values := p.values(flags...)
	for i, value := range values {
		if !filepath.IsAbs(value) {
			values[i] = filepath.Join(p.Dir, value)
		}
	}
	return values
}

// values returns the values of flags that have one.
func (p Process) values(flags ...string) (values []string) {
	for i, arg := range p.Args {
		name, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || !slices.Contains(flags, name) {
			continue
		}
		if !hasValue && i+1 < len(p.Args) {
			value = p.Args[i+1]
		}
		if value != "" {
			values = append(values, value)
		}
	}
	return values
}

// Configmux is a configmux on another machine, such as that of a site, that serves a node.
type Configmux struct {
	Address string
	// Files are those that the node's syncloop shows to it.
	Files peertls.Files
	// Objects is true if it serves the config maps, secrets, claims and services of the node, too, and not an API server.
	Objects bool
}

// ConfigmuxElsewhere returns the configmux that the running syncloop of a state directory follows on another machine;
// false if it follows one of this machine, or does not run.
func ConfigmuxElsewhere(stateDir string) (Configmux, bool) {
	p, _ := Of(stateDir, layout.SyncLoop) // a process without a known directory may have absolute paths
	address := last(p.values(flagConfigmux))
	if address == "" || !peertls.OnNetwork(address) {
		return Configmux{}, false
	}
	return Configmux{
		Address: address,
		Files: peertls.Files{
			Cert: last(p.Paths(peertls.FlagCert)), Key: last(p.Paths(peertls.FlagKey)), CA: last(p.Paths(peertls.FlagCA)),
		},
		Objects: slices.Contains(p.Args, "--"+flagObjects) || last(p.values(flagObjects)) == "true" ||
			len(p.values(flagKubeconfig)) == 0,
	}, true
}

// last returns the value that counts of a flag that was given several times.
func last(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}
