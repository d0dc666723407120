package apievents

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// Target is the destination of a service's events.
type Target interface {
	// Send takes a new or changed event. It does not block, and does not change the event.
	Send(event *v1.Event)
	// Run sends the events until ctx ends, and returns its error.
	Run(ctx context.Context) error
}

// Connect returns the target for the configuration of a service: the API server of its kubeconfig, or None without one.
// With a kubeconfig it registers the metrics. Nothing is sent before Run. It fails if the kubeconfig cannot be used,
// see [apiclient.New].
func Connect(
	service nodeconfig.Service,
	cfg nodeconfig.Config,
	logger *slog.Logger,
	registerer prometheus.Registerer,
) (Target, error) {
	if cfg.Kubeconfig == "" {
		return None{}, nil
	}
	client, err := apiclient.New(ClientConfig(service, cfg))
	if err != nil {
		return nil, err
	}
	return &connected{client: client, Sender: New(Config{
		API: APIServer(client.Core), Clock: clock.RealClock{}, Logger: logger, Metrics: NewMetrics(registerer),
	})}, nil
}

// connected is a Sender with its own client.
type connected struct {
	*Sender
	client *apiclient.Client
}

// Run implements Target. At the end it closes the client's connections.
func (c *connected) Run(ctx context.Context) error {
	defer c.client.Close()
	return c.Sender.Run(ctx)
}

// None is the Target of a standalone node. It discards events.
type None struct{}

// Send implements Target.
func (None) Send(*v1.Event) {}

// Run implements Target.
func (None) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
