package containerspec_test

import (
	"io/fs"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// valueOf returns the value of the only variable of a container; false if it is not set.
func valueOf(
	t *testing.T, pod *v1.Pod, from *v1.EnvVarSource, n containerspec.Node, in containerspec.Inputs,
) (string, bool, error) {
	t.Helper()
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "X", ValueFrom: from}}
	config, err := containerspec.Container(pod, &pod.Spec.Containers[0], n, in)
	if err != nil || len(config.GetEnvs()) == 0 {
		return "", false, err
	}
	return string(config.GetEnvs()[0].GetValue()), true, nil
}

func TestEnvironmentFromFields(t *testing.T) {
	two := node
	two.IPs = []string{"2001:db8::1", "192.0.2.1"}
	in := containerspec.Inputs{PodIPs: []string{"10.0.0.5", "10.0.0.6", "fd00::5"}}
	for path, want := range map[string]string{
		"metadata.name": "web", "metadata.namespace": "shop", "metadata.uid": "u-1", "metadata.labels['app']": "web", "metadata.labels['none']": "",
		"metadata.annotations['note']": "x=1", "metadata.annotations": "note=\"x=1\"", "spec.nodeName": "node-1", "spec.host": "node-1", "spec.serviceAccountName": "robot",
		"status.hostIP": "2001:db8::1", "status.hostIPs": "2001:db8::1,192.0.2.1",
		// One address of each family, in the order of the node's addresses.
		"status.podIP": "fd00::5", "status.podIPs": "fd00::5,10.0.0.5",
	} {
		pod := testPod(v1.Container{Name: "a"})
		pod.Annotations, pod.Spec.ServiceAccountName = map[string]string{"note": "x=1"}, "robot"
		got, ok, err := valueOf(t, pod, &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}, two, in)
		if err != nil || !ok || got != want {
			t.Errorf("%s: got %q, error %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"spec.containers", "status.phase.x", "metadata.labels['a b']x"} {
		pod := testPod(v1.Container{Name: "a"})
		source := &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
		if got, _, err := valueOf(t, pod, source, two, in); err == nil {
			t.Errorf("%s: got %q, want an error", path, got)
		}
	}
}

func TestEnvironmentFromResources(t *testing.T) {
	whole := resources("", "3", "", "")
	for _, test := range []struct {
		name, resource, container, divisor string
		pod                                *v1.ResourceRequirements
		want                               string
	}{
		{name: "limit", resource: "limits.memory", want: "1073741824"},
		{name: "divided, rounded up", resource: "limits.memory", divisor: "1000Ki", want: "1049"},
		{name: "request in thousandths", resource: "requests.cpu", divisor: "1m", want: "250"},
		{name: "request in whole ones, rounded up", resource: "requests.cpu", want: "1"},
		{name: "no limit is the node's", resource: "limits.cpu", want: "4"},
		{name: "no limit is the pod's", resource: "limits.cpu", pod: &whole, want: "3"},
		{name: "no request", resource: "requests.ephemeral-storage", want: "0"},
		{name: "of another container", resource: "limits.memory", container: "b", divisor: "1Mi", want: "64"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod(v1.Container{Name: "a", Resources: resources("250m", "", "", "1Gi")}, v1.Container{Name: "b", Resources: resources("", "", "", "64Mi")})
			pod.Spec.Resources = test.pod
			ref := &v1.ResourceFieldSelector{Resource: test.resource, ContainerName: test.container}
			if test.divisor != "" {
				ref.Divisor = resource.MustParse(test.divisor)
			}
			got, _, err := valueOf(t, pod, &v1.EnvVarSource{ResourceFieldRef: ref}, node, containerspec.Inputs{})
			if err != nil || got != test.want {
				t.Errorf("got %q, error %v; want %q", got, err, test.want)
			}
		})
	}
}

func TestEnvironmentFromFiles(t *testing.T) {
	const file = "# made by init\n\nA='1'\n  B='it is # here' # and there\nC='two\nlines'\nD= 'x'\nE=''\nF=\"x\"\nG='7'\n"
	read := func(volume, path string) (string, error) {
		if volume != "env" || path != "out/vars" {
			return "", fs.ErrNotExist
		}
		return file, nil
	}
	for _, test := range []struct {
		key, path string
		optional  bool
		want      string
		unset     bool
		wantErr   string
	}{
		{key: "A", path: "out/vars", want: "1"},
		{key: "B", path: "out/vars", want: "it is # here"},
		{key: "C", path: "out/vars", want: "two\nlines"},
		{key: "D", path: "out/vars"},
		{key: "E", path: "out/vars"},
		{key: "F", path: "out/vars", wantErr: "out/vars of volume \"env\": line 9: the value must be in single quotes"},
		{key: "G", path: "out/vars", wantErr: "line 9"},
		{key: "A", path: "nowhere", wantErr: "file does not exist"},
		{key: "A", path: "nowhere", optional: true, unset: true},
	} {
		t.Run(test.key+" in "+test.path, func(t *testing.T) {
			ref := &v1.FileKeySelector{VolumeName: "env", Path: test.path, Key: test.key, Optional: &test.optional}
			got, ok, err := valueOf(t, testPod(v1.Container{Name: "a"}), &v1.EnvVarSource{FileKeyRef: ref}, node, containerspec.Inputs{File: read})
			if got != test.want || (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("got %q, error %v; want %q, %q", got, err, test.want, test.wantErr)
			}
			if err == nil && ok == test.unset {
				t.Errorf("set: %v, want %v", ok, !test.unset)
			}
		})
	}
}

func TestBrokenFilesOfVariables(t *testing.T) {
	for text, want := range map[string]string{
		"X": "line 1: there is no =", "='1'": "no name", "\nX ='1'": "line 2: there is a space before the =", "X='1": "not closed", "X='1'2": "after the closing quote",
		"A='1'": "key \"X\" not found",
	} {
		ref := &v1.FileKeySelector{VolumeName: "env", Path: "vars", Key: "X"}
		in := containerspec.Inputs{File: func(string, string) (string, error) { return text, nil }}
		if _, _, err := valueOf(t, testPod(v1.Container{Name: "a"}), &v1.EnvVarSource{FileKeyRef: ref}, node, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
