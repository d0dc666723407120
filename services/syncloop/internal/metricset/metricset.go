// Package metricset registers the metrics of every component of syncloop, for tests that look at all of them: that
// docs/reference/metrics.md lists them, that the process exposes them, and, in the module oracle, that they are as the
// kubelet's. The components themselves register their metrics where package main makes them.
package metricset

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	storagev1 "k8s.io/api/storage/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/kubeletapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podsapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/servingcert"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocator"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/deviceplugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/resourceclaims"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/damagedfiles"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/containergc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/runtimewatch"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumehealth"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Standalone registers what every node exposes from its start on.
func Standalone(registry prometheus.Registerer) { register(registry) }

// All registers everything that a node of a cluster exposes. What is read at a scrape has a sample.
func All(registry prometheus.Registerer) {
	m := register(registry)
	m.statuses.Expose(func() int { return 1 })
	m.mirrors.Expose(func() int { return 1 })
	m.loop.Expose(func() time.Time { return time.Unix(1, 0) })
	m.store.Expose(func() podstore.Census {
		return podstore.Census{Waiting: []podstore.WaitingContainer{{Reason: "ErrImagePull"}}}
	})
	m.workers.Expose(func() podworkers.Census { return podworkers.Census{States: map[string]int{"syncing": 1}} })
	m.volumes.Expose(func() []volumes.Count {
		return []volumes.Count{{Plugin: "kubernetes.io/empty-dir", State: volumes.StateActual, Volumes: 1}}
	})
	plugins.NewMetrics(registry).Expose(func() []plugins.Count {
		return []plugins.Count{{Socket: "/var/lib/kubelet/plugins_registry/a.sock", State: plugins.StateActual}}
	})
	stats.ExposeClaims(registry, func() map[statsv1alpha1.PVCReference]statsv1alpha1.FsStats {
		one := uint64(1)
		return map[statsv1alpha1.PVCReference]statsv1alpha1.FsStats{{Namespace: "shop", Name: "data"}: {
			CapacityBytes: &one, AvailableBytes: &one, UsedBytes: &one, Inodes: &one, InodesFree: &one, InodesUsed: &one,
		}}
	})
	volumehealth.Expose(registry, func() map[string][]storagev1.StorageHealthCondition {
		return map[string][]storagev1.StorageHealthCondition{
			"disks.example.com": {{Status: storagev1.StorageDegraded, Reason: "Rebuild"}},
		}
	})
	runtimewatch.NewMetrics(registry).LosesSupport()
	resizes.Expose(registry, func() resizes.Counts {
		return resizes.Counts{Pending: map[resizes.Class]int{{Reason: "Deferred", Priority: "normal"}: 1}, InProgress: 1}
	})
	logrotate.Expose(registry, func() []logrotate.Used { return []logrotate.Used{{Container: "web", Bytes: 1}} })
	podcertificates.Expose(registry, func() map[podcertificates.Counted]int {
		return map[podcertificates.Counted]int{{Signer: "shop.example/signer", State: podcertificates.Fresh}: 1}
	})
	servingcert.Expose(registry, func() time.Time { return time.Time{} }, func() int64 { return 0 })
}

// exposing are those that also have metrics which are read at a scrape.
type exposing struct {
	statuses *statusmanager.Metrics
	mirrors  *mirrorpods.Metrics
	loop     *loop.Metrics
	store    *podstore.Metrics
	workers  *podworkers.Metrics
	volumes  *volumes.Metrics
}

func register(registry prometheus.Registerer) exposing {
	containergc.NewMetrics(registry)
	csi.NewMetrics(registry)
	damagedfiles.New(damagedfiles.Config{Registry: registry})
	allocator.NewMetrics(registry)
	deviceplugins.NewMetrics(registry)
	engineapi.NewMetrics(registry)
	eviction.NewMetrics(registry)
	executor.NewMetrics(registry)
	imagecredentials.NewMetrics(registry)
	imagegc.NewMetrics(registry)
	images.NewMetrics(registry)
	kubeletapi.NewMetrics(registry)
	logrotate.NewMetrics(registry)
	oom.NewMetrics(registry)
	phases.NewMetrics(registry)
	podcgroups.NewMetrics(registry)
	podresources.NewMetrics(registry)
	podsapi.NewMetrics(registry)
	resourceclaims.NewMetrics(registry).Expose(func() map[string]int { return map[string]int{claimbook.AnyDriver: 0} })
	selinux.NewMetrics(registry)
	return exposing{
		statuses: statusmanager.NewMetrics(registry), mirrors: mirrorpods.NewMetrics(registry),
		loop:  loop.NewMetrics(registry),
		store: podstore.NewMetrics(registry), workers: podworkers.NewMetrics(registry), volumes: volumes.NewMetrics(registry),
	}
}
