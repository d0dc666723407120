// Package memory decides which NUMA nodes the containers of guaranteed pods have their memory and huge pages from, so
// that each node has what was promised. The rules and the texts are those of the kubelet's memory manager with the
// policy Static, and a module compares the two.
//
// A NUMA node is used on its own, or with other nodes as a group: while a container has memory of a group, no other
// container has memory of a part of that group, or of nodes around it.
//
// In: the NUMA nodes of the machine, the reserved memory and pods. Out: the memory of a container by NUMA nodes, the
// hints for package numa, or the reason why there are none. The package has no clock, network or disk. Imports: numa.
package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// The policies of memoryManagerPolicy.
const (
	PolicyNone   = kubeletconfigv1beta1.NoneMemoryManagerPolicy
	PolicyStatic = "Static"
)

// Table has the bytes of one kind of memory of a NUMA node.
type Table struct {
	// Total is what the machine has, System is reserved for the system, and Allocatable is left for containers.
	Total, System, Allocatable uint64
	// Reserved is what containers have, and Free is the rest of Allocatable.
	Reserved, Free uint64
}

// Node is the state of a NUMA node.
type Node struct {
	// Assignments is the number of blocks that are of this node, also in part.
	Assignments int
	// Group are the nodes that are used together with this one, and this one.
	Group numa.Mask
	// Tables are the tables by kind: memory, and each size of huge pages.
	Tables map[v1.ResourceName]Table
}

// Nodes are the states of NUMA nodes by number.
type Nodes map[int]Node

// Clone returns a copy that changes on its own.
func (n Nodes) Clone() Nodes {
	clone := make(Nodes, len(n))
	for id, node := range n {
		node.Tables = maps.Clone(node.Tables)
		clone[id] = node
	}
	return clone
}

// numbers returns the numbers of the nodes in ascending order.
func (n Nodes) numbers() []int { return slices.Sorted(maps.Keys(n)) }

// Config configures a Book.
type Config struct {
	// Machine has the NUMA nodes as cAdvisor describes them.
	Machine *model.MachineInfo
	// Reserved is reservedMemory.
	Reserved []kubeletconfigv1beta1.MemoryReservation
	// NotForPods is what the configuration withholds from pods: systemReserved, kubeReserved, and memory.available of
	// evictionHard.
	NotForPods v1.ResourceList
}

// managed reports whether a resource is one of those that NUMA nodes have.
func managed(name v1.ResourceName) bool {
	return name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// reservations returns the reserved bytes by NUMA node and kind.
func (c Config) reservations() (map[int]map[v1.ResourceName]uint64, error) {
	byNode := map[int]map[v1.ResourceName]uint64{}
	for _, node := range c.Machine.Topology {
		byNode[node.Id] = map[v1.ResourceName]uint64{}
	}
	total := map[v1.ResourceName]resource.Quantity{}
	for i, r := range c.Reserved {
		amounts := byNode[int(r.NumaNode)]
		if amounts == nil {
			return nil, fmt.Errorf("reservedMemory[%d].numaNode: the machine has no NUMA node %d", i, r.NumaNode)
		}
		for kind, amount := range r.Limits {
			size, ok := amount.AsInt64()
			if !ok || size < 0 {
				return nil, fmt.Errorf("reservedMemory[%d].limits.%s: %s is no number of bytes", i, kind, &amount)
			}
			amounts[kind] += uint64(size)
			sum := total[kind]
			sum.Add(amount)
			total[kind] = sum
		}
	}
	return byNode, c.checkSum(total)
}

// checkSum returns why the total of the reserved memory is not what is withheld from pods.
func (c Config) checkSum(total map[v1.ResourceName]resource.Quantity) error {
	kinds := maps.Clone(total)
	for kind := range c.NotForPods {
		if managed(kind) {
			kinds[kind] = resource.Quantity{}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		reserved, withheld := total[kind], c.NotForPods[kind]
		if !reserved.Equal(withheld) {
			return fmt.Errorf("reservedMemory: the total amount %q of type %q is not equal to %q, the sum of "+
				"systemReserved, kubeReserved and memory.available of evictionHard", reserved.String(), kind, withheld.String())
		}
	}
	return nil
}

// empty returns the NUMA nodes of the machine while no container has any memory of them.
func (c Config) empty() (Nodes, error) {
	reserved, err := c.reservations()
	if err != nil {
		return nil, err
	}
	all, memory := Nodes{}, uint64(0)
	for _, node := range c.Machine.Topology {
		if node.Id < 0 || node.Id > numa.MaxNode {
			return nil, fmt.Errorf("the machine has a NUMA node %d: at most %d is supported", node.Id, numa.MaxNode)
		}
		tables, pages := map[v1.ResourceName]Table{}, uint64(0)
		const kibi = 1024
		for _, size := range node.HugePages {
			total := size.NumPages * size.PageSize * kibi
			page := int64(size.PageSize * kibi) //nolint:gosec // a page is smaller than 8 EiB
			quantity := resource.NewQuantity(page, resource.BinarySI)
			tables[v1.ResourceName(v1.ResourceHugePagesPrefix+quantity.String())] = Table{Total: total}
			pages += total
		}
		tables[v1.ResourceMemory] = Table{Total: node.Memory}
		for kind, table := range tables {
			table.System = reserved[node.Id][kind]
			used := table.System
			if kind == v1.ResourceMemory {
				used += pages
			}
			if used > table.Total {
				return nil, fmt.Errorf("reservedMemory: %d bytes of type %q are reserved or huge pages, and NUMA node %d has "+
					"%d", used, kind, node.Id, table.Total)
			}
			table.Allocatable = table.Total - used
			table.Free = table.Allocatable
			tables[kind] = table
		}
		memory += tables[v1.ResourceMemory].System
		all[node.Id] = Node{Group: numa.MaskOf(node.Id), Tables: tables}
	}
	if memory == 0 {
		return nil, errors.New("reservedMemory: [memorymanager] you should specify the system reserved memory")
	}
	return all, nil
}
