package containerspec_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

func TestASubPathIsMadeOfTheEnvironment(t *testing.T) {
	for _, test := range []struct{ expr, want, err string }{
		{expr: "$(POD)/$(LOGS)", want: "web/var/logs"},
		{expr: "a/$$(POD)/$POD", want: "a/$(POD)/$POD"},
		{expr: "../$(POD)", want: "../web"}, // rejected by another package
		{expr: "$(POD)/$(ZZ)/$(EMPTY)", err: "missing value for EMPTY, ZZ"},
	} {
		pod := testPod(v1.Container{
			Name: "app",
			Env: []v1.EnvVar{
				{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}, {Name: "DIR", Value: "var"}, {Name: "LOGS", Value: "$(DIR)/logs"}, {Name: "EMPTY"},
			},
			VolumeMounts: []v1.VolumeMount{{Name: "a"}, {Name: "b", SubPath: "$(POD)"}, {Name: "c", SubPathExpr: test.expr}},
		})
		got, err := containerspec.SubPaths(pod, &pod.Spec.Containers[0], node, containerspec.Inputs{})
		if said := errorText(err); said != test.err {
			t.Errorf("%s: error %q, want %q", test.expr, said, test.err)
		}
		if want := []string{"", "$(POD)", test.want}; err == nil && !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", test.expr, got, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
