package loop_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
)

// restarts returns the restart count of a pod's container and its last termination message.
func (r *rig) restarts(uid string) (count int32, message string) {
	pod := r.pod(uid)
	if pod == nil || len(pod.Status.ContainerStatuses) == 0 {
		return 0, ""
	}
	status := pod.Status.ContainerStatuses[0]
	if ended := status.LastTerminationState.Terminated; ended != nil {
		message = ended.Message
	}
	if ended := status.State.Terminated; ended != nil {
		message = ended.Message
	}
	return status.RestartCount, message
}

func TestADiskThatHangsUnderOnePodDelaysThatPodOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		disk := make(chan struct{})
		read := func(pod *v1.Pod) string {
			if pod.UID == "hung" {
				<-disk
			}
			return "the end of " + pod.Name
		}
		r.messages.Store(&read)
		r.source("file", true)
		r.add(fakenode.Pod("hung", "hung", always))
		r.add(fakenode.Pod("well", "well", always))
		r.eventually("both are ready", func() bool { return r.ready("hung") && r.ready("well") })
		r.node.Exit("hung", 1)
		r.node.Exit("well", 1)
		begun := r.clock.Now()
		r.eventually("the other pod runs again", func() bool {
			count, message := r.restarts("well")
			return count == 1 && message == "the end of well" && r.ready("well")
		})
		if took := r.clock.Since(begun); took > time.Second {
			t.Errorf("the other pod waited for %s", took)
		}
		r.eventually("the pod is not ready, in spite of its disk", func() bool { return !r.ready("hung") })
		if took := r.clock.Since(begun); took > 3*time.Second {
			t.Errorf("the status of the pod waited for %s", took)
		}
		r.node.Exit("well", 1)
		r.eventually("the other pod runs a third time", func() bool {
			count, _ := r.restarts("well")
			return count == 2 && r.ready("well")
		})
		close(disk)
		r.eventually("the pod runs again and says why it ended", func() bool {
			count, message := r.restarts("hung")
			return count == 1 && message == "the end of hung" && r.ready("hung")
		})
	})
}

func TestTheStartIsDelayedByAHungDiskForAMomentOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(fakenode.Pod("hung", "hung", v1.RestartPolicyNever))
		node.Exit("hung", 1)
		node.Run(fakenode.Pod("well", "well", always))
		r := newRig(t, node, t.TempDir())
		disk := make(chan struct{})
		read := func(*v1.Pod) string {
			<-disk
			return "the end"
		}
		r.messages.Store(&read)
		r.add(fakenode.Pod("hung", "hung", v1.RestartPolicyNever))
		r.add(fakenode.Pod("well", "well", always))
		r.source("file", true)
		r.configPeer.set(r.config)
		r.eventually("the pods are known", func() bool { return r.store.Has("hung") && r.store.Has("well") })
		r.plegPeer.set(node.Events)
		begun := r.clock.Now()
		r.eventually("the other pod is ready", func() bool { return r.ready("well") })
		if took := r.clock.Since(begun); took > 3*time.Second {
			t.Errorf("the pods were shown after %s", took)
		}
		close(disk)
		r.eventually("the message is there", func() bool {
			_, message := r.restarts("hung")
			return message == "the end"
		})
	})
}

// TestAnOverduePodEndsWithoutADisk makes the record of evictions unwritable. The pod ends at its deadline all the same,
// and is recorded when the disk is well.
func TestAnOverduePodEndsWithoutADisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fakenode.New(), dir)
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		late := fakenode.Pod("late", "late", always)
		late.Spec.ActiveDeadlineSeconds = ptr.To[int64](60)
		r.add(late)
		r.add(fakenode.Pod("well", "well", always))
		r.eventually("both are ready", func() bool { return r.ready("late") && r.ready("well") })
		// A directory in the place of the file makes the write fail until it is removed.
		if err := os.Mkdir(filepath.Join(dir, "evictions.json"), 0o700); err != nil {
			t.Fatal(err)
		}
		r.pass(90 * time.Second)
		if got := r.pod("late").Status.Reason; got != "DeadlineExceeded" {
			t.Errorf("the reason of the overdue pod is %q, want %q", got, "DeadlineExceeded")
		}
		r.node.Exit("well", 1)
		r.eventually("the other pod runs again", func() bool {
			count, _ := r.restarts("well")
			return count == 1 && r.ready("well")
		})
		if err := os.Remove(filepath.Join(dir, "evictions.json")); err != nil {
			t.Fatal(err)
		}
		r.eventually("the end is on disk", func() bool {
			data, err := os.ReadFile(filepath.Join(dir, "evictions.json"))
			return err == nil && strings.Contains(string(data), "DeadlineExceeded")
		})
	})
}
