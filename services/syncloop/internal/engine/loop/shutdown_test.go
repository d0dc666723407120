package loop_test

import (
	"testing"
	"time"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
)

// setShutdown publishes a Node with or without a shutdown of the machine.
func (r *rig) setShutdown(comes bool) {
	r.t.Helper()
	node := machine("2")
	data, err := node.Marshal()
	if err != nil {
		r.t.Fatal(err)
	}
	r.nodes.Put(node.Name, &nodev1.Node{Node: data, ShuttingDown: comes})
}

func TestNewPodsAreRefusedWhileTheMachineGoesDown(t *testing.T) {
	node := fakenode.New()
	running := cpus("running", "1", 0)
	node.Run(running)
	before := node.Container("running")
	r := newRig(t, node, t.TempDir())
	r.setShutdown(true) // known also to a syncloop that starts during the shutdown
	r.add(running)
	r.add(cpus("new", "100m", 0))
	r.source("file", true)
	r.configPeer.set(r.config)
	r.plegPeer.set(node.Events)
	r.eventually("the new pod is rejected", func() bool { return r.failed("new", "NodeShutdown") })
	if message := r.pod("new").Status.Message; message != "Pod was rejected: Pod was rejected as the node is shutting down." {
		t.Errorf("the message is %q, want %q", message, "Pod was rejected: Pod was rejected as the node is shutting down.")
	}
	r.pass(10 * time.Second)
	if got := node.Container("running"); got != before || !r.ready("running") {
		t.Errorf("container %s, ready %v: a running pod must not be ended here", got, r.ready("running"))
	}
	r.setShutdown(false)
	r.pass(time.Second)
	r.add(cpus("later", "100m", 0))
	r.eventually("the shutdown was called off", r.runs("later", "running"))
}
