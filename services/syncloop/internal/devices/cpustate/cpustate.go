// Package cpustate reads and writes the kubelet's state of CPUs, ROOT/cpu_manager_state, so that a node can change
// between a kubelet and Quartet without a change of any assignment.
//
// The file holds the state twice: in the format of a kubelet before 1.37, and as a string with a checksum of its own,
// which counts. The file of a kubelet 1.36 with the gate PodLevelResourceManagers, the kubelet's format V3, is read,
// too.
package cpustate

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/dump"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// File is the kubelet's name of the file, in the root directory.
	File = "cpu_manager_state"
	// mode is the kubelet's mode of the file.
	mode = 0o600
	// maxBytes bounds the file. A node with 500 pods of ten containers each needs about 1 MiB.
	maxBytes = 16 << 20
)

// State is the content of the file.
type State struct {
	// Policy is the policy that has written the file.
	Policy string
	// Shared are the CPUs of the containers without CPUs of their own; none if nothing was written yet.
	Shared cpuset.CPUSet
	// Held are the CPUs of containers by pod and name.
	Held map[types.UID]map[string]cpuset.CPUSet
}

// content is the state in the file.
type content struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
}

// checksum is a checksum in the file.
type checksum uint64

// older is the state in the format of older kubelets. Its fields and their order are part of the checksum.
type older struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      checksum                     `json:"checksum"`
}

// podEntry has the CPUs of a pod with resources of its own. Only a kubelet with the gate PodLevelResourceManagers
// writes it. As in a kubelet without the gate, it has no effect.
type podEntry struct {
	CPUSet cpuset.CPUSet
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *podEntry) UnmarshalJSON(data []byte) error {
	var read struct {
		CPUSet string `json:"cpuSet"`
	}
	err := json.Unmarshal(data, &read)
	if err == nil {
		p.CPUSet, err = cpuset.Parse(read.CPUSet)
	}
	return err
}

type podEntries map[string]podEntry

// last is the state in the format of the kubelet 1.36 with the gate. Its fields and their order are part of the
// checksum.
type last struct {
	PolicyName    string
	DefaultCPUSet string
	Entries       map[string]map[string]string
	PodEntries    podEntries
	Checksum      checksum
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
	read := file{older: older{Entries: map[string]map[string]string{}}, PodEntries: podEntries{}}
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, err
	}
	state := content{PolicyName: read.PolicyName, DefaultCPUSet: read.DefaultCPUSet, Entries: read.Entries}
	switch {
	case read.Data != "" || read.DataChecksum != 0:
		if sum := sumOf(dump.ForHash(read.Data)); sum != read.DataChecksum {
			return nil, fmt.Errorf("its checksum is %d, not %d", sum, read.DataChecksum)
		}
		state = content{}
		if err := json.Unmarshal([]byte(read.Data), &state); err != nil {
			return nil, err
		}
	case read.Checksum != 0: // older kubelets accept a file without a checksum
		if err := read.verify(); err != nil {
			return nil, err
		}
	}
	return state.parse()
}

func (c content) parse() (*State, error) {
	state := &State{Policy: c.PolicyName, Held: map[types.UID]map[string]cpuset.CPUSet{}}
	var err error
	if state.Shared, err = cpuset.Parse(c.DefaultCPUSet); err != nil {
		return nil, fmt.Errorf("could not parse default CPU set %q: %w", c.DefaultCPUSet, err)
	}
	for uid, containers := range c.Entries {
		held := make(map[string]cpuset.CPUSet, len(containers))
		for name, text := range containers {
			if held[name], err = cpuset.Parse(text); err != nil {
				return nil, fmt.Errorf("could not parse cpuset %q for container %q in pod %q: %w", text, name, uid, err)
			}
		}
		state.Held[types.UID(uid)] = held
	}
	return state, nil
}

// Write replaces the state in a root directory, durably.
func Write(root string, s State) error {
	state := content{
		PolicyName: s.Policy, DefaultCPUSet: s.Shared.String(), Entries: make(map[string]map[string]string, len(s.Held)),
	}
	for uid, containers := range s.Held {
		entries := make(map[string]string, len(containers))
		for name, set := range containers {
			entries[name] = set.String()
		}
		state.Entries[string(uid)] = entries
	}
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the state of CPUs: %w", err)
	}
	whole := file{
		older: older{PolicyName: state.PolicyName, DefaultCPUSet: state.DefaultCPUSet, Entries: state.Entries},
		Data:  string(data), DataChecksum: sumOf(dump.ForHash(string(data))),
	}
	whole.Checksum = whole.sum()
	encoded, err := json.Marshal(whole)
	if err == nil {
		err = statedir.WriteFileAtomic(filepath.Join(root, File), encoded, mode)
	}
	if err != nil {
		return fmt.Errorf("write the state of CPUs: %w", err)
	}
	return nil
}

// verify returns why the checksum of an older kubelet is wrong.
func (f file) verify() error {
	want := f.Checksum
	f.Checksum = 0
	for _, state := range []any{&f.older, &last{
		PolicyName: f.PolicyName, DefaultCPUSet: f.DefaultCPUSet, Entries: f.Entries, PodEntries: f.PodEntries,
	}} {
		for _, name := range []string{"CPUManagerCheckpoint", "CPUManagerCheckpointV2", "CPUManagerCheckpointV3"} {
			if sumAs(name, state) == want {
				return nil
			}
		}
	}
	return fmt.Errorf("its checksum is %d, not %d", f.sum(), want)
}

// sum returns the checksum of an older kubelet.
func (o older) sum() checksum {
	o.Checksum = 0
	return sumAs("CPUManagerCheckpoint", &o)
}

// sumAs returns the checksum of a state whose type has a name in the kubelet. Names of types are part of it.
func sumAs(name string, state any) checksum {
	kubelets := strings.NewReplacer(
		"(*cpustate.older)", "(*state."+name+")", "(*cpustate.last)", "(*state."+name+")",
		"(cpustate.podEntries)", "(state.PodCPUAssignments)", "(cpustate.podEntry)", "(state.PodEntry)",
		"(cpustate.checksum)", "(checksum.Checksum)",
	)
	return sumOf(kubelets.Replace(dump.ForHash(state)))
}

func sumOf(dumped string) checksum {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", dumped)
	return checksum(hash.Sum32())
}
