package relist_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/testing/protocmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// TestARestartInspectsThePodsThatHaveChanged: the lists of the runtime and what the previous pleg has stored are enough
// for the others, of which the record is the same as before.
func TestARestartInspectsThePodsThatHaveChanged(t *testing.T) {
	for _, tt := range []struct {
		name string
		// meanwhile changes the node between the two.
		meanwhile func(w *world)
		// want has the number of inspections of each pod.
		want map[string]int
	}{
		{"nothing has happened", func(*world) {}, map[string]int{}},
		{"a container has ended", func(w *world) { w.advance(w.containers[0]) }, map[string]int{"a": 1}},
		{"a pod has come", func(w *world) { w.addSandbox("new") }, map[string]int{"new": 1}},
		{"a pod has gone", func(w *world) { w.dropPod("b") }, map[string]int{"b": 1}},
		{"the machine has booted", func(w *world) { w.boot = "boot 2" }, map[string]int{"a": 1, "b": 1, "resized": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, disk := newWorld(), &storage{}
				for _, uid := range []string{"a", "b", "resized"} {
					w.addSandbox(uid)
					w.addContainer(uid)
					w.advance(w.containers[len(w.containers)-1])
				}
				tracer := noop.NewTracerProvider().Tracer("")
				first := startProcess(w, disk, tracer)
				synctest.Wait()
				// No list shows it, and it makes no event: syncloop asks for the pod after it.
				w.mu.Lock()
				w.containers[2].Resources = &runtimeapi.ContainerResources{
					Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20},
				}
				w.mu.Unlock()
				first.Hint("resized", time.Time{})
				synctest.Wait()
				before := listed(t, first)
				first.end()

				clear(w.inspections)
				tt.meanwhile(w)
				second := startProcess(w, disk, tracer)
				defer second.end()
				synctest.Wait()
				delete(w.inspections, "") // the lists of all pods
				if diff := cmp.Diff(tt.want, w.inspections); diff != "" {
					t.Errorf("the inspections of each pod (-want +got):\n%s", diff)
				}
				after := listed(t, second)
				for uid, status := range before {
					if tt.want[uid] > 0 && w.boot == "boot 1" {
						continue
					}
					if diff := cmp.Diff(status, after[uid], protocmp.Transform(),
						protocmp.IgnoreFields(&lifecyclev1.PodStatus{}, "observed_boottime_ns", "observed_at")); diff != "" {
						t.Errorf("the pod %s before and after the restart (-before +after):\n%s", uid, diff)
					}
				}
			})
		})
	}
}

// listed returns the record of a process by UID.
func listed(t *testing.T, p *process) map[string]*lifecyclev1.PodStatus {
	t.Helper()
	all, err := p.List()
	if err != nil {
		t.Fatal(err)
	}
	byUID := map[string]*lifecyclev1.PodStatus{}
	for _, s := range all {
		byUID[s.GetUid()] = s
	}
	return byUID
}
