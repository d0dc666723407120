package main

import (
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

// newStats makes what says what pods and the node use.
func (e *engine) newStats() *stats.Stats {
	kubelet := &e.cfg.Kubelet
	cfg := stats.Config{
		NodeName: e.cfg.NodeName, Observed: e.store.AllObserved, Pod: e.store.Pod, Cgroups: podcgroups.NewMachine(kubelet.CgroupDriver, clock.RealClock{}),
		Runtime: e.runtime.Runtime, Images: e.runtime.Images, VolumePath: e.volumes.Path, VolumePeriod: kubelet.VolumeStatsAggPeriod.Duration,
		RootDir: e.cfg.RootDir, Machine: func() stats.Machine { return stats.ReadMachine(e.cfg.StateDir) }, Clock: clock.RealClock{}, Logger: e.logger,
	}
	if *kubelet.CgroupsPerQOS {
		names := podcgroups.NewNames(kubelet.CgroupDriver, kubelet.CgroupRoot)
		cfg.Names = &names
	}
	return stats.New(cfg)
}
