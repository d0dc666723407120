package loop_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
)

// machine returns a Node with allocatable CPUs.
func machine(cpus string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus), v1.ResourcePods: resource.MustParse("110")},
		},
	}
}

// setNode publishes the Node of nodestatus.
func (r *rig) setNode(node *v1.Node) {
	r.t.Helper()
	data, err := node.Marshal()
	if err != nil {
		r.t.Fatal(err)
	}
	r.nodes.Put(node.Name, &nodev1.Node{Node: data})
}

// cpus returns a pod that requests CPUs, created later seconds after the first ones.
func cpus(uid, amount string, later int64) *v1.Pod {
	pod := fakenode.Pod(uid, uid, always)
	pod.CreationTimestamp = metav1.Unix(1000+later, 0)
	pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(amount)}
	return pod
}

// failed reports whether a pod was rejected with a reason.
func (r *rig) failed(uid, reason string) bool {
	pods, err := r.store.Pods()
	return err == nil && slices.ContainsFunc(pods, func(p *v1.Pod) bool {
		return string(p.UID) == uid && p.Status.Phase == v1.PodFailed && p.Status.Reason == reason &&
			strings.HasPrefix(p.Status.Message, "Pod was rejected: ")
	})
}

// pod returns a pod with its status; an empty one if the pods are not known or it is not among them.
func (r *rig) pod(uid string) *v1.Pod {
	pods, err := r.store.Pods()
	if i := slices.IndexFunc(pods, func(p *v1.Pod) bool { return string(p.UID) == uid }); err == nil && i >= 0 {
		return pods[i]
	}
	return &v1.Pod{}
}

func TestPodsAreLetInOldestFirstAndARefusedOneStaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fakenode.New(), t.TempDir())
		r.add(cpus("young", "2", 60))
		r.add(cpus("old", "1500m", 0))
		r.add(cpus("small", "500m", 120))
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.pass(time.Second)
		r.setNode(machine("2"))
		r.eventually("the pods that fit run", r.runs("old", "small"))
		r.eventually("young is Failed", func() bool { return r.failed("young", "OutOfcpu") })
		if containers := r.pod("young").Status.ContainerStatuses; len(containers) > 0 {
			t.Errorf("young was rejected and has the container statuses %v", containers)
		}
		if events := r.events.list(); !slices.Equal(events, []string{"Warning OutOfcpu young"}) {
			t.Errorf("events %v, want one", events)
		}
		// The released CPUs go to the next pod and not to the rejected one.
		r.config.Delete("old")
		r.eventually("old is gone", r.runs("small"))
		r.add(cpus("new", "1", 200))
		r.pass(time.Minute)
		r.eventually("the new one runs", r.runs("new", "small"))
		r.config.Delete("young")
		r.eventually("nothing of young is left", func() bool { return !r.store.Has("young") })
		r.add(cpus("young", "100m", 60))
		r.eventually("after a recreation it is admitted", r.runs("new", "small", "young"))
	})
}

func TestAPodThatRunsIsNotAskedAgainAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		running := cpus("running", "2", 60)
		node.Run(running)
		before := node.Container("running")
		r := newRig(t, node, t.TempDir())
		r.setNode(machine("1"))
		r.add(running)
		r.add(cpus("new", "500m", 0))
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(node.Events)
		r.eventually("the new pod is rejected, although it is older", func() bool { return r.failed("new", "OutOfcpu") })
		r.pass(time.Minute)
		if got := node.Container("running"); got != before || !r.ready("running") {
			t.Errorf("container %s, ready %v; want %s to run on", got, r.ready("running"), before)
		}
	})
}

func TestNewPodsWaitForTheNodeButNotForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(cpus("a", "1", 0))
		r.eventually("it runs without a Node", r.runs("a"))
		if waited := r.clock.Since(r.begun); waited < 3*time.Second || waited > 10*time.Second {
			t.Errorf("it waited %v, want some seconds", waited)
		}
	})
}

func TestNewPodsContinueWhenTheNodeIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(cpus("a", "1", 0))
		r.setNode(machine("1"))
		r.eventually("it runs", r.runs("a"))
	})
}

// TestARefusedPodThatIsNamedAgainIsAskedAgain checks that a rejected pod that is removed and recreated goes through
// admission again at once: nothing of it has to end first, so the loop does not wait for pleg.
func TestARefusedPodThatIsNamedAgainIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.setNode(machine("1"))
		r.source("file", true)
		r.add(cpus("big", "2", 0))
		r.eventually("it is Failed", func() bool { return r.failed("big", "OutOfcpu") })
		changed := cpus("big", "2", 0)
		changed.Labels = map[string]string{"changed": "yes"}
		r.add(changed)
		r.pass(5 * time.Second)
		if !r.failed("big", "OutOfcpu") {
			t.Error("it was admitted after a change of its labels")
		}
		r.node.SetScript(fakenode.Script{Observe: func(ctx context.Context, _ types.UID) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		r.config.Delete("big")
		r.eventually("it is not listed any more", func() bool { return !r.store.Has("big") })
		r.add(cpus("big", "2", 0))
		r.eventually("it is Failed again", func() bool { return r.failed("big", "OutOfcpu") })
		r.pass(5 * time.Second)
		if calls := r.node.Calls(); len(calls) > 0 {
			t.Errorf("calls: %v, want none", calls)
		}
	})
}

// TestARefusedPodIsAskedAgainAfterARestart, as the kubelet does, because the node may have more resources now.
func TestARefusedPodIsAskedAgainAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, dir := fakenode.New(), t.TempDir()
		begin := func(has string) *rig {
			r := newRig(t, node, dir)
			r.setNode(machine(has))
			r.add(cpus("big", "2", 0))
			r.source("file", true)
			r.configPeer.set(r.config)
			r.plegPeer.set(node.Events)
			return r
		}
		for range 2 {
			r := begin("1")
			r.eventually("it is Failed", func() bool { return r.failed("big", "OutOfcpu") })
			r.stop()
		}
		r := begin("4")
		r.eventually("it runs", r.runs("big"))
	})
}
