package pleg

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// follower follows a pleg through its restarts, as syncloop does, and collects its events.
type follower struct {
	r *rig

	mu sync.Mutex
	// events are the single events; shown are the changes of fresh snapshots.
	events, shown []*lifecyclev1.Event
	// synced counts the markers of a complete state.
	synced int
}

// follow follows until the test ends, and waits until the state is complete.
func (r *rig) follow() *follower {
	r.t.Helper()
	f := &follower{r: r}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = stream.Follow(ctx, stream.FollowConfig[*lifecyclev1.Event]{
			Source: r.source(), Logger: slog.New(slog.DiscardHandler), Handle: f.handle,
			Synced: func() { f.mu.Lock(); f.synced++; f.mu.Unlock() },
		})
	}()
	r.t.Cleanup(func() { cancel(); <-ended })
	f.returned(1)
	return f
}

func (f *follower) handle(c stream.Change[*lifecyclev1.Event]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.FromSnapshot {
		f.shown = append(f.shown, c.New)
	} else {
		f.events = append(f.events, c.New)
	}
}

// returned waits until the follower has been synced this number of times.
func (f *follower) returned(times int) {
	f.r.t.Helper()
	eventually.That(f.r.t, fmt.Sprintf("the follower is synced %d times", times), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.synced >= times
	})
}

// told returns and clears the single events, by type and container and in the order of pods, as soon as they are the
// wanted ones. Then it requests a relist, after which further events would show.
func (f *follower) received(want ...string) []*lifecyclev1.Event {
	f.r.t.Helper()
	var got []*lifecyclev1.Event
	texts := func() []string {
		f.mu.Lock()
		defer f.mu.Unlock()
		// Pods are inspected in parallel: only the order within a pod is defined.
		got = slices.Clone(f.events)
		slices.SortStableFunc(got, func(a, b *lifecyclev1.Event) int { return cmp.Compare(a.GetPodUid(), b.GetPodUid()) })
		names := make([]string, len(got))
		for i, e := range got {
			names[i] = strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_") + " " + e.GetContainerName()
		}
		return names
	}
	eventually.That(f.r.t, fmt.Sprintf("%q is told", want), func() bool { return len(texts()) >= len(want) })
	f.r.synced()
	if names := texts(); strings.Join(names, "\n") != strings.Join(want, "\n") {
		f.r.t.Errorf("it was told\n\t%s\nwant\n\t%s", strings.Join(names, "\n\t"), strings.Join(want, "\n\t"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = nil
	return got
}

// snapshots returns and clears the number of changes from snapshots.
func (f *follower) snapshots() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.shown)
	f.shown = nil
	return n
}

// restart restarts the rig's pleg, with meanwhile in between.
func (r *rig) restart(meanwhile func()) {
	r.t.Helper()
	r.stop()
	meanwhile()
	r.run()
}

func (r *rig) journalFile() string { return filepath.Join(r.cfg.StateDir, journal.FileName) }

func TestChangesDuringAnOutageOfPLEGAreReportedOnce(t *testing.T) {
	fake := fakecri.New(t)
	_, web := fake.RunPod(fakecri.Pod{UID: "web", Containers: []string{"app", "side"}})
	oldSandbox, _ := fake.RunPod(fakecri.Pod{UID: "old", Containers: []string{"job"}})
	for i := range 20 {
		fake.RunPod(fakecri.Pod{UID: fmt.Sprint("still-", i), Containers: []string{"app"}})
	}
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	f := r.follow()
	if got := f.snapshots(); got != 22 {
		t.Errorf("at first it was shown %d pods, want 22", got)
	}
	f.received()

	var by time.Time
	r.restart(func() {
		fake.Exit(web["app"], 3)
		by = time.Now()
		fake.DropSandbox(oldSandbox)
		_, quick := fake.RunPod(fakecri.Pod{UID: "quick", Containers: []string{"short"}})
		fake.Exit(quick["short"], 0)
	})
	f.returned(2)
	events := map[string]*lifecyclev1.Event{}
	for _, e := range f.received(
		"CONTAINER_DIED job", "CONTAINER_REMOVED job", "POD_SYNC ",
		"POD_SYNC ", "CONTAINER_STARTED short", "CONTAINER_DIED short",
		"CONTAINER_DIED app",
	) {
		events[e.GetType().String()+" "+e.GetContainerName()] = e
	}
	if e := events[died.String()+" app"]; e.GetExitCode() != 3 || e.GetReason() != "Error" ||
		e.GetOccurredAt().AsTime().After(by) ||
		e.GetObservedAt().AsTime().Before(by) {
		t.Errorf("a death while pleg was away is told as %v, want the runtime's exit code 3 and a time not after %v", e, by)
	}
	if e := events[died.String()+" job"]; e.GetStatus().GetName() == "" || e.GetStatus().GetUid() != "old" {
		t.Errorf("the end of a pod that is gone does not name it: %v", e)
	}
	start, end := events[started.String()+" short"].GetOccurredAt().
		AsTime(),
		events[died.String()+" short"].GetOccurredAt().
			AsTime()
	if !end.After(start) || end.After(by.Add(time.Minute)) {
		t.Errorf("it says that a container ran from %v to %v", start, end)
	}
	if got := f.snapshots(); got != 0 {
		t.Errorf("it was resumed, and got %d changes out of a snapshot", got)
	}

	r.restart(func() {})
	f.returned(3)
	f.received()
	r.restart(func() { fake.Exit(web["side"], 1) })
	f.returned(4)
	f.received("CONTAINER_DIED side")
	if got := f.snapshots(); got != 0 {
		t.Errorf("it got %d changes out of a snapshot, want 0", got)
	}
	// A new follower gets no earlier events.
	if late := r.watch(); len(late.snapshot) != 22 || len(late.deltas) != 0 {
		t.Errorf("a new follower is shown %d pods and told %d events", len(late.snapshot), len(late.deltas))
	}
}

// TestADamagedFileIsRenamedAndItsPodsAreShown checks that the log line names the file.
func TestADamagedFileIsRenamedAndItsPodsAreShown(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "web", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	f := r.follow()
	f.snapshots()
	var log logbuffer.Buffer
	r.stop()
	fake.Exit(ids["app"], 3)
	if err := os.WriteFile(r.journalFile(), []byte("no such thing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.runLogging(slog.New(slog.NewTextHandler(&log, nil)))
	f.returned(2)
	f.received()
	if got := f.snapshots(); got != 1 {
		t.Errorf("out of the snapshot it got %d changes, want the death in the state of its pod", got)
	}
	r.stop()
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), r.journalFile()+".damaged") {
		t.Errorf("the log does not name the file:\n%s", log.String())
	}
	if _, err := os.Stat(r.journalFile() + ".damaged"); err != nil {
		t.Error(err)
	}
	r.run()
	f.returned(3)
	f.received()
}

// TestADiskThatIsFullStopsNoEvent: here a directory is in the place of the file.
func TestADiskThatIsFullStopsNoEvent(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "web", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	r.stop()
	if err := os.Remove(r.journalFile()); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(r.journalFile(), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.run()
	r.synced()
	f := r.follow()
	fake.Exit(ids["app"], 3)
	f.received("CONTAINER_DIED app")
	metrics := metricstest.Scrape(r.cfg.MetricsListen)
	eventually.That(r.t,
		"the failure is counted",
		func() bool { return metricstest.Value(t, metrics, "quartet_pleg_told_errors_total") > 0 },
	)
}

// TestAPLEGThatOnlyReadsLeavesTheFileAlone: the file belongs to the node's pleg.
func TestAPLEGThatOnlyReadsLeavesTheFileAlone(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "web", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	f := r.follow()
	r.stop()
	before, err := os.ReadFile(r.journalFile())
	if err != nil {
		t.Fatal(err)
	}
	second := r.beside()
	second.synced()
	w := second.watch()
	fake.Exit(ids["app"], 3)
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, ids["app"])
	second.stop()
	if after, err := os.ReadFile(r.journalFile()); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file went from %s to %s (%v)", before, after, err)
	}
	r.run()
	f.returned(2)
	f.received("CONTAINER_DIED app")
}
