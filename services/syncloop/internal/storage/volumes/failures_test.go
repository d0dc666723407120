package volumes_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestAVolumeThatCannotBeHadIsTriedAgainLaterAndLaterAndDelaysItsOwnPodOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("broken", errors.New("no such thing"))
		pod := newPod("u1", "broken", "config")
		begun := r.clock.Now()
		const message = `MountVolume.SetUp failed for volume "broken" : no such thing`
		for try, pause := range []time.Duration{
			500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
			32 * time.Second, 64 * time.Second, 122 * time.Second, 122 * time.Second,
		} {
			failed := make(chan error, 1)
			open := r.plugin.hanging("broken")
			go func() { failed <- r.want(pod) }()
			synctest.Wait() // it fails only when somebody waits for it
			open()
			var err error
			for looks := 0; err == nil; looks++ {
				select {
				case err = <-failed:
				case <-time.After(2 * time.Millisecond):
					// If the wait begins only now, it ends later by as much, so the clock is advanced once more.
					if try > 0 && looks%100 == 0 && r.clock.HasWaiters() {
						r.clock.SetTime(begun)
						begun = begun.Add(pause)
					}
				}
			}
			var notReady *volumes.NotReadyError
			if !errors.As(err, &notReady) {
				t.Fatalf("try %d: %v, want a %T", try, err, notReady)
			}
			if err.Error() != message || notReady.RetryAfter != pause {
				t.Fatalf("try %d: %v, again in %v, want %v", try, err, notReady.RetryAfter, pause)
			}
			if got := r.plugin.count("setup broken"); got != try+1 {
				t.Fatalf("%d tries, want %d", got, try+1)
			}
			begun = r.clock.Now().Add(pause)
		}
		if !strings.Contains(r.events.String(), "pod-u1 FailedMount "+message) {
			t.Errorf("told: %s, want text with %q", r.events, "pod-u1 FailedMount "+message)
		}
		if err := r.want(newPod("u2", "config")); err != nil {
			t.Errorf("another pod: %v", err)
		}
		r.plugin.failing("broken", nil)
		r.clock.SetTime(begun)
		if err := r.want(pod); err != nil {
			t.Errorf("when it is mended: %v", err)
		}
	})
}

func TestEveryVolumeThatIsMissingIsNamedWhicheverFailsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("bad", errors.New("no such thing"))
		r.plugin.failing("worse", errors.New("no such place"))
		pod := newPod("u1", "bad", "worse")
		const bad = `MountVolume.SetUp failed for volume "bad" : no such thing`
		for _, want := range []string{bad, bad + `; MountVolume.SetUp failed for volume "worse" : no such place`} {
			open := r.plugin.hanging("worse") // and is not the one that fails first
			failed := make(chan error, 1)
			go func() { failed <- r.want(pod) }()
			var err error
			for err == nil {
				select {
				case err = <-failed:
				case <-time.After(2 * time.Millisecond):
					r.clock.Step(100 * time.Millisecond) // to the next try
				}
			}
			if err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
			open()
			eventually.That(r.t, "it has failed", func() bool { return r.plugin.underWay() == 0 && strings.Contains(r.events.String(), "no such place") })
		}
	})
}

func TestAFailedRemovalIsReportedAndRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if err := r.want(newPod("u1", "config")); err != nil {
			t.Fatal(err)
		}
		r.plugin.failing("config", errors.New("device busy"))
		if err := r.release("u1"); err == nil || !strings.Contains(err.Error(), `volume "config": device busy`) {
			t.Errorf("release(u1) error = %v, want an error with %q", err, `volume "config": device busy`)
		}
		r.plugin.failing("config", nil)
		done := make(chan error, 1)
		go func() { done <- r.release("u1") }()
		for waiting := true; waiting; {
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("again: %v", err)
				}
				waiting = false
			case <-time.After(2 * time.Millisecond):
				r.clock.Step(time.Second)
			}
		}
	})
}

// TestAVolumeThatCouldNotBeHadIsRemovedAtOnce checks that the removal does not wait for the back-off of the setup,
// which is up to two minutes.
func TestAVolumeThatCouldNotBeHadIsRemovedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("config", errors.New("no such object"))
		pod := newPod("u1", "config")
		if err := r.want(pod); err == nil {
			t.Fatal("the volume is in place")
		}
		r.plugin.failing("config", nil)
		if err := r.release("u1"); err != nil {
			t.Errorf("the clock stands still, and: %v", err)
		}
		r.plugin.failing("config", errors.New("device busy"))
		r.manager.Want(t.Context(), pod)
		eventually.That(r.t, "the second set-up has failed", func() bool { return r.plugin.count("setup config") == 2 && r.plugin.underWay() == 0 })
		if err := r.release("u1"); err == nil || !strings.Contains(err.Error(), "device busy") {
			t.Errorf("a removal that fails: %v", err)
		}
		r.plugin.failing("config", nil)
		if err := r.want(pod); err != nil {
			t.Errorf("it is wanted again after a removal that has failed: %v", err)
		}
	})
}
