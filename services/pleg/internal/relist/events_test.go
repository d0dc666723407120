package relist_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/streamhealth"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// grace is a number of ticks above the allowed delay of a change's event.
const grace = 7

// listener is a rig with a stream of events, after the relist of its begin.
type listener struct {
	*rig
	ticks int
}

func listen(t *testing.T, fake *fakecri.Server) *listener {
	t.Helper()
	l := &listener{rig: start(t, fake)}
	l.SetEvented(true)
	l.request()
	return l
}

// tick advances the clock by a second, and waits until the due work has begun: a pod with an event of a creation is
// inspected then.
func (l *listener) tick(times int) {
	l.t.Helper()
	for range times {
		l.ticks++
		uid := fmt.Sprint("tick-", l.ticks)
		l.HintCreated(uid, time.Time{})
		l.clock.Step(relist.Period)
		eventually.That(l.t, fmt.Sprint("tick ", l.ticks), func() bool { return l.fake.Count("ListContainers", uid) > 0 })
	}
}

// look inspects a pod, as a worker does after a write.
func (l *listener) look(uid string) {
	l.t.Helper()
	if _, err := l.Status(l.t.Context(), uid, boottime.Now()); err != nil {
		l.t.Fatal(err)
	}
}

// unannounced checks the number of changes without an event, and whether the stream counts as reliable.
func (l *listener) unannounced(want float64, relied bool) {
	l.t.Helper()
	metricstest.Want(l.t, l.registry, want, "quartet_pleg_unannounced_changes_total")
	if got := l.Progress().Evented; got != relied {
		l.t.Errorf("events are relied on: %v, want %v", got, relied)
	}
}

// pods adds pods with one container each to a runtime, and returns the containers by the pods' UIDs.
func pods(fake *fakecri.Server, uids ...string) map[string]string {
	containers := map[string]string{}
	for _, uid := range uids {
		_, ids := fake.RunPod(fakecri.Pod{UID: uid, Containers: []string{"app"}})
		containers[uid] = ids["app"]
	}
	return containers
}

func TestAChangeWithoutAnEventBringsBackRelistsEverySecond(t *testing.T) {
	for how, find := range map[string]func(*listener){
		"found by a relist":                 func(l *listener) { l.request() },
		"found by an inspection for others": func(l *listener) { l.look("a") },
	} {
		t.Run(how, func(t *testing.T) {
			fake := fakecri.New(t)
			containers := pods(fake, "a", "b")
			l := listen(t, fake)
			l.Heard(l.clock.Now())
			fake.Kill(containers["a"])
			find(l)
			l.tick(2)
			l.unannounced(0, true)
			l.tick(grace)
			l.unannounced(1, false)
			select {
			case <-l.Unreliable():
			default:
				t.Error("nobody was told to make the stream anew")
			}
			lists := l.fullLists()
			l.tick(3)
			if got := l.fullLists() - lists; got < 2 {
				t.Errorf("in 3 s there were %d full relists", got)
			}
		})
	}
}

func TestAnEventThatIsStillUnderWayIsWaitedFor(t *testing.T) {
	fake := fakecri.New(t)
	containers := pods(fake, "a")
	l := listen(t, fake)
	happened := l.clock.Now()
	fake.Kill(containers["a"])
	l.look("a")
	l.tick(3)
	l.Hint("a", happened)
	l.tick(grace)
	l.unannounced(0, true)
}

func TestAnEventOfAnEarlierChangeAnnouncesNothing(t *testing.T) {
	fake := fakecri.New(t)
	containers := pods(fake, "a")
	l := listen(t, fake)
	fake.Kill(containers["a"])
	l.look("a")
	l.Hint("a", l.clock.Now().Add(-time.Minute))
	l.HintAny(containers["a"], l.clock.Now().Add(-time.Minute))
	l.tick(grace)
	l.unannounced(1, false)
}

func TestEventsOfAClockThatWasSetBackCount(t *testing.T) {
	fake := fakecri.New(t)
	containers := pods(fake, "a")
	l := listen(t, fake)
	l.clock.SetTime(l.clock.Now().Add(-time.Hour))
	fake.Kill(containers["a"])
	l.look("a")
	l.Hint("a", l.clock.Now())
	// The ticker of the fake clock stops for the time by which the clock was set back.
	l.clock.Step(time.Hour)
	l.tick(grace)
	l.unannounced(0, true)
}

func TestWhatHappenedBeforeTheStreamIsNotHeldAgainstIt(t *testing.T) {
	fake := fakecri.New(t)
	containers := pods(fake, "a", "b")
	l := listen(t, fake)
	l.SetEvented(false)
	l.request()
	fake.Kill(containers["a"])
	fake.RunPod(fakecri.Pod{UID: "c"})
	l.SetEvented(true)
	l.request()
	l.tick(grace)
	l.unannounced(0, true)
	fake.Kill(containers["b"])
	l.request()
	l.tick(grace)
	l.unannounced(1, false)
}

// TestTheEventOfWhatIsGoneIsKnownByItsID: an inspection was faster, and the runtime no longer knows the pod.
func TestTheEventOfWhatIsGoneIsKnownByItsID(t *testing.T) {
	fake := fakecri.New(t)
	sandbox, _ := fake.RunPod(fakecri.Pod{UID: "a"})
	l := listen(t, fake)
	fake.DropSandbox(sandbox)
	l.look("a")
	l.Heard(l.clock.Now())
	lists := l.fullLists()
	l.HintRemoved("", sandbox, l.clock.Now())
	l.tick(grace)
	l.unannounced(0, true)
	if got := l.fullLists() - lists; got != 0 {
		t.Errorf("it made %d full relists, want 0", got)
	}
}

// TestAnEventThatComesBeforeItsRemovalIsHeeded: containerd sends the event of a removed sandbox just before the
// removal.
func TestAnEventThatComesBeforeItsRemovalIsHeeded(t *testing.T) {
	fake := fakecri.New(t)
	sandbox, _ := fake.RunPod(fakecri.Pod{UID: "a"})
	l := listen(t, fake)
	l.Heard(l.clock.Now())
	l.HintRemoved("a", sandbox, time.Time{})
	eventually.That(l.t, "the pod is inspected", func() bool { return fake.Count("ListPodSandbox", "a") == 2 })
	l.look("a") // after that inspection
	lists := l.fullLists()
	fake.DropSandbox(sandbox)
	l.tick(1)
	eventually.That(l.t, "the pod is gone", func() bool {
		all, err := l.List()
		return err == nil && len(all) == 0
	})
	l.tick(grace)
	l.unannounced(0, true)
	if got := l.fullLists() - lists; got != 0 {
		t.Errorf("it took %d full relists, want 0", got)
	}
}

func TestARemovalThatNeverComesIsNotWaitedForForever(t *testing.T) {
	fake := fakecri.New(t)
	sandbox, _ := fake.RunPod(fakecri.Pod{UID: "a"})
	l := listen(t, fake)
	l.HintRemoved("a", sandbox, time.Time{})
	l.tick(10)
	l.look("a")
	before := fake.Count("ListPodSandbox", "a")
	l.tick(5)
	l.look("a")
	if got := fake.Count("ListPodSandbox", "a"); got != before+1 {
		t.Errorf("after 10 s the pod was still inspected %d times in 5 s", got-before-1)
	}
}

func TestEventsAreReliedOnAgainWhenTheyHaveProvedRight(t *testing.T) {
	fake := fakecri.New(t)
	containers := pods(fake, "a", "b", "c", "d", "e")
	l := listen(t, fake)
	fake.Kill(containers["a"])
	l.look("a")
	l.tick(grace)
	l.unannounced(1, false)
	for i, uid := range []string{"b", "c", "d"} {
		fake.Kill(containers[uid])
		if i == 0 {
			l.look(uid) // an inspection finds one before its event
		}
		l.Hint(uid, l.clock.Now())
		l.tick(1)
	}
	began := l.clock.Now()
	eventually.That(l.t, "events are relied on again", func() bool {
		l.clock.Step(relist.Period)
		return l.Progress().Evented
	})
	// The probation began with the change without an event, some ticks before.
	if took := l.clock.Since(began); took < streamhealth.Probation/2 {
		t.Errorf("events were relied on again after %v", took)
	}
	l.request()
	fake.Kill(containers["e"])
	l.request()
	l.tick(grace)
	l.unannounced(2, false)
}

func TestASilentStreamIsProvedByARelistEvery30Seconds(t *testing.T) {
	fake := fakecri.New(t)
	l := listen(t, fake)
	l.Heard(l.clock.Now().Add(-time.Minute)) // a delayed event says nothing about the current state of the stream
	before := l.fullLists()
	l.tick(29)
	if got := l.fullLists() - before; got != 0 {
		t.Errorf("within 29 s there were %d full relists, want 0", got)
	}
	l.tick(2)
	eventually.That(l.t, "a full relist", func() bool { return l.fullLists() == before+1 })
	for range 9 {
		l.Heard(l.clock.Now())
		l.tick(10)
	}
	if got := l.fullLists() - before; got != 1 {
		t.Errorf("within 90 s of events there were %d full relists", got-1)
	}
}

// TestMereCreationIsLookedAtWithTheNextTick: a creation needs no inspection of its own when the start was inspected.
func TestMereCreationIsLookedAtWithTheNextTick(t *testing.T) {
	fake := fakecri.New(t)
	l := listen(t, fake)
	fake.RunPod(fakecri.Pod{UID: "a"})
	l.HintCreated("a", time.Time{})
	l.look("other")
	if got := fake.Count("ListPodSandbox", "a"); got != 0 {
		t.Errorf("mere creation was looked at %d times at once", got)
	}
	l.tick(1)
	eventually.That(l.t, "the pod is known", func() bool { all, err := l.List(); return err == nil && len(all) == 1 })

	fake.RunPod(fakecri.Pod{UID: "b"})
	l.HintCreated("b", time.Time{})
	l.Hint("b", time.Time{})
	eventually.That(
		l.t,
		"the other one is known",
		func() bool { all, err := l.List(); return err == nil && len(all) == 2 },
	)
	l.tick(3)
	if got := fake.Count("ListPodSandbox", "b"); got != 1 {
		t.Errorf("a pod that was started was looked at %d times", got)
	}
}

// TestAListThatHangsHasADeadline checks that relists continue.
func TestAListThatHangsHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		p := startProcess(w, &storage{}, noop.NewTracerProvider().Tracer(""))
		defer p.end()
		synctest.Wait()
		w.hangAll()
		defer w.heal()
		time.Sleep(relist.Period + callTimeout - time.Second)
		if err := p.Progress().Err; err != nil {
			t.Errorf("a list that hangs failed before its time: %v", err)
		}
		time.Sleep(2 * time.Second)
		if p.Progress().Err == nil {
			t.Error("a list that hangs is waited for without end")
		}
		w.heal()
		time.Sleep(callTimeout + 2*relist.Period) // the relist that began meanwhile may hang until its timeout
		if err := p.Progress().Err; err != nil {
			t.Errorf("relists do not work again: %v", err)
		}
	})
}
