package containerspec

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// LogDir returns the directory of a pod's logs.
func LogDir(podLogsDir string, pod *v1.Pod) string {
	return filepath.Join(podLogsDir, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// SandboxInputs holds the inputs to a sandbox's configuration, in addition to its pod and node.
type SandboxInputs struct {
	// Attempt is the number of previous sandboxes of the pod.
	Attempt uint32
	// DNS is the result of DNS.
	DNS *runtimeapi.DNSConfig
	// IDs are the IDs of the pod's user namespace.
	IDs IDs
	// Groups are the supplemental groups of the pod's volumes.
	Groups []int64
	// Traceparent is the annotation of the sandbox; it may be empty.
	Traceparent string
}

// Sandbox returns the configuration of a pod's sandbox. Its errors name the field.
func Sandbox(pod *v1.Pod, node Node, in SandboxInputs) (*runtimeapi.PodSandboxConfig, error) {
	labels, annotations, err := podlabels.Sandbox(pod, in.Traceparent)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: in.Attempt,
		},
		LogDirectory: LogDir(node.PodLogsDir, pod),
		DnsConfig:    in.DNS,
		PortMappings: portMappings(pod),
		Labels:       labels,
		Annotations:  annotations,
	}
	if !pod.Spec.HostNetwork {
		host, domain := Hostname(pod, node.ClusterDomain)
		if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && domain != "" {
			host = host + "." + domain
			if len(host) > maxKernelHostname {
				// The kubelet's message, which people and tests search for.
				return nil, fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
					host, maxKernelHostname, len(host))
			}
		}
		config.Hostname = host
	}
	security, err := sandboxSecurity(pod, in)
	if err != nil {
		return nil, err
	}
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    node.CgroupParent,
		SecurityContext: security,
		Sysctls:         sysctls(pod, node.Sysctls),
		Resources:       sandboxResources(pod, node),
		Overhead:        overhead(pod, node),
	}
	return config, nil
}

const (
	// maxHostname is the maximum length of a label of a host name.
	maxHostname = 63
	// maxKernelHostname is the kernel's maximum length of a host name.
	maxKernelHostname = 64
)

// Hostname returns the host name inside a pod, and its domain if it has a subdomain.
func Hostname(pod *v1.Pod, clusterDomain string) (host, domain string) {
	host = pod.Name
	if pod.Spec.Hostname != "" {
		host = pod.Spec.Hostname
	}
	if pod.Spec.HostnameOverride != nil {
		host = *pod.Spec.HostnameOverride
	} else if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	if len(host) > maxHostname {
		host = strings.TrimRight(host[:maxHostname], "-.")
	}
	return host, domain
}

func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	var mappings []*runtimeapi.PortMapping
	for i := range pod.Spec.Containers {
		seen := map[string]bool{}
		for _, p := range pod.Spec.Containers[i].Ports {
			key := p.Name
			if key == "" {
				key = fmt.Sprintf("%s/%s/%d/%d", p.Protocol, p.HostIP, p.ContainerPort, p.HostPort)
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			protocol := runtimeapi.Protocol_TCP
			switch p.Protocol {
			case v1.ProtocolUDP:
				protocol = runtimeapi.Protocol_UDP
			case v1.ProtocolSCTP:
				protocol = runtimeapi.Protocol_SCTP
			case v1.ProtocolTCP:
			}
			mappings = append(mappings, &runtimeapi.PortMapping{
				Protocol: protocol, ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP,
			})
		}
	}
	return mappings
}

func sandboxSecurity(pod *v1.Pod, in SandboxInputs) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	security := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, in.IDs),
		Privileged:       anyPrivileged(pod),
		// The pause process needs nothing that the default profile forbids, regardless of the pod's own profile.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return security, nil
	}
	if sc.RunAsUser != nil {
		security.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	}
	if sc.RunAsGroup != nil {
		security.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
	}
	var err error
	security.SupplementalGroups, security.SupplementalGroupsPolicy, err = supplementalGroups(sc)
	security.SupplementalGroups = append(security.SupplementalGroups, in.Groups...)
	security.SelinuxOptions = selinux(sc.SELinuxOptions)
	return security, err
}

func anyPrivileged(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
				return true
			}
		}
	}
	return false
}

// sysctls returns the sysctls of the node and the pod with dots as separators, because the runtime recognizes
// namespaced ones only in that form.
func sysctls(pod *v1.Pod, defaults map[string]string) map[string]string {
	if pod.Spec.SecurityContext == nil && len(defaults) == 0 {
		return nil
	}
	out := make(map[string]string)
	for name, value := range defaults {
		if hasNamespaceOf(pod, dotted(name)) {
			out[dotted(name)] = value
		}
	}
	if pod.Spec.SecurityContext != nil {
		for _, s := range pod.Spec.SecurityContext.Sysctls {
			out[dotted(s.Name)] = s.Value
		}
	}
	return out
}

// ipcSysctls are the sysctls of the IPC namespace, besides fs.mqueue.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
	"kernel.shm_rmid_forced",
}

// hasNamespaceOf reports whether the pod has its own namespace for a sysctl.
func hasNamespaceOf(pod *v1.Pod, name string) bool {
	switch {
	case slices.Contains(ipcSysctls, name), strings.HasPrefix(name, "fs.mqueue."):
		return !pod.Spec.HostIPC
	case strings.HasPrefix(name, "user."):
		return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers
	case strings.HasPrefix(name, "net."), name == "kernel.domainname":
		return !pod.Spec.HostNetwork
	default:
		return false
	}
}

// dotted converts a sysctl's name with slashes as separators to one with dots; a dot within a part becomes a slash.
func dotted(name string) string {
	first := strings.IndexAny(name, "./")
	if first < 0 || name[first] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

func sandboxResources(pod *v1.Pod, node Node) *runtimeapi.LinuxContainerResources {
	options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options)
	var cpu *resource.Quantity
	if q, ok := requests[v1.ResourceCPU]; ok {
		cpu = &q
	}
	return linuxResources(cpu, limits.Cpu(), limits.Memory(), node)
}

func overhead(pod *v1.Pod, node Node) *runtimeapi.LinuxContainerResources {
	if pod.Spec.Overhead == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	cpu := pod.Spec.Overhead.Cpu()
	return linuxResources(cpu, cpu, pod.Spec.Overhead.Memory(), node)
}
