package podlabels

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"
)

// restartFields are the fields of a container's spec whose change requires a restart of the container. Fields that take
// effect without a restart are not among them (probes, hooks, pull policy, restart policy and rules). hashedContainer
// defines their hashed form. An empty field is not part of the hash.
type restartFields struct {
	Name                     string                      `json:"n"`
	Image                    string                      `json:"i,omitempty"`
	Command                  []string                    `json:"c,omitempty"`
	Args                     []string                    `json:"a,omitempty"`
	WorkingDir               string                      `json:"w,omitempty"`
	Ports                    []v1.ContainerPort          `json:"p,omitempty"`
	EnvFrom                  []v1.EnvFromSource          `json:"ef,omitempty"`
	Env                      []v1.EnvVar                 `json:"e,omitempty"`
	Limits                   v1.ResourceList             `json:"l,omitempty"`
	Requests                 v1.ResourceList             `json:"r,omitempty"`
	VolumeMounts             []v1.VolumeMount            `json:"vm,omitempty"`
	VolumeDevices            []v1.VolumeDevice           `json:"vd,omitempty"`
	TerminationMessagePath   string                      `json:"tp,omitempty"`
	TerminationMessagePolicy v1.TerminationMessagePolicy `json:"to,omitempty"`
	SecurityContext          *v1.SecurityContext         `json:"s,omitempty"`
	Stdin                    bool                        `json:"si,omitempty"`
	StdinOnce                bool                        `json:"so,omitempty"`
	TTY                      bool                        `json:"t,omitempty"`
}

// SpecHash returns a hash, in hexadecimal, over the fields of a container's spec whose change requires a restart. It is
// the same in every process, after every restart, and in later versions of this program.
func SpecHash(c *v1.Container) string {
	fields := restartFields{
		Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, WorkingDir: c.WorkingDir, Ports: c.Ports,
		EnvFrom: c.EnvFrom, Env: c.Env, Limits: c.Resources.Limits, Requests: c.Resources.Requests,
		VolumeMounts: c.VolumeMounts, VolumeDevices: c.VolumeDevices,
		TerminationMessagePath: c.TerminationMessagePath, TerminationMessagePolicy: c.TerminationMessagePolicy,
		SecurityContext: c.SecurityContext, Stdin: c.Stdin, StdinOnce: c.StdinOnce, TTY: c.TTY,
	}
	text, err := hashed(fields)
	if err != nil {
		// Plain data can always be marshaled; if not, the text form is also the same for the same spec.
		text = []byte(dump.ForHash(fields))
	}
	return sum(text)
}

// hashed returns the text to hash: the fields of hashedContainer, without fields that exist only in the API.
func hashed(fields any) ([]byte, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var known hashedContainer
	if err := json.Unmarshal(text, &known); err != nil {
		return nil, err
	}
	return json.Marshal(known)
}

func sum(text []byte) string {
	sum := fnv.New64a()
	_, _ = sum.Write(text) // writing to a hash does not fail
	return strconv.FormatUint(sum.Sum64(), 16)
}

// Changed reports whether a container with these annotations was created from another spec than c. Other amounts of cpu
// and memory are no change, because a running container is resized. A container of a kubelet is compared by the
// kubelet's own hash, and one with neither hash counts as unchanged, so that taking over a node restarts nothing.
func Changed(c *v1.Container, annotations map[string]string) bool {
	if hash, ok := annotations[ContainerSpecHash]; ok {
		return hash != SpecHash(unresized(c, annotations))
	}
	if hash, ok := annotations[ContainerHash]; ok {
		return hash != kubeletHash(c)
	}
	return false
}

// Rehash returns the annotations that a container would have if it had been created from the spec as instead of
// the spec was; ok is false if it was not created from was. It is for recordings, whose specs have other values.
func Rehash(annotations map[string]string, was, as *v1.Container) (out map[string]string, ok bool) {
	if hash, has := annotations[ContainerSpecHash]; !has || hash != SpecHash(unresized(was, annotations)) {
		return nil, false
	}
	out = maps.Clone(annotations)
	out[ContainerSpecHash] = SpecHash(unresized(as, annotations))
	return out, true
}

// unresized returns c with the cpu and memory that a container with these annotations was created with, as far as they
// say.
func unresized(c *v1.Container, annotations map[string]string) *v1.Container {
	created, ok := ResourcesOf(annotations)
	if !ok {
		return c
	}
	out := *c
	out.Resources.Requests = withOf(c.Resources.Requests, created.Requests)
	out.Resources.Limits = withOf(c.Resources.Limits, created.Limits)
	return &out
}

// withOf returns list with the cpu and memory of created.
func withOf(list, created v1.ResourceList) v1.ResourceList {
	out := make(v1.ResourceList, len(list))
	maps.Copy(out, list)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if quantity, ok := created[name]; ok {
			out[name] = quantity
		} else {
			delete(out, name)
		}
	}
	return out
}

// kubeletHash returns the ContainerHash of the kubelet of this Kubernetes version, which covers only name and image.
func kubeletHash(c *v1.Container) string {
	text, err := json.Marshal(map[string]string{"name": c.Name, "image": c.Image})
	if err != nil {
		text = nil // two strings can always be marshaled
	}
	sum := fnv.New32a()
	fmt.Fprintf(sum, "%v", dump.ForHash(text))
	return strconv.FormatUint(uint64(sum.Sum32()), 16)
}
