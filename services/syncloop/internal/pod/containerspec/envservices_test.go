package containerspec_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// TestVariablesOfServices checks that env overrides envFrom, and both override the variables of Services. Values,
// command, args and sub-paths may refer to the variables of Services.
func TestVariablesOfServices(t *testing.T) {
	in := held(map[string]map[string]string{"app": {"WEB_PORT": "from the config map"}}, nil, nil)
	in.Services = []v1.EnvVar{
		{Name: "WEB_SERVICE_HOST", Value: "10.96.0.2"}, {Name: "WEB_SERVICE_PORT", Value: "80"}, {Name: "WEB_PORT", Value: "tcp://10.96.0.2:80"},
		{Name: "LITERAL", Value: "$(WEB_SERVICE_HOST)"},
	}
	c := v1.Container{
		Name:    "a",
		EnvFrom: []v1.EnvFromSource{fromConfigMap("app", "", nil)},
		Env: []v1.EnvVar{
			{Name: "URL", Value: "http://$(WEB_SERVICE_HOST):$(WEB_SERVICE_PORT)/$(WEB_PORT)/$(NONE)"},
			{Name: "WEB_SERVICE_PORT", Value: "8080"},
			{Name: "AFTER", Value: "$(WEB_SERVICE_PORT) $$(WEB_SERVICE_HOST)"},
		},
		Command:      []string{"run", "$(WEB_SERVICE_HOST)"},
		Args:         []string{"$(WEB_SERVICE_PORT)"},
		VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data", SubPathExpr: "of-$(WEB_SERVICE_HOST)"}},
	}
	pod := testPod(c)
	config := makeContainer(t, pod, in)
	var got []string
	for _, e := range config.GetEnvs() {
		got = append(got, e.GetKey()+"="+string(e.GetValue()))
	}
	want := []string{
		"WEB_PORT=from the config map",
		"URL=http://10.96.0.2:80/from the config map/$(NONE)", "WEB_SERVICE_PORT=8080", "AFTER=8080 $(WEB_SERVICE_HOST)",
		"WEB_SERVICE_HOST=10.96.0.2", "LITERAL=$(WEB_SERVICE_HOST)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"run", "10.96.0.2", "8080"}, append(config.GetCommand(), config.GetArgs()...)); diff != "" {
		t.Errorf("command line (-want +got):\n%s", diff)
	}
	paths, err := containerspec.SubPaths(pod, &pod.Spec.Containers[0], node, in)
	if err != nil || len(paths) != 1 || paths[0] != "of-10.96.0.2" {
		t.Errorf("sub-paths %q, error %v, want exactly one and paths[0] %q", paths, err, "of-10.96.0.2")
	}
}
