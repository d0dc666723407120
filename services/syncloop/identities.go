package main

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/podruntime"
	"github.com/quartet-node/quartet/services/syncloop/internal/satokens"
	"github.com/quartet-node/quartet/services/syncloop/internal/volumes"
)

// clusterOf makes the client of the API server, which need not be there; nil for a node that is standalone. The root of this process
// is the machine's already, as the paths of the kubeconfig are.
func clusterOf(cfg nodeconfig.Config) (*apiclient.Client, error) {
	if cfg.Kubeconfig == "" {
		return nil, nil
	}
	return apiclient.New(apiclient.ConfigOf(nodeconfig.SyncLoop, cfg))
}

// tokensOf has the tokens of service accounts made by the API server; nil for a node that is standalone. A pod of which one is to be
// replaced has its volumes brought up to date.
func tokensOf(e *engine, tel *telemetry.Telemetry, to connections) *satokens.Tokens {
	if to.cluster == nil {
		return nil
	}
	return satokens.New(satokens.Config{
		Issue: satokens.FromAPIServer(to.cluster.Core), Clock: clock.RealClock{}, Logger: tel.Logger,
		Changed: func(uid types.UID) { e.volumes.Refresh(uid) },
	})
}

// podVolumes has the volumes of pods in place for the pods' runtime.
func (e *engine) podVolumes() podruntime.Volumes {
	if e.tokens == nil {
		return e.volumes
	}
	return withTokens{Manager: e.volumes, tokens: e.tokens}
}

// withTokens are volumes that tokens are in.
type withTokens struct {
	*volumes.Manager
	tokens *satokens.Tokens
}

// Release implements podruntime.Volumes. The tokens of a pod are forgotten with its volumes.
func (w withTokens) Release(ctx context.Context, uid types.UID) error {
	if err := w.Manager.Release(ctx, uid); err != nil {
		return err
	}
	w.tokens.Forget(uid)
	return nil
}

// runTokens tells pods of tokens that are to be replaced until ctx ends.
func (e *engine) runTokens(ctx context.Context) error {
	if e.tokens == nil {
		return nil
	}
	return ended(ctx, e.tokens.Run(ctx))
}
