package loop_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

const gpu = "example.com/gpu"

// gpus are devices whose plugin answers when the test says so.
type gpus struct {
	mu        sync.Mutex
	recovered bool
	// goOn are the pods in the runtime that go on, at the call of Recover.
	goOn    []types.UID
	wait    bool
	lacking error
	// answers are the answers to Allocate by pod; without one the plugin hangs.
	answers map[types.UID]chan error
	log     []string
}

func newGPUs() *gpus { return &gpus{answers: map[types.UID]chan error{}} }

func (g *gpus) answer(uid types.UID) chan error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.answers[uid] == nil {
		g.answers[uid] = make(chan error, 1)
	}
	return g.answers[uid]
}

func (g *gpus) note(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, line)
}

func (g *gpus) noted() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.log)
}

func (g *gpus) set(wait bool, lacking error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wait, g.lacking = wait, lacking
}

func (g *gpus) Recover(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recovered = true
	for _, pod := range observed {
		if uid := types.UID(pod.GetUid()); goesOn(uid) {
			g.goOn = append(g.goOn, uid)
		}
	}
	slices.Sort(g.goOn)
}

func (g *gpus) Check(pod *v1.Pod) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !needsGPU(pod) {
		return false, nil
	}
	return g.wait || !g.recovered, g.lacking
}

func (*gpus) Owns(name v1.ResourceName) bool { return name == gpu }

func needsGPU(pod *v1.Pod) bool {
	_, needs := pod.Spec.Containers[0].Resources.Limits[gpu]
	return needs
}

func (*gpus) Needs(pod *v1.Pod) bool { return needsGPU(pod) }

func (g *gpus) Allocate(ctx context.Context, pod *v1.Pod) error {
	g.note("allocate " + string(pod.UID))
	select {
	case err := <-g.answer(pod.UID):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gpus) Release(uid types.UID) { g.note("release " + string(uid)) }

// withGPU returns a pod that requests CPUs and a device.
func withGPU(uid, amount string) *v1.Pod {
	pod := cpus(uid, amount, 0)
	one := v1.ResourceList{gpu: resource.MustParse("1")}
	pod.Spec.Containers[0].Resources.Limits = one
	pod.Spec.Containers[0].Resources.Requests[gpu] = one[gpu]
	return pod
}

// startWithGPUs returns a rig that has begun, on a node with two CPUs whose Node has no devices yet.
func startWithGPUs(t *testing.T, g *gpus) *rig {
	t.Helper()
	r := newRigWith(t, fakenode.New(), t.TempDir(), 0, func(c *loop.Config) { c.Devices = g })
	r.source("file", true)
	node := machine("2")
	node.Status.Allocatable[gpu] = resource.MustParse("0")
	r.setNode(node)
	r.configPeer.set(r.config)
	r.plegPeer.set(r.node.Events)
	return r
}

// TestPodsThatGoOnMayKeepDevices checks whose ended containers may be started again when it is known what runs: those
// of pods that have not ended, and of pods that a source may name which is not ready yet.
func TestPodsThatGoOnMayKeepDevices(t *testing.T) {
	for _, ready := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			g, node := newGPUs(), fakenode.New()
			once, ends := withGPU("once", "0"), withGPU("ends", "0")
			once.Spec.RestartPolicy = v1.RestartPolicyNever
			pods := []*v1.Pod{withGPU("crashed", "0"), once, ends, withGPU("unnamed", "0")}
			for _, pod := range pods {
				node.Run(pod)
				node.Exit(pod.UID, 1)
			}
			r := newRigWith(t, node, t.TempDir(), 0, func(c *loop.Config) { c.Devices = g })
			r.source("file", true)
			r.source("api", ready)
			r.setNode(machine("2"))
			now := metav1.Now()
			ends.DeletionTimestamp = &now
			for _, pod := range pods[:3] {
				r.add(pod)
			}
			r.configPeer.set(r.config)
			r.plegPeer.set(r.node.Events)
			r.eventually("the devices are told what runs", func() bool {
				g.mu.Lock()
				defer g.mu.Unlock()
				return g.recovered
			})
			want := []types.UID{"crashed"}
			if !ready {
				want = append(want, "unnamed")
			}
			if !slices.Equal(g.goOn, want) {
				t.Errorf("with all sources ready: %v, %v go on, want %v", ready, g.goOn, want)
			}
		})
	}
}

// TestAPodWaitsForItsDevices checks that a pod starts when its plugin has answered, that others do not wait for it, and
// that they count what it asks for meanwhile.
func TestAPodWaitsForItsDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGPUs()
		r := startWithGPUs(t, g)
		r.add(withGPU("slow", "1"))
		waits := func() bool { return r.pod("slow").Status.Reason == "DevicesNotReady" }
		r.eventually("the plugin is asked, and the pod's status says so", waits)
		r.add(cpus("other", "1", 1))
		r.eventually("another pod runs", r.runs("other"))
		r.add(cpus("third", "500m", 2))
		r.eventually("a third one does not fit beside both", func() bool { return r.failed("third", "OutOfcpu") })
		g.answer("slow") <- nil
		r.eventually("with its devices it runs", r.runs("other", "slow"))
		if reason := r.pod("slow").Status.Reason; reason != "" {
			t.Errorf("the running pod has the reason %s", reason)
		}
		if log := g.noted(); !slices.Equal(log, []string{"allocate slow"}) {
			t.Errorf("calls are %v, want one", log)
		}
	})
}

// TestPodsWithoutTheirDevicesAreRefused checks the kubelet's reason and message, before and after the plugin is asked.
func TestPodsWithoutTheirDevicesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGPUs()
		r := startWithGPUs(t, g)
		g.set(false, errors.New("no healthy devices present; cannot allocate unhealthy devices example.com/gpu"))
		r.add(withGPU("early", "5")) // which does not fit either
		r.eventually("it is refused", func() bool { return r.failed("early", "UnexpectedAdmissionError") })
		const message = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy " +
			"devices example.com/gpu, which is unexpected"
		if got := r.pod("early").Status.Message; got != message {
			t.Errorf("the message is %q, want %q", got, message)
		}
		g.set(false, nil)
		r.add(withGPU("late", "1"))
		g.answer("late") <- errors.New("on fire")
		r.eventually("it is refused", func() bool { return r.failed("late", "UnexpectedAdmissionError") })
		r.eventually("what it may have is given back", func() bool {
			return slices.Equal(g.noted(), []string{"release early", "allocate late", "release late"})
		})
		r.add(cpus("next", "2", 1))
		r.eventually("it takes no resources", r.runs("next"))
	})
}

// TestAPodWaitsUntilDevicesAreKnown checks the time after a restart, when plugins are not registered again yet.
func TestAPodWaitsUntilDevicesAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGPUs()
		g.set(true, nil)
		r := startWithGPUs(t, g)
		r.add(withGPU("web", "1"))
		r.eventually("its status says so", func() bool { return r.pod("web").Status.Reason == "DevicesNotReady" })
		g.answer("web") <- nil
		g.set(false, nil)
		r.eventually("then it runs", r.runs("web"))
	})
}

// TestAPodThatEndsWhileDevicesAreAllocated checks that it is never started.
func TestAPodThatEndsWhileDevicesAreAllocated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGPUs()
		r := startWithGPUs(t, g)
		r.add(withGPU("removed", "1"))
		r.eventually("the plugin is asked", func() bool { return slices.Contains(g.noted(), "allocate removed") })
		r.config.Delete("removed")
		r.eventually("nothing of it is left", func() bool { return !r.store.Has("removed") })
		g.answer("removed") <- nil
		r.eventually("its devices are given back", func() bool { return slices.Contains(g.noted(), "release removed") })
		r.pass(10 * time.Second)
		if r.node.Container("removed") != "" {
			t.Error("a container of the removed pod was started")
		}
	})
}
