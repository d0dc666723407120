package main

import (
	"context"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/clustertrustbundles"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// clusterOf makes the client of the API server, which need not be there; nil for a node that is standalone. The root of this process
// is the machine's already, as the paths of the kubeconfig are.
func clusterOf(cfg nodeconfig.Config) (*apiclient.Client, error) {
	if cfg.Kubeconfig == "" {
		return nil, nil
	}
	return apiclient.New(apiclient.ConfigOf(nodeconfig.SyncLoop, cfg))
}

// identities are what an API server gives the pods of its cluster: by what they are known, and by what they know others.
type identities struct {
	tokens       *tokens.Tokens
	bundles      *clustertrustbundles.Bundles
	certificates *podcertificates.Certificates
}

// identitiesOf has them given by the API server; nil for a node that is standalone. A pod of which something is to be replaced has its
// volumes brought up to date.
func identitiesOf(e *engine, tel *telemetry.Telemetry, to connections, node func(context.Context) (*v1.Node, error)) *identities {
	if to.cluster == nil {
		return nil
	}
	realClock := clock.RealClock{}
	changed := e.changes.Note(podchanges.Content)
	i := &identities{
		tokens:  tokens.New(tokens.Config{Issue: tokens.FromAPIServer(to.cluster.Core), Clock: realClock, Logger: tel.Logger, Changed: changed}),
		bundles: clustertrustbundles.New(clustertrustbundles.Config{Client: to.cluster.Certificates, Clock: realClock, Changed: changed}),
		certificates: podcertificates.New(podcertificates.Config{
			API:  podcertificates.APIServer{Core: to.cluster.Core, Certificates: to.cluster.Certificates, NodeName: e.cfg.NodeName, Clock: realClock},
			Node: node, Changed: changed, Events: e.events, Clock: realClock, Logger: tel.Logger,
		}),
	}
	podcertificates.Expose(e.metrics.Registry, i.certificates.Count)
	return i
}

// forget drops what a pod was given.
func (i *identities) forget(uid types.UID) {
	i.tokens.Forget(uid)
	i.bundles.Forget(uid)
	i.certificates.Forget(uid)
}

// run tells pods of what is to be replaced until ctx ends.
func (i *identities) run(ctx context.Context) error {
	if i == nil {
		return nil
	}
	group, inner := errgroup.WithContext(ctx)
	group.Go(func() error { return i.tokens.Run(inner) })
	group.Go(func() error { return i.bundles.Run(inner) })
	group.Go(func() error { return i.certificates.Run(inner) })
	return ended(ctx, group.Wait())
}

// podVolumes has the volumes of pods in place for the pods' runtime.
func (e *engine) podVolumes() executor.Volumes {
	if e.identities == nil {
		return e.volumes
	}
	return withIdentities{Manager: e.volumes, identities: e.identities}
}

// withIdentities are volumes that identities are in.
type withIdentities struct {
	*volumes.Manager
	identities *identities
}

// Release implements executor.Volumes. The identities of a pod are forgotten with its volumes.
func (w withIdentities) Release(ctx context.Context, uid types.UID) error {
	if err := w.Manager.Release(ctx, uid); err != nil {
		return err
	}
	w.identities.forget(uid)
	return nil
}
