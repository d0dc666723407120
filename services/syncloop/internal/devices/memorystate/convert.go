package memorystate

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// parse returns the state that was read.
func (c content) parse() (*State, error) {
	state := &State{Policy: c.PolicyName, Nodes: memory.Nodes{}, Held: memory.Assignments{}}
	for id, read := range c.MachineState {
		if read == nil {
			return nil, fmt.Errorf("NUMA node %d is empty", id)
		}
		parsed := memory.Node{Assignments: read.NumberOfAssignments, Tables: map[v1.ResourceName]memory.Table{}}
		var err error
		if parsed.Group, err = maskOf(read.Cells); err != nil {
			return nil, err
		}
		for kind, t := range read.MemoryMap {
			if t == nil {
				return nil, fmt.Errorf("%s of NUMA node %d is empty", kind, id)
			}
			parsed.Tables[kind] = memory.Table{
				Total: t.TotalMemSize, System: t.SystemReserved, Allocatable: t.Allocatable, Reserved: t.Reserved, Free: t.Free,
			}
		}
		state.Nodes[id] = parsed
	}
	for uid, containers := range c.Entries {
		held := make(map[string][]memory.Block, len(containers))
		for name, blocks := range containers {
			for _, read := range blocks {
				mask, err := maskOf(read.NUMAAffinity)
				if err != nil {
					return nil, fmt.Errorf("container %q in pod %q: %w", name, uid, err)
				}
				held[name] = append(held[name], memory.Block{Type: read.Type, Size: read.Size, Nodes: mask})
			}
		}
		state.Held[types.UID(uid)] = held
	}
	return state, nil
}

// maskOf returns the mask of NUMA nodes, of which there must be at least one.
func maskOf(ids []int) (numa.Mask, error) {
	mask := numa.MaskOf(ids...)
	if mask == 0 || mask.Count() != len(ids) {
		return 0, fmt.Errorf("%v are no NUMA nodes", ids)
	}
	return mask, nil
}

// encode returns the state as it is written.
func encode(s State) content {
	state := content{PolicyName: s.Policy, MachineState: nodes{}, Entries: containers{}}
	for id, n := range s.Nodes {
		written := &node{
			NumberOfAssignments: n.Assignments, MemoryMap: map[v1.ResourceName]*table{}, Cells: n.Group.Nodes(),
		}
		for kind, t := range n.Tables {
			written.MemoryMap[kind] = &table{
				TotalMemSize: t.Total, SystemReserved: t.System, Allocatable: t.Allocatable, Reserved: t.Reserved, Free: t.Free,
			}
		}
		state.MachineState[id] = written
	}
	for uid, held := range s.Held {
		entries := make(map[string][]block, len(held))
		for name, blocks := range held {
			for _, b := range blocks {
				entries[name] = append(entries[name], block{NUMAAffinity: b.Nodes.Nodes(), Type: b.Type, Size: b.Size})
			}
		}
		state.Entries[string(uid)] = entries
	}
	return state
}
