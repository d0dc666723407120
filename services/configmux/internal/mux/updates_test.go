package mux_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// subscribe begins another subscription of the rig, in a mode, which replaces the current one.
func (r *rig) subscribe(mode configv1.Mode, token []byte) stream.Subscription[mux.Entry] {
	r.t.Helper()
	return r.subscribeTo(r.Stream(mode), token)
}

func (r *rig) subscribeTo(source stream.Source[mux.Entry], token []byte) stream.Subscription[mux.Entry] {
	r.t.Helper()
	sub, err := source.Subscribe(r.t.Context(), token)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(sub.Close)
	r.sub = sub
	return sub
}

// phase returns a pod with another status.
func phase(p source.Pod, phase v1.PodPhase) source.Pod {
	p.Pod = p.DeepCopy()
	p.Status.Phase = phase
	return p
}

// ending returns a pod that its source wants to terminate.
func ending(p source.Pod) source.Pod {
	at := metav1.NewTime(time.Unix(1000, 0))
	p.Pod = p.DeepCopy()
	p.DeletionTimestamp = &at
	return p
}

// only returns a reading of some pods.
func only(op podset.Op, pods ...source.Pod) source.Reading {
	return source.Reading{Op: op, Pods: pods, ReadAt: time.Unix(2000, 0), Mode: "watch"}
}

// nothing checks that the source api published nothing, by publishing a message of file that must be the next one.
func (r *rig) nothing() {
	r.t.Helper()
	r.Set("file", reading(pod("probe", "1")))
	r.expect("ADD probe", "file ready=true")
}

func TestSourcesMayGiveSinglePods(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("api", reading(pod("a", "1"), pod("b", "1")))
	r.expect("ADD a", "ADD b", "api ready=true")
	r.Set("api", only(podset.Add, pod("c", "1")))
	r.expect("ADD c", "api ready=true")
	r.Set("api", only(podset.Update, pod("a", "2")))
	r.expect("UPDATE a", "api ready=true")
	r.Set("api", only(podset.Update, phase(pod("a", "2"), v1.PodRunning)))
	r.expect("RECONCILE a", "api ready=true")
	r.Set("api", only(podset.Delete, ending(pod("b", "1"))))
	r.expect("DELETE b", "api ready=true")
	r.Set("api", only(podset.Remove, pod("b", "1"), pod("unknown", "1")))
	r.expect("REMOVE b", "api ready=true")
	r.Set("api", only(podset.Update, pod("c", "1")))
	r.nothing()
}

// The operation of a change depends on the earlier messages of the subscriber, because changes may have been folded.
func TestTheOperationIsThatOfTheSubscriber(t *testing.T) {
	running := phase(pod("a", "2"), v1.PodRunning)
	for name, tc := range map[string]struct {
		before, unread []source.Pod
		want           string
	}{
		"an addition and an update":                 {nil, []source.Pod{pod("a", "1"), pod("a", "2")}, "ADD a"},
		"an addition and a status":                  {nil, []source.Pod{pod("a", "2"), running}, "ADD a"},
		"an update and a status":                    {[]source.Pod{pod("a", "1")}, []source.Pod{pod("a", "2"), running}, "UPDATE a"},
		"an end with grace and a status":            {[]source.Pod{running}, []source.Pod{ending(pod("a", "2")), ending(running)}, "DELETE a"},
		"two statuses":                              {[]source.Pod{pod("a", "2")}, []source.Pod{phase(pod("a", "2"), v1.PodPending), running}, "RECONCILE a"},
		"a removal and an addition of another one":  {[]source.Pod{pod("a", "1")}, []source.Pod{{}, pod("a", "2")}, "ADD a"},
		"a removal and an addition of the same one": {[]source.Pod{pod("a", "1")}, []source.Pod{{}, pod("a", "1")}, "ADD a"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Set("api", reading(tc.before...))
			r.watch()
			for _, p := range tc.unread {
				if p.Pod == nil {
					r.Set("api", reading())
					continue
				}
				r.Set("api", reading(p))
			}
			r.expect(tc.want, "api ready=true")
		})
	}
}

func TestAResumedSubscriberGetsEverythingThatItMissed(t *testing.T) {
	r := newRig(t)
	r.Set("api", reading(pod("a", "1"), pod("b", "1")))
	r.subscribe(configv1.Mode_MODE_INCREMENTAL, nil)
	var token []byte
	for token == nil {
		token = r.next().Token
	}
	r.Set("api", reading(pod("a", "2"), pod("b", "1")))
	r.Set("api", reading(phase(pod("a", "2"), v1.PodRunning), ending(pod("b", "1")), pod("c", "1")))
	r.subscribe(configv1.Mode_MODE_INCREMENTAL, token)
	if opened := r.next(); opened.Start != stream.StartResumed {
		t.Fatalf("%+v, want a resumption", opened)
	}
	r.expect("ADD c", "DELETE b", "UPDATE a", "api ready=true")
}

func TestRestoredPodsRunUntilTheSourceIsReady(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("api", only(podset.Restore, pod("a", "1"), pod("b", "1"), pod("c", "1")))
	r.expect("RESTORE a", "RESTORE b", "RESTORE c", "api ready=false")
	if s := r.Sources()[0]; s.GetReady() || s.GetPods() != 3 {
		t.Errorf("source %v, want three pods and not ready", s)
	}
	metricstest.Want(t, r.registry, 0, "quartet_configmux_source_ready", "source", "api")
	if waiting := strings.Join(r.health.Waiting(), "\n"); !strings.Contains(waiting, "source api") {
		t.Errorf("the health waits for %q, want api among them", waiting)
	}
	r.subscribe(configv1.Mode_MODE_INCREMENTAL, nil)
	r.next()
	r.expect("file ready=false", "RESTORE a", "RESTORE b", "RESTORE c", "api ready=false")

	// The first live list overrides the checkpoint: unchanged pods cause no message.
	r.next()
	r.Set("api", reading(pod("a", "1"), pod("b", "2"), pod("d", "1")))
	r.expect("REMOVE c", "ADD d", "UPDATE b", "api ready=true")
	r.Set("api", only(podset.Restore, pod("c", "1")))
	r.nothing()

	r.subscribe(configv1.Mode_MODE_INCREMENTAL, nil)
	for m := r.next(); m.Kind != stream.KindSynced; m = r.next() {
		if p := m.Value.Pod; p != nil && p.GetOp() != configv1.Op_OP_ADD {
			t.Errorf("%s is %s once its source has spoken, want ADD", m.Key, p.GetOp())
		}
	}
}

func TestALeftOutPodIsReportedUntilItIsGone(t *testing.T) {
	r := newRig(t)
	r.Set("file", reading(pod("a", "1")))
	r.Set("api", reading())
	r.Set("api", only(podset.Add, pod("a", "2")))
	r.Set("api", only(podset.Add, pod("b", "1")))
	errs := func() string {
		var fields []string
		for _, e := range r.Sources()[0].GetErrors() {
			fields = append(fields, fmt.Sprintf("%s of %s", e.GetField(), e.GetPod()))
		}
		return strings.Join(fields, ", ")
	}
	if got := errs(); got != "metadata.uid of default/a" {
		t.Errorf("errors %q after another pod came, want that of the UID", got)
	}
	r.Set(
		"api",
		source.Reading{Failed: true, Errors: []source.Error{{Field: "none", Pod: "any", Message: "the server is away"}}},
	)
	if got := errs(); got != "none of any, metadata.uid of default/a" {
		t.Errorf("errors %q while the source fails, want that of the UID too", got)
	}
	r.Set("api", only(podset.Add))
	r.Set("api", only(podset.Remove, pod("a", "2")))
	if got := errs(); got != "" {
		t.Errorf("errors %q, want none", got)
	}
	if n := len(r.Pods()); n != 2 {
		t.Errorf("%d pods, want that of file and the other of api", n)
	}
}

// A subscriber that compares the pods itself gets the same pods, sources and removals, and is resumed like the others.
func TestStatesAreTheSameStreamWithoutOperations(t *testing.T) {
	r := newRig(t)
	r.Set("api", reading(pod("a", "1"), pod("b", "1")))
	r.subscribeTo(r.States(), nil)
	var keys []string
	for m := r.next(); m.Kind != stream.KindSynced; m = r.next() {
		keys = append(keys, m.Key)
	}
	slices.Sort(keys)
	if want := []string{"", "a", "b", "source/api", "source/file"}; !slices.Equal(keys, want) {
		t.Fatalf("the snapshot has %q, want %q", keys, want)
	}
	r.Set("api", only(podset.Update, pod("a", "2")))
	changed := r.next()
	if changed.Kind != stream.KindDelta || changed.Key != "a" || changed.Value.Pod == nil {
		t.Fatalf("got %+v, want a with its content", changed)
	}
	r.Set("api", only(podset.Remove, pod("b", "1")))
	r.subscribeTo(r.States(), changed.Token)
	if m := r.next(); m.Start != stream.StartResumed {
		t.Fatalf("with the token of a change it began with %v", m.Start)
	}
	for m := r.next(); m.Key != "b" || !m.Removed; m = r.next() {
		if m.Value.Source == nil {
			t.Fatalf("after a restart it got %+v, want the removal of b", m)
		}
	}
}
