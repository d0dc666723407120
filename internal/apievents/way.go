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

// Way is a Sender with its own client. A nil Way, that of a standalone node, discards all events; its Run only waits.
type Way struct {
	client *apiclient.Client
	sender *Sender
}

// WayOf returns the Way for the configuration of a service, or nil without a kubeconfig. It registers the metrics if
// there is a kubeconfig. Nothing is sent before Run. It fails if the kubeconfig cannot be used, see [apiclient.New].
func WayOf(
	service nodeconfig.Service,
	cfg nodeconfig.Config,
	logger *slog.Logger,
	registerer prometheus.Registerer,
) (*Way, error) {
	if cfg.Kubeconfig == "" {
		return nil, nil
	}
	client, err := apiclient.New(ClientConfig(service, cfg))
	if err != nil {
		return nil, err
	}
	return &Way{client: client, sender: New(Config{
		API: APIServer(client.Core), Clock: clock.RealClock{}, Logger: logger, Metrics: NewMetrics(registerer),
	})}, nil
}

// Told returns the function for the field Told of events.Config; nil for a nil Way.
func (w *Way) Told() func(*v1.Event) {
	if w == nil {
		return nil
	}
	return w.sender.Send
}

// Run sends events until ctx ends, and then closes the client's connections.
func (w *Way) Run(ctx context.Context) error {
	if w == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	defer w.client.Close()
	return w.sender.Run(ctx)
}
