package admission

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are namespaced and isolated sysctls, each with the first kernel on which that is so; nil for every
// kernel. From https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/#safe-and-unsafe-sysctls.
var safeSysctls = map[string]*version.Version{
	"kernel.shm_rmid_forced":              nil,
	"net.ipv4.ip_local_port_range":        nil,
	"net.ipv4.tcp_syncookies":             nil,
	"net.ipv4.ping_group_range":           nil,
	"net.ipv4.ip_unprivileged_port_start": nil,
	"net.ipv4.ip_local_reserved_ports":    version.MajorMinor(3, 16),
	"net.ipv4.tcp_keepalive_time":         version.MajorMinor(4, 5),
	"net.ipv4.tcp_keepalive_intvl":        version.MajorMinor(4, 5),
	"net.ipv4.tcp_keepalive_probes":       version.MajorMinor(4, 5),
	"net.ipv4.tcp_fin_timeout":            version.MajorMinor(4, 6),
	"net.ipv4.tcp_notsent_lowat":          version.MajorMinor(4, 6),
	"net.ipv4.tcp_rmem":                   version.MajorMinor(4, 15),
	"net.ipv4.tcp_wmem":                   version.MajorMinor(4, 15),
	"net.ipv4.tcp_slow_start_after_idle":  version.MajorMinor(4, 15),
}

// isSafe reports whether a sysctl is safe on a kernel, which is nil if unknown.
func isSafe(name string, kernel *version.Version) bool {
	since, listed := safeSysctls[name]
	return listed && (since == nil || kernel != nil && kernel.AtLeast(since))
}

// sysctls refuses a pod that sets a sysctl of the machine, or an unsafe one that is not allowed.
func sysctls(r Request) *Refusal {
	sc := r.Pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	hostUsers := r.Pod.Spec.HostUsers == nil || *r.Pod.Spec.HostUsers
	for _, s := range sc.Sysctls {
		namespace, name, _ := sysctl.GetNamespace(s.Name)
		allowed := isSafe(name, r.Machine.Kernel) ||
			slices.ContainsFunc(r.UnsafeSysctls, func(allowed string) bool { return covers(allowed, name) })
		switch {
		case !allowed:
			return forbidden("%q not allowlisted", name)
		case r.Pod.Spec.HostNetwork && namespace == sysctl.NetNamespace,
			r.Pod.Spec.HostIPC && namespace == sysctl.IPCNamespace,
			hostUsers && namespace == sysctl.UserNamespace:
			return forbidden("%q not allowed with host %s enabled", name, namespace)
		}
	}
	return nil
}

func forbidden(format string, args ...any) *Refusal {
	return &Refusal{Reason: ReasonSysctl, Message: "forbidden sysctl: " + fmt.Sprintf(format, args...)}
}

// covers reports whether an entry of allowedUnsafeSysctls, a name or a prefix followed by a star, matches a name.
func covers(allowed, name string) bool {
	allowed = sysctl.NormalizeName(allowed)
	if prefix, isPrefix := strings.CutSuffix(allowed, "*"); isPrefix {
		return strings.HasPrefix(name, prefix)
	}
	return allowed == name
}
