package containerspec

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths of /proc and /sys that containers must not read or write, unless their proc mount is unmasked.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// ImageUser is the default user of an image: a number or a name, at most one of them.
type ImageUser struct {
	UID  *int64
	Name string
}

// effective returns a container's security context merged with the pod's.
func effective(pod *v1.Pod, c *v1.Container) v1.SecurityContext {
	var sc v1.SecurityContext
	if c.SecurityContext != nil {
		sc = *c.SecurityContext
	}
	if p := pod.Spec.SecurityContext; p != nil {
		sc.SELinuxOptions = first(sc.SELinuxOptions, p.SELinuxOptions)
		sc.RunAsUser = first(sc.RunAsUser, p.RunAsUser)
		sc.RunAsGroup = first(sc.RunAsGroup, p.RunAsGroup)
		sc.RunAsNonRoot = first(sc.RunAsNonRoot, p.RunAsNonRoot)
		sc.SeccompProfile = first(sc.SeccompProfile, p.SeccompProfile)
		sc.AppArmorProfile = first(sc.AppArmorProfile, first(annotatedAppArmor(pod, c), p.AppArmorProfile))
	} else {
		sc.AppArmorProfile = first(sc.AppArmorProfile, annotatedAppArmor(pod, c))
	}
	return sc
}

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// Values of the annotation for a container's AppArmor profile, which preceded the field. Manifests on disk may still
// have it, and are not converted.
const (
	appArmorAnnotation  = "container.apparmor.security.beta.kubernetes.io/"
	appArmorDefault     = "runtime/default"
	appArmorUnconfined  = "unconfined"
	appArmorLocalPrefix = "localhost/"
)

// annotatedAppArmor returns the profile in a pod's annotation for a container; nil if there is no valid one.
func annotatedAppArmor(pod *v1.Pod, c *v1.Container) *v1.AppArmorProfile {
	switch value := pod.Annotations[appArmorAnnotation+c.Name]; value {
	case appArmorDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case appArmorUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	default:
		if name, ok := strings.CutPrefix(value, appArmorLocalPrefix); ok {
			return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
		}
	}
	return nil
}

func isTrue(b *bool) bool { return b != nil && *b }

// containerSecurity returns the runtime's security context. It fails if the container must not run as root and would,
// or if a profile is invalid.
func containerSecurity(
	pod *v1.Pod, c *v1.Container, in Inputs, node Node,
) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc, user := effective(pod, c), in.ImageUser
	if err := checkNonRoot(sc, user); err != nil {
		return nil, err
	}
	security := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: namespaces(pod, in.IDs),
		SelinuxOptions:   selinux(sc.SELinuxOptions),
		Privileged:       isTrue(sc.Privileged),
		ReadonlyRootfs:   isTrue(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:       sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		MaskedPaths:      slices.Concat(maskedPaths, node.MaskedPaths),
		ReadonlyPaths:    readonlyPaths,
	}
	if sc.ProcMount != nil && *sc.ProcMount == v1.UnmaskedProcMount {
		security.MaskedPaths, security.ReadonlyPaths = []string{}, []string{}
	}
	switch {
	case sc.RunAsUser != nil:
		security.RunAsUser = &runtimeapi.Int64Value{Value: *sc.RunAsUser}
	case user.UID != nil:
		security.RunAsUser = &runtimeapi.Int64Value{Value: *user.UID}
	default:
		security.RunAsUsername = user.Name
	}
	if sc.RunAsGroup != nil {
		security.RunAsGroup = &runtimeapi.Int64Value{Value: *sc.RunAsGroup}
	}
	if sc.Capabilities != nil {
		security.Capabilities = &runtimeapi.Capability{}
		for _, name := range sc.Capabilities.Add {
			security.Capabilities.AddCapabilities = append(security.Capabilities.AddCapabilities, string(name))
		}
		for _, name := range sc.Capabilities.Drop {
			security.Capabilities.DropCapabilities = append(security.Capabilities.DropCapabilities, string(name))
		}
	}
	var err error
	security.SupplementalGroups, security.SupplementalGroupsPolicy, err = supplementalGroups(pod.Spec.SecurityContext)
	if err != nil {
		return nil, err
	}
	security.SupplementalGroups = append(security.SupplementalGroups, in.Groups...)
	if security.Seccomp, err = seccomp(sc.SeccompProfile, node); err != nil {
		return nil, err
	}
	security.Apparmor, err = appArmor(sc.AppArmorProfile)
	return security, err
}

func checkNonRoot(sc v1.SecurityContext, user ImageUser) error {
	switch {
	case !isTrue(sc.RunAsNonRoot):
	case sc.RunAsUser != nil:
		if *sc.RunAsUser == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy")
		}
	case user.UID == nil && user.Name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root: set securityContext.runAsUser", user.Name)
	case user.UID != nil && *user.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root")
	case user.UID != nil && (*user.UID < 0 || *user.UID > math.MaxInt32):
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d): it must be from 1 to %d: set securityContext.runAsUser", *user.UID, math.MaxInt32)
	}
	return nil
}

func supplementalGroups(sc *v1.PodSecurityContext) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	if sc == nil {
		return nil, runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	var groups []int64
	if sc.FSGroup != nil {
		groups = append(groups, *sc.FSGroup)
	}
	groups = append(groups, sc.SupplementalGroups...)
	policy := runtimeapi.SupplementalGroupsPolicy_Merge
	if sc.SupplementalGroupsPolicy != nil {
		value, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*sc.SupplementalGroupsPolicy)]
		if !ok {
			return nil, policy, fmt.Errorf("spec.securityContext.supplementalGroupsPolicy: %q is neither Merge nor Strict", *sc.SupplementalGroupsPolicy)
		}
		policy = runtimeapi.SupplementalGroupsPolicy(value)
	}
	return groups, policy, nil
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func seccomp(p *v1.SeccompProfile, node Node) (*runtimeapi.SecurityProfile, error) {
	unconfined := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	byDefault := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	switch {
	case p == nil && node.SeccompDefault:
		return byDefault, nil
	case p == nil, p.Type == v1.SeccompProfileTypeUnconfined:
		return unconfined, nil
	case p.Type == v1.SeccompProfileTypeRuntimeDefault:
		return byDefault, nil
	case p.Type == v1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil && *p.LocalhostProfile != "":
		return &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(node.SeccompDir, *p.LocalhostProfile),
		}, nil
	case p.Type == v1.SeccompProfileTypeLocalhost:
		return nil, fmt.Errorf("securityContext.seccompProfile.localhostProfile: must name a file when type is Localhost")
	}
	return nil, fmt.Errorf("securityContext.seccompProfile.type: %q is not known", p.Type)
}

func appArmor(p *v1.AppArmorProfile) (*runtimeapi.SecurityProfile, error) {
	switch {
	case p == nil:
		return nil, nil
	case p.Type == v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case p.Type == v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case p.Type == v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile,
		}, nil
	case p.Type == v1.AppArmorProfileTypeLocalhost:
		return nil, fmt.Errorf("securityContext.appArmorProfile.localhostProfile: must name a profile when type is Localhost")
	}
	return nil, fmt.Errorf("securityContext.appArmorProfile.type: %q is not known", p.Type)
}
