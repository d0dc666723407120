package nodeobject

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestDevicesAreExtendedResources checks that the resources of device plugins are in the Node, that they stay while
// they are unknown, and that a removed one stays with 0.
func TestDevicesAreExtendedResources(t *testing.T) {
	in := input(t)
	want := func(what string, node *v1.Node, capacity, allocatable int64) {
		t.Helper()
		all, known := node.Status.Capacity["example.com/gpu"]
		free := node.Status.Allocatable["example.com/gpu"]
		if !known || all.Value() != capacity || free.Value() != allocatable {
			t.Errorf("%s: %v of %v, known %v, want %d of %d", what, free.Value(), all.Value(), known, allocatable, capacity)
		}
	}
	in.Devices = map[string]Amounts{"example.com/gpu": {Capacity: 4, Allocatable: 3}}
	state := Build(in)
	want("known", state.Node, 4, 3)
	in.Devices, in.Previous = nil, state
	state = Build(in)
	want("unknown", state.Node, 4, 3)
	in.Devices, in.Previous = map[string]Amounts{"example.com/gpu": {}}, state
	want("removed", Build(in).Node, 0, 0)
	in.Devices = map[string]Amounts{}
	if amount, stays := Build(in).Node.Status.Capacity["example.com/gpu"]; stays {
		t.Errorf("a resource that was never known is %v", amount.Value())
	}
}
