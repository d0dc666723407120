// Package memorystate reads and writes the kubelet's state of memory, ROOT/memory_manager_state, so that a node can
// change between a kubelet and Quartet without a change of any assignment.
//
// The file holds the state twice: in the format of a kubelet before 1.37, and as a string with a checksum of its own,
// which counts.
package memorystate

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
)

const (
	// File is the kubelet's name of the file, in the root directory.
	File = "memory_manager_state"
	// mode is the kubelet's mode of the file.
	mode = 0o600
	// maxBytes bounds the file. A node with 500 pods of ten containers each needs about 2 MiB.
	maxBytes = 16 << 20
)

// State is the content of the file.
type State struct {
	// Policy is the policy that has written the file.
	Policy string
	// Nodes are the states of the NUMA nodes; none if nothing was written yet, and with the policy None.
	Nodes memory.Nodes
	// Held are the blocks of containers by pod and name.
	Held memory.Assignments
}

// The types below are in the file. Their fields, the order of these, and the kubelet's names for the types are part of
// the checksum in the format of older kubelets.
type (
	table struct {
		TotalMemSize   uint64 `json:"total"`
		SystemReserved uint64 `json:"systemReserved"`
		Allocatable    uint64 `json:"allocatable"`
		Reserved       uint64 `json:"reserved"`
		Free           uint64 `json:"free"`
	}

	node struct {
		NumberOfAssignments int                        `json:"numberOfAssignments"`
		MemoryMap           map[v1.ResourceName]*table `json:"memoryMap"`
		Cells               []int                      `json:"cells"`
	}

	nodes map[int]*node

	block struct {
		NUMAAffinity []int           `json:"numaAffinity"`
		Type         v1.ResourceName `json:"type"`
		Size         uint64          `json:"size"`
	}

	containers map[string]map[string][]block

	checksum uint64

	// older is the state in the format of older kubelets.
	older struct {
		PolicyName   string     `json:"policyName"`
		MachineState nodes      `json:"machineState"`
		Entries      containers `json:"entries,omitempty"`
		Checksum     checksum   `json:"checksum"`
	}

	podEntry struct {
		MemoryBlocks []block `json:"memoryBlocks,omitempty"`
	}

	podEntries map[string]podEntry

	// last is the state in the format of the kubelet 1.36.
	last struct {
		PolicyName   string
		MachineState nodes
		Entries      containers
		PodEntries   podEntries
		Checksum     checksum
	}
)

// typeNames replaces the names of the types by the kubelet's.
func typeNames() *strings.Replacer {
	return strings.NewReplacer(
		"(*memorystate.older)", "(*state.MemoryManagerCheckpoint)", "(*memorystate.last)",
		"(*state.MemoryManagerCheckpoint)", "(memorystate.podEntries)", "(state.PodMemoryAssignments)",
		"(memorystate.podEntry)", "(state.PodEntry)", "(memorystate.nodes)", "(state.NUMANodeMap)",
		"(*memorystate.node)", "(*state.NUMANodeState)", "*memorystate.table)", "*state.MemoryTable)",
		"(memorystate.containers)", "(state.ContainerMemoryAssignments)", "[]memorystate.block)", "[]state.Block)",
		"(memorystate.block)", "(state.Block)", "(memorystate.checksum)", "(checksum.Checksum)",
	)
}

// content is the state in the file. The memory of pods with resources of their own, which only a kubelet with the gate
// PodLevelResourceManagers has, is not read, as in a kubelet without it.
type content struct {
	PolicyName   string     `json:"policyName"`
	MachineState nodes      `json:"machineState"`
	Entries      containers `json:"entries,omitempty"`
}

// file is the file. Of the format of older kubelets it embeds what they read.
type file struct {
	older

	// Data is an encoded content, and DataChecksum its checksum.
	Data         string   `json:"data"`
	DataChecksum checksum `json:"dataChecksum"`
	// PodEntries is only read, to verify the checksum of a kubelet 1.36.
	PodEntries podEntries `json:"podEntries,omitempty"`
}

// Read reads the state in a root directory; it returns nil if there is none. It sets a file that is damaged or cannot
// be read aside, and fails with a *statedir.DamagedError.
func Read(root string) (*State, error) {
	path := filepath.Join(root, File)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no state is no error
	}
	if err != nil {
		return nil, statedir.SetAside(path, err)
	}
	if info.Size() > maxBytes {
		return nil, statedir.SetAside(path, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxBytes))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, statedir.SetAside(path, err)
	}
	state, err := decode(data)
	if err != nil {
		return nil, statedir.SetAside(path, err)
	}
	return state, nil
}

func decode(data []byte) (*State, error) {
	read := file{older: older{MachineState: nodes{}, Entries: containers{}}, PodEntries: podEntries{}}
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, err
	}
	state := content{PolicyName: read.PolicyName, MachineState: read.MachineState, Entries: read.Entries}
	switch {
	case read.Data != "" || read.DataChecksum != 0:
		if sum := sumOf(dump.ForHash(read.Data)); sum != read.DataChecksum {
			return nil, fmt.Errorf("its checksum is %d, not %d", sum, read.DataChecksum)
		}
		state = content{}
		if err := json.Unmarshal([]byte(read.Data), &state); err != nil {
			return nil, err
		}
	case read.Checksum != 0: // a kubelet accepts a file without a checksum
		if sum := read.sum(); sum != read.Checksum && read.sumOfLast() != read.Checksum {
			return nil, fmt.Errorf("its checksum is %d, not %d", sum, read.Checksum)
		}
	}
	return state.parse()
}

// Write replaces the state in a root directory, durably.
func Write(root string, s State) error {
	state := encode(s)
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the state of memory: %w", err)
	}
	whole := file{
		older: older{PolicyName: state.PolicyName, MachineState: state.MachineState, Entries: state.Entries},
		Data:  string(data), DataChecksum: sumOf(dump.ForHash(string(data))),
	}
	whole.Checksum = whole.sum()
	encoded, err := json.Marshal(whole)
	if err == nil {
		err = statedir.WriteFileAtomic(filepath.Join(root, File), encoded, mode)
	}
	if err != nil {
		return fmt.Errorf("write the state of memory: %w", err)
	}
	return nil
}

// sum returns the checksum of an older kubelet.
func (o older) sum() checksum {
	o.Checksum = 0
	return sumOf(typeNames().Replace(dump.ForHash(&o)))
}

// sumOfLast returns the checksum of a kubelet 1.36.
func (f file) sumOfLast() checksum {
	return sumOf(typeNames().Replace(dump.ForHash(&last{
		PolicyName: f.PolicyName, MachineState: f.MachineState, Entries: f.Entries, PodEntries: f.PodEntries,
	})))
}

func sumOf(dumped string) checksum {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", dumped)
	return checksum(hash.Sum32())
}
