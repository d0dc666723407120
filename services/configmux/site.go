package configmux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
	"github.com/quartet-node/quartet/services/configmux/internal/site"
)

// siteDir, in the state directory, has the checkpoints of the nodes of a site.
const siteDir = "site"

// unlimited is the rate of requests without a limit.
const unlimited = -1

// sitePart is the part for the nodes of a site.
type sitePart struct {
	client *apiclient.Client
	nodes  *site.Site
}

func newSite(
	cfg nodeconfig.Config, tel *telemetry.Telemetry, health *rpc.Health, registry *prometheus.Registry,
) (part, error) {
	server := apiclient.ConfigOf(nodeconfig.ConfigMux, cfg)
	// The limit of the configuration is for one node. Each reflector of a site has one request under way, and the API
	// server has limits of its own.
	server.QPS = unlimited
	client, err := apiclient.New(server)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	client.CountIn(apiclient.NewMetrics(registry))
	seals := sealing.NewKeyring(filepath.Join(cfg.StateDir, keyFile), os.Geteuid())
	seals.Expose(registry)
	return &sitePart{client: client, nodes: site.New(site.Config{
		Nodes:    cfg.Nodes,
		Client:   client.Core,
		Server:   client.Server,
		Allowed:  privilege.Allowed(cfg.HostPrivileges),
		Dir:      filepath.Join(cfg.StateDir, siteDir),
		Health:   health,
		Seals:    seals,
		Clock:    clock.RealClock{},
		Tracer:   tel.Tracer,
		Logger:   tel.Logger,
		Requests: apisource.NewMetrics(registry),
		Muxes:    mux.NewMetrics(registry),
	})}, nil
}

func (p *sitePart) run(ctx context.Context) error { return p.nodes.Run(ctx) }

func (p *sitePart) served() server.Config { return server.Config{Site: p} }

// loops implements part.
func (p *sitePart) loops() []watchdog.Loop { return p.nodes.Loops() }

func (p *sitePart) end() { p.nodes.Close() }

func (p *sitePart) leave() error {
	p.client.Close()
	return nil
}

// Node implements server.Site.
func (p *sitePart) Node(ctx context.Context, name string) (server.View, error) {
	n, err := p.nodes.Node(ctx, name)
	switch {
	case errors.Is(err, site.ErrForeign):
		return server.View{}, status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, site.ErrUnknown):
		return server.View{}, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return server.View{}, status.FromContextError(err).Err()
	}
	return server.View{Desired: namedOf(n), Opening: n.Opening(), Objects: n.Objects()}, nil
}

// Pods implements server.Site.
func (p *sitePart) Pods() []*configv1.PodUpdate {
	var all []*configv1.PodUpdate
	for _, n := range p.nodes.All() {
		all = append(all, n.Desired().Pods()...)
	}
	return all
}

// Sources implements server.Site.
func (p *sitePart) Sources() []*configv1.Source {
	var all []*configv1.Source
	for _, n := range p.nodes.All() {
		all = append(all, namedOf(n).Sources()...)
	}
	if len(all) == 0 { // no node is known yet
		all = append(all, &configv1.Source{Name: apisource.Name, Target: p.client.Server()})
	}
	slices.SortStableFunc(all, func(a, b *configv1.Source) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// named is the desired state of a node whose sources have its name.
type named struct {
	*mux.Mux

	node string
}

func namedOf(n *site.Node) named { return named{Mux: n.Desired(), node: n.Name()} }

// Sources implements server.Lists.
func (n named) Sources() []*configv1.Source {
	sources := n.Mux.Sources()
	for _, s := range sources {
		s.Node = n.node
	}
	return sources
}
