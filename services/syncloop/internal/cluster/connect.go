package cluster

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/clustertrustbundles"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
)

// accountTimeout limits a request for a service account.
const accountTimeout = 10 * time.Second

// Config configures Connect. All fields except Shared are required.
type Config struct {
	// API is a client of the API server for what pods need. StatusAPI is another one, with the limits of the configuration
	// for itself, so that the statuses of running pods do not wait behind the config maps and tokens that other pods wait
	// for.
	API, StatusAPI *apiclient.Client
	// Storage is API's client of storage/v1.
	Storage rest.Interface
	// NodeName is the name of this node.
	NodeName string
	// Node returns this node's Node.
	Node func(context.Context) (*v1.Node, error)
	// Shared is the stream of the configmux of a site, if the config maps, secrets, claims and services come from there;
	// else nil.
	Shared stream.Source[*configobjects.Entry]
	// Strategy is how changes of config maps and secrets are detected.
	Strategy kubeletconfigv1beta1.ResourceChangeDetectionStrategy
	// ContentChanged is called for each pod whose volumes must be brought up to date, SyncNeeded for each pod that may
	// wait for what has come, and ObjectChanged for each pod to which both apply. They must not block.
	ContentChanged, SyncNeeded, ObjectChanged func(uid types.UID)
	// Events records what users must know.
	Events *podevents.Recorder
	// Registry takes the metrics.
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	Tracer   trace.Tracer
	Logger   *slog.Logger
}

// Connect returns the Link of a node in a cluster, and adds to parts what watches and writes. The API server need not
// be there yet. Ctx is the process's: watches of single objects live under it.
func Connect(ctx context.Context, cfg Config, parts *components.Group) *Link {
	objects, volumes, services := connectObjects(ctx, cfg, parts)
	issued := tokens.New(tokens.Config{
		Issue: tokens.FromAPIServer(cfg.API.Core), Clock: cfg.Clock, Logger: cfg.Logger, Changed: cfg.ContentChanged,
	})
	parts.Run("service account tokens", issued.Run)
	bundles := clustertrustbundles.New(clustertrustbundles.Config{
		Client: cfg.API.Certificates, Clock: cfg.Clock, Changed: cfg.ContentChanged,
	})
	parts.Run("trust bundles", bundles.Run)
	certificates := podcertificates.New(podcertificates.Config{
		API: podcertificates.APIServer{
			Core: cfg.API.Core, Certificates: cfg.API.Certificates, NodeName: cfg.NodeName, Clock: cfg.Clock,
		},
		Node: cfg.Node, Changed: cfg.ContentChanged, Events: cfg.Events, Clock: cfg.Clock, Logger: cfg.Logger,
	})
	podcertificates.Expose(cfg.Registry, certificates.Count)
	parts.Run("pod certificates", certificates.Run)
	classes := runtimeclasses.New(runtimeclasses.Config{Client: cfg.API.Node, Changed: cfg.SyncNeeded, Clock: cfg.Clock})
	parts.Run("runtime classes", classes.Run)
	statuses := statusmanager.New(statusmanager.Config{
		API: statusmanager.FromAPIServer(cfg.StatusAPI.Core), Clock: cfg.Clock, Tracer: cfg.Tracer, Logger: cfg.Logger,
		Metrics: statusmanager.NewMetrics(cfg.Registry),
	})
	parts.Run("pod statuses", statuses.Run)
	return &Link{
		Objects: objects, Tokens: issued, TrustBundles: bundles, Certificates: certificates,
		Claims:         volumes,
		Accounts:       accounts{core: cfg.API.Core, tokens: issued},
		RuntimeClasses: classes, Services: services, Statuses: statuses,
		Mirrors: func(ending func(types.NamespacedName, types.UID) bool) Mirrors {
			mirrors := mirrorpods.New(mirrorpods.Config{
				NodeName: cfg.NodeName, API: mirrorpods.FromAPIServer(cfg.StatusAPI.Core), Statuses: statuses, Events: cfg.Events,
				Ending: ending, Clock: cfg.Clock, Logger: cfg.Logger, Metrics: mirrorpods.NewMetrics(cfg.Registry),
			})
			parts.Run("mirror pods", mirrors.Run)
			return mirrors
		},
	}
}

// connectObjects returns the config maps and secrets, the claims, and the services, from the API server or from the
// configmux of a site, and adds to parts what follows them.
func connectObjects(
	ctx context.Context, cfg Config, parts *components.Group,
) (configobjects.Source, *claims.Cluster, Services) {
	volumes := claims.Config{
		Core: cfg.API.Core, Storage: cfg.Storage, NodeName: cfg.NodeName, Changed: cfg.ObjectChanged, Clock: cfg.Clock,
	}
	if cfg.Shared != nil {
		return connectShared(cfg, volumes, parts)
	}
	objects := configobjects.NewCluster(ctx, configobjects.ClusterConfig{
		Client: cfg.API.Core, Strategy: cfg.Strategy, Changed: cfg.ObjectChanged, Clock: cfg.Clock,
	})
	parts.Run("config maps and secrets", objects.Run)
	requested := claims.NewCluster(volumes)
	parts.Run("claims", requested.Run)
	services := servicelinks.New(servicelinks.Config{Client: cfg.API.Core, Changed: cfg.SyncNeeded, Clock: cfg.Clock})
	parts.Run("services", services.Run)
	return objects, requested, services
}

// connectShared does what connectObjects does, with a configmux of a site.
func connectShared(
	cfg Config, volumes claims.Config, parts *components.Group,
) (configobjects.Source, *claims.Cluster, Services) {
	var requested *claims.Cluster
	var services *servicelinks.Shared
	objects := configobjects.NewConfigmux(configobjects.ConfigmuxConfig{
		Stream: cfg.Shared, Explicit: true, Changed: cfg.ObjectChanged, Clock: cfg.Clock, Logger: cfg.Logger,
		Metrics: stream.NewFollowedMetrics(cfg.Registry, stream.NameObjects),
		KeyChanged: func(key configobjects.Key) {
			switch key.Kind {
			case configobjects.Claim, configobjects.Volume, configobjects.Secret:
				requested.Tell(key.Kind.Resource(), key.Namespace, key.Name)
			case configobjects.Service, configobjects.Services:
				services.Tell()
			case configobjects.ConfigMap, configobjects.Class, configobjects.Driver:
			}
		},
	})
	volumes.Shared = objects
	requested = claims.NewCluster(volumes)
	services = servicelinks.NewShared(servicelinks.SharedConfig{
		Services: objects, Changed: cfg.SyncNeeded, Clock: cfg.Clock,
	})
	parts.Run("objects of the site", objects.Run)
	parts.Run("claims", requested.Run)
	return objects, requested, services
}

// accounts are the service accounts of an API server, which lets a node get those of the pods that are bound to it.
type accounts struct {
	core   rest.Interface
	tokens *tokens.Tokens
}

// Account implements Accounts.
func (a accounts) Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	account := &v1.ServiceAccount{}
	if err := a.core.Get().Namespace(namespace).Resource("serviceaccounts").Name(name).Do(ctx).Into(account); err != nil {
		return nil, err
	}
	return account, nil
}

// Token implements Accounts.
func (a accounts) Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	return a.tokens.UnwatchedToken(ctx, pod, account.UID, audience)
}
