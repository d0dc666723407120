package main

import (
	"context"
	"fmt"

	"github.com/google/cadvisor/lib/model"
	"github.com/google/cadvisor/lib/utils/sysfs"
	"github.com/google/cadvisor/lib/utils/sysinfo"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpus"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// newAllocator returns the owner of what containers have for themselves, with the assignments of an earlier process.
func newAllocator(h *host, devices *deviceplugins.Manager) (*allocator.Allocator, error) {
	policy, err := numa.New(numa.PolicyNone, numa.Options{}, nil)
	if err != nil {
		return nil, err
	}
	book, err := newCPUs(h, policy)
	if err != nil {
		return nil, fmt.Errorf("the CPU manager: %w", err)
	}
	return allocator.New(allocator.Config{
		Root: h.cfg.RootDir, Devices: devices, CPUs: book, Policy: policy, Scope: numa.ScopeContainer,
		Clock: clock.RealClock{}, Metrics: allocator.NewMetrics(h.registry), Logger: h.logger,
	})
}

// newCPUs returns the CPUs of the node; nil with the policy none.
func newCPUs(h *host, policy *numa.Policy) (*cpus.Book, error) {
	kubelet := &h.cfg.Kubelet
	if options := kubelet.CPUManagerPolicyOptions; kubelet.CPUManagerPolicy == cpus.PolicyNone && len(options) > 0 {
		return nil, fmt.Errorf("cpuManagerPolicyOptions %v need cpuManagerPolicy: static", options)
	}
	if kubelet.CPUManagerPolicy != cpus.PolicyStatic && kubelet.ReservedSystemCPUs == "" {
		return nil, nil //nolint:nilnil // there is no book without the policy static
	}
	info, err := machineInfo()
	if err != nil {
		return nil, err
	}
	machine, err := cpus.Discover(info)
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
		Machine: machine, Options: options, Topology: policy.Name(), Reserved: reserved,
		ReservedMilli: system.Cpu().MilliValue() + kube.Cpu().MilliValue(),
	})
}

// machineInfo returns the CPUs of this machine by NUMA node.
func machineInfo() (*model.MachineInfo, error) {
	nodes, count, err := sysinfo.GetNodesInfo(sysfs.NewRealSysFs())
	if err != nil {
		return nil, fmt.Errorf("read the CPUs of the machine from /sys: %w", err)
	}
	info := &model.MachineInfo{NumCores: count, Topology: nodes}
	sockets := map[int]bool{}
	for _, node := range nodes {
		for _, core := range node.Cores {
			sockets[core.SocketID] = true
		}
	}
	info.NumSockets = len(sockets)
	return info, nil
}

// reconcileCPUs adds the loop that moves running containers to the CPUs that they may use.
func reconcileCPUs(
	ctx context.Context, h *host, owner *allocator.Allocator, store *podstore.Store, parts *components.Group,
) {
	runtime := h.runtimeNow(ctx)
	parts.Run("CPUs of containers", allocator.NewReconciler(allocator.ReconcilerConfig{
		Allocator: owner, Pods: store.Active, Observed: store.AllObserved,
		Update: func(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error {
			service, err := runtime()
			if err != nil {
				return err
			}
			return service.UpdateContainerResources(ctx, id, resources)
		},
		Period: h.cfg.Kubelet.CPUManagerReconcilePeriod.Duration, Clock: clock.RealClock{}, Logger: h.logger,
	}).Run)
}
