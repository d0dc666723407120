package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// Block is memory, or huge pages of one size, that a container has.
type Block struct {
	Type v1.ResourceName
	// Size is the number of bytes. Of an init container it is what no container after it has taken over.
	Size uint64
	// Nodes are the NUMA nodes.
	Nodes numa.Mask
}

// Assignments are the blocks of containers by pod and name.
type Assignments map[types.UID]map[string][]Block

// clone returns a copy that changes on its own.
func (a Assignments) clone() Assignments {
	all := make(Assignments, len(a))
	for uid, containers := range a {
		all[uid] = make(map[string][]Block, len(containers))
		for name, blocks := range containers {
			all[uid][name] = slices.Clone(blocks)
		}
	}
	return all
}

// Book has the memory of the NUMA nodes and its assignment to containers. It is not safe for concurrent use. Create it
// with New.
type Book struct {
	// empty is the machine without assignments.
	empty, nodes Nodes
	held         Assignments
}

// New returns a book without assignments.
func New(cfg Config) (*Book, error) {
	empty, err := cfg.empty()
	if err != nil {
		return nil, err
	}
	return &Book{empty: empty, nodes: empty.Clone(), held: Assignments{}}, nil
}

// Clone returns a copy that changes on its own.
func (b *Book) Clone() *Book {
	return &Book{empty: b.empty, nodes: b.nodes.Clone(), held: b.held.clone()}
}

// Restore sets the state of an earlier process. It changes nothing after an error: the NUMA nodes or reservedMemory are
// other ones, or have too little memory for the containers.
//
// The kernel may keep more or less memory for itself than at its last start. If only the amounts of the NUMA nodes
// differ, all containers keep their memory, and changed says what is different; a kubelet refuses this state.
func (b *Book) Restore(nodes Nodes, held Assignments) (changed string, err error) {
	switch {
	case len(nodes) == 0 && len(held) > 0:
		return "", errors.New("[memorymanager] machine state can not be empty when it has memory assignments")
	case len(nodes) == 0:
		return "", nil // a new state
	}
	expected := b.empty.Clone()
	var missing error
	for _, uid := range slices.Sorted(maps.Keys(held)) {
		for _, name := range slices.Sorted(maps.Keys(held[uid])) {
			for _, block := range held[uid][name] {
				if err := expected.knows(block); err != nil {
					return "", fmt.Errorf("[memorymanager] (pod: %s, container: %s) %w", uid, name, err)
				}
				if _, free := expected.sums(block.Nodes, block.Type); free < block.Size && missing == nil {
					missing = fmt.Errorf("the container %s of the pod %s has %d bytes of %s of the NUMA nodes %v, which have "+
						"only %d left for it", name, uid, block.Size, block.Type, block.Nodes.Nodes(), free)
				}
				expected.take(block)
			}
		}
	}
	changed = expected.otherAmounts(nodes)
	if changed != "" && missing != nil {
		return "", fmt.Errorf("[memorymanager] %s; %w", changed, missing)
	}
	if err := expected.differs(nodes, changed != ""); err != nil {
		return "", fmt.Errorf("[memorymanager] the expected machine state is different from the real one: %w", err)
	}
	if changed != "" {
		nodes = expected
	}
	b.nodes, b.held = nodes.Clone(), held.clone()
	return changed, nil
}

// otherAmounts returns the first difference between the amounts that these nodes have, and those that they had; empty
// if there is none.
func (n Nodes) otherAmounts(before Nodes) string {
	for _, id := range n.numbers() {
		for _, kind := range slices.Sorted(maps.Keys(n[id].Tables)) {
			had, known := before[id].Tables[kind]
			if has := n[id].Tables[kind]; known && had.Total != has.Total {
				return fmt.Sprintf("NUMA node %d had %d bytes of %s, and has %d", id, had.Total, kind, has.Total)
			}
		}
	}
	return ""
}

// knows returns why a block cannot be of these nodes.
func (n Nodes) knows(block Block) error {
	for _, id := range block.Nodes.Nodes() {
		node, has := n[id]
		if !has {
			return errors.New("the memory assignment uses the NUMA that does not exist")
		}
		if _, has := node.Tables[block.Type]; !has {
			return errors.New("the memory assignment uses memory resource that does not exist")
		}
	}
	return nil
}

// differs returns the first difference between the expected state and another one. How the memory of a group is spread
// over its nodes does not count, and with otherAmounts only what is reserved for the system and for containers does.
func (n Nodes) differs(other Nodes, otherAmounts bool) error {
	if !slices.Equal(n.numbers(), other.numbers()) {
		return fmt.Errorf("it has the NUMA nodes %v, and the machine %v", other.numbers(), n.numbers())
	}
	for _, id := range n.numbers() {
		want, got := n[id], other[id]
		if want.Assignments != got.Assignments || want.Group != got.Group {
			return fmt.Errorf("it has %d assignments of NUMA node %d in the group %v, and containers have %d in %v",
				got.Assignments, id, got.Group.Nodes(), want.Assignments, want.Group.Nodes())
		}
		kinds := slices.Sorted(maps.Keys(want.Tables))
		if !slices.Equal(kinds, slices.Sorted(maps.Keys(got.Tables))) {
			return fmt.Errorf("NUMA node %d of the machine has %v", id, kinds)
		}
		for _, kind := range kinds {
			w, g := want.Tables[kind], got.Tables[kind]
			w.Reserved, w.Free = n.sums(want.Group, kind)
			g.Reserved, g.Free = other.sums(want.Group, kind)
			if otherAmounts {
				w, g = Table{System: w.System, Reserved: w.Reserved}, Table{System: g.System, Reserved: g.Reserved}
			}
			if w != g {
				return fmt.Errorf("it has %s of NUMA node %d as %+v, and the machine %+v", kind, id, g, w)
			}
		}
	}
	return nil
}

// sums returns what containers have of nodes, and what is free of them.
func (n Nodes) sums(mask numa.Mask, kind v1.ResourceName) (reserved, free uint64) {
	for _, id := range mask.Nodes() {
		table := n[id].Tables[kind]
		reserved += table.Reserved
		free += table.Free
	}
	return reserved, free
}

// take makes a block of these nodes a container's: what is free of the first node, then of the next one.
func (n Nodes) take(block Block) {
	missing := block.Size
	for _, id := range block.Nodes.Nodes() {
		node := n[id]
		node.Assignments++
		node.Group = block.Nodes
		n[id] = node
		if table := node.Tables[block.Type]; missing > 0 {
			taken := min(missing, table.Free)
			table.Reserved += taken
			table.Free -= taken
			missing -= taken
			node.Tables[block.Type] = table
		}
	}
}

// giveBack undoes take.
func (n Nodes) giveBack(block Block) {
	left := block.Size
	for _, id := range block.Nodes.Nodes() {
		node := n[id]
		if node.Assignments--; node.Assignments == 0 {
			node.Group = numa.MaskOf(id)
		}
		n[id] = node
		if table := node.Tables[block.Type]; left > 0 {
			given := min(left, table.Reserved)
			table.Free += given
			table.Reserved -= given
			left -= given
			node.Tables[block.Type] = table
		}
	}
}

// Adopt records blocks that a running container was found to have. It returns false if they are not free.
func (b *Book) Adopt(uid types.UID, container string, blocks []Block) bool {
	trial := b.Clone()
	for _, block := range blocks {
		_, free := trial.nodes.sums(block.Nodes, block.Type)
		if block.Nodes == 0 || trial.nodes.knows(block) != nil || free < block.Size || trial.splits(block.Nodes) {
			return false
		}
		trial.nodes.take(block)
	}
	if _, has := b.held[uid][container]; has || len(blocks) == 0 {
		return false
	}
	trial.put(uid, container, slices.Clone(blocks))
	*b = *trial
	return true
}

func (b *Book) put(uid types.UID, container string, blocks []Block) {
	if b.held[uid] == nil {
		b.held[uid] = map[string][]Block{}
	}
	b.held[uid][container] = blocks
}

// Of returns the blocks of a container; nil if it has none.
func (b *Book) Of(uid types.UID, container string) []Block {
	return slices.Clone(b.held[uid][container])
}

// NodesOf returns the NUMA nodes that a container has its memory from; none if it may have any.
func (b *Book) NodesOf(uid types.UID, container string) numa.Mask {
	var mask numa.Mask
	for _, block := range b.held[uid][container] {
		mask |= block.Nodes
	}
	return mask
}

// State returns the states of the NUMA nodes and the blocks of all containers.
func (b *Book) State() (Nodes, Assignments) { return b.nodes.Clone(), b.held.clone() }

// Pods returns the pods that have memory of NUMA nodes, sorted.
func (b *Book) Pods() []types.UID { return slices.Sorted(maps.Keys(b.held)) }

// Allocatable returns what containers can have of each NUMA node, also what is in use.
func (b *Book) Allocatable() []Block {
	var all []Block
	for _, id := range b.empty.numbers() {
		tables := b.empty[id].Tables
		for _, kind := range slices.Sorted(maps.Keys(tables)) {
			if size := tables[kind].Allocatable; size > 0 {
				all = append(all, Block{Type: kind, Size: size, Nodes: numa.MaskOf(id)})
			}
		}
	}
	return all
}

// Release takes the memory from a pod. It returns false if the pod has none.
func (b *Book) Release(uid types.UID) bool {
	_, has := b.held[uid]
	for _, name := range slices.Sorted(maps.Keys(b.held[uid])) {
		b.drop(uid, name)
	}
	delete(b.held, uid)
	return has
}

// drop takes the memory from a container. It returns false if the container has none.
func (b *Book) drop(uid types.UID, container string) bool {
	blocks, has := b.held[uid][container]
	for _, block := range blocks {
		b.nodes.giveBack(block)
	}
	delete(b.held[uid], container)
	if len(b.held[uid]) == 0 {
		delete(b.held, uid)
	}
	return has
}
