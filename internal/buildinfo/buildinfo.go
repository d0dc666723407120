// Package buildinfo says what the running program was built from.
package buildinfo

import (
	"runtime/debug"
	"strings"
)

// version is set by the linker; the Makefile takes it from git.
var version = "unknown"

// Version is the version of Quartet as git describes it; "unknown" in a build that is not the Makefile's.
func Version() string { return version }

// Module returns the version of a module that is in this program, by its path; of a replaced one the version of what
// replaces it. It is empty when the module is not in the program or the build does not say.
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

// Kubernetes is the version of Kubernetes whose API this program was built with: v0.37.1 of k8s.io/api is Kubernetes
// v1.37.1. It is empty when k8s.io/api is not in the program.
func Kubernetes() string { return strings.Replace(Module("k8s.io/api"), "v0.", "v1.", 1) }
