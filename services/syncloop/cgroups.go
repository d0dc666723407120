package syncloop

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/pidlimit"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// driverTimeout bounds the wait for the runtime's cgroup driver at the start.
const driverTimeout = time.Second

// cgroupDriver returns the runtime's cgroup driver. It overrides the configured one, because the runtime creates
// containers in the cgroups that this process creates for pods. If the runtime does not answer in time, it returns the
// configured driver; runtimewatch asks the runtime later and ends the process if the drivers differ.
func cgroupDriver(ctx context.Context, runtime *cri.Client, configured string, logger *slog.Logger) string {
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	service, err := runtime.Runtime(ctx)
	if err != nil {
		return configured
	}
	driver, err := cri.CgroupDriver(cri.Quiet(ctx), service)
	if err != nil || driver == "" || driver == configured {
		return configured
	}
	logger.Info("the container runtime's cgroup driver overrides cgroupDriver of the configuration",
		"runtime", driver, "configuration", configured)
	return driver
}

// newCgroups returns the manager of the pods' cgroups.
func newCgroups(
	h *host, askNode func(context.Context) (*v1.Node, error), store *podstore.Store, events *podevents.Recorder,
	owner *allocator.Allocator, counts *podcgroups.Metrics,
) *podcgroups.Tree {
	kubelet := &h.cfg.Kubelet
	limits := resources.Limits{
		CPUQuota: *kubelet.CPUCFSQuota, CPUPeriod: kubelet.CPUCFSQuotaPeriod.Duration, PIDs: *kubelet.PodPidsLimit,
		MemoryQoS: memoryQoS(kubelet),
	}
	notForPods := reservations(kubelet)
	var reserved []v1.ResourceList
	if slices.Contains(kubelet.EnforceNodeAllocatable, nodeconfig.EnforcePods) {
		reserved = notForPods
	}
	return podcgroups.New(podcgroups.Config{
		Cgroups: h.cgroups,
		Names:   podcgroups.NewNames(kubelet.CgroupDriver, kubelet.CgroupRoot),
		HasCPUs: func(pod *v1.Pod) bool { return owner.HasCPUs(pod.UID, "") },
		Limits:  limits, Reserved: reserved, NotForPods: notForPods, Existing: cgroupsOfDaemons(kubelet),
		MemoryPercent: nodeconfig.ReservedMemoryPercent(kubelet), Node: askNode,
		PIDs: func() int64 { return maxProcesses(h.cfg.StateDir) },
		Pods: store.Pods, Waiting: h.health.Set, Events: events, Clock: clock.RealClock{}, Logger: h.logger, Metrics: counts,
	})
}

// cgroupsOfDaemons returns the existing cgroups that enforceNodeAllocatable limits.
func cgroupsOfDaemons(kubelet *kubeletconfigv1beta1.KubeletConfiguration) []podcgroups.Existing {
	var all []podcgroups.Existing
	for _, reservation := range []struct {
		purpose, name string
		reserved      map[string]string
	}{{
		"system", kubelet.SystemReservedCgroup, kubelet.SystemReserved,
	}, {"kube", kubelet.KubeReservedCgroup, kubelet.KubeReserved}} {
		whole, compressible := nodeconfig.EnforcesReservation(kubelet, reservation.purpose)
		if whole || compressible {
			all = append(all, podcgroups.Existing{
				Purpose: reservation.purpose, Name: podcgroups.ExistingName(kubelet.CgroupDriver, reservation.name),
				Resources: resources.ForReservation(quantities(reservation.reserved), !whole, memoryQoS(kubelet)),
			})
		}
	}
	return all
}

// memoryQoS returns how memory is protected and throttled on this machine.
func memoryQoS(kubelet *kubeletconfigv1beta1.KubeletConfiguration) resources.MemoryQoS {
	if !nodeconfig.ProtectsMemory(kubelet) || !nodeconfig.HasCgroupV2(os.DirFS("/")) {
		return resources.MemoryQoS{}
	}
	return resources.MemoryQoS{
		Enabled:    true,
		Tiered:     kubelet.MemoryReservationPolicy == kubeletconfigv1beta1.TieredReservationMemoryReservationPolicy,
		Throttling: ptr.Deref(kubelet.MemoryThrottlingFactor, 0),
	}
}

// reservations returns what pods may not use of the machine.
func reservations(kubelet *kubeletconfigv1beta1.KubeletConfiguration) []v1.ResourceList {
	return []v1.ResourceList{quantities(kubelet.SystemReserved), quantities(kubelet.KubeReserved)}
}

// quantities parses amounts of the configuration, which were validated.
func quantities(amounts map[string]string) v1.ResourceList {
	list := v1.ResourceList{}
	for name, text := range amounts {
		if quantity, err := resource.ParseQuantity(text); err == nil {
			list[v1.ResourceName(name)] = quantity
		}
	}
	return list
}

// maxProcesses returns the maximum number of processes and threads of the machine, or 0 if it cannot be read.
func maxProcesses(stateDir string) int64 {
	n, err := pidlimit.Read("/proc", stateDir)
	if err != nil {
		return 0
	}
	return n
}
