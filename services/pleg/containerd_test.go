package pleg

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// hand starts and stops pods in a runtime with bare CRI calls, as syncloop would.
type hand struct {
	t       *testing.T
	runtime internalapi.RuntimeService
}

func newHand(t *testing.T, endpoint string) hand {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return hand{t: t, runtime: harness.ConnectCRI(ctx, t, endpoint).Runtime}
}

func (h hand) sandbox(uid string) (string, *runtimeapi.PodSandboxConfig) {
	h.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod-" + uid, Namespace: "default", Uid: uid}, Hostname: uid,
		Labels: map[string]string{podlabels.PodName: "pod-" + uid, podlabels.PodNamespace: "default", podlabels.PodUID: uid},
		Linux:  &runtimeapi.LinuxPodSandboxConfig{},
	}
	id, err := h.runtime.RunPodSandbox(h.t.Context(), config, "")
	if err != nil {
		h.t.Fatal(err)
	}
	return id, config
}

func (h hand) container(sandboxID string, sandbox *runtimeapi.PodSandboxConfig, name string, args ...string) string {
	h.t.Helper()
	id, err := h.runtime.CreateContainer(h.t.Context(), sandboxID, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{
			Name: name,
		},
		Image: &runtimeapi.ImageSpec{Image: harness.HelloImage},
		Args:  args,
		Labels: map[string]string{
			podlabels.PodName: sandbox.GetMetadata().GetName(), podlabels.PodNamespace: "default",
			podlabels.PodUID: sandbox.GetMetadata().GetUid(), podlabels.ContainerName: name,
		},
		Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

// broken creates a container that cannot be started: its command does not exist.
func (h hand) broken(sandboxID string, sandbox *runtimeapi.PodSandboxConfig) string {
	h.t.Helper()
	id, err := h.runtime.CreateContainer(h.t.Context(), sandboxID, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{
			Name: "broken",
		},
		Image:   &runtimeapi.ImageSpec{Image: harness.HelloImage},
		Command: []string{"/no-such-command"},
		Labels:  map[string]string{podlabels.PodUID: sandbox.GetMetadata().GetUid(), podlabels.ContainerName: "broken"},
		Linux:   &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.runtime.StartContainer(h.t.Context(), id); err == nil {
		h.t.Fatal("a container without its command was started")
	}
	return id
}

func (h hand) start(containerID string) {
	h.t.Helper()
	if err := h.runtime.StartContainer(h.t.Context(), containerID); err != nil {
		h.t.Fatal(err)
	}
}

func TestWithARealContainerd(t *testing.T) {
	t.Parallel()
	containerd := harness.StartContainerd(t)
	h := newHand(t, containerd.Endpoint)
	r := startPLEG(t, containerd.Endpoint)
	r.synced()
	r.mode(evented)
	w := r.watch()

	sandbox, config := h.sandbox("uid-1")
	if e := w.until(podSync, "uid-1"); len(e.GetStatus().GetIps()) == 0 || e.GetStatus().GetName() != "pod-uid-1" {
		t.Errorf("a sandbox came up and the event has the status %v", e.GetStatus())
	}
	app := h.container(sandbox, config, "app", "serve")
	h.start(app)
	if e := w.until(started, app); e.GetContainerName() != "app" || e.GetStatus().GetContainers()[0].GetImageRef() == "" {
		t.Errorf("a start is told as %v", e)
	}
	failing := h.container(sandbox, config, "failing", "no-such-mode")
	h.start(failing)
	if e := w.until(died, failing); e.GetExitCode() == 0 || e.GetReason() != "Error" {
		t.Errorf("a container that failed is told as %v", e)
	}

	before := r.status("uid-1", boottime.Now())
	containerd.Kill(t)
	r.mode(generic)
	containerd.Start(t)
	r.mode(evented)
	if after := r.status(
		"uid-1",
		boottime.Now(),
	); len(after.GetContainers()) != 2 ||
		after.GetContainers()[1].GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING ||
		!slices.Equal(after.GetIps(), before.GetIps()) {
		t.Errorf("over a restart of containerd the status went from %v to %v", before, after)
	}

	stopping := time.Now()
	if err := h.runtime.StopContainer(t.Context(), app, 0); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	// The return of containerd repeats no event: the next event is this exit.
	e := w.next()
	if e.GetType() != died || e.GetContainerId() != app || e.GetContainerName() != "app" || e.GetExitCode() != 137 ||
		e.GetReason() != "Error" {
		t.Errorf("after a container was killed the event is %v", e)
	}
	if at := e.GetOccurredAt().AsTime(); at.Before(stopping) || at.After(stopped) {
		t.Errorf("a container that was killed between %v and %v is told to have died at %v", stopping, stopped, at)
	}
	// containerd sends no event for a container that could not be started. The client inspects it itself.
	broken := h.broken(sandbox, config)
	r.status("uid-1", boottime.Now())
	if e := w.until(died, broken); e.GetExitCode() == 0 || e.GetReason() != "StartError" {
		t.Errorf("a container that could not be started is told as %v", e)
	}
	if err := h.runtime.RemoveContainer(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	if e := w.until(
		removed,
		broken,
	); e.GetContainerName() != "broken" || e.GetPodUid() != "uid-1" ||
		len(e.GetStatus().GetContainers()) != 2 {
		t.Errorf("a container that was removed is told as %v", e)
	}
	// containerd sends the event of a removed sandbox just before the removal; nothing else triggers an inspection of the
	// pod.
	removing := time.Now()
	if err := h.runtime.RemovePodSandbox(t.Context(), sandbox); err != nil {
		t.Fatal(err)
	}
	for {
		m := <-w.deltas
		if m.Removed {
			break
		}
	}
	if took := time.Since(removing); took > 15*time.Second {
		t.Errorf("that the pod is gone was told after %v", took)
	}
	t.Logf("starts were told %v after containerd's word for them (the middle of 10)", startLatency(h, w))
	eventually.That(r.t,
		"the event of each change has come, or is missing",
		func() bool { return time.Since(removing) > 7*time.Second },
	)
	r.mode(evented)
	if got := r.metric("quartet_pleg_unannounced_changes_total"); got != 0 {
		t.Errorf("%v changes were held against containerd's stream, want 0", got)
	}
}

// TestAnInterruptedStartIsNoEnd: when the caller of StartContainer goes away after containerd has begun to create the
// task, containerd undoes the start and reports the exit of the container. pleg reports that it was never started.
func TestAnInterruptedStartIsNoEnd(t *testing.T) {
	t.Parallel()
	containerd := harness.StartContainerd(t)
	h := newHand(t, containerd.Endpoint)
	r := startPLEG(t, containerd.Endpoint)
	r.synced()
	sandbox, config := h.sandbox("uid-3")
	for i := range 20 {
		id := h.container(sandbox, config, fmt.Sprint("app-", i), "sleep")
		ctx, cancel := context.WithCancel(t.Context())
		task := filepath.Join(containerd.StateDir, "*", "state", "io.containerd.runtime.v2.task", "k8s.io", id)
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			defer cancel()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for ; ctx.Err() == nil; <-tick.C {
				if begun, _ := filepath.Glob(task); len(begun) > 0 {
					return
				}
			}
		}()
		err := h.runtime.StartContainer(ctx, id)
		cancel()
		<-watching
		if err == nil {
			continue // the start was faster
		}
		var status *runtimeapi.ContainerStatus
		eventually.That(r.t, "containerd has undone the start", func() bool {
			answer, err := h.runtime.ContainerStatus(t.Context(), id, false)
			if err != nil {
				t.Fatal(err)
			}
			status = answer.GetStatus()
			return status.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
		})
		for _, c := range r.status("uid-3", boottime.Now()).GetContainers() {
			if c.GetId() == id &&
				(c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_CREATED || c.GetFinishedAt() != nil) {
				t.Errorf("containerd says %v, and pleg tells %v, want a container that was never started", status, c)
			}
		}
		return
	}
	t.Fatal("no start was interrupted")
}

// startLatency measures the time from the start of a container to pleg's event.
func startLatency(h hand, w *watcher) time.Duration {
	sandbox, config := h.sandbox("uid-2")
	const starts = 10
	latencies := make([]time.Duration, starts)
	for i := range latencies {
		id := h.container(sandbox, config, "app-"+string(rune('a'+i)), "sleep")
		h.start(id)
		e := w.until(started, id)
		latencies[i] = e.GetObservedAt().AsTime().Sub(e.GetOccurredAt().AsTime())
	}
	slices.Sort(latencies)
	return latencies[starts/2]
}
