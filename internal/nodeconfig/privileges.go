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
	HostNetwork, HostPID, HostIPC, Privileged       []string
	HostPath, HostPorts, Capabilities, UnmaskedProc []string
}

// PrivilegeFlags holds the flags of configmux and syncloop for [HostPrivileges], for them and for the commands that
// start them. The zero value is without flags.
type PrivilegeFlags struct {
	set *pflag.FlagSet
	// values has the value of each flag of privilegeFlags.
	values [privilegeCount]string
}

// privilegeCount is the number of privileges.
const privilegeCount = 8

// privilegeFlag is one flag and the field that it sets.
type privilegeFlag struct {
	name, action string
	into         func(*HostPrivileges) *[]string
}

var privilegeFlags = [privilegeCount]privilegeFlag{
	{"host-network-sources", "use the machine's network", func(p *HostPrivileges) *[]string { return &p.HostNetwork }},
	{"host-pid-sources", "see the machine's processes", func(p *HostPrivileges) *[]string { return &p.HostPID }},
	{
		"host-ipc-sources", "use the machine's inter-process communication",
		func(p *HostPrivileges) *[]string { return &p.HostIPC },
	},
	{"privileged-sources", "have privileged containers", func(p *HostPrivileges) *[]string { return &p.Privileged }},
	{"host-path-sources", "mount the machine's files", func(p *HostPrivileges) *[]string { return &p.HostPath }},
	{"host-port-sources", "take ports of the machine", func(p *HostPrivileges) *[]string { return &p.HostPorts }},
	{"added-capabilities-sources", "add capabilities", func(p *HostPrivileges) *[]string { return &p.Capabilities }},
	{
		"unmasked-proc-sources", "see all of /proc (procMount Unmasked)",
		func(p *HostPrivileges) *[]string { return &p.UnmaskedProc },
	},
}

// Add adds the flags to a set. Every source has every privilege by default.
func (f *PrivilegeFlags) Add(set *pflag.FlagSet) {
	f.set = set
	sources := ": " + strings.Join(podSources, ", ") + ", separated by commas, * for all, or nothing for none"
	for i, flag := range privilegeFlags {
		set.StringVar(&f.values[i], flag.name, everySource, "`SOURCES` whose pods may "+flag.action+sources)
	}
}

// Args returns the given flags as arguments for another process.
func (f *PrivilegeFlags) Args() []string {
	var args []string
	for i, flag := range privilegeFlags {
		if f.isGiven(flag) {
			args = append(args, "--"+flag.name+"="+f.values[i])
		}
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

// isGiven reports whether the command line has a flag.
func (f *PrivilegeFlags) isGiven(flag privilegeFlag) bool {
	return f.set != nil && f.set.Changed(flag.name)
}

// privileges returns the privileges of the flags.
func (f *PrivilegeFlags) privileges(fail failure) HostPrivileges {
	var out HostPrivileges
	for i, flag := range privilegeFlags {
		sources, problem := parseSources(f.values[i])
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
