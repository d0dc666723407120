package syncloop

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/cadvisor/lib/model"
	"github.com/google/cadvisor/lib/utils/sysfs"
	"github.com/google/cadvisor/lib/utils/sysinfo"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

// machineCPUs are the CPUs and the memory of this machine by NUMA node, and the policy of the topology manager.
type machineCPUs struct {
	info   *model.MachineInfo
	policy *numa.Policy
}

// newMachineCPUs returns the CPUs and the memory of this machine by NUMA node, and how resources are aligned to these
// nodes.
func newMachineCPUs(h *host) (*machineCPUs, error) {
	kubelet := &h.cfg.Kubelet
	m := &machineCPUs{info: &model.MachineInfo{}}
	if kubelet.CPUManagerPolicy != cpus.PolicyNone || kubelet.TopologyManagerPolicy != numa.PolicyNone ||
		kubelet.ReservedSystemCPUs != "" || kubelet.MemoryManagerPolicy != memory.PolicyNone {
		nodes, count, err := sysinfo.GetNodesInfo(sysfs.NewRealSysFs())
		if err != nil {
			return nil, fmt.Errorf("read the CPUs and the memory of the machine from /sys: %w", err)
		}
		m.info.NumCores, m.info.Topology = count, nodes
	}
	sockets := map[int]bool{}
	var nodes []numa.Node
	for _, node := range m.info.Topology {
		nodes = append(nodes, numa.Node{ID: node.Id, Distances: node.Distances})
		for _, core := range node.Cores {
			sockets[core.SocketID] = true
		}
	}
	m.info.NumSockets = len(sockets)
	var options numa.Options
	var err error
	if kubelet.TopologyManagerPolicy != numa.PolicyNone { // as in the kubelet, they do not count without a policy
		if options, err = numa.ParseOptions(kubelet.TopologyManagerPolicyOptions); err != nil {
			return nil, fmt.Errorf("the topology manager: %w", err)
		}
	}
	if m.policy, err = numa.New(kubelet.TopologyManagerPolicy, options, nodes); err != nil {
		return nil, fmt.Errorf("the topology manager: %w", err)
	}
	return m, nil
}

// nodes returns the NUMA nodes.
func (m *machineCPUs) nodes() []int {
	all := make([]int, 0, len(m.info.Topology))
	for _, node := range m.info.Topology {
		all = append(all, node.Id)
	}
	return all
}

// newAllocator returns the owner of what containers have for themselves, with the assignments of an earlier process.
func newAllocator(h *host, m *machineCPUs, devices *deviceplugins.Manager) (*allocator.Allocator, error) {
	book, err := newCPUs(h, m)
	if err != nil {
		return nil, fmt.Errorf("the CPU manager: %w", err)
	}
	memoryBook, err := newMemory(h, m)
	if err != nil {
		return nil, fmt.Errorf("the memory manager: %w", err)
	}
	return allocator.New(allocator.Config{
		Root: h.cfg.RootDir, Devices: devices, CPUs: book, Memory: memoryBook, Policy: m.policy,
		Scope: h.cfg.Kubelet.TopologyManagerScope, Clock: clock.RealClock{},
		Metrics: allocator.NewMetrics(h.registry), Logger: h.logger,
	})
}

// newCPUs returns the CPUs of the node; nil with the policy none.
func newCPUs(h *host, m *machineCPUs) (*cpus.Book, error) {
	kubelet := &h.cfg.Kubelet
	if options := kubelet.CPUManagerPolicyOptions; kubelet.CPUManagerPolicy == cpus.PolicyNone && len(options) > 0 {
		return nil, fmt.Errorf("cpuManagerPolicyOptions %v need cpuManagerPolicy: static", options)
	}
	if kubelet.CPUManagerPolicy != cpus.PolicyStatic && kubelet.ReservedSystemCPUs == "" {
		return nil, nil //nolint:nilnil // there is no book without the policy static
	}
	machine, err := cpus.Discover(m.info)
	if err != nil {
		return nil, err
	}
	reserved, err := machine.ParseReserved(kubelet.ReservedSystemCPUs)
	if err != nil || kubelet.CPUManagerPolicy != cpus.PolicyStatic {
		return nil, err
	}
	alpha, beta := nodeconfig.CPUOptionGates(kubelet)
	options, err := cpus.ParseOptions(kubelet.CPUManagerPolicyOptions, cpus.Gates{Alpha: alpha, Beta: beta})
	if err != nil {
		return nil, err
	}
	system, kube := quantities(kubelet.SystemReserved), quantities(kubelet.KubeReserved)
	return cpus.New(cpus.Config{
		Machine: machine, Options: options, Topology: m.policy.Name(), Reserved: reserved,
		ReservedMilli: system.Cpu().MilliValue() + kube.Cpu().MilliValue(),
	})
}

// newMemory returns the memory of the NUMA nodes; nil with the policy None.
func newMemory(h *host, m *machineCPUs) (*memory.Book, error) {
	kubelet := &h.cfg.Kubelet
	if kubelet.MemoryManagerPolicy != memory.PolicyStatic {
		return nil, nil //nolint:nilnil // there is no book without the policy Static
	}
	system, kube := quantities(kubelet.SystemReserved), quantities(kubelet.KubeReserved)
	sum := system.Memory().DeepCopy()
	sum.Add(*kube.Memory())
	threshold, err := nodeconfig.ParseThreshold(cmp.Or(kubelet.EvictionHard["memory.available"], "0"))
	if err != nil {
		return nil, fmt.Errorf("evictionHard[memory.available]: %w", err)
	}
	if threshold.Fraction > 0 {
		capacity := int64(stats.ReadMachine(h.cfg.StateDir).MemoryBytes) //nolint:gosec // a machine has less than 8 EiB
		sum.Add(*resource.NewQuantity(threshold.Of(capacity), resource.BinarySI))
	} else {
		sum.Add(threshold.Quantity)
	}
	return memory.New(memory.Config{
		Machine: m.info, Reserved: kubelet.ReservedMemory, NotForPods: v1.ResourceList{v1.ResourceMemory: sum},
	})
}

// reconcileCPUs adds the loop that moves running containers to the CPUs and the NUMA nodes that they may use.
func reconcileCPUs(
	ctx context.Context, h *host, owner *allocator.Allocator, store *podstore.Store, parts *components.Group,
) {
	parts.Run("CPUs of containers", allocator.NewReconciler(allocator.ReconcilerConfig{
		Allocator: owner, Pods: store.Active, Observed: store.AllObserved, Update: updateContainer(h.runtimeNow(ctx)),
		Period: h.cfg.Kubelet.CPUManagerReconcilePeriod.Duration, Clock: clock.RealClock{}, Logger: h.logger,
	}).Run)
}

// updateContainer returns a function that changes the resources of a container. It logs no failure, because the
// container may have ended.
func updateContainer(
	runtime func() (internalapi.RuntimeService, error),
) func(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
	return func(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
		service, err := runtime()
		if err != nil {
			return err
		}
		return service.UpdateContainerResources(cri.Quiet(ctx), id, resources)
	}
}
