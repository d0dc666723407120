package containerspec_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// held returns inputs with ConfigMaps and Secrets. Reading a name in failures returns its error.
func held(
	configMaps map[string]map[string]string, secrets map[string]map[string][]byte, failures map[string]error,
) containerspec.Inputs {
	return containerspec.Inputs{
		ConfigMap: func(name string) (*v1.ConfigMap, error) {
			if failures[name] != nil {
				return nil, failures[name]
			}
			if data, ok := configMaps[name]; ok {
				return &v1.ConfigMap{Data: data, BinaryData: map[string][]byte{"binary": {1}}}, nil
			}
			return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
		},
		Secret: func(name string) (*v1.Secret, error) {
			if failures[name] != nil {
				return nil, failures[name]
			}
			if data, ok := secrets[name]; ok {
				return &v1.Secret{Data: data}, nil
			}
			return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
		},
	}
}

func fromConfigMap(name, prefix string, optional *bool) v1.EnvFromSource {
	return v1.EnvFromSource{
		Prefix:       prefix,
		ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: optional},
	}
}

func fromSecret(name, prefix string, optional *bool) v1.EnvFromSource {
	return v1.EnvFromSource{
		Prefix:    prefix,
		SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: optional},
	}
}

func configMapKey(variable, name, key string, optional *bool) v1.EnvVar {
	return v1.EnvVar{Name: variable, ValueFrom: &v1.EnvVarSource{
		ConfigMapKeyRef: &v1.ConfigMapKeySelector{
			LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key, Optional: optional,
		},
	}}
}

func secretKey(variable, name, key string, optional *bool) v1.EnvVar {
	return v1.EnvVar{Name: variable, ValueFrom: &v1.EnvVarSource{
		SecretKeyRef: &v1.SecretKeySelector{
			LocalObjectReference: v1.LocalObjectReference{Name: name}, Key: key, Optional: optional,
		},
	}}
}

func TestEnvironmentFromObjects(t *testing.T) {
	yes := new(true)
	in := held(
		map[string]map[string]string{"app": {"MODE": "fast", "LEVEL": "info", "a.dotted-name": "1"}, "more": {"LEVEL": "debug"}},
		map[string]map[string][]byte{"db": {"USER": []byte("shop"), "PASSWORD": []byte("geheim\xff")}}, nil)
	for _, test := range []struct {
		name string
		from []v1.EnvFromSource
		env  []v1.EnvVar
		want []string
	}{
		{"all keys, in their order, none of binaryData", []v1.EnvFromSource{fromConfigMap("app", "", nil)}, nil,
			[]string{"LEVEL=info", "MODE=fast", "a.dotted-name=1"}},
		{"a prefix", []v1.EnvFromSource{fromSecret("db", "DB_", nil)}, nil, []string{"DB_PASSWORD=geheim\xff", "DB_USER=shop"}},
		{"the later source counts", []v1.EnvFromSource{fromConfigMap("app", "", nil), fromConfigMap("more", "", nil)}, nil,
			[]string{"LEVEL=debug", "MODE=fast", "a.dotted-name=1"}},
		{"env counts before envFrom, and knows it", []v1.EnvFromSource{fromConfigMap("more", "", nil)},
			[]v1.EnvVar{{Name: "WAS", Value: "$(LEVEL)"}, {Name: "LEVEL", Value: "mine"}}, []string{"LEVEL=mine", "WAS=debug"}},
		{"keys", nil, []v1.EnvVar{configMapKey("A", "app", "MODE", nil), secretKey("B", "db", "USER", nil), {Name: "C", Value: "$(A)-$(B)"}},
			[]string{"A=fast", "B=shop", "C=fast-shop"}},
		{"optional objects and keys", []v1.EnvFromSource{fromConfigMap("none", "", yes), fromSecret("none", "", yes)},
			[]v1.EnvVar{configMapKey("A", "none", "k", yes), configMapKey("B", "app", "none", yes), secretKey("C", "none", "k", yes), secretKey("D", "db", "none", yes)}, nil},
		{"an optional key that is not there leaves what envFrom gave", []v1.EnvFromSource{fromConfigMap("more", "", nil)},
			[]v1.EnvVar{secretKey("LEVEL", "db", "none", yes)}, []string{"LEVEL=debug"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, e := range makeContainer(t, testPod(v1.Container{Name: "a", EnvFrom: test.from, Env: test.env}),
				in).GetEnvs() {
				got = append(got, e.GetKey()+"="+string(e.GetValue()))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatEnvironmentCannotBeHadIsSaidAsTheKubeletDoes(t *testing.T) {
	in := held(
		map[string]map[string]string{"app": {"MODE": "fast"}},
		map[string]map[string][]byte{"db": {"PASSWORD": []byte("geheim"), "RAW": []byte("ge\x00heim")}},
		map[string]error{"far": notServed{}, "later": errors.New("it is not known yet")})
	yes := new(true)
	for want, c := range map[string]v1.Container{
		`configmap "none" not found`:                    {EnvFrom: []v1.EnvFromSource{fromConfigMap("none", "", nil)}},
		`secret "none" not found`:                       {Env: []v1.EnvVar{secretKey("X", "none", "k", nil)}},
		`couldn't find key k in ConfigMap shop/app`:     {Env: []v1.EnvVar{configMapKey("X", "app", "k", nil)}},
		`couldn't find key k in Secret shop/db`:         {Env: []v1.EnvVar{secretKey("X", "db", "k", nil)}},
		`key RAW in Secret shop/db has a NUL byte`:      {Env: []v1.EnvVar{secretKey("X", "db", "RAW", yes)}},
		`key RAW in Secret shop/db has a NUL byte, whi`: {EnvFrom: []v1.EnvFromSource{fromSecret("db", "", nil)}},
		`secret "far": this node has no secrets`:        {Env: []v1.EnvVar{secretKey("X", "far", "k", nil)}},
		// The existence of the object is unknown, so the container waits for it even if it is optional.
		`it is not known yet`: {EnvFrom: []v1.EnvFromSource{fromSecret("later", "", yes)}},
	} {
		c.Name = "a"
		pod := testPod(c)
		_, err := containerspec.Container(pod, &pod.Spec.Containers[0], node, in)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("error %q, want %q", err, want)
		}
	}
	pod := testPod(v1.Container{Name: "a", Env: []v1.EnvVar{secretKey("X", "far", "k", yes)}})
	if got := makeContainer(t, pod, in).GetEnvs(); len(got) != 0 {
		t.Errorf("what is optional on a node that has none gives %v", got)
	}
}

// notServed is the error of a node without objects.
type notServed struct{}

func (notServed) Error() string { return `secret "far": this node has no secrets` }

func (notServed) NotServed() {}
