package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/holders"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memorystate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// keyMemory is the log key of the memory of a container by NUMA nodes.
const keyMemory = "memory"

// memoryOwner gives containers memory of NUMA nodes.
type memoryOwner struct{ *Allocator }

// Hints implements numa.Owner.
func (o memoryOwner) Hints(pod *v1.Pod, c *v1.Container) numa.Hints {
	if o.memory == nil {
		return nil
	}
	return o.memory.Hints(pod, c)
}

// PodHints implements numa.Owner.
func (o memoryOwner) PodHints(pod *v1.Pod) numa.Hints {
	if o.memory == nil {
		return nil
	}
	return o.memory.PodHints(pod)
}

// Reserve implements numa.Owner. Settle is a no-op: Allocate writes the state when all containers have their memory.
func (o memoryOwner) Reserve(pod *v1.Pod, c *v1.Container, best numa.Hint) error {
	if o.memory == nil {
		return nil
	}
	_, err := o.memory.Allocate(pod, c, best)
	if wanted, unknown := memory.Wanted(pod, c); len(wanted) > 0 && unknown == nil {
		o.cfg.Metrics.memoryPinned(err)
	}
	return err
}

// Settle implements numa.Owner.
func (memoryOwner) Settle(context.Context, *v1.Pod, *v1.Container, numa.Mask) error { return nil }

// wantsMemory reports whether a container of a pod wants memory of NUMA nodes, or an amount that is none.
func wantsMemory(pod *v1.Pod) bool {
	return anyContainer(pod, func(c *v1.Container) bool {
		wanted, err := memory.Wanted(pod, c)
		return len(wanted) > 0 || err != nil
	})
}

// memoryPolicy returns the policy of the memory manager.
func (a *Allocator) memoryPolicy() string {
	if a.memory == nil {
		return memory.PolicyNone
	}
	return memory.PolicyStatic
}

func (a *Allocator) memoryPath() string { return filepath.Join(a.cfg.Root, memorystate.File) }

// loadMemory reads the state of memory. Without one, and with the policy Static, the memory is read from what runs
// later.
func (a *Allocator) loadMemory() error {
	state, err := memorystate.Read(a.cfg.Root)
	damaged := (*statedir.DamagedError)(nil)
	switch {
	case errors.As(err, &damaged):
		a.cfg.Logger.Error("the memory of running containers is read from the runtime, because its state is damaged",
			telemetry.KeyFile, damaged.Path, "set_aside", damaged.Aside, telemetry.KeyError, err)
	case err != nil:
		return err
	case state != nil && state.Policy != a.memoryPolicy():
		return fmt.Errorf("could not restore state from checkpoint: [memorymanager] configured policy %q differs from state "+
			"checkpoint policy %q, please drain this node and delete the memory manager checkpoint file %q before restarting",
			a.memoryPolicy(), state.Policy, a.memoryPath())
	}
	switch {
	case a.memory == nil && state == nil:
		a.saveMemoryOrWarn() // only a kubelet reads it
		return nil
	case a.memory == nil:
		return nil
	case state == nil:
		a.rebuildMemory = true // written by Recover, so that a kill before that loses nothing
		return nil
	}
	changed, err := a.memory.Restore(state.Nodes, state.Held)
	if err != nil {
		return fmt.Errorf("invalid state, please drain node and remove policy state file %q: %w", a.memoryPath(), err)
	}
	if changed != "" {
		a.cfg.Logger.Warn("the machine has another amount of memory than before; containers keep their memory of NUMA nodes",
			telemetry.KeyFile, a.memoryPath(), "changed", changed)
		a.saveMemoryOrWarn() // a kubelet refuses the state of before
	}
	return nil
}

// saveMemory writes the state of memory.
func (a *Allocator) saveMemory() error {
	a.saving.Lock() // the writes must be in the order of the states
	defer a.saving.Unlock()
	state := memorystate.State{Policy: a.memoryPolicy()}
	if a.memory != nil {
		a.mu.Lock()
		state.Nodes, state.Held = a.memory.State()
		a.mu.Unlock()
	}
	return memorystate.Write(a.cfg.Root, state)
}

// saveMemoryOrWarn writes the state after a change that the next write repeats.
func (a *Allocator) saveMemoryOrWarn() {
	if err := a.saveMemory(); err != nil {
		a.cfg.Logger.Warn("cannot write the state of memory: check the disk of the root directory",
			telemetry.KeyFile, a.memoryPath(), telemetry.KeyError, err)
	}
}

// recoverMemory rebuilds the assignment of memory, if there is no usable state of it.
func (a *Allocator) recoverMemory(all []holders.Holder) {
	a.mu.Lock()
	if !a.rebuildMemory {
		a.mu.Unlock()
		return
	}
	a.rebuildMemory = false
	found := 0
	for _, h := range all {
		if a.adoptMemory(h.Pod, h.Container) {
			found++
		}
	}
	a.mu.Unlock()
	if found > 0 {
		a.cfg.Logger.Warn("the memory of containers was read from the runtime, because there was no state of it",
			"containers", found)
	}
	a.saveMemoryOrWarn()
}

// adoptMemory records the memory that a container was created with. Called with mu held.
func (a *Allocator) adoptMemory(uid types.UID, c *lifecyclev1.Container) bool {
	text, has := c.GetAnnotations()[podlabels.Memory]
	if !has {
		return false
	}
	blocks, err := blocksOf(text)
	if err == nil && !a.memory.Adopt(uid, c.GetName(), blocks) {
		err = errors.New("it is not free, or the machine does not have it")
	}
	if err != nil {
		a.cfg.Logger.Error("a container loses its memory of NUMA nodes", telemetry.KeyPodUID, string(uid),
			telemetry.KeyContainer, c.GetName(), keyMemory, text, telemetry.KeyError, err)
	}
	return err == nil
}

// givenMemory is the annotation of a container with memory of NUMA nodes.
type givenMemory struct {
	Nodes []int          `json:"nodes"`
	Sizes memory.Amounts `json:"sizes"`
}

// annotationOf returns the annotation of a container with blocks.
func annotationOf(blocks []memory.Block) string {
	given := givenMemory{Sizes: memory.Amounts{}}
	for _, block := range blocks {
		given.Nodes = block.Nodes.Nodes()
		given.Sizes[block.Type] = block.Size
	}
	text, _ := json.Marshal(given) //nolint:errchkjson // numbers and text can be encoded
	return string(text)
}

// blocksOf parses the annotation of a container.
func blocksOf(text string) ([]memory.Block, error) {
	var given givenMemory
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		return nil, fmt.Errorf("parse the annotation %s: %w", podlabels.Memory, err)
	}
	blocks := make([]memory.Block, 0, len(given.Sizes))
	for _, kind := range given.Sizes.Kinds() {
		blocks = append(blocks, memory.Block{Type: kind, Size: given.Sizes[kind], Nodes: numa.MaskOf(given.Nodes...)})
	}
	return blocks, nil
}

// memoryOf returns the memory of a container that is about to be created, or that runs; nil if it may have any. What it
// wants and does not have yet, such as after a lost state, is allocated. The init containers before it leave theirs.
func (a *Allocator) memoryOf(pod *v1.Pod, c *v1.Container) ([]memory.Block, error) {
	if a.memory == nil {
		return nil, nil
	}
	a.mu.Lock()
	left := a.memory.Started(pod, c.Name)
	taken, err := a.memory.Allocate(pod, c, numa.Hint{})
	blocks := a.memory.Of(pod.UID, c.Name)
	a.mu.Unlock()
	if taken {
		a.cfg.Logger.Info("a container of a running pod gets memory of NUMA nodes that it did not have", telemetry.KeyPodUID,
			pod.UID, telemetry.KeyContainer, c.Name, keyMemory, annotationOf(blocks))
		return blocks, errors.Join(err, a.saveMemory())
	}
	if left {
		a.saveMemoryOrWarn()
	}
	return blocks, err
}

// listOf returns the NUMA nodes of blocks as a list of the kernel's; empty without blocks.
func listOf(blocks []memory.Block) string {
	var mask numa.Mask
	for _, block := range blocks {
		mask |= block.Nodes
	}
	numbers := make([]string, 0, mask.Count())
	for _, id := range mask.Nodes() {
		numbers = append(numbers, strconv.Itoa(id))
	}
	return strings.Join(numbers, ",")
}

// Memory returns the memory and huge pages that a container has of NUMA nodes.
func (a *Allocator) Memory(pod types.UID, container string) []memory.Block {
	if a.memory == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.memory.Of(pod, container)
}

// AllocatableMemory returns what containers can have of each NUMA node, also what is in use.
func (a *Allocator) AllocatableMemory() []memory.Block {
	if a.memory == nil {
		return nil
	}
	return a.memory.Allocatable()
}
