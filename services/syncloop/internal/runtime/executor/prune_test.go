package executor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestLogsGoWithTheirContainer checks that rotated logs are removed, too, and that the logs of kept containers stay.
func TestLogsGoWithTheirContainer(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	n.sync(pod)
	n.cri.Exit(n.id(pod, "a"), 1)
	n.sync(pod)
	n.cri.Exit(n.id(pod, "a"), 1)
	dir := filepath.Join(n.config.PodLogsDir, "shop_web_u-1", "a")
	for _, name := range []string{"0.log", "0.log.20260501-100000", "0.log.20260501-090000.gz", "1.log", "1.log.20260501-110000"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	observed := n.observe(pod)
	// A log outside of the node's folder is not removed, even if the runtime reports it.
	elsewhere := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := n.observe(pod)
	foreign.Containers[len(foreign.Containers)-1].LogPath = elsewhere
	for range 2 { // a second call is a no-op
		err := errors.Join(n.manager.PruneContainers(n.ctx, foreign, 1), n.manager.PruneContainers(n.ctx, observed, 1))
		if err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if got, want := strings.Join(names, " "), "1.log 1.log.20260501-110000"; got != want {
		t.Errorf("there is %s, want %s", got, want)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Error(err)
	}
}

// collected holds the items that were queued for removal.
type collected struct{ items []containergc.Item }

func (c *collected) Put(_ context.Context, items []containergc.Item) {
	c.items = append(c.items, items...)
}

// TestPruningWaitsForNoRemoval checks that a hanging removal does not block the pod.
func TestPruningWaitsForNoRemoval(t *testing.T) {
	garbage := &collected{}
	n := newNode(t, func(c *executor.Config) { c.Garbage = garbage })
	pod := newPod("a")
	for range 2 {
		n.sync(pod)
		n.cri.Exit(n.id(pod, "a"), 1)
	}
	if err := n.manager.PruneContainers(n.ctx, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	if len(garbage.items) != 1 || n.cri.Count("RemoveContainer", "") != 0 {
		t.Fatalf("put in %v, removed %d, want exactly one and 0", garbage.items, n.cri.Count("RemoveContainer", ""))
	}
	if err := n.manager.RemoveGarbage(n.ctx, garbage.items[0]); err != nil {
		t.Fatal(err)
	}
	n.want(pod, "sandbox-0:ready a-1:exited(1)")
}

// TestManyPodsThatGoAreRemovedSomeAtATime checks that removals do not block starts, and that a hanging removal does not
// block other removals.
func TestManyPodsThatGoAreRemovedSomeAtATime(t *testing.T) {
	n := newNode(t)
	places := max(2, runtime.NumCPU())
	pods := make([]*v1.Pod, 5*places)
	for i := range pods {
		pods[i] = newPod("a")
		pods[i].Name, pods[i].UID = fmt.Sprintf("web-%d", i), types.UID(fmt.Sprintf("u-%d", i))
		n.sync(pods[i])
		if err := n.manager.KillPod(n.ctx, pods[i], n.observe(pods[i]), 1); err != nil {
			t.Fatal(err)
		}
	}
	hung := n.cri.Hang("RemoveContainer", n.id(pods[0], "a"))
	defer n.cri.Delay("RemoveContainer", "", 5*time.Millisecond)()
	done := make([]chan error, len(pods))
	clean := func(i int) {
		done[i] = make(chan error, 1)
		observed := n.observe(pods[i])
		go func() { done[i] <- n.manager.CleanUpPod(n.ctx, pods[i], observed) }()
	}
	clean(0)
	eventually.That(t, "one hangs", func() bool { return hung.Waiting() == 1 })
	for i := range pods[1:] {
		clean(i + 1)
	}
	for _, one := range done[1:] {
		if err := <-one; err != nil {
			t.Error(err)
		}
	}
	if got := n.cri.MaxInFlight("RemoveContainer"); got > places {
		t.Errorf("%d are removed at once, want at most %d", got, places)
	}
	hung.Open()
	if err := <-done[0]; err != nil {
		t.Error(err)
	}
}
