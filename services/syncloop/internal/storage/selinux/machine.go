package selinux

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	v1 "k8s.io/api/core/v1"
)

// sharedLabel is the kubelet's label of directories that plugins in containers use.
const sharedLabel = "system_u:object_r:container_file_t:s0"

// Machine is the Host of this machine.
type Machine struct{}

// Enabled implements Host.
func (Machine) Enabled() bool { return selinux.GetEnabled() }

// FileLabel implements Host.
func (Machine) FileLabel(options *v1.SELinuxOptions) (string, error) {
	arguments := argumentsOf(options)
	if len(arguments) == 0 {
		return "", nil
	}
	process, file, err := label.InitLabels(arguments)
	if err != nil {
		return "", err
	}
	selinux.ReleaseLabel(process) // the runtime chooses its own if the options leave the level out
	return file, nil
}

// HasLabels implements Host.
func (Machine) HasLabels(path string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return false, fmt.Errorf("read the mount table: %w", err)
	}
	return hasLabels(mounts), nil
}

// hasLabels reports whether the innermost one of nested mounts has labels. Of several at one place, the last one
// counts.
func hasLabels(mounts []*mountinfo.Info) bool {
	var at *mountinfo.Info
	for _, m := range mounts {
		if at == nil || len(m.Mountpoint) >= len(at.Mountpoint) {
			at = m
		}
	}
	return at != nil && slices.Contains(strings.Split(at.Options+","+at.VFSOptions, ","), "seclabel")
}

// argumentsOf returns options in the form of the library.
func argumentsOf(options *v1.SELinuxOptions) []string {
	var arguments []string
	for _, part := range []struct{ name, value string }{
		{"user", options.User}, {"role", options.Role}, {"type", options.Type}, {"level", options.Level},
	} {
		if part.value != "" {
			arguments = append(arguments, part.name+":"+part.value)
		}
	}
	return arguments
}

// Share gives a directory the label of those that plugins in containers use. It is a no-op on a machine without
// SELinux.
func Share(dir string) error {
	if !selinux.GetEnabled() {
		return nil
	}
	return selinux.SetFileLabel(dir, sharedLabel)
}
