package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// TestANodeOnAFullDiskEndsPodsAndStartsAgain fills the disk of the state directory. A pod that is overdue and one whose
// manifest goes end, and the killed and started node has its pods. With room again, it starts pods, and knows which one
// was overdue.
func TestANodeOnAFullDiskEndsPodsAndStartsAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	containerd := harness.StartContainerd(t)
	dir := filepath.Join(containerd.StateDir, "node")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	harness.Require(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n := harness.StartNode(t, containerd)
	named := func(name string) string { return strings.Replace(pod, "name: kept", "name: "+name, 1) }
	n.WriteManifest(t, "kept.yaml", named("kept"))
	n.WriteManifest(t, "goes.yaml", named("goes"))
	n.WriteManifest(t, "late.yaml", strings.Replace(named("late"), "spec:\n", "spec:\n  activeDeadlineSeconds: 15\n", 1))
	for _, name := range []string{"kept", "goes", "late"} {
		eventually.In(ctx, t, name+" is ready", func() bool { return harness.Ready(n.Pod(ctx, name)) })
	}
	before := n.Pod(ctx, "kept").Status.ContainerStatuses[0].ContainerID

	fill(t, dir, "ballast")
	if err := os.Remove(filepath.Join(n.Manifests, "goes.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually.In(ctx, t, "the pod without a manifest is gone", func() bool { return n.Pod(ctx, "goes") == nil })
	if isOverdue(n.Pod(ctx, "late")) {
		t.Fatal("the pod was overdue before the disk was full")
	}
	eventually.In(ctx, t, "the overdue pod has ended", func() bool {
		if _, err := os.Stat(filepath.Join(dir, "syncloop.reserve")); err == nil {
			fill(t, dir, "ballast") // what the node removes leaves some room
		}
		return isOverdue(n.Pod(ctx, "late"))
	})

	killNode(ctx, t, n)
	n.Start(t)
	eventually.In(ctx, t, "the pod is ready", func() bool { return harness.Ready(n.Pod(ctx, "kept")) })
	if after := n.Pod(ctx, "kept").Status.ContainerStatuses[0].ContainerID; after != before {
		t.Errorf("the container was %s and is %s", before, after)
	}
	eventually.In(ctx, t, "the overdue pod is known", func() bool { return n.Pod(ctx, "late") != nil })
	if late := n.Pod(ctx, "late"); !isOverdue(late) {
		t.Errorf("after the restart the overdue pod has the status %+v", late.Status)
	}

	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	n.WriteManifest(t, "new.yaml", named("new"))
	eventually.In(ctx, t, "a new pod is ready", func() bool { return harness.Ready(n.Pod(ctx, "new")) })
	killNode(ctx, t, n)
	n.Start(t)
	eventually.In(ctx, t, "the overdue pod is known", func() bool { return n.Pod(ctx, "late") != nil })
	if late := n.Pod(ctx, "late"); !isOverdue(late) {
		t.Errorf("with room again the overdue pod has the status %+v", late.Status)
	}
}

// fill fills the disk of a directory with a file, which grows.
func fill(t *testing.T, dir, name string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.Write(make([]byte, 16<<20))
	if err := errors.Join(err, file.Close()); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v, want %v", err, unix.ENOSPC)
	}
}

func isOverdue(p *corev1.Pod) bool { return p != nil && p.Status.Reason == "DeadlineExceeded" }

// killNode kills the supervisor and the four services at once.
func killNode(ctx context.Context, t *testing.T, n *harness.Node) {
	t.Helper()
	for _, name := range append([]layout.Service{"quartet"}, layout.Services()...) {
		if pid := n.PID(name); pid != 0 {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
			eventually.In(ctx, t, string(name)+" has ended", func() bool { return unix.Kill(pid, 0) != nil })
		}
	}
}
