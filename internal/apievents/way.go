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

// Way is a Sender with a client of its own. That of a node that is standalone is nil, which tells nobody and runs as a matter of form.
type Way struct {
	client *apiclient.Client
	sender *Sender
}

// WayOf makes the way that the configuration of a service gives: nil without a kubeconfig. The metrics are registered when there is
// one. Nothing is sent before Run. What fails is the reading of the kubeconfig, see [apiclient.New].
func WayOf(service nodeconfig.Service, cfg nodeconfig.Config, logger *slog.Logger, registerer prometheus.Registerer) (*Way, error) {
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

// Told takes an event to be sent, for the field of that name of events.Config; nil without a way.
func (w *Way) Told() func(*v1.Event) {
	if w == nil {
		return nil
	}
	return w.sender.Send
}

// Run sends until ctx ends, and closes the client's connections then.
func (w *Way) Run(ctx context.Context) error {
	if w == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	defer w.client.Close()
	return w.sender.Run(ctx)
}
