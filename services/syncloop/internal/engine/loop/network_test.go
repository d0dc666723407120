package loop_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
)

// TestNewPodsWaitForTheNetworkUnlessTheyAreOfTheHosts checks also that a running pod continues, and is restarted after
// a crash because its sandbox has its network.
func TestNewPodsWaitForTheNetworkUnlessTheyAreOfTheHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.source("file", true)
		r.add(fakenode.Pod("u1", "old", always))
		r.eventually("old is ready", func() bool { return r.ready("u1") })
		r.node.SetNetwork("NetworkPluginNotReady: cni plugin not initialized")
		r.pass(10 * time.Second)
		host := fakenode.Pod("u2", "cni", always)
		host.Spec.HostNetwork = true
		r.add(host)
		r.add(fakenode.Pod("u3", "new", always))
		r.eventually("the pod of the host network runs", r.runs("cni", "old"))
		r.node.Exit("u1", 1)
		r.eventually("the crashed pod runs again", r.runs("cni", "old"))
		r.pass(time.Minute)
		if calls := r.node.Calls(); slices.Contains(calls, "sync new") {
			t.Fatalf("a pod was started without a network: %v", calls)
		}
		pods, err := r.store.Pods()
		waits := func(p *v1.Pod) bool { return p.Name == "new" && p.Status.Reason == "NetworkNotReady" }
		if err != nil || !slices.ContainsFunc(pods, waits) {
			t.Errorf("new does not have the reason of its wait: %v, %v", pods, err)
		}
		begun := r.clock.Now()
		r.node.SetNetwork("")
		r.eventually("new is ready", func() bool { return r.ready("u3") })
		if took := r.clock.Since(begun); took > 8*time.Second {
			t.Errorf("it took %v after the network was there", took)
		}
	})
}
