package events_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a recorder with its recorded events.
type rig struct {
	*events.Recorder
	clock    *clocktesting.FakeClock
	recorded []*v1.Event
}

func newRig(t *testing.T, uid func() types.UID) *rig {
	r := &rig{clock: clocktesting.NewFakeClock(time.Unix(1000, 0))}
	r.Recorder = events.New(events.Config{
		NodeName: "node-1", NodeUID: uid, Clock: r.clock, Publish: func(e *v1.Event) { r.recorded = append(r.recorded, e.DeepCopy()) },
	})
	t.Cleanup(r.Close)
	return r
}

func TestAnEventOfTheNodeNamesIt(t *testing.T) {
	var uid types.UID
	r := newRig(t, func() types.UID { return uid })
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	uid = "uid-1"
	r.NodeWarning(t.Context(), "ImageGCFailed", "no space")
	var got []string
	for _, e := range r.recorded {
		got = append(
			got,
			fmt.Sprintf(
				"%s: %s %s %s of %s %s %q of %s on %s",
				e.Namespace,
				e.Type,
				e.Reason,
				e.Message,
				e.InvolvedObject.Kind,
				e.InvolvedObject.Name,
				e.InvolvedObject.UID,
				e.Source.Component,
				e.Source.Host,
			),
		)
	}
	want := []string{
		`default: Normal Starting Starting. of Node node-1 "node-1" of kubelet on node-1`,
		`default: Warning ImageGCFailed no space of Node node-1 "uid-1" of kubelet on node-1`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("told\n%q\nwant\n%q", got, want)
	}
}

func TestAnEventHasItsAnnotations(t *testing.T) {
	r := newRig(t, nil)
	about := v1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: "u1"}
	r.RecordAnnotated(
		t.Context(),
		about,
		v1.EventTypeWarning,
		"Evicted",
		"too much",
		map[string]string{"starved_resource": "memory"},
	)
	r.Record(t.Context(), about, v1.EventTypeNormal, "Killing", "it ends")
	if evicted, killing := r.recorded[0].Annotations, r.recorded[1].Annotations; evicted["starved_resource"] != "memory" ||
		len(killing) != 0 {
		t.Errorf("the annotations are %v, and %v of one that was told without", evicted, killing)
	}
}

func TestAStandaloneNodeHasItsNameForAUID(t *testing.T) {
	r := newRig(t, nil)
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	if uid := r.recorded[0].InvolvedObject.UID; uid != "node-1" {
		t.Errorf("the UID is %q, want %q", uid, "node-1")
	}
}

// TestEventsOfOneChangeAreInOrder checks the order with many concurrent callers.
func TestEventsOfOneChangeAreInOrder(t *testing.T) {
	r := newRig(t, nil)
	var all sync.WaitGroup
	const times = 20 // of the 25 that the rate limit allows
	for range times {
		all.Go(func() { r.NodeWarning(t.Context(), "ImageGCFailed", "no space") })
	}
	all.Wait()
	for i, e := range r.recorded {
		if e.Count != int32(i+1) || e.Name != r.recorded[0].Name {
			t.Fatalf("told %d is %s with the count %d, want %s with %d", i, e.Name, e.Count, r.recorded[0].Name, i+1)
		}
	}
	if len(r.recorded) != times {
		t.Errorf("told %d times, want %d", len(r.recorded), times)
	}
}
