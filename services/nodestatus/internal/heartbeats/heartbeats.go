// Package heartbeats writes and reads what a Node was computed from, and the result, for recordings. Package heartbeat
// computes them, and package server serves them.
package heartbeats

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// unrecorded takes the place of a text that is not recorded.
const unrecorded = "the reason is not recorded"

// Encode returns a heartbeat without the IDs of the machine, images, reasons and messages.
func Encode(input nodeobject.Input, output nodeobject.State) (*nodev1.Heartbeat, error) {
	in, err := json.Marshal(withoutTexts(input))
	if err != nil {
		return nil, fmt.Errorf("encode the input of a heartbeat: %w", err)
	}
	out, err := json.Marshal(masked(output))
	if err != nil {
		return nil, fmt.Errorf("encode the result of a heartbeat: %w", err)
	}
	return &nodev1.Heartbeat{Input: in, Output: out}, nil
}

// Replay computes the Node of a heartbeat again, after change has changed the input. It returns the JSON of both
// results, in the same form. It fails for a heartbeat of a version that has another form.
func Replay(h *nodev1.Heartbeat, change func(*nodeobject.Input)) (replayed, recorded []byte, err error) {
	var input nodeobject.Input
	if err := json.Unmarshal(h.GetInput(), &input); err != nil {
		return nil, nil, fmt.Errorf("read the input of a heartbeat: %w: use the version that recorded it", err)
	}
	change(&input)
	replayed, err = json.Marshal(masked(nodeobject.Build(input)))
	return replayed, h.GetOutput(), err
}

// withoutTexts returns a copy of an input that can be recorded.
func withoutTexts(in nodeobject.Input) nodeobject.Input {
	in.Machine.MachineID, in.Machine.SystemUUID, in.Machine.BootID = "", "", ""
	in.Images = nil
	for _, peer := range []*nodeobject.Peer{&in.PLEG, &in.SyncLoop} {
		reasons := make([]string, len(peer.Reasons))
		for i := range reasons {
			reasons[i] = unrecorded
		}
		peer.Reasons = reasons
	}
	in.Previous = masked(in.Previous)
	return in
}

// masked returns a copy of a result that can be recorded.
func masked(state nodeobject.State) nodeobject.State {
	if state.Node == nil {
		return state
	}
	node := state.Node.DeepCopy()
	info := &node.Status.NodeInfo
	info.MachineID, info.SystemUUID, info.BootID = "", "", ""
	node.Status.Images = []v1.ContainerImage{}
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].Message = ""
	}
	state.Node = node
	return state
}
