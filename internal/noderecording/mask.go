package noderecording

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

const (
	// keySize is the size of the key of a Mask.
	keySize = 32
	// digestSize is the number of bytes of a digest that are written.
	digestSize = 8
	// versions is the number of versions of a container that are remembered.
	versions = 8
	// rejected begins the message of a pod that was not admitted. It is syncloop's own, and has no value of the pod.
	rejected = "Pod was rejected: "
	// killing is the reason of an event whose message is syncloop's own.
	killing = "Killing"
)

// Mask replaces what may be secret by digests. Equal values have equal digests in one recording, so that a replay sees
// the same changes. The key of the digests is made for the recording and written nowhere.
//
// Replaced are the values of environment variables; commands and arguments, also of probes and hooks; paths and headers
// of HTTP probes and hooks; annotations that are not the node's own; attributes of volumes; and the IDs of the machine.
// Removed are messages of containers, of the runtime and of events. Calls of the runtime come without what may be
// secret (package runtimecalls); of them only annotations are masked.
type Mask struct {
	key []byte

	mu sync.Mutex
	// made has the latest versions of each container as they were and as they are recorded, by pod and name.
	made map[string][]version
}

type version struct{ was, as v1.Container }

// NewMask returns a mask with a new key.
func NewMask() *Mask {
	m := &Mask{key: make([]byte, keySize), made: map[string][]version{}}
	_, _ = rand.Read(m.key) // it never fails
	return m
}

// digest returns the digest of a value; empty for an empty one.
func (m *Mask) digest(value string) string {
	if value == "" {
		return ""
	}
	mac := hmac.New(sha256.New, m.key)
	_, _ = mac.Write([]byte(value))
	return "masked-" + hex.EncodeToString(mac.Sum(nil)[:digestSize])
}

// Value returns a copy of the message of a part without secrets.
func (m *Mask) Value(value proto.Message) (proto.Message, error) {
	switch value := value.(type) {
	case *configv1.WatchPodUpdatesResponse:
		return m.update(value)
	case *lifecyclev1.Event:
		return m.event(value), nil
	case *lifecyclev1.GetHealthResponse:
		return &lifecyclev1.GetHealthResponse{
			Healthy: value.GetHealthy(), Reasons: m.texts(value.GetReasons()),
			Runtime: &lifecyclev1.Runtime{
				Ready: value.GetRuntime().GetReady(), NetworkReady: value.GetRuntime().GetNetworkReady(),
			},
		}, nil
	case *nodev1.Node:
		return m.node(value)
	case *enginev1.Pod:
		return m.published(value)
	case *enginev1.PodEvent:
		return m.podEvent(value)
	case *debugv1.RuntimeCall:
		return m.call(value)
	case *debugv1.PLEGRecord:
		return m.plegRecord(value), nil
	case *nodev1.Heartbeat:
		return value, nil // nodestatus has removed what may be secret
	}
	return nil, fmt.Errorf("a %T is not recorded", value)
}

// texts returns a fixed text for each text.
func (*Mask) texts(texts []string) []string {
	out := make([]string, len(texts))
	for i := range out {
		out[i] = "the reason is not recorded"
	}
	return out
}

func (m *Mask) update(value *configv1.WatchPodUpdatesResponse) (proto.Message, error) {
	if source := value.GetSource(); source != nil {
		return &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Source{Source: source}}, nil
	}
	update := value.GetPod()
	if update == nil {
		return &configv1.WatchPodUpdatesResponse{}, nil
	}
	pod, err := m.bytes(update.GetPod())
	if err != nil {
		return nil, err
	}
	return &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Pod{Pod: &configv1.PodUpdate{
		Op: update.GetOp(), Source: update.GetSource(), Pod: pod, Traceparent: update.GetTraceparent(),
		Life: update.GetLife(),
	}}}, nil
}

func (m *Mask) published(value *enginev1.Pod) (proto.Message, error) {
	pod, err := m.bytes(value.GetPod())
	if err != nil {
		return nil, err
	}
	return &enginev1.Pod{
		Pod: pod, Source: value.GetSource(), WorkerState: value.GetWorkerState(), Traceparent: value.GetTraceparent(),
	}, nil
}

// bytes returns an encoded pod without secrets.
func (m *Mask) bytes(data []byte) ([]byte, error) {
	pod := &v1.Pod{}
	if err := pod.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("read a pod: %w: run the same version of all parts", err)
	}
	m.Pod(pod)
	return pod.Marshal()
}

// Pod removes the secrets of a pod.
func (m *Mask) Pod(pod *v1.Pod) {
	pod.ManagedFields = nil
	m.annotations(pod.Annotations)
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			m.containerOf(string(pod.UID), &list[i])
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		m.containerOf(string(pod.UID), &c)
		pod.Spec.EphemeralContainers[i].EphemeralContainerCommon = v1.EphemeralContainerCommon(c)
	}
	for i := range pod.Spec.Volumes {
		m.volume(&pod.Spec.Volumes[i])
	}
	m.status(&pod.Status)
}

func (m *Mask) volume(volume *v1.Volume) {
	if csi := volume.CSI; csi != nil {
		m.all(csi.VolumeAttributes)
	}
	if flex := volume.FlexVolume; flex != nil {
		m.all(flex.Options)
	}
}

// containerOf removes the secrets of a container, and remembers what it was.
func (m *Mask) containerOf(uid string, c *v1.Container) {
	was := *c.DeepCopy()
	m.list(c.Command)
	m.list(c.Args)
	for i := range c.Env {
		c.Env[i].Value = m.digest(c.Env[i].Value)
	}
	for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe != nil {
			m.handler(probe.Exec, probe.HTTPGet)
		}
	}
	if hooks := c.Lifecycle; hooks != nil {
		for _, hook := range []*v1.LifecycleHandler{hooks.PostStart, hooks.PreStop} {
			if hook != nil {
				m.handler(hook.Exec, hook.HTTPGet)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := uid + "/" + c.Name
	made := slices.DeleteFunc(m.made[key], func(v version) bool {
		return podlabels.SpecHash(&v.was) == podlabels.SpecHash(&was)
	})
	made = append(made, version{was: was, as: *c.DeepCopy()})
	m.made[key] = made[max(0, len(made)-versions):]
}

func (m *Mask) handler(exec *v1.ExecAction, get *v1.HTTPGetAction) {
	if exec != nil {
		m.list(exec.Command)
	}
	if get != nil {
		get.Path = m.digest(get.Path)
		for i := range get.HTTPHeaders {
			get.HTTPHeaders[i].Value = m.digest(get.HTTPHeaders[i].Value)
		}
	}
}

func (m *Mask) list(values []string) {
	for i := range values {
		values[i] = m.digest(values[i])
	}
}

func (m *Mask) all(values map[string]string) {
	for key, value := range values {
		values[key] = m.digest(value)
	}
}

// ownAnnotations begin the names of annotations of the node, which have no value of a pod.
func ownAnnotations() []string {
	return []string{"quartet.dev/", "io.kubernetes.", "kubernetes.io/config.source", "kubernetes.io/config.seen"}
}

// annotations removes the values of annotations that are not the node's own.
func (m *Mask) annotations(annotations map[string]string) {
	delete(annotations, podlabels.PreStopHandler)
	for name, value := range annotations {
		if !slices.ContainsFunc(ownAnnotations(), func(own string) bool { return strings.HasPrefix(name, own) }) {
			annotations[name] = m.digest(value)
		}
	}
}

// status removes the texts of a status.
func (m *Mask) status(status *v1.PodStatus) {
	if !strings.HasPrefix(status.Message, rejected) {
		status.Message = ""
	}
	for i := range status.Conditions {
		status.Conditions[i].Message = ""
	}
	for _, list := range [][]v1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			for _, state := range []*v1.ContainerState{&list[i].State, &list[i].LastTerminationState} {
				if state.Waiting != nil {
					state.Waiting.Message = ""
				}
				if state.Terminated != nil {
					state.Terminated.Message = ""
				}
			}
		}
	}
}

// event removes the secrets of an event of pleg. The hash of a container's spec becomes that of the recorded spec: the
// hash itself would let others try values.
func (m *Mask) event(value *lifecyclev1.Event) proto.Message {
	out := proto.CloneOf(value)
	m.podStatus(out.GetStatus())
	return out
}

// plegRecord masks statuses as in pleg's events.
func (m *Mask) plegRecord(value *debugv1.PLEGRecord) proto.Message {
	out := proto.CloneOf(value)
	for _, state := range []*debugv1.PLEGRecordState{out.GetPod().GetObserved(), out.GetPod().GetPublished()} {
		m.podStatus(state.GetStatus())
	}
	return out
}

func (m *Mask) podStatus(status *lifecyclev1.PodStatus) {
	if status.GetInspectError() != "" {
		status.InspectError = m.texts([]string{""})[0]
	}
	for _, s := range status.GetSandboxes() {
		m.annotations(s.GetAnnotations())
	}
	for _, c := range status.GetContainers() {
		c.Message, c.LogPath = "", "" // the path is that of this node
		c.Annotations = m.rehash(status.GetUid(), c)
		m.annotations(c.GetAnnotations())
	}
}

func (m *Mask) rehash(uid string, c *lifecyclev1.Container) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range slices.Backward(m.made[uid+"/"+c.GetName()]) {
		if out, ok := podlabels.Rehash(c.GetAnnotations(), &v.was, &v.as); ok {
			return out
		}
	}
	out := maps.Clone(c.GetAnnotations())
	if hash, has := out[podlabels.ContainerSpecHash]; has {
		out[podlabels.ContainerSpecHash] = m.digest(hash)
	}
	return out
}

func (m *Mask) node(value *nodev1.Node) (proto.Message, error) {
	node := &v1.Node{}
	if err := node.Unmarshal(value.GetNode()); err != nil {
		return nil, fmt.Errorf("read the Node: %w: run the same version of all parts", err)
	}
	node.ManagedFields, node.Status.Images = nil, nil
	m.all(node.Annotations)
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].Message = ""
	}
	info := &node.Status.NodeInfo
	for _, id := range []*string{&info.MachineID, &info.SystemUUID, &info.BootID} {
		*id = m.digest(*id)
	}
	data, err := node.Marshal()
	if err != nil {
		return nil, err
	}
	out := proto.Clone(value).(*nodev1.Node) //nolint:forcetypeassert // a clone has the type of its original
	out.Node = data
	return out, nil
}

func (m *Mask) podEvent(value *enginev1.PodEvent) (proto.Message, error) {
	event := &v1.Event{}
	if err := event.Unmarshal(value.GetEvent()); err != nil {
		return nil, fmt.Errorf("read an event: %w: run the same version of all parts", err)
	}
	m.all(event.Annotations)
	event.ManagedFields = nil
	if event.Reason != killing {
		event.Message = ""
	}
	data, err := event.Marshal()
	if err != nil {
		return nil, err
	}
	return &enginev1.PodEvent{Event: data, LastSeenAt: value.GetLastSeenAt(), Traceparent: value.GetTraceparent()}, nil
}
