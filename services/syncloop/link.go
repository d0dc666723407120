package syncloop

import (
	"context"
	"errors"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/nodeclaims"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/nodevolumes"
)

// newLink returns the link to the API server of the configuration, or the link of a standalone node. It notes in
// changes the pods that a change affects. ctx is the process's context.
func newLink(
	ctx context.Context, h *host, node func(context.Context) (*v1.Node, error), changes *podchanges.Changes,
	events *podevents.Recorder, parts *components.Group,
) (*cluster.Link, error) {
	if h.cfg.Kubeconfig == "" {
		return newStandalone(h, changes, parts), nil
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
	var shared stream.Source[*configobjects.Entry]
	if h.cfg.ConfigmuxObjects {
		shared = clients.Objects(configv1.NewConfigServiceClient(h.peers.configmux))
	}
	return cluster.Connect(ctx, cluster.Config{
		Shared: shared,
		API:    api, StatusAPI: statusAPI, Storage: storage, NodeName: h.cfg.NodeName, Node: node,
		Strategy:       h.cfg.Kubelet.ConfigMapAndSecretChangeDetectionStrategy,
		ContentChanged: changes.Note(podchanges.Content), SyncNeeded: changes.Note(podchanges.Sync),
		ObjectChanged: changes.Note(podchanges.Content | podchanges.Sync),
		Events:        events, Registry: h.registry, Clock: clock.RealClock{}, Tracer: h.tracer, Logger: h.logger,
	}, parts), nil
}

// newStandalone returns the link of a standalone node, whose claims are directories of the node and volumes of its
// storage classes.
func newStandalone(h *host, changes *podchanges.Changes, parts *components.Group) *cluster.Link {
	changed := changes.Note(podchanges.Content | podchanges.Sync)
	local := &localClaims{}
	local.Configmux = configobjects.NewConfigmux(configobjects.ConfigmuxConfig{
		Stream: clients.Objects(configv1.NewConfigServiceClient(h.peers.configmux)), Logger: h.logger,
		Metrics: stream.NewFollowedMetrics(h.registry, stream.NameObjects), Changed: changed,
		ClaimsChanged: func() {
			local.Claims.Check()
			local.Volumes.Tell()
		},
		SecretChanged: func(namespace, name string) { local.Volumes.TellSecret(namespace, name) },
	})
	local.Volumes = nodevolumes.New(nodevolumes.Config{
		Dir: filepath.Join(h.cfg.StateDir, "persistentvolumes"), Objects: local.Configmux,
		Changed: func(namespace, name string) { local.Claims.Tell(namespace, name) },
		Clock:   clock.RealClock{}, Tracer: h.tracer, Logger: h.logger,
	})
	local.Claims = nodeclaims.New(nodeclaims.Config{
		Dir: filepath.Join(h.cfg.StateDir, "claims"), PodsDir: filepath.Join(h.cfg.RootDir, "pods"), Changed: changed,
		Volumes: local.Volumes, Clock: clock.RealClock{}, Logger: h.logger,
	})
	parts.Run("claims", func(ctx context.Context) error { return local.Claims.Run(ctx, local.Configmux) })
	parts.Run("volumes of claims", local.Volumes.Run)
	link := cluster.Standalone(local.Configmux, h.registry, parts)
	link.Claims = local
	return link
}

// localClaims are the claims of a standalone node, with what persistent volumes need besides.
type localClaims struct {
	*nodeclaims.Claims
	*nodevolumes.Volumes
	*configobjects.Configmux
}

var _ claims.Source = &localClaims{}

// Use implements claims.Source.
func (l *localClaims) Use(pod *v1.Pod) { l.Claims.Use(pod) }

// Forget implements claims.Source.
func (l *localClaims) Forget(uid types.UID) { l.Claims.Forget(uid) }

// Claim implements claims.Source.
func (l *localClaims) Claim(
	ctx context.Context, pod *v1.Pod, volume *v1.Volume,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	return l.Claims.Claim(ctx, pod, volume)
}

// volumesOf returns the volumes of storage classes of a standalone node; nil for a node in a cluster.
func volumesOf(link *cluster.Link) *nodevolumes.Volumes {
	if local, is := link.Claims.(*localClaims); is {
		return local.Volumes
	}
	return nil
}

// unlistedVolumes returns why the volumes of storage classes of a standalone node are not known; nil if they are, and
// for a node in a cluster.
func unlistedVolumes(link *cluster.Link) func() error {
	return func() error {
		if local := volumesOf(link); local != nil {
			return local.Unread()
		}
		return nil
	}
}

// describeReleased returns the function that describes the volumes of deleted claims of a standalone node; nil for a
// node in a cluster.
func describeReleased(link *cluster.Link) func() []*enginev1.ReleasedVolume {
	if local := volumesOf(link); local != nil {
		return local.Describe
	}
	return nil
}

// forgetReleased returns the function that forgets a volume of a deleted claim of a standalone node; nil for a node in
// a cluster.
func forgetReleased(link *cluster.Link) func(context.Context, string) (driver, handle string, err error) {
	local := volumesOf(link)
	if local == nil {
		return nil
	}
	return func(ctx context.Context, name string) (driver, handle string, err error) {
		driver, handle, err = local.Forget(ctx, name)
		if errors.Is(err, nodevolumes.ErrNotFound) {
			err = engineapi.ErrNoVolume
		}
		return driver, handle, err
	}
}

// describeClaims returns the function that describes the claims of a standalone node; nil for a node in a cluster.
func describeClaims(link *cluster.Link) func() []*enginev1.Claim {
	if local, is := link.Claims.(*localClaims); is {
		return local.Claims.Describe
	}
	return nil
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
