package statusmanager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

func TestAStatusIsSentWhenItChangesAndNotAgain(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		p := r.api.put(pod("a"))
		r.Report(podstatus.Report{Pod: p, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		if got := r.api.get("a").Status; got.Phase != v1.PodRunning || len(got.ContainerStatuses) != 1 {
			t.Errorf("the API server has %+v", got)
		}
		// The watch delivers it, and time passes.
		r.Report(podstatus.Report{Pod: r.api.get("a"), Status: status(v1.PodRunning), MayRun: true})
		pass(time.Minute)
		synctest.Wait()
		if r.api.count() != 1 {
			t.Errorf("the patches were %q, want r.api.count 1", r.api.patches)
		}
		metricstest.Want(t, r.registry, 1, "quartet_pod_status_requests_total", "operation", "patch", "outcome", "ok")
		if n := r.Unsent(); n != 0 {
			t.Errorf("%d are unsent, want 0", n)
		}
	})
}

// TestTheNewestReplacesWhatWaits also checks that a hanging request of one pod delays no other pod.
func TestTheNewestReplacesWhatWaits(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		release := make(chan struct{})
		r.api.answers(func(_ context.Context, name string) error {
			if name == "slow" {
				<-release
			}
			return nil
		})
		slow, other := r.api.put(pod("slow")), r.api.put(pod("other"))
		r.Report(podstatus.Report{Pod: slow, Status: status(v1.PodPending), MayRun: true})
		synctest.Wait()
		for i := range 50 {
			next := status(v1.PodRunning)
			next.ContainerStatuses[0].RestartCount = int32(i)
			r.Report(podstatus.Report{Pod: slow, Status: next, MayRun: true})
		}
		r.Report(podstatus.Report{Pod: other, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		if r.api.get("other").Status.Phase != v1.PodRunning {
			t.Error("the other pod waits")
		}
		if r.Unsent() != 1 {
			t.Errorf("%d are unsent, want that of the pod that hangs", r.Unsent())
		}
		close(release)
		synctest.Wait()
		if got := r.api.get("slow").Status.ContainerStatuses[0].RestartCount; got != 49 || r.api.count() != 3 {
			t.Errorf("the API server has %d after %q", got, r.api.patches)
		}
	})
}

func TestAStatusThatAnotherWriterChangesIsCorrected(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		p := r.api.put(pod("a"))
		r.Report(podstatus.Report{Pod: p, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		wrong := r.api.get("a")
		wrong.Status.Phase, wrong.Status.PodIP = v1.PodPending, "198.51.100.1"
		wrong.Status.Conditions = []v1.PodCondition{condition("example.com/gate", v1.ConditionTrue, 3)}
		r.Report(podstatus.Report{Pod: r.api.put(wrong), Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		if got := r.api.get("a").Status; got.Phase != v1.PodRunning || got.PodIP != "" || len(got.Conditions) != 1 {
			t.Errorf("the API server has %+v", got)
		}
	})
}

func TestAStaleWatchEventDoesNotReplaceANewerVersion(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		old := r.api.put(pod("a"))
		for _, phase := range []v1.PodPhase{v1.PodPending, v1.PodRunning} {
			r.Report(podstatus.Report{Pod: old, Status: status(phase), MayRun: true})
			synctest.Wait()
		}
		before := r.api.count()
		r.Report(podstatus.Report{Pod: old, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		if r.api.count() != before {
			t.Errorf("the patches were %q, want r.api.count %v", r.api.patches, before)
		}
	})
}

func TestItIsTriedUntilItHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		with error
		hang bool
	}{
		"away":     {with: errors.New("connection refused")},
		"busy":     {with: apierrors.NewTooManyRequests("later", 3)},
		"broken":   {with: apierrors.NewInternalError(errors.New("etcd"))},
		"conflict": {with: apierrors.NewConflict(v1.Resource("pods"), "a", errors.New("the object has been modified"))},
		"hangs":    {hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, r rig) {
				begun, requests := time.Now(), 0
				r.api.answers(func(ctx context.Context, _ string) error {
					requests++
					if tc.hang {
						<-ctx.Done()
						return ctx.Err()
					}
					return tc.with
				})
				r.Report(podstatus.Report{Pod: r.api.put(pod("a")), Status: status(v1.PodRunning), MayRun: true})
				pass(time.Hour)
				if requests < 150 || requests > 2000 {
					t.Errorf("%d requests in an hour", requests)
				}
				r.api.answers(nil)
				for r.api.get("a").Status.Phase != v1.PodRunning {
					pass(100 * time.Millisecond)
				}
				if took := time.Since(begun) - time.Hour; took > 25*time.Second {
					t.Errorf("the status was there %v after the API server was", took)
				}
			})
		})
	}
}

func TestTheAPIServerIsAskedNoSoonerThanItSays(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		var delays []time.Duration
		begun := time.Now()
		r.api.answers(func(context.Context, string) error {
			delays = append(delays, time.Since(begun).Truncate(time.Second))
			return apierrors.NewTooManyRequests("later", 7)
		})
		p := r.api.put(pod("a"))
		for i := range 20 { // new reports cause no earlier request
			next := status(v1.PodRunning)
			next.ContainerStatuses[0].RestartCount = int32(i)
			r.Report(podstatus.Report{Pod: p, Status: next, MayRun: true})
			pass(time.Second)
		}
		if want := []time.Duration{0, 7 * time.Second, 14 * time.Second}; !slices.Equal(delays, want) {
			t.Errorf("asked at %v, want %v", delays, want)
		}
	})
}

// TestWhatIsNotTakenIsRarelyTried checks retries with an API server that drops fields it does not know, and with one
// that rejects the request.
func TestWhatIsNotTakenIsRarelyTried(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		r.api.drop = func(p *v1.Pod) { p.Status.ObservedGeneration = 0 }
		next := status(v1.PodRunning)
		next.ObservedGeneration = 3
		r.Report(podstatus.Report{Pod: r.api.put(pod("a")), Status: next, MayRun: true})
		pass(time.Hour)
		if n := r.api.count(); n > 20 || n < 12 || r.api.get("a").Status.Phase != v1.PodRunning {
			t.Errorf("%d patches in an hour", n)
		}
		// An accepted field is sent at once.
		next = status(v1.PodSucceeded)
		next.ObservedGeneration = 4
		r.Report(podstatus.Report{Pod: r.api.get("a"), Status: next})
		synctest.Wait()
		if r.api.get("a").Status.Phase != v1.PodSucceeded {
			t.Error("the end of the pod was not sent")
		}
		if n := r.Unsent(); n != 0 {
			t.Errorf("%d statuses are said not to be sent", n)
		}
	})
}

// TestAnotherStatusThanTheOneThatIsRefusedIsSentAtOnce also checks that the rejected one is retried periodically.
func TestAnotherStatusThanTheOneThatIsRefusedIsSentAtOnce(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		requests := 0
		r.api.answers(func(context.Context, string) error {
			requests++
			return apierrors.NewForbidden(v1.Resource("pods"), "a", errors.New("it may not"))
		})
		p := r.api.put(pod("a"))
		r.Report(podstatus.Report{Pod: p, Status: status(v1.PodRunning), MayRun: true})
		pass(time.Hour)
		if requests > 30 {
			t.Errorf("%d requests in an hour", requests)
		}
		r.api.answers(nil)
		r.Report(podstatus.Report{Pod: p, Status: status(v1.PodSucceeded)})
		synctest.Wait()
		if r.api.get("a").Status.Phase != v1.PodSucceeded {
			t.Error("the other status was not sent")
		}
	})
}

// TestOfAnOlderAPIServerObjectsAreDeletedToo checks that a field that the API server drops from the last status does
// not prevent the deletion.
func TestOfAnOlderAPIServerObjectsAreDeletedToo(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		r.api.drop = func(p *v1.Pod) { p.Status.ObservedGeneration = 0 }
		ending := pod("a")
		ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		ending = r.api.put(ending)
		next := status(v1.PodRunning)
		next.ObservedGeneration = 1
		r.Report(podstatus.Report{Pod: ending, Status: next, MayRun: true})
		pass(time.Second)
		next = status(v1.PodSucceeded)
		next.ObservedGeneration = 2
		r.Report(podstatus.Report{Pod: ending, Status: next})
		pass(time.Second)
		if len(r.api.deleted) > 0 {
			t.Error("deleted before all of it was given back")
		}
		r.Report(podstatus.Report{Pod: ending, Status: next, Released: true})
		pass(time.Second)
		if len(r.api.deleted) != 1 || r.api.patches[len(r.api.patches)-1] != "a Succeeded" || r.api.count() > 4 {
			t.Errorf("deleted %q after the patches %q", r.api.deleted, r.api.patches)
		}
	})
}

// TestTheObjectIsDeletedLast checks that the object is deleted after the worker has released the pod's resources and
// after the status that reports it.
func TestTheObjectIsDeletedLast(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		ending := pod("a")
		ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		ending = r.api.put(ending)
		r.Report(podstatus.Report{Pod: ending, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		r.Report(podstatus.Report{Pod: ending, Status: status(v1.PodSucceeded)})
		pass(time.Minute)
		if len(r.api.deleted) > 0 {
			t.Error("deleted before all of it was given back")
		}
		r.api.answers(func(context.Context, string) error {
			return apierrors.NewInternalError(errors.New("etcd"))
		})
		last := status(v1.PodFailed)
		last.Phase = v1.PodSucceeded
		last.Message = "the last word"
		r.Report(podstatus.Report{Pod: ending, Status: last, Released: true})
		pass(time.Minute)
		r.api.answers(nil)
		pass(time.Minute)
		if len(r.api.deleted) != 1 || r.api.patches[len(r.api.patches)-1] != "a Succeeded" || r.api.count() != 3 {
			t.Errorf("deleted %q after the patches %q", r.api.deleted, r.api.patches)
		}
		r.Report(podstatus.Report{Pod: ending, Status: last, Released: true}) // the watch has not delivered it yet
		pass(time.Minute)
		if len(r.api.deleted) != 1 {
			t.Errorf("deleted %q, want exactly one", r.api.deleted)
		}
	})
}

func TestAPodThatIsNotDeletedStays(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		r.Report(podstatus.Report{Pod: r.api.put(pod("a")), Status: status(v1.PodSucceeded), Released: true})
		pass(time.Minute)
		if len(r.api.deleted) > 0 {
			t.Error("the object of a pod that has run to its end was deleted")
		}
	})
}

// TestAPodThatIsMissingForAMomentIsDeletedAfterAll covers an API server that answers NotFound to nodes shortly after
// its start.
func TestAPodThatIsMissingForAMomentIsDeletedAfterAll(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		ending := pod("a")
		ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		ending = r.api.put(ending)
		requests := 0
		r.api.answers(func(context.Context, string) error {
			requests++
			return apierrors.NewNotFound(v1.Resource("pods"), "a")
		})
		r.Report(podstatus.Report{Pod: ending, Status: status(v1.PodSucceeded), Released: true})
		pass(time.Hour)
		if requests < 10 || requests > 100 {
			t.Errorf("%d requests in an hour for a pod that is missing", requests)
		}
		r.api.answers(nil)
		pass(6 * time.Minute)
		if len(r.api.deleted) != 1 {
			t.Error("the object was not deleted")
		}
	})
}

// TestAnotherPodOfTheSameNameIsLeftAlone also checks that a deleted pod causes no further requests.
func TestAnotherPodOfTheSameNameIsLeftAlone(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		old := r.api.put(pod("a"))
		other := pod("a")
		other.UID = "another"
		r.api.put(other)
		requests := 0
		r.api.answers(func(context.Context, string) error { requests++; return nil })
		old.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		r.Report(podstatus.Report{Pod: old, Status: status(v1.PodSucceeded), Released: true})
		pass(time.Minute)
		if got := r.api.get("a"); got == nil || got.Status.Phase != v1.PodPending || requests != 1 {
			t.Errorf("after %d requests the other pod is %v", requests, got)
		}
	})
}

// TestAStaticPodIsWrittenToItsMirror also checks that the pod is identified by its own UID.
func TestAStaticPodIsWrittenToItsMirror(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		static := pod("static")
		r.Report(podstatus.Report{Pod: static, Static: true, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		mirror := pod("static")
		mirror.UID, mirror.Generation = "mirror", 4
		r.SetMirror(static.UID, r.api.put(mirror))
		synctest.Wait()
		if got := r.api.get("static").Status; got.Phase != v1.PodRunning || got.ObservedGeneration != 0 {
			t.Errorf("the mirror has %+v, want Phase %v and ObservedGeneration 0", got, v1.PodRunning)
		}
		// Somebody deletes the mirror pod, and another one is created.
		r.SetMirror(static.UID, nil)
		r.Report(podstatus.Report{Pod: static, Static: true, Status: status(v1.PodPending), MayRun: true})
		synctest.Wait()
		if r.api.count() != 1 {
			t.Errorf("the patches were %q, want r.api.count 1", r.api.patches)
		}
		mirror.UID = "mirror-2"
		r.SetMirror(static.UID, r.api.put(mirror))
		synctest.Wait()
		if got := r.api.get("static").Status; len(got.ContainerStatuses) != 1 {
			t.Errorf("the second mirror has %+v", got)
		}
		// The Manager does not delete mirror pods.
		mirror = r.api.get("static")
		mirror.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		r.SetMirror(static.UID, r.api.put(mirror))
		r.Report(podstatus.Report{Pod: static, Static: true, Status: status(v1.PodFailed), Released: true})
		pass(time.Minute)
		if len(r.api.deleted) > 0 {
			t.Error("the mirror was deleted")
		}
	})
}

// TestAStaticPodThatLivesAgainSaysSo checks the status of the mirror pod after a shutdown of the machine, which ended
// the pod.
func TestAStaticPodThatLivesAgainSaysSo(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		static, mirror := pod("static"), pod("static")
		mirror.UID, mirror.Status = "mirror", status(v1.PodFailed)
		mirror.Status.Reason, mirror.Status.Message = "Terminated", "the machine"
		mirror.Status.Conditions = []v1.PodCondition{
			{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet},
		}
		r.SetMirror(static.UID, r.api.put(mirror))
		r.Report(podstatus.Report{Pod: static, Static: true, Status: status(v1.PodRunning), MayRun: true})
		synctest.Wait()
		if got := r.api.get("static").Status; got.Phase != v1.PodRunning || got.Reason != "" || got.Message != "" || len(got.Conditions) != 0 {
			t.Errorf("the mirror has %+v", got)
		}
		// A pod of the API server has ended for good.
		own := pod("own")
		own.Status = status(v1.PodFailed)
		r.api.put(own)
		r.Report(podstatus.Report{Pod: own, Status: status(v1.PodRunning), MayRun: true})
		pass(time.Minute)
		if got := r.api.get("own").Status.Phase; got != v1.PodFailed {
			t.Errorf("the API server's own pod is %s, want %s", got, v1.PodFailed)
		}
	})
}

// TestPodsTakeTurns checks that a pod that changes all the time is not written more often than others.
func TestPodsTakeTurns(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		r.api.answers(func(context.Context, string) error { time.Sleep(10 * time.Millisecond); return nil })
		var pods []*v1.Pod
		for i := range 100 {
			pods = append(pods, r.api.put(pod(fmt.Sprintf("p%02d", i))))
		}
		for i := range int32(20) {
			for n, p := range pods {
				if i == 0 || n == 0 {
					next := status(v1.PodRunning)
					next.ContainerStatuses[0].RestartCount = i
					r.Report(podstatus.Report{Pod: p, Status: next, MayRun: true})
				}
			}
			pass(5 * time.Millisecond)
		}
		pass(time.Second)
		first := 0
		for i, patch := range r.api.patches {
			if patch == "p00 Running" && i < 95 {
				first++
			}
		}
		if first > 2 || r.api.get("p00").Status.ContainerStatuses[0].RestartCount != 19 {
			t.Errorf("it was written %d times before all others: %q", first, r.api.patches)
		}
	})
}

func TestAPodThatIsForgottenIsDropped(t *testing.T) {
	run(t, func(t *testing.T, r rig) {
		r.api.answers(func(context.Context, string) error { return errors.New("away") })
		p := r.api.put(pod("a"))
		r.Report(podstatus.Report{Pod: p, Status: status(v1.PodRunning), MayRun: true})
		pass(time.Second)
		r.Forget(p.UID)
		r.api.answers(nil)
		pass(time.Minute)
		if r.api.count() > 0 || r.Unsent() != 0 {
			t.Errorf("the patches were %q", r.api.patches)
		}
	})
}
