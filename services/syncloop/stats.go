package syncloop

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumehealth"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// newStats returns the statistics of the resources that pods and the node use.
func newStats(h *host, store *podstore.Store, volumes *volumes.Manager, parts *components.Group) *stats.Stats {
	kubelet := &h.cfg.Kubelet
	cfg := stats.Config{
		NodeName: h.cfg.NodeName, Observed: store.AllObserved, Pod: store.Pod,
		Cgroups: h.cgroups,
		Runtime: h.runtime.Runtime, Images: h.runtime.Images,
		VolumePath: volumes.Path, VolumeUsage: volumes.Usage, VolumePeriod: kubelet.VolumeStatsAggPeriod.Duration,
		RootDir: h.cfg.RootDir, HugePageAware: nodeconfig.SubtractsHugePages(kubelet),
		Machine: func() stats.Machine { return stats.ReadMachine(h.cfg.StateDir) },
		Clock:   clock.RealClock{}, Logger: h.logger,
	}
	if *kubelet.CgroupsPerQOS {
		names := podcgroups.NewNames(kubelet.CgroupDriver, kubelet.CgroupRoot)
		cfg.Names = &names
	}
	measured := stats.New(cfg)
	measured.Expose(h.registry)
	parts.Run("statistics", measured.Run)
	return measured
}

// watchVolumeHealth asks CSI drivers for the health of the volumes of pods and of their storage, if the configuration
// turns that on.
func watchVolumeHealth(
	h *host, storage *storage, volumes *volumes.Manager, store *podstore.Store, changed func(), parts *components.Group,
) {
	if !nodeconfig.ReportsVolumeHealth(&h.cfg.Kubelet) {
		return
	}
	volumehealth.Expose(h.registry, storage.health.Storage)
	parts.Run("volume health", func(ctx context.Context) error {
		return storage.health.Run(ctx, volumehealth.Config{
			Period: h.cfg.Kubelet.VolumeStatsAggPeriod.Duration, Pods: store.Active, Driver: volumes.Driver,
			Health: volumes.Health, Changed: store.Refresh,
			Drivers: func() (names []string) {
				for _, node := range storage.drivers.Nodes() {
					names = append(names, node.Driver)
				}
				return names
			},
			Storage: storage.volumes.StorageHealth, StorageChanged: changed, Clock: clock.RealClock{}, Logger: h.logger,
		})
	})
}
