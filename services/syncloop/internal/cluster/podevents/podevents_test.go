package podevents_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type rig struct {
	*podevents.Recorder
	t     *testing.T
	clock *clocktesting.FakeClock
}

func newRig(t *testing.T) *rig {
	clk := clocktesting.NewFakeClock(time.Unix(1000, 0))
	r := &rig{Recorder: podevents.New(podevents.Config{NodeName: "node", Clock: clk}), t: t, clock: clk}
	t.Cleanup(r.Close)
	return r
}

func pod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       v1.PodSpec{InitContainers: []v1.Container{{Name: "setup"}}, Containers: []v1.Container{{Name: "main"}}},
	}
}

// there returns the events that a new subscriber receives, the latest last.
func (r *rig) events() []*v1.Event {
	r.t.Helper()
	sub, err := r.Stream().Subscribe(r.t.Context(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer sub.Close()
	var events []*v1.Event
	for {
		m, err := sub.Next(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		switch m.Kind {
		case stream.KindSnapshot:
			events = append(events, decode(r.t, m.Value))
		case stream.KindSynced:
			return events
		case stream.KindOpened, stream.KindDelta, stream.KindBookmark, stream.KindUnknown:
		}
	}
}

func decode(t *testing.T, e *enginev1.PodEvent) *v1.Event {
	t.Helper()
	event := &v1.Event{}
	if err := event.Unmarshal(e.GetEvent()); err != nil {
		t.Fatal(err)
	}
	return event
}

func TestAnEventSaysWhatItIsAbout(t *testing.T) {
	r := newRig(t)
	r.Normal(t.Context(), pod("web"), "main", "Started", "Container started")
	r.Warning(t.Context(), pod("web"), "setup", "Failed", "Error: no such file")
	r.Warning(t.Context(), pod("web"), "", "FailedCreatePodSandBox", "no network")
	var got []string
	for _, e := range r.events() {
		got = append(got, fmt.Sprintf("%s %s %s/%s %q %q", e.Type, e.Reason, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.InvolvedObject.FieldPath, e.Message))
	}
	want := []string{
		`Normal Started ns/web "spec.containers{main}" "Container started"`,
		`Warning Failed ns/web "spec.initContainers{setup}" "Error: no such file"`,
		`Warning FailedCreatePodSandBox ns/web "" "no network"`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events\n%q\nwant\n%q", got, want)
	}
}

// TestAnEventOfAClaimIsOnlyPublished checks what it says, and that it repeats as one.
func TestAnEventOfAClaimIsOnlyPublished(t *testing.T) {
	var published []*v1.Event
	r := podevents.New(podevents.Config{
		NodeName: "node-1", Clock: clock.RealClock{}, Publish: func(e *v1.Event) { published = append(published, e) },
	})
	defer r.Close()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "data", UID: "u-1", ResourceVersion: "7",
	}}
	for range 2 {
		r.Claim(claim, v1.EventTypeNormal, "FileSystemResizeSuccessful", "it has grown")
	}
	if len(published) != 2 || published[1].Count != 2 || published[1].Name != published[0].Name {
		t.Fatalf("published %v", published)
	}
	e := published[0]
	want := v1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data", UID: "u-1", ResourceVersion: "7",
	}
	if e.InvolvedObject != want || e.Namespace != "shop" || e.Type != v1.EventTypeNormal || e.Message != "it has grown" ||
		e.Reason != "FileSystemResizeSuccessful" || e.Source.Host != "node-1" || e.Source.Component != "kubelet" {
		t.Errorf("published %v", e)
	}
	sub, err := r.Stream().Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for _, kind := range []stream.Kind{stream.KindOpened, stream.KindSynced} {
		if m, err := sub.Next(t.Context()); err != nil || m.Kind != kind {
			t.Errorf("the stream has %v, %v, want %v", m, err, kind)
		}
	}
}

func TestWhatRepeatsIsOneEventThatCounts(t *testing.T) {
	r := newRig(t)
	for range 3 {
		r.Warning(t.Context(), pod("web"), "main", "BackOff", "Back-off restarting failed container")
		r.clock.Step(10 * time.Second)
	}
	events := r.events()
	if len(events) != 1 || events[0].Count != 3 || events[0].FirstTimestamp.Unix() != 1000 ||
		events[0].LastTimestamp.Unix() != 1020 {
		t.Errorf("events %v, want one that was seen three times from 1000 to 1020", events)
	}
}

func TestEventsOfANoisyPodAreLimitedAndHideNoOthers(t *testing.T) {
	r := newRig(t)
	for i := range 500 {
		r.Warning(t.Context(), pod("loud"), "main", fmt.Sprintf("Reason%d", i), "again")
	}
	r.Normal(t.Context(), pod("calm"), "", "Started", "started")
	loud, calm := 0, 0
	for _, e := range r.events() {
		switch e.InvolvedObject.Name {
		case "loud":
			loud++
		case "calm":
			calm++
		}
	}
	if loud == 0 || loud > 50 || calm != 1 {
		t.Errorf("%d events of the loud pod and %d of the calm one, want at most 50 and 1", loud, calm)
	}
}

func TestOldEventsAndTheOldestOfVeryManyAreDropped(t *testing.T) {
	r := newRig(t)
	r.Normal(t.Context(), pod("old"), "", "Started", "started")
	r.clock.Step(61 * time.Minute)
	for i := range 6000 {
		r.Normal(t.Context(), pod(fmt.Sprint(i)), "", "Started", "started")
	}
	events := r.events()
	if len(events) != 5000 || events[0].InvolvedObject.Name != "1000" {
		t.Errorf("%d events, the first of pod %s; want the last 5000", len(events), events[0].InvolvedObject.Name)
	}
}

func TestASubscriberSeesEventsComeAndCount(t *testing.T) {
	r := newRig(t)
	sub, err := r.Stream().Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	next := func() stream.Message[*enginev1.PodEvent] {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		m, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	next()
	next()
	var key string
	for want := int32(1); want <= 2; want++ {
		r.Normal(t.Context(), pod("web"), "main", "Pulled", "image is there")
		m := next()
		if e := decode(t, m.Value); e.Count != want || (key != "" && key != m.Key) {
			t.Errorf("event %s with the count %d after %s, want the same one with %d", m.Key, e.Count, key, want)
		}
		key = m.Key
	}
}
