package relist_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// TestADeathThatCannotBeInspectedAfterARestartIsReportedOnce: pleg is killed before it has written which events it has
// sent, and its successors cannot inspect that pod for long. A follower that has the event does not get it again; one
// without it gets it.
func TestADeathThatCannotBeInspectedAfterARestartIsReportedOnce(t *testing.T) {
	for _, restarts := range []int{1, 2} {
		t.Run(fmt.Sprint("restarts: ", restarts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &history{world: newWorld(), disk: &storage{}, door: &door{}}
				defer h.end()
				h.addSandbox("a")
				h.addContainer("a")
				died := h.containers[0]
				h.advance(died)
				h.start()
				wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
				wait(3 * time.Second)
				current, behind := follow(h.world, h.door), follow(h.world, h.door)
				h.followers = []*follower{current, behind}
				wait(time.Second)
				behind.pause(true)
				wait(time.Second)
				current.take()

				h.disk.set(false, true)
				h.mu.Lock()
				h.advance(died)
				h.mu.Unlock()
				wait(3 * time.Second)
				death := fmt.Sprint(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, " ", died.GetId())
				if got := current.take(); !slices.Equal(got, []string{death}) {
					t.Fatalf("it was told %q, want the death", got)
				}
				for range restarts {
					h.halt(true, false)
					h.disk.set(false, false)
					h.mu.Lock()
					h.broken["a"] = true
					h.mu.Unlock()
					h.start()
					wait(time.Minute)
				}
				behind.pause(false)
				fresh := follow(h.world, h.door)
				h.followers = append(h.followers, fresh)
				wait(time.Minute)
				fresh.take()
				h.heal()
				wait(time.Minute)
				for name, f := range map[string]*follower{"who was told": current, "who did not read": behind, "who is new": fresh} {
					f.complete()
					if wrong := f.broken(); len(wrong) > 0 {
						t.Errorf("%s: broken() = %q, want none", name, wrong)
					}
				}
				if got := fresh.take(); !slices.Contains(got, death) {
					t.Errorf("who is new was told %q, want the death", got)
				}
				if got := current.take(); slices.Contains(got, death) {
					t.Errorf("who was told was told %q, want nothing of the death", got)
				}
			})
		})
	}
}

// TestACreatedContainerThatWasNotWrittenIsNotHeldForEver: the disk is full when a container is created, a follower
// begins with a snapshot that shows it, and the next pleg finds it removed. A created container has no event, so the
// follower needs another snapshot.
func TestACreatedContainerThatWasNotWrittenIsNotHeldForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &history{world: newWorld(), disk: &storage{}, door: &door{}}
		defer h.end()
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		h.addSandbox("a")
		h.start()
		wait(3 * time.Second)
		before := follow(h.world, h.door)
		wait(time.Second)
		h.disk.set(true, false)
		h.mu.Lock()
		h.addContainer("a")
		h.mu.Unlock()
		wait(3 * time.Second)
		after := follow(h.world, h.door)
		h.followers = []*follower{before, after}
		wait(time.Second)
		if got := fmt.Sprint(after.held["a"].GetContainers()); got == "[]" {
			t.Fatal("the snapshot does not show the created container")
		}
		h.halt(true, false)
		h.disk.set(false, false)
		h.mu.Lock()
		h.dropContainer(h.containers[0])
		h.mu.Unlock()
		before.take()
		h.start()
		wait(time.Minute)
		for name, f := range map[string]*follower{"that began before": before, "that began after": after} {
			f.complete()
			if wrong := f.broken(); len(wrong) > 0 {
				t.Errorf("the follower %s: %q, want none", name, wrong)
			}
		}
		if got := before.take(); len(got) != 0 {
			t.Errorf("the follower that began before got %q, want nothing", got)
		}
	})
}
