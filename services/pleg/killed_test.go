package pleg

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// kept waits until the file has the state of a container: the next pleg sends all later changes.
func (r *rig) kept(containerID, phase string) {
	r.t.Helper()
	eventually.That(r.t, fmt.Sprintf("%s is kept as %s", containerID, phase), func() bool {
		data, err := os.ReadFile(r.journalFile())
		return err == nil && strings.Contains(string(data), fmt.Sprintf("%q:%q", containerID, phase))
	})
}

// TestAKilledPLEGReportsMissedChangesOfContainerdOnce.
func TestAKilledPLEGReportsMissedChangesOfContainerdOnce(t *testing.T) {
	t.Parallel()
	containerd := harness.StartContainerd(t)
	h := newHand(t, containerd.Endpoint)
	sandbox, config := h.sandbox("uid-1")
	app, side := h.container(sandbox, config, "app", "serve"), h.container(sandbox, config, "side", "sleep")
	h.start(app)
	h.start(side)
	r := newRig(t, containerd.Endpoint)
	r.spawn()
	r.synced()
	f := r.follow()
	f.received()
	f.snapshots()
	r.kept(app, "started")

	r.stop()
	before := time.Now()
	if err := h.runtime.StopContainer(t.Context(), app, 0); err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	if err := h.runtime.StopContainer(t.Context(), side, 0); err != nil {
		t.Fatal(err)
	}
	if err := h.runtime.RemoveContainer(t.Context(), side); err != nil {
		t.Fatal(err)
	}
	short := h.container(sandbox, config, "short", "no-such-mode")
	h.start(short)
	eventually.That(r.t, "the short one has ended", func() bool {
		status, err := h.runtime.ContainerStatus(t.Context(), short, false)
		return err == nil && status.GetStatus().GetFinishedAt() != 0
	})
	r.spawn()
	f.returned(2)
	events := f.received(
		"CONTAINER_DIED side",
		"CONTAINER_REMOVED side",
		"CONTAINER_DIED app",
		"CONTAINER_STARTED short",
		"CONTAINER_DIED short",
	)
	for _, e := range events {
		if e.GetContainerId() != app {
			continue
		}
		if at := e.GetOccurredAt().AsTime(); e.GetExitCode() != 137 || at.Before(before) || at.After(after) {
			t.Errorf("a death while pleg was dead, between %v and %v, is told as %v", before, after, e)
		}
	}
	if got := f.snapshots(); got != 0 {
		t.Errorf("it got %d changes out of a snapshot, want 0", got)
	}

	r.kept(short, "died")
	r.stop()
	r.spawn()
	f.returned(3)
	f.received()
}

// TestAPLEGKilledWhileItPublishesPublishesNothingTwice: whatever part is on the disk, a follower gets each exit by an
// event or by a snapshot, and never by two events.
func TestAPLEGKilledWhileItPublishesPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	var ids []string
	for i := range 40 {
		_, containers := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app"}})
		ids = append(ids, containers["app"])
	}
	r := newRig(t, fake.Endpoint())
	r.spawn()
	r.synced()
	f := r.follow()
	r.kept(ids[0], "started")
	for i, id := range ids {
		fake.Exit(id, 3)
		if i%10 == 9 {
			<-time.After(time.Duration(i) * 100 * time.Microsecond) // during the resulting work, a bit later each time
			r.stop()
			r.spawn()
			r.synced()
		}
	}
	eventually.That(r.t, "all deaths are known", func() bool { return len(f.deaths()) == len(ids) })
	r.synced()
	for id, times := range f.deaths() {
		if times > 1 {
			t.Errorf("the death of %s was told %d times", id, times)
		}
	}
}

// deaths returns the number of events of each container's exit; 0 for one that a snapshot has shown.
func (f *follower) deaths() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]int{}
	for _, e := range f.shown {
		for _, c := range e.GetStatus().GetContainers() {
			if c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
				all[c.GetId()] += 0
			}
		}
	}
	for _, e := range f.events {
		if e.GetType() == died {
			all[e.GetContainerId()]++
		}
	}
	return all
}

// beyondDeaths returns the other events, except those of pods that could not be inspected in time on a slow machine.
func (f *follower) beyondDeaths() (others []*lifecyclev1.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	late := map[string]bool{}
	for _, e := range f.shown {
		late[e.GetPodUid()] = late[e.GetPodUid()] || e.GetStatus().GetInspectError() != ""
	}
	for _, e := range f.events {
		late[e.GetPodUid()] = late[e.GetPodUid()] || e.GetStatus().GetInspectError() != ""
	}
	for _, e := range f.events {
		if e.GetType() != died && !late[e.GetPodUid()] {
			others = append(others, e)
		}
	}
	return others
}

// TestFiveHundredPodsAreReportedOnce: the file is small, and the return of pleg repeats no event.
func TestFiveHundredPodsAreReportedOnce(t *testing.T) {
	t.Parallel()
	fake := fakecri.New(t)
	var ids []string
	for i := range 500 {
		_, containers := fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app", "side"}})
		ids = append(ids, containers["app"])
	}
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	// The first relist does not wait for every inspection on a slow machine.
	eventually.That(t, "every pod is inspected", func() bool {
		answer, err := r.client.ListPodStatuses(r.ctx(), &lifecyclev1.ListPodStatusesRequest{})
		return err == nil && !slices.ContainsFunc(answer.GetStatuses(), func(s *lifecyclev1.PodStatus) bool {
			return s.GetInspectError() != "" || len(s.GetContainers()) < 2
		})
	})
	f := r.follow()
	f.snapshots()
	r.restart(func() {
		info, err := os.Stat(r.journalFile())
		if err != nil || info.Size() > 1<<20 {
			t.Errorf("the file of 500 pods has %d bytes (%v)", info.Size(), err)
		}
		t.Logf("the file of 500 pods has %d bytes", info.Size())
		for _, id := range ids[:100] {
			fake.Exit(id, 3)
		}
	})
	f.returned(2)
	eventually.That(r.t, "a hundred deaths are told", func() bool { return len(f.deaths()) == 100 })
	r.synced()
	for _, id := range ids[:100] {
		if times := f.deaths()[id]; times != 1 {
			t.Errorf("the death of %s was told %d times", id, times)
		}
	}
	if others := f.beyondDeaths(); len(others) > 0 {
		t.Errorf("besides the deaths these events are told: %v", others)
	}
	if got := f.snapshots(); got != 0 {
		t.Errorf("it got %d changes out of a snapshot, want 0", got)
	}
}
