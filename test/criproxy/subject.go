package criproxy

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"
)

// Subject is the subject of a call, as far as its request and earlier answers identify it.
type Subject struct {
	// Pod and UID are those of the pod.
	Pod, UID string
	// Container is the name of the container in the pod's spec.
	Container string
	// Image is the image as the request names it.
	Image string
	// SandboxID and ContainerID are the runtime's IDs.
	SandboxID, ContainerID string
}

// directory maps the runtime's IDs to their pods and containers. It keeps all of them, because a repeated call for a
// removed object still has its subject.
type directory struct {
	mu         sync.Mutex
	sandboxes  map[string]Subject
	containers map[string]Subject
	pods       map[string]string // names by UID
}

func newDirectory() *directory {
	return &directory{sandboxes: map[string]Subject{}, containers: map[string]Subject{}, pods: map[string]string{}}
}

// about returns the subject of a request; an empty one for a method that the CRI does not have.
func (d *directory) about(method string, request frame) (Subject, error) {
	message, err := decode(method, request, protoreflect.MethodDescriptor.Input)
	if err != nil || message == nil {
		return Subject{}, err
	}
	var s Subject
	if r, ok := message.(interface{ GetPodSandboxId() string }); ok {
		s.SandboxID = r.GetPodSandboxId()
	}
	if r, ok := message.(interface{ GetContainerId() string }); ok {
		s.ContainerID = r.GetContainerId()
	}
	if r, ok := message.(interface{ GetImage() *runtimeapi.ImageSpec }); ok {
		s.Image = r.GetImage().GetImage()
	}
	switch r := message.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		s.ofConfig(r.GetConfig())
	case *runtimeapi.CreateContainerRequest:
		s.ofConfig(r.GetSandboxConfig())
		s.Container = r.GetConfig().GetMetadata().GetName()
	case *runtimeapi.PullImageRequest:
		s.ofConfig(r.GetSandboxConfig())
	case *runtimeapi.ListPodSandboxRequest:
		s.SandboxID, s.UID = r.GetFilter().GetId(), r.GetFilter().GetLabelSelector()[types.KubernetesPodUIDLabel]
	case *runtimeapi.ListContainersRequest:
		f := r.GetFilter()
		s.ContainerID, s.SandboxID, s.UID = f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()[types.KubernetesPodUIDLabel]
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.complete(d.containers[s.ContainerID])
	s.complete(d.sandboxes[s.SandboxID])
	s.Pod = cmp.Or(s.Pod, d.pods[s.UID])
	return s, nil
}

func (s *Subject) ofConfig(config *runtimeapi.PodSandboxConfig) {
	s.Pod, s.UID = config.GetMetadata().GetName(), config.GetMetadata().GetUid()
}

// complete fills in the empty fields.
func (s *Subject) complete(from Subject) {
	s.Pod, s.UID, s.Container = cmp.Or(s.Pod, from.Pod), cmp.Or(s.UID, from.UID), cmp.Or(s.Container, from.Container)
	s.SandboxID = cmp.Or(s.SandboxID, from.SandboxID)
}

// learn records the subjects of the IDs in an answer.
func (d *directory) learn(c *call, answer frame) {
	message, err := decode(c.method, answer, protoreflect.MethodDescriptor.Output)
	if err != nil || message == nil {
		return // the client gets it unchanged and reports the error
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r := message.(type) {
	case *runtimeapi.RunPodSandboxResponse:
		d.sandbox(r.GetPodSandboxId(), c.about.Pod, c.about.UID)
	case *runtimeapi.CreateContainerResponse:
		d.containers[r.GetContainerId()] = c.about
	case *runtimeapi.ListPodSandboxResponse:
		for _, item := range r.GetItems() {
			d.sandbox(item.GetId(), item.GetMetadata().GetName(), item.GetMetadata().GetUid())
		}
	case *runtimeapi.ListContainersResponse:
		for _, item := range r.GetContainers() {
			labels := item.GetLabels()
			d.containers[item.GetId()] = Subject{
				Pod: labels[types.KubernetesPodNameLabel], UID: labels[types.KubernetesPodUIDLabel],
				Container: item.GetMetadata().GetName(), SandboxID: item.GetPodSandboxId(),
			}
		}
	}
}

// sandbox records the pod of a sandbox. It is called with mu held.
func (d *directory) sandbox(id, pod, uid string) {
	d.sandboxes[id] = Subject{Pod: pod, UID: uid}
	d.pods[uid] = pod
}

// decode decodes the request or the answer of a method of the CRI; nil for any other method.
func decode(
	method string, data frame, which func(protoreflect.MethodDescriptor) protoreflect.MessageDescriptor,
) (proto.Message, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // not of the CRI, and passed on as it is
	}
	descriptor, ok := found.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a method", name)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(which(descriptor).FullName())
	if err != nil {
		return nil, err
	}
	message := kind.New().Interface()
	return message, proto.Unmarshal(data, message)
}
