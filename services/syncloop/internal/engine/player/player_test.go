package player

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/shadow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// tape makes the entries of a recording.
type tape struct {
	t       *testing.T
	now     time.Time
	boot    int64
	entries []noderecording.Entry
}

// newTape returns a recording whose parts are known, with one source that is ready and one pod that runs.
func newTape(t *testing.T) *tape {
	r := &tape{t: t, now: began}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Status: v1.NodeStatus{
		Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("10")}, Capacity: v1.ResourceList{},
	}}
	data, err := node.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	r.source(true)
	r.want("before")
	r.add(noderecording.Entry{Part: noderecording.Desired, Op: noderecording.Synced})
	r.add(noderecording.Entry{
		Part: noderecording.Node, Op: noderecording.Put, Key: "node", Value: &nodev1.Node{Node: data},
	})
	r.runs("before")
	for _, part := range []noderecording.Part{noderecording.Node, noderecording.Events, noderecording.Pods} {
		r.add(noderecording.Entry{Part: part, Op: noderecording.Synced})
	}
	return r
}

func (r *tape) add(e noderecording.Entry) {
	e.Time = r.now
	r.entries = append(r.entries, e)
}

// later lets time pass.
func (r *tape) later(d time.Duration) { r.now = r.now.Add(d) }

func (r *tape) source(ready bool) {
	r.add(noderecording.Entry{
		Part: noderecording.Desired, Op: noderecording.Put, Key: "source/file",
		Value: &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Source{
			Source: &configv1.SourceState{Name: "file", Ready: ready},
		}},
	})
}

func (r *tape) pod(uid string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, Namespace: "default", UID: types.UID(uid)},
		Spec: v1.PodSpec{
			NodeName: "node", RestartPolicy: v1.RestartPolicyAlways,
			Containers: []v1.Container{{Name: "main", Image: "image:1"}},
		},
	}
}

func (r *tape) want(uid string) {
	data, err := r.pod(uid).Marshal()
	if err != nil {
		r.t.Fatal(err)
	}
	r.add(noderecording.Entry{
		Part: noderecording.Desired, Op: noderecording.Put, Key: uid,
		Value: &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Pod{
			Pod: &configv1.PodUpdate{Source: "file", Pod: data},
		}},
	})
}

// runs records that a pod runs.
func (r *tape) runs(uid string) {
	r.boot++
	status := &lifecyclev1.PodStatus{
		Uid: uid, Name: uid, Namespace: "default", Ips: []string{"192.0.2.9"}, ObservedBoottimeNs: r.boot,
		ObservedAt: timestamppb.New(r.now),
		Sandboxes: []*lifecyclev1.Sandbox{{
			Id: "box-" + uid, State: lifecyclev1.SandboxState_SANDBOX_STATE_READY, Ips: []string{"192.0.2.9"},
		}},
		Containers: []*lifecyclev1.Container{{
			Id: "main-" + uid, SandboxId: "box-" + uid, Name: "main", StartedAt: timestamppb.New(r.now),
			State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
		}},
	}
	r.add(noderecording.Entry{
		Part: noderecording.Events, Op: noderecording.Put, Key: uid, Value: &lifecyclev1.Event{
			Type: lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, PodUid: uid, Status: status,
		},
	})
	pod, started := r.pod(uid), true
	pod.Status = v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://main-" + uid, Ready: true, Started: &started,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}}
	for _, c := range []v1.PodConditionType{
		v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady,
	} {
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: c, Status: v1.ConditionTrue})
	}
	data, err := pod.Marshal()
	if err != nil {
		r.t.Fatal(err)
	}
	r.add(noderecording.Entry{Part: noderecording.Pods, Op: noderecording.Put, Key: uid, Value: &enginev1.Pod{
		Pod: data, Source: "file", WorkerState: enginev1.WorkerState_WORKER_STATE_SYNCING,
	}})
}

// play plays the recording to a shadow.
func (r *tape) play(maxPods int64) (shadow.Summary, []shadow.Difference) {
	r.t.Helper()
	p, err := New(Config{Entries: r.entries, Speed: 10})
	if err != nil {
		r.t.Fatal(err)
	}
	var found []shadow.Difference
	summary, err := p.Play(r.t.Context(), shadow.Config{
		NodeName: "node", Dir: r.t.TempDir(), Resync: time.Minute, Wait: 10 * time.Second, MaxPods: maxPods,
		Logger: slog.New(slog.DiscardHandler), Report: func(d shadow.Difference) { found = append(found, d) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return summary, found
}

func TestARecordingIsPlayedToItsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		maxPods int64
		want    string
	}{
		"with the pods of the node": {0, ""},
		"with fewer pods":           {1, "next: refuse it: OutOfpods"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTape(t)
				r.later(5 * time.Second)
				r.want("next")
				r.later(time.Second)
				r.runs("next")
				r.later(time.Minute)
				summary, found := r.play(c.maxPods)
				var got []string
				for _, d := range found {
					got = append(got, d.Pod+": "+d.Shadow)
					if d.Time.Before(began) || d.Time.After(began.Add(5*time.Minute)) {
						t.Errorf("it is of %v, want a time of the recording", d.Time)
					}
				}
				if text := strings.Join(got, "; "); !strings.HasPrefix(text, c.want) || (c.want == "") != (text == "") {
					t.Errorf("the differences are %q, want %q", text, c.want)
				}
				if summary.Pods != 2 || !summary.Compared {
					t.Errorf("the summary is %+v, want two pods", summary)
				}
			})
		})
	}
}

// TestAPodIsNotGoneBecauseASourceWasNotRead: after a restart of configmux the snapshot lacks the pods of a source that
// was not read yet.
func TestAPodIsNotGoneBecauseASourceWasNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTape(t)
		r.later(5 * time.Second)
		for _, e := range []noderecording.Entry{
			{Op: noderecording.Down}, {Op: noderecording.Remove, Key: "before"},
		} {
			e.Part = noderecording.Desired
			r.add(e)
		}
		r.source(false)
		r.add(noderecording.Entry{Part: noderecording.Desired, Op: noderecording.Synced})
		r.later(5 * time.Second)
		r.want("before")
		r.source(true)
		r.later(time.Minute)
		if _, found := r.play(0); len(found) > 0 {
			t.Errorf("the differences are %+v, want none", found)
		}
	})
}

// TestNothingIsComparedWhileSyncloopWasAway: what a syncloop that was killed has not done is no difference.
func TestNothingIsComparedWhileSyncloopWasAway(t *testing.T) {
	for name, down := range map[string]bool{"it was away": true, "it was there": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTape(t)
				r.later(5 * time.Second)
				if down {
					r.add(noderecording.Entry{Part: noderecording.Pods, Op: noderecording.Down})
				}
				r.add(noderecording.Entry{
					Part: noderecording.Desired, Op: noderecording.Remove, Key: "before",
					Value: &configv1.WatchPodUpdatesResponse{},
				})
				r.later(2 * time.Minute)
				if _, found := r.play(0); (len(found) == 0) != down {
					t.Errorf("the differences are %+v", found)
				}
			})
		})
	}
}

func TestEachChangeIsShownBeforeItIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTape(t)
		r.later(5 * time.Second)
		r.want("next")
		var shown []string
		stop := errors.New("stop")
		p, err := New(Config{Entries: r.entries, Speed: 10, Step: func(text string) error {
			shown = append(shown, text)
			return stop
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Play(t.Context(), shadow.Config{
			Dir: t.TempDir(), Resync: time.Minute, Wait: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
			Report: func(shadow.Difference) {},
		})
		if !errors.Is(err, stop) || len(shown) != 1 || !strings.Contains(shown[0], "configmux   put     next") {
			t.Errorf("%q were shown, error %v, want the one change and the error", shown, err)
		}
	})
}

func TestARecordingWithoutAPartIsRefused(t *testing.T) {
	r := newTape(t)
	if _, err := New(Config{Entries: r.entries[:len(r.entries)-1]}); err == nil ||
		!strings.Contains(err.Error(), "syncloop has not sent its state") {
		t.Errorf("%v, want that syncloop is missing", err)
	}
}

// TestAnEndOfBeforeTheShadowIsNoDifference: a pod is being ended when the recording begins, and its source names it
// again already.
func TestAnEndOfBeforeTheShadowIsNoDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTape(t)
		for i := range r.entries {
			if pod, is := r.entries[i].Value.(*enginev1.Pod); is {
				pod.WorkerState = enginev1.WorkerState_WORKER_STATE_TERMINATING
			}
		}
		r.later(time.Minute)
		if _, found := r.play(0); len(found) > 0 {
			t.Errorf("the differences are %+v, want none", found)
		}
	})
}

// TestThatTheRecorderSawPLEGUnwellDelaysNoDecision: the syncloop that ran asks pleg at other times than the recorder,
// and has found it well earlier.
func TestThatTheRecorderSawPLEGUnwellDelaysNoDecision(t *testing.T) {
	for name, unwell := range map[string]noderecording.Entry{
		"not healthy": {
			Part: noderecording.Health, Op: noderecording.Put,
			Value: &lifecyclev1.GetHealthResponse{Reasons: []string{"the runtime does not answer"}},
		},
		"away": {Part: noderecording.Events, Op: noderecording.Down},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTape(t)
				r.later(5 * time.Second)
				r.add(unwell)
				r.want("next")
				r.later(2 * time.Minute)
				r.add(noderecording.Entry{Part: noderecording.Events, Op: noderecording.Synced})
				r.add(noderecording.Entry{
					Part: noderecording.Health, Op: noderecording.Put, Value: &lifecyclev1.GetHealthResponse{
						Healthy: true, Runtime: &lifecyclev1.Runtime{Ready: true, NetworkReady: true},
					},
				})
				r.runs("next")
				r.later(2 * time.Minute)
				if summary, found := r.play(0); len(found) > 0 || summary.Pods != 2 {
					t.Errorf("the differences are %+v, the summary %+v, want two pods and none", found, summary)
				}
			})
		})
	}
}
