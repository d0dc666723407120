package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

// TestAContainerThatIsRemovedBehindOurBackIsMadeAgain removes a running container in the runtime.
func TestAContainerThatIsRemovedBehindOurBackIsMadeAgain(t *testing.T) {
	t.Parallel()
	place(t, "container-removed")
	before := only(awaitOne(t, "container-removed"))
	_, id, _ := strings.Cut(before.ContainerID, "://")
	if _, err := node.runtime.RemoveContainer(t.Context(),
		&runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	await(t, "container-removed", "running in another container", func(p *v1.Pod) bool { return livenode.Ready(p) && only(p).ContainerID != before.ContainerID })
	after := only(awaitOne(t, "container-removed"))
	if after.RestartCount != before.RestartCount+1 {
		t.Errorf("it counts %d restarts, want one more than %d", after.RestartCount, before.RestartCount)
	}
	if last := after.LastTerminationState.Terminated; last == nil {
		t.Error("the status does not say that an earlier container has ended")
	}
	if n := len(sandboxes(t.Context(), "container-removed")); n != 1 {
		t.Errorf("there are %d sandboxes: the one that there was is good", n)
	}
}

// TestASandboxThatGoesBehindOurBackIsMadeAgain stops, or removes, the sandbox of a pod in the runtime.
func TestASandboxThatGoesBehindOurBackIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, id string) error{
		"stopped": func(t *testing.T, id string) error {
			_, err := node.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			return err
		},
		"removed": func(t *testing.T, id string) error {
			_, err := node.runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name = "sandbox-" + name
			place(t, name)
			before := only(awaitOne(t, name))
			id := sandboxes(t.Context(), name)[0].GetId()
			if err := end(t, id); err != nil {
				t.Fatal(err)
			}
			await(t, name, "running in another container", func(p *v1.Pod) bool { return livenode.Ready(p) && only(p).ContainerID != before.ContainerID })
			after := only(awaitOne(t, name))
			// Its container ends first, and may be restarted in the old sandbox meanwhile.
			if after.RestartCount <= before.RestartCount {
				t.Errorf("it counts %d restarts, no more than before", after.RestartCount)
			}
			if after.LastTerminationState.Terminated == nil {
				t.Error("the status does not say that an earlier container has ended")
			}
			for _, s := range sandboxes(t.Context(), name) {
				if s.GetId() == id && s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
					t.Error("the sandbox that was ended is ready")
				}
			}
			if strings.HasSuffix(name, "stopped") {
				awaitEvent(t, name, v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed")
			}
		})
	}
}

// TestAFullDiskForLogsStopsNoPodThatRuns fills the file system of the pods' logs, first its inodes, then its blocks.
func TestAFullDiskForLogsStopsNoPodThatRuns(t *testing.T) {
	if node.noLogsMount != nil {
		require.NoError(t, fmt.Errorf("a small file system for the pods' logs cannot be mounted: %w", node.noLogsMount))
	}
	talks := func(p *v1.Pod) { withArgs("serve", "-every", "100ms")(p) }
	place(t, "steady-full", talks)
	before := only(awaitOne(t, "steady-full"))
	notice := watch(t, "steady-full")

	empty := useUpFiles(t)
	place(t, "starts-full", talks)
	await(t, "starts-full", "said to have no room for its logs", func(p *v1.Pod) bool {
		return p.Status.Reason == "FailedCreatePodSandBox" && hasAll(p.Status.Message, []string{"log directory", "no space left on device"})
	})
	awaitEvent(t, "starts-full", v1.EventTypeWarning, "FailedCreatePodSandBox", "no space left on device")
	empty()
	awaitOne(t, "starts-full")

	free := useUpBytes(t)
	place(t, "silent-full", talks)
	awaitOne(t, "silent-full") // it runs with an empty log
	free()
	logs := filepath.Join(node.Layout.PodLogs(), namespace+"_"+full("silent-full")+"_*", "main", "*.log")
	awaitThat(t, "the pod's log grows when there is room again", func() bool {
		files, err := filepath.Glob(logs)
		if err != nil || len(files) == 0 {
			return false
		}
		data, err := os.ReadFile(files[0])
		return err == nil && strings.Contains(string(data), "line")
	})
	notice()
	if after := only(await(t, "steady-full", "Ready", livenode.Ready)); after.ContainerID != before.ContainerID || after.RestartCount != before.RestartCount {
		t.Errorf("a pod that ran was restarted: %s is now %s", before.ContainerID, after.ContainerID)
	}
}

// useUpFiles creates files in the file system of the pods' logs until no inode is left. The returned function removes
// them.
func useUpFiles(t *testing.T) (free func()) {
	t.Helper()
	dir, err := os.MkdirTemp(node.Layout.PodLogs(), "fill-")
	if err != nil {
		t.Fatal(err)
	}
	free = func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(free)
	for i := range 2 * logsFiles {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return free
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the file system does not fill up")
	return free
}

// useUpBytes writes to the file system of the pods' logs until it is full. The returned function removes the file.
func useUpBytes(t *testing.T) (free func()) {
	t.Helper()
	path := filepath.Join(node.Layout.PodLogs(), "fill")
	free = func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	t.Cleanup(free)
	if err := os.WriteFile(path, make([]byte, 2*logsMiB<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the file system does not fill up: %v", err)
	}
	return free
}
