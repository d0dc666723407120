package containerspec

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubectl/pkg/util/fieldpath"
	"k8s.io/kubectl/pkg/util/resource"
	"k8s.io/kubernetes/pkg/apis/core/pods"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// environment is a container's environment in the order of the spec; a repeated name keeps its first position and takes
// its last value.
type environment struct {
	list   []*runtimeapi.KeyValue
	values map[string]string
	// services are the service environment variables. Values may refer to them although they are added last.
	services map[string]string
}

func (e *environment) put(name, value string) {
	if _, known := e.values[name]; !known {
		e.list = append(e.list, &runtimeapi.KeyValue{Key: name})
	}
	e.values[name] = value
}

// lookup resolves $(NAME); an unknown name stays unchanged.
func (e *environment) lookup(name string) string {
	if value, ok := e.values[name]; ok {
		return value
	}
	if value, ok := e.services[name]; ok {
		return value
	}
	return "$(" + name + ")"
}

// putServices adds the service variables without a value in the spec.
func (e *environment) putServices(variables []v1.EnvVar) {
	for _, v := range variables {
		if _, own := e.values[v.Name]; !own {
			e.put(v.Name, v.Value)
		}
	}
}

// putGiven puts the variables of devices before all others, which take precedence and do not refer to them.
func (e *environment) putGiven(variables []v1.EnvVar) {
	var list []*runtimeapi.KeyValue
	for _, v := range variables {
		if _, known := e.values[v.Name]; !known {
			list = append(list, &runtimeapi.KeyValue{Key: v.Name})
			e.values[v.Name] = v.Value
		}
	}
	e.list = append(list, e.list...)
}

func (e *environment) keyValues() []*runtimeapi.KeyValue {
	for _, kv := range e.list {
		kv.Value = []byte(e.values[kv.Key])
	}
	return e.list
}

// expand replaces $(NAME) by its value, and $$ by $.
func (e *environment) expand(words []string) []string {
	var out []string
	for _, word := range words {
		out = append(out, expansion.Expand(word, e.lookup))
	}
	return out
}

// makeEnvironment computes a container's environment: envFrom, then env, which takes precedence, and then the service
// variables that neither of them sets. Values of env may refer to all previous variables, and to services.
func makeEnvironment(pod *v1.Pod, c *v1.Container, in Inputs, node Node) (*environment, error) {
	env := &environment{values: map[string]string{}, services: make(map[string]string, len(in.Services))}
	for _, v := range in.Services {
		env.services[v.Name] = v.Value
	}
	for _, from := range c.EnvFrom {
		if err := env.putAll(pod.Namespace, from, in); err != nil {
			return nil, err
		}
	}
	for i, e := range c.Env {
		if e.ValueFrom == nil || e.Value != "" {
			env.put(e.Name, expansion.Expand(e.Value, env.lookup))
			continue
		}
		if isOfObject(e.ValueFrom) {
			value, ok, err := objectKey(pod.Namespace, e.ValueFrom, in)
			if err != nil {
				return nil, err
			}
			if ok {
				env.put(e.Name, value)
			}
			continue
		}
		value, ok, err := valueFrom(pod, c, e.ValueFrom, in, node)
		if err != nil {
			return nil, fmt.Errorf("container %q: env[%d] %q: %w", c.Name, i, e.Name, err)
		}
		if ok {
			env.put(e.Name, value)
		}
	}
	env.putServices(in.Services)
	env.putGiven(in.Given.Envs)
	return env, nil
}

// valueFrom resolves the source of a value; ok is false if it is optional and missing.
func valueFrom(
	pod *v1.Pod, c *v1.Container, from *v1.EnvVarSource, in Inputs, node Node,
) (value string, ok bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = podField(pod, from.FieldRef, in.PodIPs, node)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err = resourceField(pod, c, from.ResourceFieldRef, node)
		return value, err == nil, err
	case from.FileKeyRef != nil:
		return fileValue(from.FileKeyRef, in.File)
	}
	return "", false, &UnsupportedError{Field: "valueFrom", Message: "this kind of source is not supported by this version of Quartet"}
}

// fileValue returns the value of a key in a file of a volume.
func fileValue(
	ref *v1.FileKeySelector, read func(volume, path string) (string, error),
) (value string, ok bool, err error) {
	if read == nil {
		return "", false, &UnsupportedError{Field: "valueFrom.fileKeyRef", Message: "there are no volumes"}
	}
	text, err := read(ref.VolumeName, ref.Path)
	if errors.Is(err, fs.ErrNotExist) && isTrue(ref.Optional) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("valueFrom.fileKeyRef: %w", err)
	}
	value, ok, err = lookUpInEnvFile(text, ref.Key)
	if err == nil && !ok && !isTrue(ref.Optional) {
		err = fmt.Errorf("environment variable key %q not found", ref.Key)
	}
	if err != nil {
		return "", false, fmt.Errorf("valueFrom.fileKeyRef: %s of volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	return value, ok, nil
}

func podField(pod *v1.Pod, ref *v1.ObjectFieldSelector, podIPs []string, node Node) (string, error) {
	path, _, err := pods.ConvertDownwardAPIFieldLabel(cmp.Or(ref.APIVersion, "v1"), ref.FieldPath, "")
	if err != nil {
		return "", fmt.Errorf("fieldRef: %w", err)
	}
	podIPs = nodesFamilyFirst(podIPs, node.IPs)
	switch path {
	case "spec.nodeName":
		if pod.Spec.NodeName == "" {
			return node.Name, nil
		}
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		if len(node.IPs) == 0 {
			return "", fmt.Errorf("status.hostIP: the node has no address; set --node-ip")
		}
		return node.IPs[0], nil
	case "status.hostIPs":
		return strings.Join(node.IPs, ","), nil
	case "status.podIP":
		if len(podIPs) == 0 {
			return "", nil
		}
		return podIPs[0], nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, path)
}

// nodesFamilyFirst sorts the first address of each family of a pod in the order of the node's families.
func nodesFamilyFirst(podIPs, nodeIPs []string) []string {
	if len(podIPs) < 2 || len(nodeIPs) == 0 {
		return podIPs
	}
	sorted := slices.Clone(podIPs)
	wanted := strings.Contains(nodeIPs[0], ":")
	slices.SortStableFunc(sorted, func(a, b string) int {
		switch own := strings.Contains(a, ":"); {
		case own == strings.Contains(b, ":"):
			return 0
		case own == wanted:
			return -1
		}
		return 1
	})
	return slices.CompactFunc(sorted, func(a, b string) bool {
		return strings.Contains(a, ":") == strings.Contains(b, ":")
	})
}

// resourceField returns a container's request or limit. A missing limit of cpu, memory or ephemeral storage is that of
// the pod, or else the node's allocatable amount.
func resourceField(pod *v1.Pod, c *v1.Container, ref *v1.ResourceFieldSelector, node Node) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		other := containerOf(pod, ref.ContainerName)
		if other == nil {
			return "", fmt.Errorf("resourceFieldRef.containerName: the pod has no container %q", ref.ContainerName)
		}
		c = other
	}
	c = c.DeepCopy()
	if c.Resources.Limits == nil {
		c.Resources.Limits = v1.ResourceList{}
	}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		all, ok := node.Allocatable[name]
		if !ok {
			all, ok = node.Capacity[name]
		}
		if resourcehelper.IsPodLevelLimitsSet(pod) {
			if whole := pod.Spec.Resources.Limits[name]; !whole.IsZero() {
				all, ok = whole, true
			}
		}
		if ok && c.Resources.Limits.Name(name, "").IsZero() {
			c.Resources.Limits[name] = all
		}
	}
	return resource.ExtractContainerResourceValue(ref, c)
}

func containerOf(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
