// Package privilege decides whether a pod may have access to the host, such as its network, its files and privileged
// containers. The configuration names the sources whose pods may, and nothing in the pod can change that.
//
// configmux calls it for each pod before it passes the pod on, and its users get the errors. syncloop calls it for each
// pod before it runs the pod, so that a configmux that was taken over cannot give pods what no source may. It is pure.
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
	HostNetwork, HostPID, HostIPC, Privileged       []string
	HostPath, HostPorts, Capabilities, UnmaskedProc []string
}

// Everything returns an Allowed by which every source may have every privilege.
func Everything() Allowed {
	every := []string{Every}
	return Allowed{
		HostNetwork: every, HostPID: every, HostIPC: every, Privileged: every,
		HostPath: every, HostPorts: every, Capabilities: every, UnmaskedProc: every,
	}
}

// rule is one privilege: its sources, what a pod with it does, and the flag for the sources.
type rule struct {
	sources      []string
	action, flag string
}

// Check returns one error for each field by which a pod requests a privilege that its source does not allow; none if
// the pod is permitted. The pod needs no defaults.
func Check(pod *v1.Pod, source string, allowed Allowed) field.ErrorList {
	c := checker{source: source, pod: pod, allowed: allowed}
	spec := field.NewPath("spec")
	network := rule{allowed.HostNetwork, "use the machine's network", "--host-network-sources"}
	pid := rule{allowed.HostPID, "see the machine's processes", "--host-pid-sources"}
	ipc := rule{allowed.HostIPC, "use the machine's inter-process communication", "--host-ipc-sources"}
	c.check(pod.Spec.HostNetwork, spec.Child("hostNetwork"), network)
	c.check(pod.Spec.HostPID, spec.Child("hostPID"), pid)
	c.check(pod.Spec.HostIPC, spec.Child("hostIPC"), ipc)
	hostPath := rule{allowed.HostPath, "mount the machine's files", "--host-path-sources"}
	for i := range pod.Spec.Volumes {
		c.check(pod.Spec.Volumes[i].HostPath != nil, spec.Child("volumes").Index(i).Child("hostPath"), hostPath)
	}
	for i := range pod.Spec.InitContainers {
		one := &pod.Spec.InitContainers[i]
		c.container(one.SecurityContext, one.Ports, spec.Child("initContainers").Index(i))
	}
	for i := range pod.Spec.Containers {
		one := &pod.Spec.Containers[i]
		c.container(one.SecurityContext, one.Ports, spec.Child("containers").Index(i))
	}
	for i := range pod.Spec.EphemeralContainers {
		one := &pod.Spec.EphemeralContainers[i]
		c.container(one.SecurityContext, one.Ports, spec.Child("ephemeralContainers").Index(i))
	}
	return c.errs
}

// checker collects the refused fields of a pod.
type checker struct {
	source  string
	pod     *v1.Pod
	allowed Allowed
	errs    field.ErrorList
}

// container checks the fields of a container. The ports of a pod in the machine's network are not checked, because the
// rule for that network decides.
func (c *checker) container(security *v1.SecurityContext, ports []v1.ContainerPort, at *field.Path) {
	hostPorts := rule{c.allowed.HostPorts, "take ports of the machine", "--host-port-sources"}
	for i := range ports {
		taken := ports[i].HostPort != 0 && !c.pod.Spec.HostNetwork
		c.check(taken, at.Child("ports").Index(i).Child("hostPort"), hostPorts)
	}
	if security == nil {
		return
	}
	privileged := rule{c.allowed.Privileged, "have privileged containers", "--privileged-sources"}
	capabilities := rule{c.allowed.Capabilities, "add capabilities", "--added-capabilities-sources"}
	proc := rule{c.allowed.UnmaskedProc, "see all of /proc", "--unmasked-proc-sources"}
	at = at.Child("securityContext")
	c.check(security.Privileged != nil && *security.Privileged, at.Child("privileged"), privileged)
	added := security.Capabilities != nil && len(security.Capabilities.Add) > 0
	c.check(added, at.Child("capabilities", "add"), capabilities)
	unmasked := security.ProcMount != nil && *security.ProcMount != v1.DefaultProcMount
	c.check(unmasked, at.Child("procMount"), proc)
}

// check refuses a field if the pod requests a privilege that its source does not allow.
func (c *checker) check(requested bool, at *field.Path, r rule) {
	if !requested || slices.Contains(r.sources, c.source) || slices.Contains(r.sources, Every) {
		return
	}
	c.errs = append(c.errs, field.Forbidden(at, fmt.Sprintf(
		"a pod of the source %q must not %s: leave the field out, or name %[1]q in %[3]s of configmux and syncloop",
		c.source,
		r.action,
		r.flag,
	)))
}
