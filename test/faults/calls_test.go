package faults

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/livenode"
)

// saidBy is the prefix of the proxy's errors.
const errorPrefix = "criproxy: "

// told has the places in which a failure is reported: the pod's status, an event, or the pod's worker if the kubelet
// reports neither.
type reported struct {
	status        func(*v1.Pod) bool
	event         string
	workerMessage string
}

// TestACallThatFailsIsReportedAndRetried makes each call of the start of a pod fail twice.
func TestACallThatFailsIsReportedAndRetried(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]reported{
		"RunPodSandbox": {status: func(p *v1.Pod) bool {
			return p.Status.Reason == "FailedCreatePodSandBox" && hasAll(p.Status.Message, []string{errorPrefix + "RunPodSandbox"})
		}, event: "FailedCreatePodSandBox"},
		"CreateContainer": {status: waits("CreateContainerError", errorPrefix+"CreateContainer"), event: "Failed"},
		"StartContainer":  {status: waits("RunContainerError", errorPrefix+"StartContainer"), event: "Failed"},
		"ExecSync":        {status: waits("PostStartHookError", errorPrefix+"ExecSync"), event: "FailedPostStartHook"},
		// pleg makes these calls, and cannot determine the pod's state without them.
		"ListPodSandbox":   {workerMessage: errorPrefix + "ListPodSandbox"},
		"ListContainers":   {workerMessage: errorPrefix + "ListContainers"},
		"PodSandboxStatus": {workerMessage: errorPrefix + "PodSandboxStatus"},
		"ContainerStatus":  {workerMessage: errorPrefix + "ContainerStatus"},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			name := "fails-" + lower(method)
			times := 2
			if want.workerMessage != "" {
				times = math.MaxInt // until it is reported, because the next relist would already succeed
			}
			fault := node.proxy.Fail(method, codes.Internal, criproxy.For(full(name)), criproxy.Times(times))
			place(t, name, withHook)
			if want.status != nil {
				await(t, name, "said to fail of "+method, want.status)
				if want.event == "FailedPostStartHook" {
					awaitEvent(t, name, v1.EventTypeWarning, want.event)
				} else {
					awaitEvent(t, name, v1.EventTypeWarning, want.event, errorPrefix+method)
				}
			}
			if want.workerMessage != "" {
				awaitWorkerError(t, name, want.workerMessage)
				fault.Lift()
			}
			awaitOne(t, name)
			if want.status != nil && fault.Met() != times {
				t.Errorf("the call failed %d times, not %d", fault.Met(), times)
			}
			await(t, name, "said to be well", func(p *v1.Pod) bool { return p.Status.Reason == "" && p.Status.Message == "" })
		})
	}
	t.Run("ImageStatus", func(t *testing.T) {
		t.Parallel()
		image := tag(t, "quartet.local/inspected:1")
		fault := node.proxy.Fail("ImageStatus", codes.Internal, criproxy.Image(image), criproxy.Times(2))
		place(t, "fails-imagestatus", withImage(image, v1.PullIfNotPresent))
		await(t, "fails-imagestatus", "said to fail of its image", waits("ImageInspectError", errorPrefix+"ImageStatus"))
		awaitEvent(t, "fails-imagestatus", v1.EventTypeWarning, "InspectFailed", errorPrefix+"ImageStatus")
		awaitOne(t, "fails-imagestatus")
		if fault.Met() != 2 {
			t.Errorf("the call failed %d times, not 2", fault.Met())
		}
	})
	t.Run("PullImage", func(t *testing.T) {
		t.Parallel()
		const image = "quartet.local/late:1"
		node.proxy.Fail("PullImage", codes.Unavailable, criproxy.Image(image))
		place(t, "fails-pullimage", withImage(image, v1.PullIfNotPresent))
		await(t, "fails-pullimage", "in the back-off of its pull", waits("ImagePullBackOff", errorPrefix+"PullImage"))
		awaitEvent(t, "fails-pullimage", v1.EventTypeWarning, "Failed", errorPrefix+"PullImage")
		awaitEvent(t, "fails-pullimage", v1.EventTypeNormal, "BackOff", image)
		tag(t, image)
		awaitOne(t, "fails-pullimage")
	})
}

// TestACallThatFailsOnTheWayDownIsReportedAndRetried makes each call of the termination of a pod fail.
func TestACallThatFailsOnTheWayDownIsReportedAndRetried(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			name := "downfails-" + lower(method)
			place(t, name)
			awaitOne(t, name)
			fault := node.proxy.Fail(method, codes.Internal, criproxy.For(full(name)), criproxy.Times(1))
			takeAway(t, name)
			switch method {
			case "StopContainer", "StopPodSandbox":
				awaitEvent(t, name, v1.EventTypeWarning, "FailedKillPod", "error killing pod", errorPrefix+method)
			// only operators see these; the removal of the sandbox also removes its containers
			case "RemovePodSandbox":
				awaitWorkerError(t, name, errorPrefix+method)
			}
			awaitGone(t, name)
			if fault.Met() != 1 {
				t.Errorf("the call failed %d times, not once", fault.Met())
			}
		})
	}
}

// TestAnEndedContainerThatCannotBeRemovedIsOneEventOfTheNode checks that all attempts are one event.
func TestAnEndedContainerThatCannotBeRemovedIsOneEventOfTheNode(t *testing.T) {
	t.Parallel()
	const name = "garbage"
	fault := node.proxy.Fail("RemoveContainer", codes.Internal, criproxy.For(full(name)))
	place(t, name)
	awaitOne(t, name)
	for restarts := range int32(3) { // two of three exited containers are garbage
		await(t, name, "restarted", func(p *v1.Pod) bool { return only(p).RestartCount == restarts && livenode.Ready(p) })
		kill(t, name)
	}
	awaitThat(t, "two are tried", func() bool { return fault.Met() >= 2 })
	var reported []string
	awaitThat(t, "the node says so", func() bool {
		list, err := events(t.Context())
		reported = nil
		for _, e := range list {
			if e.InvolvedObject.Kind == "Node" && e.Reason == "ContainerGCFailed" && strings.Contains(e.Message, "pod "+namespace+"/"+full(name)) {
				reported = append(reported, fmt.Sprintf("%d times: %s", e.Count, e.Message))
			}
		}
		return err == nil && len(reported) > 0
	})
	if len(reported) != 1 || !hasAll(reported[0], []string{"1 times: container main of pod", errorPrefix + "RemoveContainer"}) {
		t.Errorf("told %q, want one event", reported)
	}
	fault.Lift()
}

// TestALostAnswerMakesNothingTwice lets the runtime execute each call and drops the answer.
func TestALostAnswerMakesNothingTwice(t *testing.T) {
	t.Parallel()
	lost := func(method, name string) *criproxy.Fault {
		return node.proxy.Fail(method, codes.Unavailable, criproxy.For(full(name)), criproxy.AfterCall(), criproxy.Times(1))
	}
	for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			name := "lost-" + lower(method)
			fault := lost(method, name)
			place(t, name)
			p := awaitOne(t, name)
			if fault.Met() != 1 {
				t.Errorf("%d answers were lost, not one", fault.Met())
			}
			if n := node.proxy.Count("RunPodSandbox", criproxy.For(full(name))); n != 1 {
				t.Errorf("%d sandboxes were made, want 1", n)
			}
			if n := len(containers(t.Context(), name)); n != 1 {
				t.Errorf("the runtime has %d containers, want 1", n)
			}
			if n := node.proxy.Count("StartContainer", criproxy.For(full(name))); n != 1 {
				t.Errorf("containers were started %d times, want 1", n)
			}
			if n := only(p).RestartCount; method != "CreateContainer" && n != 0 {
				t.Errorf("the pod counts %d restarts", n)
			}
		})
	}
	for _, method := range []string{"StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			name := "lost-" + lower(method)
			place(t, name)
			awaitOne(t, name)
			fault := lost(method, name)
			takeAway(t, name)
			awaitGone(t, name)
			if fault.Met() != 1 {
				t.Errorf("%d answers were lost, not one", fault.Met())
			}
		})
	}
}

// TestABrokenConnectionIsMadeAgain breaks the connection to the runtime, with every call on it, during a start: running
// pods are not affected.
func TestABrokenConnectionIsMadeAgain(t *testing.T) {
	place(t, "steady-broken")
	before := only(awaitOne(t, "steady-broken"))
	fault := node.proxy.Drop("CreateContainer", criproxy.For(full("broken")), criproxy.AfterCall(), criproxy.Times(1))
	notice := watch(t, "steady-broken")
	place(t, "broken")
	awaitOne(t, "broken")
	if fault.Met() != 1 {
		t.Errorf("the connection was broken %d times, not once", fault.Met())
	}
	notice()
	if after := only(await(t, "steady-broken", "Ready", livenode.Ready)); after.ContainerID != before.ContainerID {
		t.Errorf("a pod that ran was restarted: %s is now %s", before.ContainerID, after.ContainerID)
	}
}

// TestARuntimeThatIsUnwellStopsNothing makes the runtime report that it is not ready: no running pod is affected, and
// waiting work is done when it is ready again.
func TestARuntimeThatIsUnwellStopsNothing(t *testing.T) {
	place(t, "steady-unwell")
	before := only(awaitOne(t, "steady-unwell"))
	notice := watch(t, "steady-unwell")
	fault := node.proxy.Fail("Status", codes.Unavailable)
	awaitThat(t, "the node hears that the runtime is unwell", func() bool { return fault.Met() > 0 && !node.isReady(t.Context()) })
	place(t, "waits-unwell")
	fault.Lift()
	awaitOne(t, "waits-unwell")
	notice()
	if after := only(await(t, "steady-unwell", "Ready", livenode.Ready)); after.ContainerID != before.ContainerID {
		t.Errorf("a pod that ran was restarted: %s is now %s", before.ContainerID, after.ContainerID)
	}
}
