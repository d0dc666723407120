package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/livenode"
)

// hanging is a pod with a hanging call.
type hanging struct {
	method, name string
	fault        *criproxy.Fault
	// ends is true for a call of the termination.
	ends bool
	// givenUp is true for a call that is never released.
	givenUp bool
	// asks is true for a call of pleg.
	isRead bool
}

// TestACallThatHangsDelaysItsPodAndNoOther makes a call of each kind hang, all at the same time, some before the
// runtime executes them and some after. Meanwhile other pods start, are restarted and are removed, all before the first
// of those calls times out, and running pods are not affected. Then half of the calls are released, and the node's
// timeout ends the others: all pods reach their desired state.
func TestACallThatHangsDelaysItsPodAndNoOther(t *testing.T) {
	for _, name := range []string{"steady-hang", "crashes-hang", "goes-hang"} {
		place(t, name)
	}
	before := only(awaitOne(t, "steady-hang"))
	crashed := only(awaitOne(t, "crashes-hang"))
	awaitOne(t, "goes-hang")
	image := tag(t, "quartet.local/asked:1")
	all := hangOnTheWayDown(t)
	begun := time.Now() // no call has been hanging for longer
	for _, h := range all {
		takeAway(t, h.name)
	}
	all = append(all, hangOnTheWayUp(t, image)...)
	for _, h := range all {
		awaitThat(t, fmt.Sprintf("%s of %s hangs", h.method, h.name), func() bool { return h.fault.Met() > 0 })
	}

	notice := watch(t, "steady-hang")
	kill(t, "crashes-hang")
	takeAway(t, "goes-hang")
	place(t, "starts-hang")
	place(t, "starts-hang-of-the-image", withImage(image, v1.PullIfNotPresent))
	awaitOne(t, "starts-hang")
	awaitOne(t, "starts-hang-of-the-image")
	awaitGone(t, "goes-hang")
	again := await(t, "crashes-hang", "restarted", func(p *v1.Pod) bool { return livenode.Ready(p) && only(p).RestartCount == crashed.RestartCount+1 })
	took := time.Since(begun)
	t.Logf("beside %d calls that hang, pods were started, restarted and ended in %v", len(all), took.Round(time.Millisecond))
	if took > requestTimeout {
		t.Fatalf("that is as long as if they had waited for the calls that hang, which are given up after %v", requestTimeout)
	}
	for _, h := range all {
		if h.fault.Waiting() == 0 && (!h.isRead || took < plegTimeout) {
			t.Errorf("%s of %s does not hang any more", h.method, h.name)
		}
	}
	if got := only(again); got.ContainerID == crashed.ContainerID {
		t.Error("the container that was killed is still the same")
	}

	for _, h := range all {
		if !h.givenUp {
			h.fault.Lift()
		}
	}
	for _, h := range all {
		if h.ends {
			awaitGone(t, h.name)
			continue
		}
		awaitOne(t, h.name)
		if n := node.proxy.Count("RunPodSandbox", criproxy.For(full(h.name))); h.method != "RunPodSandbox" && n != 1 {
			t.Errorf("%d sandboxes were made for %s", n, h.name)
		}
	}
	notice()
	if after := only(await(t, "steady-hang", "Ready", livenode.Ready)); after.ContainerID != before.ContainerID {
		t.Errorf("a pod that ran was restarted: %s is now %s", before.ContainerID, after.ContainerID)
	}
}

// hangOnTheWayUp places a pod for each call of a start, which hangs; one of them pulls an image that another pod needs,
// too.
func hangOnTheWayUp(t *testing.T, image string) (all []hanging) {
	t.Helper()
	methods := []string{"RunPodSandbox", "CreateContainer", "StartContainer", "ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus"}
	for i, name := range names("up", methods) {
		method := methods[i/2]
		isRead := strings.HasPrefix(method, "List") || strings.HasSuffix(method, "Status")
		h := hanging{method: method, name: name, givenUp: i%2 == 1, isRead: isRead}
		options := []criproxy.Option{criproxy.For(full(name)), criproxy.Times(1)}
		if h.givenUp { // the runtime has done it
			options = append(options, criproxy.AfterCall())
		}
		h.fault = node.proxy.Hang(h.method, options...)
		place(t, name)
		all = append(all, h)
	}
	imageStatus := hanging{method: "ImageStatus", name: "up-imagestatus", givenUp: true}
	imageStatus.fault = node.proxy.Hang(imageStatus.method, criproxy.Image(image), criproxy.Times(1))
	place(t, imageStatus.name, withImage(image, v1.PullIfNotPresent))
	return append(all, imageStatus)
}

// hangOnTheWayDown runs a pod for each call of a termination, which will hang when the pod is removed.
func hangOnTheWayDown(t *testing.T) (all []hanging) {
	t.Helper()
	methods := []string{"StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"}
	for i, name := range names("down", methods) {
		place(t, name)
		all = append(all, hanging{method: methods[i/2], name: name, givenUp: i%2 == 1, ends: true})
	}
	for i := range all {
		awaitOne(t, all[i].name)
		options := []criproxy.Option{criproxy.For(full(all[i].name)), criproxy.Times(1)}
		if all[i].givenUp {
			options = append(options, criproxy.AfterCall())
		}
		all[i].fault = node.proxy.Hang(all[i].method, options...)
	}
	return all
}

// names returns two names for each method.
func names(prefix string, methods []string) (all []string) {
	for _, method := range methods {
		all = append(all, fmt.Sprintf("%s-%s-let-go", prefix, lower(method)), fmt.Sprintf("%s-%s-given-up", prefix, lower(method)))
	}
	return all
}

// TestAPullThatHangsEndsWithItsPod makes a pull hang, which has no timeout: the pod can be removed, and another one
// that needs no pull starts.
func TestAPullThatHangsEndsWithItsPod(t *testing.T) {
	t.Parallel()
	const image = "quartet.local/slow:1"
	hung := node.proxy.Hang("PullImage", criproxy.Image(image))
	t.Cleanup(hung.Lift)
	place(t, "pulls", withImage(image, v1.PullIfNotPresent))
	awaitThat(t, "the pull hangs", func() bool { return hung.Waiting() == 1 })
	awaitEvent(t, "pulls", v1.EventTypeNormal, "Pulling", image)
	place(t, "beside-pulls")
	awaitOne(t, "beside-pulls")
	takeAway(t, "pulls")
	awaitGone(t, "pulls")
	awaitThat(t, "the pull is given up", func() bool { return hung.Waiting() == 0 })
}

// TestAHookThatHangsDoesNotOutlastTheGracePeriod makes the call of a preStop hook hang.
func TestAHookThatHangsDoesNotOutlastTheGracePeriod(t *testing.T) {
	t.Parallel()
	hung := node.proxy.Hang("ExecSync", criproxy.For(full("hook")))
	t.Cleanup(hung.Lift)
	place(t, "hook", func(p *v1.Pod) {
		grace := int64(3)
		p.Spec.TerminationGracePeriodSeconds = &grace
		hook := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/hello", "init"}}}
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: hook}
	})
	awaitOne(t, "hook")
	takeAway(t, "hook")
	awaitThat(t, "the hook hangs", func() bool { return hung.Waiting() == 1 })
	awaitGone(t, "hook")
	awaitEvent(t, "hook", v1.EventTypeWarning, "FailedPreStopHook")
	if hung.Met() != 1 {
		t.Errorf("the hook was run %d times, not once", hung.Met())
	}
}
