package noderecording

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/recordfile"
	"github.com/quartet-node/quartet/internal/runtimecalls"
)

var began = time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.UTC)

func entries() []Entry {
	return []Entry{
		{Time: began, Part: Events, Op: Put, Key: "u", Value: &lifecyclev1.Event{PodUid: "u"}},
		{Time: began.Add(time.Second), Part: Events, Op: Synced},
		{Time: began.Add(2 * time.Second), Part: Pods, Op: Put, Key: "u", Value: &enginev1.Pod{Source: "file"}},
		{Time: began.Add(3 * time.Second), Part: Pods, Op: Remove, Key: "u"},
		{Time: began.Add(4 * time.Second), Part: Health, Op: Put, Value: &lifecyclev1.GetHealthResponse{Healthy: true}},
		{Time: began.Add(5 * time.Second), Part: Desired, Op: Down},
	}
}

func written(t *testing.T, limit int64) string {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, began, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries() {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if w.Entries() != len(entries()) {
		t.Errorf("%d entries are written, want %d", w.Entries(), len(entries()))
	}
	return out.String()
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	got, err := Read(strings.NewReader(written(t, 1<<20)), "FILE")
	if err != nil {
		t.Fatal(err)
	}
	want := entries()
	for i := range want {
		want[i].Line = i + 2
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestADamagedRecordingIsRefusedWithItsLine(t *testing.T) {
	whole := written(t, 1<<20)
	lines := strings.SplitAfter(whole, "\n")
	for want, text := range map[string]string{
		"FILE:1: the file is empty":                   "",
		"FILE:1: this is no recording of a node":      "{}\n",
		"FILE:1: the recording is of version 2":       strings.Replace(whole, `"version":1`, `"version":2,"new":1`, 1),
		"FILE:8: the recording has no last line":      strings.Join(lines[:7], ""),
		"FILE:9: there are more lines":                whole + lines[1],
		"FILE:2: the line cannot be read":             strings.Replace(whole, `"key":"u"`, `"kez":"u"`, 1),
		`FILE:2: part: "plug" is not known`:           strings.Replace(whole, `"part":"pleg"`, `"part":"plug"`, 1),
		`FILE:2: op: "pat" is not known`:              strings.Replace(whole, `"op":"put"`, `"op":"pat"`, 1),
		"FILE:2: value: it cannot be read":            strings.Replace(whole, `"podUid"`, `"podUiz"`, 1),
		"FILE:4: value: it is missing":                strings.Replace(whole, `,"value":{"source":"file"}`, "", 1),
		"FILE:3: the line has no time: remove it":     lines[0] + lines[1] + `{"part":"pleg","op":"synced"}` + "\n",
		"FILE:2: the line cannot be read: unexpected": lines[0] + lines[1][:20] + "\n",
		"FILE:2: the line is cut off":                 lines[0] + lines[1][:20],
		"FILE:8: the line is cut off":                 strings.TrimSuffix(whole, "\n"),
		"FILE:2: the line has more than 32 MiB":       lines[0] + strings.Repeat(" ", recordfile.MaxLine) + lines[1],
	} {
		if _, err := Read(strings.NewReader(text), "FILE"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAFullRecordingCanBeEnded(t *testing.T) {
	var out bytes.Buffer
	const limit = 1024
	w, err := NewWriter(&out, began, limit)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = w.Write(entries()[0])
	}
	if !errors.Is(err, recordfile.ErrFull) {
		t.Fatalf("%v, want that it is full", err)
	}
	if err := w.End(began); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(&out, "FILE"); err != nil || out.Len() > limit {
		t.Errorf("it has %d bytes, want at most %d, and is read with the error %v", out.Len(), limit, err)
	}
}

// secretPod has the text in every place of a pod that may be secret.
func secretPod(secret string) *v1.Pod {
	handler := func() *v1.LifecycleHandler {
		return &v1.LifecycleHandler{
			Exec: &v1.ExecAction{Command: []string{secret}},
			HTTPGet: &v1.HTTPGetAction{
				Path: "/" + secret, HTTPHeaders: []v1.HTTPHeader{{Name: "Authorization", Value: secret}},
			},
		}
	}
	probe := func() *v1.Probe {
		return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: handler().Exec, HTTPGet: handler().HTTPGet}}
	}
	container := v1.Container{
		Name: "main", Image: "image:1", Command: []string{"run", secret}, Args: []string{"--password=" + secret},
		Env:           []v1.EnvVar{{Name: "TOKEN", Value: secret}},
		LivenessProbe: probe(), ReadinessProbe: probe(), StartupProbe: probe(),
		Lifecycle: &v1.Lifecycle{PostStart: handler(), PreStop: handler()},
	}
	ended := v1.ContainerStatus{Name: "main", State: v1.ContainerState{
		Terminated: &v1.ContainerStateTerminated{Message: secret}, Waiting: &v1.ContainerStateWaiting{Message: secret},
	}}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "shop", UID: "u",
			Annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": secret, "kubernetes.io/config.source": "file",
				"kubernetes.io/config.mirror": secret,
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: secret}},
		},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{container}, Containers: []v1.Container{container},
			EphemeralContainers: []v1.EphemeralContainer{{
				EphemeralContainerCommon: v1.EphemeralContainerCommon(container),
			}},
			Volumes: []v1.Volume{
				{Name: "a", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
					VolumeAttributes: map[string]string{"key": secret},
				}}},
				{Name: "b", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{
					Options: map[string]string{"key": secret},
				}}},
			},
		},
		Status: v1.PodStatus{
			Message: secret, Conditions: []v1.PodCondition{{Type: v1.PodReady, Message: secret}},
			ContainerStatuses: []v1.ContainerStatus{ended}, InitContainerStatuses: []v1.ContainerStatus{ended},
			EphemeralContainerStatuses: []v1.ContainerStatus{{LastTerminationState: ended.State}},
		},
	}
}

func marshal(t *testing.T, object interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	data, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestNoSecretIsInAnyMessage(t *testing.T) {
	const secret = "hunter2-hunter2"
	pod := secretPod(secret)
	annotations := map[string]string{
		podlabels.PreStopHandler: secret, "example.com/a": secret,
		podlabels.ContainerSpecHash: podlabels.SpecHash(&pod.Spec.Containers[0]),
	}
	m := NewMask()
	for _, message := range []proto.Message{
		&configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Pod{
			Pod: &configv1.PodUpdate{Pod: marshal(t, pod)},
		}},
		&enginev1.Pod{Pod: marshal(t, pod)},
		&enginev1.PodEvent{Event: marshal(t, &v1.Event{
			Reason: "Unhealthy", Message: secret, ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": secret}},
		})},
		&nodev1.Node{Node: marshal(t, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": secret}},
			Status:     v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{MachineID: secret, BootID: secret, SystemUUID: secret}},
		})},
		&lifecyclev1.GetHealthResponse{Reasons: []string{secret}, Runtime: &lifecyclev1.Runtime{ReadyMessage: secret}},
		&lifecyclev1.Event{Status: &lifecyclev1.PodStatus{
			Uid: "u", InspectError: secret,
			Sandboxes:  []*lifecyclev1.Sandbox{{Annotations: map[string]string{"a": secret}}},
			Containers: []*lifecyclev1.Container{{Name: "main", Message: secret, Annotations: annotations}},
		}},
	} {
		masked, err := m.Value(message)
		if err != nil {
			t.Fatal(err)
		}
		data, err := proto.Marshal(masked)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("the %T has the secret: %q", message, data)
		}
		if bytes.Contains(data, []byte(annotations[podlabels.ContainerSpecHash])) {
			t.Errorf("the %T has the hash of the secret: %q", message, data)
		}
	}
}

// TestACallOfTheRuntimeHasTheMaskedAnnotationsOfTheEvents masks a call, so that a replay sees the same sandbox in a
// call and in an event.
func TestACallOfTheRuntimeHasTheMaskedAnnotationsOfTheEvents(t *testing.T) {
	const secret = "hunter2"
	m := NewMask()
	annotations := map[string]string{
		"note": secret, "quartet.dev/traceparent": "kept", podlabels.ContainerSpecHash: "abc",
		podlabels.PreStopHandler: secret,
	}
	answer, err := proto.Marshal(&runtimeapi.PodSandboxStatusResponse{
		Status: &runtimeapi.PodSandboxStatus{Id: "s", Annotations: annotations}, Info: map[string]string{"config": secret},
	})
	if err != nil {
		t.Fatal(err)
	}
	masked, err := m.Value(&debugv1.RuntimeCall{Method: "PodSandboxStatus", Response: answer, BeganBoottimeNs: 5})
	if err != nil {
		t.Fatal(err)
	}
	call, ok := masked.(*debugv1.RuntimeCall)
	if !ok || call.GetBeganBoottimeNs() != 5 {
		t.Fatalf("the call is %v", masked)
	}
	_, got, err := runtimecalls.Decode(call)
	if err != nil {
		t.Fatal(err)
	}
	masks := map[string]string{
		"note": m.digest(secret), "quartet.dev/traceparent": "kept", podlabels.ContainerSpecHash: m.digest("abc"),
	}
	want := &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: "s", Annotations: masks}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("the answer (-want +got):\n%s", diff)
	}
	if failed, err := m.Value(&debugv1.RuntimeCall{Method: "PodSandboxStatus", Code: 5}); err != nil ||
		!proto.Equal(failed, &debugv1.RuntimeCall{Method: "PodSandboxStatus", Code: 5}) {
		t.Errorf("a failed call is %v, error %v", failed, err)
	}
	if _, err := m.Value(&debugv1.RuntimeCall{Method: "Telepathy"}); err == nil {
		t.Error("a method that is not known is recorded unmasked")
	}
}

// TestTheSameChangesAreSeenInARecording: two values are equal in a recording exactly if they were equal, so that
// a container was created from the recorded spec exactly if it was created from the spec.
func TestTheSameChangesAreSeenInARecording(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]string{"", "a", "b", "--flag=c"})
		draw := func(label string) *v1.Container {
			return &v1.Container{
				Name: "main", Image: value.Draw(t, label+" image"), Args: []string{value.Draw(t, label+" argument")},
				Env: []v1.EnvVar{{Name: "E", Value: value.Draw(t, label+" value")}},
			}
		}
		created, wanted := draw("created"), draw("wanted")
		m := NewMask()
		record := func(c *v1.Container) *v1.Pod {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{*c.DeepCopy()}}}
			m.Pod(pod)
			return pod
		}
		record(created)
		pod := record(wanted)
		annotations := map[string]string{podlabels.ContainerSpecHash: podlabels.SpecHash(created)}
		before := podlabels.Changed(wanted, annotations)
		event, ok := m.event(&lifecyclev1.Event{Status: &lifecyclev1.PodStatus{
			Uid: "u", Containers: []*lifecyclev1.Container{{Name: "main", Annotations: annotations}},
		}}).(*lifecyclev1.Event)
		if !ok {
			t.Fatal("the event is none")
		}
		recorded := event.GetStatus().GetContainers()[0].GetAnnotations()
		if got := podlabels.Changed(&pod.Spec.Containers[0], recorded); got != before {
			t.Fatalf("in the recording the container has changed: %t, want %t", got, before)
		}
	})
}

func TestARefusalStaysARefusal(t *testing.T) {
	pod := &v1.Pod{Status: v1.PodStatus{Message: rejected + "too many"}}
	NewMask().Pod(pod)
	if pod.Status.Message != rejected+"too many" {
		t.Errorf("the message is %q, want that of before", pod.Status.Message)
	}
}

// FuzzRead checks that no file ends the program, and that what was read has known parts only.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"time":"2026-05-01T12:00:00Z","format":"quartet.node","version":1}` + "\n" +
		`{"time":"2026-05-01T12:00:00Z","part":"pleg","op":"put","key":"u","value":{"podUid":"u"}}` + "\n" +
		`{"time":"2026-05-01T12:00:00Z","end":true}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Read(bytes.NewReader(data), "FILE")
		if err != nil {
			return
		}
		for _, e := range got {
			if newValue(e.Part) == nil || e.Op == Put && e.Value == nil || e.Time.IsZero() {
				t.Errorf("%+v was read", e)
			}
		}
	})
}
