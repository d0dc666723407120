package main

import (
	"context"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/volumes"
)

// nodeTimeout bounds the question for what memory pods may use: a volume can do with less than the exact answer.
const nodeTimeout = 2 * time.Second

// newVolumes makes the volume manager with every kind of volume that there is. It knows what an earlier process has left.
func newVolumes(cfg nodeconfig.Config, tel *telemetry.Telemetry, node func(context.Context) (*v1.Node, error), e *engine) (*volumes.Manager, error) {
	realClock := clock.RealClock{}
	content := volumeprojected.Config{Mounter: volumes.Machine{}, Memory: memoryForPods(node), Objects: e.objects, Node: node, Clock: realClock}
	if e.identities != nil {
		content.Tokens, content.TrustBundles, content.Certificates = e.identities.tokens, e.identities.bundles, e.identities.certificates
	}
	return volumes.New(volumes.Config{
		PodsDir: filepath.Join(cfg.RootDir, "pods"), Clock: realClock, Events: e.events, Metrics: e.counts, Tracer: tel.Tracer, Logger: tel.Logger,
		Plugins: append([]volumes.Plugin{
			&volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: volumes.Machine{}}, Memory: memoryForPods(node)},
			volumes.HostPath{},
			volumes.Image{},
		}, volumeprojected.Plugins(content)...),
	})
}

// memoryForPods asks how many bytes of memory pods may use; 0 when nobody says.
func memoryForPods(node func(context.Context) (*v1.Node, error)) func(context.Context) int64 {
	return func(ctx context.Context) int64 {
		ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
		defer cancel()
		n, err := node(ctx)
		if err != nil {
			return 0
		}
		return n.Status.Allocatable.Memory().Value()
	}
}
