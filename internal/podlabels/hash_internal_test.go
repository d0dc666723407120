package podlabels

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// wholeContainer has every hashed field.
const wholeContainer = `{
  "name": "app", "image": "i:1", "command": ["run", "<&>"], "args": ["-v"], "workingDir": "/w",
  "ports": [{"name": "web", "hostPort": 80, "containerPort": 8080, "protocol": "TCP", "hostIP": "192.0.2.1"}, {"containerPort": 1}],
  "envFrom": [
    {"prefix": "A_", "configMapRef": {"name": "c", "optional": true}}, {"secretRef": {"name": "s", "optional": false}}
  ],
  "env": [
    {"name": "A", "value": "b"},
    {"name": "B", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
    {"name": "C", "valueFrom": {"resourceFieldRef": {"containerName": "app", "resource": "limits.cpu", "divisor": "1m"}}},
    {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
    {"name": "E", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": true}}},
    {"name": "F", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
    {"name": "G", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k", "optional": true}}}
  ],
  "resources": {"limits": {"cpu": "1500m", "memory": "1024Mi", "example.com/x": "2"}, "requests": {"cpu": "0.5", "memory": "1Gi"}},
  "volumeMounts": [
    {"name": "v", "readOnly": true, "recursiveReadOnly": "IfPossible", "mountPath": "/v", "subPath": "s", "mountPropagation": "None"},
    {"name": "v", "mountPath": "/w", "subPathExpr": "$(A)", "bindMountOptions": ["noexec"]}
  ],
  "volumeDevices": [{"name": "d", "devicePath": "/dev/d"}],
  "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
  "securityContext": {
    "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "privileged": true,
    "seLinuxOptions": {"user": "u", "role": "r", "type": "t", "level": "s0"},
    "windowsOptions": {"gmsaCredentialSpecName": "n", "gmsaCredentialSpec": "c", "runAsUserName": "u", "hostProcess": true},
    "runAsUser": 1, "runAsGroup": 2, "runAsNonRoot": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "procMount": "Default",
    "seccompProfile": {"type": "Localhost", "localhostProfile": "p"}, "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"}
  },
  "stdin": true, "stdinOnce": true, "tty": true
}`

// TestTheHashOfARunningContainerStays: running containers have the hash. Another value would restart all of them at an
// upgrade.
func TestTheHashOfARunningContainerStays(t *testing.T) {
	for text, want := range map[string]string{
		wholeContainer:    "4794f87c314808fc",
		`{"name": "app"}`: "9184ce29d4f39a46",
		`{"name": "app", "image": "i:1", "securityContext": {"capabilities": {}}, "env": [{"name": "A"}]}`: "f415485e5ef55e89",
	} {
		var c v1.Container
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if got := SpecHash(&c); got != want {
			t.Errorf("the hash of %s is %s, and was %s", text, got, want)
		}
	}
}

// TestAFieldThatANewerAPIKnowsChangesNoHash: a stored pod may have the field already, and a newer version of this
// program begins to decode it.
func TestAFieldThatANewerAPIKnowsChangesNoHash(t *testing.T) {
	type newerMount struct {
		v1.VolumeMount `json:",inline"`

		New string `json:"new"`
	}
	type newerContext struct {
		v1.SecurityContext `json:",inline"`

		New *bool `json:"new"`
	}
	mount, yes := v1.VolumeMount{Name: "v", MountPath: "/v"}, true
	today, err := hashed(map[string]any{"n": "app", "vm": []any{mount}, "s": v1.SecurityContext{Privileged: &yes}})
	if err != nil {
		t.Fatal(err)
	}
	newer, err := hashed(map[string]any{
		"n":   "app",
		"new": 1,
		"vm":  []any{newerMount{mount, "x"}},
		"s":   newerContext{v1.SecurityContext{Privileged: &yes}, &yes},
	})
	if err != nil || string(newer) != string(today) {
		t.Errorf("hashed is %s, and with new fields %s; error %v, want %s", today, newer, err, string(today))
	}
	if c := (&v1.Container{Name: "app", VolumeMounts: []v1.VolumeMount{mount}, SecurityContext: &v1.SecurityContext{Privileged: &yes}}); SpecHash(
		c,
	) != sum(today) {
		t.Error("that is not what the hash of a container is of")
	}
}

// TestTheHashDoesNotDependOnAPITypes: the hash must not depend on types of k8s.io/api, because new versions of them
// have new fields. The types that are listed here are scalars.
func TestTheHashDoesNotDependOnAPITypes(t *testing.T) {
	number := reflect.TypeFor[resource.Quantity]()
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		switch {
		case of == number:
		case strings.HasPrefix(of.PkgPath(), "k8s.io/"):
			t.Errorf("%s is a %s", path, of)
		case of.Kind() == reflect.Struct:
			for field := range of.Fields() {
				walk(path+"."+field.Name, field.Type)
			}
		case of.Kind() == reflect.Slice, of.Kind() == reflect.Pointer, of.Kind() == reflect.Map:
			walk(path, of.Elem())
		}
	}
	walk("container", reflect.TypeFor[hashedContainer]())
}

// TestEachFieldOfTheAPIIsHashedOrKnownNotToBe: a new field of a new version of k8s.io/api needs a decision. A field
// that is hashed from then on must not be in the hash while it is empty, and changes the hash of pods that have it
// already.
func TestEachFieldOfTheAPIIsHashedOrKnownNotToBe(t *testing.T) {
	acts := []string{ // changes of these need no restart; limits and requests are hashed
		"container.resources",
		"container.resizePolicy",
		"container.restartPolicy",
		"container.restartPolicyRules",
		"container.livenessProbe",
		"container.readinessProbe",
		"container.startupProbe",
		"container.lifecycle",
		"container.imagePullPolicy",
	}
	var whole map[string]any
	if err := json.Unmarshal([]byte(wholeContainer), &whole); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, of reflect.Type, has any)
	walk = func(path string, of reflect.Type, has any) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || of == reflect.TypeFor[resource.Quantity]() {
			return
		}
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				walk(path, field.Type, has)
				continue
			}
			at := path + "." + name
			if slices.Contains(acts, at) {
				continue
			}
			found := valuesOf(has, name)
			if len(found) == 0 {
				t.Errorf("%s is new: decide whether a container restarts when it changes", at)
				continue
			}
			walk(at, field.Type, found)
		}
	}
	walk("container", reflect.TypeFor[v1.Container](), whole)
}

// valuesOf returns the values of a field in an object or in each object of a list.
func valuesOf(has any, name string) []any {
	var found []any
	switch has := has.(type) {
	case map[string]any:
		if value, ok := has[name]; ok {
			found = append(found, value)
		}
	case []any:
		for _, one := range has {
			found = append(found, valuesOf(one, name)...)
		}
	}
	return found
}
