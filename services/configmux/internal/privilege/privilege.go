// Package privilege decides whether a pod may have access to the host: the network, process and IPC namespaces of the
// machine, and privileged containers. The configuration names the sources whose pods may, and nothing in the pod can
// change that.
//
// The sources call it for each pod before they pass the pod on; for manifests, staticpod does. It is pure.
package privilege

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Every in a list of sources means all sources.
const Every = "*"

// Allowed lists, for each privilege, the names of the sources whose pods may have it. The zero value allows none. It is
// nodeconfig.HostPrivileges, and converts from it.
type Allowed struct {
	HostNetwork, HostPID, HostIPC, Privileged []string
}

// Check returns one error for each field by which a pod requests a privilege that its source does not allow; none if
// the pod is permitted. The pod needs no defaults.
func Check(pod *v1.Pod, source string, allowed Allowed) field.ErrorList {
	c := checker{source: source}
	spec := field.NewPath("spec")
	c.check(
		pod.Spec.HostNetwork,
		spec.Child("hostNetwork"),
		allowed.HostNetwork,
		"use the machine's network",
		"--host-network-sources",
	)
	c.check(pod.Spec.HostPID, spec.Child("hostPID"), allowed.HostPID, "see the machine's processes", "--host-pid-sources")
	c.check(
		pod.Spec.HostIPC,
		spec.Child("hostIPC"),
		allowed.HostIPC,
		"use the machine's inter-process communication",
		"--host-ipc-sources",
	)
	container := func(security *v1.SecurityContext, at *field.Path) {
		requested := security != nil && security.Privileged != nil && *security.Privileged
		c.check(
			requested,
			at.Child("securityContext", "privileged"),
			allowed.Privileged,
			"have privileged containers",
			"--privileged-sources",
		)
	}
	for i := range pod.Spec.InitContainers {
		container(pod.Spec.InitContainers[i].SecurityContext, spec.Child("initContainers").Index(i))
	}
	for i := range pod.Spec.Containers {
		container(pod.Spec.Containers[i].SecurityContext, spec.Child("containers").Index(i))
	}
	for i := range pod.Spec.EphemeralContainers {
		container(pod.Spec.EphemeralContainers[i].SecurityContext, spec.Child("ephemeralContainers").Index(i))
	}
	return c.errs
}

// checker collects the refused fields of a pod.
type checker struct {
	source string
	errs   field.ErrorList
}

// check refuses a field if the pod requests a privilege that its source does not allow.
func (c *checker) check(requested bool, at *field.Path, sources []string, action, flag string) {
	if !requested || slices.Contains(sources, c.source) || slices.Contains(sources, Every) {
		return
	}
	c.errs = append(c.errs, field.Forbidden(at, fmt.Sprintf(
		"a pod of the source %q must not %s: leave the field out, or name %[1]q in %[3]s of configmux",
		c.source,
		action,
		flag,
	)))
}
