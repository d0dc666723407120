package podstore_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// prober is a fake prober with results that a test sets.
type prober struct {
	ready, started bool
	unhealthy      bool
	since          time.Time
	// last is the newest call of Observe or Forget.
	last string
}

func (p *prober) Observe(pod *v1.Pod, observed *lifecyclev1.PodStatus, ip string, ending bool) {
	p.last = fmt.Sprintf("%s with %d containers at %q, ending: %v", pod.Name, len(observed.GetContainers()), ip, ending)
}
func (p *prober) Forget(uid types.UID)   { p.last = "forget " + string(uid) }
func (p *prober) Ready(string) bool      { return p.ready }
func (p *prober) Started(string) bool    { return p.started }
func (p *prober) Unhealthy(string) bool  { return p.unhealthy }
func (p *prober) Since(string) time.Time { return p.since }

// probedStore returns an open store with a running pod that has probes.
func probedStore(t *testing.T, node *fakenode.Node, p *prober, now time.Time) *podstore.Store {
	t.Helper()
	s := podstore.New(podstore.Config{
		API: statusmanager.None{}, Probes: p, Clock: clocktesting.NewFakeClock(now),
		Tracer: noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(s.Close)
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	pod.Spec.Containers[0].StartupProbe, pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{}, &v1.Probe{}
	s.SetPod(pod, "file", "")
	if node.Container("u1") == "" {
		node.Run(pod)
	}
	s.Observe("u1", running(t, node, "u1"))
	if p.last != "" {
		t.Errorf("called before all is known: %s", p.last)
	}
	s.Open()
	s.SetWaiting("")
	return s
}

func conditionOf(t *testing.T, s *podstore.Store, kind v1.PodConditionType) v1.PodCondition {
	t.Helper()
	pods, err := s.Pods()
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods, %v, want len(pods) 1", len(pods), err)
	}
	for _, c := range pods[0].Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	t.Fatalf("there is no condition %s", kind)
	return v1.PodCondition{}
}

func TestAResultOfAProbeShowsAtOnce(t *testing.T) {
	p := &prober{}
	s := probedStore(t, fakenode.New(), p, time.Now())
	for _, step := range []struct {
		ready, started bool
		want           v1.ConditionStatus
	}{
		{false, false, v1.ConditionFalse},
		{true, false, v1.ConditionFalse},
		{true, true, v1.ConditionTrue},
		{false, true, v1.ConditionFalse},
	} {
		p.ready, p.started = step.ready, step.started
		s.Probed("u1", "")
		if got := conditionOf(t, s, v1.PodReady).Status; got != step.want {
			t.Errorf("ready %v, started %v: the pod's Ready is %s, want %s", step.ready, step.started, got, step.want)
		}
	}
	s.Probed("nobody", "") // the pod was removed before the result
}

func TestTheProberGetsTheRunningContainers(t *testing.T) {
	p := &prober{}
	s := probedStore(t, fakenode.New(), p, time.Now())
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, `web with 1 containers at "10.0.0.9", ending: false`},
		{func() { s.SetState("u1", podworkers.Terminating) }, `web with 1 containers at "10.0.0.9", ending: true`},
		{func() { s.Gone("u1") }, `web with 0 containers at "10.0.0.9", ending: true`},
		{func() { s.Unwant("u1"); s.Forget("u1") }, "forget u1"},
	} {
		if step.do(); p.last != step.want {
			t.Errorf("the last call is %s, want %s", p.last, step.want)
		}
	}
	evicted := &prober{}
	s = probedStore(t, fakenode.New(), evicted, time.Now())
	if err := s.Evict("u1", podstore.Eviction{Reason: "Evicted"}); err != nil {
		t.Fatal(err)
	}
	if want := `web with 1 containers at "10.0.0.9", ending: true`; evicted.last != want {
		t.Errorf("the last call for an evicted pod is %s", evicted.last)
	}
}

func TestReadyIsSinceTheSameTimeAfterARestart(t *testing.T) {
	node, p := fakenode.New(), &prober{}
	now := time.Now().Add(time.Hour)
	s := probedStore(t, node, p, now)
	p.ready, p.started, p.since = true, true, now
	s.Probed("u1", "")
	before := conditionOf(t, s, v1.PodReady)
	p.last = ""
	after := conditionOf(t, probedStore(t, node, p, now.Add(time.Hour)), v1.PodReady)
	if before.Status != v1.ConditionTrue || after.Status != before.Status ||
		!after.LastTransitionTime.Equal(&before.LastTransitionTime) {
		t.Errorf("Ready was %s since %v, and after a restart %s since %v", before.Status, before.LastTransitionTime, after.Status, after.LastTransitionTime)
	}
}
