package e2e

import (
	"fmt"
	"testing"
)

// TestPodsOutliveTheNodeAndOrphansDoNot stops the four processes, changes the manifests, and starts them again.
func TestPodsOutliveTheNodeAndOrphansDoNot(t *testing.T) {
	place(t, "kept.yaml", manifest("kept", 1, "sleep"))
	place(t, "orphan.yaml", manifest("orphan", 1, "sleep"))
	place(t, "changed.yaml", manifest("changed", 1, "sleep"))
	before := containerIDs(await(t, "kept", "Ready", ready))
	await(t, "orphan", "Ready", ready)
	await(t, "changed", "Ready", ready)

	quartet(t, "down", "--keep-pods")
	takeAway(t, "orphan.yaml")
	place(t, "changed.yaml", manifest("changed", 1, "serve"))
	if err := node.Up(t.Context()); err != nil {
		t.Fatal(err)
	}

	awaitGone(t, "orphan")
	p := await(t, "changed", "Ready", ready)
	if p.Spec.Containers[0].Args[0] != "serve" {
		t.Errorf("the pod that was changed meanwhile runs %v, want p.Spec.Containers[0].Args[0] %q",
			p.Spec.Containers[0].Args, "serve")
	}
	if after := containerIDs(await(t, "kept", "Ready", ready)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the pod that is still wanted was restarted: containers went from %v to %v", before, after)
	}
}
