package admission

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/component-helpers/node/util/sysctl"
)

// safeSysctls are those that are the pod's own and harm nobody else. From
// https://kubernetes.io/docs/tasks/administer-cluster/sysctl-cluster/#safe-and-unsafe-sysctls.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// sysctls refuses a pod that sets what is not its own, or what nobody has allowed it to.
func sysctls(r Request) *Refusal {
	sc := r.Pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	for _, s := range sc.Sysctls {
		namespace, name, _ := sysctl.GetNamespace(s.Name)
		allowed := slices.Contains(safeSysctls, name) ||
			slices.ContainsFunc(r.UnsafeSysctls, func(allowed string) bool { return covers(allowed, name) })
		switch {
		case !allowed:
			return forbidden("%q not allowlisted", s.Name)
		case r.Pod.Spec.HostNetwork && namespace == sysctl.NetNamespace:
			return forbidden("%q not allowed with host net enabled", s.Name)
		case r.Pod.Spec.HostIPC && namespace == sysctl.IPCNamespace:
			return forbidden("%q not allowed with host ipc enabled", s.Name)
		}
	}
	return nil
}

func forbidden(format, name string) *Refusal {
	return &Refusal{Reason: ReasonSysctl, Message: "forbidden sysctl: " + fmt.Sprintf(format, name)}
}

// covers tells whether an entry of allowedUnsafeSysctls, a name or the beginning of some followed by a star, allows one.
func covers(allowed, name string) bool {
	allowed = sysctl.NormalizeName(allowed)
	if prefix, some := strings.CutSuffix(allowed, "*"); some {
		return strings.HasPrefix(name, prefix)
	}
	return allowed == name
}
