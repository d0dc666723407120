package nodestatus

import (
	"log/slog"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/lease"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
	"github.com/quartet-node/quartet/services/nodestatus/internal/registration"
	"github.com/quartet-node/quartet/services/nodestatus/internal/report"
	"github.com/quartet-node/quartet/services/nodestatus/internal/server"
)

// published passes the Node from the heart to its consumers: the server of this process, and the API server.
type published struct {
	server *server.Server
	// registrar is nil for a standalone node.
	registrar *registration.Registrar
	// reporter and lease are nil for a standalone node.
	reporter *report.Reporter
	lease    *lease.Keeper
	// storage is nil for a standalone node.
	storage *storage
	events  *nodeEvents
	logger  *slog.Logger
	tracer  trace.Tracer
}

// computed receives a Node from the heart. It never blocks.
func (p *published) computed(state nodeobject.State) {
	p.check(p.server.Publish(state))
	p.events.computed(state.Node)
	if p.registrar != nil {
		p.registrar.Offer(state.Node)
		p.reporter.Offer(state.Node)
	}
}

// registered receives the Node in the API server; nil if it does not exist.
func (p *published) registered(node *v1.Node) {
	p.lease.Registered(node)
	p.storage.registered(node)
	p.events.registered(node)
	p.check(p.server.Registered(node))
}

func (p *published) check(err error) {
	if err != nil {
		p.logger.Error("the Node is not published", telemetry.KeyError, err)
	}
}
