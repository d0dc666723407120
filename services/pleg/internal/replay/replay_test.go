package replay

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/replayed"
)

// begun is the time of the first step.
var begun = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// scene makes a segment.
type scene struct{ *segment }

func newScene() scene {
	return scene{&segment{pods: map[string]*recorded{}, lastEvent: begun.Add(time.Hour)}}
}

// add adds a step, which is a list without a uid, and otherwise an inspection.
func (s scene) add(uid string, after time.Duration, calls runtime) {
	at := begun.Add(after)
	step := &step{at: len(s.steps) + 1, uid: uid, calls: calls, began: at, ended: at, boot: time.Minute + after}
	s.steps = append(s.steps, step)
	if uid == "" {
		return
	}
	if s.pods[uid] == nil {
		s.pods[uid] = &recorded{}
	}
	s.pods[uid].inspections = append(s.pods[uid].inspections, step)
}

// differences returns the differences of a replay from the recorded events, which are those of the pods.
func (s scene) differences(t *testing.T) (found []replayed.Difference) {
	t.Helper()
	var summary Summary
	p := newPlayer(Config{Report: func(d replayed.Difference) error {
		found = append(found, d)
		return nil
	}}, s.segment, &summary)
	if err := p.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	return found
}

// replays returns the events that a replay publishes and that differ.
func (s scene) replays(t *testing.T) (events []string) {
	t.Helper()
	for _, d := range s.differences(t) {
		events = append(events, d.Replayed)
	}
	return events
}

// runtimeWith returns the answers of a runtime with sandboxes of pods, which have the pod's UID as their ID, and with
// containers, by the ID of their pod, that have ended. The status of one called "lost" is not found any more.
func runtimeWith(sandboxes []string, containers map[string]string) runtime {
	of := func(uid string) map[string]string {
		return map[string]string{podlabels.PodUID: uid, podlabels.PodName: uid, podlabels.PodNamespace: "default"}
	}
	listed, all := &runtimeapi.ListPodSandboxResponse{}, &runtimeapi.ListContainersResponse{}
	answers := runtime{listSandboxes: {response: listed}, listContainers: {response: all}}
	for _, uid := range sandboxes {
		meta := &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid}
		listed.Items = append(listed.Items, &runtimeapi.PodSandbox{Id: uid, Labels: of(uid), Metadata: meta})
		answers[sandboxStatus+uid] = answer{response: &runtimeapi.PodSandboxStatusResponse{
			Status: &runtimeapi.PodSandboxStatus{Id: uid, Labels: of(uid), Metadata: meta},
		}}
	}
	for uid, id := range containers {
		meta := &runtimeapi.ContainerMetadata{Name: id}
		state := runtimeapi.ContainerState_CONTAINER_EXITED
		all.Containers = append(all.Containers, &runtimeapi.Container{
			Id: id, PodSandboxId: uid, Labels: of(uid), Metadata: meta, State: state,
		})
		answers[containerStatus+id] = answer{response: &runtimeapi.ContainerStatusResponse{
			Status: &runtimeapi.ContainerStatus{
				Id: id, Labels: of(uid), Metadata: meta, State: state, StartedAt: begun.UnixNano(), FinishedAt: begun.UnixNano(),
			},
		}}
		if id == "lost" {
			answers[containerStatus+id] = answer{code: int32(codes.NotFound)}
		}
	}
	return answers
}

const present, gone = "POD_SYNC 1 sandboxes, 1 ready, 0 containers", "POD_SYNC 0 sandboxes, 0 ready, 0 containers"

// TestAPodThatIsBackSoonIsNotUnknown lists a pod, which is inspected, goes, and is listed again before the relist of
// the first list would have given up. The first list says nothing about the pod of the second one.
func TestAPodThatIsBackSoonIsNotUnknown(t *testing.T) {
	there := runtimeWith([]string{"u"}, nil)
	s := newScene()
	s.add("", 0, there)
	s.add("u", 100*time.Millisecond, there)
	s.add("u", time.Second, runtimeWith(nil, nil))
	s.add("", 1900*time.Millisecond, there)
	s.add("u", 2100*time.Millisecond, there)
	if diff := cmp.Diff([]string{present, gone, present}, s.replays(t)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestAListDoesNotWaitForASlowInspection has a list that ends while the first inspection of a pod has been running for
// more than a second: the pod's state is published as unknown at once, and then as the inspection saw it.
func TestAListDoesNotWaitForASlowInspection(t *testing.T) {
	there := runtimeWith([]string{"u"}, nil)
	s := newScene()
	s.add("", 1500*time.Millisecond, there)
	s.add("u", 100*time.Millisecond, there)
	s.steps[1].ended = begun.Add(1600 * time.Millisecond)
	if diff := cmp.Diff([]string{"POD_SYNC state unknown", present}, s.replays(t)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestARestartedPLEGBeginsWithItsRecord replays the first relist after a restart. It asks again for a container whose
// end was known, tells of the end of one that only the record has, and publishes the whole history of a pod that has
// come and ended meanwhile. A pod that comes after the first relist has no history.
func TestARestartedPLEGBeginsWithItsRecord(t *testing.T) {
	s := newScene()
	s.from, s.continues, s.syncedAt = time.Minute, true, time.Minute+time.Second
	exited := lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	created := lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	s.pods["u"] = &recorded{knownAt: time.Minute, record: &debugv1.PLEGRecordPod{
		Uid: "u", Published: &debugv1.PLEGRecordState{
			Inspected: true, Phases: map[string]string{"lost": "died", "brief": "created"},
			Status: &lifecyclev1.PodStatus{
				Uid: "u", Name: "u", Namespace: "default",
				Sandboxes: []*lifecyclev1.Sandbox{{
					Id: "u", State: lifecyclev1.SandboxState_SANDBOX_STATE_READY, CreatedAt: timestamppb.New(time.Unix(0, 0)),
				}},
				Containers: []*lifecyclev1.Container{
					{Id: "brief", Name: "brief", State: created, ExitCode: 9}, {Id: "lost", Name: "lost", State: exited},
				},
			},
		},
	}}
	old, fresh := runtimeWith([]string{"u"}, map[string]string{"u": "lost"}), runtimeWith([]string{"v"}, map[string]string{"v": "app"})
	s.add("", 0, runtimeWith([]string{"u", "v"}, map[string]string{"u": "lost", "v": "app"}))
	s.add("u", 100*time.Millisecond, old)
	s.add("v", 100*time.Millisecond, fresh)
	s.add("w", 2*time.Second, runtimeWith([]string{"w"}, map[string]string{"w": "late"}))
	want := []string{
		"CONTAINER_REMOVED lost", "CONTAINER_DIED brief exit code 9", "CONTAINER_REMOVED brief",
		"POD_SYNC 1 sandboxes, 1 ready, 1 containers", "CONTAINER_STARTED app", "CONTAINER_DIED app exit code 0",
		"POD_SYNC 1 sandboxes, 1 ready, 1 containers", "CONTAINER_DIED late exit code 0",
	}
	if diff := cmp.Diff(want, s.replays(t)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestWhatTheRecordHasIsNotReplayed: an inspection and an event of the runtime before the record.
func TestWhatTheRecordHasIsNotReplayed(t *testing.T) {
	s := newScene()
	s.from = time.Minute + time.Second
	s.pods["u"] = &recorded{knownAt: s.from, record: &debugv1.PLEGRecordPod{Uid: "u"}}
	s.add("", 0, runtimeWith([]string{"u"}, nil))
	s.add("u", 100*time.Millisecond, runtimeWith([]string{"u"}, nil))
	s.add("", time.Minute, runtimeWith(nil, nil))
	if found := s.differences(t); len(found) > 0 {
		t.Errorf("differences %+v, want none", found)
	}
}

// TestAPLEGWithoutMemoryIsSilentUntilItsFirstRelist: what it finds may be old.
func TestAPLEGWithoutMemoryIsSilentUntilItsFirstRelist(t *testing.T) {
	s := newScene()
	s.from, s.syncedAt = time.Minute, time.Minute+time.Second
	s.add("u", 100*time.Millisecond, runtimeWith([]string{"u"}, nil))
	s.add("v", 2*time.Second, runtimeWith([]string{"v"}, nil))
	if diff := cmp.Diff([]string{present}, s.replays(t)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestAnInspectionThatHungUntilTheEndIsNotAnEarlierOne: its calls are not in the recording, and the event that it is
// overdue is.
func TestAnInspectionThatHungUntilTheEndIsNotAnEarlierOne(t *testing.T) {
	s := newScene()
	s.add("u", 0, runtimeWith([]string{"u"}, nil))
	s.pods["u"].events = []*lifecyclev1.Event{{
		Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: "u", ObservedAt: timestamppb.New(begun.Add(6 * time.Second)),
		Status: &lifecyclev1.PodStatus{
			Uid: "u", ObservedBoottimeNs: int64(time.Minute), InspectError: "overdue",
			UnknownSince: timestamppb.New(begun.Add(time.Second)),
		},
	}}
	if found := s.differences(t); len(found) != 1 || found[0].Recorded != nothing {
		t.Errorf("got %+v, want that the first inspection has no recorded event", found)
	}
}

// TestAPodThatWasGoneBeforeTheEventsBeganStaysGone has a pod in the first list of a restarted pleg, and its removal
// before the recorder had pleg's events: its inspection was before that. The next list must not ask for it again.
func TestAPodThatWasGoneBeforeTheEventsBeganStaysGone(t *testing.T) {
	s := newScene()
	s.from = time.Minute
	s.pods["u"] = &recorded{knownAt: time.Minute + time.Second}
	s.add("", 0, runtimeWith([]string{"u"}, nil))
	s.add("u", 100*time.Millisecond, runtimeWith(nil, nil))
	s.add("", 20*time.Second, runtimeWith(nil, nil))
	s.add("", 20*time.Second+patience+time.Second, runtimeWith(nil, nil))
	if found := s.differences(t); len(found) > 0 {
		t.Errorf("differences: %v", found)
	}
}
