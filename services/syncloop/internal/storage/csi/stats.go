package csi

import (
	"context"
	"errors"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Usage implements persistentvolumes.Measurer: the driver measures its volumes.
func (p *Plugin) Usage(ctx context.Context, dir string) (*statsv1alpha1.FsStats, error) {
	at := placeOf(dir)
	r, known := p.books.user(at)
	if !known {
		return nil, fs.ErrNotExist
	}
	n, err := p.node(ctx, r.driver, true)
	if err != nil {
		return nil, err
	}
	if !n.can[csi.NodeServiceCapability_RPC_GET_VOLUME_STATS] {
		return nil, volumes.ErrNotMeasured
	}
	path := p.books.target(at)
	if at.block {
		path = p.books.held(at)
	}
	answer, err := n.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: r.handle,
		VolumePath: p.driverPath(path)})
	if err != nil {
		return nil, err
	}
	if answer.GetUsage() == nil {
		return nil, errors.New("failed to get usage from response. usage is nil")
	}
	return usageOf(answer, metav1.NewTime(p.cfg.Clock.Now())), nil
}

// usageOf returns the usage in a driver's answer. As in the kubelet, a unit that is missing has zeros.
func usageOf(answer *csi.NodeGetVolumeStatsResponse, now metav1.Time) *statsv1alpha1.FsStats {
	count := func(n int64) *uint64 {
		u := uint64(max(n, 0))
		return &u
	}
	stats := &statsv1alpha1.FsStats{
		Time: now, AvailableBytes: count(0), CapacityBytes: count(0), UsedBytes: count(0),
		InodesFree: count(0), Inodes: count(0), InodesUsed: count(0),
	}
	for _, usage := range answer.GetUsage() {
		available, total, used := count(usage.GetAvailable()), count(usage.GetTotal()), count(usage.GetUsed())
		switch usage.GetUnit() {
		case csi.VolumeUsage_BYTES:
			stats.AvailableBytes, stats.CapacityBytes, stats.UsedBytes = available, total, used
		case csi.VolumeUsage_INODES:
			stats.InodesFree, stats.Inodes, stats.InodesUsed = available, total, used
		case csi.VolumeUsage_UNKNOWN:
		}
	}
	return stats
}
