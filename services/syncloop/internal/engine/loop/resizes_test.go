package loop_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// condition returns a condition of a pod; an empty one if the pod does not have it.
func (r *rig) condition(uid string, kind v1.PodConditionType) v1.PodCondition {
	for _, c := range r.pod(uid).Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.PodCondition{}
}

// isResized reports whether a pod has cpus and no resize is pending or in progress.
func (r *rig) isResized(uid, cpus string) func() bool {
	return func() bool {
		return r.requestedCPU(uid) == cpus && r.condition(uid, v1.PodResizePending).Type == "" &&
			r.condition(uid, v1.PodResizeInProgress).Type == ""
	}
}

// counting gives a loop its own metrics.
func counting(registry *prometheus.Registry) func(*loop.Config) {
	return func(cfg *loop.Config) { cfg.Metrics = loop.NewMetrics(registry) }
}

// TestAPromiseOutlivesAKill: a resize was accepted and could not be done before the process was killed. The next
// process does it, although the spec has changed to a size that does not fit, and although the pod would not be
// admitted any more.
func TestAPromiseOutlivesAKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := fakenode.New(), t.TempDir()
		begin := func(wanted *v1.Pod) *rig {
			r := newRig(t, node, stateDir)
			r.setNode(machine("2"))
			r.add(wanted)
			r.source("file", true)
			r.configPeer.set(r.config)
			r.plegPeer.set(node.Events)
			return r
		}
		r := begin(cpus("a", "500m", 0))
		r.eventually("it runs", r.runs("a"))
		first := node.Container("a")
		node.SetScript(fakenode.Script{Resize: func(*v1.Pod) error { return errors.New("the runtime is busy") }})
		wanted := cpus("a", "1500m", 0)
		wanted.Generation = 2
		r.change(wanted)
		r.eventually("it cannot be resized", func() bool { return r.condition("a", v1.PodResizeInProgress).Reason == v1.PodReasonError })
		if c := r.condition("a", v1.PodResizeInProgress); c.Message != "the runtime is busy" || c.ObservedGeneration != 2 {
			t.Errorf("the condition is %+v, want Message %q and ObservedGeneration 2", c, "the runtime is busy")
		}
		r.stop()

		node.SetScript(fakenode.Script{})
		wanted = cpus("a", "3", 0)
		wanted.Generation = 3
		r = begin(wanted)
		r.eventually("it has the accepted resize", func() bool {
			return r.requestedCPU("a") == "1500m" && r.condition("a", v1.PodResizeInProgress).Type == ""
		})
		if c := r.condition("a", v1.PodResizePending); c.Reason != v1.PodReasonDeferred || c.ObservedGeneration != 3 {
			t.Errorf("the condition of the new size is %+v, want Reason %v and ObservedGeneration 3", c, v1.PodReasonDeferred)
		}
		if !slices.Contains(r.events.list(), "Normal ResizeCompleted a") {
			t.Errorf("events %v, want %q among them", r.events.list(), "Normal ResizeCompleted a")
		}
		if got := node.Container("a"); got != first {
			t.Errorf("its container is %s, was %s", got, first)
		}
	})
}

// TestAPromiseThatCannotBeWrittenIsNotMade, because the next process would not know of it.
func TestAPromiseThatCannotBeWrittenIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stateDir := t.TempDir()
		r := newRig(t, fakenode.New(), stateDir)
		r.setNode(machine("2"))
		r.add(cpus("a", "500m", 0))
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.eventually("it runs", r.runs("a"))
		dir := filepath.Join(stateDir, "resizes")
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		r.change(cpus("a", "1", 0))
		r.eventually("it waits for the disk", func() bool {
			return strings.Contains(r.condition("a", v1.PodResizePending).Message, "cannot be written to disk")
		})
		r.pass(time.Minute)
		if calls := r.node.Calls(); slices.Contains(calls, "resize a") || r.requestedCPU("a") != "500m" {
			t.Errorf("it was resized: %v, want %q not among them and requestedCPU %q", calls, "resize a", "500m")
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		r.eventually("it is resized", r.isResized("a", "1"))
	})
}

// TestDeferredResizesAreDoneByPriority, and each at the first event that frees enough resources.
func TestDeferredResizesAreDoneByPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		r := start(t, counting(registry))
		r.setNode(machine("4"))
		sized := func(uid, amount string, priority int32) *v1.Pod {
			pod := cpus(uid, amount, 0)
			pod.Spec.Priority = ptr.To(priority)
			return pod
		}
		r.add(sized("low", "500m", 0))
		r.add(sized("high", "500m", 10))
		r.add(cpus("big", "1500m", 0))
		once := cpus("once", "1500m", 0)
		once.Spec.RestartPolicy = v1.RestartPolicyNever
		r.add(once)
		r.source("file", true)
		r.eventually("all run", func() bool { return len(r.node.Running()) == 4 })
		r.change(sized("low", "1500m", 0))
		r.eventually("one waits", func() bool { return r.pending("low") })
		r.pass(10 * time.Second)
		r.change(sized("high", "1500m", 10))
		r.eventually("both wait", func() bool { return r.pending("high") })

		r.node.Exit("once", 0)
		r.eventually("there is room for one", r.isResized("high", "1500m"))
		if !r.pending("low") || r.requestedCPU("low") != "500m" {
			t.Error("the pod with the lower priority does not wait")
		}
		metricstest.Want(t, registry, 1, "kubelet_pod_deferred_accepted_resizes_total", "retry_trigger", "pod_terminated")
		r.config.Delete("big")
		r.eventually("there is room for the other one", r.isResized("low", "1500m"))
		metricstest.Want(t, registry, 1, "kubelet_pod_deferred_accepted_resizes_total", "retry_trigger", "pods_removed")
		metricstest.Want(t, registry, 1, "kubelet_pod_deferred_resize_duration_seconds", "resolution", "accepted", "priority_bucket", "medium")
		metricstest.Want(t, registry, 2, "kubelet_container_requested_resizes_total", "resource", "cpu", "requirement", "requests", "operation", "increase")
	})
}

// TestAnInfeasibleResizeIsNotAskedAgain until the spec changes.
func TestAnInfeasibleResizeIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		r := start(t, counting(registry), func(cfg *loop.Config) { cfg.Resizing = resize.Node{PodLevel: false} })
		r.setNode(machine("2"))
		r.add(cpus("a", "500m", 0))
		r.source("file", true)
		r.eventually("it runs", r.runs("a"))
		whole := cpus("a", "500m", 0)
		whole.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}
		r.change(whole)
		r.eventually("the resize is infeasible", func() bool { return r.condition("a", v1.PodResizePending).Reason == v1.PodReasonInfeasible })
		r.pass(time.Minute)
		metricstest.Want(t, registry, 1, "kubelet_pod_infeasible_resizes_total", "reason_detail", "plr_feature_gate_off")
		if events := r.events.list(); !slices.Equal(events, []string{"Warning ResizeInfeasible a"}) {
			t.Errorf("events %v, want one", events)
		}
		r.change(cpus("a", "1", 0))
		r.eventually("another resize is done", r.isResized("a", "1"))
	})
}

// TestAGenerationIsObservedWhenItsResizeIsDecided: clients that wait for a resize wait for the generation first, and
// take a pod without conditions for resized. The same holds for a resize that was requested while no syncloop ran.
func TestAGenerationIsObservedWhenItsResizeIsDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, stateDir := fakenode.New(), t.TempDir()
		begin := func(wanted *v1.Pod) *rig {
			r := newRig(t, node, stateDir)
			r.setNode(machine("2"))
			r.config.Put("a", &loop.Desired{Pod: wanted, Source: "api"})
			r.source("api", true)
			r.configPeer.set(r.config)
			r.plegPeer.set(node.Events)
			return r
		}
		version := func(generation int64, cpu string) *v1.Pod {
			pod := cpus("a", cpu, 0)
			pod.Generation, pod.Status.ObservedGeneration = generation, generation-1
			return pod
		}
		check := func(r *rig, generation int64, cpu string) {
			t.Helper()
			r.eventually("it is resized to "+cpu, func() bool { return r.isResized("a", cpu)() && r.pod("a").Status.ObservedGeneration == generation })
			all := r.reports.list()
			first := slices.IndexFunc(all, func(report podstatus.Report) bool {
				return report.Status.ObservedGeneration == generation
			})
			inProgress := func(c v1.PodCondition) bool { return c.Type == v1.PodResizeInProgress }
			if !slices.ContainsFunc(all[first].Status.Conditions, inProgress) {
				t.Errorf("generation %d is observed, and the pod is not resized and has no condition", generation)
			}
		}
		r := begin(version(1, "500m"))
		r.eventually("it runs", r.runs("a"))
		r.config.Put("a", &loop.Desired{Pod: version(2, "1"), Source: "api"})
		check(r, 2, "1")
		r.stop()
		check(begin(version(3, "1500m")), 3, "1500m")
	})
}
