package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
)

// newLink returns the link to the API server of the configuration, or the link of a standalone node. It notes in
// changes the pods that a change affects. ctx is the process's context.
func newLink(
	ctx context.Context, h *host, node func(context.Context) (*v1.Node, error), changes *podchanges.Changes,
	events *podevents.Recorder, parts *components.Group,
) (*cluster.Link, error) {
	if h.cfg.Kubeconfig == "" {
		return cluster.Standalone(configobjects.ConfigmuxConfig{
			Stream: clients.Objects(configv1.NewConfigServiceClient(h.peers.configmux)), Logger: h.logger,
			Metrics: stream.NewFollowedMetrics(h.registry, stream.NameObjects),
			Changed: changes.Note(podchanges.Content | podchanges.Sync),
		}, h.registry, parts), nil
	}
	api, err := newAPIClient(h, parts)
	if err != nil {
		return nil, err
	}
	storage, err := api.Group(storagev1.SchemeGroupVersion, storagev1.AddToScheme)
	if err != nil {
		return nil, err
	}
	statusAPI, err := newAPIClient(h, parts)
	if err != nil {
		return nil, err
	}
	return cluster.Connect(ctx, cluster.Config{
		API: api, StatusAPI: statusAPI, Storage: storage, NodeName: h.cfg.NodeName, Node: node,
		Strategy:       h.cfg.Kubelet.ConfigMapAndSecretChangeDetectionStrategy,
		ContentChanged: changes.Note(podchanges.Content), SyncNeeded: changes.Note(podchanges.Sync),
		ObjectChanged: changes.Note(podchanges.Content | podchanges.Sync),
		Events:        events, Registry: h.registry, Clock: clock.RealClock{}, Tracer: h.tracer, Logger: h.logger,
	}, parts), nil
}

// newAPIClient returns a client of the API server with rate limits of its own. The API server need not be reachable.
// enterRoot must have been called, because the paths of the kubeconfig are the machine's.
func newAPIClient(h *host, parts *components.Group) (*apiclient.Client, error) {
	client, err := apiclient.New(apiclient.ConfigOf(nodeconfig.SyncLoop, h.cfg))
	if err != nil {
		return nil, err
	}
	client.CountIn(h.requests)
	parts.OnClose("client of the API server", func() error {
		client.Close()
		return nil
	})
	return client, nil
}
