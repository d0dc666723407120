package configmux

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
)

// firstReading bounds the delay of subscribers at the start while the sources are read.
const firstReading = time.Second

// oneNode is the part for one node, with all its sources.
type oneNode struct {
	cfg     nodeconfig.Config
	tel     *telemetry.Telemetry
	member  *membership
	given   sources
	desired *mux.Mux
	// opened is closed when streams may begin.
	opened chan struct{}
}

func newOneNode(
	cfg nodeconfig.Config, tel *telemetry.Telemetry, health *rpc.Health, registry *prometheus.Registry,
) (part, error) {
	member, err := join(cfg)
	if err != nil {
		return nil, err
	}
	if member != nil {
		member.client.CountIn(apiclient.NewMetrics(registry))
	}
	n := &oneNode{cfg: cfg, tel: tel, member: member, opened: make(chan struct{})}
	n.given = sourcesOf(cfg, tel, registry, member, health, func() localsource.Others { return n.desired })
	n.desired = mux.New(mux.Config{
		Sources: n.given.all, Health: health, Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
		Metrics: mux.NewMetrics(registry),
	})
	return n, nil
}

func (n *oneNode) run(ctx context.Context) error {
	opening := mux.NewOpening(n.given.all, n.desired)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		opening.Wait(ctx, firstReading, clock.RealClock{})
		close(n.opened)
		return nil
	})
	for _, s := range n.given.all {
		group.Go(func() error {
			if err := s.Run(ctx, opening); err != nil {
				return fmt.Errorf("source %s: %w", s.Name(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		n.given.resume(ctx, n.opened, n.tel.Logger)
		return nil
	})
	return group.Wait()
}

func (n *oneNode) served() server.Config {
	return n.given.served(n.cfg, n.desired, n.opened, n.tel.Logger)
}

func (n *oneNode) loops() []watchdog.Loop {
	merge := watchdog.Loop{Name: "merge", Check: func() error { n.desired.Sources(); return nil }}
	return append(n.given.loops(), merge)
}

func (n *oneNode) end() { n.desired.Close() }

func (n *oneNode) leave() error { return n.member.leave() }
