package podruntime_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/podruntime"
)

// TestLogsGoWithTheirContainer, those too that were put aside; those of what is kept stay.
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
	// A log that is none of this node's is not touched, whoever says that it is.
	elsewhere := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := n.observe(pod)
	foreign.Containers[len(foreign.Containers)-1].LogPath = elsewhere
	for range 2 { // harmless again
		if err := errors.Join(n.manager.PruneContainers(n.ctx, foreign, 1), n.manager.PruneContainers(n.ctx, observed, 1)); err != nil {
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

// collected is what was put in to be removed.
type collected struct{ items []containergc.Item }

func (c *collected) Put(_ context.Context, items []containergc.Item) {
	c.items = append(c.items, items...)
}

// TestPruningWaitsForNoRemoval holds that a runtime that hangs in one does not hang the pod.
func TestPruningWaitsForNoRemoval(t *testing.T) {
	garbage := &collected{}
	n := newNode(t, func(c *podruntime.Config) { c.Garbage = garbage })
	pod := newPod("a")
	for range 2 {
		n.sync(pod)
		n.cri.Exit(n.id(pod, "a"), 1)
	}
	if err := n.manager.PruneContainers(n.ctx, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	if len(garbage.items) != 1 || n.cri.Count("RemoveContainer", "") != 0 {
		t.Fatalf("put in %v, removed %d", garbage.items, n.cri.Count("RemoveContainer", ""))
	}
	if err := n.manager.RemoveGarbage(n.ctx, garbage.items[0]); err != nil {
		t.Fatal(err)
	}
	n.want(pod, "sandbox-0:ready a-1:exited(1)")
}
