package nodeconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// everySource, in a list of sources, stands for all of them.
const everySource = "*"

// podSources are the names of the pod sources in flags.
var podSources = []string{"file", "http", "api", "local"}

// HostPrivileges lists, for each privilege of access to the host, the sources whose pods may have it: file, http, api
// and local, or "*" alone for every source. An empty list means none.
type HostPrivileges struct {
	HostNetwork, HostPID, HostIPC, Privileged []string
}

// PrivilegeFlags holds configmux's flags for [HostPrivileges], for it and for the commands that start it. The zero
// value is without flags.
type PrivilegeFlags struct {
	set                           *pflag.FlagSet
	network, pid, ipc, privileged string
}

// privilegeFlag is one flag and the field that it sets.
type privilegeFlag struct {
	name, action string
	value        *string
	into         func(*HostPrivileges) *[]string
}

func (f *PrivilegeFlags) all() []privilegeFlag {
	return []privilegeFlag{
		{
			"host-network-sources",
			"use the machine's network",
			&f.network,
			func(p *HostPrivileges) *[]string { return &p.HostNetwork },
		},
		{"host-pid-sources", "see the machine's processes", &f.pid, func(p *HostPrivileges) *[]string { return &p.HostPID }},
		{
			"host-ipc-sources",
			"use the machine's inter-process communication",
			&f.ipc,
			func(p *HostPrivileges) *[]string { return &p.HostIPC },
		},
		{
			"privileged-sources",
			"have privileged containers",
			&f.privileged,
			func(p *HostPrivileges) *[]string { return &p.Privileged },
		},
	}
}

// Add adds the flags to a set. Every source has every privilege by default.
func (f *PrivilegeFlags) Add(set *pflag.FlagSet) {
	f.set = set
	for _, flag := range f.all() {
		set.StringVar(
			flag.value,
			flag.name,
			everySource,
			"`SOURCES` whose pods may "+flag.action+": "+strings.Join(
				podSources,
				", ",
			)+", separated by commas, * for all, or nothing for none",
		)
	}
}

// Args returns the given flags as arguments for another process.
func (f *PrivilegeFlags) Args() []string {
	var args []string
	for _, flag := range f.given() {
		args = append(args, "--"+flag.name+"="+*flag.value)
	}
	return args
}

// Check returns an [Errors] with all problems of the flags, or nil.
func (f *PrivilegeFlags) Check() error {
	var errs Errors
	f.privileges(func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	})
	if len(errs) == 0 {
		return nil
	}
	return errs
}

func (f *PrivilegeFlags) given() []privilegeFlag {
	return slices.DeleteFunc(f.all(), func(flag privilegeFlag) bool { return f.set == nil || !f.set.Changed(flag.name) })
}

// privileges returns the privileges of the flags.
func (f *PrivilegeFlags) privileges(fail failure) HostPrivileges {
	var out HostPrivileges
	for _, flag := range f.all() {
		sources, problem := parseSources(*flag.value)
		if problem != "" {
			fail(flag.name, "%s", problem)
		}
		*flag.into(&out) = sources
	}
	return out
}

// parseSources parses SOURCE,SOURCE, and returns the problem; empty if it is valid.
func parseSources(text string) (sources []string, problem string) {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		switch {
		case part == "" || slices.Contains(sources, part):
		case part == everySource || slices.Contains(podSources, part):
			sources = append(sources, part)
		default:
			return nil, fmt.Sprintf(
				"%q is no source of pods: name %s, separated by commas, or * for all",
				part,
				strings.Join(podSources, ", "),
			)
		}
	}
	if slices.Contains(sources, everySource) {
		return []string{everySource}, ""
	}
	return sources, ""
}
