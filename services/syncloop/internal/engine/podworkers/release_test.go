package podworkers_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAPodThatHasEndedHoldsNothingOfTheMachine checks that the resources of an ended pod are released while its source
// still names it. Its containers stay, because they show how it ended.
func TestAPodThatHasEndedHoldsNothingOfTheMachine(t *testing.T) {
	r := start(t)
	var tries atomic.Int32
	r.node.SetScript(fakenode.Script{Release: func(*v1.Pod) error {
		if tries.Add(1) == 1 {
			return errors.New("device or resource busy")
		}
		return nil
	}})
	pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
	r.want(pod)
	eventually.That(t, "web runs", r.running("web"))
	if got := r.node.Released(); len(got) > 0 {
		t.Errorf("released while it runs: %v, want none", got)
	}
	r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, &podworkers.End{}) // as an eviction does
	eventually.That(t, "the first try has failed, and is tried again later", func() bool {
		return tries.Load() == 1 && r.pool.Due() != nil && r.state("u1") == enginev1.WorkerState_WORKER_STATE_TERMINATED
	})
	r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseDue})
	eventually.That(t, "it is released", func() bool { return slices.Equal(r.node.Released(), []types.UID{"u1"}) })
	if slices.Contains(r.node.Calls(), "clean u1") {
		t.Error("a pod that its source names was cleaned up")
	}
}

// TestAPodWithoutACgroupSaysSo checks that the status has the reason of the kubelet's event.
func TestAPodWithoutACgroupSaysSo(t *testing.T) {
	r := start(t)
	r.store.SetWaiting("")
	refused := &executor.CgroupError{Err: errors.New("make the cgroup /kubepods/besteffort/podu1: read-only file system")}
	r.node.SetScript(fakenode.Script{Sync: func(context.Context, *v1.Pod) error { return refused }, SandboxError: refused})
	r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
	eventually.That(t, "the status has the reason", func() bool {
		pods, err := r.store.Pods()
		return err == nil && len(pods) == 1 && pods[0].Status.Reason == "FailedCreatePodContainer"
	})
}
