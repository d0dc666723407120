package main

import (
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// newStats returns the statistics of the resources that pods and the node use.
func newStats(h *host, store *podstore.Store, volumes *volumes.Manager, parts *components.Group) *stats.Stats {
	kubelet := &h.cfg.Kubelet
	cfg := stats.Config{
		NodeName: h.cfg.NodeName, Observed: store.AllObserved, Pod: store.Pod,
		Cgroups: podcgroups.NewMachine(kubelet.CgroupDriver, clock.RealClock{}),
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
