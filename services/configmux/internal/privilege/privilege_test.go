package privilege_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
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
	every := []string{privilege.Every}
	for name, tc := range map[string]struct {
		allowed privilege.Allowed
		want    []string
	}{
		"nobody may":           {privilege.Allowed{}, all},
		"every source may":     {privilege.Allowed{HostNetwork: every, HostPID: every, HostIPC: every, Privileged: every}, nil},
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
				(!strings.HasPrefix(text, `Forbidden: a pod of the source "http" must not `) || !strings.HasSuffix(text, `, or name "http" in `+flag+" of configmux")) {
				t.Errorf("%s: %s", field, text)
			}
		}
	}
}
