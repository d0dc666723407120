// Package buildinfo reports the versions that the running program was built from.
package buildinfo

import "runtime/debug"

// version is set by the linker; the Makefile takes it from git.
var version = "unknown"

// Version is the version of Quartet as git describes it; "unknown" in a build that is not the Makefile's.
func Version() string { return version }

// Module returns the version of a module in this program, by its path; for a replaced module, the version of its
// replacement. It is empty if the module is not in the program or the build does not record it.
func Module(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path != path {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}

// kubernetes is that of k8s.io/api in go.mod: v0.37.1 is Kubernetes v1.37.1. A test compares both. The binary of a test
// does not record its modules.
const kubernetes = "v1.37.2"

// Kubernetes returns the version of Kubernetes whose API this program was built with.
func Kubernetes() string { return kubernetes }
