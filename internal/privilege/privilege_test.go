package privilege_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/privilege"
)

func yes() *v1.SecurityContext { return privileged(true) }

func privileged(is bool) *v1.SecurityContext { return &v1.SecurityContext{Privileged: &is} }

// greedy returns a pod with every host privilege, in every field.
func greedy() *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{
		HostNetwork:    true,
		HostPID:        true,
		HostIPC:        true,
		InitContainers: []v1.Container{{}, {SecurityContext: yes()}},
		Containers: []v1.Container{
			{SecurityContext: yes()},
			{SecurityContext: privileged(false)},
			{SecurityContext: &v1.SecurityContext{}},
		},
		EphemeralContainers: []v1.EphemeralContainer{
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{SecurityContext: yes()}},
		},
	}}
}

func fields(pod *v1.Pod, source string, allowed privilege.Allowed) []string {
	var out []string
	for _, e := range privilege.Check(pod, source, allowed) {
		out = append(out, e.Field)
	}
	return out
}

func TestEachPrivilegeIsRefusedByFieldUnlessItsOwnListNamesTheSource(t *testing.T) {
	all := []string{
		"spec.hostNetwork", "spec.hostPID", "spec.hostIPC", "spec.initContainers[1].securityContext.privileged",
		"spec.containers[0].securityContext.privileged", "spec.ephemeralContainers[0].securityContext.privileged",
	}
	for name, tc := range map[string]struct {
		allowed privilege.Allowed
		want    []string
	}{
		"nobody may":           {privilege.Allowed{}, all},
		"every source may":     {privilege.Everything(), nil},
		"network":              {privilege.Allowed{HostNetwork: []string{"file", "http"}}, all[1:]},
		"PID":                  {privilege.Allowed{HostPID: []string{"http"}}, append([]string{all[0]}, all[2:]...)},
		"IPC":                  {privilege.Allowed{HostIPC: []string{"http"}}, append(slices.Clone(all[:2]), all[3:]...)},
		"containers":           {privilege.Allowed{Privileged: []string{"http"}}, all[:3]},
		"another source may":   {privilege.Allowed{HostNetwork: []string{"file"}, HostPID: []string{"api"}, HostIPC: []string{"local"}, Privileged: []string{"file"}}, all},
		"part of a name is no": {privilege.Allowed{HostNetwork: []string{"htt", "https", ""}}, all},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fields(greedy(), "http", tc.allowed); !slices.Equal(got, tc.want) {
				t.Errorf("refused %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAPodWithoutPrivilegesIsAllowedForEverySource(t *testing.T) {
	modest := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{}, {SecurityContext: privileged(false)}}}}
	if got := fields(modest, "http", privilege.Allowed{}); got != nil {
		t.Errorf("refused %q, want nil", got)
	}
}

func TestARefusalNamesTheSourceAndTheFlag(t *testing.T) {
	for field, flag := range map[string]string{
		"spec.hostNetwork": "--host-network-sources", "spec.hostPID": "--host-pid-sources", "spec.hostIPC": "--host-ipc-sources",
		"spec.containers[0].securityContext.privileged": "--privileged-sources",
	} {
		for _, e := range privilege.Check(greedy(), "http", privilege.Allowed{}) {
			if text := e.ErrorBody(); e.Field == field &&
				(!strings.HasPrefix(text, `Forbidden: a pod of the source "http" must not `) || !strings.HasSuffix(text, `, or name "http" in `+flag+" of configmux and syncloop")) {
				t.Errorf("%s: %s", field, text)
			}
		}
	}
}

// TestEachPrivilegeOfEachSource goes through all sources and privileges: a pod with one privilege is refused if its
// source is not in the list of that privilege, whatever the other lists have.
func TestEachPrivilegeOfEachSource(t *testing.T) {
	unmasked, masked := v1.UnmaskedProcMount, v1.DefaultProcMount
	container := func(c v1.Container) v1.PodSpec { return v1.PodSpec{Containers: []v1.Container{{}, c}} }
	secure := func(sc v1.SecurityContext) v1.PodSpec { return container(v1.Container{SecurityContext: &sc}) }
	hostPath := v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}
	none := v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	dropped := v1.Capabilities{Drop: []v1.Capability{"ALL"}}
	for _, tc := range []struct {
		list   func(*privilege.Allowed) *[]string
		spec   v1.PodSpec
		modest v1.PodSpec
		field  string
		flag   string
	}{
		{
			func(a *privilege.Allowed) *[]string { return &a.HostNetwork },
			v1.PodSpec{HostNetwork: true, Containers: []v1.Container{{Ports: []v1.ContainerPort{{HostPort: 80}}}}},
			v1.PodSpec{}, "spec.hostNetwork", "--host-network-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.HostPID },
			v1.PodSpec{HostPID: true}, v1.PodSpec{}, "spec.hostPID", "--host-pid-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.HostIPC },
			v1.PodSpec{HostIPC: true}, v1.PodSpec{}, "spec.hostIPC", "--host-ipc-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.Privileged },
			secure(*yes()), secure(*privileged(false)),
			"spec.containers[1].securityContext.privileged", "--privileged-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.HostPath },
			v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: none}, {VolumeSource: hostPath}}},
			v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: none}}}, "spec.volumes[1].hostPath", "--host-path-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.HostPorts },
			container(v1.Container{Ports: []v1.ContainerPort{{ContainerPort: 80}, {HostPort: 80}}}),
			container(v1.Container{Ports: []v1.ContainerPort{{ContainerPort: 80}}}),
			"spec.containers[1].ports[1].hostPort", "--host-port-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.Capabilities },
			secure(v1.SecurityContext{Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}}}),
			secure(v1.SecurityContext{Capabilities: &dropped}),
			"spec.containers[1].securityContext.capabilities.add", "--added-capabilities-sources",
		},
		{
			func(a *privilege.Allowed) *[]string { return &a.UnmaskedProc },
			secure(v1.SecurityContext{ProcMount: &unmasked}), secure(v1.SecurityContext{ProcMount: &masked}),
			"spec.containers[1].securityContext.procMount", "--unmasked-proc-sources",
		},
	} {
		for _, source := range []string{"file", "http", "api", "local", "", "another"} {
			if got := fields(&v1.Pod{Spec: tc.modest}, source, privilege.Allowed{}); got != nil {
				t.Errorf("%s of %q: %q is refused in a pod without the privilege", tc.field, source, got)
			}
			pod, allowed := &v1.Pod{Spec: tc.spec}, privilege.Everything()
			for _, list := range [][]string{nil, {"file"}, {"http", "api"}, {"local"}, {privilege.Every}} {
				*tc.list(&allowed) = list
				want := []string{tc.field}
				if slices.Contains(list, source) || slices.Contains(list, privilege.Every) {
					want = nil
				}
				errs := privilege.Check(pod, source, allowed)
				if got := fields(pod, source, allowed); !slices.Equal(got, want) {
					t.Errorf("the list %q, source %q: refused %q, want %q", list, source, got, want)
				} else if len(errs) > 0 && !strings.Contains(errs[0].Detail, " in "+tc.flag+" of configmux and syncloop") {
					t.Errorf("the error %q does not name %s", errs[0].Detail, tc.flag)
				}
			}
			var only privilege.Allowed
			*tc.list(&only) = []string{source}
			if got := fields(pod, source, only); got != nil {
				t.Errorf("the source %q alone may have %s, and is refused %q", source, tc.field, got)
			}
		}
	}
}
